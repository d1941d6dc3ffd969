"""Argument descriptions: ``x:bf16[M,K]:col@4`` to `Tensor`."""

from __future__ import annotations

import re

from polygen.errors import DTypeError, ShapeError, SignatureError, echo
from polygen.frontend.dtypes import dtype as to_dtype
from polygen.frontend.program import Dim, Tensor
from polygen.frontend.shapes import check_tensor

_FORM = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_]\w*)\s*:)?    # x:         the argument's name
    \s*(?P<dtype>\w+)                         # bf16
    \s*(?:\[(?P<dims>[^\]]*)\])?              # [M,K]      none for a run-time scalar
    \s*(?::\s*(?P<layout>\w+))?               # :col, :021 row-major when left out
    \s*(?:@\s*(?P<alignment>\d+))?\s*         # @4         bytes; 16 when left out
    """,
    re.VERBOSE | re.ASCII,
)
_FORMAT = (
    "Write name:dtype[dims], as in x:bf16[M,K], b:f32[N], q:bf16[B,M,K], s:f32; then :col for "
    "column-major, :0213 for axes stored in that order, @4 for an alignment of 4 bytes"
)
DEFAULT_ALIGNMENT = 16
_MOST_DIGITS = 4000


def parse_signature(text: str) -> Tensor:
    """Reads one argument description.

    Args:
        text: ``[name:]dtype[dims][:layout][@bytes]``; dims are names or numbers, separated by
            commas; without dims (``f32`` or ``f32[]``) the argument is a run-time scalar. The
            layout is ``row``; ``col``, where each matrix of the last two axes is column-major; or
            the axes' numbers from the slowest to the contiguous one, as in ``0213``.

    Returns:
        The tensor; its name is empty when the text gives none.

    Raises:
        SignatureError: the text does not have that form, or names an unknown dtype or layout.
        ShapeError: a size below 1.
        DTypeError: a scalar that is not f32.
    """
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise SignatureError("not an argument description", where=echo(text), nearest=_FORMAT)
    try:
        dtype = to_dtype(match["dtype"])
    except DTypeError as error:
        raise SignatureError(
            error.what, where=repr(text), nearest=f"{error.nearest}. {_FORMAT}"
        ) from None
    dims = _dims(match["dims"], text)
    order = _order(match["layout"] or "row", len(dims))
    if order is None:
        raise SignatureError(
            f"layout {match['layout']!r} of {len(dims)} dim(s)",
            where=repr(text),
            nearest="A matrix is row or col; any array may name its axes from the slowest to the "
            f"contiguous one, as in 021. {_FORMAT}",
        )
    alignment = _whole(match["alignment"]) if match["alignment"] else DEFAULT_ALIGNMENT
    try:
        return check_tensor(Tensor(match["name"] or "", dtype, dims, order, alignment))
    except (ShapeError, DTypeError, SignatureError) as error:
        raise type(error)(
            error.what, where=repr(text), why=error.why, nearest=error.nearest
        ) from None


def _order(layout: str, rank: int) -> tuple[int, ...] | None:
    """The axes from the slowest to the contiguous one; None: no such layout of so many axes."""
    axes = tuple(range(rank))
    if layout == "row":
        return axes
    if layout == "col" and rank > 1:
        return (*axes[:-2], rank - 1, rank - 2)
    order = tuple(int(digit) for digit in layout if digit.isascii() and digit.isdigit())
    return order if rank and len(order) == len(layout) and sorted(order) == list(axes) else None


def _dims(text: str | None, whole: str) -> tuple[Dim, ...]:
    if text is None or not text.strip():
        return ()
    dims: list[Dim] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            raise SignatureError("an empty dim", where=repr(whole), nearest=_FORMAT)
        number = re.fullmatch(r"[+-]?\d+", part, re.ASCII)
        dims.append(_whole(part) if number else part)
    return tuple(dims)


def _whole(text: str) -> int:
    """A number; Python reads no more digits than some thousand, far beyond any legal value."""
    return int(text[:_MOST_DIGITS])
