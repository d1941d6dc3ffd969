"""What the leaves of a chain work on: scores in registers, states of rows, the next operand.

A thread holds elements of two rows of an instruction's tile, as the accumulator's fragment says.
Texts in the records are index formulas over the names that the kernel defines.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.program import Dim
from polygen.lower.launch import Parts
from polygen.lower.result_work import Epilogue, Read, Write
from polygen.poly.chain_layers import left_by, nth
from polygen.poly.match import Along
from polygen.poly.pointwise import Compute
from polygen.rewrite.separation import Factor


def score_names(sums: tuple[str, ...]) -> dict[str, str]:
    """Sums of products of the same rows, and what parameters are called that have them."""
    return {name: nth("score", number) for number, name in enumerate(sums)}


@dataclass(frozen=True, slots=True)
class Terms:
    """What is computed of one score.

    Attributes:
        statements: in order.
        given: values that are passed, and the names of their parameters: the score, the reference.
        reads: of arrays, at (row, key).
        coordinates: variable, and the number that it holds.
        results: values, the first of which takes the score's place.
    """

    statements: tuple[Compute, ...]
    given: tuple[tuple[str, str], ...]
    reads: tuple[Read, ...]
    coordinates: tuple[tuple[str, Along], ...]
    results: tuple[str, ...]
    unmasked: tuple[Compute, ...] = ()  # the statements where no key of a tile is masked


@dataclass(frozen=True, slots=True)
class ScanState:
    """A state of every row.

    Attributes:
        value: of the program.
        monoid: how terms are combined.
        term: which of the terms that are weighed it combines; "" for the reference.
        rescaled: whether it is multiplied by the correction first.
    """

    value: str
    monoid: str
    term: str
    rescaled: bool

    @property
    def register(self) -> str:
        """What holds it: one for each row of an instruction that a thread has elements of."""
        return f"state_{self.value}"


@dataclass(frozen=True, slots=True)
class Scan:
    """The registers between two products, and what is done with them.

    Attributes:
        advance: what makes terms of the reference; None where there is no reference.
        weigh: what makes the second product's operand, and terms of the other states.
        states: the reference first.
        factors: of the correction c(m, m').
        first_row: of a thread in instruction `m`.
        first_key: of a thread in key tile `k`.
        fast: whether functions take their fast forms.
        short: whether they take those of one instruction, where there are any.
        keys: how many there are; of a layer its columns.
        columns: of the scores of a tile.
        inside: beside the end of the keys, when no key of a tile is masked for a consumer's rows of
            instruction `m`: a condition, or "".
        layer: what is in front of the chain, by its name; "": what is between its two products.
        products: of the same rows, each with scores of its own.
        again: layers before whose values are read beside these.
        returned: results that are made of a score, and stored.
    """

    advance: Terms | None
    weigh: Terms
    states: tuple[ScanState, ...]
    factors: tuple[Factor, ...]
    first_row: str
    first_key: str
    fast: bool
    keys: Dim
    columns: int
    inside: str = ""
    short: bool = False
    layer: str = ""
    products: int = 1
    again: tuple[str, ...] = ()
    returned: tuple[Write, ...] = ()

    def called(self, what: str) -> str:
        """Registers, or a function, of these products."""
        return f"{what}_{self.layer}" if self.layer else what

    @property
    def scores(self) -> str:
        """The sums, and what is made of them in their place."""
        return self.called("scores")

    @property
    def sums(self) -> tuple[str, ...]:
        """The sums of each of several products of the same rows."""
        return tuple(nth(self.scores, number) for number in range(self.products))

    @property
    def all_scores(self) -> tuple[str, ...]:
        """These, and what layers before have left."""
        return (*self.sums, *map(left_by, self.again))

    @property
    def weights(self) -> str:
        """The next product's operand."""
        return self.called("weights")

    @property
    def reference(self) -> ScanState | None:
        """The state that terms are made with."""
        return self.states[0] if self.advance is not None else None

    @property
    def summed(self) -> tuple[ScanState, ...]:
        """The other states."""
        return self.states[1:] if self.advance is not None else self.states


@dataclass(frozen=True, slots=True)
class RowStore:
    """Sums and states -> results, straight from the registers.

    Attributes:
        epilogue: the statements.
        states: the variables that are states, and their registers.
    """

    epilogue: Epilogue
    states: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PartStore:
    """Sums and states of one part of the keys -> the workspace, for the launch that combines them.

    Part q of row r of all matrices is row ``q * rows + r`` of the sums, and an element of states.

    Attributes:
        epilogue: what is made of them when all parts have met: where a thread's elements are.
        sums: what the second product's are called.
        total: the sums' parts in the workspace.
        states: registers of states, and their parts; the reference first, if there is one.
        named: as `RowStore.states`.
        part: the number of the block's part.
    """

    epilogue: Epilogue
    sums: str
    total: Parts
    states: tuple[tuple[ScanState, Parts], ...]
    named: tuple[tuple[str, str], ...]
    part: str
