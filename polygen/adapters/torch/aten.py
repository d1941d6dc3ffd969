"""PyTorch's graphs as the rules see them: ATen's operations in terms of polygen's vocabulary.

Each entry is the operation itself, with ATen's arguments, on arrays of the vocabulary. What a table
does not have is "other": it is never part of a kernel.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node as FxNode

from polygen.adapters.graphs import Graph, Node, same
from polygen.adapters.torch.tensors import KNOWN
from polygen.frontend import functions as f
from polygen.frontend.dtypes import BOOL, F32, DType
from polygen.frontend.folds import PUBLIC as FOLDED
from polygen.frontend.functions import PUBLIC

Call = Callable[..., Any]


def _scaled(value: Any, factor: Any) -> Any:
    return value if factor == 1 else factor * value


def _addmm(added: Any, x: Any, w: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _scaled(added, beta) + _scaled(x @ w, alpha)


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    if low is not None and high is not None:
        return PUBLIC["clip"](x, low, high)
    return f.maximum(x, low) if low is not None else f.minimum(x, high)


def _gelu(x: Any, *, approximate: str = "none") -> Any:
    return f.gelu(x, approximate)


def _bits(function: Call) -> Call:
    """A logical function, for bit operations on truth values."""
    return lambda *args: function(*args)


# Under ATen's names, without namespace and overload.
PRODUCTS: dict[str, Call] = {
    "mm": operator.matmul,
    "bmm": operator.matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
}
_ALIKE = (
    "abs", "exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh",
    "erf", "erfc", "erfinv", "sigmoid", "floor", "ceil", "trunc", "round", "sign", "hypot",
    "maximum", "minimum", "lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or",
    "logical_not", "where", "reciprocal", "relu", "silu", "copysign",
    "logaddexp", "isnan", "isinf",
)  # fmt: skip
POINTWISE: dict[str, Call] = {name: PUBLIC[name] for name in _ALIKE if name in PUBLIC}
POINTWISE |= {
    "neg": operator.neg,
    "add": lambda x, y, *, alpha=1: x + _scaled(y, alpha),
    "sub": lambda x, y, *, alpha=1: x - _scaled(y, alpha),
    "rsub": lambda x, y, alpha=1: y - _scaled(x, alpha),
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "square": PUBLIC["square"],
    "atan2": PUBLIC["arctan2"],
    "clamp": _clamp,
    "clamp_min": lambda x, low: f.maximum(x, low),
    "clamp_max": lambda x, high: f.minimum(x, high),
    "gelu": _gelu,
    "threshold_backward": lambda g, x, at: f.where(x <= at, 0.0, g),
    "bitwise_and": _bits(f.logical_and),
    "bitwise_or": _bits(f.logical_or),
    "bitwise_not": _bits(f.logical_not),
}
# An identity on values: what they are rounded to only counts when they leave the kernel.
CASTS = ("convert_element_type", "_to_copy", "clone", "alias")
VIEWS = ("view", "reshape", "_unsafe_view")
_CONSTANTS = ("full", "scalar_tensor")
# Along the last axis, which stays; then they are "fold".
FOLDS = {"amax": FOLDED["max"], "sum": FOLDED["sum"], "any": FOLDED["any"]}


def name_of(node: FxNode) -> str:
    """The operation's name, without namespace and overload."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "prims"):
        return str(target._schema.name).rpartition("::")[2]
    return ""


def translated(graph: torch.fx.Graph) -> Graph:
    """A graph of ATen's operations, as the rules see it."""
    constants: dict[str, float] = {}
    nodes: dict[str, Node] = {}
    results: set[str] = set()
    for node in graph.nodes:
        reads = [one.name for one in node.all_input_nodes]
        if node.op == "output":
            results |= set(reads)
            continue
        value = node.meta.get("val")
        if name_of(node) in _CONSTANTS and isinstance(value, torch.Tensor) and not value.dim():
            number = node.args[-1] if name_of(node) == "full" else node.args[0]
            if isinstance(number, int | float):
                constants[node.name] = float(number)
        found = None
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            found = _known(node, value, constants)
        if found is None:
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
            text = name_of(node)
            found = Node(node.name, "other", tuple(reads), shape, _dtype(value), text=text)
        nodes[node.name] = found
    return Graph(nodes, frozenset(results))


def _dtype(value: Any) -> DType | None:
    if not isinstance(value, torch.Tensor):
        return None
    if value.dtype == torch.float64 and value.device.type == "cpu":
        return F32  # exact values stand for f32
    return BOOL if value.dtype == torch.bool else KNOWN.get(value.dtype)


def _known(node: FxNode, value: torch.Tensor, constants: dict[str, float]) -> Node | None:
    """The node in polygen's terms; None: it is something else."""
    name, shape = name_of(node), tuple(value.shape)
    if name in VIEWS:
        source = node.args[0]
        assert isinstance(source, FxNode)
        before = tuple(source.meta["val"].shape)
        last = bool(before) and bool(shape) and same(before[-1:], shape[-1:])
        kind = "view" if last else "other"
        return Node(node.name, kind, (source.name,), shape, _dtype(value), _itself, text=name)
    if name in CASTS:
        return _cast(node, value)
    if name in FOLDS:
        return _fold(node, value)
    call = PRODUCTS.get(name) or POINTWISE.get(name)
    if call is None:
        return None
    if name == "mul" and value.dtype == torch.bool:
        name, call = "logical_and", POINTWISE["logical_and"]  # as decompositions write finiteness
    slots: list[Any] = []
    reads: list[str] = []
    for argument in node.args:
        if isinstance(argument, FxNode) and argument.name not in constants:
            if not isinstance(argument.meta.get("val"), torch.Tensor):
                return None  # a size
            slots.append(_Slot(len(reads)))
            reads.append(argument.name)
        else:
            given = constants[argument.name] if isinstance(argument, FxNode) else argument
            if isinstance(given, bool) or not isinstance(given, int | float | None):
                return None
            slots.append(float(given) if given is not None else None)
    keywords = dict(node.kwargs)
    if any(isinstance(item, FxNode) or key in ("dtype", "rounding_mode")
           for key, item in keywords.items()):  # fmt: skip
        return None

    def compute(*values: Any) -> Any:
        args = (values[slot.number] if isinstance(slot, _Slot) else slot for slot in slots)
        return call(*args, **keywords)

    kind = "product" if name in PRODUCTS else "pointwise"
    numbers = tuple(slot for slot in slots if isinstance(slot, float))
    text = name if all(number == 1 for number in keywords.values()) else f"{name} {keywords}"
    return Node(
        node.name, kind, tuple(reads), shape, _dtype(value), compute, text=text, numbers=numbers
    )


class _Slot:
    """A place among an operation's arguments that a value takes."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


def _itself(value: Any) -> Any:
    return value


def _cast(node: FxNode, value: torch.Tensor) -> Node | None:
    source = node.args[0]
    if not isinstance(source, FxNode) or not isinstance(source.meta.get("val"), torch.Tensor):
        return None
    if set(node.kwargs) - {"dtype"} and name_of(node) == "_to_copy":
        return None  # to another device, or another layout
    truth = source.meta["val"].dtype == torch.bool
    if value.dtype == torch.bool and not truth:
        return None
    compute = (lambda v: v.astype("f32")) if truth and value.dtype != torch.bool else _itself
    return Node(
        node.name, "pointwise", (source.name,), tuple(value.shape), _dtype(value), compute, True
    )


def _fold(node: FxNode, value: torch.Tensor) -> Node | None:
    """A fold of the last axis, which stays; None: another one."""
    source, *rest = node.args
    if not isinstance(source, FxNode) or len(rest) != 2 or not rest[1]:
        return None
    axes = rest[0] if isinstance(rest[0], list | tuple) else [rest[0]]
    if list(axes) not in ([-1], [value.dim() - 1]):
        return None
    name, fold = name_of(node), FOLDS[name_of(node)]

    def compute(of: Any) -> Any:
        return fold(of, -1, True)

    return Node(
        node.name, "fold", (source.name,), tuple(value.shape), _dtype(value), compute, text=name
    )
