"""Products over output domains of their own on a real GPU: values, sentinels, graphs, any sizes."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.frontend.evaluate import evaluate

pytestmark = pytest.mark.gpu

SENTINEL = 1234.0


def heads(x, q, k, v, b):
    return x @ q.T + b, pg.relu(x @ k.T), x @ v.T


def apart(x, w, y, u):
    return x @ w.T, pg.maximum(y @ u.T, 0)


def beside(x, w, u):
    return np.concatenate([x @ w.T, pg.relu(x @ u.T)], axis=-1)


def rotated(x, w, c, s):
    left, right = np.split(x @ w.T, 2, axis=-1)
    return np.concatenate([left * c - right * s, right * c + left * s], axis=-1)


HEADS = ("f16[M,K]", "f16[N,K]", "f16[P,K]", "f16[P,K]", "f32[N]")
KERNELS = {
    "heads": (heads, HEADS, {"M": 700, "N": 1032, "P": 136, "K": 328}),
    "few rows": (heads, HEADS, {"M": 7, "N": 1024, "P": 256, "K": 512}),
    "odd rows": (heads, tuple(f"{one}@2" if "," in one else one for one in HEADS),
                 {"M": 131, "N": 201, "P": 71, "K": 203}),
    "sums of their own": (
        apart, ("f16[B,M,K]", "f16[N,K]", "f16[Q,L]", "f16[P,L]"),
        {"B": 3, "M": 136, "K": 200, "N": 264, "Q": 328, "L": 456, "P": 72},
    ),
    "one output": (beside, ("f16[M,K]", "f16[256,K]", "f16[72,K]"), {"M": 700, "K": 328}),
    "rotated halves": (
        rotated, ("f16[M,K]", "f16[128,K]", "f32[M,64]", "f32[M,64]"), {"M": 700, "K": 328},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


def operands(program, sizes, seed=0):
    generator = np.random.default_rng(seed)
    shapes = [[sizes.get(dim, dim) for dim in tensor.dims] for tensor in program.inputs]
    return [
        generator.integers(-2, 3, shape).astype(tensor.dtype.numpy)
        for tensor, shape in zip(program.inputs, shapes, strict=True)
    ]


def wanted(program, arrays):
    return evaluate(program, dict(zip((t.name for t in program.inputs), arrays, strict=True)))


@pytest.mark.parametrize("name", KERNELS)
def test_all_sections_are_exact_and_nothing_else_is_written(cupy, name):
    function, signature, sizes = KERNELS[name]
    kernel = pg.fuse(function).compile(*signature, sizes=sizes)
    arrays = operands(kernel.program, sizes)
    expected = wanted(kernel.program, arrays)
    rooms = [
        cupy.full((*e.shape[:-2], e.shape[-2] + 2, e.shape[-1] + 16), SENTINEL, e.dtype)
        for e in expected
    ]
    outputs = [room[..., 1:-1, 8:-8] for room in rooms]
    out = outputs[0] if len(outputs) == 1 else tuple(outputs)
    kernel(*map(cupy.asarray, arrays), out=out)
    for room, one in zip(rooms, expected, strict=True):
        found = room.get()
        np.testing.assert_array_equal(found[..., 1:-1, 8:-8], one)
        found[..., 1:-1, 8:-8] = SENTINEL
        assert (found == SENTINEL).all()


def test_one_kernel_serves_other_sizes_and_graphs(cupy):
    sizes = KERNELS["heads"][2]
    kernel = pg.fuse(heads).compile(*HEADS, sizes=sizes)
    for other in ({**sizes, "M": 1}, {**sizes, "P": 8}, {**sizes, "N": 8, "P": 2048, "K": 64}):
        arrays = operands(kernel.program, other, seed=1)
        found = kernel(*map(cupy.asarray, arrays))
        for one, two in zip(found, wanted(kernel.program, arrays), strict=True):
            np.testing.assert_array_equal(one.get(), two)
    arrays = list(map(cupy.asarray, operands(kernel.program, sizes)))
    outputs = kernel(*arrays)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        kernel(*arrays, out=outputs)
        graph = stream.end_capture()
    fresh = operands(kernel.program, sizes, seed=2)
    for array, values in zip(arrays, fresh, strict=True):
        array.set(values)
    graph.launch(stream)
    stream.synchronize()
    for one, two in zip(outputs, wanted(kernel.program, fresh), strict=True):
        np.testing.assert_array_equal(one.get(), two)
