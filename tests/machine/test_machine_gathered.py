"""Rows by index, on the PTX machine: values, edges, and what is never read outside."""

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.hardware.device import device
from polygen.schedule.load import shipped

ARCHS = ("sm_80", "sm_90a")


def run(kernel, *operands):
    """The results; the machine refuses every access outside of an array."""
    done = kernel.emulation(*operands)
    assert done.report.ok, str(done.report)
    return np.asarray(done.results).astype(np.float64)


def ints(*shape, seed=0, dtype=ml_dtypes.bfloat16):
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32).astype(dtype)


def named(count, rows, seed=0):
    """Rows by chance, some of them several times, with the first and the last."""
    found = np.random.default_rng(seed).integers(0, rows, count).astype(np.int32)
    found[:1], found[-1:] = rows - 1, 0
    return found


def compiled(function, *signature, arch):
    return pg.fuse(function, name="gathered").compile(*signature, arch=arch, out_dtype="f32")


@pytest.mark.sample(3)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("rows", "count", "depth", "columns"),
    [(13, 29, 40, 24), (1, 5, 8, 8), (7, 3, 37, 9), (300, 150, 72, 41), (5, 1, 24, 16)],
)
def test_rows_by_index(rows, count, depth, columns, arch):
    kernel = compiled(lambda x, r, w: x[r] @ w.T, "bf16[S,K]", "s32[T]", "bf16[N,K]", arch=arch)
    x, w, r = ints(rows, depth), ints(columns, depth, seed=1), named(count, rows)
    wanted = x.astype(np.float64)[r] @ w.astype(np.float64).T
    np.testing.assert_array_equal(run(kernel, x, r, w), wanted.reshape(count, columns))


@pytest.mark.parametrize("arch", ARCHS)
def test_numbers_outside_read_nothing_outside(arch):
    """The machine would name the access; all other rows are as they should be."""
    kernel = compiled(lambda x, r, w: x[r] @ w.T, "bf16[S,K]", "s32[T]", "bf16[N,K]", arch=arch)
    x, w = ints(13, 40), ints(24, 40, seed=1)
    r = np.array([3, -1, 13, -(2**31), 2**31 - 1, 12], np.int32)
    found = run(kernel, x, r, w)
    wanted = x.astype(np.float64)[np.clip(r, 0, 12)] @ w.astype(np.float64).T
    np.testing.assert_array_equal(found, wanted)


F32, S8 = np.float32, np.int8
CASES = {
    "the right operand": (
        lambda x, w, c, b: pg.relu(x @ w[c].T + b),
        {"x": ("bf16[M,K]", 9, 40), "w": ("bf16[V,K]", 33, 40), "c": ("s32[N]", 24, 33),
         "b": ("f32[N]", 24)},
    ),
    "both operands": (
        lambda x, r, w, c: x[r] @ w[c].T,
        {"x": ("bf16[S,K]", 9, 24), "r": ("s32[T]", 20, 9), "w": ("bf16[V,K]", 7, 24),
         "c": ("s32[N]", 16, 7)},
    ),
    "scaled columns": (
        lambda x, r, g, w: (x[r] * g) @ w.T,
        {"x": ("bf16[S,K]", 11, 40), "r": ("s32[T]", 21, 11), "g": ("bf16[K]", 40),
         "w": ("bf16[N,K]", 24, 40)},
    ),
    "a number of each row by the same index": (
        lambda x, r, s, w: (x[r] * s[r][:, None] - 1) @ w.T,
        {"x": ("bf16[S,K]", 11, 40), "r": ("s32[T]", 21, 11), "s": ("f32[S]", 11),
         "w": ("bf16[N,K]", 24, 40)},
    ),
    "two arrays by two indices, and one without": (
        lambda x, y, z, r, q, w: (x[r] + y[q] * z) @ w.T,
        {"x": ("bf16[S,K]", 11, 24), "y": ("bf16[U,K]", 5, 24), "z": ("bf16[T,K]", 13, 24),
         "r": ("s32[T]", 13, 11), "q": ("s32[T]", 13, 5), "w": ("bf16[N,K]", 16, 24)},
    ),
    "narrow weights": (
        lambda x, w, s, c: x @ (w[c].astype("bf16") * s[c][:, None]).T,
        {"x": ("bf16[M,K]", 9, 64), "w": ("s8[V,K]", 33, 64), "s": ("f32[V]", 33),
         "c": ("s32[N]", 24, 33)},
    ),
    "parts of the rows, and every other of them": (
        lambda x, r, w: x[r][::2, 8:] @ w.T,
        {"x": ("bf16[S,48]", 11, 48), "r": ("s32[26]", 26, 11), "w": ("bf16[N,40]", 16, 40)},
    ),
    "rows that are summed": (
        lambda x, w, r: x @ w[r],
        {"x": ("bf16[M,T]", 9, 37), "w": ("bf16[V,N]", 11, 24), "r": ("s32[T]", 37, 11)},
    ),
    "columns of an array that lies the other way": (
        lambda x, r, w: x.T[r] @ w.T,
        {"x": ("bf16[K,S]", 24, 11), "r": ("s32[T]", 13, 11), "w": ("bf16[N,K]", 16, 24)},
    ),
    "tf32": (
        lambda x, r, w: x[r] @ w.T,
        {"x": ("tf32[S,K]", 11, 20), "r": ("s32[T]", 13, 11), "w": ("tf32[N,K]", 16, 20)},
    ),
    "rows at any address": (
        lambda x, r, w: x[r] @ w.T,
        {"x": ("f16[S,K]@2", 11, 35), "r": ("s32[T]", 13, 11), "w": ("f16[N,K]@2", 16, 35)},
    ),
    "two products, and rows of the result": (
        lambda x, r, u, v, s: pg.maximum(x[r] @ u.T, x[r] @ v.T) * s[:, None],
        {"x": ("bf16[S,K]", 11, 24), "r": ("s32[T]", 13, 11), "u": ("bf16[N,K]", 16, 24),
         "v": ("bf16[N,K]", 16, 24), "s": ("f32[T]", 13)},
    ),
    "a row of a table for each row of the result": (
        lambda x, w, b, r: x @ w.T + b[r],
        {"x": ("bf16[M,K]", 29, 40), "w": ("bf16[N,K]", 24, 40), "b": ("f32[E,N]", 7, 24),
         "r": ("s32[M]", 29, 7)},
    ),
    "a narrow one at any address, of an odd pitch": (
        lambda x, w, b, r: pg.relu(x @ w.T - b[r]),
        {"x": ("bf16[M,K]", 29, 40), "w": ("bf16[N,K]", 23, 40), "b": ("bf16[E,N]@2", 7, 23),
         "r": ("s32[M]", 29, 7)},
    ),
    "numbers for rows and for columns of the result": (
        lambda x, w, s, c, r, q: (x @ w.T) * s[r][:, None] + c[q],
        {"x": ("bf16[M,K]", 29, 40), "w": ("bf16[N,K]", 24, 40), "s": ("f32[E]", 7),
         "c": ("f32[F]", 5), "r": ("s32[M]", 29, 7), "q": ("s32[N]", 24, 5)},
    ),
    "columns of a table for columns of the result": (
        lambda x, w, b, q: x @ w.T + b.T[q].T,
        {"x": ("bf16[M,K]", 29, 40), "w": ("bf16[N,K]", 24, 40), "b": ("f32[M,E]", 29, 5),
         "q": ("s32[N]", 24, 5)},
    ),
    "before the product and behind it": (
        lambda x, w, b, r: x[r] @ w.T + b[r],
        {"x": ("bf16[S,K]", 7, 40), "w": ("bf16[N,K]", 24, 40), "b": ("f32[S,N]", 7, 24),
         "r": ("s32[T]", 29, 7)},
    ),
}  # fmt: skip
_STORED = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "s8": S8}


@pytest.mark.sample(5)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", CASES)
def test_programs_with_rows_by_index(name, arch):
    function, given = CASES[name]
    fused = pg.fuse(function, name="gathered")
    kernel = fused.compile(*(one[0] for one in given.values()), arch=arch, out_dtype="f32")
    operands = []
    for seed, (text, *shape) in enumerate(given.values()):
        kind = text.split("[")[0]
        operands.append(
            named(*shape, seed) if kind == "s32"
            else ints(*shape, seed=seed, dtype=_STORED.get(kind, F32))
        )  # fmt: skip
    np.testing.assert_array_equal(run(kernel, *operands), fused.reference(*operands))


def schedules(arch):
    """Ways out of a kernel: by panels of both kinds of copies, from registers, exchanged, lanes."""
    every = shipped(device(arch))
    named = [
        next((s for s in every if kind(s)), None)
        for kind in (
            lambda s: s.epilogue.through == "lines" and not s.exchange and s.cluster.k == 1,
            lambda s: s.epilogue.through == "registers" and s.exchange and not s.from_registers,
            lambda s: s.by_lanes,
        )
    ]
    return ["auto", *filter(None, named)]


@pytest.mark.parametrize("arch", ARCHS)
def test_a_table_behind_the_product_by_numbers_outside(arch):
    """Whoever stores the result, and where rows and columns of it end inside tiles."""
    fused = pg.fuse(lambda x, w, b, r: x @ w.T + b[r], name="table")
    x, w, b = ints(21, 40), ints(24, 40, seed=1), ints(7, 24, seed=2, dtype=F32)
    r = named(21, 7)
    r[3:7] = (-1, 7, -(2**31), 2**31 - 1)
    wanted = fused.reference(x, w, b, np.clip(r, 0, 6))
    for one in schedules(arch):
        kernel = fused.compile("bf16[M,K]", "bf16[N,K]", "f32[E,N]", "s32[M]", arch=arch,
                               out_dtype="f32", schedule=one)  # fmt: skip
        np.testing.assert_array_equal(run(kernel, x, w, b, r), wanted)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_kernel_checks_itself(arch):
    """Trial arrays have rows that there are."""
    kernel = compiled(
        lambda x, r, g, w: pg.relu((x[r] * g) @ w.T),
        "bf16[S,K]", "s32[T]", "bf16[K]", "bf16[N,K]", arch=arch,
    )  # fmt: skip
    assert kernel.check(sizes={"S": 11, "T": 70, "N": 40, "K": 72}).ok


def test_rows_are_the_same_whatever_their_number_is():
    """Invariance: of one class of sums."""
    fused = pg.fuse(lambda x, r, w: pg.silu(x)[r] @ w.T, name="same")
    x, w, r = ints(50, 96), ints(40, 96, seed=2), named(200, 50)
    found = [
        run(fused.compile("bf16[S,K]", "s32[T]", "bf16[N,K]", arch="sm_90a",
                          sizes={"S": 50, "T": t, "N": 40, "K": 96}, invariant=("T",)), x, r[:t], w)
        for t in (3, 200)
    ]  # fmt: skip
    np.testing.assert_array_equal(found[0], found[1][:3])
