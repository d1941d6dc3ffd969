"""Programs that take several kernels in order, with sizes small enough for the PTX machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import polygen as pg
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program
from polygen.small_problem import trial_operands

D, HEADS, INNER = 64, 2, 320  # of the decoder block


@dataclass(frozen=True)
class Sample:
    """A program.

    Attributes:
        function: array code.
        signature: of its operands.
        sizes: that the kernels are for.
        kernels: how many there are.
        run: sizes of the run; those of `sizes` else.
        exact: whether results are whole numbers that every type here holds.
    """

    function: Callable[..., Any]
    signature: tuple[str, ...]
    sizes: dict[str, int]
    kernels: int = 2
    run: dict[str, int] = field(default_factory=dict)
    exact: bool = True


def _heads(x: Any) -> Any:
    return x.reshape(x.shape[0], x.shape[1], HEADS, D // HEADS).swapaxes(1, 2)


def block(x, g, wq, wk, wv, wo, h, wg, wu, wd):
    """A decoder block: norm, attention of heads, residual, norm, gated MLP, residual."""
    n = pg.rms_norm(x, g)
    q, k, v = _heads(n @ wq), _heads(n @ wk), _heads(n @ wv)
    s = q @ k.mT * (D // HEADS) ** -0.5
    row, key = pg.indices(s)[-2:]
    a = pg.softmax(pg.where(key <= row, s, -np.inf)) @ v
    r = (x + a.swapaxes(1, 2).reshape(x.shape[0], x.shape[1], D) @ wo).astype("bf16")
    m = pg.rms_norm(r, h)
    return r + (pg.silu(m @ wg) * (m @ wu)) @ wd


def talking_heads(q, k, v, m, n):
    """Attention whose heads are mixed before the softmax and behind it."""
    mixed = pg.softmax(pg.einsum("hst,hg->gst", q @ k.mT, m))
    return pg.einsum("hst,hg->gst", mixed, n) @ v


_SQUARE = ("bf16[N,N]",)
_BLOCK = (
    f"bf16[B,S,{D}]", f"bf16[{D}]", *[f"bf16[{D},{D}]"] * 4, f"bf16[{D}]",
    *[f"bf16[{D},{INNER}]"] * 2, f"bf16[{INNER},{D}]",
)  # fmt: skip

SAMPLES = {
    "wide mlp": Sample(
        lambda x, u, b, d: pg.relu(x @ u + b) @ d + x,
        ("bf16[M,320]", "bf16[320,520]", "bf16[520]", "bf16[520,320]"), {"M": 200},
    ),
    "wide gated mlp": Sample(
        lambda x, g, u, d: ((x @ g) * (x @ u)) @ d,
        ("bf16[M,64]", "bf16[64,320]", "bf16[64,320]", "bf16[320,320]"), {"M": 100},
    ),
    "hidden returned": Sample(
        lambda x, u, d: ((h := pg.relu(x @ u)) @ d + h, h),
        ("bf16[M,64]", "bf16[64,320]", "bf16[320,320]"), {"M": 100},
    ),
    "matrix power": Sample(lambda x: x @ x @ x, _SQUARE, {"N": 320}, run={"N": 136}),
    "einsum of three": Sample(
        lambda a, b, c: pg.einsum("ij,jk,kl->il", a, b, c),
        ("bf16[I,J]", "bf16[J,64]", "bf16[64,L]"), {"I": 320, "J": 320, "L": 320},
        run={"I": 100, "J": 72, "L": 136},
    ),
    "linear attention": Sample(
        lambda q, k, v: q @ (k.mT @ v), ("bf16[B,S,32]", "bf16[B,S,32]", "bf16[B,S,64]"),
        {"B": 2, "S": 300}, run={"B": 2, "S": 70},
    ),
    "graph convolution": Sample(
        lambda a, x, w: pg.relu(a @ (x @ w)), ("bf16[N,N]", "bf16[N,64]", "bf16[64,32]"),
        {"N": 200}, run={"N": 136},
    ),
    "rows of no 16 bytes": Sample(
        lambda x, u, d: pg.relu(x @ u) @ d, ("bf16[M,K]", "bf16[K,H]", "bf16[H,N]"),
        {"M": 64, "K": 64, "H": 301, "N": 300}, run={"M": 50, "K": 64, "H": 301, "N": 70},
    ),
    "logistic gradient": Sample(
        lambda x, w, y: x.T @ (pg.relu(x @ w) - y), ("f32[M,K]", "f32[K]", "f32[M]"),
        {"M": 100, "K": 64},
    ),
    "projected attention": Sample(
        lambda x, a, b, c, o: pg.softmax((x @ a) @ (x @ b).mT * 0.125) @ (x @ c) @ o + x,
        ("bf16[B,S,96]", *["bf16[96,64]"] * 3, "bf16[64,96]"), {"B": 2, "S": 100}, 3,
        exact=False,
    ),
    "mixed scores": Sample(
        lambda q, k, m: pg.softmax(pg.einsum("hst,hg->gst", q @ k.mT, m)),
        ("bf16[4,S,32]", "bf16[4,T,32]", "bf16[4,4]"), {"S": 20, "T": 24}, exact=False,
    ),
    "talking heads": Sample(
        talking_heads,
        ("bf16[4,S,32]", "bf16[4,T,32]", "bf16[4,T,32]", *["bf16[4,4]"] * 2),
        {"S": 20, "T": 24}, 4, exact=False,
    ),
    "decoder block": Sample(block, _BLOCK, {"B": 1, "S": 136}, 4, exact=False),
    "groups of rows": Sample(
        lambda x, u, d, e: pg.grouped_matmul(pg.relu(pg.grouped_matmul(x, u, e)), d, e),
        ("bf16[T,64]", "bf16[E,64,320]", "bf16[E,320,64]", "s32[E]"), {"T": 100, "E": 3},
    ),
    "tf32": Sample(
        lambda x, u, d: pg.relu(x @ u) @ d + x,
        ("tf32[M,320]", "tf32[320,64]", "tf32[64,320]"), {"M": 64},
    ),
    "sums of numbers of 8 bits": Sample(
        lambda x, w: (x @ w) @ (x @ w).T, ("s8[M,64]", "s8[64,64]"), {"M": 70},
    ),
    "what is before": Sample(
        lambda x, u, s, d: pg.relu(x @ u * s) @ d + x @ d,
        ("bf16[M,320]", "bf16[320,320]", "f32", "bf16[320,320]"), {"M": 64},
    ),
    "several of one level": Sample(
        lambda x, y, a, b, c: (pg.relu(x @ a) + pg.relu(y @ b)) @ c,
        ("bf16[M,64]", "bf16[M,64]", "bf16[64,64]", "bf16[64,64]", "bf16[64,64]"), {"M": 70},
    ),
    # Products that no other is behind, which no kernel runs beside each other.
    "results of f32": Sample(
        lambda x, w, u: (x @ w.T, x @ u.T), ("f32[M,K]", "f32[N,K]", "f32[P,K]"),
        {"M": 37, "N": 24, "P": 16, "K": 40},
    ),
    "results in other orders": Sample(
        lambda x, w, u: (x @ w.T, x @ u), ("bf16[M,K]", "bf16[N,K]", "bf16[K,P]"),
        {"M": 37, "N": 24, "P": 16, "K": 40},
    ),
    "a column beside": Sample(
        lambda x, w, u: x @ w + x @ u, ("f16[M,K]", "f16[K,N]", "f16[K,1]"),
        {"M": 37, "N": 24, "K": 40},
    ),
    "a sum of two types": Sample(
        lambda x, w, y, u: x @ w.T + y @ u.T,
        ("bf16[M,K]", "bf16[N,K]", "f32[M,K]", "f32[N,K]"), {"M": 37, "N": 24, "K": 40},
    ),
    "a pair beside one": Sample(
        lambda x, w, u, v: (pg.relu(x @ w.T) + x @ u.T, x @ v.T),
        ("bf16[M,K]", "bf16[N,K]", "bf16[N,K]", "bf16[P,K]"),
        {"M": 37, "N": 24, "P": 16, "K": 40},
    ),
    "groups beside rows": Sample(
        lambda x, w, e, u: (pg.grouped_matmul(x, w, e), x @ u.T),
        ("bf16[T,K]", "bf16[E,K,N]", "s32[E]", "bf16[P,K]"),
        {"T": 50, "E": 3, "N": 24, "P": 16, "K": 40},
    ),
    "the largest of some columns": Sample(
        lambda x, w: (v := x @ w.T) + np.max(v[:, :32], axis=1, keepdims=True),
        ("bf16[M,K]", "bf16[64,K]"), {"M": 37, "K": 40},
    ),
    "rows weighed by what others sum": Sample(  # a vector lies between, and no matrix
        lambda x, w: (x * pg.relu(x @ w)[:, None]).T @ x, ("f32[M,K]", "f32[K]"),
        {"M": 24, "K": 40},
    ),
    "rows gated by a column": Sample(
        lambda x, w, g: (x * pg.relu(x @ g)) @ w, ("f32[M,64]", "f32[64,N]", "f32[64,1]"),
        {"M": 24, "N": 16},
    ),
    "three results": Sample(
        lambda x, w, u: (x @ w.T, x.T @ x, x @ u), ("f16[M,K]", "f16[N,K]", "f16[K,P]"),
        {"M": 37, "N": 24, "P": 16, "K": 40}, 3,
    ),
}  # fmt: skip


def compiled(sample: Sample, arch: str) -> pg.KernelSequence:
    """The kernels of a sample."""
    fused = pg.fuse(sample.function, name="sample")
    found = fused.compile(*sample.signature, sizes=sample.sizes, arch=arch)
    assert isinstance(found, pg.KernelSequence)
    return found


def operands(sample: Sample, sizes: dict[str, int] | None = None) -> tuple[Any, ...]:
    """Small whole numbers, or where results are none normal ones."""
    known = sizes or {**sample.sizes, **sample.run}
    program = pg.fuse(sample.function).program(*sample.signature)
    if sample.exact:
        return trial_operands(program, known, 0)
    generator = np.random.default_rng(0)
    found = []
    for tensor in program.operands:
        shape = [dim if isinstance(dim, int) else known[dim] for dim in tensor.dims]
        scale = shape[-2] ** -0.5 if len(shape) == 2 else 1.0
        found.append((generator.normal(size=shape) * scale).astype(tensor.dtype.numpy))
    return tuple(found)


def expected(
    sample: Sample,
    program: Program,
    given: tuple[Any, ...],
    sizes: dict[str, int] | None = None,
) -> list[tuple[np.ndarray[Any, Any], float]]:
    """What results are in float64, each with how far it may be off: of whole numbers nothing, else
    some roundings to bf16 of what is about as large as the largest element.
    """
    known = sizes or {**sample.sizes, **sample.run}
    arrays = {t.name: one for t, one in zip(program.operands, given, strict=True)}
    values = [one.astype(np.float64) for one in evaluate(program, arrays, known)]
    return [(one, 0.0 if sample.exact else 2.0**-6 * np.abs(one).max()) for one in values]


def require_close(found: Any, value: np.ndarray[Any, Any], allowed: float) -> None:
    """Results are what they should be; rows of no group are nobody's."""
    known = ~np.isnan(value)
    there = np.asarray(found).astype(np.float64)
    assert there.shape == value.shape
    np.testing.assert_allclose(there[known], value[known], rtol=0, atol=allowed)
