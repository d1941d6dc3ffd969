"""The pointwise statements in the coordinates of the accumulator.

1. The fused band says which iterators of a statement run along m and n, so every tensor access
   becomes a tuple over ("m", "n", 0), and equal tuples of one tensor become one read.
2. An access whose axis along n is contiguous moves vectors; one that does not depend on n is a
   value per row; anything else steps along n with a stride.
3. Values keep the names of the program.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.dtypes import DType
from polygen.frontend.program import Access, Constant, Program, Tensor
from polygen.poly.fusion import Fusion
from polygen.poly.match import Match


@dataclass(frozen=True, slots=True)
class Element:
    """The element of a tensor that goes with the result at (m, n)."""

    name: str  # of a read's variable; of an output, the tensor's
    tensor: Tensor
    index: tuple[str | int, ...]  # per axis "m", "n" or 0

    @property
    def kind(self) -> str:
        """``"vector"``: adjacent along n; ``"strided"``; ``"row"``: one per row; ``"scalar"``."""
        if not self.tensor.dims:
            return "scalar"
        if "n" not in self.index:
            return "row"
        return "vector" if self.index.index("n") == self.tensor.contiguous_axis else "strided"

    @property
    def whole(self) -> bool:
        """Whether every result has its own."""
        return "m" in self.index and "n" in self.index


@dataclass(frozen=True, slots=True)
class Compute:
    """``result = function(args)`` on one element; args are values, reads' variables, constants."""

    result: str
    function: str
    args: tuple[str | float, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Pointwork:
    """What one result needs: reads, statements and writes."""

    reads: tuple[Element, ...]
    statements: tuple[Compute, ...]
    writes: tuple[Element, ...]

    @property
    def matrices(self) -> tuple[Element, ...]:
        """The whole matrices that are read."""
        return tuple(read for read in self.reads if read.whole)


def pointwork(program: Program, fusion: Fusion, match: Match) -> Pointwork:
    """Translate the pointwise statements into accumulator coordinates."""
    row, _ = fusion.iterators(match.contraction.name)
    tensors = program.tensors
    reads: dict[tuple[str, tuple[str | int, ...]], Element] = {}
    statements, writes = [], []
    for statement in program.pointwise:
        along_row, along_column = fusion.iterators(statement.name)
        roles = {along_row: "m", along_column: "n"}
        if match.m != row:
            roles = {along_row: "n", along_column: "m"}
        names: list[str | float] = []
        for argument in statement.args:
            if isinstance(argument, Constant):
                names.append(argument.value)
            elif argument.name not in tensors:
                names.append(argument.name)
            else:
                index = _in_roles(argument, roles)
                key = (argument.name, index)
                if key not in reads:
                    variable = f"{argument.name}_{len(reads)}"
                    reads[key] = Element(variable, tensors[argument.name], index)
                names.append(reads[key].name)
        target = statement.write.name
        statements.append(Compute(target, statement.function, tuple(names), statement.dtype))
        if target in tensors:
            writes.append(Element(target, tensors[target], _in_roles(statement.write, roles)))
    return Pointwork(tuple(reads.values()), tuple(statements), tuple(writes))


def _in_roles(access: Access, roles: dict[str, str]) -> tuple[str | int, ...]:
    return tuple(roles[i] if isinstance(i, str) else 0 for i in access.index)
