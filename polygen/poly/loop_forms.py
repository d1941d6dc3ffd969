"""Affine forms of the iterators of emitted loops.

A form is a number and names with their factors; what is no sum of such, a quotient say, is a name
of its own, as isl writes it. Forms are made of expressions of the loops and of the components of
times, as a schedule tree says them, and are written as isl text.
"""

from __future__ import annotations

import ast as python
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from polygen.poly.ast import Binary, Const, Expr, Var

# A constant, and names and quotients with their factors.
Form = tuple[int, tuple[tuple[str, int], ...]]
# Of a time, as a tree says it: a number, a name, or a sum of such and quotients.
Component = int | str | python.expr
ZERO: Form = (0, ())
_WORDS = {"&&": "and", "||": "or", "==": "="}


@lru_cache(maxsize=256)
def components(text: str) -> tuple[Component, ...]:
    """The components of a time, as isl writes them."""
    return tuple(map(_component, text[1:-1].split("), ("))) if text else ()


@lru_cache(maxsize=256)
def _component(text: str) -> Component:
    if text.isdecimal():
        return int(text)
    if text.isidentifier():
        return text
    said = re.sub(r"(?<![\w.])(\d+)(?=[A-Za-z_(])", r"\1*", text).replace(" mod ", " % ")
    return python.parse(said, mode="eval").body


# ---- affine forms --------------------------------------------------------------------------------


def added(left: Form, right: Form, factor: int = 1) -> Form:
    """A form and a multiple of another."""
    if not right[1]:
        return left[0] + factor * right[0], left[1]
    atoms = dict(left[1])
    for name, times in right[1]:
        atoms[name] = atoms.get(name, 0) + factor * times
    kept = tuple(sorted((name, times) for name, times in atoms.items() if times))
    return left[0] + factor * right[0], kept


def _quotient(form: Form, by: int) -> Form:
    """The floor of a form over a number."""
    whole: Form = (form[0] // by, tuple((n, t // by) for n, t in form[1] if t // by))
    rest: Form = (form[0] % by, tuple((n, t % by) for n, t in form[1] if t % by))
    return added(whole, (0, ((f"floor(({said_of(rest)})/{by})", 1),))) if rest[1] else whole


def _applied(op: str, left: Form, right: Form) -> Form:
    """A sum, difference, product, quotient or remainder; else an opaque name for it."""
    if op in "+-":
        return added(left, right, 1 if op == "+" else -1)
    if op == "*" and not left[1]:
        left, right = right, left
    if op == "*" and not right[1]:
        return added(ZERO, left, right[0])
    if op in "/%" and not right[1]:
        quotient = _quotient(left, right[0])
        return quotient if op == "/" else added(left, quotient, -right[0])
    return 0, ((f"{op}({said_of(left)}, {said_of(right)})", 1),)


def form_of(node: Expr, names: Mapping[str, Form]) -> Form:
    """An expression of the loops as a form."""
    if isinstance(node, Const):
        return node.value, ()
    if isinstance(node, Var):
        return names.get(node.name, (0, ((node.name, 1),)))
    return _applied(node.op, form_of(node.left, names), form_of(node.right, names))


def evaluated(node: Component, env: Mapping[str, Form]) -> Form:
    """A component of a time as a form."""
    if isinstance(node, int):
        return node, ()
    if isinstance(node, str):
        return env.get(node, (0, ((node, 1),)))
    if isinstance(node, python.Constant):
        assert isinstance(node.value, int)
        return node.value, ()
    if isinstance(node, python.Name):
        return env.get(node.id, (0, ((node.id, 1),)))
    if isinstance(node, python.UnaryOp):
        return added(ZERO, evaluated(node.operand, env), -1)
    if isinstance(node, python.Call):  # floor(a / n)
        (of,) = node.args
        return evaluated(of, env)
    assert isinstance(node, python.BinOp)
    op = _OPERATORS[type(node.op)]
    return _applied(op, evaluated(node.left, env), evaluated(node.right, env))


_OPERATORS: dict[type[python.operator], str] = {
    python.Add: "+",
    python.Sub: "-",
    python.Mult: "*",
    python.Div: "/",
    python.Mod: "%",
}


# ---- isl text ------------------------------------------------------------------------------------


def said_of(form: Form) -> str:
    """A form as isl text."""
    return " + ".join([str(form[0]), *(f"{times}*({name})" for name, times in form[1])])


def shown(time: Iterable[Form]) -> str:
    """A time, for people."""
    return ", ".join(said_of(one).removeprefix("0 + ").replace("1*", "") for one in time)


def text_of(node: Expr, names: Mapping[str, Form]) -> str:
    """An expression of the loops as isl text."""
    if isinstance(node, Binary) and node.op not in "+-*/%":
        left, right = text_of(node.left, names), text_of(node.right, names)
        if node.op in ("min", "max"):
            return f"{node.op}({left}, {right})"
        return f"({left} {_WORDS.get(node.op, node.op)} {right})"
    return said_of(form_of(node, names))


def later(first: tuple[Form, ...], then: tuple[Form, ...]) -> str:
    """That one time comes behind another, as isl text."""
    text = "1 = 0"
    for a, b in reversed(list(zip(first, then, strict=True))):
        if a != b:
            left, right = said_of(a), said_of(b)
            text = f"({left} > {right} or ({left} = {right} and {text}))"
    return text


@lru_cache(maxsize=256)
def names_in(atom: str) -> frozenset[str]:
    """The names in a piece of isl text."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", atom))


def renamed(text: str, names: Mapping[str, str]) -> str:
    """A piece of isl text with other names."""
    return re.sub(r"[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), text)


def renamed_time(time: tuple[Form, ...], names: Mapping[str, str]) -> tuple[Form, ...]:
    """A time with other names."""
    return tuple((n, tuple((renamed(atom, names), t) for atom, t in atoms)) for n, atoms in time)
