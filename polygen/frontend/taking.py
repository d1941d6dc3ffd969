"""Parts of computed values, carried to what they are computed from.

A kernel keeps no array between its statements, so a part of a value is computed from parts:

    (x @ w.T)[:, a:b]                   = x @ w[a:b].T
    (x @ w.T).reshape(S, 16, 128)[..., :64]
                                        = einsum("sk,hdk->shd", x, w.reshape(16, 128, K)[:, :64])

An axis of the value is then read at `first`, and a step for every index of one new axis, or of
several where a reshape has split it: ``first + 128*h + d``. So it becomes these axes, in whatever
the value is computed from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from polygen.frontend.forms import Digit, Form
from polygen.frontend.nodes import (
    ApplyNode,
    CoordinateNode,
    Dims,
    FoldNode,
    Node,
    ProductNode,
    Reach,
    ViewNode,
    reach_of,
    walk,
)
from polygen.frontend.program import Dim
from polygen.frontend.shapes import ProductAxes
from polygen.frontend.subscripts import notation

if TYPE_CHECKING:
    from polygen.frontend.trace import Trace


@dataclass(frozen=True, slots=True)
class Taken:
    """The elements of an axis that are taken: ``first + step * i``, summed over new axes.

    Attributes:
        first: where they begin.
        steps: of the new axes, slowest first: how far from one index to the next, and how many.
    """

    first: int
    steps: tuple[tuple[int, Dim], ...]

    @property
    def dims(self) -> Dims:
        """How many elements there are along each new axis."""
        return tuple(count for _, count in self.steps)

    @property
    def stretched(self) -> Taken:
        """The only element of an axis that is broadcast to this one."""
        return Taken(0, ((1, 1),) * len(self.steps))


_Part = tuple[Node, tuple[Taken, ...]]


def takes_part(node: Node, reaches: Sequence[Reach], dims: Sequence[Dim]) -> bool:
    """Whether a view takes some elements of a value of products, which its operands' make."""
    if not all(map(_in_steps, reaches)):
        return False
    met = [axis for one in reaches for axis in one.met]
    some = any(_some(one, extent, dims) for one, extent in zip(reaches, node.dims, strict=True))
    return some and len({*met}) == len(met) and _of_products(node)


def split_axes(view: ViewNode) -> dict[int, tuple[Digit, ...]]:
    """The axes of a value of products that a view splits, and the digits that they become.

    None, where another axis of the value is read in a way that its operands could not be.
    """
    every = [axis for one in view.reaches for axis in one.met]
    inside = all(map(_in_steps, view.reaches)) and len({*every}) == len(every)
    if not inside or not _of_products(view.source):
        return {}
    terms = ((axis, _slowest_first(one)) for axis, one in enumerate(with_single(view)))
    return {axis: digits for axis, digits in terms if len(digits) > 1}


def with_single(view: ViewNode) -> list[Reach]:
    """The reaches of a view whose new axes of size 1 are digits of the axes behind them: one head
    is a head.
    """
    met = {axis: at for at, one in enumerate(view.reaches) for axis in one.met}
    found, behind = list(view.reaches), None
    for axis in reversed(range(len(view.dims))):
        if axis in met:
            behind = met[axis]
        elif view.dims[axis] == 1 and behind is not None:
            whole = found[behind].whole
            counts = (
                abs(t.scale) * d for t in whole.terms if isinstance(d := view.dims[int(t.of)], int)
            )
            most = max(counts, default=0)
            if most:  # of an axis without a number nobody says how far the next index is
                found[behind] = reach_of(Form((Digit(axis, most), *whole.terms), whole.offset))
    return found


def _slowest_first(reach: Reach) -> tuple[Digit, ...]:
    return tuple(sorted(reach.whole.terms, key=lambda term: -abs(term.scale)))


def _in_steps(reach: Reach) -> bool:
    """Whether an axis is read at steps of the view's axes, inside of it."""
    if reach.rows is not None or reach.whole.padded:
        return False
    axes = [term.of for term in reach.whole.terms]
    plain = all((term.per, term.modulo) == (1, 0) for term in reach.whole.terms)
    return plain and len({*axes}) == len(axes)


def _some(reach: Reach, extent: Dim, dims: Sequence[Dim]) -> bool:
    whole = reach.whole
    counts = [(term.scale, dims[int(term.of)]) for term in whole.terms]
    if not counts:
        return isinstance(extent, int) and extent > 1
    if len(counts) == 1:
        return (counts[0], whole.offset) != ((1, extent), 0)
    behind = 1  # of an axis that is split: every digit counts what there is of those behind it
    for scale, count in sorted(counts, key=lambda one: abs(one[0])):
        if scale != behind or not isinstance(count, int):
            return True
        behind *= count
    return (behind, whole.offset) != (extent, 0)


def products_of(node: Node) -> list[ProductNode]:
    """The products that a value is made of, none of those behind them."""
    return [one for one in walk(node, products=False) if isinstance(one, ProductNode)]


def _of_products(node: Node) -> bool:
    """Whether products without groups of rows are behind a value."""
    found = products_of(node)
    return bool(found) and all(one.ends is None for one in found)


def taken(trace: Trace, node: Node, reaches: Sequence[Reach], dims: Sequence[Dim]) -> Node:
    """A view of a value of products, computed from parts of what it is computed from."""
    own: list[Taken] = []
    back: list[Reach] = []
    for reach in reaches:
        terms = _slowest_first(reach)
        steps = tuple((term.scale, dims[int(term.of)]) for term in terms) or ((1, 1),)
        own.append(Taken(reach.whole.offset, steps))
        back += [Reach(int(term.of)) for term in terms] or [Reach(None)]
    return trace.reach(_of_parts(trace, node, tuple(own)), back, dims)


def _of_parts(trace: Trace, root: Node, whole: tuple[Taken, ...]) -> Node:
    """An expression over fewer elements. An explicit stack: it may be deeper than Python's."""
    made: dict[_Part, Node] = {}
    stack: list[_Part] = [(root, whole)]
    while stack:
        node, own = stack[-1]
        if (node, own) in made:
            stack.pop()
            continue
        needs = [
            (arg, _of_argument(node.dims, own, arg)) for arg in node.args
        ] if isinstance(node, ApplyNode) else []  # fmt: skip
        pending = [one for one in needs if one not in made]
        if pending:
            stack.extend(pending)
            continue
        made[node, own] = _made(trace, node, own, [made[one] for one in needs])
        stack.pop()
    return made[root, whole]


def _of_argument(dims: Dims, whole: tuple[Taken, ...], arg: Node) -> tuple[Taken, ...]:
    """The elements of an argument that go with some of what it is broadcast to."""
    own = whole[len(dims) - len(arg.dims) :]
    return tuple(one.stretched if dim == 1 else one for dim, one in zip(arg.dims, own, strict=True))


def _made(trace: Trace, node: Node, whole: tuple[Taken, ...], args: list[Node]) -> Node:
    dims = tuple(dim for one in whole for dim in one.dims)
    if isinstance(node, ApplyNode):
        return trace.make(ApplyNode, node.function, tuple(args), dims, node.dtype)
    if isinstance(node, ProductNode):
        return _product(trace, node, whole, dims)
    if isinstance(node, FoldNode):
        kept = iter(whole)
        own = [
            Taken(0, ((1, dim),)) if at in node.axes else next(kept)
            for at, dim in enumerate(node.value.dims)
        ]
        first = list(accumulate((len(one.steps) for one in own), initial=0))
        value, axes = _view(trace, node.value, own), tuple(first[at] for at in node.axes)
        return trace.make(FoldNode, node.function, value, axes, dims, node.dtype)
    if isinstance(node, CoordinateNode):
        return _coordinate(trace, node, whole, dims)
    return _view(trace, node, whole)


def _product(trace: Trace, node: ProductNode, whole: tuple[Taken, ...], dims: Dims) -> Node:
    """A product of parts; a label that is split is as many as the axes that it becomes."""
    every = [*whole, *(Taken(0, ((1, extent),)) for extent in node.summed)]
    first = list(accumulate((len(one.steps) for one in every), initial=0))
    numbers = [tuple(range(start, end)) for start, end in pairwise(first)]
    sides, labels = [], []
    for operand, named in ((node.lhs, node.lhs_labels), (node.rhs, node.rhs_labels)):
        own = [
            every[label].stretched if dim == 1 else every[label]
            for dim, label in zip(operand.dims, named, strict=True)
        ]
        sides.append(_view(trace, operand, own))
        labels.append(tuple(number for label in named for number in numbers[label]))
    axes = ProductAxes(labels[0], labels[1], dims, node.summed)
    text = node.notation if len(numbers) == first[-1] else notation(axes)
    return trace.make(
        ProductNode, *sides, *labels, dims, node.summed, node.operand, text, node.dtype, node.ends,
        node.wide,
    )  # fmt: skip


def _coordinate(trace: Trace, node: CoordinateNode, whole: tuple[Taken, ...], dims: Dims) -> Node:
    """Where the elements are that are taken, along the axis as it was."""
    before = sum(len(one.steps) for one in whole[: node.axis])
    own, found = whole[node.axis], None
    for axis, (step, _) in enumerate(own.steps, before):
        here: Node = trace.make(CoordinateNode, dims, axis)
        here = here if step == 1 else trace.apply("mul", here, float(step))
        found = here if found is None else trace.apply("add", found, here)
    assert found is not None
    return found if own.first == 0 else trace.apply("add", found, float(own.first))


def _view(trace: Trace, node: Node, whole: Sequence[Taken]) -> Node:
    reaches: list[Reach] = []
    dims: list[Dim] = []
    for one in whole:
        places = range(len(dims), len(dims) + len(one.steps))
        terms = tuple(Digit(at, step) for at, (step, _) in zip(places, one.steps, strict=True))
        only = len(terms) > 1 and set(one.dims) == {1}
        reaches.append(Reach(None, offset=one.first) if only else reach_of(Form(terms, one.first)))
        dims += one.dims
    return trace.reach(node, reaches, dims)
