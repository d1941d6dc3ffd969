"""Expressions: the operator surface that symbolic values share, and the nodes a trace is made of.

Nodes are interned by the trace that makes them (equal expressions are the same object), so identity
is equality and a shared subexpression is one node.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from polygen.errors import TraceError
from polygen.frontend.dtypes import F32, DType
from polygen.frontend.forms import Digit, Form
from polygen.frontend.program import Dim, Tensor

Dims = tuple[Dim, ...]


class Size:
    """A dim with a name, as a function sees it in ``x.shape``: it has no number yet.

    It prints as its name and equals its name; whatever would need the number is refused.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return self.name == (other.name if isinstance(other, Size) else other)

    def __hash__(self) -> int:
        return hash(self.name)

    def refuse(self, *_: object) -> NoReturn:
        """Raise TraceError: the number is not known."""
        raise TraceError(
            f"the size {self.name} is used as a number",
            why="sizes are arguments of the kernel: the function is run once, for all of them",
            nearest=f'Pass the number as an argument (f32), or fix it with static=("{self.name}",)',
        )

    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = refuse
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = refuse
    __index__ = __int__ = __float__ = refuse


class Symbolic:
    """Python operators in terms of one method, `apply(function, *args)`.

    The tracer's values and the terms with which `expand` runs a definition both derive from it, so
    that one definition serves tracing, code generation and NumPy.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # == is elementwise, as in NumPy

    @abstractmethod
    def apply(self, function: str, *args: Any) -> Any:
        """The value of `function` (a name of the table) at `args`."""

    def __add__(self, other: Any) -> Any:
        return self.apply("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self.apply("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self.apply("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.apply("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self.apply("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.apply("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.apply("div", other, self)

    def __pow__(self, other: Any) -> Any:
        return self.apply("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return self.apply("pow", other, self)

    def __neg__(self) -> Any:
        return self.apply("neg", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self.apply("abs", self)

    def __lt__(self, other: Any) -> Any:
        return self.apply("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return self.apply("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return self.apply("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return self.apply("ge", self, other)

    def __eq__(self, other: Any) -> Any:
        return self.apply("eq", self, other)

    def __ne__(self, other: Any) -> Any:
        return self.apply("ne", self, other)


@dataclass(frozen=True, slots=True, eq=False)
class InputNode:
    """An argument of the traced function."""

    tensor: Tensor

    @property
    def dims(self) -> Dims:
        """The argument's dims."""
        return self.tensor.dims

    @property
    def dtype(self) -> DType:
        """The argument's storage type."""
        return self.tensor.dtype


@dataclass(frozen=True, slots=True, eq=False)
class ScalarNode:
    """A Python or NumPy number."""

    value: float
    dims: Dims = ()
    dtype: DType = F32


@dataclass(frozen=True, slots=True, eq=False)
class CoordinateNode:
    """Where an element of a value of `dims` is along one of its axes, counted from 0."""

    dims: Dims
    axis: int
    dtype: DType = F32


@dataclass(frozen=True, slots=True, eq=False)
class ApplyNode:
    """A pointwise function of the table; arguments broadcast to `dims`."""

    function: str
    args: tuple[Node, ...]
    dims: Dims
    dtype: DType  # f32, bool, or what a cast rounds to


@dataclass(frozen=True, slots=True, eq=False)
class ProductNode:
    """A sum of products of two operands over axes they share; a matrix product is one.

    Labels number the iterators: 0, 1, … run along the axes of `dims`, the ones after that along
    `summed`. An axis of size 1 under a longer iterator stretches.
    """

    lhs: Node
    rhs: Node
    lhs_labels: tuple[int, ...]  # per axis of the operand
    rhs_labels: tuple[int, ...]
    dims: Dims
    summed: Dims
    operand: DType  # what is multiplied
    notation: str  # "@", or the subscripts of an einsum that means it; follows from the labels
    dtype: DType = F32
    ends: InputNode | None = None  # of groups of rows: the label behind `summed` counts groups


@dataclass(frozen=True, slots=True, eq=False)
class GroupNode:
    """Rows of an argument, each repeated for all rows of a group: row t is its group's."""

    source: InputNode
    ends: InputNode
    dims: Dims

    @property
    def dtype(self) -> DType:
        """The argument's storage type."""
        return self.source.dtype


@dataclass(frozen=True, slots=True, eq=False)
class FoldNode:
    """A reduction of a value over some of its axes; `dims` are those of the others."""

    function: str  # of `polygen.frontend.monoids.MONOIDS`
    value: Node
    axes: tuple[int, ...]  # ascending
    dims: Dims
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class ExtentNode:
    """How many elements there are along some dims, as a number."""

    extents: Dims
    dims: Dims = ()
    dtype: DType = F32


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a view reads one axis of its source: ``scale * floor(position / per) + offset``.

    With `rows` that is a place in this vector, and the element is the one that stands there. Where
    the view splits or merges axes, `form` says it over the numbers of its axes, and no `axis` does.
    """

    axis: int | None  # the view's axis that gives the position; None: only at `offset`
    scale: int = 1
    offset: int = 0
    per: int = 1  # neighbours that read one element
    rows: InputNode | None = None
    form: Form | None = None

    @property
    def whole(self) -> Form:
        """The form, of every reach."""
        if self.form is not None:
            return self.form
        if self.axis is None:
            return Form((), self.offset)
        return Form((Digit(self.axis, self.scale, self.per),), self.offset)


def reach_of(form: Form) -> Reach:
    """A form over axes as the simplest reach."""
    if not form.terms:
        return Reach(None, offset=form.offset)
    only = form.only
    if only is None:
        return Reach(None, form=form)
    assert isinstance(only.of, int)
    return Reach(only.of, only.scale, form.offset, only.per)


@dataclass(frozen=True, slots=True, eq=False)
class ViewNode:
    """Elements under other axes: permuted, sliced, at one place, with new axes of size 1."""

    source: Node
    reaches: tuple[Reach, ...]  # per axis of the source
    dims: Dims

    @property
    def dtype(self) -> DType:
        """The source's dtype."""
        return self.source.dtype

    @property
    def axes(self) -> tuple[int | None, ...]:
        """Per axis of the view the source's axis it runs along; None for a new one."""
        along = {reach.axis: axis for axis, reach in enumerate(self.reaches)}
        return tuple(along.get(axis) for axis in range(len(self.dims)))

    @property
    def by_index(self) -> bool:
        """Whether rows are taken by index."""
        return any(reach.rows is not None for reach in self.reaches)


@dataclass(frozen=True, slots=True, eq=False)
class JoinNode:
    """Values behind one another along an axis; always outermost (`polygen.frontend.joining`)."""

    parts: tuple[Node, ...]  # of one type, two or more
    axis: int
    dims: Dims

    @property
    def dtype(self) -> DType:
        """The parts' dtype."""
        return self.parts[0].dtype


Node = (
    InputNode
    | ScalarNode
    | CoordinateNode
    | ExtentNode
    | ApplyNode
    | ProductNode
    | FoldNode
    | GroupNode
    | ViewNode
    | JoinNode
)

GROUPED = "grouped_matmul"  # the notation of a product by groups of rows

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}
_INFIX |= {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_SUM, _PRODUCT, _POWER, _ATOM = 1, 2, 3, 4  # how tightly an operator binds; comparisons 0
_BINDING = {"add": _SUM, "sub": _SUM, "mul": _PRODUCT, "div": _PRODUCT, "pow": _POWER}


def describe(node: Node, depth: int = 3) -> str:
    """The expression as a person would write it, for messages; deeper parts become ``…``."""
    if isinstance(node, InputNode):
        return node.tensor.name
    if isinstance(node, ScalarNode):
        return f"{node.value:g}"
    if isinstance(node, CoordinateNode):
        return f"indices(…)[{node.axis}]"
    if isinstance(node, ExtentNode):
        return f"size({', '.join(map(str, node.extents))})"
    if isinstance(node, GroupNode):
        return f"per_group({node.source.tensor.name}, {node.ends.tensor.name}, …)"
    if depth == 0:
        return "…"
    if isinstance(node, FoldNode):
        axis = ", ".join(map(str, node.axes))
        axis = f"({axis})" if len(node.axes) > 1 else axis
        return f"{node.function}({describe(node.value, depth - 1)}, axis={axis})"
    if isinstance(node, ProductNode):
        return describe_product(node.notation, node.lhs, node.rhs, depth)
    if isinstance(node, ViewNode):
        return _describe_view(node, depth)
    if isinstance(node, JoinNode):
        parts = ", ".join(describe(part, depth - 1) for part in node.parts)
        return f"concatenate([{parts}], axis={node.axis})"
    if node.function == "cast":
        return describe_cast(node.args[0], node.dtype, depth)
    if node.function in _INFIX:
        binding = _BINDING.get(node.function, 0)
        left = _operand(node.args[0], depth, binding)
        right = _operand(node.args[1], depth, binding + 1)
        return f"{left} {_INFIX[node.function]} {right}"
    return f"{node.function}({', '.join(describe(arg, depth - 1) for arg in node.args)})"


def describe_cast(node: Node, dtype: DType, depth: int = 3) -> str:
    """A cast as a person would write it, for messages."""
    return f'{_operand(node, depth, _ATOM)}.astype("{dtype}")'


def describe_product(notation: str, lhs: Node, rhs: Node, depth: int = 3) -> str:
    """A product of two operands as a person would write it, for messages."""
    if notation == GROUPED:
        return f"{GROUPED}({describe(lhs, depth - 1)}, {describe(rhs, depth - 1)}, …)"
    if notation != "@":
        operands = ", ".join(describe(operand, depth - 1) for operand in (lhs, rhs))
        return f'einsum("{notation}", {operands})'
    return f"{_operand(lhs, depth, _PRODUCT)} @ {_operand(rhs, depth, _PRODUCT + 1)}"


def _describe_view(node: ViewNode, depth: int) -> str:
    """A view as subscripts in the order of the source's axes, then the order of its own."""
    text = _operand(node.source, depth, _ATOM)
    forms = [reach.form for reach in node.reaches if reach.form is not None]
    if any(form.padded or form.overlaps(dict(enumerate(node.dims))) for form in forms):
        return f"windows({text})" if len(node.dims) > len(node.reaches) else f"pad({text})"
    if forms:
        return f"{text}.reshape({', '.join(map(str, node.dims))})"
    for axis, reach in enumerate(node.reaches):
        if reach.per > 1 and reach.axis is not None:
            reaches, dims = list(node.reaches), list(node.dims)
            size = dims[reach.axis]
            reaches[axis] = replace(reach, per=1)
            dims[reach.axis] = size if isinstance(size, str) else size // reach.per
            once = ViewNode(node.source, tuple(reaches), tuple(dims))
            whole = dims == list(node.source.dims) and node.axes == tuple(range(len(dims)))
            text = describe(node.source if whole else once, depth)
            return f"repeat({text}, {reach.per}, axis={reach.axis})"
    kept = [axis for axis in node.axes if axis is not None]
    if kept == sorted(kept):
        items = []
        position = 0
        for axis, reach in enumerate(node.reaches):
            if reach.axis is not None:
                items += ["None"] * (reach.axis - position)
                position = reach.axis + 1
            items.append(_subscript(node, axis))
        items += ["None"] * (len(node.dims) - position)
        return f"{text}[{', '.join(items)}]"
    items = [_subscript(node, axis) for axis in range(len(node.reaches))]
    if set(items) != {":"}:
        text += f"[{', '.join(items)}]"
    remaining = sorted(kept)
    order = [remaining.index(axis) for axis in kept]
    if len(order) == 2:
        text += ".T"
    elif order == [*range(len(order) - 2), len(order) - 1, len(order) - 2]:
        text += ".mT"
    else:
        text += f".transpose({', '.join(map(str, order))})"
    if None in node.axes:
        new = ("None" if axis is None else ":" for axis in node.axes)
        text += f"[{', '.join(new)}]"
    return text


def _subscript(node: ViewNode, axis: int) -> str:
    """What a view takes of an axis of its source, as a subscript."""
    reach, extent = node.reaches[axis], node.source.dims[axis]
    if reach.rows is not None:
        return reach.rows.tensor.name
    if reach.axis is None:
        return str(reach.offset)
    size = node.dims[reach.axis]
    if isinstance(size, str) or isinstance(extent, str) or (size, reach.scale) == (extent, 1):
        return ":"
    stop = reach.offset + reach.scale * size
    start = str(reach.offset) if reach.offset != (0 if reach.scale > 0 else extent - 1) else ""
    end = str(stop) if 0 <= stop < extent else ""
    return f"{start}:{end}" + (f":{reach.scale}" if reach.scale != 1 else "")


def _operand(node: Node, depth: int, binding: int) -> str:
    """An operand in brackets where it binds less tightly than its operator."""
    own = _ATOM
    if isinstance(node, ProductNode):
        own = _PRODUCT if node.notation == "@" else _ATOM
    elif isinstance(node, ApplyNode) and node.function in _INFIX:
        own = _BINDING.get(node.function, 0)
    text = describe(node, depth - 1)
    return f"({text})" if own < binding and text != "…" else text
