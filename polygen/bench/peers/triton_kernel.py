"""The Triton kernel: a tiled product whose epilogue adds, activates and multiplies.

Blocks of consecutive numbers share rows of tiles (groups of `GROUP`), so that they find operands in
the second-level cache. Triton pipelines the loads; there are no tensor maps and no persistent
blocks. Importing this module imports Triton.
"""
# ruff: noqa: N803, D417  (constants are capitals in Triton; strides are told as a group)
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

NONE, RELU, SILU, GELU_TANH, GELU = (tl.constexpr(n) for n in range(5))


@triton.jit
def product(
    x, w, b, r, g, y,
    m, n, k,
    x_row, x_column, w_row, w_column, r_row, g_row, y_row,
    BIAS: tl.constexpr, ADDED: tl.constexpr, ACTIVATION: tl.constexpr, GATE: tl.constexpr,
    HALF_SUMS: tl.constexpr, EVEN_K: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """``y = activation(x @ w + b + r) * g`` with what the constants switch on.

    Args:
        x: left matrix, m x k; strides in elements follow for each matrix.
        w: right matrix, k x n.
        b: vector of n.
        r: matrix that is added.
        g: matrix that multiplies.
        y: the result, contiguous along n, as r and g are.
        m: rows.
        n: columns.
        k: length of the sums.
    """
    number = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N)
    in_group = GROUP * tiles_n
    first = (number // in_group) * GROUP
    height = min(tiles_m - first, GROUP)
    tile_m = first + (number % in_group) % height
    tile_n = (number % in_group) // height

    rows = tile_m * TILE_M + tl.arange(0, TILE_M)
    columns = tile_n * TILE_N + tl.arange(0, TILE_N)
    steps = tl.arange(0, TILE_K)
    left = x + (rows % m).to(tl.int64)[:, None] * x_row + steps[None, :] * x_column
    right = w + steps[:, None] * w_row + (columns % n).to(tl.int64)[None, :] * w_column
    sums = tl.zeros((TILE_M, TILE_N), tl.float16 if HALF_SUMS else tl.float32)
    for at in range(0, tl.cdiv(k, TILE_K)):
        if EVEN_K:
            a, c = tl.load(left), tl.load(right)
        else:
            a = tl.load(left, mask=steps[None, :] < k - at * TILE_K, other=0.0)
            c = tl.load(right, mask=steps[:, None] < k - at * TILE_K, other=0.0)
        sums = tl.dot(a, c, sums, out_dtype=tl.float16 if HALF_SUMS else tl.float32)
        left += TILE_K * x_column
        right += TILE_K * w_row

    z = sums.to(tl.float32)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    long_rows = rows.to(tl.int64)[:, None]
    if BIAS:
        z += tl.load(b + columns, mask=columns < n, other=0.0).to(tl.float32)[None, :]
    if ADDED:
        z += tl.load(r + long_rows * r_row + columns[None, :], mask=inside, other=0.0).to(
            tl.float32
        )
    if ACTIVATION == RELU:
        z = tl.maximum(z, 0.0)
    elif ACTIVATION == SILU:
        z = z * tl.sigmoid(z)
    elif ACTIVATION == GELU_TANH:  # 0.5 (1 + tanh u) is sigmoid(2u)
        z = z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))
    elif ACTIVATION == GELU:
        z = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    if GATE:
        z *= tl.load(g + long_rows * g_row + columns[None, :], mask=inside, other=0.0).to(
            tl.float32
        )
    tl.store(y + long_rows * y_row + columns[None, :], z.to(y.dtype.element_ty), mask=inside)
