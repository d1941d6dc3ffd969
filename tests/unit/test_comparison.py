"""What checks allow: no kernel that computes as it should is called wrong, and wrong ones are."""

import numpy as np
import pytest

import polygen as pg
from polygen.comparison import compare, is_exact, meanings

PAIR = ("bf16[M,K]", "bf16[N,K]")
SMALL = {"M": 20, "N": 24, "K": 16}
ATTENTION = ("bf16[2,S,64]", "bf16[2,T,64]", "bf16[2,T,64]")


def attended(q, k, v):
    return pg.softmax(q @ k.mT * 0.1) @ v


@pytest.mark.parametrize(
    ("function", "types", "exact"),
    [
        (lambda x, w: (x @ w.T) * 0.5 + 3, PAIR, True),
        (lambda x, w: np.maximum(x @ w.T, -np.inf), PAIR, True),
        (lambda x, w: np.maximum(x @ w.T, 0.1), PAIR, True),
        (lambda x, w: pg.where(x @ w.T > 0.1, x @ w.T, -1e30), PAIR, True),
        (lambda x, w: (x @ w.T > 0.1).astype("s32").sum(1), PAIR, True),
        (lambda x, w: (x @ w.T) * 0.1, PAIR, False),
        (lambda x, w: -4.7 * (x @ w.T), ("s8[M,K]", "s8[N,K]"), False),
        (lambda x, w: (x * 0.1) @ w.T, ("f32[M,K]", "f32[N,K]"), False),
        (lambda x, w: ((x @ w.T) * 0.1).sum(1), PAIR, False),
    ],
)
def test_constants_of_many_digits_are_rounded(function, types, exact):
    """NumPy's float64 has other digits of 0.1 than the kernel's f32."""
    kernel = pg.fuse(function, name="f").compile(*types, arch="sm_80", out_dtype="f32")
    assert is_exact(kernel.program) is exact
    assert kernel.check(SMALL).ok


def test_constants_between_kernels_in_order():
    def polar(x):
        a = x @ x.T
        b = -4.7 * a + 2.0 * a @ a
        return 3.4 * x + b @ x

    kernels = pg.fuse(polar).compile("bf16[M,N]", arch="sm_90a", sizes={"M": 20, "N": 36})
    assert kernels.check({"M": 20, "N": 36}).ok


@pytest.mark.parametrize(
    "fold",
    [
        lambda o: np.abs(o).max(-1),
        lambda o: np.abs(o).min(-1),
        lambda o: (o * o).sum(-1),
        lambda o: np.linalg.norm(o, axis=-1),
    ],
    ids=["largest", "least", "squares", "norm"],
)
def test_folds_of_what_is_off_to_either_side(fold):
    """Weights are rounded before the second product, which moves its sums; folds of magnitudes are
    largest, or least, where all sums move away from 0, or towards it.
    """
    kernel = pg.fuse(lambda q, k, v: fold(attended(q, k, v)), name="f")
    assert kernel.compile(*ATTENTION, arch="sm_80").check({"S": 10, "T": 60}).ok


def test_what_is_farther_off_is_found():
    program = pg.fuse(lambda q, k, v: np.abs(attended(q, k, v)).max(-1)).program(*ATTENTION)
    generator, sizes = np.random.default_rng(3), {"S": 10, "T": 60}
    shapes = {"q": (2, 10, 64), "k": (2, 60, 64), "v": (2, 60, 64)}
    arrays = {name: generator.integers(-2, 3, shape) for name, shape in shapes.items()}
    (expected, *others) = [of[0] for of in meanings(program, arrays, sizes)]
    assert compare(program.outputs[0], expected * 1.003, expected, False, *others)[0] is None
    found, _ = compare(program.outputs[0], expected * 1.02, expected, False, *others)
    assert found is not None and found.code == "wrong-value"
