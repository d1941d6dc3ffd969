"""Reshapes: where the elements of an array are under other axes, in row-major order.

1. Axes without a number stay whole, and cut both shapes into runs of numbers: between the same
   sizes a run has as many elements before as after. Axes of size 1 come and go anywhere.
2. Inside a run an element has one number, ``sum of place * elements behind``, over the new axes. An
   old axis is a digit of it.
3. That digit is a sum of digits of the new axes wherever the reshape splits and merges axes
   (`polygen.frontend.forms`); where it mixes them there is none, and the reshape is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import index
from typing import TYPE_CHECKING, Any

from polygen.errors import PolygenError, ShapeError, UnsupportedProgram, shortened
from polygen.frontend.describing import describe
from polygen.frontend.forms import Digit, Form, composed
from polygen.frontend.indices import multiple, named_in, times_in
from polygen.frontend.nodes import Dims, Node, Reach, ViewNode, reach_of
from polygen.frontend.program import Dim
from polygen.frontend.shapes import ProductAxes, shape_text
from polygen.frontend.subscripts import notation
from polygen.frontend.symbolic import Size

if TYPE_CHECKING:
    from polygen.frontend.trace import Trace

_RUN = "the run"


def reshaped(
    text: str, dims: Dims, shape: Sequence[Any], *, paged: bool = False
) -> tuple[list[Reach], list[Dim]]:
    """What a reshape reads, and its dims.

    Args:
        text: how the value reads, for messages.
        dims: its dims.
        shape: the new ones: numbers, sizes as ``x.shape`` has them, or their names; one may be -1.
        paged: whether pages that a table names are reshaped, of which axes without a number are
            merged with those behind them.

    Returns:
        Per axis of the value where it is read, and the view's dims.

    Raises:
        ShapeError: the shapes have different elements, or a size without a number would be split
            or merged.
        UnsupportedProgram: the reshape mixes axes.
    """
    where = f"reshape of {text} from {shape_text(dims)} to {shape_text(tuple(shape))}"
    wanted = [dim_of(one, where, rest=True) for one in shape]
    wanted = _without_unknown(dims, wanted, where, paged=paged)
    apart = [_digits_of(dim, dims) for dim in wanted]
    if any(len(digits) > 1 for digits in apart):
        return _merged(text, dims, apart), wanted
    old, new = _runs(dims), _runs(tuple(wanted))
    names = [[dim for dim in whole if isinstance(dim, str)] for whole in (dims, wanted)]
    if names[0] != names[1] or any(
        math.prod(_numbers(dims, one)) != math.prod(_numbers(wanted, other))
        for one, other in zip(old, new, strict=True)
    ):
        raise _differs(where, dims, wanted)
    reaches: list[Reach] = [Reach(None)] * len(dims)
    for own, others in zip(_named(dims), _named(tuple(wanted)), strict=True):
        reaches[own] = Reach(others)
    extents = dict(enumerate(wanted))
    for own_axes, axes in zip(old, new, strict=True):
        sizes = _numbers(wanted, axes)
        behind = [math.prod(sizes[at + 1 :]) for at in range(len(axes))]
        number = Form(tuple(Digit(axis, step) for axis, step in zip(axes, behind, strict=True)))
        whole = math.prod(sizes)
        for at, axis in enumerate(own_axes):
            inside = math.prod(_numbers(dims, own_axes[at + 1 :]))
            extent = _numbers(dims, [axis])[0]
            modulo = extent if inside * extent < whole else 0
            digit = Form((Digit(_RUN, 1, inside, modulo),))
            found = composed(digit, {_RUN: number}, extents)
            if found is None:
                raise not_affine(where)
            reaches[axis] = reach_of(found)
    return reaches, wanted


def _digits_of(dim: Dim, dims: Dims) -> tuple[Dim, ...]:
    """A new axis as those that it is merged of: a size without a number, and a number behind it."""
    if isinstance(dim, int) or dim in dims or times_in(dim) == 1:
        return (dim,)
    return (*named_in(dim), times_in(dim))


def _merged(text: str, dims: Dims, apart: Sequence[tuple[Dim, ...]]) -> list[Reach]:
    """What a reshape reads that merges axes without a number with those behind them.

    They stay apart first; then a digit of either is one of the axis that both become.
    """
    whole = [one for digits in apart for one in digits]
    reaches, _ = reshaped(text, dims, whole)
    places: dict[int, Form] = {}
    for axis, digits in enumerate(apart):
        at = len(places)
        if len(digits) == 1:
            places[at] = Form((Digit(axis),))
            continue
        _, count = digits
        assert isinstance(count, int)
        places[at] = Form((Digit(axis, per=count),))
        places[at + 1] = Form((Digit(axis, modulo=count),))
    extents = dict(enumerate(digits[0] if len(digits) == 1 else None for digits in apart))
    found = []
    for reach in reaches:
        form = composed(reach.whole, places, extents)
        if form is None:
            raise not_affine(f"reshape of {text} to {shape_text(whole)}")
        found.append(reach_of(form))
    return found


def split_labels(left: Node, right: Node, axes: ProductAxes) -> dict[int, tuple[int, ...]]:
    """The labels of a product that an operand has merged of several axes, and their extents.

    Raises:
        UnsupportedProgram: both operands have merged one of others.
    """
    extents = dict(enumerate((*axes.dims, *axes.summed)))
    cuts: dict[int, set[int]] = {}
    # Where matrices that several read, as those of heads do, are others: they are counted as they
    # are, unless something else cuts their axis.
    others: dict[int, set[int]] = {}
    for node, labels in ((left, axes.lhs), (right, axes.rhs)):
        reaches = node.reaches if isinstance(node, ViewNode) else ()
        # Digits of an axis some of which a table of pages is read at are one axis of keys.
        paged = {axis for reach in reaches if reach.rows is not None for axis in reach.met}
        terms = [t for reach in reaches if reach.form is not None for t in reach.form.terms]
        apart = {term.of for term in terms if term.modulo}
        for reach in reaches:
            if reach.axis is not None and reach.per > 1:
                others.setdefault(labels[reach.axis], set()).add(reach.per)
            for term in reach.form.terms if reach.form is not None else ():
                label = labels[int(term.of)]
                if term.of in paged:
                    continue
                again = label < len(axes.dims) and label in axes.lhs and label in axes.rhs
                into = others if again and term.of not in apart else cuts
                places = {term.per, term.per * term.modulo} - {0, 1, extents[label]}
                into.setdefault(label, set()).update(places)
    found = {}
    for label, places in cuts.items():
        if not places:
            continue
        places |= others.get(label, set()) - {extents[label]}
        whole = extents[label]
        assert isinstance(whole, int)  # an axis without a number is never merged
        at = [1, *sorted(places), whole]
        if any(high % low for low, high in pairwise(at)):
            raise not_affine(f"a product of {describe(left)} and {describe(right)}")
        found[label] = tuple(high // low for low, high in pairwise(at))[::-1]
    return found


def axes_by_digits(axes: ProductAxes, radices: Mapping[int, tuple[int, ...]]) -> ProductAxes:
    """A product's axes where labels are split into several."""
    extents = (*axes.dims, *axes.summed)
    parts: list[tuple[Dim, ...]] = [
        radices.get(label, (extent,)) for label, extent in enumerate(extents)
    ]
    first = list(accumulate((len(one) for one in parts), initial=0))
    numbers = [tuple(range(start, end)) for start, end in pairwise(first)]
    rank = len(axes.dims)

    def labels(of: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number for label in of for number in numbers[label])

    dims, summed = (
        tuple(dim for one in some for dim in one) for some in (parts[:rank], parts[rank:])
    )
    return ProductAxes(labels(axes.lhs), labels(axes.rhs), dims, summed)


def not_affine(where: str) -> PolygenError:
    """The refusal of a reshape whose elements no sum of digits reaches."""
    return UnsupportedProgram(
        f"{where}: it mixes axes",
        why="an axis is read at a sum of digits of others: one that is split, or several merged",
        nearest="Split and merge axes one by one, as [4, 6] to [24] or to [2, 2, 6], or reshape "
        "outside",
    )


def mixed_rows(text: str) -> PolygenError:
    """The refusal of a reshape of rows by index, or of rows by index of a reshape."""
    return UnsupportedProgram(
        f"{text}: rows by index beside a reshape of them",
        why="rows by index are whole rows of an array",
        nearest="Reshape outside, and index the array as it is",
    )


def dim_of(given: Any, where: str, *, rest: bool = False) -> Dim:
    """A size as it is given.

    Args:
        given: a number, a size as ``x.shape`` has it, or its name.
        where: what is done with it, for messages.
        rest: whether it may be -1, for what is left.

    Raises:
        ShapeError: it is none.
    """
    if isinstance(given, Size):
        return given.name
    if isinstance(given, str):
        return given
    try:
        number = -2 if isinstance(given, bool) else index(given)
    except (TypeError, PolygenError):
        number = -2
    if number >= 1 or (rest and number == -1):
        return number
    raise ShapeError(
        f"{where}: {shortened(repr(given))} is no size",
        nearest="Sizes are numbers from 1 on, those of x.shape"
        + (", and one -1 for what is left" if rest else ""),
    )


def _without_unknown(
    dims: Dims, wanted: list[Dim], where: str, *, paged: bool = False
) -> list[Dim]:
    """The dims with the one that is left to find."""
    places = [at for at, dim in enumerate(wanted) if dim == -1]
    if not places:
        return wanted
    if len(places) > 1:
        raise ShapeError(f"{where}: several sizes are -1", nearest="Leave one of them to find")
    (at,) = places
    left = [dim for dim in dims if isinstance(dim, str)]
    for dim in wanted:
        if dim in left:
            left.remove(dim)
    numbers = math.prod(dim for dim in dims if isinstance(dim, int))
    given = math.prod(dim for dim in wanted if isinstance(dim, int) and dim != -1)
    if numbers % given or len(left) > 1 or (left and numbers != given and not paged):
        raise _differs(where, dims, wanted)
    wanted = list(wanted)
    wanted[at] = multiple(left[0], numbers // given) if left else numbers // given
    return wanted


def _differs(where: str, dims: Sequence[Dim], wanted: Sequence[Dim]) -> ShapeError:
    named = [dim for dim in (*dims, *wanted) if isinstance(dim, str)]
    if apart := [dim for dim in named if [*dims].count(dim) != [*wanted].count(dim)]:
        named = apart  # the others stay what they are
    if not named:
        return ShapeError(
            where,
            why=f"{math.prod(_all(dims))} elements are not {math.prod(_all(wanted))}",
            nearest="A reshape keeps every element",
        )
    error = ShapeError(
        where,
        why=f"how many elements {', '.join(dict.fromkeys(named))} stands for is known only at run "
        "time, so that it stays an axis of its own",
        nearest="Split and merge axes whose sizes are numbers, or write numbers in the signature. "
        "Products take leading axes as they are: x @ w.T",
    )
    error.unknown = tuple(dict.fromkeys(named))
    return error


def _all(dims: Sequence[Dim]) -> list[int]:
    return [dim for dim in dims if isinstance(dim, int) and dim != -1]


def _named(dims: Dims) -> list[int]:
    """The axes without a number."""
    return [axis for axis, dim in enumerate(dims) if isinstance(dim, str)]


def _runs(dims: Dims) -> list[list[int]]:
    """The axes with numbers, before, between and behind those without."""
    found: list[list[int]] = [[]]
    for axis, dim in enumerate(dims):
        if isinstance(dim, str):
            found.append([])
        else:
            found[-1].append(axis)
    return found


def _numbers(dims: Sequence[Dim], axes: Sequence[int]) -> list[int]:
    return [dim for dim in (dims[axis] for axis in axes) if isinstance(dim, int)]


def by_digits(
    trace: Trace,
    left: Node,
    right: Node,
    axes: ProductAxes,
    radices: Mapping[int, tuple[int, ...]],
    *,
    whole: bool,
) -> Node:
    """A product of reshaped operands as the reshape of a product of what they are made of.

    ``x.reshape(512, K) @ w`` of ``x[4,128,K]`` is ``(x @ w).reshape(512, N)``, and a sum over a
    merged axis is one over both.
    """
    finer = axes_by_digits(axes, radices)

    def split(node: Node, labels: tuple[int, ...]) -> Node:
        shape: list[Dim] = []
        for label, dim in zip(labels, node.dims, strict=True):
            parts = radices.get(label, (dim,))
            shape += [1] * len(parts) if dim == 1 else parts
        return trace.reshape(node, shape)

    sides = split(left, axes.lhs), split(right, axes.rhs)
    return trace.reshape(trace.product(*sides, finer, notation(finer), whole=whole), axes.dims)
