"""Programs in PyTorch's and JAX's own operations multiply and round as their kernels do."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.frontend.evaluate import evaluate

TYPES = {
    "s8": np.int8, "u8": np.uint8, "bf16": ml_dtypes.bfloat16, "f16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "f32": np.float32,
}  # fmt: skip


def in_torch(program, arrays, sizes):
    torch = pytest.importorskip("torch")
    meaning = pytest.importorskip("polygen.adapters.torch.meaning")
    tensors = []
    for array in arrays:
        kind = getattr(torch, array.dtype.name)
        if array.itemsize == 1:
            tensors.append(torch.from_numpy(array.view(np.uint8)).view(kind))
        else:
            tensors.append(torch.from_numpy(array.astype(np.float32)).to(kind))
    return [found.double().numpy() for found in meaning.run(program, tensors, sizes)]


def in_jax(program, arrays, sizes):
    jnp = pytest.importorskip("jax").numpy
    meaning = pytest.importorskip("polygen.adapters.jax.meaning")
    found = meaning.run(program, [jnp.asarray(array) for array in arrays])
    return [np.asarray(one).astype(np.float64) for one in found]


@pytest.fixture(params=[in_torch, in_jax], ids=["torch", "jax"])
def run(request):
    """What runs a program in a library's operations: float64 arrays."""
    return request.param


def operands(kinds, rows=24, length=96):
    rng = np.random.default_rng(0)
    shapes = ((rows, length), (16, length))
    made = []
    for kind, shape in zip(kinds, shapes, strict=True):
        low, high = (0, 256) if kind == "u8" else (-127, 128) if kind == "s8" else (-7, 8)
        made.append(rng.integers(low, high, shape).astype(TYPES[kind]))
    return made


def same(run, function, kinds, length=96, change=np.copy):
    arrays = [change(one) for one in operands(kinds, length=length)]
    signature = (f"{kinds[0]}[M,{length}]", f"{kinds[1]}[16,{length}]")
    program, sizes = pg.fuse(function).program(*signature), {"M": len(arrays[0])}
    named = {t.name: array for t, array in zip(program.inputs, arrays, strict=True)}
    found = run(program, arrays, sizes)
    for one, wanted in zip(found, evaluate(program, named, sizes, single=True), strict=True):
        assert np.array_equal(one, wanted)
    return found


@pytest.mark.parametrize(
    "kinds",
    [("s8", "s8"), ("u8", "s8"), ("f16", "bf16"), ("e4m3", "e4m3"), ("e5m2", "e4m3")],
    ids="_".join,
)
def test_operands_of_any_types_are_multiplied(run, kinds):
    same(run, lambda x, w: x @ w.T, kinds)


def test_sums_of_whole_numbers_have_all_their_digits(run):
    (found,) = same(run, lambda x, w: x @ w.T, ("u8", "s8"), length=8192, change=np.abs)
    assert found.max() > 1 << 24 and np.any(found % 2), "float32 has fewer"


@pytest.mark.parametrize("factor", [0.001, 0.0625, 1e3, 1e6])
@pytest.mark.parametrize("kind", ["s8", "u8", "s32", "e4m3", "e5m2"])
def test_what_is_stored_is_rounded_and_saturates(run, kind, factor):
    found = same(run, lambda x, w: ((x @ w.T) * factor).astype(kind), ("s8", "s8"))
    assert len(np.unique(found[0])) > 1
