"""Operands that a launch before the kernel makes with folds over their own rows.

They are rows like those that a launch behind a kernel finishes (`polygen.poly.whole_rows`): folds
of elements, level by level, then elements that use the results. But every element comes of
arguments, and is stored as what products multiply. A block has a row; what it does is a tile
program (`polygen.poly.follow_program`), whose level 0 has no folds.

1. All of a row's dependences are inside of the row: its statements read arguments, and values at
   the same row (`polygen.rewrite.rows_first`). So rows are made in any order, by any block.
2. What is computed of results of folds alone is computed once for a row.
3. What is left is a program whose products read an array of the operand's name.
4. That each element which a product reads is one that the rows write is proved for all sizes
   (`polygen.poly.prologue_proofs`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from polygen.frontend.closure import needed
from polygen.frontend.dtypes import DType
from polygen.frontend.program import (
    Access,
    Constant,
    Extent,
    Fold,
    Pointwise,
    Program,
    Tensor,
)
from polygen.hardware.swizzle import chunk_bytes
from polygen.poly.elements import Along
from polygen.poly.operand_folds import terms
from polygen.poly.prologue import Prologue, multiplied, prologue
from polygen.poly.turned import without_turned
from polygen.poly.whole_rows import Rows, iterator, levels, placed
from polygen.rewrite.rows_first import RowOperand, row_operand

_MOST = 64  # programs


@dataclass(frozen=True, slots=True)
class MadeRows:
    """An operand that is made row by row.

    Attributes:
        tensor: as which it is stored: rows of whole lines along the axis of its folds.
        rows: its elements and folds; its only output is the operand.
        after: what is computed of results of a row's folds alone, in order.
        own: the statements as the program has them, in order.
    """

    tensor: Tensor
    rows: Rows
    after: tuple[Pointwise, ...]
    own: tuple[Pointwise | Fold, ...]

    @property
    def pointwise(self) -> tuple[Pointwise, ...]:
        """All of its statements that map."""
        own = tuple(one for one in self.rows.statements if isinstance(one, Pointwise))
        return (*own, *self.after)

    @property
    def passes(self) -> int:
        """How often a row is gone through before its elements are known."""
        return len(levels(self.rows, self.after))


@functools.lru_cache(maxsize=_MOST)
def row_operands(program: Program) -> dict[str, MadeRows]:
    """The operands that the program has made row by row, by value."""
    read = {access.name for product in program.contractions for access in product.reads}
    return {
        value: _made(row_operand(program, value), program)
        for value in program.first
        if value in read
    }


def _made(of: RowOperand, program: Program) -> MadeRows:
    own = tuple(at for at in range(len(of.dims)) if at != of.along)
    order = (*own, of.along)
    last = of.statements[-1][0]
    assert isinstance(last, Pointwise)
    tensor = Tensor(of.value, multiplied(program, last), of.dims, order, chunk_bytes())
    tensor = replace(tensor, ragged=_ends_anywhere(tensor, program))
    numbers = {name for name, one in program.tensors.items() if not one.dims}
    known = {one.write.name for one, _ in of.statements if isinstance(one, Fold)}
    elements: list[Pointwise | Fold] = []
    after: list[Pointwise] = []
    for one, along in of.statements:
        placed_one = placed(one, dict(along))
        names = {access.name for access in one.reads}
        plain = all(isinstance(arg, (Access, Constant, Extent)) for arg in one.args)
        alone = plain and bool(names & known) and names <= known | numbers
        if isinstance(placed_one, Pointwise) and alone and one.write.name != of.value:
            known.add(one.write.name)
            kept = tuple(item for item in placed_one.domain if item[0] != iterator(of.along))
            index = tuple(it for it, _ in kept)
            after.append(replace(placed_one, domain=kept, write=Access(one.write.name, index)))
        else:
            elements.append(placed_one)
    elements[-1:] = _stored(elements[-1], last.dtype)
    rows = Rows(of.dims, own, tuple(elements), (of.value,), tuple(sorted(known)))
    return MadeRows(tensor, rows, tuple(after), tuple(one for one, _ in of.statements))


def _ends_anywhere(made: Tensor, program: Program) -> bool:
    """Whether rows may end inside of a chunk: but where rows of arguments that are as long do not,
    of which each call says whether they do.
    """
    length = made.dims[made.order[-1]]
    alike = [t for t in program.inputs if t.dims and t.dims[t.order[-1]] == length]
    in_chunks = any(
        one.alignment // one.dtype.bytes * made.dtype.bytes % made.alignment == 0 for one in alike
    )
    return not in_chunks or any(one.ragged for one in alike)


def _stored(last: Pointwise | Fold, dtype: DType) -> tuple[Pointwise, ...]:
    """The statement of a row's elements, and one behind it that stores what it has not rounded."""
    assert isinstance(last, Pointwise)
    if last.function == "cast":
        return (last,)
    made = Access(f"{last.write.name}_made", last.write.index)
    store = replace(last, name=f"{last.name}_out", function="cast", args=(made,), dtype=dtype)
    return replace(last, write=made), store


def without_first(program: Program) -> Program:
    """The program whose products read what a launch before the kernel makes as arguments.

    That is operands with folds over their rows, and those that it turns; others are computed by
    whoever copies them, if it does not make them (`polygen.poly.prologue`).
    """
    program = without_turned(program)
    found = row_operands(program)
    if not found:
        return replace(program, first=()) if program.first else program
    behind = replace(
        program,
        inputs=(*program.inputs, *(one.tensor for one in found.values())),
        statements=tuple(s for s in program.statements if s.write.name not in found),
        first=(),
    )
    outputs = [tensor.name for tensor in program.outputs]
    left = tuple(needed(list(behind.statements), outputs))
    used = {access.name for s in left for access in s.reads}
    inside = {a.name for one in found.values() for s in one.own for a in s.reads}
    inputs = tuple(t for t in behind.inputs if t.name in used or t.name not in inside)
    return replace(behind, inputs=inputs, statements=left)


def row_prologue(program: Program, of: MadeRows, index: tuple[Along, ...]) -> Prologue:
    """What an operand is made of at the point of a product, and how often its rows are read.

    Args:
        program: that has it.
        of: the operand.
        index: per axis, over the dims of the instruction.
    """
    statements: list[Pointwise] = []
    for one in of.rows.statements:
        statements += terms(one, program.real) if isinstance(one, Fold) else [one]
    kept = tuple(
        replace(
            one,
            args=tuple(Constant(1.0) if isinstance(a, Extent) else a for a in one.args),
        )
        for one in statements
    )
    last = replace(kept[-1], domain=tuple(zip(_names(of), of.rows.axes, strict=True)))
    made = prologue(program.tensors, (*kept[:-1], last), index, of.tensor.dtype)
    return replace(made, passes=of.passes)


def _names(of: MadeRows) -> tuple[str, ...]:
    return tuple(map(iterator, range(len(of.rows.axes))))
