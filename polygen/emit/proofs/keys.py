"""Keys in parts, as they are written: what a part leaves, and how a row's parts become one.

A part's sums and states lie where `Parts` says: row r of all matrices of part q is row
``q * rows + r``. The launch that follows combines parts one by one, whatever a part holds; one that
has no key holds what combines to nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.table import kind_of, proof
from polygen.emit.names import c_name
from polygen.emit.proofs.blocks import blocks
from polygen.emit.proofs.folded import begins
from polygen.emit.proofs.score_tiles import both, combining, nothing_of, worth_of
from polygen.emit.proofs.stored import Wanted, check_writes
from polygen.emit.proofs.threads import of_kernel, size
from polygen.emit.run_text import Called
from polygen.emit.text_functions import run
from polygen.emit.text_values import Part, Register, as_float, mixed, token
from polygen.errors import VerifyError
from polygen.lower.follow_work import MergeKeys
from polygen.lower.launch import workspace_argument
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.scan_work import PartStore
from polygen.poly.follow_program import ELEMENT, ELEMENTS, PART, parts_of

_MATRIX, _PART = 3, 1  # of the block
_RESULT, _EMPTY, _COUNT = 7, 1, 3  # the row that is combined, its part without a key, its parts
_PAIR = 2


@proof("store_parts", "threads", PartStore)
def _(plan: KernelPlan, leaf: Leaf, work: PartStore, texts: tuple[str, ...]) -> None:
    block = blocks(plan, leaf.place, work.epilogue, "m", plan.tiles.atoms[0])
    names = block.names | block.registers() | {"matrix": _MATRIX, "part": _PART}
    atoms, halves = plan.tiles.atoms[0], [half for half, _ in plan.atom.c.of_thread]
    lines = np.stack([block.places(m, 0)[0] for m in range(atoms)])
    lines = np.stack([lines[..., halves.index(half)] for half in (0, 1)], axis=1)
    for state, _ in work.states:
        held = mixed(state.register, lines).reshape(-1, block.threads)
        names[state.register] = Register(held, 0, (atoms, 2))
    found: list[tuple[Any, Any]] = []

    def store(called: Called) -> None:
        place, value, who = called.of_all(0), called.arguments[1].value, called.state.who()
        values = list(value.parts.values()) if isinstance(value, Part) else [value]
        first = place - begins(plan, names, work.total)
        if len(values) == _PAIR and (first % _PAIR)[who].any():
            raise VerifyError("two sums are written where no pair of them begins")
        for at, one in enumerate(values):
            found.append(((place + at)[who], np.broadcast_to(one, who.shape)[who]))

    run(read(texts[0]), names, block.threads, block.handlers() | {"store": store})
    at = [block.places(names["m"], n) for n in range(plan.tiles.columns // plan.atom.n)]
    row, column = (np.concatenate(one).ravel() for one in zip(*at, strict=True))
    inside = block.inside(row, column)
    row, column = row[inside], column[inside]
    own = np.unique(lines[names["m"], :, np.arange(block.threads)])
    own = own[block.inside(own, 0)]
    rows = math.prod(size(names, one) for one in work.total.results[:-1])
    matrix = _MATRIX if plan.batches else 0  # without batches there is one
    before = rows * _PART + matrix * size(names, plan.match.m)
    number = [total for _, total in work.epilogue.sums].index(work.sums)
    place = begins(plan, names, work.total)
    place = place + (before + row) * size(names, plan.match.n) + column
    wanted = [Wanted(work.sums, place, block.sum(number, row, column), (row, column))]
    for state, parts in work.states:
        place = begins(plan, names, parts) + before + own
        wanted.append(Wanted(state.value, place, mixed(state.register, own), (own,)))
    check_writes(found, wanted)


@proof("merge_keys", "threads", MergeKeys, "begin_keys")
def _(plan: KernelPlan, leaf: Leaf, work: MergeKeys, texts: tuple[str, ...]) -> None:
    row, scan, reference = _Row(plan, work), work.scan, work.scan.reference
    known = row.names | row.under(leaf) | {ELEMENT: row.first}
    handlers = combining(scan) | {"__ldcg": row.part}
    known = run(read(texts[0]), known, row.threads, handlers).names
    for q in range(_COUNT):
        known = run(read(texts[1]), known | {PART: q}, row.threads, handlers).names
    worth: list[Any] = [1] * _COUNT
    if reference is not None:
        whole = row.names[f"whole_{reference.register}"]
        each = [row.value(reference.register, q) for q in range(_COUNT)]
        worth = [worth_of(scan, one, whole) for one in each]
    if work.what == "sum":
        column = np.minimum(row.first + row.names["lane"], row.names[ELEMENTS] - 1)
        every = [row.sum(q, column) * worth[q] for q in range(_COUNT)]
        row.check(known["sum"], as_float(0) + sum(every), "the sum of a column")
        return
    for state in scan.summed if work.what == "states" else scan.states[:1]:
        nothing = nothing_of(state)
        found: Any = nothing
        for q in range(_COUNT):
            one = row.value(state.register, q)
            scaled = state is not reference and reference is not None and state.rescaled
            found = both(found, one * worth[q] if scaled else one, nothing)
        row.check(known[f"whole_{state.register}"], found, state.value)
    if work.what == "reference" and reference is not None:
        nothing = nothing_of(reference)
        own = np.where(row.names["lane"] % 2 == 0, nothing, mixed("before", row.names["lane"]))
        for whole in (nothing, mixed("whole")):
            given = known | {"before": own, f"whole_{reference.register}": whole}
            made = run(read("const float of = worth(before);"), given, row.threads).names["of"]
            row.check(made, worth_of(scan, own, whole), "what a part is worth")


@proof("finish_keys", "threads", MergeKeys)
def _(plan: KernelPlan, leaf: Leaf, work: MergeKeys, texts: tuple[str, ...]) -> None:
    row = _Row(plan, work)
    names = row.names | {ELEMENT: row.first, "sum": mixed("sum", np.arange(row.threads))}
    found: list[tuple[Any, Any]] = []

    def finish(called: Called) -> None:
        who, (line, column, e, *sums) = called.state.who(), called.values
        value = np.broadcast_to(mixed("finished", line, *sums), who.shape)
        found.append((np.broadcast_to(column + e, who.shape)[who], value[who]))

    run(read(texts[0]), names, row.threads, {"finish_element": finish})
    column = row.first + row.names["lane"]
    states = {value: f"whole_{register}" for value, register in work.store.named}
    sums = [names[states.get(total, "sum")] for _, total in work.store.epilogue.sums]
    value = np.broadcast_to(mixed("finished", names["row"], *sums), column.shape)
    own = column < names[ELEMENTS]
    check_writes(found, [Wanted("the row", column[own], value[own], (column[own],))])


class _Row:
    """A block that combines the parts of a row: its threads, and what it reads."""

    def __init__(self, plan: KernelPlan, work: MergeKeys) -> None:
        self.plan, after = plan, plan.following
        assert after is not None
        self.threads, lanes, names = after.threads, after.lanes, of_kernel(plan, {})
        thread = np.arange(self.threads)
        rows = math.prod(size(names, one) for one in work.store.total.results[:-1])
        names |= {"lane": thread % lanes, "warp": thread // lanes, "row": 11, "fold_rows": rows}
        names |= {"fold_result": _RESULT, ELEMENTS: size(names, plan.match.n)}
        names |= {parts_of(0): _COUNT, "part_sums": 1 << 40}
        # Columns of all warps, of which the last ones' end outside.
        last = (names[ELEMENTS] - 1) // lanes
        self.first = np.maximum(last - thread // lanes, 0) * lanes
        self.first = np.where(thread // lanes > last, last * lanes + lanes, self.first)
        self.states = {s.register: 2 + at << 40 for at, s in enumerate(work.scan.states)}
        self.room = names[c_name(workspace_argument(plan.program))]
        self.empty = {s.register: nothing_of(s) for s in work.scan.states}
        names |= {f"part_{name}": first for name, first in self.states.items()}
        self.names = names | {f"whole_{name}": token(f"whole {name}") for name in self.states}

    def under(self, leaf: Leaf) -> dict[str, Any]:
        """What a part is worth under the row's reference: a function that its own leaf declares."""
        for one in (x for group in self.plan.groups for x in group.leaves):
            work = one.work
            if one.op == "begin_keys" and isinstance(work, MergeKeys) and work.what == "reference":
                if work == leaf.work:
                    break
                text = kind_of(one).text(self.plan, one)
                declared = run(read("\n".join(text.declarations)), {}, self.threads).names
                return {"worth": declared["worth"]} if "worth" in declared else {}
        return {}

    def value(self, register: str, q: int) -> Any:
        """What a part of the row has in the place of a state."""
        place = self.room + self.states[register] + q * self.names["fold_rows"] + _RESULT
        return self.empty[register] if q == _EMPTY else mixed("part", place)

    def sum(self, q: int, column: Any) -> Any:
        """A part of a sum."""
        line, first = q * self.names["fold_rows"] + _RESULT, self.room + self.names["part_sums"]
        return mixed("part", first + line * self.names[ELEMENTS] + column)

    def part(self, called: Called) -> Any:
        """A number in the workspace."""
        place = called.of_all(0)
        found = mixed("part", place)
        for name, first in self.states.items():
            own = self.room + first + _EMPTY * self.names["fold_rows"] + _RESULT
            found = np.where(place == own, self.empty[name], found)
        return found

    def check(self, found: Any, wanted: Any, what: str) -> None:
        """Every thread has what it has to have.

        Raises:
            VerifyError: with one that has not.
        """
        wrong = np.broadcast_to(found != wanted, (self.threads,))
        if wrong.any():
            thread = int(np.flatnonzero(wrong)[0])
            raise VerifyError(f"{what} is not of all parts in thread {thread}")
