"""Sums over several axes in chains: over one, along which operands are computed that have several.

    v0[i,a,b] = ...                    a < 32, b < 2       w0[i,j] = ... a = floor(j/2), b = j mod 2
    v1[i,j] += v0[i,k,l] * v2[j,k,l]   k < 32, l < 2  ->   v1[i,j] += w0[i,k] * w1[j,k]       k < 64

Products of operands that are reshaped sum over several axes, as of those in which a rotary
embedding turns neighbours. The rows of a chain's first product are summed over one
(`polygen.rewrite.chain`).

1. All extents are numbers, so that places on the one axis are digits of several.
2. Operands are arrays or values that go on along the one axis, or made of no product's sums by
   statements that map at their own points, which run over it then (`polygen.rewrite.at_digits`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace

from polygen.frontend.closure import multiplies_sums, needed
from polygen.frontend.program import (
    Access,
    Contraction,
    Dim,
    Pointwise,
    Program,
    Statement,
)
from polygen.rewrite.at_digits import AtDigits, Digits, access_at
from polygen.rewrite.simplify import Fresh
from polygen.rewrite.values import Values

_MOST = 64  # programs


@functools.lru_cache(maxsize=_MOST)
def over_one_axis(program: Program) -> Program:
    """The chain whose products sum over one axis each, where their operands allow it."""
    if not multiplies_sums(program) or program.rest is not None:
        return program
    merging, statements = _Merging(program), list[Statement]()
    for one in program.statements:
        found = merging.product(one) if isinstance(one, Contraction) else None
        statements += [one] if found is None else [*merging.take(), found]
    outputs = [tensor.name for tensor in program.outputs]
    if tuple(statements) == program.statements:
        return program
    return replace(program, statements=tuple(needed(statements, outputs)))


class _Merging:
    """Statements over the one axis, in the place of those over several."""

    def __init__(self, program: Program) -> None:
        self.program, self.values = program, Values(program.statements)
        fresh = Fresh(program.statements, [*program.tensors, *program.sizes])
        self.sums = {one.write.name for one in program.contractions}
        self.made: list[Pointwise] = []
        self.digits = AtDigits(self.values, fresh, self.made.append)

    def take(self) -> list[Pointwise]:
        """What has been made, once."""
        found = [*self.made]
        self.made.clear()
        return found

    def product(self, one: Contraction) -> Contraction | None:
        """A product over one axis; None: it has one, or its operands allow none."""
        sizes, names = dict(one.domain), one.summed
        extents = [dim for dim in (sizes[it] for it in names) if isinstance(dim, int)]
        if len(names) < 2 or len(extents) < len(names) or one.block:
            return None
        behind = [math.prod(extents[at + 1 :]) for at in range(len(extents))]
        modulo = [0, *extents[1:]]
        digits = Digits(tuple(zip(behind, modulo, strict=True)), math.prod(extents))
        lhs, rhs = (self._operand(access, names, digits, sizes) for access in one.reads)
        if lhs is None or rhs is None:
            return None
        kept = ((it, dim) for it, dim in one.domain if it not in names[1:])
        domain = tuple((it, digits.extent if it == names[0] else dim) for it, dim in kept)
        return replace(one, domain=domain, lhs=lhs, rhs=rhs)

    def _operand(
        self, access: Access, names: tuple[str, ...], digits: Digits, sizes: Mapping[str, Dim]
    ) -> Access | None:
        """What the product over one axis reads."""
        whole = access_at(access, names, digits, sizes)
        if whole is not None and names[0] not in whole.index:  # it does not go on along the axis
            whole = None
        if access.name in self.program.tensors:
            return whole
        if self.sums & self.values.behind(access.name):
            return None
        return whole or self.digits.read(access, names, digits)
