"""Parts of folds: who combines which terms, where a part lies, and what makes results of them.

1. A lane holds elements of an instruction's tile as the atom's fragment table says. Terms in one
   row (or column, or all) are combined in a register, one after the other; then lanes that hold
   elements of that row meet by exchanges, halving their number each time; one of them writes.
   Which lanes those are follows from the table, and `verify_folds` proves that the one that writes
   has every element.
2. Every warp writes one part for each of its rows (columns, or one): part q of result r lies at
   ``q * results + r`` of the workspace. Each is written once, so that nothing has to be cleared and
   nobody waits; it proves too that all are, and that no two warps write one.
3. The launch that follows combines the parts of a result in an order that q alone decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polygen.frontend.dtypes import F32
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import Program
from polygen.hardware.device import common_facts
from polygen.lower.follow_work import row_width
from polygen.lower.given import Given
from polygen.lower.launch import Count, Following, KeptRows, Parts, Results
from polygen.lower.plan import KernelPlan, Leaf, Work
from polygen.lower.result_work import TERM_TURNS, Epilogue, Folding, FoldPart, Meeting
from polygen.poly.fold_parts import SHARED
from polygen.poly.folds import Split
from polygen.poly.pointwise import Folded
from polygen.poly.row_passes import result_of, split_for
from polygen.schedule.model import FOLD_WARPS
from polygen.schedule.sums import FoldOrder

_TURNS = 4  # registers of a thread that take all of its elements by turns
_ACROSS_BLOCK = "lanes whose numbers differ by 1, 2, 4, 8, 16, then warps in their order"


def split_of(plan: KernelPlan) -> Split:
    """The parts of a plan's program: what its kernel does, and what follows; of a chain the parts
    of its second program.
    """
    if plan.chained is not None:
        return plan.chained.split
    return split_for(plan.program, in_tile=plan.schedule.covers_rows)


def fold_parts(given: Given, folds: Sequence[Folded]) -> tuple[FoldPart, ...]:
    """Folds of a kernel, as its leaves make their parts."""
    return tuple(_part(given, fold) for fold in folds)


def _part(given: Given, fold: Folded) -> FoldPart:
    along = "m" if "m" in fold.kept else "n" if "n" in fold.kept else ""
    table = given.atom.c.table[: common_facts()["warp_size"]]
    offsets, lanes = _axis(table, along)
    slots = tuple(dict.fromkeys(offsets))
    # Along n there are many places, which do not wait for each other; else elements of one do.
    turns = tuple(0 if along == "n" else offsets[:e].count(at) for e, at in enumerate(offsets))
    if given.schedule.of_elements:  # of many rows, or of many elements
        turns = tuple(turn % (1 if along else _TURNS) for turn in turns)
    atoms = {"m": given.tiles.atoms[0], "n": given.tiles.columns // given.atom.n, "": 1}
    counts, part = _counted(given, fold)
    extents = tuple(given.sizes[dim] for dim in fold.kept)
    return FoldPart(
        value=fold.value,
        monoid=fold.monoid,
        terms=fold.terms,
        along=along,
        kept=fold.kept,
        atoms=atoms[along],
        offsets=slots,
        slots=tuple(slots.index(one) for one in offsets),
        turns=turns,
        registers=max(turns) + 1,
        masks=lanes,
        part=part,
        parts=Parts(fold.value, len(fold.terms), counts, extents),
    )


def _axis(table: np.ndarray[Any, Any], along: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Along one dim where a lane's elements are from its first one, and which lanes share places.

    Args:
        table: of lane and element, the row and the column.
        along: "m", "n", or "" where all elements are one.

    Returns:
        Offsets of a lane's elements; bits of a lane's number in which those differ that have
        elements at the same places.
    """
    count = len(table)
    bits = [1 << bit for bit in range(count.bit_length() - 1)]
    if not along:
        return (0,) * table.shape[1], tuple(bits)
    places = table[:, :, "mn".index(along)]
    own = places - places[:, :1]
    assert (own == own[0]).all()
    lanes = np.arange(count)
    same = tuple(bit for bit in bits if (places[lanes ^ bit, 0] == places[:, 0]).all())
    return tuple(int(one) for one in own[0]), same


def _counted(given: Given, fold: Folded) -> tuple[tuple[Count, ...], tuple[str, ...]]:
    """How many parts a result has along each folded dim, and the number of a warp's own."""
    counts, terms = [], []
    for dim in fold.folded:
        if dim in ("m", "n"):
            count, text = _warps(given, dim)
        else:
            count, text = Count(given.sizes[dim]), dim
        counts.append(count)
        terms.append(text)
    return tuple(counts), tuple(terms)


def _warps(given: Given, dim: str) -> tuple[Count, str]:
    """The parts along m or n: one for each warp that has elements of its own there."""
    tiles, cluster, axis = given.tiles, given.schedule.cluster, "mn".index(dim)
    inside, text = given.tiles.warps[axis], f"b_{dim} * {tiles.warps[axis]} + w_{dim}"
    if dim == "m" and given.atom.scope == "warpgroup":
        warps = given.device.warpgroup_warps
        inside, text = inside * warps, f"({text}) * {warps} + warp % {warps}"
    if dim == "n" and tiles.split > 1:
        inside, text = inside * tiles.split, f"({text}) * {tiles.split} + rank"
    blocks = (cluster.m, cluster.n)[axis] if given.schedule.specialised else 1
    return Count(given.sizes[dim], tiles.cta[axis] * blocks, blocks * inside), text


def following(
    split: Split, entry: str, parts: Sequence[FoldPart], row_warps: int
) -> Following | None:
    """The launch that makes results of parts; None without parts.

    Args:
        split: the program.
        entry: of the kernel.
        parts: that it makes.
        row_warps: of blocks, where all of them finish rows.
    """
    if not parts:
        return None
    warp = common_facts()["warp_size"]
    warps = FOLD_WARPS * F32.bytes // split.main.real.bytes
    groups: dict[object, Results] = {}
    owner: dict[str, object] = {}
    for part in parts:
        extents = tuple(extent for extent in part.parts.results if extent != 1)
        rows = split.rows_of(part.value)
        key: object = extents if rows is None else rows.own
        found = groups.get((rows is None, key), Results(extents, 1, (), (), ()))
        if rows is not None:
            found = replace(found, rows=tuple(one.name for one in rows.statements))
        lanes = found.lanes if part.along and rows is None else warp
        key = owner[part.value] = (rows is None, key)
        groups[key] = replace(found, lanes=lanes, folds=(*found.folds, part.value))
    for one in split.rows:
        for fold in one.folds:
            owner[fold.write.name] = (False, one.own)
    for statement in split.after:
        key = next(owner[access.name] for access in statement.reads if access.name in owner)
        owner[statement.write.name] = key
        group = replace(groups[key], after=(*groups[key].after, statement.name))
        own = {*group.outputs, statement.write.name}
        outputs = tuple(tensor.name for tensor in split.outputs if tensor.name in own)
        groups[key] = replace(group, outputs=outputs)
    return Following(
        f"{entry}_folds",
        warp * (row_warps if all(group.rows for group in groups.values()) else warps),
        warp,
        tuple(groups.values()),
        tuple(one.parts for one in parts),
        tuple(KeptRows(one.tensor) for one in split.kept),
        split.main.real,
    )


def fold_orders(
    program: Program,
    split: Split,
    out: Epilogue,
    beside: Mapping[str, FoldOrder],
    after: Following | None,
    blocks: int = 1,
) -> tuple[FoldOrder, ...]:
    """In which order terms are combined, as far as bits depend on it; folds in program order.

    Args:
        program: all statements.
        split: its parts.
        out: what folds elements.
        beside: the orders of folds of operands.
        after: the launch that combines parts.
        blocks: of a cluster, that cover a row together.
    """
    then = f"; those of {blocks} blocks in the order of their columns" if blocks > 1 else ""
    in_tile = {one.value: one for before in out.before for one in before.folds}
    lanes = {fold: group.lanes for group in after.groups for fold in group.folds} if after else {}
    threads = after.threads if after else 0
    found = {
        one.value: _order(
            one,
            lanes.get(one.value, 0),
            threads,
            at_once=one in out.at_once,
            together=at_hand(out, one),
        )
        for one in out.folds
    }
    found |= beside
    for fold in program.folds:
        if result_of(fold.write.name) in in_tile:
            row = _order(in_tile[result_of(fold.write.name)])
            there = found.get(fold.write.name)
            order = row.order + then
            order = f"{order}; as an output {there.order}" if there else order
            selects = MONOIDS[fold.function].selects
            found[fold.write.name] = FoldOrder(
                fold.write.name, fold.function, "" if selects else order
            )
    for one in (fold for rows in split.rows for fold in rows.folds):
        assert after is not None
        rows = split.rows_of(one.write.name)
        wide = row_width(rows, split, program) if rows else 1
        what = f"word of {wide} elements" if wide > 1 else "element"
        text = f"one {what} of a row in {after.threads}, {_ACROSS_BLOCK}"
        selects = MONOIDS[one.function].selects
        found[one.write.name] = FoldOrder(one.write.name, one.function, "" if selects else text)
    return tuple(found[fold.write.name] for fold in program.folds)


def at_hand(out: Epilogue, part: FoldPart) -> int:
    """Terms of a fold of streamed elements that a lane combines at once; 0: one after another."""
    if part not in out.together:
        return 0
    return out.vector if part.along == "m" else out.batch


def _order(
    part: FoldPart,
    shared_by: int = 0,
    threads: int = 0,
    *,
    at_once: bool = False,
    together: int = 0,
) -> FoldOrder:
    """The order of a fold's terms.

    Args:
        part: what a warp makes of its own.
        shared_by: lanes that have one result of its group's; 0: a warp has whole rows of terms.
        threads: of a block that combines parts.
        at_once: whether a lane's terms are combined at once where tiles lie inside.
        together: how many of them are.
    """
    if MONOIDS[part.monoid].selects:
        return FoldOrder(part.value, part.monoid)
    across = ", ".join(map(str, part.masks))
    lanes = f"; lanes whose numbers differ by {across}" if across else ""
    own = f"elements of a lane in their order, {part.registers} by turns{lanes}"
    if at_once:
        whole = f"where tiles lie inside relative to their largest, {TERM_TURNS} by turns"
        own = own.replace(", ", f", {whole}, else ", 1)
    if together:
        own = own.replace(", ", f", {together} at once where they lie inside, ", 1)
    if not shared_by:
        return FoldOrder(part.value, part.monoid, own)
    # Of results that lanes have alone warps share the parts, of others all threads of a block.
    shares = threads // common_facts()["warp_size"] * shared_by
    then = "those sums in theirs" if shared_by == 1 else _ACROSS_BLOCK
    text = f"{own}; {part.parts.count_text} part(s), every {shares}th in the order of "
    text += f"their numbers, then {then}"
    return FoldOrder(part.value, part.monoid, text)


def around(
    leaves: tuple[Leaf, ...],
    out: Epilogue,
    loops: tuple[str, ...],
    meet: Callable[[Epilogue], tuple[Leaf, ...]] | None = None,
    terms: Callable[[Epilogue], tuple[str, Work]] = lambda one: ("store_pairs", one),
) -> tuple[Leaf, ...]:
    """The leaves of an epilogue, between those that begin and end parts of folds if it has any.

    In front of them stand those of passes before it.

    Args:
        leaves: of the epilogue.
        out: what it does.
        loops: over output tiles.
        meet: the leaves by which a pass ends between blocks; None: each has whole rows.
        terms: what makes a pass's terms of the sums.
    """
    passes = [leaf for one in out.before for leaf in _pass(one, loops, meet, terms)]
    if not (out.folds or out.folding):
        return (*passes, *leaves)
    work = Folding(out)
    return (
        *passes,
        Leaf("unfold", "unfold", "threads", loops, work),
        *leaves,
        Leaf("fold", "fold", "threads", loops, work),
    )


def _pass(
    one: Epilogue,
    loops: tuple[str, ...],
    between: Callable[[Epilogue], tuple[Leaf, ...]] | None,
    terms: Callable[[Epilogue], tuple[str, Work]],
) -> tuple[Leaf, ...]:
    """A pass over the sums of a tile that covers rows."""
    names = {what: what + one.suffix for what in ("compute", "finish_element", "unfold")}
    given, ends = (SHARED + one.suffix, ("give", "take")) if one.sharing > 1 else ("", ("meet",))
    met = [Leaf(end + one.suffix, end, "threads", loops, Meeting(one, given)) for end in ends]
    op, work = terms(one)
    return (
        Leaf(names["compute"], "compute", "threads", (), one),
        Leaf(names["finish_element"], "edge", "threads", (), one),
        Leaf(names["unfold"], "unfold", "threads", loops, Folding(one)),
        Leaf("terms" + one.suffix, op, "threads", (*loops, "m"), work),
        *(between(one) if between is not None else met),
    )
