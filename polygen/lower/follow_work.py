"""What leaves of the launch that follows do: records of its statements, and of one group's code."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import Dim, Fold, Pointwise
from polygen.lower.launch import Parts
from polygen.lower.scan_work import PartStore, Scan
from polygen.poly.whole_rows import Rows


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
    """

    folds: tuple[Held, ...]
    statements: tuple[Pointwise, ...]
    known: tuple[str, ...]
    lasting: tuple[tuple[str, bool], ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """The elements of a row -> terms, or arrays.

    Attributes:
        rows: the row.
        folds: whose terms are made; none: the row's outputs are written.
        known: results, and what comes of them.
        number: of the walk, which tells its variables from others'.
    """

    rows: Rows
    folds: tuple[Fold, ...]
    known: tuple[str, ...]
    number: int


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
