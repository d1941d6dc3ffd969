"""Results and operands of the epilogue that are whole numbers, conditions or floats of 8 bits."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.comparison import is_exact
from polygen.errors import PolygenError
from polygen.frontend.rounding import round_to

# Halves between neighbours, the ends of ranges, subnormal numbers, and what is no number.
SPECIAL = np.array(
    [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.4, 127.5, 128.0, -127.5, -128.5, -129.0,
     254.5, 255.5, 256.0, 300.0, 1e9, -1e9, 3e9, -3e9, 1e30, -1e30, np.inf, -np.inf, np.nan, 448.0,
     463.9, 464.0, 464.1, 480.0, 57344.0, 61440.0, 65536.0, 2.0**-6, 2.0**-7, 2.0**-9, 2.0**-10,
     1.5 * 2.0**-10, 2.0**-11, 0.99 * 2.0**-6, 2.0**-14, 2.0**-16, 2.0**-17, 1.01 * 2.0**-17,
     2.0**-18, 1e-40, 17.0, 18.0, 19.0, 0.4921875, 0.5078125, 1.0625, 1.1875, 208.0, 216.0, 232.0,
     2147483520.0, -2147483648.0, 16777217.0, 1.0, -1.0, 3.0],
    np.float32,
)  # fmt: skip
TYPES = ("s8", "u8", "bool", "e4m3", "e5m2", "s32")


def bits(array):
    kind = array.dtype
    if kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        numbers = array.astype(np.float32)
        return np.where(np.isnan(numbers), -1, array.view(np.uint8).astype(np.int32))
    return array.view(np.uint8) if kind == np.bool_ else array


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", TYPES)
def test_every_special_value_is_rounded_as_the_type_says(name, arch):
    """sm_90a converts to 8-bit floats by an instruction, sm_80 by integer arithmetic."""
    fused = pg.fuse(lambda x, w, r: pg.where(x @ w.T > 0, 1.0, r).astype(name), name="rounded")
    kernel = fused.compile("bf16[M,16]", "bf16[64,16]", "f32[M,64]", arch=arch, sizes={"M": 16})
    drawn = np.random.default_rng(3).standard_normal((15, 64)) * np.float32(2.0) ** (
        np.random.default_rng(4).integers(-20, 20, (15, 64))
    )
    r = np.concatenate([SPECIAL[None], drawn.astype(np.float32)])
    x, w = (np.zeros((n, 16), ml_dtypes.bfloat16) for n in (16, 64))
    done = kernel.emulation(x, w, r)
    assert done.report.ok, str(done.report)
    found, kind = done.results, kernel.program.outputs[0].dtype.numpy
    wanted = round_to(r, name).astype(kind)
    assert found.dtype == kind
    np.testing.assert_array_equal(bits(found), bits(wanted))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_sums_of_whole_numbers_are_stored_as_they_are(arch):
    """2^24 + 1 is no f32: the sums do not become one on their way."""
    fused = pg.fuse(lambda x, w: (x @ w.T, (x @ w.T) * 0.5), name="sums")
    kernel = fused.compile("s8[M,K]", "s8[N,K]", arch=arch, sizes={"M": 16, "N": 16, "K": 2048})
    assert [str(t.dtype) for t in kernel.program.outputs] == ["s32", "f32"]
    x, w = np.full((16, 2048), 127, np.int8), np.full((16, 2048), 127, np.int8)
    w[:, 0] = np.arange(16)
    done = kernel.emulation(x, w)
    wanted = x.astype(np.int64) @ w.T.astype(np.int64)
    assert done.report.ok and (wanted > 2**24).all() and (wanted % 2 == 1).any()
    np.testing.assert_array_equal(done.results[0], wanted)
    np.testing.assert_array_equal(done.results[1], wanted.astype(np.float32) * np.float32(0.5))


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (lambda x, w, s: ((x @ w.T) * s).astype("s8"), ("s8[M,K]", "s8[N,K]", "f32[N]")),
        (lambda x, w, m: pg.where(m, x @ w.T, 0), ("bf16[M,K]", "bf16[N,K]", "bool[M,N]")),
        (lambda x, w, m: (x @ w.T) * (m - 3.0), ("bf16[M,K]", "bf16[N,K]", "u8[M,N]:col")),
        (lambda x, w, m: x @ w.T + m, ("bf16[M,K]", "bf16[N,K]", "e4m3[N]")),
        (lambda x, w: ((x @ w.T * 0.3).astype("s8") * 2, x @ w.T > 0), ("bf16[M,K]", "bf16[N,K]")),
        (lambda x, w: (x @ w.T * 0.375).astype("s32") * 0.5, ("bf16[M,K]", "bf16[N,K]")),
        (lambda x, w: pg.any(x @ w.T > 8, axis=1), ("bf16[M,K]", "bf16[N,K]")),
        (lambda x, w, t: _chosen(x @ w.T, t), ("bf16[M,K]", "bf16[N,K]", "s32[M]")),
        (lambda x, w, m: (x * m) @ w.T, ("bf16[M,K]", "bf16[N,K]", "bool[M,K]")),
        (lambda x, w: x.astype("bf16") @ w.T, ("s32[M,K]", "bf16[N,K]")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sizes", [(70, 80, 64), (33, 77, 61)], ids=["aligned", "odd"])
def test_kernels_check(function, signature, sizes):
    kernel = pg.fuse(function, name="narrow").compile(*signature, arch="sm_90a")
    report = kernel.check(dict(zip("MNK", sizes, strict=True)))
    assert report.ok, str(report)
    assert ("bit for bit" in report.comparison) == is_exact(kernel.program)


def _chosen(scores, targets):
    return pg.where(pg.indices(scores)[1] == targets[:, None], scores, 0).sum(axis=1)


@pytest.mark.sample(4)  # each of both once
@pytest.mark.parametrize("through", ["tma", "lines", "registers"])
@pytest.mark.parametrize("out", ["u8", "e5m2", "bool"])
def test_every_way_out_takes_bytes(through, out):
    fused = pg.fuse(lambda x, w, m: (x @ w.T + m).astype(out), name="bytes")
    auto = fused.compile("bf16[M,K]", "bf16[N,K]", "s8[M,N]", arch="sm_90a").schedule
    kernel = fused.compile(
        "bf16[M,K]", "bf16[N,K]", "s8[M,N]", arch="sm_90a",
        schedule=_by(auto, through),
    )  # fmt: skip
    assert kernel.schedule.epilogue.through == through
    report = kernel.check({"M": 144, "N": 144, "K": 64})
    assert report.ok and "bit for bit" in report.comparison, str(report)


def _by(schedule, through):
    columns = 0 if through == "registers" else 32
    epilogue = replace(schedule.epilogue, through=through, columns=columns)
    return replace(schedule, epilogue=epilogue)


def test_panels_hold_whole_spans():
    fused = pg.fuse(lambda x, w: (x @ w.T).astype("s8"), name="narrow")
    auto = fused.compile("bf16[M,K]", "bf16[N,K]", arch="sm_90a").schedule
    thin = replace(auto, epilogue=replace(auto.epilogue, through="tma", columns=16))
    match = r"panels of 16 columns.*whole spans of 32 bytes.*Use epilogue.columns = 64, or .* = 32,"
    with pytest.raises(PolygenError, match=match):
        fused.compile("bf16[M,K]", "bf16[N,K]", arch="sm_90a", schedule=thin)
    few = replace(auto.tile, cta=replace(auto.tile.cta, n=48), warp=replace(auto.tile.warp, n=48))
    with pytest.raises(PolygenError, match=r'bytes\)\. Use epilogue.through = "registers"'):
        fused.compile("bf16[M,K]", "bf16[N,K]", arch="sm_90a", schedule=replace(thin, tile=few))
