"""The recorded errors of functions, of which docs/accuracy.md has a table."""

from __future__ import annotations

from polygen.emit.functions import form
from polygen.emit.primitives import COMPOSITES, EXPANDED, PRIMITIVES


def fast_error(name: str, constant: float | None) -> tuple[float, float]:
    """The largest error of what `expression` gives with `fast`.

    Args:
        name: a primitive, or a key of `COMPOSITES`.
        constant: the last argument, if it is a number.

    Returns:
        (absolute, relative), as `Emitted.fast_error`; zeros where there is no fast form: the error
        is that of f32 arithmetic.
    """
    return (0.0, 0.0) if name == "cast" else form(name, constant, True).fast_error


def recorded_error(name: str, constant: float | None, fast: bool) -> tuple[float, float]:
    """The largest error of a function of the vocabulary, against its reference in float64.

    Args:
        name: a key of `polygen.frontend.functions.TABLE`, not a cast.
        constant: the last argument, if it is a number.
        fast: in kernels whose outputs all have 16 bits or fewer.

    Returns:
        (absolute, relative), as `Emitted.error`.
    """
    known = name in PRIMITIVES or name in COMPOSITES
    entry = form(name, constant, fast) if known else EXPANDED
    return entry.fast_error if fast and any(entry.fast_error) else entry.error
