"""Terms f(x, m) = g(x) * h(m): what a term that was made with m is worth under another m'.

1. A term is separated along its statements: exponentials turn sums into products, products and
   quotients multiply, a choice whose condition does not know m keeps what both sides have in common
   (0, and -inf inside an exponential, have anything).
2. `h` is a list of factors of m alone. f(x, m') = f(x, m) * c(m, m') with c = h(m') / h(m), which
   does not depend on x; c of a factor exp(b) is exp(b(m') - b(m)), so that nothing overflows.
3. What no rule separates is tried on numbers: f(x, m') f(x0, m) = f(x, m) f(x0, m') must hold, and
   where it does not, the numbers are the counterexample of the refusal.
4. What the rules have separated is tried on numbers as well.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polygen.errors import UnsupportedProgram, VerifyError
from polygen.frontend.functions import TABLE
from polygen.frontend.program import Access, Argument, Constant, Fold, Pointwise
from polygen.rewrite.values import Values

_TRIALS = 64
_CLOSE = 1e-9  # relative, of f64 arithmetic on numbers near 1
_EXPONENTIALS = ("exp", "exp2")
STATE = "state"  # in an expression: the value of the state

# An expression of the state and numbers: a number, `STATE`, or (function, operands...).
Expression = float | str | tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of h: ``kind`` "exp" or "exp2" of an expression, "times" it, or "over" it."""

    kind: str
    of: Expression

    def __str__(self) -> str:
        text = written(self.of, "m")
        return {"times": text, "over": f"1 / {text}"}.get(self.kind, f"{self.kind}({text})")


def written(expression: Expression, state: str) -> str:
    """An expression for people."""
    if isinstance(expression, tuple):
        name, *operands = expression
        return f"{name}({', '.join(written(one, state) for one in operands)})"  # type: ignore[arg-type]
    return state if expression == STATE else f"{expression:g}"


def correction(factors: Sequence[Factor]) -> str:
    """c(m, m') for people."""
    parts = []
    for one in factors:
        old, new = written(one.of, "m"), written(one.of, "m'")
        parts.append(
            {"times": f"{new} / {old}", "over": f"{old} / {new}"}.get(
                one.kind, f"{one.kind}({new} - {old})"
            )
        )
    return " * ".join(parts) or "1"


class _Separator:
    def __init__(self, values: Values, state: str) -> None:
        self.values, self.state = values, state

    def product(self, arg: Argument) -> tuple[Factor, ...] | None:
        """The factors of m in an argument; None where no rule gives them."""
        if not self.values.depends(arg, (self.state,)):
            return ()
        alone = self.alone(arg)
        if alone is not None:
            return (Factor("times", alone),)
        writer = self._writer(arg)
        if writer is None:
            return None
        args = writer.args
        if writer.function == "cast":
            return self.product(args[0])
        if writer.function in ("mul", "div"):
            left, right = map(self.product, args)
            if left is None or right is None:
                return None
            return (*left, *(right if writer.function == "mul" else map(_inverse, right)))
        if writer.function == "neg":
            return self.product(args[0])
        if writer.function in _EXPONENTIALS:
            exponent = self.sum(args[0])
            return None if exponent is None else (Factor(writer.function, exponent),)
        if writer.function == "where" and not self.values.depends(args[0], (self.state,)):
            sides = [self.product(arg) for arg in args[1:] if not _is(arg, 0.0)]
            return sides[0] if sides and all(one == sides[0] for one in sides) else None
        return None

    def sum(self, arg: Argument) -> Expression | None:
        """What of an argument is m's, as a term of a sum; None where no rule gives it."""
        if not self.values.depends(arg, (self.state,)):
            return 0.0
        alone = self.alone(arg)
        if alone is not None:
            return alone
        writer = self._writer(arg)
        if writer is None:
            return None
        args = writer.args
        if writer.function == "cast":
            return self.sum(args[0])
        if writer.function in ("add", "sub"):
            left, right = map(self.sum, args)
            if left is None or right is None:
                return None
            if right == 0.0:
                return left
            if left == 0.0:
                return right if writer.function == "add" else ("neg", right)
            return (writer.function, left, right)
        if writer.function == "neg":
            inner = self.sum(args[0])
            return None if inner is None else ("neg", inner)
        if writer.function in ("mul", "div"):
            return self._scaled(writer)
        if writer.function == "where" and not self.values.depends(args[0], (self.state,)):
            sides = [self.sum(arg) for arg in args[1:] if not _is(arg, -math.inf)]
            return sides[0] if sides and all(one == sides[0] for one in sides) else None
        return None

    def alone(self, arg: Argument) -> Expression | None:
        """An argument made of m and numbers alone; None if there is more in it."""
        if isinstance(arg, Constant):
            return arg.value
        if not isinstance(arg, Access):
            return None
        if arg.name == self.state:
            return STATE
        writer = self._writer(arg)
        if writer is None or not self.values.depends(arg, (self.state,)):
            return None
        operands = [self.alone(one) for one in writer.args]
        if any(one is None for one in operands):
            return None
        return operands[0] if writer.function == "cast" else (writer.function, *operands)

    def _scaled(self, writer: Pointwise) -> Expression | None:
        """A sum times a number: of what else it may be multiplied by, c would depend."""
        left, right = writer.args
        if isinstance(right, Constant):
            inner, number = self.sum(left), right.value
        elif isinstance(left, Constant) and writer.function == "mul":
            inner, number = self.sum(right), left.value
        else:
            return None
        return None if inner is None else (writer.function, inner, number)

    def _writer(self, arg: Argument) -> Pointwise | None:
        found = self.values.writers.get(arg.name) if isinstance(arg, Access) else None
        return found if isinstance(found, Pointwise) else None


def separated(
    values: Values, term: str, state: Fold, reader: str, where: str
) -> tuple[Factor, ...]:
    """The factors of a state in a term, checked on numbers.

    Args:
        values: of the program.
        term: the value that is summed.
        state: the fold whose result it reads.
        reader: what sums it, for the refusal.
        where: the program.

    Raises:
        UnsupportedProgram: f(x, m') / f(x, m) depends on x; with numbers that show it.
        VerifyError: the rules have separated what is no product.
    """
    name = state.write.name
    factors = _Separator(values, name).product(Access(term, ()))
    witness = _counterexample(values, term, name, factors)
    if factors is None or witness:
        if factors is not None:
            raise VerifyError(f"{term} is no product of {name}: {witness}", where=where)
        raise UnsupportedProgram(
            f"{reader} sums {term}, made with {name}, the {state.function} of the whole row",
            where=f"{where}, dependence {state.name} -> {reader}",
            why=f"the sum cannot begin before {name} is known, and what was summed under another "
            f"{name} cannot be corrected: "
            + (witness or f"no rule shows that {term} is a function of {name} times another"),
            nearest=f"Let {name} enter {term} as a factor, as in exp(v - {name}) and v / {name}, "
            f"or return {name} from one function and compute {term} in a second",
        )
    return factors


def _counterexample(values: Values, term: str, state: str, factors: Sequence[Factor] | None) -> str:
    """Numbers under which f(x, m') f(x0, m) is not f(x, m) f(x0, m'); "" if none is found."""
    choose = random.Random(0)
    inputs = sorted(
        name for name in values.behind(term) - {state}
        if not isinstance(values.writers.get(name), Pointwise)
    )  # fmt: skip
    for _ in range(_TRIALS):
        x, x0 = ({name: choose.uniform(-2, 2) for name in inputs} for _ in range(2))
        old, new = choose.uniform(0.5, 2), choose.uniform(0.5, 2)
        f = {
            (side, at): values.number(term, given | {state: at}, {})
            for side, given in (("x", x), ("x0", x0))
            for at in (old, new)
        }
        left, right = f["x", new] * f["x0", old], f["x", old] * f["x0", new]
        if factors is not None:
            right, left = f["x", old] * ratio(factors, old, new), f["x", new]
        if math.isfinite(left) and math.isfinite(right) and not math.isclose(
            left, right, rel_tol=_CLOSE, abs_tol=_CLOSE
        ):  # fmt: skip
            shown = ", ".join(f"{name} = {value:.3g}" for name, value in list(x.items())[:2])
            shown0 = ", ".join(f"{name} = {value:.3g}" for name, value in list(x0.items())[:2])
            by, by0 = (
                f"{f[side, new] / f[side, old]:.4g}" if f[side, old] else "from 0"
                for side in ("x", "x0")
            )
            return (
                f"from {state} = {old:.3g} to {new:.3g} the term changes by the factor {by} where "
                f"{shown}, and by {by0} where {shown0}"
            )
    return ""


def ratio(factors: Sequence[Factor], old: float, new: float) -> float:
    """The factor by which a term changes where the state goes from one number to another."""
    found = 1.0
    for one in factors:
        before, after = number(one.of, old), number(one.of, new)
        if one.kind in ("times", "over"):
            found *= after / before if one.kind == "times" else before / after
        else:
            found *= float(TABLE[one.kind].reference(np.float64(after - before)))
    return found


def number(expression: Expression, state: float) -> float:
    """An expression where the state is a number."""
    if isinstance(expression, tuple):
        name, *operands = expression
        given = [np.float64(number(one, state)) for one in operands]  # type: ignore[arg-type]
        return float(TABLE[str(name)].reference(*given))
    return state if expression == STATE else float(expression)


def _inverse(factor: Factor) -> Factor:
    if factor.kind in _EXPONENTIALS:
        return Factor(factor.kind, ("neg", factor.of))
    return Factor("over" if factor.kind == "times" else "times", factor.of)


def _is(arg: Argument, value: float) -> bool:
    return isinstance(arg, Constant) and arg.value == value
