"""Rows by index: ``x[rows]``, whose row t is row ``rows[t]`` of an array.

1. It is a view like any other, of which one axis is reached through an array of numbers. Views of
   it, and functions of what it is taken from, go through to the argument: ``(x * g)[rows]`` reads
   what ``x[rows] * g`` does.
2. The array may have several axes, as a table of pages has: ``pages[table]`` of s32[B,J] is
   ``pages[table[b, j]]`` at (b, j). A reshape that merges j with the places in a page leaves a sum
   of digits in each: key t is row ``t mod P`` of page ``table[b, floor(t / P)]``.
3. In a statement the axis has an index that only the numbers know (`Gathered`). What stands in
   them may be anything: they are kept inside of the axis. For numbers from 0 on and below its
   extent that is NumPy's meaning; a row that any other number names is one of the array's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polygen.errors import (
    ArgumentError,
    DTypeError,
    PolygenError,
    ShapeError,
    TraceError,
    UnsupportedProgram,
)
from polygen.frontend.describing import describe
from polygen.frontend.dtypes import S32
from polygen.frontend.groups import whole_numbers
from polygen.frontend.names import INDEX_HINT
from polygen.frontend.nodes import (
    ApplyNode,
    CoordinateNode,
    Dims,
    FoldNode,
    InputNode,
    Node,
    ProductNode,
    ScalarNode,
    ViewNode,
    read_by,
)
from polygen.frontend.program import Dim, Gathered, Index, Within
from polygen.frontend.shapes import shape_text
from polygen.frontend.symbolic import Symbolic


# --- what is traced ------------------------------------------------------------------------------
def index_array(key: Any, text: str, dims: Dims) -> Any:
    """The array of indices that a subscript has; None: it has none.

    Args:
        key: of the subscript.
        text: how the value reads, for messages.
        dims: its dims.

    Raises:
        UnsupportedProgram: several such arrays, one of another axis than the first, or one beside
            slices and places.
        TraceError: more indices than there are axes.
    """
    keys = key if isinstance(key, tuple) else (key,)
    found = [at for at, item in enumerate(keys) if isinstance(item, Symbolic)]
    if not found:
        return None
    where = f"indexing of {text} {shape_text(dims)}"
    if len(found) > 1:
        raise UnsupportedProgram(
            f"{where} with {len(found)} index arrays",
            why="one axis is read at places that numbers say: the first",
            nearest="Write x[rows], or w[columns].T for w.T[:, columns]",
        )
    others = [item for item in keys if item is not keys[found[0]]]
    if any(item is not Ellipsis and item != slice(None) for item in others):
        raise UnsupportedProgram(
            f"{where} with an index array beside slices, places or new axes",
            why="rows by index are whole rows",
            nearest="Take the part of them, as in x[rows][:, ::2] and x[rows][:, None]",
        )
    if found[0] > 0:
        raise UnsupportedProgram(
            f"{where} with an index array of another axis than the first",
            nearest="Transpose before and behind: x.T[columns].T for x[:, columns]",
        )
    if len(keys) - sum(item is Ellipsis for item in keys) > len(dims):
        raise TraceError(f"{where} with {len(keys)} indices", nearest=f"It has {len(dims)} axes")
    return keys[0]


def require_rows(node: Node, *, stored: bool = False) -> InputNode:
    """The argument that says which rows.

    Args:
        node: what stands between the brackets.
        stored: whether rows are stored by it.

    Raises:
        DTypeError: its elements are not s32.
        ShapeError: it has no axis, or rows are stored by one of several axes.
        UnsupportedProgram: it is computed, or a view.
    """
    text = describe(node)
    if not node.dims:
        raise ShapeError(
            f"the index {text} is one number, known only at run time", nearest=INDEX_HINT
        )
    if node.dtype != S32:
        raise DTypeError(
            f"the index {text} is {node.dtype}",
            why="it counts rows",
            nearest=f"Say s32{shape_text(node.dims)} in the signature, and pass int32; "
            "pg.where selects where a condition holds",
        )
    if stored and len(node.dims) != 1:
        raise ShapeError(
            f"the index {text} is {shape_text(node.dims)}",
            why="an index of rows that are stored has one axis, that of the rows it names",
            nearest="Pass a vector, s32[T], with the rows in its order",
        )
    if not isinstance(node, InputNode):
        raise UnsupportedProgram(
            f"the index {text} is no argument",
            why="the kernel reads which rows are meant from memory",
            nearest="Pass it as an argument, s32[T], and take parts behind: x[rows][::2]",
        )
    return node


def behind(node: Node) -> tuple[Node, ...]:
    """What a value is computed from, itself included, up to folds and products."""
    stack, seen = [node], dict[Node, None]()
    while stack:
        found = stack.pop()
        if found in seen:
            continue
        seen[found] = None
        if not isinstance(found, (FoldNode, ProductNode)):
            stack.extend(read_by(found))
    return tuple(seen)


def require_source(node: Node, rows: InputNode) -> None:
    """Refuse to read rows by index of what has none in memory.

    Raises:
        ShapeError: a number, or a first axis that no array has.
        UnsupportedProgram: a value of a product or a fold, of coordinates, of a part, or of rows by
            index.
    """
    text = f"{describe(node)}[{rows.tensor.name}]"
    if isinstance(node, ViewNode) and any(r.rows is not None and 0 in r.met for r in node.reaches):
        raise _twice(text)
    axes = node.axes if isinstance(node, ViewNode) else (0,)
    if not node.dims or axes[0] is None:
        raise ShapeError(
            f"{text}: {describe(node)} is {shape_text(node.dims)}",
            why="rows by index are those of an array's own axis",
            nearest="Pass an array with an axis of rows, such as w[V,K]",
        )
    others = coordinates_of_others(node)
    for found in behind(node):
        if found in others:
            continue
        if not isinstance(found, (ViewNode, ApplyNode, InputNode, ScalarNode)):
            raise _computed(text, found)
    if isinstance(node, ViewNode):
        reach = next(reach for reach in node.reaches if reach.axis == 0)
        if (reach.scale, reach.offset, reach.per) != (1, 0, 1):
            raise UnsupportedProgram(
                f"{text}: rows of a part, or of repeated rows",
                why="an index counts rows of an array, all of them",
                nearest="Add to the numbers what the part leaves out, and index the array",
            )


def coordinates_of_others(node: Node) -> set[Node]:
    """The coordinates behind a value that are not along its first axis: of the half of a byte."""
    while isinstance(node, ApplyNode) and node.function == "cast":
        (node,) = node.args
    if not isinstance(node, ApplyNode) or not node.function.startswith("nibble_"):
        return set()
    own = (one for one in node.args if isinstance(one, CoordinateNode))
    return {one for one in own if one.dims == node.dims and one.axis > 0}


def _computed(text: str, found: Node) -> UnsupportedProgram:
    if isinstance(found, CoordinateNode):
        return UnsupportedProgram(
            f"{text} reads coordinates by index",
            why="where an element is, numbers in memory do not say",
            nearest="Take indices of x[rows]: they count the rows that are named",
        )
    product = isinstance(found, ProductNode)
    return UnsupportedProgram(
        f"{text} reads {describe(found)} by index",
        why="a value lives at one point of the output, in a register",
        nearest="Index the operand, x[rows] @ w for (x @ w)[rows]"
        if product
        else "Return it, and index what the kernel returns",
    )


def _twice(text: str) -> UnsupportedProgram:
    return UnsupportedProgram(
        f"{text} is an index of an index",
        why="a row is read at one number from memory",
        nearest="Pass first[second], computed outside, as one vector",
    )


def one_row(rows: InputNode) -> PolygenError:
    """The refusal of a single one of the rows that a vector names."""
    name = rows.tensor.name
    return UnsupportedProgram(
        f"one of the rows that {name} names, for all places",
        why="rows by index lie along an axis of their own, each of which reads its own number",
        nearest=f"Pass {name} with as many elements as there are rows",
    )


def gathered(places: Sequence[Index], rows: InputNode, extent: Dim) -> Gathered:
    """The index of an axis of `extent` elements that is reached through an array of numbers.

    Args:
        places: along each axis of the array.
        rows: the array.
        extent: of the axis.

    Raises:
        UnsupportedProgram: at a constant place, or at one that is reached so itself.
    """
    found = []
    for place in places:
        if isinstance(place, Gathered):
            raise _twice(str(place))
        assert not isinstance(place, Within)  # made later
        found.append(place)
    if all(isinstance(place, int) for place in found):
        raise one_row(rows)
    return Gathered(tuple(found), rows.tensor.name, extent)


# --- on arrays -----------------------------------------------------------------------------------
def check_rows(rows: Any, count: int, *, unique: bool = False) -> None:
    """Refuse indices that name no row: kernels take any, and read one of the array's rows then, or
    store none.

    Args:
        rows: of ``x[rows]``, on the host or on a GPU, from where they are copied: this waits for
            the GPU. A table of pages has several axes.
        count: how many rows `x` has.
        unique: refuse as well that a row is named twice, as no ``x[rows] = …`` may.

    Raises:
        ArgumentError: an index that is negative, or not below `count`, or there before; with the
            first one.
    """
    values = whole_numbers(rows, "rows", "row", several=True)
    outside = np.argwhere((values < 0) | (values >= count))
    if len(outside):
        place = tuple(map(int, outside[0]))
        raise ArgumentError(
            f"row {', '.join(map(str, place))} is row {int(values[place])} of an array that has "
            f"{count}",
            where="rows",
            why="rows are counted from 0, and none from the end",
            nearest=f"Legal there: 0 to {count - 1}" if count else "No row is legal there",
        )
    again = np.setdiff1d(np.arange(values.size), np.unique(values, return_index=True)[1])
    if unique and len(again):
        second = int(again[0])
        first = int(np.flatnonzero(values == values[second])[0])
        raise ArgumentError(
            f"rows {first} and {second} are both row {int(values[second])}",
            where="rows",
            why="rows are stored in any order, so that which of both it keeps is chance",
            nearest="Name every row once",
        )
