"""Checks of folds: lanes, what results are given, orders, parts, the launch that follows."""

from __future__ import annotations

import numpy as np

from polygen import isl
from polygen.errors import VerifyError
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import Dim
from polygen.hardware.device import common_facts
from polygen.lower.folds import split_of
from polygen.lower.launch import Following
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import FoldPart, Meeting
from polygen.lower.row_exchange import check_exchange
from polygen.poly.folds import Split
from polygen.poly.legality import Proof


def check_folds(plan: KernelPlan) -> tuple[Proof, ...]:
    """Prove that parts are whole, apart, and all combined.

    Raises:
        VerifyError: a term is in no part or in two, or a part is not combined.
    """
    found = []
    _check_records(plan)
    for one in (fold for before in plan.epilogue.before for fold in before.folds):
        _check_lanes(plan, one, every=True)
        if one.along != "m" or plan.tiles.split > 1:
            raise VerifyError(f"{one.value}: no warp has whole rows", where=plan.entry)
        _check_given(plan, one)
        found.append(Proof("lanes that use a row's result have every term of it", one.value))
        found += check_exchange(plan, one)
    for one in plan.epilogue.folds:
        _check_lanes(plan, one)
        _check_parts(plan, one)
        found.append(Proof("every term is in one part, and parts are written once", one.value))
    if plan.following is not None:
        _check_following(plan, plan.following)
        found.append(
            Proof("every part is read once, by a launch that begins when all are written", "folds")
        )
    return tuple(found)


def _check_records(plan: KernelPlan) -> None:
    """Folds are the program's, in the registers of their places, in every pass; rows are known by
    the passes before.
    """
    tiles, e = plan.tiles, plan.epilogue
    counts = {"m": tiles.atoms[0], "n": tiles.columns // plan.atom.n, "": 1}
    for made, work in zip((*e.before, e), (*plan.work.before, plan.work), strict=True):
        said = [(one.value, one.monoid, one.terms, one.kept) for one in made.folds]
        wanted = [(one.value, one.monoid, one.terms, one.kept) for one in work.folds]
        if said != wanted:
            raise VerifyError(f"folds are {said} and not {wanted}", where=plan.entry)
        if tuple(one.value for one in made.known) != tuple(work.known):
            raise VerifyError(f"a pass knows {made.known}", where=plan.entry)
        for one in made.folds:
            along = next((dim for dim in "mn" if dim in one.kept), "")
            places, elements = len(one.offsets), plan.atom.c.table.shape[1]
            held = [one.turns[e] for e in range(len(one.turns)) if e < len(one.slots)]
            if (one.along, one.atoms) != (along, counts[along]) or any(
                len(each) != elements for each in (one.slots, one.turns)
            ):
                raise VerifyError(f"{one.value} along {one.along}", where=plan.entry)
            if set(one.slots) != set(range(places)) or set(held) != set(range(one.registers)):
                raise VerifyError(f"{one.value} in {one.registers} registers", where=plan.entry)


def _check_lanes(plan: KernelPlan, one: FoldPart, *, every: bool = False) -> None:
    """The lane that writes has combined each element of its place once, and no other.

    Args:
        plan: the kernel.
        one: the fold.
        every: whether all lanes use the result, those too that write none.
    """
    count = common_facts()["warp_size"]
    table = plan.atom.c.table[:count]
    everywhere = bool(one.along)
    if not all(0 <= turn < one.registers for turn in one.turns):
        raise VerifyError(f"{one.value}: terms in registers {one.turns}", where=plan.entry)
    _check_order(plan, one)
    places = table[:, :, "mn".index(one.along)] if everywhere else np.zeros(table.shape[:2], int)
    lanes, bits = np.arange(count), [1 << bit for bit in range(count.bit_length() - 1)]
    masks = tuple(bit for bit in bits if np.array_equal(places[lanes ^ bit], places))
    if one.masks != masks:  # in their order, which is that of sums
        raise VerifyError(f"{one.value}: lanes meet by {one.masks}", where=plan.entry)
    for slot, offset in enumerate(one.offsets):
        held = [
            [(lane, e) for e in range(table.shape[1]) if one.slots[e] == slot]
            for lane in range(count)
        ]
        for mask in one.masks:
            held = [held[lane] + held[lane ^ mask] for lane in range(count)]
        for lane in range(count):
            if not every and any(lane & mask for mask in one.masks):
                continue
            place = places[lane, 0] + offset
            wanted = [(int(at), int(e)) for at, e in np.argwhere(places == place)]
            if sorted(held[lane]) != wanted:
                raise VerifyError(
                    f"{one.value}: lane {lane} combines {len(held[lane])} terms, of "
                    f"{len(wanted)} at {one.along or 'the tile'} + {place}",
                    where=plan.entry,
                )


def _check_given(plan: KernelPlan, one: FoldPart) -> None:
    """Agents that share rows have room for all of theirs, each in an area of its own."""
    for work in plan.of(Meeting):
        if not work.given or one not in work.epilogue.folds:
            continue
        buffer, agents = plan.buffer(work.given), plan.places[-1].agents
        numbers = sum(len(fold.terms) for fold in work.epilogue.folds) * plan.tiles.warp[0]
        room = (plan.program.real.bytes * numbers, agents, 1)
        if (buffer.slot_bytes, buffer.owners, buffer.slots) != room:
            raise VerifyError(f"{one.value}: {numbers} numbers in {buffer}", where=plan.entry)
        if work.epilogue.sharing != plan.tiles.warps[1]:
            raise VerifyError(f"{one.value}: no warp has whole rows", where=plan.entry)


def _check_order(plan: KernelPlan, one: FoldPart) -> None:
    """Terms with an index enter each register in ascending order: instructions do, and so elements.

    Leaves go through the instructions along m, and of each row of them along n, upwards. Where
    terms are combined at once, all of a place come behind each other.
    """
    if MONOIDS[one.monoid].later is None or (plan.epilogue.streamed and not one.along):
        return
    folded = 1 if one.along == "m" else 0
    last: dict[tuple[int, int], int] = {}
    at_once = one in plan.epilogue.at_once
    turns = (0,) * len(one.slots) if at_once else one.turns
    for element, (slot, turn) in enumerate(zip(one.slots, turns, strict=True)):
        place = int(plan.atom.c.table[0, element, folded])
        if place <= last.get((slot, turn), -1):
            raise VerifyError(f"{one.value}: an index behind {place} comes first", where=plan.entry)
        last[slot, turn] = place


def _check_parts(plan: KernelPlan, one: FoldPart) -> None:
    """Along each folded dim, numbers of parts are those from 0 to their count, each of one warp.

    Then so are the numbers that are made of them, digit by digit.
    """
    tiles, cluster = plan.tiles, plan.schedule.cluster
    blocks = (cluster.m, cluster.n) if plan.schedule.specialised else (1, 1)
    warps, matrices = plan.device.warpgroup_warps, dict(plan.batches)
    folded = [dim for dim in (*matrices, "m", "n") if dim not in one.kept]
    wanted_counts = []
    if not len(folded) == len(one.parts.counts) == len(one.part):
        raise VerifyError(f"{one.value}: parts {one.part} along {folded}", where=plan.entry)
    for dim, count, text in zip(folded, one.parts.counts, one.part, strict=True):
        if dim in matrices:
            bounds, step = {dim: "tiles"}, 1
            extent: Dim = matrices[dim]
        else:
            axis = "mn".index(dim)
            step, extent = tiles.cta[axis] * blocks[axis], (plan.match.m, plan.match.n)[axis]
            bounds = {f"b_{dim}": f"{blocks[axis]}*tiles", f"w_{dim}": str(tiles.warps[axis])}
            if dim == "m" and plan.atom.scope == "warpgroup":
                bounds["quarter"] = str(warps)
            if dim == "n" and tiles.split > 1:
                bounds["rank"] = str(tiles.split)
        wanted_counts.append((extent, step))
        inside = " and ".join(f"0 <= {name} < {end}" for name, end in bounds.items())
        number = text.replace(f"warp % {warps}", "quarter")
        try:
            made = isl.Map(f"[tiles] -> {{ [{','.join(bounds)}] -> [{number}] : {inside} }}")
        except isl.Error as error:  # of what the dim does not have
            raise VerifyError(f"{one.value}: parts {text} along {dim}", where=plan.entry) from error
        wanted = isl.Set(f"[tiles] -> {{ [q] : 0 <= q < {count.times}*tiles }}")
        if not made.is_injective() or not made.range().is_equal(wanted):
            raise VerifyError(
                f"{one.value}: parts {text} along {dim} are not those from 0 to {count}",
                where=plan.entry,
            )
    if [(count.extent, count.step) for count in one.parts.counts] != wanted_counts:
        raise VerifyError(f"{one.value}: {one.parts.count_text} parts", where=plan.entry)


def _check_following(plan: KernelPlan, after: Following) -> None:
    """Every part and every statement is in one group, in order, and each fold has a result."""
    made = [one.value for one in plan.epilogue.folds]
    split = split_of(plan)
    _check_rows(plan, after, split)
    combined = [fold for group in after.groups for fold in group.folds]
    ran = [statement for group in after.groups for statement in group.after]
    if sorted(combined) != sorted(made) or [one.value for one in after.parts] != made:
        raise VerifyError(f"parts of {made} are made, and of {combined} combined", where=plan.entry)
    if sorted(ran) != sorted(one.name for one in split.after):
        raise VerifyError(f"what follows folds runs {ran}", where=plan.entry)
    for one, parts in zip(plan.epilogue.folds, after.parts, strict=True):
        if parts != one.parts or parts.components != len(MONOIDS[one.monoid].identity):
            raise VerifyError(f"{one.value}: {parts} are combined", where=plan.entry)


def _check_rows(plan: KernelPlan, after: Following, split: Split) -> None:
    """Late statements are in one group, with the folds of their rows; what they read is kept."""
    ran = [name for group in after.groups for name in group.rows]
    wanted = [one.name for rows in split.rows for one in rows.statements]
    stored = [write.tensor.name for write in plan.epilogue.writes]
    known = {one.tensor.name for one in split.kept}
    if sorted(ran) != sorted(wanted):
        raise VerifyError(f"what follows folds runs {ran} on rows", where=plan.entry)
    if {one.name for one in after.kept} != known or not known <= set(stored):
        raise VerifyError(f"rows of {sorted(known)} are read, {stored} written", where=plan.entry)
    for rows in split.rows:
        names = tuple(s.name for s in rows.statements)
        group = next((g for g in after.groups if g.rows == names), None)
        if group is None:
            raise VerifyError(f"no results are of rows of {names}", where=plan.entry)
        extents = tuple(rows.axes[at] for at in rows.own)
        inside = {*rows.results, *(s.write.name for s in rows.statements)}
        inside |= {one.value for one in split.kept} | set(plan.program.tensors)
        read = {a.name for s in rows.statements for a in s.reads}
        if group.extents != extents or after.results(group) != 1 or not read <= inside:
            raise VerifyError(f"rows over {extents} are made as {group}", where=plan.entry)
