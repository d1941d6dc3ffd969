"""Walks over rows, as they are written: every element is stored once, or is a term once.

Lanes of some visits run, the first and the last ones among them, of the last row of every array.
What an element is computed with are numbers of its own place in every array; results go to their
own places, each part of an output that is put together to its own; and what a lane has of a fold is
what it had, with the terms of its own elements. An element's numbers are computed by the lines that
its statement is written as, on its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.ctext import PointwiseWriter
from polygen.emit.element_types import name_of
from polygen.emit.folds import short_beside_folds
from polygen.emit.leaf.finish_folds import computed
from polygen.emit.leaf.table import proof
from polygen.emit.leaf.walk_row import register_of, terms_of
from polygen.emit.leaves import c_type, real_of
from polygen.emit.names import c_name
from polygen.emit.proofs.stored import Wanted, Writes, check_writes
from polygen.emit.proofs.threads import Arrays, lay_out, of_kernel, place_in, size
from polygen.emit.run_text import Called, Handler
from polygen.emit.text_functions import run
from polygen.emit.text_values import Part, Pointer, Register, held, mixed, number_of, of_each, token
from polygen.errors import VerifyError
from polygen.frontend.closure import needed
from polygen.frontend.program import Access, Dim, Fold, Pointwise, Tensor
from polygen.lower.folds import split_of
from polygen.lower.follow_work import Held, HoldRow, Walk, known
from polygen.lower.launch import KeptRows
from polygen.lower.plan import KernelPlan, Leaf
from polygen.poly.follow_program import ELEMENT, ELEMENTS, WARP, WORD
from polygen.poly.whole_rows import Rows, iterator

_KEPT = 1 << 60  # where matrices of the workspace begin
_LONG = 423  # elements of a row, so that its last visit ends inside, and its last word before it
_FEW = 3  # visits at either end of a row that run


@proof("walk_row", "threads", Walk)
def _(plan: KernelPlan, leaf: Leaf, work: Walk, texts: tuple[str, ...]) -> None:
    row = _Row(plan, work.rows, work.wide, work.held)
    row.names |= {known(value): token(f"known {value}") for value in work.known}
    names = dict(row.names)
    every = [name for one in work.folds for name in Held(one.write.name, one.function).names]
    names |= {name: mixed(name, np.arange(row.threads)) for name in every}
    written: Writes = []
    done = run(read(texts[-1]), names, row.threads, row.handlers(written)).names
    pointwise = [one for one in work.rows.statements if isinstance(one, Pointwise)]
    for fold in work.folds:
        terms = row.terms(work, fold, pointwise)
        for name, term in zip(Held(fold.write.name, fold.function).names, terms, strict=True):
            if (done[name] != names[name] + term).any():
                raise VerifyError(f"{name} is not of the terms of each lane's own elements")
    outputs = [] if work.folds else [s for s in pointwise if s.write.name in work.rows.outputs]
    check_writes(written, [row.result(work, one, pointwise) for one in outputs])


@proof("hold_row", "threads", HoldRow)
def _(plan: KernelPlan, leaf: Leaf, work: HoldRow, texts: tuple[str, ...]) -> None:
    row = _Row(plan, work.rows, work.wide, work)
    empty = {
        name: Register(np.zeros_like(one.base), 0, one.dims, one.kind)
        for name, one in row.words(work).items()
    }
    done = run(read(texts[-1]), row.names | empty, row.threads, row.handlers([])).names
    for name, wanted in row.words(work).items():
        if row.differ(done[name].base, wanted.base):
            raise VerifyError(f"{name} is not of each lane's own elements")


class _Row:
    """Lanes of some visits of one row, what they know by name, and the arrays that they read."""

    def __init__(self, plan: KernelPlan, rows: Rows, wide: int, held_row: HoldRow | None) -> None:
        self.plan, self.rows, self.wide = plan, rows, wide
        ends = {str(rows.axes[axis]): _LONG for axis in rows.inner}
        names, lanes = of_kernel(plan, ends), plan.device.warp_size
        self.tensors = dict(plan.program.tensors)
        self.kept = {one.value: one for one in split_of(plan).kept}
        rooms = plan.following.kept if plan.following is not None else ()
        padded = [_padded(names, one.tensor, rooms) for one in self.kept.values()]
        lay_out(names, padded, _KEPT)
        self.tensors |= {one.name: one for one in padded}
        extents = [size(names, extent) for extent in rows.axes]
        own = {
            iterator(axis): extent - 1
            for axis, extent in enumerate(extents)
            if axis not in rows.inner
        }
        self.inner = {iterator(axis): extents[axis] for axis in rows.inner}
        self.count = math.prod(self.inner.values())
        visits = -(-self.count // (lanes * wide))
        if held_row is not None:
            visits = min(visits, held_row.words * held_row.warps)
        visited = {*range(min(_FEW, visits)), *range(max(0, visits - _FEW), visits)}
        number = np.repeat(sorted(visited), lanes)
        lane, warps = np.tile(np.arange(lanes), len(visited)), held_row.warps if held_row else 1
        self.threads, self.first = len(lane), (number * lanes + lane) * wide
        names |= own | {"lane": lane, ELEMENTS: self.count, ELEMENT: number * lanes * wide}
        names |= {WARP: number % warps, WORD: number // warps}
        self.own, self.names = own, names
        self.arrays = Arrays(plan, names, *padded)
        if held_row is not None:
            names |= self.words(held_row)

    # --- where elements are ----------------------------------------------------------------------
    @property
    def elements(self) -> Any:
        """The numbers of all elements that lanes have: lanes by elements beside each other."""
        return self.first[:, None] + np.arange(self.wide)

    def inside(self) -> Any:
        """Which of them are in the row."""
        return self.elements < self.count

    def places(self, element: Any) -> dict[str, Any]:
        """Where elements of the row are along its axes, the last one counting fastest."""
        found = dict(self.own)
        for name, extent in reversed(self.inner.items()):
            element, found[name] = np.divmod(element, extent)
        return found

    def address(self, access: Access, at: Mapping[str, Any]) -> Any:
        """Where an array has an element."""
        return place_in(self.names, self.tensors[access.name], access.index, at)

    # --- what is read and written ----------------------------------------------------------------
    def handlers(self, written: Writes) -> dict[str, Handler]:
        """What functions do that read and write memory."""

        def load(called: Called) -> Any:
            pointer = called.arguments[0].pointer
            _, tensor = self.arrays.of(called.arguments[0].value, called.state.who())
            count = pointer.bytes // tensor.dtype.bytes if isinstance(pointer, Pointer) else 1
            found = [held(tensor.dtype, one) for one in self.arrays.read(called, count)]
            return Part(dict(enumerate(found))) if isinstance(pointer, Pointer) else found[0]

        def store(called: Called) -> None:
            who, place, value = called.state.who(), called.of_all(0), called.arguments[1].value
            values = [value]
            if isinstance(value, Register):
                values = [value.base[value.at + at] for at in range(*value.dims)]
            for at, one in enumerate(values):
                written.append(((place + at)[who], of_each(one, self.threads)[who]))

        return {"load": load, "__ldg": load, "store": store}

    def words(self, work: HoldRow) -> dict[str, Register]:
        """What lanes hold of a row, each in the word of its visit."""
        accesses = [
            (register_of(value), Access(self.kept[value].tensor.name, self.kept[value].index))
            for value in work.values
        ]
        accesses += [(register_of(f"read{n}"), access) for n, access in enumerate(work.reads)]
        found, lane = {}, np.arange(self.threads)
        for name, access in accesses:
            tensor = self.tensors[access.name]
            base = np.zeros((work.words * self.wide, self.threads), np.int64)
            for beside in range(self.wide):
                element = np.minimum(self.elements[:, beside], self.count - 1)
                place = self.address(access, self.places(element))
                value = held(tensor.dtype, self.arrays.stored_in(tensor, place))
                base[self.names[WORD] * self.wide + beside, lane] = value
            dims = (work.words, self.wide)
            found[name] = Register(base, 0, dims, f"WordOf<{c_type(tensor.dtype)}, {self.wide}>")
        return found

    def differ(self, one: Any, other: Any) -> bool:
        """Whether lanes hold other elements of the row in the word of their visit."""
        lane, word = np.arange(self.threads), self.names[WORD] * self.wide
        return any(
            (one[word + at, lane] != other[word + at, lane])[self.inside()[:, at]].any()
            for at in range(self.wide)
        )

    # --- what is computed ------------------------------------------------------------------------
    def result(self, work: Walk, one: Pointwise, pointwise: Sequence[Pointwise]) -> Wanted:
        """What a statement puts where, of the elements that lanes have."""
        element = self.elements[self.inside()]
        at = self.places(element)
        others = [s for s in pointwise if s is one or s.write.name not in self.rows.outputs]
        made, _ = self._computed(work, others, [one.write.name], at, len(element), one.write.name)
        kind = self.tensors[one.write.name].dtype
        value = of_each(mixed(f"to_{name_of(kind)}", made), len(element))
        place = of_each(self.address(one.write, at), len(element))
        return Wanted(one.write.name, place, value, (element,))

    def terms(self, work: Walk, fold: Fold, pointwise: Sequence[Pointwise]) -> list[Any]:
        """What each lane adds to the components of a fold: of all that it has, together."""
        element = self.elements[self.inside()]
        lane = np.broadcast_to(np.arange(self.threads)[:, None], self.elements.shape)[self.inside()]
        wanted = [access.name for access in fold.reads]
        at = self.places(element)
        _, known_there = self._computed(work, pointwise, wanted, at, len(element), "", fold)
        found = []
        for term in known_there:
            total = np.zeros(self.threads, np.int64)
            np.add.at(total, lane, of_each(mixed("rounded", term), len(element)))
            found.append(total)
        return found

    def _computed(
        self,
        work: Walk,
        pointwise: Sequence[Pointwise],
        wanted: Sequence[str],
        at: Mapping[str, Any],
        count: int,
        output: str,
        fold: Fold | None = None,
    ) -> tuple[Any, list[Any]]:
        """What statements make of elements: a result, and the terms of a fold."""
        named = {value: known(value) for value in work.known}
        statements = needed(pointwise, wanted, set(named))
        made = [t for t in self.plan.program.inputs if t.name in self.rows.outputs]
        every = needed(
            pointwise, [a.name for f in work.folds for a in f.reads] or [output], set(named)
        )
        fast = short_beside_folds(self.plan, every, bool(work.folds), made)
        real, names, reads = real_of(self.plan), dict(self.names) | dict(at), dict[Access, str]()
        accesses = [a for s in statements for a in s.reads]
        for access in (*accesses, *(fold.reads if fold else ())):
            tensor = self.tensors.get(access.name)
            if access.name in self.kept and access.name not in named:
                kept = self.kept[access.name]
                own = self.address(Access(kept.tensor.name, kept.index), at)
                tensor = self.tensors[kept.tensor.name]
                names[access.name] = number_of(
                    name_of(tensor.dtype), self.arrays.stored_in(tensor, own)
                )
                named[access.name] = access.name
            elif tensor is not None and access not in reads and tensor.dims:
                reads[access] = f"read_{len(reads)}"
                stored = self.arrays.stored_in(tensor, self.address(access, at))
                names[reads[access]] = number_of(name_of(tensor.dtype), stored)
            elif tensor is not None and not tensor.dims:
                reads[access] = c_name(tensor.name)
        results = {output: "made"} if output else {}
        writer = PointwiseWriter(named, results, fast=fast, prefix=f"w{work.number}_", real=real)
        for one in statements:
            writer.statement(computed(one, writer, reads))
        lines = [f"{real} made;", *writer.lines]
        if fold is not None:
            terms = terms_of(fold, writer, reads)
            lines += [f"const {real} term_{n} = {term};" for n, term in enumerate(terms)]
        done = run(read("\n".join(lines)), names, count).names
        return done["made"], [done[f"term_{n}"] for n in range(len(fold.args) if fold else 0)]


def _padded(names: Mapping[str, Any], tensor: Tensor, kept: Sequence[KeptRows]) -> Tensor:
    """A matrix of the workspace, whose rows are whole words."""
    sizes: list[Dim] = [size(names, extent) for extent in tensor.dims]
    multiple = next(one.multiple for one in kept if one.name == tensor.name)
    if sizes:
        sizes[-1] = -(-int(sizes[-1]) // multiple) * multiple
    return replace(tensor, dims=tuple(sizes))
