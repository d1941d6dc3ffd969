"""Operations in PyTorch: their expressions as functions of tensors, their steps as its kernels."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from polygen.bench.operations import GROUPED, VALUE, Operation, Step
from polygen.errors import BenchError


def torch_function(op: Operation, product: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """The expression as a user of PyTorch writes it; takes the operands in call order.

    Operators are the tensors' own; only named functions are looked up, so that the function can be
    compiled by ``torch.compile`` and run in any type.

    Args:
        op: has the expression.
        product: what stands for ``@``; None: the operator.
    """
    expression = op.expression
    if product is None and op.inner is not None:
        product = _of_one_type
    if product is not None:
        expression = ast.unparse(_WithProduct().visit(ast.parse(expression, mode="eval")))
    return evaluated(expression, op.names, product=product)


def evaluated(expression: str, arguments: tuple[str, ...], **names: Any) -> Callable[..., Any]:
    """Code of this package's own data as a function of PyTorch's tensors.

    Args:
        expression: the code.
        arguments: names of what the function takes, in order.
        names: what else the code may use, beside PyTorch's pointwise functions.
    """
    text = f"lambda {', '.join(arguments)}: {expression}"
    # With Python's builtins: code that has none counts as a constructor of named tuples to
    # ``torch.compile``, which then runs it uncompiled.
    made: Callable[..., Any] = eval(text, {**_torch_names(), **names})
    return made


def _of_one_type(left: Any, right: Any) -> Any:
    """A product of what was computed, which may be of a wider type: coordinates make it f32."""
    return left.to(right.dtype) @ right


class _WithProduct(ast.NodeTransformer):
    """``product(a, b)`` for ``a @ b``."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Change the node and what is inside it."""
        self.generic_visit(node)
        if not isinstance(node.op, ast.MatMult):
            return node
        return ast.Call(ast.Name("product", ast.Load()), [node.left, node.right], [])


@functools.cache
def _torch_names() -> dict[str, Callable[..., Any]]:
    import torch  # noqa: PLC0415

    nn = torch.nn.functional

    def gelu(x: Any, approximate: str = "none") -> Any:
        return nn.gelu(x, approximate=approximate)

    def indices(x: Any) -> tuple[Any, ...]:
        """Where elements are along each axis."""
        places = [torch.arange(extent, device=x.device) for extent in x.shape]
        return tuple(
            place.reshape([-1 if axis == at else 1 for axis in range(x.ndim)])
            for at, place in enumerate(places)
        )

    def grouped(x: Any, w: Any, ends: Any) -> Any:
        """PyTorch's product by groups where it takes the type, else a product for each group."""
        own = getattr(torch, "_grouped_mm", None)
        if own is not None and x.dtype == torch.bfloat16 and x.is_cuda:
            return own(x, w, offs=ends)
        found = x.new_empty((x.shape[0], w.shape[2]))
        first = 0
        for group, end in enumerate(map(int, ends.tolist())):
            if end > first:
                torch.mm(x[first:end], w[group], out=found[first:end])
            first = max(first, end)
        return found

    return {
        GROUPED: grouped,
        "relu": torch.relu,
        "silu": nn.silu,
        "gelu": gelu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "square": torch.square,
        "hardswish": nn.hardswish,
        "exp": torch.exp,
        "softmax": functools.partial(torch.softmax, dim=-1),
        "where": torch.where,
        "indices": indices,
        "np": np,
    }


@functools.cache
def _in_place() -> dict[str, Callable[..., Any]]:
    import torch  # noqa: PLC0415

    def gelu(x: Any, approximate: str = "none") -> Any:
        return torch.ops.aten.gelu_(x, approximate=approximate)

    return {
        "add": operator.iadd,
        "sub": operator.isub,
        "mul": operator.imul,
        "div": operator.itruediv,
        "relu": torch.relu_,
        "silu": functools.partial(torch.nn.functional.silu, inplace=True),
        "gelu": gelu,
        "sigmoid": torch.sigmoid_,
        "tanh": torch.tanh_,
        "square": torch.square_,
        "exp": torch.exp_,
    }


def in_place(steps: tuple[Step, ...], operands: dict[str, Any]) -> list[Callable[[Any], Any]]:
    """PyTorch's kernels of steps, one each, that change the running value.

    Args:
        steps: of a chain.
        operands: tensors by name, those of other chains' values too.

    Raises:
        BenchError: a step has no such kernel.
    """
    table = _in_place()
    made: list[Callable[[Any], Any]] = []
    for step in steps:
        others = [operands.get(a, a) if isinstance(a, str) else a for a in step.arguments[1:]]
        swapped = step.arguments[0] != VALUE
        if swapped and step.function in ("add", "mul"):
            others = [operands[str(step.arguments[0])]]
        elif swapped or step.function not in table:
            raise BenchError(f"no kernel in place does {step.function}", where="PyTorch")
        call = table[step.function]
        made.append(functools.partial(_apply, call, (*others, *step.words)))
    return made


def _apply(call: Callable[..., Any], others: tuple[Any, ...], value: Any) -> Any:
    return call(value, *others)
