"""Arrays that scores are computed with, of every type: two adjacent elements come in one access."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.emit.leaf import score_reads
from polygen.errors import VerifyError

TYPES = {
    "bool": np.bool_,
    "u8": np.uint8,
    "s8": np.int8,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "f16": np.float16,
    "s32": np.int32,
    "f32": np.float32,
}
SIZES = {"S": 130, "T": 258}  # tiles inside and at the edges


@pg.fuse
def masked(q: Any, k: Any, v: Any, m: Any) -> Any:
    return pg.softmax(pg.where(m, q @ k.mT * 0.25, -np.inf)) @ v


@pg.fuse
def biased(q: Any, k: Any, v: Any, m: Any) -> Any:
    return pg.softmax(q @ k.mT * 0.25 + m) @ v


@pg.fuse
def weighted(q: Any, k: Any, v: Any, m: Any) -> Any:
    return (pg.relu(q @ k.mT) * m) @ v


def compiled(program: pg.Fused, dtype: str, arch: str) -> pg.Kernel:
    signature = ("bf16[S,64]", "bf16[T,64]", "bf16[T,16]", f"{dtype}[S,T]")
    return program.compile(*signature, arch=arch, sizes=SIZES)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", TYPES)
def test_scores_with_arrays_of_every_type(dtype: str, arch: str) -> None:
    rng = np.random.default_rng(3)
    q, k, v = (
        rng.integers(-2, 3, shape).astype(ml_dtypes.bfloat16)
        for shape in ((SIZES["S"], 64), (SIZES["T"], 64), (SIZES["T"], 16))
    )
    m = rng.integers(0, 3, (SIZES["S"], SIZES["T"])).astype(TYPES[dtype])
    m[:, 0] = 1
    scores, values = q.astype(float) @ k.astype(float).T, v.astype(float)
    for program in (masked,) if dtype == "bool" else (biased, weighted):
        found = compiled(program, dtype, arch).emulation(q, k, v, m)
        assert not found.report.findings
        if program is weighted:
            weights = (np.maximum(scores, 0) * m.astype(float)).astype(ml_dtypes.bfloat16)
            wanted = weights.astype(float) @ values
        else:
            own = np.where(m, scores / 4, -np.inf) if program is masked else scores / 4 + m
            weights = np.exp(own.astype(float) - own.max(-1, keepdims=True).astype(float))
            wanted = weights / weights.sum(-1, keepdims=True) @ values
        apart = np.abs(np.asarray(found.results).astype(float) - wanted)
        assert apart.max() <= 2**-7 * max(1.0, float(np.abs(wanted).max()))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_truths_that_are_read_as_something_else_are_refused(
    monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    """What a truth chooses is compared as well: words of other numbers do not pass for it."""
    monkeypatch.setitem(score_reads._PAIRS, "unsigned char", score_reads._PAIRS["float"])
    with pytest.raises(VerifyError, match="not made of its own numbers"):
        compiled(masked, "bool", arch)
