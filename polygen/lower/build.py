"""`ScheduleTree` -> `KernelPlan`: memory, layouts, leaves, places, launch.

1. `polygen.lower.memory` places all buffers; each gets the layout of its tiles.
2. Each statement of the loops gets its leaf: those of warps that do everything
   (`polygen.lower.warps`), of roles (`polygen.lower.warpgroups`), of lanes that multiply
   (`polygen.lower.dots`), or of threads that fold elements (`polygen.lower.zeros`).
3. Resources are counted and checked; arguments and launch shape are written down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polygen.errors import ScheduleError, SignatureError
from polygen.frontend.program import Program, Tensor
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.hardware.matrix_layout import swizzle_bytes
from polygen.lower import dots, warpgroups, warps, zeros
from polygen.lower.carried import carried_proof
from polygen.lower.epilogue import epilogue
from polygen.lower.folds import fold_orders, following
from polygen.lower.given import Given
from polygen.lower.launch import layers, stride_argument, workspace_argument
from polygen.lower.memory import needed
from polygen.lower.plan import (
    Argument,
    Following,
    Inside,
    KernelPlan,
    Launch,
    Leaf,
    Place,
    Resources,
)
from polygen.lower.resources import resources
from polygen.lower.result_work import Epilogue, Store
from polygen.lower.tallies import tally_orders
from polygen.lower.tally import Tally
from polygen.lower.work import Boxes, Move
from polygen.poly.last_round import prove_last_round
from polygen.poly.legality import Proof
from polygen.poly.mapping import ScheduleTree
from polygen.poly.pointwise import among_sections, pointwork
from polygen.poly.prologue import without_prologues
from polygen.poly.raster import prove_linear_raster, prove_raster, prove_rounds, prove_runs
from polygen.poly.row_groups import group_walk, prove_row_groups
from polygen.poly.row_passes import split_for
from polygen.poly.tile_walk import prove_walk
from polygen.poly.whole_rows import Alike
from polygen.schedule.model import ROW_WARPS, Schedule


def lower(
    program: Program,
    tree: ScheduleTree,
    schedule: Schedule,
    atom: Atom,
    device: Device,
    among: Alike | None = None,
) -> KernelPlan:
    """Decide everything that the emitter needs.

    Args:
        program: what to compute.
        tree: when what runs.
        schedule: the decisions.
        atom: the instruction.
        device: the target.
        among: of a section whose kernel has others, what all of them do.

    Raises:
        ResourceError: the plan does not fit the device.
        ScheduleError: a swizzle or tile does not fit.
        UnsupportedProgram: no instruction loads an operand's storage order.
    """
    if not {"m", "n"} <= set(schedule.loops.grid):
        raise ScheduleError(
            f"loops.grid = {list(schedule.loops.grid)}",
            where=f"schedule {schedule.name}",
            why="a thread block computes one output tile, so m and n are both mapped to blocks",
            nearest='Use ["m", "n"]',
        )
    tiles, group = tree.tiles, schedule.raster.group
    split = split_for(program, in_tile=schedule.covers_rows, alike=among)
    products = without_prologues(split.main)
    work = among_sections(pointwork(products, tree.fusion, tree.match, split), among)
    given = Given(products, tree, schedule, atom, device, work)
    out = epilogue(given)
    inside = _family(schedule)(given, out)
    taken = resources(schedule, tree.match, tiles, atom, device, needed(inside.buffers))
    launch = _launch(given, taken)
    raster = prove_linear_raster(group) if launch.persistent else one_tile_each(launch)
    if launch.persistent and given.walk is not None:
        raster = prove_walk(given.walk)
    if tiles.run > 1:
        raster += prove_runs(tiles.run)
    if tiles.last:
        raster += prove_last_round(tiles.split)
    walk = group_walk(device.warp_size) if tree.match.groups is not None else None
    if walk is not None:
        raster += prove_row_groups(walk, tiles.cta[0] * schedule.cluster.m)
    orders = tally_orders(leaf.work for leaf in inside.leaves if isinstance(leaf.work, Tally))
    row_warps = schedule.epilogue.row_warps if among is None else ROW_WARPS[-1]
    after = following(split, f"pg_{program.name}", out.folds, row_warps)
    proofs = (*tree.proofs, *raster, *((carried_proof(atom),) if tree.match.rest else ()))
    orders_of_folds = fold_orders(program, split, out, orders, after, tiles.beside)
    found = plan_of(given, program, inside, taken, launch, after)
    return replace(
        found,
        mapping=_mapping(given, inside.places[-1]),
        proofs=proofs,
        sums=replace(tree.sums, folds=orders_of_folds),
        tile_domain=tree.domain,
        group_walk=walk,
    )


def _family(schedule: Schedule) -> Callable[[Given, Epilogue], Inside]:
    """What makes the inside of a block."""
    if schedule.without_rings:
        return dots.inside if schedule.by_lanes else zeros.inside
    return warpgroups.inside if schedule.specialised else warps.inside


def plan_of(
    given: Given,
    program: Program,
    inside: Inside,
    taken: Resources,
    launch: Launch,
    after: Following | None,
) -> KernelPlan:
    """What plans of all kernels have alike, from the passes before.

    Args:
        given: their results.
        program: what to compute.
        inside: what is inside a block.
        taken: what one takes.
        launch: of the kernel.
        after: the launch that follows, with a workspace between both; None: none does.
    """
    tree, entry = given.tree, f"pg_{program.name}"
    arrays = arguments(program, _map_arguments(inside.leaves), workspace=after is not None)
    if after is not None:
        after = replace(after, dependent=given.device.has("griddepcontrol"))
    return KernelPlan(
        entry, program, given.schedule, given.device, given.atom, given.tiles, "", arrays, launch,
        tree.match, given.work, tree.synchronised, tree.places, inside.buffers, inside.leaves,
        inside.places, inside.syncs, tree.proofs, taken, tree.sums, after,
    )  # fmt: skip


def _mapping(given: Given, last: Place) -> str:
    """The tile hierarchy and the instruction, in words."""
    tiles, runs = given.tiles, f"{given.atom.name} on {given.device.name}"
    if given.atom.scope != "warpgroup":
        return f"{tiles}, {runs}"
    pixels = f" (rows of pixels: {given.match.box})" if given.match.box else ""
    (m, n), (rows, _, depth) = tiles.warp, tiles.atom
    return (
        f"block {'x'.join(map(str, tiles.cta))}{pixels}, {last.agents} consumer warpgroup(s) of "
        f"{m}x{n}, instruction {rows}x{n}x{depth}, {runs}"
    )


def _launch(given: Given, taken: Resources) -> Launch:
    """One block per tile; with roles persistent blocks, as many as there are multiprocessors."""
    schedule, match = given.schedule, given.match
    along = schedule.raster.along
    across = "n" if along == "m" else "m"
    cta = {
        "m": match.box.along_m(given.tiles.cta[0]),
        "n": given.tiles.cta[1] * given.tiles.run,
    }
    cluster = {"m": schedule.cluster.m, "n": schedule.cluster.n}
    persistent = _resident(given.device, schedule)
    batches = () if match.groups else tuple(count for _, count in match.counted)
    return Launch(
        match.extent(along),
        match.extent(across),
        cta[along],
        cta[across],
        schedule.raster.group,
        taken.threads,
        taken.shared_bytes,
        persistent=persistent,
        per_multiprocessor=schedule.min_blocks if schedule.specialised else 1,
        cluster=(cluster[along], cluster[across]),
        batches=batches,
        layers=0 if persistent else layers(batches),
        split=schedule.cluster.k,
        dependent=schedule.launch.dependent,
        groups=match.groups.extent if match.groups else 0,
        grouped=("along" if along == "m" else "across") if match.groups else "",
    )


def one_tile_each(launch: Launch) -> tuple[Proof, ...]:
    """The proofs of the raster of blocks that have a tile each."""
    rounds = (prove_rounds(launch.layers),) if launch.layers else ()
    return (prove_raster(launch.group), *rounds)


def _resident(device: Device, schedule: Schedule) -> int:
    return device.multiprocessors * schedule.min_blocks if schedule.specialised else 0


def _map_arguments(leaves: tuple[Leaf, ...]) -> tuple[Argument, ...]:
    """The tensor maps among the kernel's parameters."""
    found: list[Boxes] = []
    for leaf in leaves:
        if isinstance(leaf.work, Move):
            found += leaf.work.boxes
        elif isinstance(leaf.work, Store):
            found += [boxes for _, boxes in leaf.work.panels]
    return tuple(
        Argument(b.map, "map", tensor=b.tensor.name, axes=b.axes, swizzle=swizzle_bytes(b.span))
        for b in found
    )


def arguments(
    program: Program, maps: tuple[Argument, ...] = (), *, workspace: bool = False
) -> tuple[Argument, ...]:
    """The kernel's parameters: pointers and run-time scalars, sizes, strides, tensor maps.

    Args:
        program: its tensors.
        maps: the tensor maps.
        workspace: whether there is one.

    Raises:
        SignatureError: a size or tensor is named like a stride.
    """
    tensors: tuple[Tensor, ...] = (*program.inputs, *program.outputs)
    numbers = {t.name for t in program.inputs if not t.dims}  # an output is memory in any case
    found = [
        Argument(t.name, "scalar" if t.name in numbers else "pointer", tensor=t.name)
        for t in tensors
    ]
    found += [Argument(name, "size", dim=name) for name in program.sizes]
    found += [
        Argument(stride_argument(t, axis), "stride", tensor=t.name, axis=axis)
        for t in tensors
        for axis in t.order[:-1]
    ]
    if workspace:
        found.append(Argument(workspace_argument(program), "workspace"))
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
