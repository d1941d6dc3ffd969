"""Folds of a ring, as they are written: of every row all terms, once, to where elements read them.

The three texts are run one behind the other, for the first k tile and for the last, which ends
inside. A row's result is then the program's function of the elements that the copies wrote in its
row, and it lies in the agent's area; nothing else is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.ctext import definition
from polygen.emit.doubles import literal_of
from polygen.emit.element_types import name_of
from polygen.emit.folds import identities
from polygen.emit.leaf.table import proof
from polygen.emit.leaf.tally import of_rows, statements
from polygen.emit.leaves import real_of
from polygen.emit.proofs.shared_bytes import Memory
from polygen.emit.proofs.stored import Wanted, Writes, check_writes
from polygen.emit.proofs.threads import (
    APART,
    SHARED,
    Arrays,
    coordinate,
    evaluated,
    of_kernel,
    of_place,
    size,
    times,
)
from polygen.emit.run_text import Called, State
from polygen.emit.text_functions import run
from polygen.emit.text_values import as_bits, number_of
from polygen.errors import VerifyError
from polygen.frontend.dtypes import F64
from polygen.frontend.monoids import MONOIDS
from polygen.lower.buffers import Buffer
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.tallies import stored_at
from polygen.lower.tally import Tally

_SLOT = 1  # of the ring


@proof("share", "threads", Tally, "begin", "tally", alone=True)
def _(plan: KernelPlan, leaf: Leaf, work: Tally, texts: tuple[str, ...]) -> None:
    axis = "mn".index(work.role)
    rows, depth = plan.tiles.cta[axis], plan.tiles.cta[2]
    first = (axis + 1) * plan.tiles.cta[axis]  # of the block's tile
    ring, each, real = plan.buffer(work.buffer), work.element.dtype.bytes, real_of(plan)
    ends = (first + rows - 3, (2 * ring.slots - 1) * depth + 3)
    names = of_kernel(plan, dict(zip(map(str, work.extents), ends, strict=True)))
    own, threads = of_place(plan, leaf.place)
    names |= dict.fromkeys(work.only, 0)  # of other tiles nobody reads what is folded
    # Numbers of elements, or as many of their bytes as an element has: in a copy of the block each.
    parts = -(-(2 * rows * depth).bit_length() // (8 * each))
    names |= times(own, parts) | {"shared": SHARED + np.repeat(np.arange(parts), threads) * APART}
    arrays, count = Arrays(plan, names), parts * threads
    state = run(read(texts[0]), names, count)
    _check_begun(work, state, real)
    row, k = (one.ravel() for one in np.indices((rows, depth)))
    place = _place(ring, *((row, k * each) if work.k_inner else (k, row * each)))
    terms = [np.zeros(parts * rows, np.int64) for fold in work.folds for _ in fold.terms]
    for number, tile in enumerate((0, (size(names, work.extents[1]) - 1) // depth)):
        slot = min(_SLOT, ring.slots - 1) if work.counter else tile % ring.slots
        memory, content = Memory((parts - 1) * APART + ring.end), []
        for part in range(parts):
            content.append((number * rows * depth + row * depth + k) >> 8 * each * part)
            content[part] &= (1 << min(8 * each, 63)) - 1
            to = ring.offset + slot * ring.slot_bytes + place + part * APART
            memory.put(to, content[part], each)
        known = state.names | {"k": tile, f"{work.counter}.slot": slot}
        state = run(read(texts[1]), known, count, memory.handlers() | arrays.handlers())
        last = np.minimum(first + row, size(names, work.extents[0]) - 1)
        at = {"k": np.tile(k + tile * depth, parts), work.role: np.tile(last, parts)}
        made = _terms(work, names, np.concatenate(content), at, arrays, real)
        for one, values in zip(terms, made, strict=True):
            one += values.reshape(-1, depth).sum(axis=1)
    areas, written = _areas(plan, leaf, work, state.names), Writes()
    area = plan.buffer(work.norms).owner_bytes
    wrote = partial(_wrote, written, areas, area)
    handlers = {"write_double" if real == "double" else "write_word": wrote}
    run(read(texts[2]), state.names, count, handlers)
    results = _results(work, names, terms, real)
    wanted = [
        _wanted(plan, work, name, number, results[name].reshape(parts, rows), areas, state.names)
        for number, (name, _) in enumerate(work.of.results)
    ]
    check_writes(written, wanted)


def _place(ring: Buffer, line: Any, byte: Any) -> Any:
    """Where the copies write bytes of the lines of a ring's tile."""
    assert ring.layout is not None
    return stored_at(ring.layout)(line, byte)


def _areas(plan: KernelPlan, leaf: Leaf, work: Tally, names: Mapping[str, Any]) -> Any:
    """Where the areas of threads' agents begin."""
    room = plan.buffer(work.norms)
    return names["shared"] + room.offset + names[plan.place(leaf.place).agent] * room.owner_bytes


def _wrote(written: Writes, areas: Any, area: int, called: Called) -> None:
    """Keep what is written; threads write to the areas of their agents."""
    who = called.state.who()
    place, value = (called.of_all(number)[who] for number in range(2))
    if ((place < areas[who]) | (place >= areas[who] + area)).any():
        raise VerifyError("a thread writes outside of its agent's area")
    written.append((place, value))


def _check_begun(work: Tally, state: State, real: str) -> None:
    """Registers hold nothing; from here on nothing is 0, as terms are added up."""
    for fold in work.folds:
        for name, nothing in zip(work.names(fold), identities(fold.monoid, real), strict=True):
            base = state.names[name].base
            if (base != evaluated(nothing, {})).any():
                raise VerifyError(f"{name} does not begin with {nothing}")
            base[:] = 0


def _terms(
    work: Tally, names: Mapping[str, Any], content: Any, at: Mapping[str, Any], arrays: Arrays,
    real: str,
) -> list[Any]:  # fmt: skip
    """The terms of elements, as the program has them."""
    found = []
    element = number_of(name_of(work.element.dtype), content)
    inside = at["k"] < size(names, work.extents[1])
    for fold in work.folds:
        known: dict[str, Any] = {"element": element}
        for one in fold.reads:
            last = size(names, work.extents[1]) - 1
            place = {**at, "k": np.minimum(at["k"], last)}
            known[f"{one.name}_term"] = arrays.number(names, one, place)
        for name, along in fold.coordinates:
            known[f"{name}_term"] = coordinate(names, along, at)
        known |= {f"{t}_term": 0 for t in fold.terms if isinstance(t, str)}
        state = run(read("\n".join(statements(fold, real)[0])), known, len(content))
        for term, nothing in zip(fold.terms, identities(fold.monoid, real), strict=True):
            value = (
                state.names[f"{term}_term"]
                if isinstance(term, str)
                else evaluated(literal_of(term, real), {})
            )
            value = np.broadcast_to(value, content.shape)
            if not work.whole(fold):
                value = np.where(inside, value, evaluated(nothing, {}))
            found.append(value)
    return found


def _results(work: Tally, names: Mapping[str, Any], terms: list[Any], real: str) -> dict[str, Any]:
    """Of rows, by the values that elements read."""
    made, known, _ = of_rows(work, real)
    values, first = dict(names), 0
    for fold in work.folds:
        own = [f"fold_{at}" for at in range(len(fold.terms))]
        body, (value,), _ = definition(
            lambda *v, finish=MONOIDS[fold.monoid].finish: (finish(*v),), own, "fold_", real=real
        )
        given = dict(zip(own, terms[first : first + len(own)], strict=True))
        first += len(own)
        state = run(read("\n".join(body)), given, len(terms[0]))
        values[f"{fold.value}_row"] = evaluated(value, state.names, len(terms[0]))
    state = run(read("\n".join(made)), values, len(terms[0]))
    return {
        result: evaluated(known[value], state.names, len(terms[0]))
        for result, value in work.of.results
    }


def _wanted(
    plan: KernelPlan,
    work: Tally,
    name: str,
    number: int,
    values: Any,
    areas: Any,
    names: Mapping[str, Any],
) -> Wanted:
    """A result of every row, in the area of each agent that has the row."""
    each, first = np.unique(areas, return_index=True)  # and a thread of each agent
    begin = np.broadcast_to(names[f"w_{work.role}"], areas.shape)[first] * work.rows
    agent, row = (one.ravel() for one in np.indices((len(each), work.rows)))
    real = plan.program.real
    place = each[agent] + (number * work.rows + row) * real.bytes
    value = values[(each[agent] - SHARED) // APART, begin[agent] + row]
    written = value if real == F64 else as_bits(value)  # a word has a float's bits
    return Wanted(name, place, written, (begin[agent] + row,))
