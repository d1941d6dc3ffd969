"""Operands that are computed, on the PTX machine: values, edges, and what is never read."""

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.hardware.conversion import meaning

ARCHS = ("sm_80", "sm_90a")
_STORED = {
    "s8": np.int8,
    "u8": np.uint8,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


def run(kernel, *operands):
    done = kernel.emulation(*operands)
    assert done.report.ok, str(done.report)
    return np.asarray(done.results).astype(np.float64)


def ints(*shape, seed=0, dtype=ml_dtypes.bfloat16):
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32).astype(dtype)


@pytest.mark.sample(3)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("to", ["bf16", "f16"])
@pytest.mark.parametrize("name", _STORED)
def test_every_stored_number_is_multiplied_as_what_it_is(name, to, arch):
    """A column of all of them: one k, so that what is no number stays in its own sum."""
    kernel = pg.fuse(lambda x, w: x @ w.astype(to).T, name="convert").compile(
        f"{to}[1,1]", f"{name}[256,1]", arch=arch, out_dtype="f32"
    )
    wide = np.float16 if to == "f16" else ml_dtypes.bfloat16
    weights = np.arange(256, dtype=np.uint8).view(_STORED[name]).reshape(256, 1)
    found = run(kernel, np.ones((1, 1), wide), weights)[0]
    np.testing.assert_array_equal(found, meaning(name).astype(wide).astype(np.float64))


@pytest.mark.sample(3)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("turned", [False, True], ids=["k innermost", "m innermost"])
def test_what_lies_outside_counts_nothing_whatever_the_function_of_zero(arch, turned):
    """exp(0) is 1: rows and columns behind the end of the operand must be zero all the same."""
    shape, text = ((37, 13), "bf16[K,M]") if turned else ((13, 37), "bf16[M,K]")
    kernel = pg.fuse(
        lambda x, w: (pg.exp(x.T if turned else x) - 3).astype("bf16") @ pg.where(w > 5, 0, 1).T,
        name="outside",
    ).compile(text, "bf16[N,K]", arch=arch, out_dtype="f32")
    zeros = np.zeros(shape, ml_dtypes.bfloat16)
    found = run(kernel, zeros, np.zeros((9, 37), ml_dtypes.bfloat16))
    np.testing.assert_array_equal(found, np.full((13, 9), -2.0 * 37))


@pytest.mark.parametrize("arch", ARCHS)
def test_one_value_feeds_both_operands_and_the_way_out(arch):
    """Every place computes it for itself."""

    def function(x):
        y = pg.relu(x - 1)
        return y @ y.T + y

    kernel = pg.fuse(function, name="thrice").compile("bf16[M,M]", arch=arch, out_dtype="f32")
    x = ints(24, 24)
    y = np.maximum(x.astype(np.float64) - 1, 0)
    np.testing.assert_array_equal(run(kernel, x), y @ y.T + y)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_row_times_a_matrix(arch):
    kernel = pg.fuse(lambda x, w: (x * 2) @ (w - 1), name="row").compile(
        "bf16[K]", "bf16[K,N]", arch=arch, out_dtype="f32"
    )
    x, w = ints(40), ints(40, 24, seed=1)
    wanted = (x.astype(np.float64) * 2) @ (w.astype(np.float64) - 1)
    np.testing.assert_array_equal(run(kernel, x, w), wanted)


@pytest.mark.parametrize("arch", ARCHS)
def test_slices_batches_and_coordinates(arch):
    def function(x, w, s):
        i, j = pg.indices(w)[-2:]
        return (x[:, :, ::2] + 1) @ (pg.where(i >= j, w, 0) * s[:, None, None]).mT.astype("bf16")

    kernel = pg.fuse(function, name="batched").compile(
        "bf16[B,M,80]", "bf16[B,N,40]", "f32[B]", arch=arch, out_dtype="f32"
    )
    x, w, s = ints(2, 11, 80), ints(2, 48, 40, seed=1), ints(2, seed=2, dtype=np.float32)
    masked = np.tril(w.astype(np.float64)) * s.astype(np.float64)[:, None, None]
    wanted = (x.astype(np.float64)[:, :, ::2] + 1) @ masked.swapaxes(1, 2)
    np.testing.assert_array_equal(run(kernel, x, w, s), wanted)


@pytest.mark.sample(3)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("turned", [False, True], ids=["k innermost", "n innermost"])
@pytest.mark.parametrize("group", [2, 8, 24, 96])
def test_weights_with_scales_by_group(arch, turned, group):
    """Groups along k that end inside k tiles, and rows that end inside groups of tiles."""
    count = 192 // group
    shape = "s8[192,24]" if turned else "s8[24,192]"

    def function(x, q, s):
        weights = (q.T if turned else q).astype("bf16") * np.repeat(s, group, axis=1)
        return x @ weights.T

    kernel = pg.fuse(function, name="grouped").compile(
        "bf16[M,192]", shape, f"bf16[24,{count}]", arch=arch, out_dtype="f32"
    )
    x, q, s = ints(9, 192), ints(24, 192, seed=1, dtype=np.int8), ints(24, count, seed=2)
    weights = q.astype(np.float64) * np.repeat(s.astype(np.float64), group, axis=1)
    operand = np.ascontiguousarray(q.T) if turned else q
    found = run(kernel, x, operand, s)
    np.testing.assert_array_equal(found, x.astype(np.float64) @ weights.T)


@pytest.mark.parametrize("arch", ARCHS)
def test_numbers_of_four_bits_as_two_products(arch):
    """A byte has k in its low half and k + K/2 in its high one: array code takes them apart."""

    def function(x, q, s):
        high = pg.floor(q / 16)
        low = (q - 16 * high - 8) * s[:, None]
        return x[:, :40] @ low.T + x[:, 40:] @ ((high - 8) * s[:, None]).T

    kernel = pg.fuse(function, name="halves").compile(
        "bf16[M,80]", "u8[N,40]", "f32[N]", arch=arch, out_dtype="f32"
    )
    x, s = ints(9, 80), ints(24, seed=2, dtype=np.float32)
    q = np.random.default_rng(1).permutation(np.arange(960) % 256).astype(np.uint8).reshape(24, 40)
    weights = np.concatenate([q % 16, q // 16], axis=1).astype(np.float64) - 8
    wanted = x.astype(np.float64) @ (weights * s.astype(np.float64)[:, None]).T
    np.testing.assert_array_equal(run(kernel, x, q, s), wanted)


def test_rows_are_the_same_whatever_m_is():
    """Invariance: of one class of sums, and each element rounded as it is in every other size."""
    fused = pg.fuse(lambda x, g, w: pg.silu(x * g + 1) @ w.T, name="same")
    signature = ("bf16[M,K]", "bf16[K]", "bf16[N,K]")
    x, g, w = ints(200, 96), ints(96, seed=1), ints(40, 96, seed=2)
    found = [
        run(fused.compile(*signature, arch="sm_90a", sizes={"M": m, "N": 40, "K": 96},
                          invariant=("M",)), x[:m], g, w)
        for m in (3, 200)
    ]  # fmt: skip
    np.testing.assert_array_equal(found[0], found[1][:3])


def packed(rows, columns):
    """Bytes of all values, each pair of halves among them, and the numbers that they are."""
    count = rows * columns
    q = np.random.default_rng(1).permutation(np.arange(count) % 256).astype(np.uint8)
    q = q.reshape(rows, columns)
    halves = np.stack([q % 16, q // 16], axis=-1).reshape(rows, 2 * columns)
    return q, halves


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind", ["i4", "u4"])
@pytest.mark.parametrize("to", ["bf16", "f16"])
def test_every_number_of_four_bits_is_multiplied_as_what_it_is(kind, to, arch):
    """All bytes, with scales by group; k ends inside a k tile."""

    def function(x, q, s):
        return x @ (pg.unpack(q, kind).astype(to) * pg.repeat(s, 16, axis=1)).T

    kernel = pg.fuse(function, name="packed").compile(
        f"{to}[M,80]", "u8[N,40]", f"{to}[N,5]", arch=arch, out_dtype="f32"
    )
    assert f"float nibble_{kind}(" not in kernel.source, "taken apart in the words that were read"
    wide = np.float16 if to == "f16" else ml_dtypes.bfloat16
    q, numbers = packed(24, 40)
    assert len(np.unique(q)) == 256
    weights = meaning(kind)[numbers].astype(np.float64)
    x, s = ints(9, 80, dtype=wide), ints(24, 5, seed=2, dtype=wide)
    weights *= np.repeat(s.astype(np.float64), 16, axis=1)
    np.testing.assert_array_equal(run(kernel, x, q, s), x.astype(np.float64) @ weights.T)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind", ["i4", "u4"])
def test_packed_numbers_that_lie_otherwise(kind, arch):
    """Along n, transposed, from the second byte on, with the left operand packed as well."""

    def function(p, q):
        left = pg.unpack(p[:, 1:], kind)
        return left.astype("bf16") @ pg.unpack(q, kind, axis=0).astype("bf16")

    kernel = pg.fuse(function, name="otherwise").compile(
        "u8[M,25]", "u8[24,40]", arch=arch, out_dtype="f32"
    )
    (p, halves), (q, _) = packed(32, 25), packed(24, 40)
    left = meaning(kind)[halves[:, 2:]].astype(np.float64)
    right = np.stack([q % 16, q // 16], axis=1).reshape(48, 40)
    wanted = left @ meaning(kind)[right].astype(np.float64)
    np.testing.assert_array_equal(run(kernel, p, q), wanted)


def test_packed_numbers_in_numpy_are_those_of_the_program():
    q, numbers = packed(8, 32)
    for kind in ("i4", "u4"):
        np.testing.assert_array_equal(pg.unpack(q.astype(float), kind), meaning(kind)[numbers])


@pytest.mark.parametrize("name", ["i4", "u4"])
def test_numbers_of_four_bits_are_described_as_they_are(name):
    """``i4[N,K]`` is bytes that hold two neighbours each; the function sees the numbers."""
    fused = pg.fuse(
        lambda x, q, s: x @ (q.astype("bf16") * pg.repeat(s, 32, axis=1)).T, name="four"
    )
    kernel = fused.compile("bf16[M,64]", f"{name}[N,64]", "bf16[N,2]", arch="sm_90a")
    assert [str(t) for t in kernel.program.inputs][1] == "q: u8[N, 32]"
    apart = fused.compile("bf16[M,K]", f"{name}[N,K]", "bf16[N,2]", arch="sm_90a", static="K",
                          sizes={"K": 64})  # fmt: skip
    assert apart.program == kernel.program
    rng = np.random.default_rng(2)
    numbers = rng.integers(-8, 8, (24, 64)) if name == "i4" else rng.integers(0, 16, (24, 64))
    held = (numbers & 15).astype(np.uint8)
    x = rng.integers(-2, 3, (16, 64)).astype(ml_dtypes.bfloat16)
    s = np.exp2(rng.integers(-1, 2, (24, 2))).astype(ml_dtypes.bfloat16)
    wanted = x.astype(np.float64) @ (numbers * np.repeat(s.astype(np.float64), 32, axis=1)).T
    found = kernel.emulate(x, held[:, ::2] | held[:, 1::2] << 4, s)
    np.testing.assert_array_equal(found, wanted.astype(ml_dtypes.bfloat16))
