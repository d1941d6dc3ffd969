"""Products of f32 in f32's accuracy, by three products of parts of tf32."""

import copy

import numpy as np
import pytest

import polygen as pg
from polygen.cli.accuracy import expected
from polygen.errors import HardwareDataError
from polygen.hardware.atom import FILE, atom, build
from polygen.hardware.data_file import read

SIZES = {"M": 32, "N": 32, "K": 256}


def kernel(kind="f32", function=lambda x, w: x @ w.T, second="[N,K]", arch="sm_80"):
    return pg.fuse(function, name="split").compile(
        f"{kind}[M,K]", f"{kind}{second}", arch=arch, sizes=SIZES
    )


def in_steps(x, w):
    """f32 sums by one fused step for each k, in order."""
    total = np.zeros((len(x), len(w)), np.float32)
    for a, b in zip(x.T.astype(np.float64), w.T.astype(np.float64), strict=True):
        total = (total.astype(np.float64) + a[:, None] * b).astype(np.float32)
    return total


def errors(found, x, w):
    """Largest and root of the mean square, of the sums of magnitudes."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    off = (found.astype(np.float64) - x @ w.T) / (np.abs(x) @ np.abs(w).T)
    return np.abs(off).max(), np.sqrt((off * off).mean())


@pytest.mark.parametrize(
    ("data", "depth"),
    [
        ("normal", 64), ("uniform", 136),
        *(pytest.param(data, depth, marks=pytest.mark.slow)
          for data in ("normal", "uniform", "wide") for depth in (128, 1024)),
    ],
)  # fmt: skip
def test_errors_are_no_larger_than_those_of_f32(data, depth):
    rng = np.random.default_rng(depth)
    made = {"normal": rng.standard_normal, "uniform": rng.random}.get(data, rng.standard_normal)
    x, w = (made((32, depth)).astype(np.float32) for _ in "xw")
    if data == "wide":
        x *= np.float32(2.0) ** rng.integers(-20, 20, x.shape).astype(np.float32)
    assert (x.view(np.uint32) & 0x1FFF).any(), "all mantissa bits take part"
    split = kernel()
    done = split.emulation(x, w)
    assert done.report.ok, str(done.report)
    assert split.source.count("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32") == 3
    for found, limit in zip(errors(done.results, x, w), errors(in_steps(x, w), x, w), strict=True):
        assert found <= limit
    (bound,) = expected(split.program, {"x": x, "w": w}, {"M": 32, "N": 32, "K": depth}, 8)
    assert bound.compare(done.results)[2] == 0
    rounded = [(one.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for one in (x, w)]
    assert bound.compare(in_steps(*rounded))[2] > 100, "what tf32 loses is found"


@pytest.mark.parametrize(
    ("arch", "function", "second"),
    [
        ("sm_90a", lambda x, w: pg.relu(x @ w) * 0.5, "[K,N]"),
        pytest.param("sm_89", lambda x, w: (x @ w.T).astype("bf16"), "[N,K]",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_kernels_check(arch, function, second):
    report = kernel("f32", function, second, arch).check({"M": 70, "N": 76, "K": 52})
    assert report.ok and "bit for bit" in report.comparison, str(report)


def test_tf32_stays_one_product():
    assert kernel("tf32").source.count("mma.sync.aligned.m16n8k8") == 1


def test_data_has_every_product_that_is_not_too_small():
    assert atom("m16n8k8_f32_f32").pieces == 2 and atom("m16n8k8_f32_tf32").pieces == 1
    base = read(FILE)["m16n8k8_f32_tf32"]
    for split in ([[0, 0], [0, 1]], [[0, 0], [0, 1], [1, 0], [1, 0]]):
        table = copy.deepcopy(base) | {"split": split}
        with pytest.raises(HardwareDataError, match=r"of 2 parts.*\[0, 0\], \[0, 1\], \[1, 0\]"):
            build("changed", table)


@pytest.mark.parametrize(
    ("function", "left", "right"),
    [
        (lambda x, w: pg.relu(x) @ w.T, lambda x: np.maximum(x, 0), lambda w: w),
        (lambda x, w: (x * 2) @ (w * 2).T, lambda x: x * 2, lambda w: w * 2),
    ],
)
def test_operands_that_are_computed_lose_no_more(function, left, right):
    rng = np.random.default_rng(7)
    x, w = (rng.standard_normal((32, 136)).astype(np.float32) for _ in "xw")
    done = kernel(function=function).emulation(x, w)
    assert done.report.ok, str(done.report)
    x, w = left(x), right(w)
    for found, limit in zip(errors(done.results, x, w), errors(in_steps(x, w), x, w), strict=True):
        assert found <= limit


def test_rows_by_index_lose_no_more():
    rng = np.random.default_rng(8)
    x, w = (rng.standard_normal((32, 136)).astype(np.float32) for _ in "xw")
    rows = rng.integers(0, 32, 32).astype(np.int32)
    fused = pg.fuse(lambda x, w, rows: x[rows] @ w.T, name="split")
    done = fused.compile("f32[M,K]", "f32[N,K]", "s32[T]", arch="sm_80").emulation(x, w, rows)
    assert done.report.ok, str(done.report)
    x = x[rows]
    for found, limit in zip(errors(done.results, x, w), errors(in_steps(x, w), x, w), strict=True):
        assert found <= limit
