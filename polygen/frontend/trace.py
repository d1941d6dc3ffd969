"""The graph that a run of the user's function records.

1. Every operation on a traced value becomes a node, once its dims and dtypes are checked.
2. Nodes are interned: an expression written twice is one node.
3. Spellings of one thing become one node: `relu(v)` is `maximum(v, 0)`, a constant goes right in a
   commutative function, `x ** 2` is `square(x)`, a view of a view is one view; in
   `polygen.frontend.multiplying` an einsum that is a matrix product is that product.
4. A computed operand of a product is rounded to the type that the product multiplies
   (`polygen.frontend.operands`).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from polygen.errors import (
    DTypeError,
    ShapeError,
    TraceError,
    UnsupportedProgram,
    in_digits,
    without_number,
)
from polygen.frontend.describing import describe, describe_cast, describe_product
from polygen.frontend.dtypes import ALWAYS_STORED, BOOL, F32, F64, STORED, TF32, DType
from polygen.frontend.expansion import expand
from polygen.frontend.forms import Digit, Form
from polygen.frontend.functions import TABLE, bind
from polygen.frontend.gathering import require_rows, require_source
from polygen.frontend.joining import (
    applied,
    each_cast,
    first_join,
    multiplied,
    reached,
)
from polygen.frontend.nodes import (
    ApplyNode,
    CoordinateNode,
    ExtentNode,
    InputNode,
    JoinNode,
    Node,
    ProductNode,
    Reach,
    ScalarNode,
    ViewNode,
    named_at,
)
from polygen.frontend.operands import rounded
from polygen.frontend.outer_factors import multiplied_behind
from polygen.frontend.program import Dim, Tensor
from polygen.frontend.reaching import through
from polygen.frontend.reshaping import by_digits, reshaped, split_labels
from polygen.frontend.scattering import Assignment, assignment, require_once
from polygen.frontend.shapes import ProductAxes, broadcast, check_matmul_dtypes
from polygen.frontend.symbolic import Size
from polygen.frontend.taking import taken, takes_part
from polygen.frontend.windows import padded, windows

_COMMUTATIVE = {"add", "mul", "minimum", "maximum"}
_LOGICAL = {"logical_and", "logical_or", "logical_not"}


class Trace:
    """The nodes of one run of the user's function, interned."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Any, ...], Node] = {}
        self.assigned: list[Assignment] = []  # what is stored into arguments

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse ``v.trace()``: by that name a value has the run that it is of."""
        raise TraceError("polygen has no `.trace` of values", nearest="Write `np.trace(v)`")

    def _intern(self, make: Callable[..., Node], *fields: Any) -> Node:
        # repr tells 0.0 from -0.0, which compare equal; nodes compare by identity.
        key = (make, *(repr(f) if isinstance(f, float) else f for f in fields))
        return self._nodes.setdefault(key, make(*fields))

    def make(self, kind: Callable[..., Node], *fields: Any) -> Node:
        """The node of a kind with some fields, the same for the same ones."""
        return self._intern(kind, *fields)

    def positions(self) -> dict[Node, int]:
        """When each node was made; a node is made after those it reads."""
        return {node: position for position, node in enumerate(self._nodes.values())}

    def _in_double(self) -> bool:
        """Whether an argument is f64: constants have its range."""
        inputs = (node for node in self._nodes.values() if isinstance(node, InputNode))
        return any(node.dtype == F64 for node in inputs)

    def input(self, tensor: Tensor) -> Node:
        """The node of an argument."""
        return self._intern(InputNode, tensor)

    def extent(self, *dims: Dim) -> Node:
        """How many elements there are along some dims."""
        return self.make(ExtentNode, dims)

    def lift(self, value: Any, where: str) -> Node:
        """The node of a number; nodes pass.

        Raises:
            TraceError: an array that is not an argument, not a number, or one that f32 cannot
                hold.
        """
        if isinstance(value, Node):
            return value
        if isinstance(value, Size):
            return self.extent(value.name)
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value.item()
        if isinstance(value, np.ndarray) or (hasattr(value, "__array__") and np.ndim(value)):
            raise TraceError(
                f"a captured array of shape {np.shape(value)} is used",
                where=where,
                why="the kernel sees only its arguments",
                nearest="Pass it as an argument",
            )
        try:
            number = _number(value)
        except OverflowError:  # a whole number that is beyond all floats
            stored = -math.inf if value < 0 else math.inf
            raise _beyond(in_digits(int(value)), stored, where) from None
        if number is None:
            raise TraceError(
                f"an operand is a {type(value).__name__}",
                where=where,
                nearest="Operands are arguments, values computed from them, and real numbers",
            )
        if not self._in_double():
            _check_range(number, where)
        return self._intern(ScalarNode, math.nan if math.isnan(number) else number)  # equal NaNs

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
        named = self._power(*nodes) if function == "pow" else None
        if named is not None:
            return named
        nodes = self._typed(function, nodes)
        if function in _COMMUTATIVE and isinstance(nodes[0], ScalarNode):
            nodes.reverse()
        dims = broadcast(function, [(describe(node), node.dims) for node in nodes])
        joined = first_join(nodes)
        if joined is not None:
            return applied(self, function, nodes, joined)
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
                nearest='Use .astype("f32"), which is multiplied as tf32 beside a tf32 operand',
            )
        if dtype not in STORED:
            raise DTypeError(
                describe_cast(node, dtype),
                why="values are whole bytes",
                nearest=f"Use {', '.join(map(str, ALWAYS_STORED))}",
            )
        if dtype == BOOL:
            return self._condition(node)
        if isinstance(node, JoinNode):
            return each_cast(self, node, dtype)
        rounded = isinstance(node, ApplyNode) and node.function == "cast"
        if node.dtype == dtype and (rounded or isinstance(node, (InputNode, ViewNode))):
            return node
        return self._intern(ApplyNode, "cast", (node,), node.dims, dtype)

    def _power(self, base: Node, exponent: Node) -> Node | None:
        """The node of a power that has a name of its own."""
        if isinstance(base, ScalarNode) and base.value == 2.0:
            return self.apply("exp2", exponent)
        if not isinstance(exponent, ScalarNode):
            return None
        base = self._number(base)
        if exponent.value == 1.0:
            return base
        if exponent.value == -1.0:
            return self.apply("div", 1.0, base)
        simple = {2.0: "square", 0.5: "sqrt"}
        name = simple.get(exponent.value)
        return self.apply(name, base) if name else None

    def coordinates(self, node: Node) -> list[Node]:
        """Records where the elements of a node are, axis by axis.

        Raises:
            ShapeError: it has no axis.
        """
        if not node.dims:
            raise ShapeError(
                f"indices of {describe(node)}",
                why="it is a single number, which has no axis",
                nearest="Take the indices of a value with axes, such as the product",
            )
        return [self._intern(CoordinateNode, node.dims, axis) for axis in range(len(node.dims))]

    def product(
        self,
        left: Node,
        right: Node,
        axes: ProductAxes,
        text: str,
        ends: InputNode | None = None,
        *,
        whole: bool = True,
    ) -> Node:
        """Records a product of two operands along axes that are known.

        Where it is a term of a sum, and not the `whole` of it, operands keep all of their factors.
        """
        joined = first_join((left, right))
        if joined is not None:
            if ends is not None:
                raise UnsupportedProgram(
                    f"{describe(joined)} in a product by groups of rows",
                    nearest="Multiply part by part, and put the results behind one another",
                )
            return multiplied(self, left, right, axes, text, joined, whole=whole)
        radices = split_labels(left, right, axes)
        if radices and ends is None:
            return by_digits(self, left, right, axes, radices, whole=whole)
        names = describe(left), describe(right)
        where = describe_product(text, left, right)
        made = rounded(
            self, left, right, axes, where, in_groups=ends is not None, whole=whole and ends is None
        )
        kind, other = made.kinds
        check_matmul_dtypes((names[0], kind), (names[1], other))
        fields = (axes.lhs, axes.rhs, axes.dims, axes.summed, kind, text, F32, ends, made.wide)
        product = self._intern(ProductNode, made.left, made.right, *fields)
        return multiplied_behind(self, product, made.factors)

    def view(self, node: Node, axes: Sequence[int | None]) -> Node:
        """Records other axes over the same elements: per axis the node's, or None for a new one."""
        along = {axis: place for place, axis in enumerate(axes) if axis is not None}
        reaches = tuple(Reach(along.get(axis)) for axis in range(len(node.dims)))
        return self.reach(node, reaches, [1 if axis is None else node.dims[axis] for axis in axes])

    def reshape(self, node: Node, shape: Sequence[Any]) -> Node:
        """Records the same elements, in row-major order, under other axes.

        Raises:
            ShapeError: there are more or fewer elements, or a size has no number where axes of it
                are split or merged.
            UnsupportedProgram: no sum of digits says where an element is.
        """
        paged = isinstance(node, ViewNode) and node.by_index
        reaches, dims = reshaped(describe(node), node.dims, shape, paged=paged)
        return self.reach(node, reaches, dims)

    def windows(self, node: Node, shape: Any, axis: Any) -> Node:
        """Records NumPy's sliding windows: `polygen.frontend.windows.windows`."""
        reaches, dims = windows(describe(node), node.dims, shape, axis)
        return self.reach(node, reaches, dims)

    def pad(self, node: Node, width: Any, value: Any) -> Node:
        """Records an array with zeros around it: `polygen.frontend.windows.padded`."""
        reaches, dims = padded(describe(node), node.dims, width, value)
        return self.reach(node, reaches, dims)

    def repeat(self, node: Node, count: int, axis: int) -> Node:
        """Records a value whose elements along an axis come `count` times, as np.repeat.

        Raises:
            ShapeError: the axis has a size without a number.
        """
        dim = node.dims[axis]
        if isinstance(dim, str) and count > 1:
            what = f"the elements of {describe(node)} along {dim} repeated {count} times"
            more = f", and so for the axis of {count} times as many that it meets"
            raise without_number(ShapeError, what, dim, "how many that are", more)
        reaches = [Reach(n, per=count if n == axis else 1) for n in range(len(node.dims))]
        dims = [
            d * count if n == axis and isinstance(d, int) else d for n, d in enumerate(node.dims)
        ]
        return self.reach(node, reaches, dims)

    def gather(self, node: Node, rows: Node) -> Node:
        """Records the elements of a node's first axis that an array names, as ``node[rows]``.

        Raises:
            ShapeError: no array of indices, or nothing that has rows.
            DTypeError: indices that are not s32.
            UnsupportedProgram: indices that are no argument, or rows of a part or a product.
        """
        named = require_rows(rows)
        require_source(node, named)
        own = len(named.dims)
        first = named_at(named, tuple(Form((Digit(axis),)) for axis in range(own)))
        others = (Reach(axis + own - 1) for axis in range(1, len(node.dims)))
        return self.reach(node, [first, *others], [*named.dims, *node.dims[1:]])

    def assign(self, node: Node, rows: Node, value: Any) -> None:
        """Records ``node[rows] = value``: `polygen.frontend.scattering.assignment`."""
        one = assignment(node, rows, self.lift(value, f"{describe(node)}[…] = …"))
        require_once(self.assigned, one)
        self.assigned.append(one)

    def reach(self, node: Node, reaches: Sequence[Reach], dims: Sequence[Dim]) -> Node:
        """Records a view, see `ViewNode`; a view of a view is one view, and no view the node."""
        if isinstance(node, ViewNode):
            extents = dict(enumerate(dims))
            reaches = [through(node, inner, reaches, extents) for inner in node.reaches]
            node = node.source
        if isinstance(node, JoinNode):
            return reached(self, node, reaches, dims)
        if takes_part(node, reaches, dims):
            return taken(self, node, reaches, dims)
        whole = [Reach(axis) for axis in range(len(node.dims))]
        if list(reaches) == whole and tuple(dims) == node.dims:
            return node
        return self._intern(ViewNode, node, tuple(reaches), tuple(dims))


def _number(value: Any) -> float | None:
    """A Python or NumPy real number as a float, or None."""
    if not isinstance(value, (numbers.Real, np.generic)) or isinstance(
        value, (np.complexfloating, np.flexible)
    ):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _check_range(number: float, where: str) -> None:
    """A finite number must not become an infinity in f32, nor another one zero."""
    with np.errstate(over="ignore", under="ignore"):
        stored = float(np.float32(number))
    if math.isfinite(number) and (math.isinf(stored) or (number and not stored)):
        raise _beyond(repr(number), stored, where)


def _beyond(number: str, stored: float, where: str) -> TraceError:
    """The error for a number that would become an infinity, or a zero with its sign."""
    least, most = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    near = math.copysign(float(most if stored else least), stored)
    return TraceError(
        f"a constant is {number}",
        where=where,
        why=f"the kernel computes in f32, where it would be {stored}",
        nearest=f"Use {near:.8g}, or {'an infinity' if stored else '0'} if that is meant",
    )
