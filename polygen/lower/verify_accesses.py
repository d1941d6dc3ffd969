"""Checks that the leaves of a plan work where the program says: on its cells, at its addresses.

1. The record of a leaf names the buffers of its tile statement's cells, in their order
   (`verify_cells`), and overwrites sums where the statement does (`verify_overwrites`).
2. An address is linear in every stride and in every coordinate, so that its values at zero and at
   one of each decide: they are those of the program's access.
3. A tensor map has the axes, and a box the corner, that make the same elements of it
   (`verify_boxes`).
4. The matrices of results are counted as the program counts them.
5. Blocks that share sums cut columns and landing areas into the shares of the tile hierarchy, the
   same where parts are sent and where they are added (`verify_cells`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial

from polygen.errors import VerifyError
from polygen.frontend.program import Tensor
from polygen.lower.accesses import ROWS_BEFORE, steps_text
from polygen.lower.computed import Fetch, rows_of
from polygen.lower.fill import prove
from polygen.lower.formulas import ends, position, units, value
from polygen.lower.fragments import Make
from polygen.lower.launch import layers, stride_argument
from polygen.lower.plan import KernelPlan
from polygen.lower.promoting import Promote
from polygen.lower.result_work import (
    Epilogue,
    Exchange,
    Finish,
    Folding,
    FoldPart,
    Lines,
    Meeting,
    Read,
    Store,
    Write,
)
from polygen.lower.ring_tiles import operands_of
from polygen.lower.scan_work import RowStore
from polygen.lower.tallies import check_shared
from polygen.lower.verify_axes import check_padding, check_taps, check_walk
from polygen.lower.verify_boxes import check_boxes
from polygen.lower.verify_cells import check_cells, check_records, check_shares, check_sums
from polygen.lower.verify_chain import check_scans
from polygen.lower.verify_computed import check_computed, check_rows, check_stored_rows
from polygen.lower.verify_fragments import check_fragments
from polygen.lower.verify_overwrites import check_overwrites
from polygen.lower.verify_pixels import check_boxes_of_pixels
from polygen.lower.verify_promotions import check_promotions, check_sets
from polygen.lower.verify_rest import check_rest
from polygen.lower.work import Copy, Fill, Locate, LocateRows, Move, Stream
from polygen.poly.fills import PIECE_CHUNKS, filling_threads, held, rounds
from polygen.poly.match import Along
from polygen.poly.pointwise import Element, Pointwork
from polygen.poly.prologue import without_prologues
from polygen.poly.tiling import share_of


def check_accesses(plan: KernelPlan) -> None:
    """Check every leaf.

    Raises:
        VerifyError: with the leaf or the array, and what differs.
    """
    check_records(plan)
    for leaf in plan.leaves:
        check_cells(plan, leaf)
        check_overwrites(plan, leaf)
        if isinstance(leaf.work, Copy):
            _check_copy(plan, leaf.work)
        elif isinstance(leaf.work, Fill):
            _check_fill(plan, leaf.work)
        elif isinstance(leaf.work, Make):
            check_fragments(plan, leaf.work, partial(_check_address, plan))
        elif isinstance(leaf.work, Promote):
            check_promotions(plan, leaf.work, partial(_check_address, plan))
        elif isinstance(leaf.work, Stream):
            _check_stream(plan, leaf.work)
        elif isinstance(leaf.work, Move):
            for boxes in leaf.work.boxes:
                check_boxes(plan, boxes, leaf, partial(_check_address, plan))
                check_taps(plan, boxes)
        elif isinstance(leaf.work, Lines):
            _check_lines(plan, leaf.work)
        elif isinstance(leaf.work, Store):
            for panel, boxes in leaf.work.panels:
                check_boxes(plan, boxes, leaf, partial(_check_address, plan))
                if boxes.count != panel.boxes or boxes.tensor != panel.tensor:
                    raise VerifyError(f"{boxes.count} boxes of {panel.name}", where=plan.entry)
    check_sets(plan)
    check_boxes_of_pixels(plan)
    check_sums(plan)
    check_shares(plan)
    # Beside folds nothing is read by index, and in chains pages alone.
    if plan.program.gathered and not plan.program.folds and plan.scores is None:
        statements = without_prologues(plan.program).pointwise
        check_rows(plan, plan.work.reads, statements, "the result")
        check_stored_rows(plan, statements)
    _check_elements(plan, plan.epilogue, plan.work)
    for one, work in zip(plan.epilogue.before, plan.work.before, strict=True):
        _check_elements(plan, one, work)
    _check_passes(plan, plan.epilogue)
    check_scans(plan, _check_address)
    check_rest(plan)
    groups = plan.match.groups
    batches = () if groups else plan.match.counted
    wanted = tuple(extent for _, extent in batches)
    counted = [one.batches for one in plan.of(Locate)]
    counted += [one.batches for one in plan.of(LocateRows)]
    if plan.launch.batches != wanted or any(one != batches for one in counted):
        raise VerifyError(f"the matrices are not counted along {wanted}", where=plan.entry)
    in_rounds = not plan.launch.persistent and plan.key_tiles is None
    deep = layers(wanted) if in_rounds else 0
    if plan.launch.layers != deep:
        raise VerifyError(f"rounds are not of {deep} matrices", where=plan.entry)
    if any(locate.run != plan.tiles.run for locate in plan.of(Locate)):
        raise VerifyError(f"runs are not of {plan.tiles.run} tiles", where=plan.entry)
    _check_groups(plan)
    check_walk(plan)


def _check_groups(plan: KernelPlan) -> None:
    """Rows in groups are rows of tiles, the groups those that launch and work items count."""
    groups, launch = plan.match.groups, plan.launch
    indices = [operand.index for _, operand in plan.match.operands]
    indices += [element.index for element in (*plan.work.reads, *plan.work.writes)]
    made = [operand.computed for _, operand in plan.match.operands if operand.computed is not None]
    indices += [element.index for one in made for element in one.reads]
    indices += [(place,) for one in made for _, place in one.coordinates]
    for one in (one for index in indices for one in index if one.group):
        if groups is None or (one.dim, one.scale, one.offset, one.group) != ("m", 1, 0, groups.dim):
            raise VerifyError(f"{one} is no row of a group", where=plan.entry)
    side = "along" if plan.schedule.raster.along == "m" else "across"
    wanted = (groups.extent, side) if groups else (0, "")
    counted = [locate.groups for locate in plan.of(Locate)]
    if (launch.groups, launch.grouped) != wanted or any(one != groups for one in counted):
        raise VerifyError(f"the tiles are not those of {groups}", where=plan.entry)


def _check_copy(plan: KernelPlan, c: Copy) -> None:
    operand = operands_of(plan)[c.operand]
    if c.computed is not None or operand.computed is not None:

        def check(fetch: Fetch, index: tuple[Along, ...], text: str, names: dict[str, str]) -> None:
            _check_address(plan, fetch.tensor, index, text, names)

        check_computed(plan, c, check)
        return
    if c.tensor != operand.tensor:
        raise VerifyError(f"copy_{c.operand} reads {c.tensor.name}", where=plan.entry)
    dims = (operand.role, "k") if c.k_contiguous else ("k", operand.role)
    steps = [*steps_text("row", c.lie[0]), *steps_text("column", c.lie[1])]
    text = " + ".join([*c.base, *steps] or ["0"])
    _check_address(
        plan, c.tensor, operand.index, text, dict(zip(dims, ("row", "column"), strict=True))
    )
    check_padding(plan, c, operand.index, dims)
    if c.extents != tuple(operand.extent(dim) for dim in dims):
        raise VerifyError(f"copy_{c.operand} ends at {c.extents}", where=plan.entry)


def _check_stream(plan: KernelPlan, of: Stream) -> None:
    """Rows begin where the warp's do, and lanes have a chunk each of every step's elements."""
    _check_copy(plan, of.copy)
    operand, side = plan.match.operand(of.operand), "mn".index(of.role)
    role, tile, warp = of.role, plan.tiles.cta[side], plan.tiles.warp[side]
    for at in units([f"{level}_{dim}" for level in "bw" for dim in "mn"]):
        wanted = at[f"b_{role}"] * tile + at[f"w_{role}"] * warp
        if value(of.first, at) != wanted:
            raise VerifyError(
                f"rows of {operand.tensor.name} begin at {value(of.first, at)} and not at {wanted}",
                where=f"{plan.entry}: {of.first}",
            )
    if of.slots != plan.tile_program.buffer(f"fragment_{of.operand}").slots:
        raise VerifyError(f"load_{of.operand} holds {of.slots} steps", where=plan.entry)


def _check_fill(plan: KernelPlan, of: Fill) -> None:
    """Pieces are numbered through the operands, and lie where the descriptors read them."""
    first = 0
    for source in of.sources:
        _check_copy(plan, source.copy)
        prove(source, plan.buffer(source.copy.buffer).matrix)
        operand = plan.match.operand(source.copy.operand)
        if source.first != first or operand.alignment % source.alignment:
            raise VerifyError(
                f"pieces of {source.copy.tensor.name} begin at {source.first}, rows at multiples "
                f"of {source.alignment} bytes",
                where=plan.entry,
            )
        first += source.pieces
    if of.rounds * of.each < first:
        raise VerifyError(f"{of.rounds} rounds of {of.each} pieces bring {first}", where=plan.entry)
    threads, operands = filling_threads(), [plan.match.operand(s.copy.operand) for s in of.sources]
    kept = held(operands)
    made = (of.threads, of.parts, of.words, of.rounds, of.each)
    wanted = (threads, PIECE_CHUNKS, kept.words,
              *rounds(first, plan.schedule.roles.producer_registers, kept))  # fmt: skip
    if made != wanted:
        raise VerifyError(f"pieces are of {made} and not {wanted}", where=plan.entry)


def _check_passes(plan: KernelPlan, e: Epilogue) -> None:
    """Leaves finish one epilogue, behind its passes; rows that are used are of a pass before."""
    others = [*plan.of(Epilogue), *(finish.epilogue for finish in plan.of(Finish))]
    others += [stored.epilogue for stored in plan.of(RowStore)]
    others += [folding.epilogue for folding in plan.of(Folding)]
    others += [meeting.epilogue for meeting in plan.of(Meeting)]
    others += [exchange.epilogue for exchange in plan.of(Exchange)]
    if any(one not in (e, *e.before) for one in others):
        raise VerifyError("a leaf finishes another epilogue than the others", where=plan.entry)
    for leaf in plan.leaves:  # those of a pass are called with its suffix
        own = leaf.work if isinstance(leaf.work, Epilogue) else getattr(leaf.work, "epilogue", None)
        if own is not None and own.suffix and not leaf.statement.endswith(own.suffix):
            raise VerifyError(f"{leaf.statement} is of pass {own.suffix}", where=plan.entry)
        if own is e and any(leaf.statement.endswith(one.suffix) for one in e.before):
            raise VerifyError(f"{leaf.statement} is of no pass", where=plan.entry)
    made: list[FoldPart] = []
    for one in (*e.before, e):
        if any(fold not in made for fold in one.known):
            raise VerifyError(f"a row is used before it is folded: {one.known}", where=plan.entry)
        made += one.folds


def _check_elements(plan: KernelPlan, e: Epilogue, work: Pointwork) -> None:
    if e.statements != work.statements:
        raise VerifyError(f"results are computed by {e.statements}", where=plan.entry)
    if e.coordinates != work.coordinates:
        found = ", ".join(f"{name} = {along}" for name, along in e.coordinates)
        raise VerifyError(f"coordinates are {found or 'left out'}", where=plan.entry)
    if e.sizes != work.sizes:
        raise VerifyError(f"elements are counted by {e.sizes}", where=plan.entry)
    pairs: list[tuple[Read | Write, Element]] = [
        *zip(e.reads, work.reads, strict=True),
        *zip(e.writes, work.writes, strict=True),
    ]
    for access, element in pairs:
        # What a lane reads in shared memory it reads as one value, whatever the array's rows are.
        kind = element.kind if isinstance(access, Write) or not access.shared else access.kind
        if (access.name, access.tensor, access.kind) != (element.name, element.tensor, kind):
            raise VerifyError(f"{access.name} is {access.kind}, and {element}", where=plan.entry)
        most = max(element.alignment, element.tensor.dtype.bytes)
        size = element.tensor.dtype.bytes
        whole = size <= access.width <= e.vector * size and access.width % size == 0
        if access.kind == "vector" and (most % access.width or not whole):
            raise VerifyError(f"{access.name} by {access.width} bytes", where=plan.entry)
        said = tuple(rows_of(element, dim) for dim in "mn")
        steps_of = (*access.m, *access.n)
        if any(step.per < 1 or step.modulo < 0 for step in steps_of):
            raise VerifyError(f"{access.name} goes by {steps_of}", where=plan.entry)
        if access.rows != said:
            does = "read" if isinstance(access, Read) else "stored"
            raise VerifyError(
                f"{access.tensor.name} is {does} at {access.rows}, and is {said}",
                where=plan.entry,
            )
        index = element.addressed
        if isinstance(access, Read) and access.shared:
            check_shared(plan, access, element)
        elif access.tensor.dims:
            steps = [*steps_text("row", access.m), *steps_text("column", access.n)]
            text = " + ".join([*access.base, *steps] or ["0"])
            _check_address(plan, access.tensor, index, text, {"m": "row", "n": "column"})


def _check_address(
    plan: KernelPlan,
    tensor: Tensor,
    index: tuple[Along, ...],
    text: str,
    variables: Mapping[str, str],
) -> None:
    """`text` is where `index` is, whatever the strides and the coordinates."""
    fixed = tuple(dim for dim, _ in (*plan.batches, *plan.match.sums))
    check_address_in(plan.entry, fixed, tensor, index, text, variables)


def check_address_in(
    entry: str,
    fixed: Sequence[str],
    tensor: Tensor,
    index: tuple[Along, ...],
    text: str,
    variables: Mapping[str, str],
) -> None:
    """Refuse a formula that is not where an index is, whatever the strides and the coordinates.

    Args:
        entry: of the kernel.
        fixed: dims that are known by their own names.
        tensor: the array.
        index: per axis.
        text: the formula.
        variables: by which it knows other dims.

    Raises:
        VerifyError: with the place, and the one that it is not.
    """
    dims = [*fixed, *variables, ROWS_BEFORE]
    strides = [stride_argument(tensor, axis) for axis in tensor.order[:-1]]
    for at in (*units(dims), *ends(dims, index)):
        for steps in units(strides):
            wanted = 0
            for axis, one in enumerate(index):
                step = 1 if axis == tensor.contiguous_axis else steps[stride_argument(tensor, axis)]
                wanted += step * position(one, at)
            names = {variables.get(dim, dim): value for dim, value in at.items()}
            found = value(text, names | steps)
            if found != wanted:
                given = [f"{name} = 1" for name, value in (at | steps).items() if value]
                raise VerifyError(
                    f"{tensor.name} is accessed at {found} and not at {wanted} where "
                    f"{' and '.join(given) or 'all is 0'}",
                    where=f"{entry}: {text}",
                )


def _check_lines(plan: KernelPlan, of: Lines) -> None:
    """Panels begin where the agents' tiles do, and are of the arrays that the epilogue accesses."""
    warp_m, warp_n = plan.tiles.warp
    columns = plan.tiles.columns
    accesses = {id(one) for one in (*plan.epilogue.reads, *plan.epilogue.writes)}
    parts = ["group"] if max(plan.tiles.warps) > 1 else []
    for line in of.moved:
        if id(line.access) not in accesses or line.access.tensor != line.panel.tensor:
            raise VerifyError(f"{line.panel.name} is none of the epilogue's", where=plan.entry)
        per_block = columns // line.panel.columns
        places = units(["b_m", "b_n", "p", *parts])
        # Of blocks that share sums each finishes columns of its own.
        for at, rank in itertools.product(places, range(plan.tiles.split)):
            own = dict.fromkeys(("group", "p"), 0) | at | {share_of(plan.tiles): rank}
            group = [own["group"] if count > 1 else 0 for count in plan.tiles.warps]
            wanted = (
                at["b_m"] * plan.tiles.cta[0]
                + group[0] * warp_m
                + own["p"] // per_block * line.panel.rows,
                at["b_n"] * plan.tiles.cta[1]
                + group[1] * warp_n
                + rank * plan.tiles.share
                + own["p"] % per_block * line.panel.columns,
            )
            found = (value(line.row, own), value(line.column, own))
            if found != wanted:
                raise VerifyError(
                    f"panels of {line.panel.tensor.name} begin at {found} and not at {wanted}",
                    where=f"{plan.entry}: {line.row}, {line.column}",
                )
