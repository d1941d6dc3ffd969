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
from polygen.emit.element_types import name_of
from polygen.emit.folds import identities
from polygen.emit.functions import literal
from polygen.emit.leaf.table import proof
from polygen.emit.leaf.tally import of_rows, statements
from polygen.emit.proofs.threads import (
    SHARED,
    Arrays,
    Memory,
    evaluated,
    of_kernel,
    of_place,
    size,
)
from polygen.emit.run_text import Called, State
from polygen.emit.text_functions import run
from polygen.emit.text_values import number_of
from polygen.errors import VerifyError
from polygen.frontend.monoids import MONOIDS
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.tallies import stored_at
from polygen.lower.tally import Tally

_SLOT = 1  # of the ring


@proof("share", "threads", Tally, "begin", "tally")
def _(plan: KernelPlan, leaf: Leaf, work: Tally, texts: tuple[str, ...]) -> None:
    axis, where = "mn".index(work.role), f"{plan.entry}: {leaf.statement}"
    rows, depth = plan.tiles.cta[axis], plan.tiles.cta[2]
    first = (axis + 1) * plan.tiles.cta[axis]  # of the block's tile
    ring, each = plan.buffer(work.buffer), work.element.dtype.bytes
    ends = (first + rows - 3, (2 * ring.slots - 1) * depth + 3)
    names = of_kernel(plan, dict(zip(map(str, work.extents), ends, strict=True)))
    own, threads = of_place(plan, leaf.place)
    k_tiles = (0, (size(names, work.extents[1]) - 1) // depth)
    row, k = (one.ravel() for one in np.indices((rows, depth)))
    stored = (row, k * each) if work.k_inner else (k, row * each)
    for part in range(-(-(2 * rows * depth).bit_length() // (8 * each))):
        written: dict[int, tuple[int, int]] = {}
        arrays = Arrays(plan, names)
        state = run(read(texts[0]), names | own, threads)
        _check_begun(work, state, where)
        terms = [np.zeros(rows, np.int64) for fold in work.folds for _ in fold.terms]
        for number, tile in enumerate(k_tiles):
            slot = min(_SLOT, ring.slots - 1) if work.counter else tile % ring.slots
            memory = Memory(ring.end)
            content = (number * rows * depth + row * depth + k) >> 8 * each * part
            content &= (1 << 8 * each) - 1
            place = stored_at(_layout(ring.layout))(*stored)
            memory.put(ring.offset + slot * ring.slot_bytes + place, content, each)
            known = state.names | {"k": tile, f"{work.counter}.slot": slot}
            state = run(read(texts[1]), known, threads, memory.handlers() | arrays.handlers())
            at = {
                "k": k + tile * depth,
                work.role: np.minimum(first + row, size(names, work.extents[0]) - 1),
            }
            made = _terms(work, names, content, at, arrays)
            for one, values in zip(terms, made, strict=True):
                one += values.reshape(rows, depth).sum(axis=1)
        run(read(texts[2]), state.names, threads, {"write_word": partial(_wrote, written)})
        _check_written(plan, leaf, work, _results(work, names, terms), written, own, where)


def _layout(layout: Any) -> Any:
    assert layout is not None
    return layout


def _wrote(written: dict[int, tuple[int, int]], called: Called) -> None:
    """Keep what is written, and which thread writes it."""
    who = np.flatnonzero(called.state.who())
    places, values = (called.of_all(number)[who].tolist() for number in range(2))
    for at, value, thread in zip(places, values, who.tolist(), strict=True):
        if at in written:
            raise VerifyError(f"two results go to {at - SHARED}", where="emit")
        written[at] = (value, thread)


def _check_begun(work: Tally, state: State, where: str) -> None:
    """Registers hold nothing; from here on nothing is 0, as terms are added up."""
    for fold in work.folds:
        for name, nothing in zip(work.names(fold), identities(fold.monoid), strict=True):
            base = state.names[name].base
            if (base != evaluated(nothing, {})).any():
                raise VerifyError(f"{name} does not begin with {nothing}", where=where)
            base[:] = 0


def _terms(
    work: Tally, names: Mapping[str, Any], content: Any, at: Mapping[str, Any], arrays: Arrays
) -> list[Any]:
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
            known[f"{name}_term"] = along.at(at)
        known |= {f"{t}_term": 0 for t in fold.terms if isinstance(t, str)}
        state = run(read("\n".join(statements(fold)[0])), known, len(content))
        for term, nothing in zip(fold.terms, identities(fold.monoid), strict=True):
            value = (
                state.names[f"{term}_term"]
                if isinstance(term, str)
                else evaluated(literal(term), {})
            )
            value = np.broadcast_to(value, content.shape)
            if not work.whole(fold):
                value = np.where(inside, value, evaluated(nothing, {}))
            found.append(value)
    return found


def _results(work: Tally, names: Mapping[str, Any], terms: list[Any]) -> dict[str, Any]:
    """Of rows, by the values that elements read."""
    made, known, _ = of_rows(work)
    values, first = dict(names), 0
    for fold in work.folds:
        own = [f"fold_{at}" for at in range(len(fold.terms))]
        body, (value,), _ = definition(
            lambda *v, finish=MONOIDS[fold.monoid].finish: (finish(*v),), own, "fold_"
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


def _check_written(
    plan: KernelPlan, leaf: Leaf, work: Tally, wanted: Mapping[str, Any],
    written: Mapping[int, tuple[int, int]], own: Mapping[str, Any], where: str,
) -> None:  # fmt: skip
    """Every row's results lie in the area of each agent that has it, and nothing else does."""
    room, agent = plan.buffer(work.norms), own[plan.place(leaf.place).agent]
    part = np.broadcast_to(own[f"w_{work.role}"], agent.shape)
    found = 0
    for number, (_, values) in enumerate(wanted.items()):
        for which in np.unique(agent).tolist():
            begin = int(part[agent == which][0]) * work.rows
            for row in range(work.rows):
                at = (
                    SHARED + room.offset + which * room.owner_bytes + (number * work.rows + row) * 4
                )
                value, thread = written.get(at, (None, -1))
                if value != int(values[begin + row]) or agent[thread] != which:
                    raise VerifyError(
                        f"row {row} of agent {which} has no result of its own terms",
                        where=where,
                    )
                found += 1
    if found != len(written):
        raise VerifyError(f"{len(written)} results are written of {found}", where=where)
