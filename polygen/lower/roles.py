"""`ScheduleTree` with roles -> `KernelPlan`: rings, boxes, panels, barriers and their places.

1. Operands go through tensor maps, in boxes of one swizzle span; their layout is proved equal to
   what the instruction's matrix descriptors read.
2. Matrices of the epilogue go through panels when every one of them can: 16-byte rows, innermost
   along n. Otherwise the schedule has to store from the registers, and says so.
3. Rings, panels and barriers get offsets; registers are counted against what each role is given.
"""

from __future__ import annotations

from polygen.errors import ResourceError, ScheduleError, UnsupportedProgram
from polygen.frontend.program import Tensor
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device, common_facts
from polygen.hardware.matrix_layout import pattern_bytes, spans
from polygen.lower.epilogue import Pointwork
from polygen.lower.plan import Argument, Epilogue, Launch, Read, Resources, Write
from polygen.lower.role_operands import fill, major, operand_layout
from polygen.lower.role_plan import Panel, PlacedBarrier, Region, RoleLoops, RoleWork
from polygen.poly.mapping import ScheduleTree
from polygen.poly.match import Match
from polygen.poly.role_barriers import GroupBarrier, Mbarrier, Turn
from polygen.poly.role_mapping import Panels
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule

_PANEL_COLUMNS = (64, 32, 16)
_ROW_BYTES = common_facts()["tensor_map_row_bytes"]
_BARRIER_BYTES = common_facts()["mbarrier_bytes"]
_MOST_CONSUMERS = 3  # with the producer's, four warpgroups share the registers
# Addresses, loop counters and the vectors of a panel, as compiled kernels show.
_EPILOGUE_REGISTERS = 40


def matrices(work: Pointwork) -> list[Read]:
    """The whole matrices that the pointwise statements read."""
    return [r for r in work.reads if r.m_stride != "0" and r.kind in ("vector", "strided")]


def panel_columns(schedule: Schedule) -> int:
    """Columns of a panel, as decided, else the most that divide a consumer's; 0: none do."""
    fitting = (c for c in _PANEL_COLUMNS if schedule.tile.warp.n % c == 0)
    return schedule.epilogue.columns or next(fitting, 0)


def panels(schedule: Schedule, work: Pointwork) -> Panels:
    """What the epilogue moves through panels.

    Raises:
        ScheduleError: a matrix cannot be moved by the copy engine, or not in such panels.
    """
    if schedule.epilogue.through != "tma":
        return Panels(0, (), ())
    where = f"schedule {schedule.name}, epilogue.through"
    read = matrices(work)
    moved: list[Read | Write] = [*read, *work.writes]
    for one in moved:
        if one.kind != "vector" or one.tensor.alignment < _ROW_BYTES:
            raise ScheduleError(
                f"{one.tensor.name}: the copy engine cannot move {one.tensor}",
                where=where,
                why=f"it needs n innermost, and rows that start at multiples of {_ROW_BYTES} bytes",
                nearest='Use epilogue.through = "registers"',
            )
    own, columns = schedule.tile.warp.n, panel_columns(schedule)
    if not columns:
        raise ScheduleError(
            f"tile.warp.n = {own} with panels",
            where=where,
            nearest=f"Use a multiple of {_PANEL_COLUMNS[-1]}",
        )
    if columns not in _PANEL_COLUMNS or own % columns:
        fitting = [str(c) for c in _PANEL_COLUMNS if own % c == 0]
        raise ScheduleError(
            f"epilogue.columns = {columns} of tile.warp.n = {own}",
            where=f"schedule {schedule.name}, epilogue.columns",
            why="panels of one width cover a consumer's columns",
            nearest=f"Use {' or '.join(fitting)}" if fitting else "Leave it out",
        )
    return Panels(columns, tuple(r.name for r in read), tuple(w.tensor.name for w in work.writes))


def check_roles(schedule: Schedule, match: Match, atom: Atom, tiles: Tiling) -> None:
    """Refuse what no specialised kernel does, before anything is built.

    Raises:
        ScheduleError: tiles that do not fit the roles.
        UnsupportedProgram: an operand that tensor maps cannot describe.
    """
    where = f"schedule {schedule.name}"
    if atom.scope != "warpgroup":
        raise ScheduleError(
            f"{atom.name} is an instruction of one {atom.scope}",
            where=where,
            why="roles feed warpgroup instructions",
            nearest='Use atom = "auto"',
        )
    cta, warp = schedule.tile.cta, schedule.tile.warp
    pingpong = schedule.roles.form == "pingpong"
    whole_rows, whole_columns = warp.m == cta.m, warp.n == cta.n
    if not (whole_rows and whole_columns if pingpong else whole_rows or whole_columns):
        between = "," if pingpong else " or"
        raise ScheduleError(
            f"tile.warp {warp.m} x {warp.n} of tile.cta {cta.m} x {cta.n}",
            where=where,
            why="consumers that cooperate share a tile's rows or its columns; consumers that take "
            "turns neither",
            nearest=f"tile.warp.n = {cta.n}{between} tile.warp.m = {cta.m}",
        )
    if tiles.warp_count > _MOST_CONSUMERS:
        raise ScheduleError(
            f"{tiles.warp_count} consumer warpgroups",
            where=where,
            why="with the producer's, four warpgroups share the registers",
            nearest=f"tile.warp.m = {_least_part(cta.m, atom.m)}"
            if whole_columns
            else f"tile.warp.n = {_least_part(cta.n, atom.n)}",
        )
    if warp.n > atom.n_most:
        raise ScheduleError(
            f"tile.warp.n = {warp.n}",
            where=where,
            why=f"one {atom.name} covers {atom.n_most} columns",
            nearest=_fewer_columns(schedule, atom),
        )
    for name, operand in match.operands:
        tensor = operand.tensor
        if tensor.alignment < _ROW_BYTES:
            raise UnsupportedProgram(
                f"{tensor}: rows start at multiples of {tensor.alignment} bytes",
                where=f"{where}, {tensor.name}",
                why=f"tensor maps take strides of {_ROW_BYTES} bytes",
                nearest="Use a schedule without roles",
            )
        if major(operand) not in atom.majors:
            raise UnsupportedProgram(
                f"{tensor.name}: {tensor.dtype} with {tensor.dims[tensor.order[-1]]} innermost",
                where=f"{where}, {atom.name}",
                why="this instruction reads operands with k innermost",
                nearest="Use a schedule without roles",
            )
        along = cta.m if operand.role == "m" else cta.n
        operand_layout(name, operand, (along, cta.k), schedule, atom)


def _fewer_columns(schedule: Schedule, atom: Atom) -> str:
    """What to change where one instruction does not cover the columns of a consumer."""
    cta = schedule.tile.cta
    if schedule.roles.form == "cooperative" and schedule.tile.warp.m == cta.m:
        part = _least_part(cta.n, atom.n)
        if part <= atom.n_most:
            return f"tile.warp.n = {part}"
    return f"tile.cta.n = tile.warp.n = {atom.n_most}"


def _least_part(extent: int, step: int) -> int:
    """The smallest part of which at most three make `extent`."""
    fitting = (own for own in range(step, extent + 1, step) if extent % own == 0)
    return next((own for own in fitting if extent // own <= _MOST_CONSUMERS), extent)


def role_work(tree: ScheduleTree, schedule: Schedule, atom: Atom, work: Epilogue) -> RoleWork:
    """Place everything that roles share.

    Raises:
        ScheduleError: a tile has no layout.
    """
    mapping = tree.roles
    assert mapping is not None
    cluster = (schedule.cluster.m, schedule.cluster.n)
    consumers = mapping.consumers
    fills = tuple(
        fill(name, operand, dict(tree.footprints)[name], schedule, atom)
        for name, operand in tree.match.operands
    )
    offset, regions = 0, []
    for one in fills:
        note = f"{one.tensor.name}, {one.layout}"
        stages = schedule.pipeline.stages
        slot = _whole_patterns(one.layout.bytes)
        regions.append(Region(one.ring, offset, stages, slot, 1, note))
        offset += regions[-1].bytes
    chosen = mapping.panels
    reads = {read.name: read.tensor for read in work.reads}
    writes = {write.tensor.name: write.tensor for write in work.writes}
    shape = (atom.m, chosen.columns)
    operands = tuple(_panel(name, reads[name], shape, "in") for name in chosen.operands)
    results = tuple(_panel(name, writes[name], shape, "out") for name in chosen.outputs)
    for panel, slots in (
        *((p, schedule.epilogue.prefetch) for p in operands),
        *((p, schedule.epilogue.slots) for p in results),
    ):
        note = f"{panel.tensor.name}, {panel.rows} x {panel.columns} per panel, swizzled"
        regions.append(Region(panel.region, offset, slots, panel.bytes, consumers, note))
        offset += regions[-1].bytes
    copied = {"fill": sum(one.layout.bytes for one in fills)}
    copied |= {f"fetch_{panel.name}": panel.bytes for panel in operands}
    barriers = []
    for sync in mapping.syncs:
        if isinstance(sync, Mbarrier):
            groups = consumers if sync.per_group else 1
            barriers.append(PlacedBarrier(sync, offset, groups, copied.get(sync.signal, 0)))
            offset += _BARRIER_BYTES * sync.slots * groups
    turns = []
    for sync in mapping.syncs:
        if isinstance(sync, Turn):
            turns.append((sync, offset))
            offset += _BARRIER_BYTES * consumers
    return RoleWork(
        pingpong=schedule.roles.form == "pingpong",
        consumers=consumers,
        cluster=cluster,
        registers=(schedule.roles.producer_registers, schedule.roles.consumer_registers),
        regions=tuple(regions),
        fills=fills,
        operands=operands,
        results=results,
        panel_columns=chosen.columns,
        barriers=tuple(barriers),
        groups=tuple(s for s in mapping.syncs if isinstance(s, GroupBarrier)),
        turns=tuple(turns),
        roles=tuple(RoleLoops(t.role, t.loops()) for t in mapping.trees),
    )


def _whole_patterns(size: int) -> int:
    return -(-size // pattern_bytes()) * pattern_bytes()


def _panel(name: str, tensor: Tensor, shape: tuple[int, int], direction: str) -> Panel:
    size, (rows, columns) = tensor.dtype.bytes, shape
    span = next(s for s in spans() if columns * size % s == 0)
    region = f"panel_{name}" if direction == "in" else f"result_{name}"
    return Panel(name, tensor, f"map_{direction}_{name}", region, rows, columns, size, span)


def map_arguments(work: RoleWork) -> tuple[Argument, ...]:
    """The tensor maps among the kernel's parameters."""
    found = [
        Argument(f.map, "map", tensor=f.tensor.name, box=f.box, swizzle=f.layout.span)
        for f in work.fills
    ]
    found += [
        Argument(p.map, "map", tensor=p.tensor.name, box=p.box, swizzle=p.span)
        for p in (*work.operands, *work.results)
    ]
    return tuple(found)


def shared_bytes(work: RoleWork) -> int:
    """Shared memory of the block."""
    ends = [r.offset + r.bytes for r in work.regions]
    ends += [b.offset + _BARRIER_BYTES * b.barrier.slots * b.groups for b in work.barriers]
    ends += [place + _BARRIER_BYTES * work.consumers for _, place in work.turns]
    return max(ends)


def estimated_bytes(
    schedule: Schedule, match: Match, work: Pointwork, tiles: Tiling
) -> tuple[int, int]:
    """Shared memory of a schedule before anything is built, at most; and its consumers."""
    consumers = 2 if schedule.roles.form == "pingpong" else tiles.warp_count
    chosen = panels(schedule, work)
    cta = tiles.cta
    row = cta[2] * match.a.tensor.dtype.bytes
    slots = sum(_whole_patterns(extent * row) for extent in cta[:2])
    rings = schedule.pipeline.stages * slots
    sizes = {r.name: r.tensor.dtype.bytes for r in work.reads}
    sizes |= {w.tensor.name: w.tensor.dtype.bytes for w in work.writes}
    columns = schedule.epilogue.slots * sum(sizes[name] for name in chosen.outputs)
    columns += schedule.epilogue.prefetch * sum(sizes[name] for name in chosen.operands)
    return rings + consumers * tiles.atom[0] * chosen.columns * columns + pattern_bytes(), consumers


def role_launch(
    tree: ScheduleTree, schedule: Schedule, device: Device, work: RoleWork, needed: int
) -> Launch:
    """Persistent blocks: as many as there are multiprocessors."""
    along = schedule.raster.along
    across = "n" if along == "m" else "m"
    cta = {"m": tree.tiles.cta[0], "n": tree.tiles.cta[1]}
    cluster = dict(zip("mn", work.cluster, strict=True))
    return Launch(
        tree.match.extent(along),
        tree.match.extent(across),
        cta[along],
        cta[across],
        schedule.raster.group,
        _threads(work.consumers, device),
        needed,
        persistent=device.multiprocessors,
        cluster=(cluster[along], cluster[across]),
    )


def _threads(consumers: int, device: Device) -> int:
    return (consumers + 1) * device.group_threads


def role_resources(
    schedule: Schedule, tiles: Tiling, atom: Atom, device: Device, needed: int, consumers: int
) -> Resources:
    """Count threads, shared memory and registers, and refuse what cannot fit.

    Raises:
        ResourceError: with the figure, the limit and what to reduce.
    """
    where = f"schedule {schedule.name}"
    if needed > device.shared_per_block_optin:
        raise ResourceError(
            f"{needed} bytes of shared memory, {device} has at most "
            f"{device.shared_per_block_optin} per block",
            where=where,
            why=f"{schedule.pipeline.stages} stages of {tiles.cta[0]}x{tiles.cta[2]} and "
            f"{tiles.cta[1]}x{tiles.cta[2]} tiles, and the panels of the epilogue",
            nearest="Reduce pipeline.stages, epilogue.prefetch, epilogue.slots or tile.cta",
        )
    threads = _threads(consumers, device)
    group, step = device.group_threads, device.role_registers_step
    roles = schedule.roles
    for field, value in (
        ("roles.producer_registers", roles.producer_registers),
        ("roles.consumer_registers", roles.consumer_registers),
    ):
        least = device.role_registers_least
        if value % step or not least <= value <= device.role_registers_most:
            raise ResourceError(
                f"{field} = {value}",
                where=where,
                nearest=f"Multiples of {step} from {least} to {device.role_registers_most}",
            )
    if roles.producer_registers > roles.consumer_registers:
        raise ResourceError(
            f"roles.producer_registers = {roles.producer_registers}",
            where=where,
            why=f"the producer gives registers to the consumers, which have "
            f"{roles.consumer_registers}",
            nearest=f"roles.producer_registers = {roles.consumer_registers}",
        )
    total = group * (roles.producer_registers + consumers * roles.consumer_registers)
    if total > device.registers_per_block:
        most = (device.registers_per_block // group - roles.producer_registers) // consumers
        raise ResourceError(
            f"{total} registers for all roles, a block has {device.registers_per_block}",
            where=where,
            why=f"{roles.producer_registers} per producer thread, "
            f"{roles.consumer_registers} for {consumers} consumer warpgroup(s)",
            nearest=f"roles.consumer_registers = {most // step * step}",
        )
    sums = tiles.atoms[0] * tiles.atoms[1] * atom.c.registers
    registers = sums + _EPILOGUE_REGISTERS
    if registers > roles.consumer_registers:
        raise ResourceError(
            f"about {registers} registers per consumer thread, "
            f"roles.consumer_registers = {roles.consumer_registers}",
            where=where,
            why=f"{sums} for sums",
            nearest="Reduce tile.warp",
        )
    return Resources(threads, needed, device.shared_per_block_optin, registers, 1)
