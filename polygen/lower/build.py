"""`ScheduleTree` -> `KernelPlan`: buffers and leaf operations for the statements of the loops.

1. Which copies are possible follows from the operands' alignment and the device: 16, 8 or 4 bytes
   in the background, or 2 bytes through registers.
2. Every ring gets an offset and a swizzle, the epilogue its staging area.
3. The loops come from isl; each statement they call gets one leaf.
4. Resources are counted and checked; arguments and launch shape are written down.
"""

from __future__ import annotations

from polygen.errors import ScheduleError, SignatureError, UnsupportedProgram
from polygen.frontend.program import Program, Tensor
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device, common_facts
from polygen.hardware.fragment_load import atom_load
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower import layout
from polygen.lower.epilogue import read, stride_argument, write
from polygen.lower.plan import Argument, Buffer, Copy, Epilogue, KernelPlan, Launch, Load
from polygen.lower.resources import resources
from polygen.lower.roles import (
    map_arguments,
    role_launch,
    role_resources,
    role_work,
)
from polygen.lower.roles import shared_bytes as role_shared_bytes
from polygen.poly.ast import Block, Marked
from polygen.poly.mapping import ScheduleTree
from polygen.poly.match import Match, Operand
from polygen.poly.pointwise import pointwork
from polygen.poly.raster import prove_linear_raster, prove_raster
from polygen.poly.results import copies_in_background, row_vectors
from polygen.poly.tiles import copy_parts
from polygen.schedule.model import Schedule

SUM_BYTES = 4  # sums are staged as f32


def shared_bytes(match: Match, schedule: Schedule) -> int:
    """Shared memory of a schedule before anything is built: both rings, overlaid by the scratch."""
    cta = schedule.tile.cta
    size = match.a.tensor.dtype.bytes
    rings = schedule.pipeline.stages * (cta.m + cta.n) * cta.k * size
    if schedule.epilogue.through != "smem":
        return rings
    return max(rings, cta.m * cta.n * SUM_BYTES)


def lower(
    program: Program, tree: ScheduleTree, schedule: Schedule, atom: Atom, device: Device
) -> KernelPlan:
    """Decide everything that the emitter needs.

    Raises:
        ResourceError: the plan does not fit the device.
        ScheduleError: a swizzle or tile does not fit.
        UnsupportedProgram: no instruction loads an operand's storage order.
    """
    where = f"schedule {schedule.name}"
    if not {"m", "n"} <= set(schedule.loops.grid):
        raise ScheduleError(
            f"loops.grid = {list(schedule.loops.grid)}",
            where=where,
            why="a thread block computes one output tile, so m and n are both mapped to blocks",
            nearest='Use ["m", "n"]',
        )
    if tree.roles is not None:
        return _lower_roles(program, tree, schedule, atom, device)
    asynchronous = copies_in_background(program, device)
    buffers, copies, loads = [], [], []
    offset = 0
    for name, operand in tree.match.operands:
        copy, load = _operand(name, operand, tree, schedule, atom, asynchronous)
        buffer = layout.ring(
            f"ring_{name}",
            offset,
            schedule.pipeline.stages,
            copy.rows,
            copy.columns * copy.element_bytes,
            copy.width,
            load.load,
            schedule.smem.swizzle,
        )
        offset += buffer.bytes
        buffers.append(buffer)
        copies.append(copy)
        loads.append(load)
    epilogue, staging = _epilogue(program, tree, schedule, atom)
    if staging is not None:
        buffers.append(staging)
        offset = max(offset, staging.bytes)
    raster = schedule.raster
    across = "n" if raster.along == "m" else "m"
    cta = {"m": tree.tiles.cta[0], "n": tree.tiles.cta[1]}
    taken = resources(schedule, tree.tiles, atom, device, offset, where)
    launch = Launch(
        tree.match.extent(raster.along),
        tree.match.extent(across),
        cta[raster.along],
        cta[across],
        raster.group,
        taken.threads,
        offset,
    )
    return KernelPlan(
        entry=f"pg_{program.name}",
        program=program,
        schedule=schedule,
        device=device,
        atom=atom,
        tiles=tree.tiles,
        arguments=arguments(program),
        launch=launch,
        extents=tuple((role, tree.match.extent(role)) for role in "mnk"),
        buffers=tuple(buffers),
        copies=tuple(copies),
        loads=tuple(loads),
        epilogue=epilogue,
        loops=tree.loops(),
        enforced=tree.enforced,
        proofs=(*tree.proofs, prove_raster(raster.group)),
        resources=taken,
    )


def _lower_roles(
    program: Program, tree: ScheduleTree, schedule: Schedule, atom: Atom, device: Device
) -> KernelPlan:
    """The plan of a specialised kernel."""
    epilogue, _ = _epilogue(program, tree, schedule, atom)
    work = role_work(tree, schedule, atom, epilogue)
    needed = role_shared_bytes(work)
    return KernelPlan(
        entry=f"pg_{program.name}",
        program=program,
        schedule=schedule,
        device=device,
        atom=atom,
        tiles=tree.tiles,
        arguments=arguments(program, map_arguments(work)),
        launch=role_launch(tree, schedule, device, work, needed),
        extents=tuple((role, tree.match.extent(role)) for role in "mnk"),
        buffers=(),
        copies=(),
        loads=(),
        epilogue=epilogue,
        loops=Block(tuple(Marked(part.role, part.loops) for part in work.roles)),
        enforced=(),
        proofs=(*tree.proofs, *prove_linear_raster(schedule.raster.group)),
        resources=role_resources(schedule, tree.tiles, atom, device, needed, work.consumers),
        roles=work,
    )


def _operand(
    name: str,
    operand: Operand,
    tree: ScheduleTree,
    schedule: Schedule,
    atom: Atom,
    asynchronous: bool,
) -> tuple[Copy, Load]:
    tensor, tiles = operand.tensor, tree.tiles
    side = 0 if name == "a" else 1
    size = tensor.dtype.bytes
    footprint = dict(tree.footprints)[name]
    width = min(chunk_bytes(), tensor.alignment)
    copy = Copy(
        operand=name,
        tensor=tensor,
        buffer=f"ring_{name}",
        element_bytes=size,
        width=width if asynchronous else size,
        asynchronous=asynchronous,
        k_contiguous=operand.k_contiguous,
        role=operand.role,
        tile=footprint.size[operand.role_axis],
        tile_k=footprint.size[operand.k_axis],
        parts=copy_parts(tiles, schedule),
        ragged=tensor.ragged,
        stride=stride_argument(tensor, tensor.order[0]),
    )
    if copy.columns * size % chunk_bytes():
        dim = "tile.cta.k" if operand.k_contiguous else f"tile.cta.{operand.role}"
        step = chunk_bytes() // size
        raise ScheduleError(
            f"{dim} = {copy.columns} of {tensor.dtype} is {copy.columns * size} bytes",
            where=f"schedule {schedule.name}",
            why=f"rows in shared memory are whole {chunk_bytes()}-byte chunks",
            nearest=f"Use a multiple of {step}",
        )
    count = tiles.atoms[side]
    load = atom_load(atom, name, operand.k_contiguous, pair=count % 2 == 0)
    if load is None:
        raise UnsupportedProgram(
            f"{tensor.name}: {tensor.dtype} has to be contiguous along {match_dim(tree, 'k')}",
            where=atom.name,
            why="no instruction loads the transposed fragments of 8-bit elements",
            nearest=f"Store {tensor.name} with {match_dim(tree, 'k')} innermost",
        )
    return copy, Load(
        operand=name,
        buffer=f"ring_{name}",
        load=load,
        tiles=count // load.subtiles,
        warp_tile=tiles.warp[side],
        element_bytes=size,
        slots=schedule.pipeline.fragments,
        round_to_tf32=tensor.dtype.name == "tf32",
    )


def match_dim(tree: ScheduleTree, role: str) -> str:
    """The user's name of the dim along a role."""
    return str(tree.match.extent(role))


def _epilogue(
    program: Program, tree: ScheduleTree, schedule: Schedule, atom: Atom
) -> tuple[Epilogue, Buffer | None]:
    table = atom.c.table
    staged = schedule.epilogue.through == "smem"
    rows = row_vectors(program, schedule)
    work = pointwork(program, tree.fusion, tree.match)
    first = table[: common_facts()["warp_size"], 0, :]  # of a warpgroup, its first warp
    offsets = tuple((int(r), int(c)) for r, c in table[0] - first[0])
    epilogue = Epilogue(
        staged=staged,
        vector=rows.vector,
        batch=rows.batch,
        fixed_column=staged and rows.lanes % (tree.tiles.warp[1] // rows.vector) == 0,
        reads=tuple(read(one, rows.vector) for one in work.reads),
        statements=work.statements,
        accumulator=tree.match.contraction.write.name,
        writes=tuple(write(one, rows.vector) for one in work.writes),
        row_of_lane=layout.closed_form(first[:, 0]),
        column_of_lane=layout.closed_form(first[:, 1]),
        element_offsets=offsets,
    )
    if not staged:
        return epilogue, None
    scratch = layout.scratch(
        "scratch",
        tree.tiles.warp_count,
        tree.tiles.warp,
        rows.vector,
        table,
        atom.n,
        "auto",
    )
    return epilogue, scratch


def arguments(program: Program, maps: tuple[Argument, ...] = ()) -> tuple[Argument, ...]:
    """The kernel's parameters: pointers and run-time scalars, sizes, strides, tensor maps.

    Raises:
        SignatureError: a size or tensor is named like a stride.
    """
    tensors: tuple[Tensor, ...] = (*program.inputs, *program.outputs)
    found = [Argument(t.name, "pointer" if t.dims else "scalar", tensor=t.name) for t in tensors]
    found += [Argument(name, "size", dim=name) for name in program.sizes]
    found += [
        Argument(stride_argument(t, axis), "stride", tensor=t.name, axis=axis)
        for t in tensors
        for axis in t.order[:-1]
    ]
    found += maps
    names = [argument.name for argument in found]
    clash = next((name for name in names if names.count(name) > 1), None)
    if clash is not None:
        raise SignatureError(
            f"the name {clash!r} is taken: the kernel calls the step of an axis so",
            where="signature",
            nearest=f"Use {clash}_",
        )
    return tuple(found)
