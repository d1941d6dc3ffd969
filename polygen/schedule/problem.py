"""What a schedule is chosen for, and a schedule as it fits: what the cost model reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from polygen.schedule.joined import run_of
from polygen.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class Problem:
    """The sizes along m, n and k, and the weight of the epilogue.

    Attributes:
        m: rows of the result.
        n: columns of the result.
        k: length of the sums.
        element_bytes: of the operands.
        matrices: whole matrices that the pointwise statements read.
        functions: functions beyond arithmetic that they evaluate for each result.
        pointwise: whether there are any, besides rounding the sums.
        astride: share of the rows of operands that carry m, and that carry n, which lie astride
            lines of the cache.
        matrix_bytes: bytes of those matrices per result, all together.
        result_bytes: bytes written per result, all outputs together.
        k_inner: whether k is innermost in the left and in the right operand.
        sum_bytes: of one sum.
        access_bytes: the widest access that the rows of operands that carry m, and that carry n,
            allow, 16 at most.
        products: products that are summed beside each other.
        operands: how many of these carry m, and how many n.
        batches: matrices of results.
        threaded: how many operands that carry m, and that carry n, no copy engine moves: with
            roles, threads shift their rows into place, or compute them.
        uncopied: how many of these no copy helps either: slices that begin inside a chunk of a row.
        own: whether each of these has operands of its own that carry m, and that carry n.
        computed: how many operands that carry m, and that carry n, are computed.
        source_bytes: of the arguments that these are computed from, of one matrix of results.
        vectors: of these arguments, those that have a number for every k, and none for rows, of
            operands that consumers compute element by element.
        paired_vectors: those of operands that they compute in pairs.
        operand_functions: functions beyond arithmetic in an element of all of these together.
        held: words that threads which fill rings hold of a chunk, and registers beside them; zeros:
            of rows that they shift into place, or there are none.
        stored_bits: of these operands' elements as their rings have them where consumers compute,
            all together; zeros: they cannot.
        uneven: whether these are groups of rows below one another, of which `m` is the mean.
        folds: terms of a result that are folded: into sums and the like, with indices, and with
            exponentials.
        terms: products of tensor cores for one of the program's: of operands that are split.
        block: indices of k whose products are added up before they are promoted; 0: all.
        beside: columns that each worker sums besides, of its own rows: for products that go on with
            the sums of another.
        passes: over the sums of a tile before its results, where tiles cover rows.
        reading: of these, those that read matrices.
        sections: of several, rows, columns and matrices of the results of each, which have tiles of
            their own; `n` then has the columns of all.
        domain: half planes a*m + b*n + c >= 0, as (a, b, c), that tiles with products meet; () all.
        pixels: extents of the axes that rows may run along, outermost first, where tiles may be
            boxes of pixels; `m` and `batches` are those of tiles of one line.
        first: which of these is m where they are.
        depth: of sums over several axes the length of the innermost, which k tiles do not go
            beyond; 0: of one.
        joinable: whether sums are over several axes that k tiles may go through as through one.
        run: where they do, indices of k of one tap; 0: they do not.
        stored: of operands that carry m, and that carry n, of which windows are read, the elements
            that there are, of all matrices together; 0: each is read once.
        row_passes: of operands that a launch before the kernel makes row by row, how often a block
            goes through a row, of all rows together.
        tallied: instructions of folds of operands, for an element of those that carry m, and that
            carry n.
        unringed: whether those are of what no ring has, for each, where threads compute what it
            has.
        parted: numbers that parts of folds are: of a row, of a column, and of all elements.
        zeros: whether all that is multiplied is 0.
        leaving: whether nobody reads what comes of these but who stores it.
        turned: bytes that are read and written of operands which a launch before the kernel copies
            with their axes in another order.
        alike: whether the computed operands that carry n are those that carry m, which a launch
            before the kernel makes once.
        values: of computed operands that carry m, and that carry n, the elements that there are, of
            all matrices together; 0: each is read once.
    """

    m: int
    n: int
    k: int
    element_bytes: int = 2
    matrices: int = 0
    functions: int = 0
    pointwise: bool = False
    astride: tuple[float, float] = (0.0, 0.0)
    matrix_bytes: int = 0
    result_bytes: int = 2
    k_inner: tuple[bool, bool] = (True, True)
    sum_bytes: int = 4
    access_bytes: tuple[int, int] = (16, 16)
    products: int = 1
    operands: tuple[int, int] = (1, 1)
    batches: int = 1
    threaded: tuple[int, int] = (0, 0)
    own: tuple[bool, bool] = (True, True)
    uncopied: tuple[int, int] = (0, 0)
    computed: tuple[int, int] = (0, 0)
    source_bytes: tuple[int, int] = (0, 0)
    vectors: tuple[int, int] = (0, 0)
    paired_vectors: tuple[int, int] = (0, 0)
    operand_functions: tuple[int, int] = (0, 0)
    held: tuple[int, int] = (0, 0)
    stored_bits: tuple[int, int] = (0, 0)
    uneven: bool = False
    folds: tuple[int, int, int] = (0, 0, 0)
    terms: int = 1
    block: int = 0
    beside: int = 0
    passes: int = 0
    reading: int = 0
    sections: tuple[tuple[int, int, int], ...] = ()
    domain: tuple[tuple[int, int, int], ...] = ()
    pixels: tuple[int, ...] = ()
    first: int = 0
    depth: int = 0
    joinable: bool = False
    run: int = 0
    stored: tuple[int, int] = (0, 0)
    row_passes: int = 0
    tallied: tuple[int, int] = (0, 0)
    unringed: tuple[bool, bool] = (False, False)
    parted: tuple[int, int, int] = (0, 0, 0)
    zeros: bool = False
    leaving: bool = False
    turned: tuple[int, int] = (0, 0)
    alike: bool = False
    values: tuple[int, int] = (0, 0)

    @property
    def copied(self) -> tuple[int, int]:
        """How many operands that carry m, and that carry n, a copy helps."""
        return self.threaded[0] - self.uncopied[0], self.threaded[1] - self.uncopied[1]

    @property
    def copied_bytes(self) -> int:
        """Bytes of the operands that a copy helps."""
        depth = self.k * self.element_bytes
        return sum(
            count * extent * depth * (self.batches if own else 1)
            for count, extent, own in zip(self.copied, (self.m, self.n), self.own, strict=True)
        )

    @property
    def copied_rows(self) -> int:
        """Rows of the operands that a copy helps, as they are stored."""
        sides = zip(self.copied, self.k_inner, (self.m, self.n), self.own, strict=True)
        return sum(
            count * (extent if k_inner else self.k) * (self.batches if own else 1)
            for count, k_inner, extent, own in sides
        )

    @property
    def made_bytes(self) -> tuple[int, int]:
        """Bytes that are read and written where computed operands are made before the kernel."""
        depth = self.k * self.element_bytes
        matrices = [self.batches if own else 1 for own in self.own]
        sides = range(1 if self.alike else 2)
        read = sum(self.source_bytes[side] * matrices[side] for side in sides)
        return read, sum(
            self.values[side] * self.element_bytes
            or self.computed[side] * (self.m, self.n)[side] * depth * matrices[side]
            for side in sides
        )

    def makes_first(self, schedule: Schedule) -> bool:
        """Whether a launch before the kernel makes computed operands under a schedule: without
        roles those by rows, beside which others weigh little.
        """
        return schedule.makes_first or (bool(self.row_passes) and not schedule.specialised)

    @property
    def behind_making(self) -> Problem:
        """The same with operands that have been made, which are arguments."""
        left, right = self.computed
        return replace(
            self,
            threaded=(self.threaded[0] - left, self.threaded[1] - right),
            uncopied=(self.uncopied[0] - left, self.uncopied[1] - right),
            computed=(0, 0),
            source_bytes=(0, 0),
            vectors=(0, 0),
            paired_vectors=(0, 0),
            operand_functions=(0, 0),
            stored_bits=(0, 0),
            held=(0, 0),
            row_passes=0,
            alike=False,
            values=(0, 0),
        )

    def under(self, schedule: Schedule) -> Problem:
        """The same in the terms of a schedule: as it is, with operands exchanged, or with rows that
        are pixels of boxes; of the last ones whole tiles. Sums that are joined have one axis.
        """
        if schedule.tile.joined and self.joinable:
            return self._joined(schedule).under(schedule)
        if schedule.tile.pixels and self.pixels:
            return self._in_boxes(schedule.tile.pixels)
        if not schedule.exchange:
            return self
        return replace(
            self,
            m=self.n,
            n=self.m,
            k_inner=self.k_inner[::-1],
            operands=self.operands[::-1],
            threaded=self.threaded[::-1],
            uncopied=self.uncopied[::-1],
            own=self.own[::-1],
            astride=self.astride[::-1],
            access_bytes=self.access_bytes[::-1],
            computed=self.computed[::-1],
            values=self.values[::-1],
            source_bytes=self.source_bytes[::-1],
            vectors=self.vectors[::-1],
            paired_vectors=self.paired_vectors[::-1],
            operand_functions=self.operand_functions[::-1],
            stored_bits=self.stored_bits[::-1],
            stored=self.stored[::-1],
            tallied=self.tallied[::-1],
            unringed=self.unringed[::-1],
            sections=tuple((n, m, batches) for m, n, batches in self.sections),
            domain=tuple((b, a, c) for a, b, c in self.domain),
        )

    def _joined(self, schedule: Schedule) -> Problem:
        run = run_of(self.depth, self.element_bytes, schedule)
        return replace(self, k=self.k // self.depth * run, depth=0, joinable=False, run=run)

    def _in_boxes(self, box: tuple[int, ...]) -> Problem:
        sides = (1,) * (len(self.pixels) - len(box)) + box
        tiles = [-(-e // side) for e, side in zip(self.pixels, sides, strict=True)]
        along = tiles[self.first]
        return replace(
            self.merged,
            m=along * math.prod(box),
            batches=self.merged.batches * (math.prod(tiles) // along),
        )

    @property
    def merged(self) -> Problem:
        """The same with rows below one another along one axis."""
        if not self.pixels:
            return self
        m = math.prod(self.pixels)
        return replace(self, m=m, batches=self.m * self.batches // m, pixels=(), first=0)

    @property
    def operand_bytes(self) -> tuple[int, int]:
        """Bytes that are read of the left and of the right operands of one matrix of results."""
        left, right = (
            all_of - made for all_of, made in zip(self.operands, self.computed, strict=True)
        )
        depth = self.k * self.element_bytes
        return (
            self.once(0, left * self.m * depth) + self.source_bytes[0],
            self.once(1, right * self.n * depth) + self.source_bytes[1],
        )

    def once(self, side: int, read: int) -> int:
        """Bytes of what is stored of a part of an operand, in proportion, of the bytes read."""
        if not self.stored[side]:
            return read
        every = (self.m, self.n)[side] * self.k * self.batches
        return read * self.stored[side] // every


@dataclass(frozen=True, slots=True)
class Fitted:
    """A schedule as it fits a program: stages, k tile and way out are final.

    Attributes:
        schedule: as fitted.
        resident: thread blocks that fit one multiprocessor.
        spare: registers of a thread beyond those that the kernel is thought to need; None: unknown.
    """

    schedule: Schedule
    resident: int
    spare: int | None = None
