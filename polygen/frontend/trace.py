"""The graph that a run of the user's function records.

1. Every operation on a traced value becomes a node, once its dims and dtypes are checked.
2. Nodes are interned: an expression written twice is one node.
3. Spellings of one thing become one node: `relu(v)` is `maximum(v, 0)`, a constant goes right in a
   commutative function, `x ** 2` is `square(x)`, a view of a view is one view.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polygen.errors import DTypeError, TraceError, UnsupportedProgram
from polygen.frontend.dtypes import BOOL, F32, TF32, DType
from polygen.frontend.expr import (
    ApplyNode,
    InputNode,
    MatmulNode,
    Node,
    ScalarNode,
    Size,
    ViewNode,
    describe,
    describe_cast,
    describe_matmul,
)
from polygen.frontend.functions import TABLE, bind, expand
from polygen.frontend.program import Tensor
from polygen.frontend.shapes import broadcast, check_matmul_dtypes, matmul_dims

_COMMUTATIVE = {"add", "mul", "minimum", "maximum"}
_LOGICAL = {"logical_and", "logical_or", "logical_not"}


class Trace:
    """The nodes of one run of the user's function, interned."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Any, ...], Node] = {}

    def _intern(self, make: Callable[..., Node], *fields: Any) -> Node:
        # repr tells 0.0 from -0.0, which compare equal; nodes compare by identity.
        key = (make, *(repr(f) if isinstance(f, float) else f for f in fields))
        return self._nodes.setdefault(key, make(*fields))

    def input(self, tensor: Tensor) -> Node:
        """The node of an argument."""
        return self._intern(InputNode, tensor)

    def lift(self, value: Any, where: str) -> Node:
        """The node of a number; nodes pass.

        Raises:
            TraceError: an array that is not an argument, NaN, not a number, or one that f32 cannot
                hold.
        """
        if isinstance(value, Node):
            return value
        if isinstance(value, Size):
            value.refuse()
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value.item()
        if isinstance(value, np.ndarray) or (hasattr(value, "__array__") and np.ndim(value)):
            raise TraceError(
                f"a captured array of shape {np.shape(value)} is used",
                where=where,
                why="the kernel sees only its arguments",
                nearest="Pass it as an argument",
            )
        number = _number(value)
        if number is None:
            raise TraceError(
                f"an operand is a {type(value).__name__}",
                where=where,
                nearest="Operands are arguments, values computed from them, and real numbers",
            )
        if math.isnan(number):
            raise TraceError("a constant is NaN", where=where, nearest="Use a number or infinity")
        _check_range(number, where)
        return self._intern(ScalarNode, number)

    def apply(self, function: str, *args: Any) -> Node:
        """Records a pointwise function of nodes and numbers.

        Raises:
            TraceError: the arguments do not fit the function.
            ShapeError: they do not broadcast.
            DTypeError: every operand of an arithmetic function is bool.
        """
        entry = TABLE[function]
        nodes = [self.lift(value, function) for value in bind(entry, args, {})]
        if entry.inline:
            inlined: Node = expand(function, nodes, self.apply)
            return inlined
        if function == "pow":
            return self._power(*nodes)
        nodes = self._typed(function, nodes)
        if function in _COMMUTATIVE and isinstance(nodes[0], ScalarNode):
            nodes.reverse()
        dims = broadcast(function, [(describe(node), node.dims) for node in nodes])
        return self._intern(ApplyNode, function, tuple(nodes), dims, entry.result)

    def _typed(self, function: str, nodes: list[Node]) -> list[Node]:
        """Arguments as the function wants them: conditions bool, everything else a number."""
        if function in _LOGICAL:
            return [self._condition(node) for node in nodes]
        if function == "where":
            return [self._condition(nodes[0]), *map(self._number, nodes[1:])]
        if all(node.dtype == BOOL for node in nodes):
            raise DTypeError(
                f"{function} of bool: {', '.join(map(describe, nodes))}",
                nearest='Use logical_and, logical_or, logical_not, or .astype("f32") first',
            )
        return [self._number(node) for node in nodes]

    def _condition(self, node: Node) -> Node:
        if node.dtype == BOOL:
            return node
        return self.apply("ne", node, 0.0)

    def _number(self, node: Node) -> Node:
        return self.cast(node, F32) if node.dtype == BOOL else node

    def cast(self, node: Node, dtype: DType) -> Node:
        """The node rounded to a dtype; nothing where that changes nothing."""
        if dtype == TF32:
            raise DTypeError(
                describe_cast(node, dtype),
                why="tf32 is how a matmul reads f32 storage, not a value's type",
                nearest='Use .astype("f32")',
            )
        if dtype == BOOL:
            return self._condition(node)
        rounded = isinstance(node, ApplyNode) and node.function == "cast"
        if node.dtype == dtype and (rounded or isinstance(node, (InputNode, ViewNode))):
            return node
        return self._intern(ApplyNode, "cast", (node,), node.dims, dtype)

    def _power(self, base: Node, exponent: Node) -> Node:
        if not isinstance(exponent, ScalarNode):
            if isinstance(base, ScalarNode) and base.value == 2.0:
                return self.apply("exp2", exponent)
            raise TraceError(
                f"the exponent of {describe(base)} ** {describe(exponent)} is not a number",
                nearest="Use exp, exp2, or a constant exponent",
            )
        base = self._number(base)
        if exponent.value == 1.0:
            return base
        if exponent.value == -1.0:
            return self.apply("div", 1.0, base)
        simple = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt"}
        if exponent.value in simple:
            return self.apply(simple[exponent.value], base)
        return self._intern(ApplyNode, "pow", (base, exponent), base.dims, F32)

    def matmul(self, lhs: Any, rhs: Any) -> Node:
        """Records a matrix product of two arguments, each possibly transposed.

        Raises:
            ShapeError: an operand is not a matrix, or inner dims differ.
            DTypeError: no tensor core multiplies these dtypes.
            UnsupportedProgram: an operand is computed.
        """
        left, right = self.lift(lhs, "matmul"), self.lift(rhs, "matmul")
        names = describe(left), describe(right)
        for node in (left, right):
            _check_operand(node, describe_matmul(left, right))
        dims = matmul_dims((names[0], left.dims), (names[1], right.dims))
        check_matmul_dtypes((names[0], left.dtype), (names[1], right.dtype))
        return self._intern(MatmulNode, left, right, dims)

    def view(self, node: Node, axes: Sequence[int | None]) -> Node:
        """Records other axes over the same elements; see `ViewNode`."""
        if isinstance(node, ViewNode):
            axes = [None if axis is None else node.axes[axis] for axis in axes]
            node = node.source
        if list(axes) == list(range(len(node.dims))):
            return node
        dims = tuple(1 if axis is None else node.dims[axis] for axis in axes)
        return self._intern(ViewNode, node, tuple(axes), dims)


def _number(value: Any) -> float | None:
    """A Python or NumPy real number as a float, or None."""
    if not isinstance(value, (numbers.Real, np.generic)) or isinstance(
        value, (np.complexfloating, np.flexible)
    ):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _check_range(number: float, where: str) -> None:
    """A finite number must not become an infinity in f32, nor another one zero."""
    least, most = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    with np.errstate(over="ignore", under="ignore"):
        stored = float(np.float32(number))
    if math.isfinite(number) and (math.isinf(stored) or (number and not stored)):
        near = math.copysign(float(most if stored else least), number)
        raise TraceError(
            f"a constant is {number!r}",
            where=where,
            why=f"the kernel computes in f32, where it would be {stored}",
            nearest=f"Use {near:.8g}, or {'an infinity' if stored else '0'} if that is meant",
        )


def _check_operand(node: Node, text: str) -> None:
    """A matmul operand must be an argument under a transpose at most."""
    source = node
    while isinstance(source, (ViewNode, ApplyNode)):
        if isinstance(source, ViewNode):
            source = source.source
        elif source.function == "cast":
            source = source.args[0]
        else:
            break
    if isinstance(source, MatmulNode):
        raise UnsupportedProgram(
            f"{text}: a second contraction (S1) feeds from S0, {describe(source)}",
            why="a contraction of a contraction is not supported yet",
            nearest="Make two functions, the first one returning " + describe(source),
        )
    bare = node.source if isinstance(node, ViewNode) else node
    if isinstance(bare, ScalarNode) or (isinstance(bare, InputNode) and len(node.dims) != 2):
        return  # the shape rule words these
    if not isinstance(bare, InputNode) or (isinstance(node, ViewNode) and None in node.axes):
        raise UnsupportedProgram(
            f"{text}: the operand {describe(node)} is computed",
            why="a matmul reads its operands from memory; a prologue is not supported yet",
            nearest="Pass the computed matrix as an argument",
        )
