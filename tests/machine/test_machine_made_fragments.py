"""Operands that consumers compute in their registers, on the PTX machine: values and edges."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.hardware.conversion import meaning
from polygen.schedule.model import (
    Cluster,
    CtaTile,
    Epilogue,
    Pipeline,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)

BF16 = ml_dtypes.bfloat16
STORED = {
    "s8": np.int8,
    "u8": np.uint8,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


def schedule(*cta, warps=1, exchange=False, form="cooperative", registers=168, **pipeline):
    """A schedule whose consumers compute the left operand."""
    m, n, k = cta or (64, 16, 64)
    return Schedule(
        name="registers",
        device="sm_90a",
        tile=Tile(CtaTile(m, n, k), WarpTile(m // warps, n)),
        pipeline=Pipeline(**{"stages": 3, **pipeline}),
        roles=Roles(form, 40, registers, computes="consumer"),
        epilogue=Epilogue(through="registers"),
        exchange=exchange,
    )


def compiled(function, *types, given=None, **options):
    return pg.fuse(function, name="made").compile(
        *types, arch="sm_90a", schedule=given or schedule(), **options
    )


def run(kernel, *operands):
    done = kernel.emulation(*operands)
    assert done.report.ok, str(done.report)
    return np.asarray(done.results).astype(np.float64)


def ints(*shape, seed=0, dtype=BF16):
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32).astype(dtype)


def product(left, right):
    return left.astype(np.float64) @ right.astype(np.float64)


CASES = {
    "one consumer": schedule(),
    "two instructions along m": schedule(128, 16, 64),
    "two consumers": schedule(128, 16, 64, warps=2),
    "consumers take turns": schedule(64, 16, 64, form="pingpong"),
    "four slots": schedule(fragments=4),
    "one slot": schedule(fragments=1),
    "two steps together": schedule(fragments=4, together=2),
    "all steps together": schedule(fragments=4, together=4),
    "two steps of two instructions together": schedule(128, 16, 64, fragments=2, together=2),
    "half of a long k tile together": schedule(64, 16, 128, fragments=8, together=4),
    "together and in turns": schedule(64, 16, 64, form="pingpong", fragments=4, together=4),
    "no products in flight": schedule(in_flight=0),
    "long k tiles": schedule(64, 16, 128),
    "blocks share sums": replace(schedule(64, 16, 64), cluster=Cluster(k=2)),
}


@pytest.mark.parametrize("name", CASES)
def test_scaled_columns_under_every_form(name):
    """Three tiles of rows, of columns and of k, none of them whole."""
    kernel = compiled(
        lambda x, g, w: (x * g) @ w.T, "bf16[M,K]", "bf16[K]", "bf16[N,K]",
        given=CASES[name], out_dtype="f32",
    )  # fmt: skip
    x, g, w = ints(140, 136), ints(136, seed=1), ints(36, 136, seed=2)
    np.testing.assert_array_equal(run(kernel, x, g, w), product(x * g, w.T))


PAIRED = {
    "scaled": (lambda x, g, w: (x * g) @ w.T, ("K",)),
    "shifted": (lambda x, g, w: (x + g) @ w.T, ("K",)),
    "both": (lambda x, g, b, w: ((x * g).astype("bf16") - b) @ w.T, ("K", "K")),
    "by rows": (lambda x, s, w: (x * s[:, None]).astype("bf16") @ w.T, ("M",)),
    "both ways": (lambda x, s, b, w: ((x * s[:, None]).astype("bf16") + b) @ w.T, ("M", "K")),
    "by numbers": (lambda x, w: (0.5 * x).astype("bf16") @ w.T, ()),
}


@pytest.mark.parametrize("name", PAIRED)
def test_two_elements_at_once(name):
    """Vectors are parts of longer ones: what lies behind the end of k is no number of theirs."""
    function, along = PAIRED[name]
    types = ("bf16[M,K]", *(f"bf16[{dim}]" for dim in along), "bf16[N,K]")
    kernel = compiled(function, *types, out_dtype="f32")
    assert "_pairs(" in kernel.source.partition("auto make_a")[2].partition("};")[0]
    beside = []
    for seed, dim in enumerate(along):
        size = {"M": 70, "K": 136}[dim]
        longer = np.full(200, np.nan, BF16)
        longer[:size] = ints(size, seed=seed + 1)
        beside.append(longer[:size])
    arrays = (ints(70, 136), *beside, ints(36, 136, seed=9))
    wanted = function(*(one.astype(np.float64).view(Rounded) for one in arrays))
    np.testing.assert_array_equal(run(kernel, *arrays), np.asarray(wanted))


class Rounded(np.ndarray):
    """Small whole numbers and halves, which no type here rounds."""

    def astype(self, *_):
        return self


def test_no_number_in_a_vector_stays_in_its_column():
    """Infinity and none among the last numbers: what is behind the end of k is still zero."""
    kernel = compiled(
        lambda x, g, w: (x * g) @ w.T, "bf16[M,K]", "bf16[K]", "bf16[N,K]", out_dtype="f32"
    )
    x, g, w = ints(64, 72), ints(72, seed=1), np.eye(72).astype(BF16)
    x[:, 64:], g[70], g[71] = 1, np.inf, np.nan
    found = run(kernel, x, g, np.concatenate([w[:70], w[:2]]))
    wanted = np.concatenate([x[:, :70] * g[:70], x[:, :2] * g[:2]], axis=1).astype(np.float64)
    assert np.isnan(found).all()  # infinity times zero, in every sum
    g[70:] = 3
    found = run(kernel, x, g, np.concatenate([w[:70], w[:2]]))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_products_of_operands_are_those_of_their_type(name):
    """Products that round, of numbers of all sizes, one of each in a sum: the bits of the type's
    own product.
    """
    kind = {"bf16": BF16, "f16": np.float16}[name]
    types = (f"{name}[M,K]", f"{name}[K]", f"{name}[N,K]")
    kernel = compiled(lambda x, g, w: (x * g) @ w.T, *types, out_dtype="f32")
    generator, large = np.random.default_rng(5), 20 if name == "bf16" else 7
    x, g = (
        (generator.standard_normal(shape) * 2.0 ** generator.integers(-large, large, shape))
        for shape in ((64, 64), (64,))
    )
    x[:2], g[:3], x[2, 5:8] = 0, (1, -1, 0), -0.0
    x, g, w = x.astype(kind), g.astype(kind), np.eye(64).astype(kind)
    wanted = (x.astype(np.float32) * g.astype(np.float32)).astype(kind)
    assert (wanted != x.astype(np.float64) * g.astype(np.float64)).any()
    np.testing.assert_array_equal(run(kernel, x, g, w), wanted.astype(np.float64))


@pytest.mark.parametrize("to", ["bf16", "f16"])
@pytest.mark.parametrize("name", STORED)
def test_every_stored_number_is_multiplied_as_what_it_is(name, to):
    """A column of all of them, as the right operand of the program: exchanged, it is the left."""
    kernel = compiled(
        lambda x, w: x @ w.astype(to).T, f"{to}[1,16]", f"{name}[256,16]",
        given=schedule(exchange=True), out_dtype="f32",
    )  # fmt: skip
    wide = np.float16 if to == "f16" else BF16
    weights = np.zeros((256, 16), np.uint8)
    weights[:, 3] = np.arange(256)
    ones = np.zeros((1, 16), wide)
    ones[0, 3] = 1
    found = run(kernel, ones, weights.view(STORED[name]))[0]
    np.testing.assert_array_equal(found, meaning(name).astype(wide).astype(np.float64))


@pytest.mark.parametrize("to", ["bf16", "f16"])
@pytest.mark.parametrize("kind", ["s8", "u8", "i4", "u4"])
def test_pairs_are_rounded_as_the_program_says(kind, to):
    """Every stored number times scales of all sizes, the least ones, infinity and none among them;
    a scale per group is the same for a pair, one for every k is not.
    """
    wide, bits = (np.float16 if to == "f16" else BF16), 4 if kind[1] == "4" else 8
    rows, depth = 1 << bits, 64
    stored = np.repeat(np.arange(rows, dtype=np.uint8)[:, None], depth // (8 // bits), 1)
    if bits == 4:
        stored = stored | stored << 4
    random = np.random.default_rng(5).integers(0, 1 << 16, (rows, 2), dtype=np.uint16).view(wide)
    random[0], random[-1] = [np.inf, np.nan], [np.finfo(np.float32).tiny, 1]
    along = np.random.default_rng(6).integers(0, 1 << 16, depth, dtype=np.uint16).view(wide)
    stored_as = stored.view(STORED[kind]) if bits == 8 else stored
    numbers = meaning(kind)[np.repeat(np.arange(rows)[:, None], depth, 1)]
    ones = np.eye(16, depth, dtype=np.float32).astype(wide)
    given = schedule(64, 16, 64, exchange=True, fragments=4, together=2)
    for scales, described, code in (
        (random, f"{to}[{rows},2]", "pg.repeat(s, 32, axis=1)"), (along, f"{to}[{depth}]", "s")
    ):  # fmt: skip
        function = eval(f"lambda x, q, s: x @ (q.astype('{to}') * {code}).T", {"pg": pg})
        kernel = compiled(
            function, f"{to}[16,{depth}]", f"{kind}[{rows},{depth}]",
            described, given=given, out_dtype="f32",
        )  # fmt: skip
        assert "multiply_pairs" in kernel.source and "load_shared<" in kernel.source
        whole = np.repeat(scales, 32, 1) if scales.ndim == 2 else scales
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = (numbers * whole.astype(np.float32)).astype(wide).astype(np.float32)
            finite = np.isfinite(wanted).all(axis=1)
        done = kernel.emulation(ones, stored_as, scales)
        found = np.asarray(done.results)
        np.testing.assert_array_equal(found[:, finite], wanted[finite, :16].T)
        assert not np.isfinite(found[:, ~finite]).all(), "what is no number is none"


@pytest.mark.parametrize("kind", ["i4", "u4"])
@pytest.mark.parametrize("shape", [(5, 200, 224), (1, 130, 32)])
def test_numbers_of_four_bits_with_scales_by_group(kind, shape):
    m, n, k = shape
    kernel = compiled(
        lambda x, q, s: x @ (pg.unpack(q, kind).astype("bf16") * pg.repeat(s, 32, axis=1)).T,
        f"bf16[M,{k}]", f"u8[N,{k // 2}]", f"bf16[N,{k // 32}]",
        given=schedule(64, 16, 64, exchange=True), out_dtype="f32",
    )  # fmt: skip
    q = np.random.default_rng(3).integers(0, 256, (n, k // 2), dtype=np.uint8)
    x, s = ints(m, k), np.exp2(ints(n, k // 32, seed=4, dtype=np.float32)).astype(BF16)
    halves = np.stack([q & 15, q >> 4], axis=-1).reshape(n, k)
    weights = meaning(kind)[halves] * np.repeat(s.astype(np.float32), 32, axis=1)
    np.testing.assert_array_equal(run(kernel, x, q, s), product(x, weights.T))


@pytest.mark.parametrize("per", [8, 64, 128])
def test_scales_by_rows_and_by_groups(per):
    kernel = compiled(
        lambda x, q, s, r: x @ (q.astype("bf16") * pg.repeat(s, per, axis=1) * r[:, None]).T,
        "bf16[M,256]", "s8[N,256]", f"bf16[N,{256 // per}]", "bf16[N]",
        given=schedule(64, 16, 64, exchange=True, registers=216), out_dtype="f32",
    )  # fmt: skip
    x, q = ints(3, 256), ints(70, 256, seed=1, dtype=np.int8)
    s, r = ints(70, 256 // per, seed=2), ints(70, seed=3)
    weights = q * np.repeat(s.astype(np.float32), per, axis=1) * r.astype(np.float32)[:, None]
    np.testing.assert_array_equal(run(kernel, x, q, s, r), product(x, weights.T))


def test_numbers_of_groups_are_not_read_behind_the_end():
    """Two blocks share three k tiles: the second one has a tile behind the last."""
    given = replace(schedule(64, 16, 128, exchange=True), cluster=Cluster(k=2))
    kernel = compiled(
        lambda x, q, s: x @ (q.astype("bf16") * pg.repeat(s, 128, axis=1)).T,
        "bf16[M,384]", "s8[N,384]", "bf16[N,3]", given=given, out_dtype="f32",
    )  # fmt: skip
    x, q, s = ints(3, 384), ints(64, 384, seed=1, dtype=np.int8), ints(64, 3, seed=2)
    weights = q * np.repeat(s.astype(np.float32), 128, axis=1)
    np.testing.assert_array_equal(run(kernel, x, q, s), product(x, weights.T))


@pytest.mark.parametrize("stored", ["bf16", "f32", "s8"])
@pytest.mark.parametrize("turned", [False, True], ids=["k innermost", "m innermost"])
def test_what_lies_outside_counts_nothing_whatever_the_function_of_zero(stored, turned):
    """exp(0) is 1: what is behind the end of k must be zero all the same."""
    m, k = 80, 48
    shape, text = ((k, m), f"{stored}[K,M]") if turned else ((m, k), f"{stored}[M,K]")
    kernel = compiled(
        lambda x, w: (pg.exp(x.T if turned else x) - 3).astype("bf16") @ w.T,
        text, "bf16[N,K]", given=schedule(64, 16, 128), out_dtype="f32",
    )  # fmt: skip
    kinds = {"bf16": BF16, "f32": np.float32, "s8": np.int8}
    found = run(kernel, np.zeros(shape, kinds[stored]), np.ones((9, k), BF16))
    np.testing.assert_array_equal(found, np.full((m, 9), -2.0 * k))


@pytest.mark.parametrize("stored", ["bf16", "f16", "f32", "s8", "e4m3"])
@pytest.mark.parametrize("turned", [False, True], ids=["k innermost", "m innermost"])
def test_stored_types_and_orders(stored, turned):
    m, k = 96, 80
    kernel = compiled(
        lambda x, s, w: ((x.T if turned else x) * s[:, None] + 1).astype("bf16") @ w.T,
        f"{stored}[K,M]" if turned else f"{stored}[M,K]", "f32[M]", "bf16[N,K]", out_dtype="f32",
    )  # fmt: skip
    kind = {"bf16": BF16, "f16": np.float16, "f32": np.float32, **STORED}[stored]
    x, s, w = ints(m, k, dtype=kind), ints(m, seed=1, dtype=np.float32), ints(20, k, seed=2)
    wanted = product(x.astype(np.float64) * s[:, None] + 1, w.T)
    np.testing.assert_array_equal(
        run(kernel, np.ascontiguousarray(x.T) if turned else x, s, w), wanted
    )


def test_operands_of_four_bytes():
    kernel = compiled(
        lambda x, g, w: (x * g) @ w.T, "f32[M,K]", "f32[K]", "tf32[N,K]",
        given=schedule(64, 16, 32), out_dtype="f32",
    )  # fmt: skip
    x, g = ints(70, 44, dtype=np.float32), ints(44, seed=1, dtype=np.float32)
    w = ints(20, 44, seed=2, dtype=np.float32)
    np.testing.assert_array_equal(run(kernel, x, g, w), product(x * g, w.T))


def test_coordinates_and_numbers_of_a_call():
    def function(x, a, w):
        i, k = pg.indices(x)
        return pg.where(i >= k, x * a, 0) @ w

    kernel = compiled(function, "bf16[M,K]", "f32", "bf16[K,N]", out_dtype="f32")
    x, w = ints(100, 72), ints(72, 24, seed=1)
    wanted = product(np.tril(x.astype(np.float64)) * 2, w)
    np.testing.assert_array_equal(run(kernel, x, 2.0, w), wanted)


def test_two_products_of_one_computed_operand():
    kernel = compiled(
        lambda x, g, u, v: ((x * g) @ u.T) * ((x * g) @ v.T),
        "bf16[M,K]", "bf16[K]", "bf16[N,K]", "bf16[N,K]", out_dtype="f32",
    )  # fmt: skip
    x, g, u, v = ints(70, 72), ints(72, seed=1), ints(24, 72, seed=2), ints(24, 72, seed=3)
    wanted = product(x * g, u.T) * product(x * g, v.T)
    np.testing.assert_array_equal(run(kernel, x, g, u, v), wanted)


def test_both_operands_are_computed():
    """The left one by consumers, the right one by the producer's threads."""
    given = replace(schedule(registers=160), roles=Roles("cooperative", 152, 216, "consumer"))
    kernel = compiled(
        lambda x, g, w: (x * g) @ (w * g).T, "bf16[M,K]", "bf16[K]", "bf16[N,K]",
        given=given, out_dtype="f32",
    )  # fmt: skip
    x, g, w = ints(70, 72), ints(72, seed=1), ints(24, 72, seed=2)
    np.testing.assert_array_equal(run(kernel, x, g, w), product(x * g, (w * g).T))


def test_batches_and_slices():
    kernel = compiled(
        lambda x, g, w: (x[:, :, 8:] * g[:, None, :]) @ w, "bf16[B,M,48]", "bf16[B,40]",
        "bf16[B,40,N]", out_dtype="f32",
    )  # fmt: skip
    x, g, w = ints(2, 66, 48), ints(2, 40, seed=1), ints(2, 40, 16, seed=2)
    wanted = (x[:, :, 8:] * g[:, None]).astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_array_equal(run(kernel, x, g, w), wanted)
