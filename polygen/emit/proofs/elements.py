"""What is made of sums, element by element: which numbers are computed with, and where results go.

The fused statements are a function of an element's numbers, of which nothing is known but that
(`compute`); texts are proved to call it with the numbers of one element, the program's, and to put
what it makes to that element's place.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polygen.emit.doubles import literal_of
from polygen.emit.fold_terms import COLUMN, is_column
from polygen.emit.leaf.elements import epilogue_type, outcomes
from polygen.emit.leaves import real_of
from polygen.emit.proofs.stored import WIDTHS, Wanted, Writes, check_writes, keep, storing
from polygen.emit.proofs.threads import (
    Arrays,
    address,
    coordinate,
    evaluated,
)
from polygen.emit.run_text import Called, Handler, load
from polygen.emit.text_values import Register, as_float, mixed, number_of, of_each
from polygen.errors import VerifyError
from polygen.frontend.dtypes import F16, NAMED, S32
from polygen.lower.accesses import ROWS_OF_GROUP
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import Epilogue, FoldPart
from polygen.lower.tally import Tally
from polygen.poly.pointwise import Pointwork
from polygen.poly.tiling import share_of


@dataclass(slots=True)
class Block:
    """A block's tile of results, and the threads that finish it.

    Attributes:
        plan: the kernel.
        epilogue: what is finished.
        work: the same as the program says it.
        names: what threads know.
        threads: how many, in all calls of a leaf and in all blocks.
        arrays: in global memory.
        calls: how many in the block whose tile ends outside, and threads of each.
        stored: addresses, and what is stored there.
        shared: the same of shared memory.
        states: of a chain: sums that are states of rows, and the registers that hold them.
        elements: rows and columns of the threads' elements of the first instruction.
    """

    plan: KernelPlan
    epilogue: Epilogue
    work: Pointwork
    names: dict[str, Any]
    threads: int
    arrays: Arrays
    calls: tuple[int, int]
    stored: Writes = field(default_factory=list)
    shared: Writes = field(default_factory=list)
    states: Mapping[str, str] = field(default_factory=dict)
    elements: list[Any] = field(default_factory=list)

    @property
    def ends(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        extents = dict(self.plan.extents)
        grouped = self.plan.match.groups
        rows = self.names[ROWS_OF_GROUP] if grouped else self.arrays.size(extents["m"])
        return rows, self.arrays.size(extents["n"])

    # --- where elements are ----------------------------------------------------------------------
    def places(self, m: Any, n: Any) -> tuple[Any, Any]:
        """Rows and columns of a thread's elements of an instruction: threads by elements."""
        atom = self.plan.atom
        if not self.elements:
            table = atom.c.table[self.names["thread"] % atom.lanes]
            self.elements += [
                at[:, None] + table[..., side] for side, at in enumerate(self.corner())
            ]
        m, n = (np.reshape(one, (-1, 1)) for one in (m, n))
        return self.elements[0] + m * atom.m, self.elements[1] + n * atom.n

    def corner(self) -> tuple[Any, Any]:
        """The first row and column of the tiles of threads' agents."""
        tiles, names = self.plan.tiles, self.names
        row, column = (
            np.broadcast_to(names[f"b_{role}"] * cta + names[f"w_{role}"] * warp, (self.threads,))
            for role, cta, warp in zip("mn", tiles.cta[:2], tiles.warp, strict=True)
        )
        return row, column + (names[share_of(tiles)] * tiles.share if tiles.split > 1 else 0)

    def sum(self, number: int, row: Any, column: Any) -> Any:
        """The number that is an element of the sums of a product, or a row's state."""
        if self.epilogue.sums[number][1] in self.states:
            return mixed(f"state {number}", row)
        if self.epilogue.streamed:  # of zeros
            return np.full(np.shape(row), evaluated(literal_of(0.0, real_of(self.plan)), {}))
        found = mixed(f"sum {number}", row, column)
        return found & 0xFFFF if self.plan.atom.c.dtype == F16 else found

    def registers(self) -> dict[str, Register]:
        """The sums, as threads hold them."""
        found, (rows, columns), c = {}, self.plan.tiles.atoms, self.plan.atom.c
        columns = self.plan.tiles.columns // self.plan.atom.n
        for number, (_, total) in enumerate(self.epilogue.sums):
            if total in self.states:
                found[self.states[total]] = self._states(number)
                continue
            base = np.zeros((rows, columns, c.variables, self.threads), np.int64)
            for m in range(rows):
                for n in range(columns):
                    made = self.sum(number, *self.places(m, n)).T
                    base[m, n] = made[0::2] | made[1::2] << 16 if c.dtype == F16 else made
            shape = (rows, columns, c.variables)
            found[total] = Register(base.reshape(-1, self.threads), 0, shape)
        return found

    def _states(self, number: int) -> Register:
        """The states of a thread's rows: its first and its second, of every instruction."""
        rows = self.plan.tiles.atoms[0]
        base = np.zeros((rows, 2, self.threads), np.int64)
        for m in range(rows):
            row, _ = self.places(m, 0)
            for element, (half, _) in enumerate(self.plan.atom.c.of_thread):
                base[m, half] = self.sum(number, row[:, element], 0)
        return Register(base.reshape(-1, self.threads), 0, (rows, 2))

    # --- what is computed ------------------------------------------------------------------------
    def numbers(self, row: Any, column: Any, sums: list[Any]) -> list[Any]:
        """What an element is computed with; outside, arrays are read where they end."""
        at = dict(zip("mn", self.clamped(row, column), strict=True))
        reads = [
            mixed(f"result {one.tensor.name}", at["m" if read.kind == "row" else "n"])
            if read.shared
            else self.arrays.number(self.names, one, at)
            for one, read in zip(self.work.reads, self.epilogue.reads, strict=True)
        ]
        own = {"m": row, "n": column}
        places = [coordinate(self.names, along, own) for _, along in self.work.coordinates]
        return [*sums, *reads, *places, *(self.known(one, row) for one in self.epilogue.known)]

    def known(self, fold: FoldPart, row: Any) -> Any:
        """The result of a row."""
        return mixed(f"known {fold.value}", row)

    def results(self, given: list[Any]) -> list[Any]:
        """What an element's numbers make; an index that is the column is that number."""
        e = self.epilogue
        places = dict(zip(dict(e.coordinates), given[len(e.sums) + len(e.reads) :], strict=False))
        columns = [one for name, one in places.items() if dict(e.coordinates)[name] == COLUMN]
        return [
            columns[0] if is_column(e, term) else mixed(f"compute{e.suffix} {at}", *given)
            for at, term in enumerate(outcomes(e))
        ]

    def element(self, row: Any, column: Any) -> list[Any]:
        """What the element of a place is made to."""
        sums = [self.number(at, row, column) for at in range(len(self.epilogue.sums))]
        return self.results(self.numbers(row, column, sums))

    def number(self, product: int, row: Any, column: Any) -> Any:
        """The sum of a product, as it is computed with."""
        found = self.sum(product, row, column)
        kind = self.plan.atom.c.dtype
        if self.epilogue.sums[product][1] in self.states:
            return found
        if kind == S32:  # as the float that its bits are
            return as_float(found)
        return number_of(kind.name, found) if kind == F16 else found

    # --- what functions do -----------------------------------------------------------------------
    def handlers(self) -> dict[str, Handler]:
        """Of the functions that a text calls."""
        suffix, found = self.epilogue.suffix, self.arrays.handlers()
        found |= {f"compute{suffix}": self._compute, f"finish_element{suffix}": self._finish}
        found |= {"read_words": self._words, "read_sum": self._row_result}
        found["read_double"] = self._row_result
        found |= storing(self.stored, (epilogue_type(one.tensor) for one in self.epilogue.writes))
        for read in self.epilogue.reads:
            found[f"element_{epilogue_type(read.tensor)}"] = _element
        return found

    def _compute(self, called: Called) -> None:
        count = len(outcomes(self.epilogue))
        given = [one.value for one in called.arguments[:-count]]
        for place, value in zip(called.arguments[-count:], self.results(given), strict=True):
            place.store(value)

    def _finish(self, called: Called) -> None:
        """One element, as the leaf `edge` is proved to finish it."""
        who, (rows, columns) = called.state.who(), self.ends
        row, column, e, *others = (
            of_each(one.value, len(who))[who] for one in called.arguments[: 3 + self._given]
        )
        column = column + e
        if ((row >= rows) | (column >= columns) | (row < 0) | (column < 0)).any():
            raise VerifyError("an element outside of the results is finished")
        count = len(self.epilogue.sums)
        given = self.numbers(row, column, others[:count])
        made = self.results([*given[: len(given) - len(others) + count], *others[count:]])
        terms = called.arguments[3 + self._given :]
        for place, value in zip(terms, made[len(self.epilogue.writes) :], strict=True):
            term = np.zeros(who.shape, np.int64)
            term[who] = value
            place.store(term)
        for element, value in zip(self.work.writes, made, strict=False):
            own = column == 0 if element.kind == "row" else np.ones(len(row), bool)
            place = address(self.names, element.tensor, element.index, {"m": row, "n": column})
            kind = epilogue_type(element.tensor)
            keep(self.stored, place, mixed(f"to_{kind}", value), own)

    @property
    def _given(self) -> int:
        return len(self.epilogue.sums) + len(self.epilogue.known)

    def _row_result(self, called: Called) -> Any:
        """What a fold of a ring has left at an address."""
        place, found = called.arguments[0].value, np.full(self.threads, -1, np.int64)
        for work in self.plan.of(Tally):
            inside = place - self.names[f"{work.norms}_at"]
            number, row = np.divmod(inside // self.plan.program.real.bytes, work.rows)
            row = self.corner()["mn".index(work.role)] + row
            for at, (name, _) in enumerate(work.of.results):
                found = np.where(number == at, mixed(f"result {name}", row), found)
        return found

    def _words(self, called: Called) -> None:
        words, width = map(int, called.template)
        if width not in WIDTHS or words * 4 % width:
            raise VerifyError(f"{words} words are read by {width} bytes")
        _, tensor = self.arrays.of(called.arguments[1].value, called.state.who())
        known = [one.width for one in self.epilogue.reads if one.tensor.name == tensor.name]
        if width > max(known, default=0):
            raise VerifyError(f"{width} bytes of {tensor} are read at once, of {max(known)}")
        called.arguments[0].fill(self.arrays.words(called, words * 4))

    # --- what has to be --------------------------------------------------------------------------
    def check_folded(self, registers: Mapping[str, Register]) -> None:
        """Terms of a thread's elements that are inside are each in the register of their place.

        Raises:
            VerifyError: with the fold.
        """
        plan, e = self.plan, self.epilogue
        if not e.folds:
            return
        (rows, _), columns, named = plan.tiles.atoms, plan.tiles.columns // plan.atom.n, outcomes(e)
        wanted = {
            name: np.zeros((fold.atoms, len(fold.offsets), self.threads), np.int64)
            for fold in e.folds
            for name in fold.names
        }
        for m, n in itertools.product(range(rows), range(columns)):
            row, column = self.places(m, n)
            inside, made = self.inside(row, column), self.element(row, column)
            for fold in e.folds:
                for name, term in zip(fold.names, fold.terms, strict=True):
                    if isinstance(term, str):
                        value = made[named.index(term)]
                    else:
                        value = evaluated(literal_of(term, real_of(plan)), {})
                    value = np.where(inside, value, 0)
                    at = {"m": m, "n": n, "": 0}[fold.along]
                    for element, slot in enumerate(fold.slots):
                        wanted[name][at, slot] += value[:, element]
        (count, each), own = self.calls, slice(0, self.calls[1])
        for fold in e.folds:
            for name in fold.names:
                found = registers[name].base[:, : count * each]
                found = found.reshape(fold.atoms, -1, fold.registers, count, each)
                turns = 1 if fold in e.at_once else fold.registers  # the others have been added
                found = found[:, :, :turns].sum(axis=(2, 3))
                if not np.array_equal(found, wanted[name][..., own]):
                    raise VerifyError(f"terms of {fold.value} are not of their places")

    def clamped(self, row: Any, column: Any) -> tuple[Any, Any]:
        """The last row and the last column in the place of those that lie outside."""
        rows, columns = self.ends
        return np.minimum(row, rows - 1), np.minimum(column, columns - 1)

    def folding(self) -> dict[str, Register]:
        """Registers of folds, in which nothing has been folded."""
        return {
            name: Register(np.zeros((np.prod(shape), self.threads), np.int64), 0, shape)
            for fold in self.epilogue.folds
            for shape in [(fold.atoms, len(fold.offsets), fold.registers)]
            for name in fold.names
        }

    def rows_known(self) -> dict[str, Register]:
        """Registers of rows' results."""
        found = {}
        for fold in self.epilogue.known:
            shape = (self.plan.tiles.atoms[0], len(fold.offsets))
            base = np.zeros((*shape, self.threads), np.int64)
            for m in range(shape[0]):
                row, _ = self.places(m, 0)
                for element, slot in enumerate(fold.slots):
                    base[m, slot] = self.known(fold, row[:, element])
            found[fold.known] = Register(base.reshape(-1, self.threads), 0, shape)
        return found

    def inside(self, row: Any, column: Any) -> Any:
        """Which places are of the results."""
        rows, columns = self.ends
        return (row < rows) & (column < columns)

    def check_stored(self, row: Any, column: Any, names: Collection[str] | None = None) -> None:
        """All elements of some places that are inside are stored, and nothing else is.

        Args:
            row: of the places.
            column: likewise.
            names: of the results that are; None: all of them.

        Raises:
            VerifyError: with one that is not.
        """
        own = self.inside(row, column)
        row, column = row[own], column[own]
        wanted: list[Wanted] = []
        for element, value in zip(self.work.writes, self.element(row, column), strict=False):
            if names is not None and element.name not in names:
                continue
            place = address(self.names, element.tensor, element.index, {"m": row, "n": column})
            first = column == 0 if element.kind == "row" else np.ones(len(row), bool)
            stored = mixed(f"to_{epilogue_type(element.tensor)}", value)
            place = np.broadcast_to(place, row.shape)
            index = (row[first], column[first])
            wanted.append(Wanted(element.tensor.name, place[first], stored[first], index))
        check_writes(self.stored, wanted)


def _element(called: Called) -> Any:
    """One of the elements of some words."""
    kind = called.name.removeprefix("element_")
    first, e = called.arguments[0].place, called.arguments[1].value
    size = NAMED[kind].bytes

    def word(at: Any) -> Any:
        return load(called.state, Register(first.base, first.at + at, ()))

    if size > 4:
        return number_of(kind, word(2 * e) | word(2 * e + 1) << 32)
    per = 4 // size
    return number_of(kind, word(e // per) >> 8 * size * (e % per))
