"""The bound of a program with computed operands: held by its kernel, broken by what is wrong."""

import numpy as np
import pytest

import polygen as pg
from polygen.cli.accuracy import expected

SIZES = {"M": 24, "N": 16, "K": 72}
PROGRAMS = {
    "functions": (lambda x, w, g: pg.silu(x * g) @ w.T, ("bf16[M,K]", "bf16[N,K]", "bf16[K]")),
    "f32": (lambda x, w, g: (pg.tanh(x) * g) @ w.T, ("tf32[M,K]", "tf32[N,K]", "f32[K]")),
    "both": (lambda x, w, g: (x + g) @ pg.exp(w).T, ("f16[M,K]", "f16[N,K]", "f32[K]")),
}


def case(name):
    function, signature = PROGRAMS[name]
    kernel = pg.fuse(function, name="bounded").compile(*signature, arch="sm_80", out_dtype="f32")
    rng = np.random.default_rng(1)
    data = {
        t.name: rng.standard_normal([SIZES[d] for d in t.dims]).astype(np.float32)
        .astype(t.dtype.numpy)
        for t in kernel.program.inputs
    }  # fmt: skip
    exact = {name: value.astype(np.float64) for name, value in data.items()}
    (bound,) = expected(kernel.program, exact, SIZES, kernel.passes.plan.atom.k)
    return kernel, data, bound


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_are_within_it(name):
    kernel, data, bound = case(name)
    found = np.asarray(kernel.emulation(*data.values()).results).astype(np.float64)
    error, ratio, above = bound.compare(found)
    assert above == 0 and 0 < ratio <= 1 and error > 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_that_are_wrong_are_outside(name):
    """By a few units of the operand's type, of the largest result."""
    _, _, bound = case(name)
    unit = 2.0 ** -{"functions": 7, "f32": 10, "both": 10}[name]
    wrong = bound.value + 4 * unit * np.abs(bound.value).max()
    assert bound.compare(wrong)[2] == wrong.size
    assert np.median(bound.allowed) < unit * np.abs(bound.value).max(), "rarely rounds otherwise"


def test_places_in_packed_numbers_are_numbers():
    """`unpack` depends on where an element is, which is no constant."""
    fused = pg.fuse(lambda x, q: x @ (pg.unpack(q, "i4") * 0.5).astype("bf16").T, name="packed")
    program = fused.program("bf16[M,72]", "u8[N,36]", out_dtype="f32")
    rng = np.random.default_rng(2)
    x = rng.integers(-2, 3, (24, 72)).astype(np.float64)
    q = rng.integers(0, 256, (16, 36)).astype(np.float64)
    (bound,) = expected(program, {"x": x, "q": q}, {"M": 24, "N": 16}, 16)
    low, high = q % 16, q // 16
    numbers = np.stack([low, high], axis=-1).reshape(16, 72)
    numbers = np.where(numbers < 8, numbers, numbers - 16) / 2
    np.testing.assert_array_equal(bound.value, x @ numbers.T)
