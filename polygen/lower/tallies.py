"""How the folds of operands are made in a kernel: records for the leaves, and for what reads them.

The rows of an agent, and the order of a row's terms, follow from the tiles; where elements lie from
the layout of the ring (`polygen.lower.tally`). That all elements are folded, from where they lie,
is proved of the texts (`polygen/emit/proofs/tally.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from polygen.errors import VerifyError
from polygen.frontend.monoids import MONOIDS
from polygen.hardware.data_file import Integers
from polygen.hardware.device import common_facts
from polygen.hardware.formula import value
from polygen.hardware.matrix_layout import MatrixLayout, copied_to
from polygen.lower.accesses import base, elements_along
from polygen.lower.buffers import Buffer, Rows
from polygen.lower.fragments import Beside
from polygen.lower.given import Given
from polygen.lower.making import ring_place
from polygen.lower.operands import k_of_all
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Read
from polygen.lower.synchronise import counter_of
from polygen.lower.tally import Leave, Stored, Tally, lanes_of, rows_together
from polygen.poly.elements import Element
from polygen.poly.legality import Proof
from polygen.poly.match import Match
from polygen.poly.pointwise import Pointwork
from polygen.poly.register_operands import tile_extents
from polygen.poly.ring_folds import RingFolds
from polygen.schedule.model import Schedule
from polygen.schedule.sums import FoldOrder

_ACCESS_BYTES = 8  # of a row


def tallies(given: Given, buffers: Mapping[str, Buffer]) -> tuple[Tally, ...]:
    """What is folded of the rings, and how.

    Args:
        given: the kernel.
        buffers: the rings among them, with their layouts.

    Raises:
        VerifyError: an element is read otherwise than it lies.
    """
    return tuple(_tally(given, one, buffers) for one in given.work.ring_folds(given.match))


def _tally(given: Given, of: RingFolds, buffers: Mapping[str, Buffer]) -> Tally:
    operand, tiles = given.match.operand(of.ring), given.tiles
    axis = "mn".index(of.role)
    _, depth = given.extents(operand)
    layout = buffers[f"ring_{of.ring}"].layout
    assert layout is not None
    groups = given.atom.scope == "warpgroup"
    warp = common_facts()["warp_size"]
    threads = given.device.group_threads if groups else warp
    k_inner, size = operand.k_contiguous, operand.tensor.dtype.bytes
    access = _ACCESS_BYTES // size if k_inner else 1
    rows = tiles.warp[axis]
    across = math.gcd(rows, rows_together(operand))
    counter = ""
    if groups:
        counter = counter_of(given.tree.synchronised, f"tally_{of.ring}", f"ring_{of.ring}")
    found = Tally(
        ring=of.ring,
        role=of.role,
        counter=counter,
        of=of,
        element=operand.tensor,
        beside=tuple(tuple(_beside(one, of.role) for one in fold.reads) for fold in of.folds),
        rows=rows,
        depth=depth,
        threads=threads,
        thread=f"thread % {threads}" if groups else "lane",
        lanes=lanes_of(rows // across, threads, depth // access, warp),
        access=access,
        across=across,
        k_inner=k_inner,
        place=_place(layout),
        part=f" + w_{of.role} * {rows}",
        parts=tiles.warps[axis],
        tile=f"b_{of.role} * {tiles.cta[axis]}",
        extents=(operand.extent(of.role), operand.extent("k")),
        k_tile=k_of_all(tiles),
        only=(),
    )
    return replace(found, only=_only(found, given.match, given.work, given.schedule))


def _only(one: Tally, match: Match, work: Pointwork, schedule: Schedule) -> tuple[str, ...]:
    """Coordinates that are 0 of every tile whose results anybody has a use for.

    Consumers that take turns fold all of their tiles: some that take longer hold up the other one's
    (x.T @ d beside d.sum(0), 4096^3 on an H100: 249 us with some, 233 with all).
    """
    if work.uses(one.of) or schedule.in_turns:
        return ()
    firsts = [each.first for each in leave(one, tuple(dim for dim, _ in match.batches)).outputs]
    return tuple(dim for dim in firsts[0] if all(dim in other for other in firsts))


def own_first(given: Given, role: str) -> str:
    """The first row, or column, of an agent's tile."""
    axis = "mn".index(role)
    return f"b_{role} * {given.tiles.cta[axis]} + w_{role} * {given.tiles.warp[axis]}"


def _beside(one: Element, role: str) -> Beside:
    tensor = one.tensor
    if not tensor.dims:
        return Beside(one.name, tensor, "0", "0", (1, 1), ())
    row, k = (elements_along(tensor, one.index, dim) for dim in (role, "k"))
    per = tuple(next((at.per for at in one.index if at.dim == dim), 1) for dim in (role, "k"))
    return Beside(one.name, tensor, row, k, (per[0], per[1]), base(tensor, one.index))


def _place(layout: Rows | MatrixLayout) -> str:
    if isinstance(layout, MatrixLayout):
        return ring_place(layout)
    return layout.place


def stored_at(layout: Rows | MatrixLayout) -> Callable[[Integers, Integers], Integers]:
    """Where a ring has a stored row's byte."""
    if isinstance(layout, MatrixLayout):
        matrix = layout
        return lambda row, byte: copied_to(matrix, row, byte)
    rows = layout
    return lambda row, byte: rows.swizzle.address(row, byte, rows.row_bytes)


def leaves(given: Given, made: tuple[Tally, ...], versions: tuple[str, ...]) -> tuple[Leaf, ...]:
    """The leaves that begin, fold, share and store; `versions`: the loops over output tiles."""
    found: list[Leaf] = []
    for one in made:
        found += [
            Leaf(f"begin_{one.ring}", "begin", "threads", versions, one),
            Leaf(f"tally_{one.ring}", "tally", "threads", (*versions, "k"), one),
            Leaf(f"share_{one.ring}", "share", "threads", versions, one),
        ]
        if one.of.outputs:
            work = leave(one, tuple(dim for dim, _ in given.match.batches))
            found.append(Leaf(f"leave_{one.ring}", "leave", "threads", versions, work))
    return tuple(found)


def leave(work: Tally, batches: tuple[str, ...]) -> Leave:
    """How the results of a ring that are outputs leave; `batches`: the dims that count matrices."""
    across = "n" if work.role == "m" else "m"
    outputs = []
    for one in work.of.outputs:
        own = {at.dim for at in one.index}
        first = (f"b_{across}", *(dim for dim in batches if dim not in own))
        step = elements_along(one.tensor, one.index, work.role)
        outputs.append(Stored(one.tensor, one.number, base(one.tensor, one.index), step, first))
    return Leave(work, tuple(outputs))


def given_read(given: Given, element: Element, read: Read) -> Read:
    """A read of the epilogue; of a result that elements read in shared memory, there."""
    for one in given.work.ring_folds(given.match):
        names = [name for name, _ in one.results]
        along = {at.dim for at in element.index}
        if element.tensor.name in names and one.role in along:
            return replace(
                read,
                kind="row" if one.role == "m" else "strided",
                width=element.tensor.dtype.bytes,
                shared=f"norms_{one.ring}",
                start=names.index(element.tensor.name) * given.tiles.warp["mn".index(one.role)],
                first=own_first(given, one.role),
            )
    return read


def tally_orders(made: Iterable[Tally]) -> dict[str, FoldOrder]:
    """In which order terms of operands are combined, by the program's names of their folds."""
    return {
        fold.value: FoldOrder(
            fold.value, fold.monoid, "" if MONOIDS[fold.monoid].selects else one.order
        )
        for one in made
        for fold in one.folds
    }


# --- proofs --------------------------------------------------------------------------------------
def check_tallies(plan: KernelPlan) -> tuple[Proof, ...]:
    """Prove that folds of operands are the program's, of all elements, and read where they are.

    Raises:
        VerifyError: they are not.
    """
    wanted = plan.work.ring_folds(plan.match)
    made = list(dict.fromkeys(plan.of(Tally)))
    if tuple(one.of for one in made) != wanted or any(
        (one.ring, one.role) != (one.of.ring, one.of.role) for one in made
    ):
        raise VerifyError(f"rings are folded as {[one.ring for one in made]}", where=plan.entry)
    for one in made:
        operand, axis = plan.match.operand(one.ring), "mn".index(one.role)
        groups = plan.atom.scope == "warpgroup"
        held = (one.rows, one.parts, one.extents, one.element, one.depth, one.threads)
        whole = (
            plan.tiles.warp[axis],
            plan.tiles.warps[axis],
            (operand.extent(one.role), operand.extent("k")),
            operand.tensor,
            tile_extents(operand, plan.tiles)[1],
            plan.device.group_threads if groups else plan.device.warp_size,
        )
        starts = (f" + w_{one.role} * {one.rows}", f"b_{one.role} * {plan.tiles.cta[axis]}")
        if one.only != _only(one, plan.match, plan.work, plan.schedule):
            raise VerifyError(
                f"{one.buffer} is folded where {one.only} are 0 alone", where=plan.entry
            )
        if held != whole or (one.part, one.tile) != starts or plan.tiles.split > 1:
            raise VerifyError(f"{one.buffer}: no agent has whole rows", where=plan.entry)
        room = plan.buffer(one.norms)
        agents = plan.places[-1].agents
        if (room.slot_bytes, room.owners, room.slots) != (
            plan.program.real.bytes * one.rows * len(one.of.results), agents, 1
        ):  # fmt: skip
            raise VerifyError(
                f"{one.norms}: results of {one.rows} rows in {room}", where=plan.entry
            )
    _check_leaving(plan, made)
    return tuple(
        Proof(
            "every element of the agent's rows enters the fold once, in the threads that multiply",
            f"{fold.value} of ring_{one.ring}",
        )
        for one in made
        for fold in one.folds
    )


def _check_leaving(plan: KernelPlan, made: list[Tally]) -> None:
    """What leaves are the outputs that are numbers of rows, of the rings that have them."""
    batches = tuple(dim for dim, _ in plan.match.batches)
    wanted = [leave(one, batches) for one in made if one.of.outputs]
    if list(plan.of(Leave)) != wanted:
        names = [one.tensor.name for work in plan.of(Leave) for one in work.outputs]
        raise VerifyError(f"{names} leave as numbers of rows otherwise", where=plan.entry)
    if plan.following is not None:  # whose outputs are compared with these there
        return
    stored = {one.tensor.name for one in plan.epilogue.writes}
    stored |= {one.tensor.name for work in wanted for one in work.outputs}
    if stored != {one.name for one in plan.program.outputs}:
        raise VerifyError(f"{', '.join(sorted(stored))} are stored", where=plan.entry)


def check_shared(plan: KernelPlan, access: Read, element: Element) -> None:
    """A result that elements read is where its row's is in the agent's area.

    Raises:
        VerifyError: it is elsewhere.
    """
    role = next(one.dim for one in element.index if one.dim in ("m", "n"))
    work = next((one for one in plan.of(Tally) if one.norms == access.shared), None)
    if work is None or work.role != role:
        raise VerifyError(f"{access.tensor.name} is read in {access.shared}", where=plan.entry)
    number = [name for name, _ in work.of.results].index(access.tensor.name)
    axis = "mn".index(role)
    steps = {f"b_{role}": plan.tiles.cta[axis], f"w_{role}": plan.tiles.warp[axis]}
    for one in ("", *steps):
        at = dict.fromkeys(steps, 0) | ({one: 1} if one else {})
        wanted = steps.get(one, 0)
        if value(access.first, at) != wanted or access.start != number * work.rows:
            raise VerifyError(
                f"{access.tensor.name} is read from {access.start} of {access.shared} on",
                where=f"{plan.entry}: {access.first}",
            )
    if access.kind != {"m": "row", "n": "strided"}[role]:
        raise VerifyError(f"{access.tensor.name} is read as {access.kind}", where=plan.entry)
