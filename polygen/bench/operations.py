"""The operations that are measured: one expression each, read from ``suites/operations.toml``.

The expression is the only definition. Polygen traces it, PyTorch runs it (`torch_code`; in
float64 it gives the reference), and `chains` takes it apart for libraries that have fixed forms:

1. Python parses the expression; ``@`` is a product, its operands are names or transposed names.
2. Going outwards from a product, each operator or call has the running value as one argument and
   operands, constants or values of later products as the others; each becomes a `Step`.
3. The chain of a step with several products is the first one's; the others' values end there.
4. A tuple has several results. An expression that uses a value twice has no chains.
5. A product by groups of rows, ``grouped_matmul(x, w, ends)``, is a product that only few libraries
   have: `fixed_forms` refuses it.
6. Where a product multiplies what is made of another, as in attention, the data says what products
   there are (`Inner`); it is none of these chains.
"""

from __future__ import annotations

import ast
import functools
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cattrs

from polygen.errors import BenchError

FOLDER = Path(__file__).parent / "suites"
FILE = "operations.toml"
VALUE = ""  # in a step's arguments: the running value
DIMS = ("B", "M", "N", "K")  # products side by side or groups, rows, columns, length of the sums
GROUPED = "grouped_matmul"

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
}


@dataclass(frozen=True, slots=True)
class Inner:
    """Products of which one multiplies what is made of another.

    Attributes:
        products: the dims of each, and behind them the dim that it sums over.
        fixed: dims that kernels know as numbers.
        share: of the products that count, where keys are masked.
        attention: "full" or "causal" where libraries have it as one call; else "".
    """

    products: tuple[tuple[str, ...], ...]
    fixed: tuple[str, ...]
    share: float
    attention: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One expression.

    Attributes:
        name: its key in the data.
        expression: array code over the operands.
        operands: name and dims of each, in call order.
        inner: of a product of what is made of a product; else None.
    """

    name: str
    expression: str
    operands: tuple[tuple[str, tuple[str, ...]], ...]
    inner: Inner | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The operands' names, in call order."""
        return tuple(name for name, _ in self.operands)

    @property
    def dims(self) -> tuple[str, ...]:
        """The dims that have sizes, in the order of `DIMS`."""
        return tuple(dim for dim in DIMS if any(dim in dims for _, dims in self.operands))

    @property
    def ends(self) -> frozenset[str]:
        """The operands that say where groups of rows end."""
        return frozenset(found.ends for found in chains(self) if found.ends)

    @property
    def plain(self) -> bool:
        """Whether it is one product that nothing follows, so that one call of a library does it."""
        found = chains(self)
        return len(found) == 1 and not found[0].steps

    @property
    def summed(self) -> str | None:
        """The operand whose rows the result sums up with weights, where that is what it is."""
        root = ast.parse(self.expression, mode="eval").body
        if self.inner is None or not isinstance(root, ast.BinOp):
            return None
        last = isinstance(root.op, ast.MatMult) and isinstance(root.right, ast.Name)
        return ast.unparse(root.right) if last else None

    def multiplied(self, found: Chain) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The dims of a product's operands, transposed where they are, as ``@`` takes them."""
        dims = dict(self.operands)
        left, right = (
            (*dims[name][:-2], dims[name][-1], dims[name][-2]) if turned else dims[name]
            for name, turned in (found.left, found.right)
        )
        return left, right

    def product(self, found: Chain) -> tuple[str, ...]:
        """The dims of a product."""
        left, right = self.multiplied(found)
        return (*left[:-1], right[-1])


@dataclass(frozen=True, slots=True)
class Step:
    """One pointwise step; its arguments are operands' names, numbers, `VALUE`, or `value` names."""

    function: str
    arguments: tuple[str | float, ...]
    words: tuple[str, ...] = ()  # values of keywords, as "tanh" of gelu


@dataclass(frozen=True, slots=True)
class Chain:
    """A product and the steps after it.

    Attributes:
        left: name of the left operand, and whether it is transposed.
        right: the same of the right one.
        steps: in order.
        ends: of a product by groups of rows the operand that says where they end; else "".
    """

    left: tuple[str, bool]
    right: tuple[str, bool]
    steps: tuple[Step, ...]
    ends: str = ""


@functools.cache
def operations() -> dict[str, Operation]:
    """All operations by name.

    Raises:
        BenchError: the data file is wrong.
    """
    return read(tomllib.loads((FOLDER / FILE).read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class _Entry:
    expression: str
    operands: dict[str, str]
    products: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    share: float = 1.0
    attention: str = ""


def _dims(text: str) -> tuple[str, ...]:
    return tuple(dim.strip() for dim in text.split(","))


def read(tables: dict[str, Any]) -> dict[str, Operation]:
    """Operations from parsed TOML.

    Raises:
        BenchError: an entry lacks a field, or an expression is none.
    """
    converter = cattrs.Converter(forbid_extra_keys=True)
    found = {}
    for name, table in tables.items():
        try:
            entry = converter.structure(table, _Entry)
            ast.parse(entry.expression, mode="eval")
        except (cattrs.BaseValidationError, SyntaxError) as error:
            raise BenchError(
                f"cannot be read: {error}",
                where=f"{FILE}, {name}",
                nearest='Give expression = "x @ w.T" and operands = { x = "M,K", w = "N,K" }',
            ) from None
        dims = tuple((o, _dims(t)) for o, t in entry.operands.items())
        products = tuple(map(_dims, entry.products))
        inner = Inner(products, tuple(entry.fixed), entry.share, entry.attention)
        found[name] = Operation(name, entry.expression, dims, inner if products else None)
    return found


def operation(name: str) -> Operation:
    """An operation by name.

    Raises:
        BenchError: there is none.
    """
    if name not in operations():
        raise BenchError(
            f"no operation is called {name!r}", nearest=f"Known: {', '.join(operations())}"
        )
    return operations()[name]


def value(number: int) -> str:
    """How arguments name the value that a later chain ends with."""
    return f"@{number}"


def chain(op: Operation) -> Chain:
    """The product and the steps after it.

    Raises:
        BenchError: the expression is no chain, or has several.
    """
    found = fixed_forms(op)
    if len(found) != 1:
        raise BenchError(f"the expression has {len(found)} products", where=op.expression)
    return found[0]


def results(op: Operation) -> tuple[int, ...]:
    """The numbers of the chains that end with a result, in the results' order.

    Raises:
        BenchError: as `chains`.
    """
    found = chains(op)
    taken = {argument for one in found for step in one.steps for argument in step.arguments}
    return tuple(number for number in range(len(found)) if value(number) not in taken)


def fixed_forms(op: Operation) -> tuple[Chain, ...]:
    """The chains, for libraries that have products of matrices and of batches alone.

    Raises:
        BenchError: as `chains`, and where a product is one by groups of rows, or multiplies what
            is made of another.
    """
    if op.inner is not None:
        raise BenchError("products of what is made of products are none of its", where=op.name)
    found = chains(op)
    if any(one.ends for one in found):
        raise BenchError("products by groups of rows are none of its", where=op.expression)
    return found


def chains(op: Operation) -> tuple[Chain, ...]:
    """All products in the order of the text, each with the steps after it.

    A step may take the `value` of a chain with a larger number. So the chains can be computed from
    the last to the first. Where a product multiplies what is made of another there are none.

    Raises:
        BenchError: the expression is none of chains.
    """
    return _chains(op.expression) if op.inner is None else ()


@functools.cache
def _chains(expression: str) -> tuple[Chain, ...]:
    products: list[tuple[tuple[str, bool], tuple[str, bool], str]] = []
    steps: list[list[Step]] = []

    def visit(node: ast.expr) -> int:
        """The number of the product whose running value the node is; adds the steps around it."""
        words: tuple[str, ...] = ()
        match node:
            case ast.BinOp(left=left, op=ast.MatMult(), right=right):
                products.append((_matrix(left), _matrix(right), ""))
                steps.append([])
                return len(products) - 1
            case ast.Call(func=ast.Name(id=name), args=[left, right, ast.Name(id=ends)]) if (
                name == GROUPED
            ):
                products.append((_matrix(left), _matrix(right), ends))
                steps.append([])
                return len(products) - 1
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                function, sides = _OPERATORS[type(op)], [left, right]
            case ast.Call(func=ast.Name(id=function), args=sides, keywords=named):
                words = tuple(ast.literal_eval(word.value) for word in named)
            case _:
                raise _no_chain(expression, ast.unparse(node))
        inner = [visit(side) if _holds_product(side) else None for side in sides]
        numbers = [number for number in inner if number is not None]
        if not numbers:
            raise _no_chain(expression, ast.unparse(node))
        arguments: list[str | float] = []
        for side, number in zip(sides, inner, strict=True):
            if number is None:
                arguments.append(_leaf(side, expression))
            else:
                arguments.append(VALUE if number == numbers[0] else value(number))
        steps[numbers[0]].append(Step(function, tuple(arguments), words))
        return numbers[0]

    body = ast.parse(expression, mode="eval").body
    for part in body.elts if isinstance(body, ast.Tuple) else [body]:
        visit(part)
    if len(set(products)) < len(products):
        raise _no_chain(expression, expression)
    return tuple(
        Chain(left, right, tuple(after), ends)
        for (left, right, ends), after in zip(products, steps, strict=True)
    )


def _no_chain(expression: str, part: str) -> BenchError:
    return BenchError(
        "the expression is no chain of steps after a product",
        where=expression,
        why=f"{part} does not use every running value exactly once",
    )


def _holds_product(node: ast.expr) -> bool:
    return any(
        isinstance(part, ast.MatMult) or (isinstance(part, ast.Name) and part.id == GROUPED)
        for part in ast.walk(node)
    )


def _matrix(node: ast.expr) -> tuple[str, bool]:
    match node:
        case ast.Name(id=name):
            return name, False
        case ast.Attribute(value=ast.Name(id=name), attr="T" | "mT"):
            return name, True
    raise _no_chain(ast.unparse(node), ast.unparse(node))


def _leaf(node: ast.expr, expression: str) -> str | float:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=int() | float() as number):
            return float(number)
    raise _no_chain(expression, ast.unparse(node))
