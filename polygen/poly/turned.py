"""Operands that a launch before the kernel stores with their axes in another order.

    P1[a0,a1]  w_turned[a0,a1] = cast(w[a0,a1])     a statement of the launch before
    S2[i,j,k]  v0[i,j] += x[i,k] * w_turned[k,j]    reads an array of the kernel's, in rows along k

1. The copy is an operand that is computed (`polygen.poly.prologue`), of the same axes: whatever
   indexes the array indexes the copy, windows and zeros around it too. So it is made once, as an
   array of its own, and what is left is a program whose products read that.
2. Rows run along the axis that `Program.turned` says (`polygen.rewrite.turned`). Of the other axes
   that one counts rows fastest along which the array's neighbours are adjacent: rows that follow
   each other are neighbours in memory.
3. What a block does is a tile program (`polygen.poly.turn_program`).
"""

from __future__ import annotations

from dataclasses import replace

from polygen.frontend.program import Access, Pointwise, Program, Tensor
from polygen.hardware.swizzle import chunk_bytes


def turned_operands(program: Program) -> dict[str, Tensor]:
    """The operands that are copied with their axes in another order, as they lie then, by value."""
    read = {access.name for product in program.contractions for access in product.reads}
    own = {s.write.name: s for s in program.pointwise}
    return {
        value: _turned(program, own[value], axis) for value, axis in program.turned if value in read
    }


def _turned(program: Program, statement: Pointwise, axis: int) -> Tensor:
    (access,) = statement.args
    assert isinstance(access, Access)
    source = program.tensors[access.name]
    order = (*(at for at in source.order if at != axis), axis)
    name = statement.write.name  # its rows end anywhere: nothing is known of their length
    return replace(source, name=name, order=order, alignment=chunk_bytes(), ragged=True)


def without_turned(program: Program) -> Program:
    """The program whose products read such operands as if they were arguments."""
    found = turned_operands(program)
    if not found:
        return replace(program, turned=()) if program.turned else program
    statements = tuple(s for s in program.statements if s.write.name not in found)
    used = {access.name for s in statements for access in s.reads}
    copied = {a.name for s in program.statements if s.write.name in found for a in s.reads}
    kept = (one for one in program.inputs if one.name in used or one.name not in copied)
    return replace(program, inputs=(*kept, *found.values()), statements=statements, turned=())
