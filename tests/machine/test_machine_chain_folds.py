"""Folds of what chains give on the PTX machine: exact on small integers, near on softmaxes.

Operands are few and small enough that sums, and terms made of them, are whole numbers: what the
kernel and the launch that follows give is what NumPy gives, to the bit.
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.frontend.evaluate import reference
from polygen.kernel import Kernel

bf16 = ml_dtypes.bfloat16
WIDE = ("bf16[M,16]", "bf16[16,32]", "bf16[32,24]")
SQUARE = ("bf16[M,16]", "bf16[16,32]", "bf16[32,16]")
HEADS = ("bf16[B,S,16]", "bf16[B,T,16]", "bf16[B,T,16]")
SIZES = {"M": 83, "B": 2, "S": 21, "T": 35}
KINDS = {"bf16": bf16, "tf32": np.float32, "f32": np.float32, "s32": np.int32}
ARCHS = ("sm_80", "sm_90a")


def mlp(x, u, d):
    return pg.relu(x @ u) @ d


def every(x, u, d):
    """Matrices, folds of rows, of columns and of everything, and work on these."""
    y = mlp(x, u, d)
    return y, y.sum(axis=1), y.max(axis=0), y.sum(), np.argmax(y, axis=1), y.min(1) * 2 + 1


def alone(x, u, d):
    y = mlp(x, u, d)
    return y.max(axis=1), np.argmin(y, axis=1), y.sum(axis=0)


def squares(x, u, d, t):
    return ((mlp(x, u, d) - t) ** 2).sum()


def chosen(x, u, d, t):
    z = mlp(x, u, d)
    return np.take_along_axis(z, t[:, None], axis=1)[:, 0], (z == z.max(1, keepdims=True)).sum(1)


def deep(x, u, v, w):
    """Behind layers."""
    y = pg.relu(pg.relu(x @ u) @ v) @ w
    return y, y.sum(axis=1), y.max()


def gated(x, g, u, d):
    y = (pg.relu(x @ g) * (x @ u)) @ d
    return y.max(axis=1), y - y.max(axis=1, keepdims=True)


def matched(q, k, v):
    """Keys, without a softmax, and folds of rows of all heads."""
    y = pg.relu(q @ k.mT) @ v
    return y.sum(axis=-1), y.max(axis=(0, 1)), y - y.min(axis=-1, keepdims=True)


def beside(x, y, u, d):
    """Folds of an argument with as many columns as the first product."""
    z = mlp(x, u, d)
    return z - y.max(axis=1, keepdims=True), z + y.sum(axis=1, keepdims=True) * 2.0


EXACT = {
    "beside": (beside, (WIDE[0], "bf16[M,32]", *WIDE[1:])),
    "every": (every, WIDE),
    "alone": (alone, WIDE),
    "squares": (squares, (*WIDE, "bf16[M,24]")),
    "chosen": (chosen, (*WIDE, "s32[M]")),
    "gated": (gated, ("bf16[M,16]", "bf16[16,32]", "bf16[16,32]", "bf16[32,16]")),
    "matched": (matched, HEADS),
    "deep": (deep, ("bf16[M,16]", "bf16[16,32]", "bf16[32,16]", "bf16[16,24]")),
}


def arrays(program, least: int = -1) -> list[np.ndarray]:
    rng, found = np.random.default_rng(len(program.operands)), []
    for one in program.operands:
        shape = [SIZES.get(dim, dim) for dim in one.dims]
        low, high = (0, 16) if one.dtype.name == "s32" else (least, 2)
        found.append(rng.integers(low, high, shape).astype(KINDS[one.dtype.name]))
    return found


def both(function, signature, arch, **more):
    """Results of a kernel and of NumPy, in float64; no findings."""
    kernel = pg.fuse(function).compile(*signature, arch=arch, **more)
    given = arrays(kernel.program)
    done = kernel.emulation(*given)
    assert done.report.findings == ()
    found = done.results if isinstance(done.results, tuple) else (done.results,)
    wanted = reference(function, given)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    return [(np.asarray(a).astype(np.float64), b) for a, b in zip(found, wanted, strict=True)]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", EXACT)
def test_folds_are_exact(name, arch) -> None:
    for found, wanted in both(*EXACT[name], arch):
        assert np.array_equal(found, wanted)


def entropies(x, u, d, t):
    z = mlp(x, u, d)
    return pg.logsumexp(z, axis=1) - np.take_along_axis(z, t[:, None], axis=1)[:, 0]


def normed(q, k, v, g):
    """Attention, and a norm over the columns of its heads; with its log-sum-exp."""
    s = (q @ k.mT) * 0.25
    i, j = pg.indices(s)[-2:]
    s = pg.where(i + 14 >= j, s, -np.inf)
    y = pg.softmax(s) @ v
    return pg.rms_norm(y, g), pg.logsumexp(s, axis=-1), y.mean(axis=(0, 1))


NEAR = {
    "softmax": (lambda x, u, d: pg.softmax(mlp(x, u, d)), WIDE),
    "log softmax": (lambda x, u, d: (pg.log_softmax(mlp(x, u, d)), mlp(x, u, d)), WIDE),
    "norm": (lambda x, u, d, g: pg.rms_norm(mlp(x, u, d) + x, g), (*SQUARE, "bf16[16]")),
    "layer norm": (
        lambda x, u, d, g, b: pg.layer_norm(mlp(x, u, d) + x, g, b).astype("bf16"),
        (*SQUARE, "bf16[16]", "bf16[16]"),
    ),
    "mean": (lambda x, u, d: (np.mean(mlp(x, u, d), axis=1), mlp(x, u, d).std(axis=0)), WIDE),
    "cross entropy": (entropies, (*WIDE, "s32[M]")),
    "columns": (lambda x, u, d: pg.softmax(mlp(x, u, d), axis=0), WIDE),
    "attention": (normed, (*HEADS, "bf16[16]")),
    "grouped heads": (
        lambda q, k, v: pg.softmax(pg.softmax(q @ k.mT) @ v),
        ("bf16[2,3,S,16]", "bf16[2,1,T,16]", "bf16[2,1,T,16]"),
    ),
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", NEAR)
def test_folds_of_functions_are_near(name, arch) -> None:
    for found, wanted in both(*NEAR[name], arch):
        assert np.abs(found - wanted).max() <= 0.01 * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["softmax", "norm", "attention"])
def test_rows_are_in_tiles_or_in_the_launch_that_follows(name, arch) -> None:
    function, signature = NEAR[name]
    kernel = pg.fuse(function).compile(*signature, arch=arch)
    schedule, after = kernel.schedule, kernel.passes.plan.following
    assert schedule.covers_rows and bool(after) == (name == "attention")  # whose mean has parts
    behind = replace(schedule, name="behind", epilogue=replace(schedule.epilogue, rows="after"))
    kernel = pg.fuse(function).compile(*signature, arch=arch, schedule=behind)
    assert "kept_" in kernel.show("plan")
    for found, wanted in both(function, signature, arch, schedule=behind):
        assert np.abs(found - wanted).max() <= 0.01 * max(1.0, np.abs(wanted).max())


def scaled(q, k, v):
    """Elements use a result of their row beside a state of it."""
    s = q @ k.mT
    return pg.softmax(pg.softmax(s) @ v) * pg.logsumexp(s, axis=-1, keepdims=True)


@pytest.mark.parametrize("arch", ARCHS)
def test_states_of_rows_are_there_in_tiles(arch) -> None:
    for found, wanted in both(scaled, HEADS, arch):
        assert np.abs(found - wanted).max() <= 0.01 * np.abs(wanted).max()


@pytest.mark.parametrize("kind", ["tf32", "f32"])
def test_folds_of_elements_of_4_bytes(kind) -> None:
    signature = tuple(one.replace("bf16", kind) for one in WIDE)
    for found, wanted in both(every, signature, "sm_80"):
        assert np.array_equal(found, wanted)


def test_bits_do_not_depend_on_who_comes_first() -> None:
    kernel = pg.fuse(every).compile(*WIDE, arch="sm_80")
    assert kernel.deterministic
    assert [one.function for one in kernel.sums.folds] == ["sum", "max", "sum", "argmax", "min"]
    given = arrays(kernel.program)
    first, again = kernel.emulate(*given), kernel.emulate(*given)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_check_show_save_and_load(tmp_path) -> None:
    kernel = pg.fuse(NEAR["norm"][0]).compile(*NEAR["norm"][1], arch="sm_80")
    assert kernel.check().ok
    text = kernel.show("plan")
    assert "terms_r0" in text and "lanes that use a row's result have every term of it" in text
    assert "scan" in kernel.show("rewrite")
    again = Kernel.load(kernel.save(tmp_path / "kernel"))
    given = arrays(kernel.program)
    assert np.array_equal(np.asarray(kernel.emulate(*given)), np.asarray(again.emulate(*given)))
