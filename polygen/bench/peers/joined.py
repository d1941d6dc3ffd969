"""Products with one left operand as one product, their weights joined beforehand; then its parts.

This is how inference engines do gate and up projection, or query, key and value: ``(x @ uv.T)`` in
one call of cuBLAS, and the expression on the halves.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polygen.bench.operations import Operation, fixed_forms
from polygen.bench.peers.inductor import MODE
from polygen.bench.products import by_operator
from polygen.bench.source import Call
from polygen.bench.torch_code import evaluated
from polygen.errors import BenchError


@dataclass(frozen=True, slots=True)
class Joined:
    """An operation whose products are parts of one.

    Attributes:
        left: name of the operand that all products have on the left.
        weights: names of the others, in the order of their parts.
        turned: whether the weights are transposed.
        others: names of the operands of the steps.
        rest: the expression with `parts` in place of the products.
        parts: the names of these.
    """

    left: str
    weights: tuple[str, ...]
    turned: bool
    others: tuple[str, ...]
    rest: str
    parts: tuple[str, ...]


def joined(op: Operation) -> Joined:
    """The operation's products as parts of one.

    Raises:
        BenchError: there is one product, or they have different left operands or layouts.
    """
    found = fixed_forms(op)
    if len(found) == 1:
        raise BenchError("one product has no weights to join", where="joined weights")
    if len({one.left for one in found}) > 1 or len({one.right[1] for one in found}) > 1:
        raise BenchError("the products have no operand in common", where="joined weights")
    (left, left_turned), turned = found[0].left, found[0].right[1]
    weights = tuple(one.right[0] for one in found)
    if left_turned:
        raise BenchError(f"{left} is transposed", where="joined weights")
    products = _Parts()
    rest = products.visit(ast.parse(op.expression, mode="eval"))
    used = {node.id for node in ast.walk(rest) if isinstance(node, ast.Name)}
    others = tuple(name for name in op.names if name in used)
    return Joined(left, weights, turned, others, ast.unparse(rest), tuple(products.names))


class _Parts(ast.NodeTransformer):
    """``part0``, ``part1``, ... for the products, in the order of the text."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Change the node and what is inside it."""
        if not isinstance(node.op, ast.MatMult):
            return self.generic_visit(node)
        self.names.append(f"part{len(self.names)}")
        return ast.Name(self.names[-1], ast.Load())


def function_of(work: Any) -> tuple[Callable[..., Any], list[Any]]:
    """The function of a row with joined weights, and what it takes.

    Raises:
        BenchError: as `joined`, or ``@`` does not multiply the type.
    """
    import torch  # noqa: PLC0415

    row, held = work.row, work.operands.timed
    form = joined(row.operation)
    if not by_operator(row.dtype):
        raise BenchError(f"the operator multiplies no {row.dtype}", where="PyTorch")
    rest, count = evaluated(form.rest, (*form.parts, *form.others)), len(form.parts)
    turned = form.turned

    def function(x: Any, weights: Any, *others: Any) -> Any:
        product = x @ (weights.mT if turned else weights)
        return rest(*product.chunk(count, dim=-1), *others)

    weights = torch.cat([held[name] for name in form.weights], dim=-2 if turned else -1)
    return function, [held[form.left], weights, *(held[name] for name in form.others)]


class EagerJoined:
    """PyTorch without a compiler."""

    def versions(self) -> dict[str, Any]:
        """Nothing beyond PyTorch's."""
        return {}

    def make(self, work: Any) -> Call:
        """The function on the row's tensors.

        Raises:
            BenchError: as `function_of`.
        """
        function, operands = function_of(work)
        return lambda: function(*operands)


class InductorJoined:
    """PyTorch's compiler."""

    def versions(self) -> dict[str, Any]:
        """The mode."""
        return {"mode": MODE}

    def make(self, work: Any) -> Call:
        """The function, compiled and tuned for the row's tensors.

        Raises:
            BenchError: as `function_of`.
        """
        import torch  # noqa: PLC0415

        function, operands = function_of(work)
        torch._dynamo.reset()
        compiled = torch.compile(function, mode=MODE, fullgraph=True, dynamic=False)
        compiled(*operands)
        return lambda: compiled(*operands)
