"""Nodes: what a trace is made of.

Nodes are interned by the trace that makes them (equal expressions are the same object), so identity
is equality and a shared subexpression is one node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polygen.frontend.dtypes import F32, DType
from polygen.frontend.forms import Digit, Form
from polygen.frontend.program import Dim, Tensor

Dims = tuple[Dim, ...]


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
    wide: bool = False  # operands are said to be f32, and have no more digits than `operand`


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
    the view splits or merges axes, `form` says it over the numbers of its axes, and no `axis` does;
    `places` says so where `rows` has several axes, a form along each.
    """

    axis: int | None  # the view's axis that gives the position; None: only at `offset`
    scale: int = 1
    offset: int = 0
    per: int = 1  # neighbours that read one element
    rows: InputNode | None = None
    form: Form | None = None
    places: tuple[Form, ...] = ()

    @property
    def met(self) -> tuple[int, ...]:
        """The axes of the view that it depends on."""
        forms = self.places or (self.whole,)
        return tuple(dict.fromkeys(int(term.of) for form in forms for term in form.terms))

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


def named_at(rows: InputNode, places: tuple[Form, ...]) -> Reach:
    """What an array of numbers names at places over a view's axes, as the simplest reach."""
    if len(places) == 1:
        reach = reach_of(places[0])
        if reach.form is None:
            return Reach(reach.axis, reach.scale, reach.offset, reach.per, rows)
    return Reach(None, rows=rows, places=places)


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


def read_by(node: Node) -> tuple[Node, ...]:
    """What a view, a function, a fold or a product is computed from; nothing of other nodes."""
    if isinstance(node, ProductNode):
        return (node.lhs, node.rhs)
    if isinstance(node, ViewNode):
        return (node.source,)
    if isinstance(node, FoldNode):
        return (node.value,)
    return node.args if isinstance(node, ApplyNode) else ()


def walk(root: Node, *, products: bool) -> Iterator[Node]:
    """What a value is computed from, itself first, each once, in the order of the text.

    Args:
        root: the value.
        products: whether to go on behind products.
    """
    stack, seen = [root], set[Node]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if products or not isinstance(node, ProductNode):
            stack.extend(reversed(read_by(node)))
