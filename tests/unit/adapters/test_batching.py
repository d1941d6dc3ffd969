"""A program over a batch: the same as the program for each member."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.adapters.batching import batched
from polygen.adapters.kernels import Kernels
from polygen.adapters.legality import refusal
from polygen.frontend.evaluate import evaluate
from polygen.knobs import scope

BF16 = np.dtype(ml_dtypes.bfloat16)
SIZES = {"M": 5, "N": 7, "K": 4}
PROGRAMS = {
    "bias": (lambda x, w, b: pg.gelu(x @ w.T + b), ("bf16[M,K]", "bf16[N,K]", "bf16[N]")),
    "two results": (
        lambda x, w, b: (x @ w.T, pg.relu(x @ w.T + b)),
        ("bf16[M,K]", "bf16[N,K]", "bf16[N]"),
    ),
    "columns first": (lambda x, w, b: x.T @ w + b, ("bf16[K,M]", "bf16[K,N]", "bf16[M,1]")),
    "places": (
        lambda x, w, b: pg.where(pg.indices(x @ w)[0] >= 2, x @ w, b),
        ("bf16[M,K]", "bf16[K,N]", "bf16[M,N]"),
    ),
}


FOLDED = {
    "softmax": (
        lambda x, w, b: pg.softmax(x @ w.T + pg.relu(b)), ("bf16[M,K]", "bf16[N,K]", "bf16[N]")
    ),
    "rows, columns and a number": (
        lambda x, w, b: ((x @ w.T + b).sum(1), pg.argmin(x @ w.T + b, axis=0), pg.max(x @ w.T + b)),
        ("bf16[M,K]", "bf16[N,K]", "bf16[N]"),
    ),
    "nearest": (
        lambda x, w, b: pg.argmin((w * w).sum(1) - 2 * (x @ w.T) + b, axis=1),
        ("bf16[M,K]", "bf16[N,K]", "bf16[N]"),
    ),
    "norm first": (
        lambda x, w, b: pg.rms_norm(x, b) @ w.T, ("bf16[M,K]", "bf16[N,K]", "bf16[K]")
    ),
    "computed first": (
        lambda x, w, b: (pg.relu(x) @ w.T) * pg.sum(pg.relu(x), axis=1, keepdims=True) + b,
        ("bf16[M,K]", "bf16[N,K]", "bf16[N]"),
    ),
}  # fmt: skip
PROGRAMS |= FOLDED


@pytest.mark.parametrize("which", [(True, False, False), (False, True, True), (True, True, True)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_member_of_a_batch_is_the_program(name, which):
    function, signature = PROGRAMS[name]
    program = pg.fuse(function, name="member").program(*signature)
    generator = np.random.default_rng(len(name))
    arrays = {}
    for tensor, has in zip(program.inputs, which, strict=True):
        shape = tuple(SIZES.get(d, d) for d in tensor.dims)
        arrays[tensor.name] = generator.integers(-2, 3, (3, *shape) if has else shape)
    whole, has_axis = batched(program, which)
    assert refusal(whole) is None and all(has_axis)
    found = evaluate(whole, arrays, {**SIZES, "B": 3})
    for member in range(3):
        own = {
            t.name: arrays[t.name][member] if has else arrays[t.name]
            for t, has in zip(program.inputs, which, strict=True)
        }
        for one, every in zip(evaluate(program, own, SIZES), found, strict=True):
            assert np.array_equal(one, every[member])


@pytest.mark.parametrize("name", ["rows, columns and a number", "nearest", "computed first"])
def test_a_batch_of_folds_is_a_kernel(name):
    """What the batch shares has no batch dim: whole numbers are exact on the PTX machine."""
    function, signature = FOLDED[name]
    program = pg.fuse(function, name="member").program(*signature)
    whole, _ = batched(program, (False, True, True))
    sizes = {"M": 37, "N": 70, "K": 32, "B": 3}
    with scope(arch="sm_90a"):
        kernel = Kernels().find(whole, {dim: sizes[dim] for dim in whole.sizes})
    generator = np.random.default_rng(len(name))
    arrays = {
        t.name: generator.integers(-2, 3, [sizes[dim] for dim in t.dims]).astype(BF16)
        for t in whole.inputs
    }
    found = kernel.emulate(*arrays.values())
    found = found if isinstance(found, tuple) else (found,)
    for one, wanted in zip(found, evaluate(whole, arrays, sizes), strict=True):
        assert np.array_equal(one, wanted)


def test_batches_of_batches_and_names_that_are_taken():
    program = pg.fuse(lambda x, w: x @ w, name="member").program("bf16[B,K]", "bf16[K,N]")
    whole, _ = batched(program, (True, False))
    assert whole.inputs[0].dims == ("B_", "B", "K") and whole.outputs[0].dims == ("B_", "B", "N")
    again, _ = batched(whole, (True, True))
    assert again.inputs[0].dims == ("B__", "B_", "B", "K")
    assert again.inputs[1].dims == ("B__", "K", "N")


def test_an_operand_that_no_member_changes_is_computed_once():
    """Its values are shared by the batch, whatever else is computed beside products."""
    program = pg.fuse(lambda x, w, y, u: (x @ w.T) * (np.abs(y) @ u.T), name="member").program(
        "bf16[M,K]", "bf16[N,K]", "bf16[M,K]", "bf16[N,K]"
    )
    whole, _ = batched(program, (True, False, False, False))
    made = {s.write.name: [i for i, _ in s.domain] for s in whole.pointwise if s.function == "abs"}
    assert all("b" not in domain for domain in made.values()) and made
    generator = np.random.default_rng(1)
    shapes = {"x": (3, 5, 4), "w": (7, 4), "y": (5, 4), "u": (7, 4)}
    arrays = {name: generator.integers(-2, 3, shape) for name, shape in shapes.items()}
    (found,) = evaluate(whole, arrays, {**SIZES, "B": 3})
    for member in range(3):
        (one,) = evaluate(program, {**arrays, "x": arrays["x"][member]}, SIZES)
        assert np.array_equal(one, found[member])


def test_results_without_axes_have_one_then():
    program = pg.fuse(lambda x, w: pg.sum(x @ w), name="member").program("bf16[M,K]", "bf16[K,N]")
    (total,) = batched(program, (True, True))[0].outputs
    assert (total.dims, total.order) == (("B",), (0,))


def test_what_no_member_changes_has_no_axis():
    program = pg.fuse(lambda x, w, v: (x @ w.T, x @ v.T), name="member").program(
        "bf16[M,K]", "bf16[N,K]", "bf16[N,K]"
    )
    assert batched(program, (False, True, False))[1] == (True, False)
