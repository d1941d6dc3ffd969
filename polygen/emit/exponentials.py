"""exp(a - b) as 2 ** (a * log2(e) - b * log2(e)): one product-and-sum and one instruction.

Where `b` is the same for a whole row its product is made once. It is off by the rounding of
b * log2(e), which is the same for the whole row, so that quotients of two such terms have no part
of it; fast forms alone are written so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from polygen.frontend.dtypes import F32
from polygen.poly.pointwise import Compute

_LOG2_E = 1.0 / math.log(2.0)


def by_powers_of_two(statements: Sequence[Compute]) -> tuple[Compute, ...]:
    """The statements, with the exponentials of differences that nothing else reads written so."""
    made = {s.result: s for s in statements}
    uses = Counter(arg for s in statements for arg in s.args if isinstance(arg, str))
    found: list[Compute] = []
    replaced: set[str] = set()
    for one in statements:
        (arg, *_) = one.args
        inner = made.get(arg) if one.function == "exp" and isinstance(arg, str) else None
        if inner is None or inner.function != "sub" or uses[inner.result] > 1:
            found.append(one)
            continue
        replaced.add(inner.result)
        sides = []
        for side, operand in zip("ab", inner.args, strict=True):
            name = f"{inner.result}_{side}"
            scaled = made.get(operand) if isinstance(operand, str) else None
            factor = _LOG2_E
            if scaled is not None and scaled.function == "mul" and uses[scaled.result] == 1:
                other, number = scaled.args
                if isinstance(number, float):
                    operand, factor = other, number * _LOG2_E
                    replaced.add(scaled.result)
            found.append(Compute(name, "mul", (operand, factor), F32))
            sides.append(name)
        found.append(Compute(f"{inner.result}_d", "sub", tuple(sides), F32))
        found.append(Compute(one.result, "exp2", (f"{inner.result}_d",), one.dtype))
    return tuple(s for s in found if s.result not in replaced)
