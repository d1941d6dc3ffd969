"""Rows in groups that follow each other: a product by groups, and values of a group.

`ends` says where groups end: row t belongs to the first group e with ``t < ends[e]``. That names
the rows from the greatest of 0 and of all ends before up to the group's own end, whatever `ends`
holds: a group whose end is not greater than one before it has no rows, and rows from the greatest
end on have no group.

On traced values the functions are recorded (`polygen.frontend.grouping`), on arrays they compute.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polygen.errors import ArgumentError
from polygen.frontend.grouping import grouped_axes
from polygen.frontend.symbolic import first_symbolic

Array = np.ndarray[Any, Any]


def bounds(ends: Any, rows: int) -> tuple[Array, Array]:
    """The first row of every group, and the one behind its last.

    Args:
        ends: whole numbers, of any values.
        rows: how many there are.

    Returns:
        Two vectors as long as `ends`: ``first[e] <= last[e]``, ``first[e + 1] == last[e]``.
    """
    clipped = np.clip(np.asarray(ends).astype(np.int64), 0, rows)
    last = np.maximum.accumulate(clipped)
    return np.concatenate([[0], last])[: len(last)], last


def grouped_matmul(x: Any, w: Any, ends: Any) -> Any:
    """``x[t] @ w[e]`` for each row t of `x`, where e is the first group with ``t < ends[e]``.

    Args:
        x: ``[T, K]``, rows of one group behind those of the one before.
        w: ``[E, K, N]``, a matrix for every group; ``w.mT`` of ``[E, N, K]``.
        ends: ``s32[E]``, where each group ends: prefix sums of their numbers of rows. A group may
            have no rows.

    Returns:
        ``[T, N]``. Rows that have no group, from the greatest end on, are not computed: a kernel
        leaves such rows of its outputs as they are; on arrays they are NaN.

    Raises:
        ShapeError: operands without rows, groups or columns, or dims that differ.
        DTypeError: no tensor core multiplies these dtypes, or ends that are not s32.
        UnsupportedProgram: ends that are no argument of the function.
    """
    traced = first_symbolic((x, w, ends))
    if traced is not None:
        return traced.grouped_matmul(x, w, ends)
    grouped_axes(("x", np.shape(x)), ("w", np.shape(w)), ("ends", np.shape(ends)))
    found = np.full((x.shape[0], w.shape[2]), np.nan, np.result_type(x, w))
    for group, (first, last) in enumerate(zip(*bounds(ends, len(x)), strict=True)):
        found[first:last] = np.matmul(np.asarray(x[first:last]), np.asarray(w[group]))
    return found.view(type(x)) if isinstance(x, np.ndarray) else found


def per_group(rows: Any, ends: Any, like: Any) -> Any:
    """Row t of the result is row e of `rows`, where e is the group of row t of `like`.

    Args:
        rows: ``[E, N]`` or ``[E]``, something for every group: a bias, a scale.
        ends: ``s32[E]``, as `grouped_matmul` takes it.
        like: ``[T, …]``, of which only the number of rows matters.

    Returns:
        ``[T, N]`` or ``[T]``; on arrays NaN in rows that have no group.

    Raises:
        ShapeError: not as many rows as there are groups, or `like` has no rows.
        DTypeError: ends that are not s32.
        UnsupportedProgram: rows or ends that are no argument of the function.
    """
    traced = first_symbolic((rows, ends, like))
    if traced is not None:
        return traced.per_group(rows, ends, like)
    found = np.full((len(like), *np.shape(rows)[1:]), np.nan, np.result_type(rows))
    for group, (first, last) in enumerate(zip(*bounds(ends, len(like)), strict=True)):
        found[first:last] = np.asarray(rows[group])
    return found.view(type(rows)) if isinstance(rows, np.ndarray) else found


def routed_ends(groups: int, rows: int, seed: int) -> Array:
    """Ends of groups to which every row goes by chance, as tokens go to experts.

    Args:
        groups: how many there are.
        rows: how many go to one of them each.
        seed: of the numbers.

    Returns:
        int32, as long as there are groups; the last end is `rows`.
    """
    found = np.random.default_rng(seed).multinomial(rows, [1.0 / groups] * groups)
    return np.asarray(np.cumsum(found), dtype=np.int32)


def whole_numbers(
    array: Any, name: str, each: str, *, several: bool = False
) -> np.ndarray[Any, Any]:
    """A vector of whole numbers on the host, or an array of several axes.

    Args:
        array: on the host or on a GPU, from where it is copied: this waits for the GPU.
        name: what it is called.
        each: what has a number.
        several: whether it may have several axes.

    Raises:
        ArgumentError: other numbers, or other axes.
    """
    held = getattr(array, "cpu", None) or getattr(array, "get", None)
    values = np.asarray(held() if held else array)
    if values.ndim not in ((1,) if not several else range(1, 65)) or values.dtype.kind not in "iu":
        raise ArgumentError(
            f"{name} of {values.dtype} with {values.ndim} axes",
            where=name,
            nearest=f"Pass whole numbers, one for each {each}",
        )
    return values


def check_ends(ends: Any, rows: int | None = None) -> None:
    """Refuse ends that are no prefix sums: kernels take any, and read no row twice.

    Args:
        ends: on the host or on a GPU, from where it is copied: this waits for the GPU.
        rows: that there are, which the last group must not end behind.

    Raises:
        ArgumentError: an end that is negative, less than the one before, or behind the last row;
            with the first such group.
    """
    values = whole_numbers(ends, "ends", "group")
    last = 0
    for group, end in enumerate(values.tolist()):
        if end < last or (rows is not None and end > rows):
            least = f"from {last}" if rows is None else f"{last} to {rows}"
            raise ArgumentError(
                f"group {group} ends at {end}",
                where="ends",
                why="a group ends behind its last row, and begins where the one before it ends",
                nearest=f"Legal there: {least}",
            )
        last = end
