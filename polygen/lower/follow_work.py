"""What leaves of the launch that follows do: records of its statements, and of one group's code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import Access, Dim, Fold, Index, Pointwise, Program, Tensor
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.launch import Parts
from polygen.lower.scan_work import PartStore, Scan
from polygen.poly.folds import Split
from polygen.poly.whole_rows import Rows, iterator


@dataclass(frozen=True, slots=True)
class Held:
    """A fold in the registers of a thread.

    Attributes:
        value: its result.
        monoid: how terms are combined.
    """

    value: str
    monoid: str

    @property
    def names(self) -> tuple[str, ...]:
        """The registers of its components."""
        return tuple(f"fold_{self.value}_part{at}" for at in range(self._components))

    @property
    def given(self) -> tuple[str, ...]:
        """Where warps give each other what they have, in shared memory."""
        return tuple(f"fold_{self.value}_given{at}" for at in range(self._components))

    @property
    def _components(self) -> int:
        return len(MONOIDS[self.monoid].identity)


def known(value: str) -> str:
    """The register of a result, or of what is computed of results."""
    return f"fold_{value}"


@dataclass(frozen=True, slots=True)
class Meet:
    """The folds of a level begin, and what the warps have of them becomes one.

    Attributes:
        folds: of the level.
        warps: of a block.
        shared: whether the lanes of a warp share a result; else each has its own.
    """

    folds: tuple[Held, ...]
    warps: int
    shared: bool


@dataclass(frozen=True, slots=True)
class CombineParts:
    """Parts -> registers.

    Attributes:
        folds: of whose results there are equally many parts, with where those lie.
        count: the name of their number.
        shared: as of `Meet`.
    """

    folds: tuple[tuple[Held, Parts], ...]
    count: str
    shared: bool


@dataclass(frozen=True, slots=True)
class Settle:
    """Registers -> results, and what is computed of them.

    Attributes:
        folds: all of whose terms are combined.
        statements: over results, in order.
        known: values of levels before.
        lasting: values that later statements of the block read, each with whether it is a truth.
        outputs: arrays whose element is known then.
        extents: of the results, along whose axes arguments are read.
    """

    folds: tuple[Held, ...]
    statements: tuple[Pointwise, ...]
    known: tuple[str, ...]
    lasting: tuple[tuple[str, bool], ...]
    outputs: tuple[str, ...]
    extents: tuple[Dim, ...] = ()

    @property
    def reads(self) -> tuple[tuple[Pointwise, Access], ...]:
        """What its statements read of arguments."""
        made = {*self.known, *(one.value for one in self.folds)}
        made |= {one.write.name for one in self.statements}
        return tuple((s, a) for s in self.statements for a in s.reads if a.name not in made)


@dataclass(frozen=True, slots=True)
class HoldRow:
    """The first elements of a row -> registers.

    Attributes:
        rows: the row.
        values: of the kernel that are kept, and are held.
        words: that a lane has of each.
        warps: of a block, which take words in turns.
        wide: elements of a word.
        reads: elements of arrays that are held.
    """

    rows: Rows
    values: tuple[str, ...]
    words: int
    warps: int
    wide: int
    reads: tuple[Access, ...] = ()


@dataclass(frozen=True, slots=True)
class Walk:
    """The elements of a row -> terms, or arrays.

    Attributes:
        rows: the row.
        folds: whose terms are made; none: the row's outputs are written.
        known: results, and what comes of them.
        number: of the walk, which tells its variables from others'.
        wide: elements that a lane has beside each other.
        held: what it goes through instead of the row, if that is what lanes hold.
    """

    rows: Rows
    folds: tuple[Fold, ...]
    known: tuple[str, ...]
    number: int
    wide: int = 1
    held: HoldRow | None = None

    def together(self, tensor: Tensor, index: Sequence[Index]) -> bool:
        """Whether the elements that a lane has lie beside each other in an array, in one word."""
        return self.wide > 1 and lies_beside(self.rows, tensor, index, self.wide)


def lies_beside(rows: Rows, tensor: Tensor, index: Sequence[Index], wide: int) -> bool:
    """Whether so many elements of a row, from a multiple of them on, are an aligned word.

    Args:
        rows: the row.
        tensor: the array.
        index: of an element of the row.
        wide: how many.
    """
    if len(rows.inner) != 1 or tensor.contiguous_axis is None:
        return False
    along = iterator(rows.inner[0])
    own = [at for at, one in enumerate(index) if not isinstance(one, int) and along in str(one)]
    word = wide * tensor.dtype.bytes
    return (
        own == [tensor.contiguous_axis]
        and index[own[0]] == along
        and word <= chunk_bytes()
        and tensor.alignment % word == 0
    )


def kept_of(rows: Rows, split: Split) -> tuple[str, ...]:
    """The values of the kernel that a row's statements read from where they are kept."""
    read = {access.name for one in rows.statements for access in one.reads}
    return tuple(one.value for one in split.kept if one.value in read)


def row_width(rows: Rows, split: Split, program: Program) -> int:
    """How many elements of a row a lane has beside each other.

    As many as are a word in every matrix that is kept and written; 1 where they are none in one.

    Args:
        rows: the row.
        split: the program, with what is kept for it.
        program: all of it.
    """
    tensors = program.tensors
    kept = kept_of(rows, split)
    held = [(one.tensor, one.index) for one in split.kept if one.value in kept]
    held += [
        (tensors[one.write.name], one.write.index)
        for one in rows.statements
        if one.write.name in rows.outputs
    ]
    widest = min((chunk_bytes() // tensor.dtype.bytes for tensor, _ in held), default=1)
    return widest if all(lies_beside(rows, *one, widest) for one in held) else 1


@dataclass(frozen=True, slots=True)
class StoreResults:
    """Results -> arrays.

    Attributes:
        outputs: that are written.
        extents: of the results.
        shared: as of `Meet`.
    """

    outputs: tuple[str, ...]
    extents: tuple[Dim, ...]
    shared: bool


@dataclass(frozen=True, slots=True)
class MergeKeys:
    """Parts of the keys of a row -> registers, and those -> results.

    Attributes:
        store: where the kernel has put them, and what is computed of a row.
        scan: the states, and what a part is worth.
        what: "reference", "states" or "sum".
    """

    store: PartStore
    scan: Scan
    what: str
