"""The subscripts of an einsum, and what those of one or two operands mean.

1. The text is split into one label per axis; an ellipsis stands for labels of its own, aligned
   right.
2. What NumPy would refuse too is a TraceError or a ShapeError; what is no contraction (a diagonal,
   a sum over one operand's axis alone) is an UnsupportedProgram that names it.
3. Labels are numbered as `ProductNode` wants them: along the output, then the summed ones in the
   order in which the first operand has them, so that all spellings of one product are one node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from operator import index
from typing import Any

from polygen.errors import PolygenError, ShapeError, TraceError, UnsupportedProgram
from polygen.frontend.nodes import Dims
from polygen.frontend.program import Dim
from polygen.frontend.shapes import ProductAxes, dim_hint, shape_text, sum_hint

_TERM = re.compile(r"[A-Za-z]*(?:\.\.\.)?[A-Za-z]*")
_FORM = 'As in einsum("bmk,kn->bmn", x, w): a letter per axis, ... for the leading ones'
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

Labels = tuple[str, ...]
Operands = Sequence[tuple[str, Dims]]  # how each reads, and its dims


def subscripts_text(subscripts: object) -> str:
    """The subscripts, if they are a text.

    Raises:
        TraceError: they are not, as in NumPy's other form with lists.
    """
    if not isinstance(subscripts, str):
        raise TraceError(
            f"einsum with subscripts {subscripts!r}", why="they are a text", nearest=_FORM
        )
    return subscripts


def einsum_axes(
    subscripts: str, operands: Operands, where: str
) -> tuple[tuple[Labels, ...], Labels]:
    """The labels of each operand's axes, and of the output's.

    Args:
        subscripts: NumPy's: ``bmk,kn->bmn``, ``...mk,kn``.
        operands: per operand, how it reads and its dims.
        where: the call, for messages.

    Raises:
        TraceError: the text is malformed or does not name so many operands.
        ShapeError: an operand has another number of axes.
        UnsupportedProgram: a label twice in one operand.
    """
    inputs, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    bad = next((term for term in (*terms, result) if not _TERM.fullmatch(term)), None)
    if bad is not None:
        raise TraceError(f"{bad!r} is no term of an einsum", where=where, nearest=_FORM)
    if len(terms) != len(operands):
        raise TraceError(
            f"the subscripts name {len(terms)} operands and {len(operands)} are given",
            where=where,
            nearest=_FORM,
        )
    labels = tuple(_expand(t, op, where) for t, op in zip(terms, operands, strict=True))
    for term, own, (text, _) in zip(terms, labels, operands, strict=True):
        twice = [label for label, count in Counter(own).items() if count > 1]
        if twice:
            raise UnsupportedProgram(
                f"{term!r} takes a diagonal of {text}: it names {twice[0]} {own.count(twice[0])} "
                "times",
                where=where,
                why="a contraction reads every element of its operands",
                nearest=f"Give each axis of {text} a letter of its own, or pass the diagonal",
            )
    return labels, _output(result if arrow else None, labels, where)


def _expand(term: str, operand: tuple[str, Dims], where: str) -> Labels:
    """A label per axis of the operand; those of an ellipsis are numbered from its right end."""
    text, dims = operand
    before, ellipsis, after = term.partition("...")
    rest = len(dims) - len(before) - len(after)
    if rest < 0 or (rest and not ellipsis):
        raise ShapeError(
            f"{term!r} names {len(before) + len(after)} axes, {text} has {len(dims)}",
            where=where,
            why=f"{text} is {shape_text(dims)}",
            nearest="Give each axis a letter, or write ... for the leading ones",
        )
    return (*before, *(f"...{n}" for n in range(rest, 0, -1)), *after)


def _output(result: str | None, labels: Sequence[Labels], where: str) -> Labels:
    """The output's labels; without an arrow the leading ones, and those named once, sorted."""
    counts = Counter(label for own in labels for label in own)
    leading = sorted((la for la in counts if la.startswith("...")), key=_place, reverse=True)
    if result is None:
        return (*leading, *sorted(la for la, n in counts.items() if n == 1 and la not in leading))
    before, ellipsis, after = result.partition("...")
    output = (*before, *(leading if ellipsis else ()), *after)
    for label, count in Counter(output).items():
        if count > 1 or label not in counts:
            reason = f"{count} times" if count > 1 else "which no operand has"
            raise TraceError(f"the output names {label} {reason}", where=where, nearest=_FORM)
    if leading and not ellipsis:
        raise TraceError(
            "the operands have leading axes under ... and the output has none",
            where=where,
            nearest=f"Write ->...{result}",
        )
    return output


def _place(label: str) -> int:
    return int(label[3:])


def tensordot_subscripts(left: int, right: int, axes: Any) -> str:
    """The subscripts that mean ``np.tensordot``.

    Args:
        left: how many axes the first operand has.
        right: the second.
        axes: how many last axes of the first meet as many first ones of the second, or which.

    Raises:
        TraceError: there are no such axes.
    """
    try:
        if isinstance(axes, (tuple, list)):
            first, second = ([one] if isinstance(one, int) else list(one) for one in axes)
        else:
            count = index(axes)
            first, second = list(range(left - count, left)), list(range(count))
        own = [left + one if one < 0 else one for one in first]
        other = [right + one if one < 0 else one for one in second]
        fits = len(own) == len(other) and 0 < len(set(own)) == len(own) <= left
        fits = fits and len(set(other)) == len(other)
        fits = fits and all(0 <= n < left for n in own) and all(0 <= n < right for n in other)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise TraceError(
            f"tensordot over axes {axes!r} of operands with {left} and {right} axes",
            nearest="Write how many last axes meet the first ones, or two lists of axes",
        )
    names = list(_LETTERS[:left])
    others = list(_LETTERS[left : left + right])
    for one, at in zip(own, other, strict=True):
        others[at] = names[one]
    result = [n for at, n in enumerate(names) if at not in own]
    result += [n for at, n in enumerate(others) if at not in other]
    return f"{''.join(names)},{''.join(others)}->{''.join(result)}"


def product_axes(
    labels: tuple[Labels, Labels], output: Labels, operands: Operands, where: str
) -> ProductAxes:
    """The axes of a contraction of two operands; nothing is summed if they share no other label.

    Raises:
        ShapeError: a label stands for dims that differ.
        UnsupportedProgram: a label that only one operand has is summed.
    """
    extents: dict[str, Dim] = {}
    for own, (_, dims) in zip(labels, operands, strict=True):
        for label, dim in zip(own, dims, strict=True):
            first = extents.setdefault(label, dim)
            if first == dim:
                continue
            if 1 not in (first, dim) or label not in output:
                raise _mismatch(label, labels, operands, where, stretches=label in output)
            extents[label] = dim if first == 1 else first
    summed = [label for label in labels[0] if label not in output]
    alone = [
        (label, text)
        for own, other, (text, _) in zip(labels, reversed(labels), operands, strict=True)
        for label in own
        if label not in output and label not in other
    ]
    if alone:
        label, text = alone[0]
        raise only_one(label, text, where)
    numbers = {label: number for number, label in enumerate((*output, *summed))}
    lhs, rhs = (tuple(numbers[label] for label in own) for own in labels)
    dims, sums = (tuple(extents[label] for label in group) for group in (output, summed))
    return ProductAxes(lhs, rhs, dims, sums)


def only_one(label: str, text: str, where: str) -> PolygenError:
    """The refusal of a sum over an axis that one operand has alone."""
    return UnsupportedProgram(
        f"a sum over {label}, an axis of {text} alone",
        where=where,
        why="a contraction sums over what both operands have; other sums are not supported yet",
        nearest=f"Keep {label} in the output, or sum {text} outside",
    )


def _mismatch(
    label: str, labels: tuple[Labels, Labels], operands: Operands, where: str, stretches: bool
) -> ShapeError:
    found = [dims[own.index(label)] for own, (_, dims) in zip(labels, operands, strict=True)]
    named = [f"{text} has {dim}" for (text, _), dim in zip(operands, found, strict=True)]
    what = "a leading axis" if label.startswith("...") else label
    nearest = dim_hint(*found) if stretches else sum_hint(*found)
    return ShapeError.between(
        found[0],
        found[1],
        f"{what} stands for dims that differ: {', '.join(named)}",
        where=where,
        why=", ".join(f"{text} is {shape_text(dims)}" for text, dims in operands),
        nearest=nearest,
    )


def notation(axes: ProductAxes) -> str:
    """Subscripts that mean these axes, for messages."""
    lhs, rhs, out = (
        "".join(_LETTERS[label % len(_LETTERS)] for label in group)
        for group in (axes.lhs, axes.rhs, range(len(axes.dims)))
    )
    return f"{lhs},{rhs}->{out}"
