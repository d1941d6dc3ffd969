"""Concatenations and parts of values, carried to where arrays are read and results are stored.

A kernel keeps no array between its statements, so a concatenation is none either. It stays
outermost: what is applied to it is applied to each part, with the others' elements that go with it.

    gelu(concatenate([a, b]) + c)   = concatenate([gelu(a + c[:n]), gelu(b + c[n:])])
    x @ concatenate([u, v]).T       = concatenate([x @ u.T, x @ v.T], axis=1)
    concatenate([x, h], 1) @ w.T    = x @ w[:, :k].T + h @ w[:, k:].T

What is left in the end is an output, of which every part is stored in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from polygen.errors import DTypeError, ShapeError, UnsupportedProgram, without_number
from polygen.frontend.describing import describe
from polygen.frontend.dtypes import S8, DType
from polygen.frontend.forms import Digit, Form
from polygen.frontend.nodes import JoinNode, Node, ProductNode, Reach, reach_of, walk
from polygen.frontend.program import Dim
from polygen.frontend.shapes import ProductAxes, shape_text

if TYPE_CHECKING:
    from polygen.frontend.trace import Trace


# --- concatenations ------------------------------------------------------------------------------
def concatenated(trace: Trace, nodes: Sequence[Node], axis: int) -> Node:
    """Values behind one another along an axis.

    Args:
        trace: of the values.
        nodes: at least one.
        axis: counted from 0.

    Raises:
        ShapeError: the other axes differ, or an extent along the axis has no number.
        DTypeError: they are of different types.
    """
    first = nodes[0]
    parts: list[Node] = []
    for node in nodes:
        for at, (dim, own) in enumerate(zip(first.dims, node.dims, strict=True)):
            if at != axis and dim != own:
                raise ShapeError.between(
                    dim,
                    own,
                    f"{describe(first)} and {describe(node)} behind one another along axis {axis}",
                    why=f"they are {shape_text(first.dims)} and {shape_text(node.dims)}",
                    nearest=f"All axes but axis {axis} have the same size",
                )
        along = node.dims[axis]
        if isinstance(along, str):
            what = f"{describe(node)} behind others along {along}"
            raise without_number(ShapeError, what, along, "where the next begins")
        if node.dtype != first.dtype:
            raise DTypeError(
                f"{describe(first)} is {first.dtype}, {describe(node)} is {node.dtype}",
                why="values behind one another are of one type",
                nearest=f'Write .astype("{first.dtype}")',
            )
        parts += node.parts if isinstance(node, JoinNode) and node.axis == axis else (node,)
    return _join(trace, parts, axis)


def _join(trace: Trace, parts: Sequence[Node], axis: int) -> Node:
    if len(parts) == 1:
        return parts[0]
    extents = [part.dims[axis] for part in parts]
    dims = list(parts[0].dims)
    dims[axis] = sum(extent for extent in extents if isinstance(extent, int))
    return trace.make(JoinNode, tuple(parts), axis, tuple(dims))


def _ranges(node: JoinNode) -> Iterator[tuple[Node, int, int]]:
    """The parts of a concatenation, and from where to where each is."""
    start = 0
    for part in node.parts:
        extent = part.dims[node.axis]
        assert isinstance(extent, int)  # `concatenated` refuses names
        yield part, start, start + extent
        start += extent


def first_join(nodes: Sequence[Node]) -> JoinNode | None:
    """The first of several values that is a concatenation."""
    return next((node for node in nodes if isinstance(node, JoinNode)), None)


def applied(trace: Trace, function: str, nodes: Sequence[Node], joined: JoinNode) -> Node:
    """A pointwise function part by part; the others broadcast to the concatenation."""
    rank = max(len(node.dims) for node in nodes)
    axis = joined.axis + rank - len(joined.dims)
    found = []
    for _, start, end in _ranges(joined):
        args = (_along(trace, node, axis - rank, start, end) for node in nodes)
        found.append(trace.apply(function, *args))
    return _join(trace, found, axis)


def _along(trace: Trace, node: Node, axis: int, start: int, end: int) -> Node:
    """What goes with the elements from `start` to `end` of axis `axis`, counted from the last."""
    if -axis > len(node.dims) or node.dims[axis] == 1:
        return node
    return part(trace, node, axis + len(node.dims), start, end)


def part(trace: Trace, node: Node, axis: int, start: int, end: int) -> Node:
    """The elements of a value from `start` to `end` along an axis."""
    reaches = [Reach(at, 1, start if at == axis else 0) for at in range(len(node.dims))]
    dims = [end - start if at == axis else dim for at, dim in enumerate(node.dims)]
    return trace.reach(node, reaches, dims)


def each_cast(trace: Trace, node: JoinNode, dtype: DType) -> Node:
    """The parts rounded."""
    return _join(trace, [trace.cast(one, dtype) for one in node.parts], node.axis)


def multiplied(
    trace: Trace,
    left: Node,
    right: Node,
    axes: ProductAxes,
    text: str,
    joined: JoinNode,
    *,
    whole: bool,
) -> Node:
    """A product with a concatenation: one of products, or where it is summed over, their sum.

    Without `whole` it is itself a term of such a sum.

    Raises:
        DTypeError: products of integers, whose sums are exact, would be added as floats.
    """
    labels = axes.lhs if joined is left else axes.rhs
    label = labels[joined.axis]
    found = []
    for own, start, end in _ranges(joined):
        sides = []
        for node, named in ((left, axes.lhs), (right, axes.rhs)):
            at = named.index(label) if label in named else None
            if node is joined:
                sides.append(own)
            elif at is None or node.dims[at] == 1:
                sides.append(node)
            else:
                sides.append(part(trace, node, at, start, end))
        dims, summed = list(axes.dims), list(axes.summed)
        place, extents = (label, dims) if label < len(dims) else (label - len(dims), summed)
        extents[place] = end - start
        own_axes = replace(axes, dims=tuple(dims), summed=tuple(summed))
        one, other = sides
        own_sum = whole and label < len(axes.dims)
        found.append(trace.product(one, other, own_axes, text, whole=own_sum))
    if label < len(axes.dims):
        return _join(trace, found, label)
    if left.dtype == S8:
        raise DTypeError(
            f"{describe(left)} and {describe(right)} are s8, in parts along what is summed",
            why="sums of whole numbers are exact, and those of two products would be added as f32",
            nearest='Multiply part by part, and add with .astype("f32") where that is meant',
        )
    total = found[0]
    for one in found[1:]:
        total = trace.apply("add", total, one)
    return total


def reached(trace: Trace, node: JoinNode, reaches: Sequence[Reach], dims: Sequence[Dim]) -> Node:
    """A view of a concatenation: one of the views of its parts.

    Raises:
        UnsupportedProgram: rows that a vector names, repeated elements, or a reshape, along its
            axis.
    """
    own = reaches[node.axis]
    if own.form is not None and (found := _chosen(trace, node)) is not None:
        return trace.reach(found, reaches, dims)
    if own.rows is not None or own.form is not None or own.per > 1:
        what = "named by a vector" if own.rows is not None else "repeated"
        what = what if own.form is None else "split or merged"
        raise UnsupportedProgram(
            f"elements of {describe(node)} {what} along axis {node.axis}",
            why="which part they are of is not known of all of them at once",
            nearest="Take them of the parts, and put those behind one another, or change the axes "
            "outside, as of an array with the parts one behind the other",
        )
    count = 1 if own.axis is None else dims[own.axis]
    assert isinstance(count, int)
    # a part, where it begins, the place of the first in it, how many: parts may be one array
    runs: list[tuple[Node, int, int, int]] = []
    for place in (own.scale * at + own.offset for at in range(count)):
        whole, start = next((one, b) for one, b, e in _ranges(node) if b <= place < e)
        if runs and runs[-1][1] == start:
            runs[-1] = (*runs[-1][:3], runs[-1][3] + 1)
        else:
            runs.append((whole, start, place - start, 1))
    views = []
    for whole, _, first, number in runs:
        here, kept = list(reaches), list(dims)
        here[node.axis] = Reach(own.axis, own.scale, first)
        if own.axis is not None:
            kept[own.axis] = number
        views.append(trace.reach(whole, here, kept))
    return views[0] if own.axis is None else _join(trace, views, own.axis)


def _chosen(trace: Trace, node: JoinNode) -> Node | None:
    """A concatenation as a value, each of whose elements is one of the parts': each is computed at
    its place modulo the part's extent. None: it has products in it, which run where parts are, or a
    part begins elsewhere than at a multiple of its extent.
    """
    behind = (one for part_of in node.parts for one in walk(part_of, products=False))
    if any(isinstance(one, ProductNode | JoinNode) for one in behind):
        return None
    if any(start % (end - start) for _, start, end in _ranges(node)):
        return None
    at = trace.coordinates(node)[node.axis]
    found: Node | None = None
    for part_of, start, end in reversed(list(_ranges(node))):
        reaches = [Reach(axis) for axis in range(len(node.dims))]
        inside = Form((Digit(node.axis, modulo=end - start),)) if end - start > 1 else Form(())
        reaches[node.axis] = reach_of(inside)
        own = trace.reach(part_of, reaches, node.dims)
        found = (
            own if found is None else trace.apply("where", trace.apply("lt", at, end), own, found)
        )
    assert found is not None
    return found if found.dtype == node.dtype else trace.cast(found, node.dtype)


def leaves(node: Node) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """The values that a concatenation is made of, and where each begins along every axis."""
    if not isinstance(node, JoinNode):
        yield node, (0,) * len(node.dims)
        return
    for own, start, _ in _ranges(node):
        for leaf, at in leaves(own):
            yield leaf, tuple(b + start * (n == node.axis) for n, b in enumerate(at))
