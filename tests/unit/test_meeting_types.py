"""Operands of two types that one instruction multiplies by each other, whole numbers exactly."""

import ml_dtypes
import numpy as np
import pytest

import polygen as pg

UNITS = {
    "sm_75": "mma.sync.aligned.m8n8k16", "sm_80": "mma.sync.aligned.m16n8k32", "sm_90a": "wgmma"
}  # fmt: skip
WHOLE = [("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8")]
FAST = {("sm_90a", "u8", "s8"), ("sm_80", "s8", "u8"), ("sm_90a", "e5m2", "e4m3")}
STORED = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def cases(archs, pairs):
    return [
        pytest.param(arch, kinds, id=f"{arch}-{'-'.join(kinds)}",
                     marks=() if (arch, *kinds) in FAST else pytest.mark.slow)
        for arch in archs for kinds in pairs
    ]  # fmt: skip


def emulated(kinds, arch, x, w):
    kernel = pg.fuse(lambda x, w: x @ w.T, name="met").compile(
        f"{kinds[0]}[M,K]", f"{kinds[1]}[N,K]", arch=arch, sizes={"M": 4096, "N": 4096, "K": 4096}
    )
    done = kernel.emulation(x, w)
    assert done.report.ok, str(done.report)
    return kernel, done.results


@pytest.mark.parametrize(("arch", "kinds"), cases(UNITS, WHOLE))
def test_whole_numbers_of_any_sign_are_multiplied_exactly(arch, kinds):
    """The largest numbers of both types, and sums beyond 2^24, which no f32 holds."""
    ends = [np.iinfo({"s8": np.int8, "u8": np.uint8}[kind]) for kind in kinds]
    rng = np.random.default_rng(5)
    x, w = (rng.choice([e.min, e.max, e.max - 1], (n, 1024), p=[0.05, 0.9, 0.05]).astype(e.dtype)
            for n, e in zip((9, 24), ends, strict=True))  # fmt: skip
    kernel, found = emulated(kinds, arch, x, w)
    assert UNITS[arch] in kernel.source and f".s32.{kinds[0]}.{kinds[1]}" in kernel.source
    wanted = x.astype(np.int64) @ w.T.astype(np.int64)
    assert (np.abs(wanted) > 1 << 23).any() and found.dtype == np.int32
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("arch", "kinds"), cases(("sm_89", "sm_90a"), [("e4m3", "e5m2"), ("e5m2", "e4m3")])
)
def test_floats_of_eight_bits_meet(arch, kinds):
    unit = "wgmma" if arch == "sm_90a" else "mma.sync"
    rng = np.random.default_rng(6)
    x, w = (rng.integers(-4, 5, (n, 96)).astype(STORED[kind])
            for n, kind in zip((9, 24), kinds, strict=True))  # fmt: skip
    kernel, found = emulated(kinds, arch, x, w)
    assert unit in kernel.source and f".f32.{kinds[0]}.{kinds[1]}" in kernel.source
    np.testing.assert_array_equal(found, (x.astype("f8") @ w.T.astype("f8")).astype(np.float16))


def test_whole_numbers_are_requantised_behind_a_warpgroups_product():
    """Rows and columns have scales, and results leave as s8: through every stage of the kernel."""
    fused = pg.fuse(lambda x, w, r, c: ((x @ w.T) * (r[:, None] * c)).astype("s8"), name="again")
    kernel = fused.compile(
        "u8[M,K]", "s8[N,K]", "f32[M]", "f32[N]", arch="sm_90a",
        sizes={"M": 4096, "N": 4096, "K": 4096},
    )  # fmt: skip
    assert "wgmma" in kernel.source
    report = kernel.check({"M": 70, "N": 80, "K": 96})
    assert report.ok and "bit for bit" in report.comparison, str(report)


@pytest.mark.parametrize(
    ("arch", "kinds"),
    [("sm_80", ("f16", "bf16")), pytest.param("sm_90a", ("bf16", "f16"), marks=pytest.mark.slow)],
)
def test_f16_and_bf16_meet_without_loss(arch, kinds):
    """The smallest f16, bf16 beyond what f16 has, and all mantissa bits: products are exact."""
    rng = np.random.default_rng(7)
    stored = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}

    def drawn(kind, shape):
        wide = 2.0 ** rng.integers(-24, 9, shape) if kind == "f16" else 2.0**30
        return (rng.integers(1, 128, shape) * wide).astype(stored[kind])

    x, w = drawn(kinds[0], (9, 16)), drawn(kinds[1], (24, 16))
    x[:, 1:] *= np.eye(9, 15).astype(x.dtype)  # two products in a sum, so that few bits are lost
    kernel = pg.fuse(lambda x, w: x @ w.T, name="met").compile(
        f"{kinds[0]}[M,K]", f"{kinds[1]}[N,K]", arch=arch, sizes={"M": 32, "N": 32, "K": 64}
    )
    assert kernel.program.outputs[0].dtype.name == "f32" and "tf32" in kernel.source
    done = kernel.emulation(x, w)
    assert done.report.ok, str(done.report)
    wanted = x.astype("f8") @ w.astype("f8").T
    assert np.abs(done.results / wanted - 1).max() < 2.0**-23


def test_blocks_share_sums_of_whole_numbers():
    kernel = pg.fuse(lambda x, w: x @ w.T, name="shared").compile(
        "u8[M,K]", "s8[N,K]", arch="sm_90a", sizes={"M": 16, "N": 8192, "K": 8192}
    )
    assert kernel.schedule.cluster.k == 2 and "st.async" in kernel.source
    x, w = np.full((9, 1280), 255, np.uint8), np.full((24, 1280), 127, np.int8)
    w[:, 0] = np.arange(24)
    done = kernel.emulation(x, w)
    assert done.report.ok, str(done.report)
    np.testing.assert_array_equal(done.results, x.astype(np.int64) @ w.T.astype(np.int64))
