"""Checks where agents and lanes have their part of a tile, and blocks their tile.

1. A product reads its agent's rows and columns of the rings, where the copies wrote them.
2. The elements of a lane are those that the instruction's fragment gives it, of its agent's part of
   the block's tile: so are the rows and columns at which results are made, and stored.
3. Tiles are numbered as it was proved: groups and clusters are the schedule's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from polygen.errors import VerifyError
from polygen.hardware import formula
from polygen.hardware.device import common_facts
from polygen.hardware.fragment_load import atom_load
from polygen.hardware.matrix_layout import MatrixLayout, copied_to
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.accesses import ROWS_BEFORE
from polygen.lower.carried import order_of
from polygen.lower.formulas import units, value
from polygen.lower.operands import K_INSIDE
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import Epilogue, Finish
from polygen.lower.ring_tiles import columns_of, extents_of, operands_of, own_of, starts_of
from polygen.lower.shares import LANES, check_share, check_step
from polygen.lower.work import (
    Boxes,
    Clear,
    Copy,
    Fill,
    Load,
    Locate,
    Move,
    Product,
    Stream,
    chunk_passes,
)
from polygen.poly.by_warps import copy_parts
from polygen.poly.key_tiles import FIRST
from polygen.poly.results import row_vectors
from polygen.poly.tiling import RowVectors, share_of
from polygen.schedule.model import PAIRS


def check_places(plan: KernelPlan) -> None:
    """Check the parts of agents, lanes and blocks.

    Raises:
        VerifyError: with who has which part instead of its own.
    """
    for work in plan.of(Product):
        if work.counter:  # from rings, by a warpgroup
            _check_product(plan, work)
        elif work.columns != columns_of(plan, work.operands[1]):
            raise VerifyError(f"products with {work.columns} columns", where=plan.entry)
    for clear in plan.of(Clear):
        cleared = (one for one in plan.of(Product) if one.total in clear.totals)
        made = {columns_of(plan, one.operands[1]) for one in cleared}
        if {clear.columns} != (made or {0}):
            raise VerifyError(f"{clear.columns} columns of sums are cleared", where=plan.entry)
    for leaf in plan.leaves:
        if isinstance(leaf.work, Copy):
            _check_copy(plan, leaf.work)
        elif isinstance(leaf.work, Load):
            _check_load(plan, leaf.work)
        elif isinstance(leaf.work, Fill):
            for source in leaf.work.sources:
                _check_tile(plan, source.copy)
        elif isinstance(leaf.work, Stream):
            _check_tile(plan, leaf.work.copy)
        elif isinstance(leaf.work, Move):
            for boxes in leaf.work.boxes:
                _check_shared(plan, boxes)
    for one in (*plan.epilogue.before, plan.epilogue):
        _check_bases(plan, one)
        if not plan.schedule.by_lanes:
            _check_vectors(plan, one)
            _check_lanes(plan, one)
    for finish in plan.of(Finish):
        _check_finish(plan, finish)
    _check_numbers(plan)


def agents(plan: KernelPlan) -> Iterator[tuple[tuple[int, int], dict[str, int]]]:
    """The part of a tile that an agent has along m and n, and the names that say so."""
    counts = plan.tiles.warps
    for own in itertools.product(range(counts[0]), range(counts[1])):
        # Warpgroups share rows or columns, and one number tells them apart; those that take turns
        # have whole tiles, whatever their number.
        for group in (max(own),) if max(counts) > 1 else (0, 1):
            yield own, {
                "group": group, "w_m": own[0], "w_n": own[1], "rank": 0, share_of(plan.tiles): 0
            }  # fmt: skip


def _check_product(plan: KernelPlan, work: Product) -> None:
    operands = dict(plan.match.operands)
    whole = operands[work.operands[1]].whole if work.operands[1] in operands else 0
    columns = columns_of(plan, work.operands[1]) or whole
    if work.columns not in (columns, 0) or (whole and not work.columns):
        rest = plan.match.rest
        if rest is None or work.columns != rest.padded:
            raise VerifyError(f"products with {work.columns} columns", where=plan.entry)
    for own, names in agents(plan):
        for axis in range(2):
            if axis == 0 and work.fragment:
                continue
            layout = plan.buffer(work.buffers[axis]).matrix
            first = own[axis] * plan.tiles.warp[axis]
            if axis == 1 and work.columns:  # which every agent has all of
                first = 0
            found, wanted = value(f"0{work.parts[axis]}", names), _begins(plan, layout, first)
            if found != wanted:
                raise VerifyError(
                    f"agent {own} multiplies from byte {found} of {work.buffers[axis]} on, where "
                    f"its part begins at {wanted}",
                    where=f"{plan.entry}: {work.parts[axis]}",
                )


def _begins(plan: KernelPlan, layout: MatrixLayout, first: int) -> int:
    """The byte of an operand's tile where the copy engine writes one of its rows or columns."""
    element = plan.match.operands[0][1].tensor.dtype.bytes
    row, byte = (first, 0) if layout.major == "k" else (0, first * element)
    return int(copied_to(layout, np.array([row]), np.array([byte]))[0])


def _check_tile(plan: KernelPlan, of: Copy) -> None:
    """A copy is of the tile that the block's operand has."""
    operand = operands_of(plan)[of.operand]
    size = operand.tensor.dtype.bytes
    made = (of.role, of.tile, of.tile_k, of.element_bytes, of.ragged, of.k_contiguous)
    wanted = (operand.role, *extents_of(plan, of.operand), size, operand.ragged,
              operand.k_contiguous)  # fmt: skip
    if made != wanted:
        raise VerifyError(f"copy_{of.operand} is of {made} and not {wanted}", where=plan.entry)
    for at in units(("b_m", "b_n", "k", FIRST)):
        begins = starts_of(plan, of.operand, at)
        found = None if of.starts == ("", "") else tuple(value(text, at) for text in of.starts)
        if found != begins:
            raise VerifyError(
                f"the tile of copy_{of.operand} begins at {found} and not at {begins}",
                where=f"{plan.entry}: {of.starts}",
            )


def _check_copy(plan: KernelPlan, of: Copy) -> None:
    """A copy of all warps is of the operand's tile, in accesses that its rows allow."""
    _check_tile(plan, of)
    operand = operands_of(plan)[of.operand]
    size, unit = operand.tensor.dtype.bytes, plan.tile_program.statement(f"copy_{of.operand}").unit
    fits = of.width in (size, min(chunk_bytes(), operand.alignment))
    if not fits or of.asynchronous != (unit.name == "cp.async"):
        raise VerifyError(f"copy_{of.operand} by {of.width} bytes, {unit.name}", where=plan.entry)
    if of.parts != copy_parts(plan.tiles, plan.schedule):
        raise VerifyError(f"copy_{of.operand} in {of.parts} parts", where=plan.entry)
    if of.share is None or of.share.elements != of.moved:
        raise VerifyError(f"copy_{of.operand} is of no pieces", where=plan.entry)
    check_share(of.share, of.stored, plan.launch.threads, 1 if of.staging else of.parts)
    if of.staging and value(of.share.end, {}) != chunk_passes(of, plan.launch.threads):
        raise VerifyError(f"{of.staging} holds no {of.share.end} chunks", where=plan.entry)
    check_step(of.share, plan.buffer(of.buffer).rows)


def _check_load(plan: KernelPlan, of: Load) -> None:
    """Fragments are those of the warp's part of the tile, in the registers of their slots."""
    operand, axis = operands_of(plan)[of.operand], "mn".index(of.role)
    dtype, own = operand.tensor.dtype, own_of(plan, of.operand)
    count = own // (plan.atom.m, plan.atom.n)[axis]
    rest = plan.atom.fragment("ab"[axis]).registers if plan.atom.pieces > 1 else 0
    made = (of.role, of.tiles * of.load.subtiles, of.warp_tile, of.element_bytes, of.rest)
    wanted = (operand.role, count, own, dtype.bytes, rest)
    if made != wanted or of.slots != plan.schedule.pipeline.fragments:
        raise VerifyError(f"load_{of.operand} is of {made} and not {wanted}", where=plan.entry)
    order = () if plan.chained is None else order_of(plan.chained, of.operand, plan.atom)
    if of.load != atom_load(plan.atom, "ab"[axis], operand.k_contiguous, count, order):
        raise VerifyError(f"load_{of.operand} reads rows of another dim", where=plan.entry)
    if of.round_to_tf32 != (dtype.name == "tf32" or plan.atom.pieces > 1):
        raise VerifyError(f"load_{of.operand} rounds", where=plan.entry)


def _check_shared(plan: KernelPlan, of: Boxes) -> None:
    """Blocks of a cluster that share a tile bring a part of it each, to all of them."""
    operand = dict(plan.match.operands).get(of.buffer.removeprefix("ring_"))
    cluster = plan.schedule.cluster
    if operand is None or cluster.tiles == 1 or plan.scores is not None:
        if of.part or of.mask or of.parts > 1:
            raise VerifyError(f"{of.tensor.name} is shared by no blocks", where=plan.entry)
        return
    names = [*(dim for dim, _ in (*plan.batches, *plan.match.sums)), "b_m", "b_n", "group", "p"]
    at = dict.fromkeys((*names, "k", "k_tiles", "owner", K_INSIDE, ROWS_BEFORE), 0)

    def place(rank: int) -> tuple[int, int]:
        """Whose tile a block needs, and which of those that do it is: numbers go along m first."""
        row, column = rank % cluster.m, rank // cluster.m
        return (row, column) if operand.role == "m" else (column, row)

    for rank in range(cluster.blocks):
        own, number = place(rank)
        shared = [other for other in range(cluster.blocks) if place(other)[0] == own]
        if of.parts != len(shared):
            raise VerifyError(f"{of.tensor.name} in {of.parts} parts", where=plan.entry)
        if of.parts == 1:
            if of.part or of.mask:
                raise VerifyError(f"{of.tensor.name} is shared by no blocks", where=plan.entry)
            continue
        wanted = (number, sum(1 << r for r in shared))
        found = tuple(value(text, {"rank": rank}) for text in (of.part, of.mask))
        starts = [[value(text, at | {"rank": r}) for text in of.corner] for r in (shared[0], rank)]
        moved = sum(b - a for a, b in zip(*starts, strict=True))
        step = number * of.box[0] * max(axis.every for axis in of.axes)
        if found != wanted or (not plan.match.box and moved != step):
            raise VerifyError(
                f"block {rank} brings part {found[0]} of {of.tensor.name} to {found[1]:b}, "
                f"{moved} rows on, and not part {wanted[0]} to {wanted[1]:b}",
                where=f"{plan.entry}: {of.part}, {of.mask}",
            )


def _check_vectors(plan: KernelPlan, one: Epilogue) -> None:
    """Lanes finish as many adjacent results in a pass over a warp's sums as its loop counts on."""
    columns, lanes = plan.tiles.warp[1], plan.device.warp_size
    rows = RowVectors(one.vector, one.batch, lanes)
    if one.streamed != plan.schedule.of_elements or one.streamed != (plan.atom.scope == "elements"):
        raise VerifyError("elements are streamed as no instruction does", where=plan.entry)
    if one.staged != (plan.schedule.epilogue.through == "smem") or min(one.vector, one.batch) < 1:
        raise VerifyError(f"{one.batch} vectors of {one.vector} results", where=plan.entry)
    if one.streamed:
        wanted = row_vectors(plan.program, plan.schedule)
        fits = (one.vector, one.batch, one.share) == (wanted.vector, wanted.batch, None)
    elif not one.staged:
        fits = (one.vector, one.batch, one.fixed_column, one.share) == (2, 1, False, None)
    else:
        _check_share(plan, one, rows)
        # A warp's rows may be fewer than a vector, whose further results are outside.
        passes = f"0 <= r < {rows.passes(plan.tiles)}"
        fits = passes in plan.tile_program.statement("store").bounds and (
            columns % one.vector == 0 or columns < one.vector
        )
        left = plan.tiles.warp[0] * max(1, columns // one.vector) // lanes
        fits = fits and (one.batch == 1 or left % one.batch == 0)
        same = lanes % max(1, columns // one.vector) == 0
        fits = fits and (same or not one.fixed_column)
    if not fits:
        raise VerifyError(f"{one.batch} vectors of {one.vector} results", where=plan.entry)


def _check_share(plan: KernelPlan, one: Epilogue, rows: RowVectors) -> None:
    """The lanes of a warp have every vector of its tile; those that keep a column say which."""
    tile = (plan.tiles.warp[0], max(plan.tiles.warp[1], one.vector))
    if one.share is None or one.share.elements != one.vector or one.share.step:
        raise VerifyError(f"vectors of {one.vector} results are nobody's", where=plan.entry)
    if (one.share.first, one.share.end) != ("0", str(one.batch)):
        raise VerifyError(f"{one.batch} vectors up to {one.share.end}", where=plan.entry)
    check_share(one.share, tile, rows.lanes, rows.passes(plan.tiles), LANES)
    lane = np.arange(rows.lanes)
    for r in range(rows.passes(plan.tiles)) if one.fixed_column else ():
        item = formula.value(one.share.piece, {"r": r, "lane": lane})
        own, kept = (formula.value(one.share.column, {"item": at}) for at in (item, lane))
        if not np.array_equal(own, kept):
            raise VerifyError("lanes do not keep their columns", where=plan.entry)


def _check_lanes(plan: KernelPlan, one: Epilogue) -> None:
    """Where the elements of every lane are."""
    atom, facts = plan.atom, common_facts()
    table = atom.c.table[: facts["warp_size"]]
    lane = np.arange(facts["warp_size"])
    for axis, text in enumerate((one.row_of_lane, one.column_of_lane)):
        offsets = np.array([offset[axis] for offset in one.element_offsets])
        found = np.broadcast_to(formula.value(text, {"lane": lane}), lane.shape)[:, None] + offsets
        if not np.array_equal(found, table[:, :, axis]):
            raise VerifyError(f"lanes have their elements at {text}", where=plan.entry)


def _check_bases(plan: KernelPlan, one: Epilogue) -> None:
    """Where the elements of every agent begin."""
    tiles, atom, facts = plan.tiles, plan.atom, common_facts()
    for axis, base in enumerate((one.row_base, one.column_base)):
        quarters = facts["warpgroup_warps"] if axis == 0 and atom.scope == "warpgroup" else 1
        every = itertools.product(agents(plan), range(quarters), range(tiles.split))
        for (own, names), quarter, share in every:
            for at in units(("b_m", "b_n")):
                rows = quarter * (atom.m // quarters)
                wanted = at[("b_m", "b_n")[axis]] * tiles.cta[axis]
                wanted += own[axis] * tiles.warp[axis] + rows
                wanted += share * tiles.share if axis == 1 and tiles.split > 1 else 0
                shared = {"quarter": rows, share_of(tiles): share}
                given = value(base, names | at | shared)
                if given != wanted:
                    raise VerifyError(
                        f"agent {own} finishes from {given} on, where its part begins at {wanted}",
                        where=f"{plan.entry}: {base}",
                    )


def _check_finish(plan: KernelPlan, of: Finish) -> None:
    """Where the rows and columns of panels are that a lane makes."""
    tiles, atom, facts = plan.tiles, plan.atom, common_facts()
    table = atom.c.table[: facts["warp_size"]]
    panel = of.results[0]
    for one in (*of.operands, *of.results):
        if (one.rows, one.columns, one.element_bytes) != (
            atom.m, panel.columns, one.tensor.dtype.bytes,
        ):  # fmt: skip
            raise VerifyError(f"{one.name}: {one.rows} x {one.columns} elements", where=plan.entry)
    lane = np.arange(facts["warp_size"])
    if not np.array_equal(formula.value(of.lane_column, {"lane": lane}), table[:, 0, 1]):
        raise VerifyError(f"lanes have columns {of.lane_column}", where=plan.entry)
    quarter = atom.m // facts["warpgroup_warps"]
    for own, names in agents(plan):
        for at in units(("b_m", "b_n", "block", "quarter")):
            at["quarter"] *= quarter
            row = at["b_m"] * tiles.cta[0] + own[0] * tiles.warp[0] + at["block"] * atom.m
            rows = row + at["quarter"] + table[:, 0, 0]
            found = formula.value(of.first_row, names | at | {"lane": lane})
            column = at["b_n"] * tiles.cta[1] + own[1] * tiles.warp[1]
            if not np.array_equal(found, rows) or value(of.column, names | at) != column:
                raise VerifyError(
                    f"agent {own} makes panels of other rows or columns than its own",
                    where=f"{plan.entry}: {of.first_row}, {of.column}",
                )


def _resident(plan: KernelPlan) -> tuple[int, int]:
    """Persistent blocks that run at once, and those of each multiprocessor; without roles none."""
    if not plan.schedule.specialised:
        return (0, 1)
    each = plan.schedule.min_blocks
    return (plan.device.multiprocessors * each, each)


def _check_numbers(plan: KernelPlan) -> None:
    """Work items are numbered along the dim, in the groups and by the clusters of the schedule."""
    raster, cluster = plan.schedule.raster, plan.schedule.cluster
    across = "n" if raster.along == "m" else "m"
    if plan.scores is not None:
        _check_rows_of_tiles(plan)
        return
    for one in plan.of(Locate):
        said = (one.along, one.across, one.group, one.cluster)
        if said != (raster.along, across, raster.group, (cluster.m, cluster.n)):
            raise VerifyError(f"tiles are numbered {said}", where=plan.entry)
        sides = tuple(plan.match.box.side(dim) for dim, _ in one.batches)
        if (one.split, one.sides) != (cluster.k if cluster.last else 1, sides):
            raise VerifyError(f"{one.split} blocks share tiles of {one.sides}", where=plan.entry)
    launch, counts = plan.launch, {"m": cluster.m, "n": cluster.n}
    tiles = {"m": plan.match.box.along_m(plan.tiles.cta[0]),
             "n": plan.tiles.cta[1] * plan.tiles.run}  # fmt: skip
    wanted = (
        plan.match.extent(raster.along), plan.match.extent(across),
        tiles[raster.along], tiles[across], raster.group,
        (counts[raster.along], counts[across]), cluster.k, plan.schedule.launch.dependent,
        *_resident(plan),
    )  # fmt: skip
    made = (
        launch.along, launch.across, launch.tile_along, launch.tile_across, launch.group,
        launch.cluster, launch.split, launch.dependent,
        launch.persistent, launch.per_multiprocessor,
    )  # fmt: skip
    if made != wanted:
        raise VerifyError(f"the launch is {made} and not {wanted}", where=plan.entry)


def _check_rows_of_tiles(plan: KernelPlan) -> None:
    """Of a chain a block has tiles of rows with all columns; or one, with all keys or a part."""
    launch, (rows, columns, _), part = plan.launch, plan.tiles.cta, plan.schedule.tile.part
    across = (plan.match.depths[0], part) if part else (plan.match.n, columns)
    # Blocks that visit as many tiles of keys as their rows want have one tile of them, or pairs.
    alone = plan.key_tiles is not None and plan.schedule.raster.order != PAIRS
    wanted = (
        plan.match.m, rows, *across, plan.schedule.raster.group, (1, 1), 1, False,
        *((0, _resident(plan)[1]) if alone else _resident(plan)),
    )  # fmt: skip
    made = (
        launch.along, launch.tile_along, launch.across, launch.tile_across, launch.group,
        launch.cluster, launch.split, launch.dependent, launch.persistent,
        launch.per_multiprocessor,
    )  # fmt: skip
    if made != wanted:
        raise VerifyError(f"the launch is {made} and not {wanted}", where=plan.entry)
    for one in plan.of(Locate):
        said = (one.along, one.across, one.group, one.cluster, one.split, one.sides)
        if said != ("m", "n", plan.schedule.raster.group, (1, 1), 1, ()):
            raise VerifyError(f"tiles are numbered {said}", where=plan.entry)
