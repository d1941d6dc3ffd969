"""Parts of folds, as they are written: what the lanes of a warp have of a place becomes one number.

A place is a row or a column of results, or all of a warp's tile; which of them a lane's elements
are at, the instruction's fragment says. Registers of a lane that are of one place are added up, and
those of all lanes of its warp: this is stored once, where `Parts` says that the warp's part of the
place's result lies; or it is known, in all of them, or given to the agents that share rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.ctext import definition
from polygen.emit.leaf.table import proof
from polygen.emit.leaves import real_of
from polygen.emit.proofs.blocks import blocks
from polygen.emit.proofs.elements import Block
from polygen.emit.proofs.folded import KEPT, Combining, begins, nothings
from polygen.emit.proofs.stored import Wanted, Writes, check_writes, storing
from polygen.emit.proofs.threads import evaluated, size
from polygen.emit.run_text import Called
from polygen.emit.text_functions import run
from polygen.emit.text_values import Register, as_float, mixed
from polygen.errors import VerifyError
from polygen.frontend.monoids import MONOIDS
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Exchange, Folding, FoldPart, Meeting


@proof("unfold", "threads", Folding)
def _(plan: KernelPlan, leaf: Leaf, work: Folding, texts: tuple[str, ...]) -> None:
    done = run(read(texts[-1]), {}, 1).names
    for part in work.epilogue.folds:
        shape = (part.atoms, len(part.offsets), part.registers)
        for name, nothing in zip(part.names, nothings(plan, part.monoid), strict=True):
            if done[name].dims != shape or (done[name].base != nothing).any():
                raise VerifyError(f"{name} begins with what is not nothing")


@proof("fold", "threads", Folding)
def _(plan: KernelPlan, leaf: Leaf, work: Folding, texts: tuple[str, ...]) -> None:
    of, written = _Parts(plan, leaf, work), Writes()
    by = Combining()
    run(read(texts[-1]), of.names, of.block.threads, by.handlers() | storing(written, ()))
    by.check(of.combined())
    check_writes(written, [one for part in work.epilogue.folds for one in of.stored(part)])


@proof("meet", "threads", Meeting)
def _(plan: KernelPlan, leaf: Leaf, work: Meeting, texts: tuple[str, ...]) -> None:
    of, by = _Parts(plan, leaf, work), Combining()
    done = run(read(texts[-1]), of.names, of.block.threads, by.handlers()).names
    by.check(of.combined())
    for part in work.epilogue.folds:
        of.check_known(part, done, [of.met(part, at) for at in range(len(part.names))])


@proof("give", "threads", Meeting)
def _(plan: KernelPlan, leaf: Leaf, work: Meeting, texts: tuple[str, ...]) -> None:
    of, written = _Parts(plan, leaf, work), Writes()

    def write(called: Called) -> None:
        who, place, value = called.state.who(), called.of_all(0), called.of_all(1)
        written.append((place[who], value[who]))

    by = Combining()
    handlers = by.handlers() | {"write_word": write, "write_double": write}
    run(read(texts[-1]), of.names, of.block.threads, handlers)
    by.check(of.combined())
    area, wanted = of.area(work.given, of.block.names[plan.place(leaf.place).agent]), []
    for part, number, row in of.rows():
        value = of.met(part, number).reshape(row.shape)
        row, place = of.warp_rows(row), of.number(work, part, number)
        place = area + (place * plan.tiles.warp[0] + row) * plan.program.real.bytes
        own = of.once(place.ravel(), np.ones_like(place, bool))
        if real_of(plan) != "double":  # a word that has its bits
            value = as_float(value)
        index = (row.ravel()[own],)
        wanted.append(Wanted(part.value, place.ravel()[own], value.ravel()[own], index))
    check_writes(written, wanted)


@proof("take", "threads", Meeting)
def _(plan: KernelPlan, leaf: Leaf, work: Meeting, texts: tuple[str, ...]) -> None:
    of, count = _Parts(plan, leaf, work), work.epilogue.sharing
    agent = of.block.names[plan.place(leaf.place).agent] // count * count
    of.check_taken(texts[-1], work, [of.area(work.given, agent + one) for one in range(count)])


@proof("take_sent", "threads", Exchange)
def _(plan: KernelPlan, leaf: Leaf, work: Exchange, texts: tuple[str, ...]) -> None:
    of, buffer = _Parts(plan, leaf, work), plan.buffer(work.given)
    first = of.area(work.given, of.block.names["group"])
    first = first + of.block.names[f"{work.counter}.slot"] * buffer.slot_bytes
    areas = [first + one * work.part_bytes for one in range(work.cluster[1])]
    of.check_taken(texts[-1], work, areas)


class _Parts:
    """Threads that have folded elements, what they have of each place, and where the places are."""

    def __init__(self, plan: KernelPlan, leaf: Leaf, work: Folding | Meeting | Exchange) -> None:
        self.plan, self.epilogue = plan, work.epilogue
        self.block: Block = blocks(plan, leaf.place, self.epilogue)
        threads, self.registers = np.arange(self.block.threads), dict[str, Any]()
        for part in self.epilogue.folds:
            shape = (part.atoms, len(part.offsets), part.registers)
            number = np.arange(math.prod(shape))[:, None]
            for name in part.names:
                self.registers[name] = Register(mixed(name, number, threads), 0, shape)
        self.names = self.block.names | self.registers | {"kept_end": KEPT}
        self.warp = threads // plan.device.warp_size

    def combined(self) -> list[str]:
        """The monoids of folds of which lanes have several terms, or meet others."""
        return [
            part.monoid
            for part in self.epilogue.folds
            if part.masks or (part.registers > 1 and part not in self.epilogue.at_once)
        ]

    def places(self, part: FoldPart) -> Any:
        """Rows, or columns, of the places of threads: instructions by places by threads."""
        found = np.zeros((part.atoms, len(part.offsets), self.block.threads), np.int64)
        if part.along:
            side = "mn".index(part.along)
            for atom in range(part.atoms):
                at = self.block.places(*((atom, 0) if side == 0 else (0, atom)))[side]
                for element, slot in enumerate(part.slots):
                    found[atom, slot] = at[:, element]
        return found

    def met(self, part: FoldPart, component: int) -> Any:
        """What all lanes of a thread's warp have of each of its places."""
        held = self.registers[part.names[component]]
        every = held.base.reshape(*held.dims, -1)
        own = every[:, :, 0] if part in self.epilogue.at_once else every.sum(axis=2)
        key = np.stack(np.broadcast_arrays(self.places(part), self.warp), axis=-1)
        _, which = np.unique(key.reshape(-1, 2), axis=0, return_inverse=True)
        total = np.zeros(which.max() + 1, np.int64)
        np.add.at(total, which.ravel(), own.ravel())
        return total[which.ravel()].reshape(own.shape)

    def once(self, place: Any, inside: Any) -> Any:
        """Of places that lanes of a warp have, some of them, the first lane's of each."""
        warp = np.broadcast_to(self.warp, inside.shape)[inside]
        _, found = np.unique(np.stack([place, warp]), axis=1, return_index=True)
        return found

    def stored(self, part: FoldPart) -> list[Wanted]:
        """What has to be stored of a part: of each of a warp's places inside, once."""
        plan, block, place = self.plan, self.block, self.places(part)
        ends = dict(zip("mn", block.ends, strict=True))
        result: Any = 0
        for dim, extent in zip(part.kept, part.parts.results, strict=True):
            own = place if dim == part.along else block.names[dim]
            result = result * size(block.names, extent) + own
        sizes = {str(one): size(block.names, one) for one in plan.program.sizes}
        number: Any = 0
        for count, text in zip(part.parts.counts, part.part, strict=True):
            number = number * count.value(sizes) + evaluated(text, block.names, block.threads)
        every = math.prod(size(block.names, one) for one in part.parts.results)
        each = part.parts.elements(sizes) // part.parts.components
        inside = place < ends[part.along] if part.along else np.ones_like(place, bool)
        found = []
        for component in range(len(part.names)):
            first = begins(plan, block.names, part.parts) + component * each
            at = np.broadcast_to(first + number * every + result, place.shape)[inside]
            own = self.once(at, inside)
            value, index = self.met(part, component)[inside][own], (place[inside][own],)
            found.append(Wanted(part.names[component], at[own], value, index))
        return found

    def check_known(self, part: FoldPart, done: Mapping[str, Any], terms: Sequence[Any]) -> None:
        """Results of a thread's rows are what their components make.

        Raises:
            VerifyError: they are not.
        """
        names = [f"fold_{at}" for at in range(len(terms))]
        finish, real = MONOIDS[part.monoid].finish, real_of(self.plan)
        lines, (value,), _ = definition(lambda *v: (finish(*v),), names, "fold_", real=real)
        known = done[part.known]
        if known.dims != (part.atoms, len(part.offsets)):
            raise VerifyError(f"{part.known} has {known.dims} results")
        given = {name: one.ravel() for name, one in zip(names, terms, strict=True)}
        text = "\n".join([*lines, f"const {real} made = {value};"])
        wanted = run(read(text), given, terms[0].size).names["made"]
        if not np.array_equal(known.base.ravel(), np.broadcast_to(wanted, terms[0].size)):
            raise VerifyError(f"{part.known} is not of all that lanes have of a row")

    # --- rows that several agents have -----------------------------------------------------------
    def area(self, name: str, agent: Any) -> Any:
        """Where an agent's rows are in shared memory."""
        buffer = self.plan.buffer(name)
        return self.block.names["shared"] + buffer.offset + agent * buffer.owner_bytes

    def rows(self) -> list[tuple[FoldPart, int, Any]]:
        """The components of all folds, each with the rows of threads."""
        folds = self.epilogue.folds
        return [(part, at, self.places(part)) for part in folds for at in range(len(part.names))]

    def warp_rows(self, row: Any) -> Any:
        """Rows, from an agent's first one."""
        return row - self.block.corner()[0]

    @staticmethod
    def number(work: Meeting | Exchange, part: FoldPart, component: int) -> int:
        """Behind how many components of others one lies."""
        folds = work.epilogue.folds
        return sum(len(one.names) for one in folds[: folds.index(part)]) + component

    def check_taken(self, text: str, work: Meeting | Exchange, areas: Sequence[Any]) -> None:
        """Results of rows are of what lies in all of some areas.

        Raises:
            VerifyError: they are not.
        """

        def there(called: Called) -> Any:
            return mixed("given", called.of_all(0))

        by = Combining()
        handlers = by.handlers() | {"read_sum": there, "read_double": there}
        done = run(read(text), self.block.names, self.block.threads, handlers).names
        by.check([part.monoid for part in work.epilogue.folds if len(areas) > 1])
        width, depth = self.plan.program.real.bytes, self.plan.tiles.warp[0]
        for part in work.epilogue.folds:
            row, terms = self.warp_rows(self.places(part)), []
            for component in range(len(part.names)):
                place = (self.number(work, part, component) * depth + row) * width
                terms.append(sum(mixed("given", area + place) for area in areas))
            self.check_known(part, done, terms)
