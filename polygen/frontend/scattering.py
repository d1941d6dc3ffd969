"""Rows that are stored by index: ``out[rows] = value``, where row t goes to row ``rows[t]``.

1. `out` is an argument, and what is returned: the call stores into the array that it is given.
   Rows that nobody names keep what they hold, so that nothing has to be read of them.
2. In a statement the row that is written has an index that only the numbers know, as rows have
   that are read so (`polygen.frontend.gathering`). That no two of them are the same is the
   caller's promise: then no two elements of the value meet, whatever order they are stored in.
   What is no row of the array, as a negative number, is not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polygen.errors import DTypeError, ShapeError, TraceError, UnsupportedProgram
from polygen.frontend.describing import describe
from polygen.frontend.dtypes import F32, STORED, TF32, DType
from polygen.frontend.forms import Form
from polygen.frontend.gathering import gathered, require_rows
from polygen.frontend.joining import first_join
from polygen.frontend.nodes import InputNode, Node, ScalarNode
from polygen.frontend.program import Index, Statement
from polygen.frontend.reshaping import mixed_rows
from polygen.frontend.shapes import shape_text

_RANKS = (1, 2)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a function stores into an argument.

    Attributes:
        target: the argument.
        rows: the vector that says which of its rows.
        value: their elements.
    """

    target: InputNode
    rows: InputNode
    value: Node

    @property
    def text(self) -> str:
        """As a person would write it."""
        return f"{self.target.tensor.name}[{self.rows.tensor.name}]"

    @property
    def dtype(self) -> DType:
        """What is stored."""
        return F32 if self.target.dtype == TF32 else self.target.dtype

    def index(self, own: Sequence[Index]) -> tuple[Index, ...]:
        """Where an element of the value is stored.

        Args:
            own: where it is in the value.

        Raises:
            UnsupportedProgram: the value is a reshape, whose rows lie elsewhere.
        """
        first, *others = own
        if any(isinstance(one, Form) for one in own):
            raise mixed_rows(self.text)
        return (gathered((first,), self.rows, self.target.dims[0]), *others)


def assignment(target: Node, rows: Node, value: Node) -> Assignment:
    """``target[rows] = value``, once it can be stored.

    Raises:
        UnsupportedProgram: the target is no argument, the index is computed, or the value is a
            concatenation.
        DTypeError: indices that are not s32, or a target of packed numbers.
        ShapeError: no vector of indices, no target of rows, or a value of another shape.
    """
    if not isinstance(target, InputNode):
        raise UnsupportedProgram(
            f"an assignment into {describe(target)}",
            why="rows are stored into an array that the call is given",
            nearest="Give the function an argument for the result, out, and return it",
        )
    vector = require_rows(rows, stored=True)
    text = f"{target.tensor.name}[{vector.tensor.name}]"
    if len(target.dims) not in _RANKS:
        raise ShapeError(
            f"{text} = …: {target.tensor.name} is {shape_text(target.dims)}",
            why="rows by index are those of a matrix, or elements of a vector",
            nearest="Pass an array of two axes, such as out[S,N]",
        )
    if target.dtype not in (*STORED, TF32):
        raise DTypeError(
            f"{text} = …: {target.tensor.name} is {target.dtype}",
            why="results are whole bytes",
            nearest=f"Say {F32}{shape_text(target.dims)} in the signature",
        )
    wanted = (*vector.dims, *target.dims[1:])
    if value.dims != wanted:
        pairs = zip(value.dims, wanted, strict=False)
        apart = next((pair for pair in pairs if pair[0] != pair[1]), None)
        what, why = f"{text} = {describe(value)}", f"{shape_text(value.dims)} into those rows, "
        why += shape_text(wanted)
        nearest = "A value of as many rows as are named, and of the array's columns"
        if len(value.dims) != len(wanted) or apart is None:
            raise ShapeError(what, why=why, nearest=nearest)
        raise ShapeError.between(*apart, what, why=why, nearest=nearest)
    if first_join([value]) is not None or isinstance(value, ScalarNode):
        raise UnsupportedProgram(
            f"{text} = {describe(value)}",
            why="the rows of a concatenation lie in several values",
            nearest="Store each part by an index of its own, into an array of its own",
        )
    return Assignment(target, vector, value)


def require_once(assigned: Iterable[Assignment], one: Assignment) -> None:
    """Refuse to store into an array a second time.

    Raises:
        UnsupportedProgram: it is stored into already.
    """
    before = next((other for other in assigned if other.target is one.target), None)
    if before is not None:
        raise UnsupportedProgram(
            f"{one.text} = … behind {before.text} = …",
            why="blocks run in any order, so that which of both a row keeps would be chance",
            nearest="Join the indices outside, and store once",
        )


def require_returned(assigned: Iterable[Assignment], roots: Sequence[Node], name: str) -> None:
    """Refuse what is stored and lost, and results beside it that a call would have to make.

    Args:
        assigned: what is stored by index.
        roots: what the function returns.
        name: of the function.

    Raises:
        TraceError: an array is stored into and not returned.
        UnsupportedProgram: something else is returned as well, or an array twice.
    """
    targets = [one.target for one in assigned]
    for one in assigned:
        if one.target not in roots:
            raise TraceError(
                f"{one.text} = … is not returned",
                where=name,
                why="what a kernel computes is what its function returns",
                nearest=f"End with: return {one.target.tensor.name}",
            )
    if targets and (len(roots) != len(set(roots)) or set(roots) != set(targets)):
        beside = next((root for root in roots if root not in targets), roots[0])
        raise UnsupportedProgram(
            f"{describe(beside)} is returned beside what is stored by index",
            where=name,
            why="a call stores into the arrays it is given, or into new ones that it returns",
            nearest="Return one from each of two functions",
        )


def require_unread(assigned: Iterable[Assignment], statements: Iterable[Statement]) -> None:
    """Refuse to read an array that is stored into: other blocks may have been there, or not.

    Raises:
        UnsupportedProgram: with the statement.
    """
    targets = {one.target.tensor.name: one for one in assigned}
    for statement in statements:
        for access in statement.reads:
            if access.name in targets:
                raise UnsupportedProgram(
                    f"{access} is read, and {targets[access.name].text} stored",
                    why="rows are stored in any order, and an array that is read does not change",
                    nearest="Read another array, as in out[rows] = before[rows] + value",
                )
