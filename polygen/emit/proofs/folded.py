"""Folds in the launch that follows, as they are written: parts -> results, and what uses them.

Threads of one block run, of the last results. What a fold has in a thread is what it had, with the
part that is the thread's; what warps give each other is what all of their lanes have, each of its
own; and what is computed of results is so of the numbers of the result's own place in every
argument. Parts lie where `Parts` says: part q of result r is at ``q * results + r``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.element_types import name_of
from polygen.emit.folds import identities
from polygen.emit.leaf.finish_folds import result_variable, settling_lines
from polygen.emit.leaf.table import proof
from polygen.emit.leaves import real_of
from polygen.emit.names import c_name
from polygen.emit.proofs.stored import Wanted, Writes, check_writes, storing
from polygen.emit.proofs.threads import Arrays, evaluated, of_kernel, place_in, size
from polygen.emit.run_text import Called, Handler
from polygen.emit.text_functions import FUNCTIONS, run
from polygen.emit.text_values import SharedArray, mixed, number_of, of_each, token
from polygen.errors import VerifyError
from polygen.frontend.program import Access, Dim, Pointwise
from polygen.lower.follow_work import CombineParts, Held, Meet, Settle, StoreResults, known
from polygen.lower.launch import Parts, workspace_argument
from polygen.lower.plan import KernelPlan, Leaf
from polygen.poly.follow_program import OTHER, PART

KEPT = 1213  # elements of the workspace that rows take, in front of all parts
_SIZE, _APART = 211, 36  # of the first dim, and how much more the next one has
_BEHIND = 5  # lanes that have no part, or no result


@proof("begin_folds", "threads", Meet)
def _(plan: KernelPlan, leaf: Leaf, work: Meet, texts: tuple[str, ...]) -> None:
    done = run(read(texts[-1]), {}, 1).names
    for fold in work.folds:
        for name, nothing in zip(fold.names, nothings(plan, fold.monoid), strict=True):
            if done[name] != nothing:
                raise VerifyError(f"{name} begins with what is not nothing")


@proof("combine_parts", "threads", CombineParts)
def _(plan: KernelPlan, leaf: Leaf, work: CombineParts, texts: tuple[str, ...]) -> None:
    (_, first), *_ = work.folds
    block = _Block(plan, first.results, work.shared)
    sizes = {str(one): size(block.names, one) for one in plan.program.sizes}
    count = math.prod(one.value(sizes) for one in first.counts)
    each = count * block.results
    starts = {
        name: begins(plan, block.names, parts) + at * each
        for fold, parts in work.folds
        for at, name in enumerate(fold.names)
    }
    for part in sorted({0, max(0, count - (_BEHIND if work.shared else 1))}):
        own = part + block.names["lane"] if work.shared else np.full(block.threads, part)
        names = block.names | block.held([fold for fold, _ in work.folds]) | {PART: part}
        arrays = iter(starts.items())  # as they are read

        def load(called: Called, arrays: Iterator[tuple[str, Any]] = arrays) -> Any:
            (name, start), place = next(arrays, ("more", 0)), called.of_all(0)
            if ((place < start) | (place >= start + each)).any():
                raise VerifyError(f"what is read for {name} is no part of it")
            return mixed("part", place)

        by = Combining()
        done = run(read(texts[-1]), names, block.threads, by.handlers() | {"__ldcg": load}).names
        by.check([fold.monoid for fold, _ in work.folds])
        if done[work.count] != count:
            raise VerifyError(f"{work.count} is {done[work.count]}, of {count} parts")
        for name, start in starts.items():
            place = start + own * block.results + block.result
            wanted = names[name] + np.where(own < count, mixed("part", place), 0)
            _check(block, done[name], wanted, f"{name} is not of the lane's own part")


@proof("give_folds", "threads", Meet)
def _(plan: KernelPlan, leaf: Leaf, work: Meet, texts: tuple[str, ...]) -> None:
    block, written = _Block(plan, (), work.shared, work.warps), Writes()
    names = block.names | block.held(work.folds)
    by = Combining()
    handlers = by.handlers() | storing(written, ())
    done = run(read(texts[-1]), names, block.threads, handlers).names
    by.check([fold.monoid for fold in work.folds if work.shared])
    lanes, wanted, there = plan.device.warp_size, [], _there(plan, work)
    for name, given in _given(work):
        if done[given] != there[given]:
            raise VerifyError(f"{given} has {done[given].dims} elements of {done[given].kind}")
        value = names[name]
        if work.shared:
            value = value.reshape(-1, lanes).sum(1)
        number = np.arange(value.size)
        wanted.append(Wanted(given, token(given) + number, value, (number,)))
    check_writes(written, wanted)


@proof("take_folds", "threads", Meet)
def _(plan: KernelPlan, leaf: Leaf, work: Meet, texts: tuple[str, ...]) -> None:
    block = _Block(plan, (), work.shared, work.warps)
    found = block.names | block.held(work.folds) | _there(plan, work)
    for other in range(work.warps):
        by = Combining()
        handlers = by.handlers() | {"load": lambda called: mixed("given", called.of_all(0))}
        found = run(read(texts[-1]), found | {OTHER: other}, block.threads, handlers).names
        by.check([fold.monoid for fold in work.folds if other])
    for name, given in _given(work):
        each = 1 if work.shared else plan.device.warp_size
        own = block.names["lane"] * (not work.shared)
        terms = [mixed("given", token(given) + each * other + own) for other in range(work.warps)]
        _check(block, found[name], sum(terms), f"{name} is not of what all warps have")


@proof("finish_folds", "threads", Settle)
def _(plan: KernelPlan, leaf: Leaf, work: Settle, texts: tuple[str, ...]) -> None:
    block = _Block(plan, work.extents, shared=False)
    names = block.names | block.held(work.folds)
    names |= {known(value): mixed(value, block.result) for value in work.known}
    arrays = Arrays(plan, names)
    handlers = arrays.handlers()
    handlers["load"] = handlers["__ldg"]
    done = run(read(texts[-1]), dict(names), block.threads, handlers).names
    reads, given = dict[tuple[Pointwise, Access], str](), dict[str, Any]()
    for statement, access in work.reads:
        tensor = plan.program.tensors[access.name]
        if tensor.dims:
            reads[statement, access] = name = f"element_{len(given)}"
            places = iter(block.places())
            at = {axis: 0 if one == 1 else next(places) for axis, one in statement.domain}
            stored = arrays.stored(place_in(names, tensor, access.index, at))
            given[name] = number_of(name_of(tensor.dtype), stored)
    left = [*map(known, (name for name, _ in work.lasting)), *map(result_variable, work.outputs)]
    lines, _ = settling_lines(plan, work, reads)
    declared = [f"{real_of(plan)} {name};" for name in left]
    wanted = run(read("\n".join([*declared, *lines])), names | given, block.threads).names
    for name in left:
        _check(block, done[name], wanted[name], f"{name} is not of its own numbers")


@proof("store_results", "threads", StoreResults)
def _(plan: KernelPlan, leaf: Leaf, work: StoreResults, texts: tuple[str, ...]) -> None:
    block, written = _Block(plan, work.extents, work.shared), Writes()
    values = {one: mixed(one, np.arange(block.threads)) for one in work.outputs}
    names = block.names | {result_variable(name): value for name, value in values.items()}
    run(read(texts[-1]), names, block.threads, storing(written, ()))
    wanted = []
    who = block.names["lane"] == 0 if work.shared else block.inside
    for name in work.outputs:
        tensor, at = plan.program.tensors[name], iter(block.places())
        index = [0 if dim == 1 else next(at) for dim in tensor.dims]
        place = of_each(place_in(names, tensor, index, {}), block.threads)[who]
        value = mixed(f"to_{name_of(tensor.dtype)}", values[name])[who]
        wanted.append(Wanted(name, place, value, (np.flatnonzero(who),)))
    check_writes(written, wanted)


def nothings(plan: KernelPlan, monoid: str) -> list[Any]:
    """The components of nothing."""
    return [evaluated(one, {}) for one in identities(monoid, real_of(plan))]


class Combining:
    """Which functions combine terms, one after the other: what they do is a sum to the proofs."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def handlers(self) -> dict[str, Handler]:
        """What all of them do."""

        def combine(called: Called) -> None:
            self.names.append(called.name)
            FUNCTIONS["combine_"](called)

        return {"combine_": combine}

    def check(self, monoids: Sequence[str]) -> None:
        """Those of some folds have been called, and no others; each as often as it has terms.

        Raises:
            VerifyError: others have, or in another order.
        """
        found, wanted = ([key for key, _ in groupby(one)] for one in (self.names, monoids))
        if found != [f"combine_{monoid}" for monoid in wanted]:
            raise VerifyError(f"terms of {', '.join(wanted)} are combined by {', '.join(found)}")


def begins(plan: KernelPlan, names: Mapping[str, Any], parts: Parts) -> Any:
    """Where parts begin in the workspace: behind rows that are kept, and the parts before them."""
    after = plan.following
    assert after is not None
    sizes = {str(one): size(names, one) for one in plan.program.sizes}
    before = sum(one.elements(sizes) for one in after.parts[: after.parts.index(parts)])
    before += KEPT if after.kept else 0
    return names[c_name(workspace_argument(plan.program))] + before


def _given(work: Meet) -> list[tuple[str, str]]:
    """Registers of components, each with where warps give each other what they have."""
    return [pair for fold in work.folds for pair in zip(fold.names, fold.given, strict=True)]


def _there(plan: KernelPlan, work: Meet) -> dict[str, SharedArray]:
    """What warps give each other: a number of each, or one of each of their lanes."""
    dims = (work.warps,) if work.shared else (work.warps, plan.device.warp_size)
    kind = f"__shared__ {real_of(plan)}"
    return {given: SharedArray(token(given), dims, kind) for _, given in _given(work)}


class _Block:
    """Some warps of a block, of the last results: what they know, and which result is whose."""

    def __init__(
        self, plan: KernelPlan, extents: Sequence[Dim], shared: bool, warps: int = 1
    ) -> None:
        lanes = plan.device.warp_size
        ends = {name: _SIZE + _APART * at for at, name in enumerate(plan.program.sizes)}
        self.threads, names = warps * lanes, of_kernel(plan, ends)
        thread = np.arange(self.threads)
        names |= {"lane": thread % lanes, "warp": thread // lanes, "kept_end": KEPT}
        self.extents = [size(names, extent) for extent in extents]
        self.results = math.prod(self.extents)
        # With a result for every lane those of the last lanes are behind the last one.
        first = self.results - 1 if shared else max(0, self.results - lanes + _BEHIND)
        number = np.full(self.threads, first) if shared else first + names["lane"]
        self.inside, self.result = number < self.results, np.minimum(number, self.results - 1)
        self.names = names | {
            "fold_result": first if shared else number,
            "fold_results": self.results,
        }

    def held(self, folds: Sequence[Held]) -> dict[str, Any]:
        """What every thread has of folds."""
        names = [name for fold in folds for name in fold.names]
        return {name: mixed(name, np.arange(self.threads)) for name in names}

    def places(self) -> list[Any]:
        """Where results are along their axes, the last one counting fastest."""
        found, number = [], self.result
        for extent in reversed(self.extents):
            number, at = np.divmod(number, extent)
            found.append(at)
        return [at for at, extent in zip(found[::-1], self.extents, strict=True) if extent != 1]


def _check(block: _Block, found: Any, wanted: Any, what: str) -> None:
    wrong = of_each(found, block.threads) != wanted
    if wrong.any():
        raise VerifyError(f"{what}, in thread {int(np.flatnonzero(wrong)[0])}")
