"""Products as functions: on traced values they are recorded, on arrays they are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from polygen.frontend.symbolic import first_symbolic


def matmul(x: Any, y: Any) -> Any:
    """``x @ y``: matrices in the last two axes, batches before them; a vector is no batch.

    Raises:
        ShapeError: an operand is a scalar, inner dims differ, or batch dims do not broadcast.
        DTypeError: no tensor core multiplies these dtypes.
    """
    return np.matmul(x, y)


def einsum(subscripts: str, *operands: Any) -> Any:
    """A transposition of one operand or a contraction of two, as np.einsum's subscripts say.

    Args:
        subscripts: a letter per axis, as in ``bmk,kn->bmn``; ``...`` stands for leading axes.
        operands: one or two.

    Raises:
        TraceError: the subscripts are malformed.
        ShapeError: they do not fit the operands' dims.
        UnsupportedProgram: a diagonal, a sum over one operand alone, more than two operands.
    """
    traced = first_symbolic(operands)
    return (np if traced is None else traced).einsum(subscripts, *operands)
