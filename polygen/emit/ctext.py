"""Small values to C text: index expressions, loops, pointwise statements."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from polygen.emit.doubles import in_double, literal_of
from polygen.emit.functions import BOOLEAN, expanded, expression, literal
from polygen.emit.primitives import COMPOSITES, PRIMITIVES
from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import S32
from polygen.frontend.expansion import applied, expand
from polygen.poly.ast import Binary, Block, Call, Const, Expr, If, LoopAst, Marked
from polygen.poly.pointwise import Compute

INDENT = "  "
_NAME = re.compile(r"\b[A-Za-z_]\w*")
_PRODUCT = re.compile(r"const float (\w+) = [^;]* \* [^;]*;")


def index(expr: Expr) -> str:
    """An index expression in C; operands are non-negative, so "/" and "%" mean what isl means."""
    if isinstance(expr, Binary):
        left, right = index(expr.left), index(expr.right)
        if expr.op in ("min", "max"):
            return f"{expr.op}({_bare(left)}, {_bare(right)})"
        if expr.op == "-" and isinstance(expr.left, Const) and expr.left.value == 0:
            return f"(-{right})"
        return f"({left} {expr.op} {right})"
    return str(expr)


def _bare(text: str) -> str:
    """Without the outermost parentheses, if they enclose everything."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and position < len(text) - 1:
            return text
    return text[1:-1]


def assigned(name: str, to: str) -> str:
    """An assignment; what is added to the name is written so, and what divides it."""
    by = to.removeprefix(f"{name} / ")
    if by != to and "/" not in by:
        return f"{name} /= {by}"
    more = to.removeprefix(f"{name} + ")
    return f"{name} = {to}" if more == to else f"++{name}" if more == "1" else f"{name} += {more}"


def loops(
    node: LoopAst,
    comments: dict[str, str],
    depth: int,
    unroll: bool = True,
    *,
    counting: str = "int",
    together: Mapping[str, int] = MappingProxyType({}),
) -> list[str]:
    """The loop nest as lines of C.

    Args:
        node: the loops.
        comments: mark -> comment above its loops; marks without one print nothing.
        depth: indentation.
        unroll: loops whose number of iterations is known. One thread that waits in each iteration
            has nothing to gain, and every iteration's addresses would take registers of their own.
        counting: the C type of iterators.
        together: iterator -> how many iterations of its loop are unrolled, of loops whose number of
            iterations is not known, or that are not to be unrolled whole.
    """
    pad = INDENT * depth
    more: dict[str, Any] = {"unroll": unroll, "counting": counting, "together": together}
    if isinstance(node, Call):
        arguments = ", ".join(_bare(index(argument)) for argument in node.arguments)
        return [f"{pad}{node.statement}({arguments});"]
    if isinstance(node, Block):
        return [line for child in node.children for line in loops(child, comments, depth, **more)]
    if isinstance(node, Marked):
        head = [f"{pad}// {comments[node.name]}"] if node.name in comments else []
        return head + loops(node.body, comments, depth, **more)
    if isinstance(node, If):
        lines = [
            f"{pad}if ({_bare(index(node.condition))}) {{",
            *loops(node.then, comments, depth + 1, **more),
        ]
        if node.otherwise is not None:
            lines += [f"{pad}}} else {{", *loops(node.otherwise, comments, depth + 1, **more)]
        return [*lines, f"{pad}}}"]
    name, first = node.iterator, _bare(index(node.first))
    whole = node.unroll and unroll and name not in together
    head = [f"{pad}#pragma unroll" + ("" if whole else f" {together.get(name, 1)}")]
    step = f"++{name}" if node.step == 1 else f"{name} += {node.step}"
    head.append(
        f"{pad}for ({counting} {name} = {first}; {_bare(index(node.condition))}; {step}) {{"
    )
    return [*head, *loops(node.body, comments, depth + 1, **more), f"{pad}}}"]


def pointwise(
    statements: tuple[Compute, ...],
    elements: dict[str, str],
    outputs: dict[str, str],
    fast: bool,
    whole: Collection[str] = (),
    real: str = "float",
    *,
    short: bool = False,
    exact: Collection[str] = (),
) -> tuple[list[str], tuple[str, ...]]:
    """The pointwise statements on element `e`, one temporary per primitive.

    Args:
        statements: in order.
        elements: value or read -> C expression of its element.
        outputs: output tensor -> C lvalue of its element.
        fast: take fast forms.
        whole: elements that are the bits of whole numbers.
        real: the C type in which values are computed.
        short: take forms of one instruction, where there are any.
        exact: results of statements that take accurate forms in any case.

    Returns:
        Lines of C, and the helper files they need.
    """
    numbers = {name: f"(float)__float_as_int({elements[name]})" for name in whole}
    bits = {name: elements[name] for name in whole}
    known = dict(elements) | numbers
    writer = PointwiseWriter(known, outputs, fast, bits=bits, real=real, short=short)
    writer.read = {one for statement in statements for one in statement.args}
    for statement in statements:
        writer.fast = fast and statement.result not in exact
        writer.statement(statement)
    return used(writer.lines), tuple(dict.fromkeys(writer.helpers))


def definition(
    function: Callable[..., tuple[Any, ...]],
    arguments: Sequence[str],
    prefix: str = "",
    *,
    fast: bool = False,
    real: str = "float",
) -> tuple[list[str], list[str], list[str]]:
    """A definition of several results over the vocabulary.

    Args:
        function: of values with operators.
        arguments: C expressions.
        prefix: of the temporaries' names.
        fast: take fast forms.
        real: the C type in which values are computed.

    Returns:
        Lines of C, C expressions of the results, and the helper files that they need.
    """
    writer = PointwiseWriter({}, {}, fast, prefix, real=real)
    results = applied(function, arguments, writer.primitive)
    found = [writer.operand(result) for result in results]
    return used(writer.lines, found), found, writer.helpers


def used(lines: Sequence[str], results: Sequence[str] = ()) -> list[str]:
    """Lines of C without products that became part of a sum, and that nothing else reads."""
    found: list[str] = []
    read = set(_NAME.findall(" ".join(results)))
    for line in reversed(lines):
        product = _PRODUCT.fullmatch(line)
        if product is None or product[1] in read:
            found.append(line)
            read.update(_NAME.findall(line))
    return found[::-1]


class PointwiseWriter:
    """Writes pointwise statements as lines of C, one temporary per primitive.

    A product by a power of two is not rounded. So a sum or a difference that reads one is a single
    fused step, of the same bits: one instruction in place of two. Where such a product alone would
    leave the range of f32, the sum is the right one all the same.

    Attributes:
        names: value or read -> C expression.
        outputs: what a cast writes, by name -> C lvalue.
        read: values that statements read, results among them.
        lines: written so far.
        helpers: files of functions that they call.
    """

    def __init__(
        self, names: dict[str, str], outputs: dict[str, str], fast: bool, prefix: str = "",
        bits: dict[str, str] | None = None, real: str = "float", *, short: bool = False,
    ) -> None:  # fmt: skip
        self.short = short
        self.names, self.outputs, self.fast, self.prefix = names, outputs, fast, prefix
        self.real = real
        self.bits = bits or {}
        self.read: set[str | float] = set()
        self.lines: list[str] = []
        self.helpers: list[str] = []
        self.temporaries = 0
        self.exact: dict[str, tuple[str, float]] = {}  # product -> a factor, and a power of two

    def statement(self, statement: Compute) -> None:
        """Write one statement, whose value is known by its name from then on."""
        arguments = [
            self.names[argument] if isinstance(argument, str) else argument
            for argument in statement.args
        ]
        if statement.function == "cast":
            value = self.operand(arguments[0])
            if statement.dtype == S32:
                value = self.bits.get(str(statement.args[0]), f"round_s32({value})")
            output = self.outputs.get(statement.result)
            if output and statement.result not in self.read:
                self.lines.append(f"{output} = {value};")
                return
            named = self._define(
                statement.result, self.real, self._rounded(value, statement.dtype.name)
            )
            if output:
                self.lines.append(f"{output} = {named};")
            return
        run_down = expand if self.real == "double" else expanded
        result = run_down(statement.function, arguments, self.primitive)
        self.names[statement.result] = self.operand(result)

    def primitive(self, name: str, *arguments: str | float) -> str:
        """The name of a temporary that holds a function of the vocabulary."""
        if name not in PRIMITIVES and name not in COMPOSITES:
            raise UnsupportedProgram(f"the emitter has no primitive {name!r}", where="emit")
        constant = arguments[-1] if not isinstance(arguments[-1], str) else None
        operands = [self.operand(argument) for argument in arguments]
        helpers: Sequence[str] = ()
        if self.real == "double":
            text, helpers = in_double(name, operands, constant)
        elif (fused := self._fused(name, arguments)) is not None:
            text = fused
        else:
            text, helpers = expression(name, operands, self.fast, constant, short=self.short)
        self.helpers += helpers
        self.temporaries += 1
        own = f"{self.prefix}t{self.temporaries}"
        factors = [one for one in arguments if isinstance(one, str)]
        if name == "mul" and len(factors) == 1:
            (power,) = (one for one in arguments if not isinstance(one, str))
            if _is_power_of_two(float(power)):
                self.exact[own] = factors[0], float(power)
        return self._define(own, "bool" if name in BOOLEAN else self.real, text)

    def _fused(self, name: str, arguments: Sequence[str | float]) -> str | None:
        """A sum or a difference with a product by a power of two in it; None: there is none."""
        if name not in ("add", "sub"):
            return None
        first, second = arguments
        if second in self.exact:
            factor, power = self.exact[str(second)]
            power = -power if name == "sub" else power
            return f"fmaf({factor}, {literal(power)}, {self.operand(first)})"
        if first not in self.exact:
            return None
        factor, power = self.exact[str(first)]
        if isinstance(second, str):
            rest = f"-({second})" if name == "sub" else second
        else:
            rest = literal(-second if name == "sub" else second)
        return f"fmaf({factor}, {literal(power)}, {rest})"

    def _define(self, name: str, kind: str, text: str) -> str:
        self.lines.append(f"const {kind} {name} = {text};")
        self.names[name] = name
        return name

    def operand(self, value: str | float) -> str:
        """A C expression: a name, or a number."""
        if isinstance(value, str):
            return value
        return literal_of(value, self.real)

    def _rounded(self, value: str, dtype: str) -> str:
        """A value rounded to a narrower type and back."""
        kept = ("f64",) if self.real == "double" else ("f32", "tf32")
        return value if dtype in kept else f"from_{dtype}(to_{dtype}({value}))"


def _is_power_of_two(value: float) -> bool:
    """Whether a number is one that f32 has with its reciprocal, of either sign."""
    return abs(math.frexp(value)[0]) == 0.5 and 2.0**-126 <= abs(value) <= 2.0**126
