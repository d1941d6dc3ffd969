"""Norms of parts of an operand in front of a product: slices, repeated and turned ones."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.rewrite import norms


def lengths(v):
    return v / np.linalg.norm(v, axis=-1, keepdims=True)


def less_largest(w, s=1.0):
    return w - pg.max(w, axis=-1, keepdims=True) * s


X, W = "f16[M,16]", "f16[N,16]"
SIZES = {"B": 2, "M": 24, "N": 40, "K": 16}
# function, signature, shapes; numbers are positive where lengths are taken
PROGRAMS = {
    "rows of a batch's operand": (
        lambda x, w: x @ pg.rms_norm(w[1:41]).T, ("f16[B,M,16]", "f16[44,16]"), False),
    "every second row": (
        lambda x, w: x @ less_largest(w[1:41:2]).T, ("f16[B,M,16]", "f16[44,16]"), False),
    "columns": (lambda x, w: x @ pg.layer_norm(w[:, 8:24]).T, (X, "f16[N,32]"), False),
    "both operands": (
        lambda x, w: lengths(x) @ lengths(w[3:27]).T, (X, "f16[27,16]"), True),
    "a bias that is a slice": (
        lambda x, w, g: pg.layer_norm(x, 1.0, g[8:24]) @ w.T, (X, W, "f16[400]"), False),
    "of the right operand": (
        lambda x, w, g: x @ pg.layer_norm(w, 1.0, g[8:24]).T, (X, W, "f16[24]"), False),
    "a scale that is repeated": (
        lambda x, w, g: pg.layer_norm(x, pg.repeat(g, 8, axis=0)) @ w.T, (X, W, "f16[2]"), False),
    "a bias that is repeated": (
        lambda x, w, g: pg.layer_norm(x, 1.0, pg.repeat(g, 8, axis=0)) @ w.T,
        (X, W, "f16[2]"), False),
    "a row's factor that is a slice": (
        lambda x, w, s: x @ less_largest(w, s[1:25][:, None]).T,
        (X, "f16[24,16]", "f16[400]"), False),
    "a row's factor that is repeated": (
        lambda x, w, s: x @ less_largest(w, pg.repeat(s, 8, axis=0)[:, None]).T,
        (X, "f16[24,16]", "f16[3]"), False),
    "heads of an operand": (
        lambda x, w: pg.rms_norm(x.reshape(-1, 2, 16)).swapaxes(0, 1) @ w.T,
        ("f16[M,32]", W), False),
    "a turned operand": (lambda x, w: pg.rms_norm(x.T) @ w.T, ("f16[16,M]", W), False),
}  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_are_read_where_they_are(name, arch):
    function, signature, positive = PROGRAMS[name]
    fused = pg.fuse(function, name="parts")
    named = {dim for text in signature for dim in SIZES if dim in text.split("[")[1]}
    kernel = fused.compile(
        *signature, arch=arch, sizes={d: SIZES[d] for d in named}, out_dtype="f32"
    )
    generator, operands = np.random.default_rng(0), []
    for text in signature:
        dims = text.split("[")[1].rstrip("]").split(",")
        values = generator.integers(-2, 3, [SIZES.get(d) or int(d) for d in dims])
        operands.append((np.abs(values) + 1 if positive else values).astype(np.float16))
    wanted = fused.reference(*operands)
    np.testing.assert_allclose(kernel.emulate(*operands), wanted, rtol=2e-3, atol=2e-2)
    assert kernel.check().ok


def test_a_rewritten_program_that_means_another_thing_is_found(monkeypatch):
    """As rows of a slice were read at those of the other operand, each kernel true to its plan."""

    def at_own_letters(index, at, extents):
        return at.get(index, index) if isinstance(index, str) else index

    monkeypatch.setattr(norms, "at_places", at_own_letters)
    function, signature, _ = PROGRAMS["rows of a batch's operand"]
    kernel = pg.fuse(function, name="parts").compile(
        *signature, arch="sm_80", sizes={"B": 2, "M": 24}
    )
    report = kernel.check()
    assert not report.ok
    (finding,) = report.findings
    assert finding.code == "wrong-value" and "y0 is rewritten to what is" in finding.sentence
