"""Folds of nodes: axes by NumPy's rules, and functions that are a fold with pointwise work.

mean(v)        sum(v) / size                all(v), any(v)    min, max of v != 0, as numbers
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

from polygen.errors import ShapeError, TraceError, UnsupportedProgram, echo
from polygen.frontend.describing import describe
from polygen.frontend.dtypes import BOOL, F32
from polygen.frontend.monoids import INDEX, MONOIDS
from polygen.frontend.nodes import Dims, FoldNode, JoinNode, Node
from polygen.frontend.shapes import shape_text
from polygen.frontend.trace import Trace

# NumPy's names of reductions that values have as methods.
METHODS = ("sum", "prod", "max", "min", "mean", "all", "any", "argmax", "argmin")


def folded(trace: Trace, node: Node, function: str, axis: Any, keepdims: bool) -> Node:
    """Records a reduction of a node.

    Args:
        trace: of the node.
        node: what is reduced.
        function: one of `METHODS`, "logsumexp", or "deviations" from the mean.
        axis: a number, several, or None for all axes.
        keepdims: leave axes of size 1 where axes are folded.

    Raises:
        ShapeError: the node has no such axis, or none.
        TraceError: `axis` is no number, or an index along several axes is asked for.
    """
    axes = axes_of(function, node, axis)
    if function in ("all", "any"):
        truth = trace.cast(trace.cast(node, BOOL), F32)
        found = _fold(trace, truth, "min" if function == "all" else "max", axes)
        found = trace.cast(found, BOOL)
    elif function == "mean":
        total, extents = _fold(trace, node, "sum", axes), tuple(node.dims[at] for at in axes)
        found = trace.apply("div", total, trace.extent(*extents))
    else:
        found = _fold(trace, node, function, axes)
    if not keepdims:
        return found
    kept = [at for at in range(len(node.dims)) if at not in axes]
    return trace.view(
        found, [None if at in axes else kept.index(at) for at in range(len(node.dims))]
    )


def _fold(trace: Trace, node: Node, function: str, axes: tuple[int, ...]) -> Node:
    monoid = MONOIDS[function]
    if INDEX in monoid.terms and len(axes) > 1:
        raise TraceError(
            f"{function} of {describe(node)} along {len(axes)} axes",
            why="an index into all elements has no exact number in f32",
            nearest="Pass axis=, one number",
        )
    if isinstance(node, JoinNode):
        raise UnsupportedProgram(
            f"{function} of {describe(node)}",
            why="its parts are computed by tiles of their own",
            nearest="Fold each part, and combine what comes of them",
        )
    if node.dtype == BOOL:
        node = trace.cast(node, F32)
    dims: Dims = tuple(dim for at, dim in enumerate(node.dims) if at not in axes)
    return trace.make(FoldNode, function, node, axes, dims, monoid.result)


def axes_of(function: str, node: Node, axis: Any) -> tuple[int, ...]:
    """The axes that are meant, ascending."""
    rank, text = len(node.dims), f"{function} of {describe(node)}"
    if not rank:
        raise ShapeError(
            text, why="it is a single number, which has no axis", nearest="Leave the fold out"
        )
    given: Sequence[Any] = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    if axis is None:
        given = range(rank)
    if not given:
        raise ShapeError(f"{text} along no axis", nearest="Pass axis=None for all of them")
    found = []
    for one in given:
        try:
            number = index(one)
        except (TypeError, TraceError):
            of_two = {"max": "maximum(a, b)", "min": "minimum(a, b)"}.get(function)
            raise TraceError(
                f"{text}: the axis {echo(one)}",
                nearest="Axes are whole numbers, or None for all"
                + (f". Of two values: `{of_two}`" if of_two else ""),
            ) from None
        if not -rank <= number < rank:
            raise ShapeError(
                f"{text}: there is no axis {number}",
                why=f"it is {shape_text(node.dims)}",
                nearest=f"Axes are {-rank} to {rank - 1}",
            )
        found.append(number % rank)
    if len(set(found)) < len(found):
        raise ShapeError(f"{text}: axis {given} names one twice", nearest="Name every axis once")
    return tuple(sorted(found))


def refuse_keywords(name: str, keywords: dict[str, Any]) -> None:
    """Refuse what NumPy's reductions take and traced ones do not.

    Raises:
        TraceError: a keyword other than NumPy's default.
    """
    given = [word for word, value in keywords.items() if value is not None]
    if "where" in given:
        raise TraceError(
            f"np.{name} with where=",
            why="all elements along the axes are folded",
            nearest=f"Write np.{name}(np.where(…, v, x)), where x is a number that changes nothing",
        )
    if given:
        raise TraceError(f"np.{name} with {', '.join(given)}=", nearest="Leave it out")


def reduction(name: str) -> Callable[..., Any]:
    """NumPy's method of that name."""

    def method(value: Any, axis: Any = None, keepdims: Any = False, **others: Any) -> Any:
        refuse_keywords(name, others)
        return value.fold(name, axis, keepdims)

    method.__name__, method.__doc__ = name, f"NumPy's `{name}` along axes."
    return method
