"""What is asked of cuBLAS through CuPy, and CuPy's kernels, by stand-ins that compute with NumPy.

The stand-in for cuBLAS reads column-major matrices through the pointers it is given, as the library
does; that for kernels runs the statements of their C code, which are Python's but for their types.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_bench_cublaslt import expected, opened

from polygen.bench.operations import chains
from polygen.bench.peers.cupy_cublas import CupyCublas, CupyOnce
from polygen.bench.rows import Row
from polygen.errors import BenchError


def matrix(pointer: int, shape: tuple[int, int], leading: int, count: int, apart: int) -> Any:
    """A batch of column-major f16 matrices in host memory."""
    rows, columns = shape
    size = apart * (count - 1) + leading * (columns - 1) + rows
    flat = np.frombuffer((ctypes.c_uint16 * size).from_address(pointer), np.float16)
    return np.lib.stride_tricks.as_strided(
        flat, (count, rows, columns), (2 * apart, 2, 2 * leading)
    )


class Cublas:
    """cuBLAS's functions, for f16 in host memory."""

    CUBLAS_POINTER_MODE_HOST = 0

    def __init__(self) -> None:
        self.batches: list[int] = []

    def setStream(self, handle: int, stream: int) -> None: ...

    def setPointerMode(self, handle: int, mode: int) -> None: ...

    def getPointerMode(self, handle: int) -> int:
        return 0

    def gemmEx(
        self, handle: int, turn_a: int, turn_b: int, m: int, n: int, k: int, alpha: int,
        a: int, a_kind: int, lda: int, b: int, b_kind: int, ldb: int, beta: int,
        c: int, c_kind: int, ldc: int, sums: int, algorithm: int,
    ) -> None:  # fmt: skip
        self.gemmStridedBatchedEx(
            handle, turn_a, turn_b, m, n, k, alpha, a, a_kind, lda, 0, b, b_kind, ldb, 0, beta,
            c, c_kind, ldc, 0, 1, sums, algorithm,
        )  # fmt: skip

    def gemmStridedBatchedEx(
        self, handle: int, turn_a: int, turn_b: int, m: int, n: int, k: int, alpha: int,
        a: int, a_kind: int, lda: int, a_apart: int, b: int, b_kind: int, ldb: int, b_apart: int,
        beta: int, c: int, c_kind: int, ldc: int, c_apart: int, count: int, sums: int,
        algorithm: int,
    ) -> None:  # fmt: skip
        self.batches.append(count)
        left = matrix(a, (k, m) if turn_a else (m, k), lda, count, a_apart).astype(float)
        right = matrix(b, (n, k) if turn_b else (k, n), ldb, count, b_apart).astype(float)
        left = left.swapaxes(1, 2) if turn_a else left
        right = right.swapaxes(1, 2) if turn_b else right
        matrix(c, (m, n), ldc, count, c_apart)[...] = left @ right


class Kernel:
    """An elementwise kernel."""

    def __init__(self, inputs: str, outputs: str, body: str, name: str) -> None:
        self.names = re.findall(r"(\w+)(?:,|$)", inputs)
        text = re.sub(r"(?<=[\d.])f\b|\bfloat |static_cast<\w+>", "", body)
        self.lines = [line.strip() for line in text.split(";")]

    def __call__(self, *arrays: Any) -> None:
        *given, result = arrays
        held = dict(zip(self.names, (array.astype(float) for array in given), strict=True))
        functions = {"__expf": np.exp, "tanhf": np.tanh}
        for line in self.lines:
            exec(line, functions, held)
        result[...] = held["y"]


def made(kind: type[CupyCublas], monkeypatch: Any) -> tuple[CupyCublas, Cublas, list[Kernel]]:
    """The library on stand-ins, and the kernels that it makes."""
    cublas, kernels = Cublas(), []

    def kernel(*words: str) -> Kernel:
        kernels.append(Kernel(*words))
        return kernels[-1]

    stream = SimpleNamespace(ptr=0, cuda_stream=0)
    cuda = SimpleNamespace(
        cublas=cublas, get_current_stream=lambda: stream, device=SimpleNamespace(
            get_cublas_handle=lambda: 0),
        Stream=SimpleNamespace(from_external=lambda _: contextlib.nullcontext()),
    )  # fmt: skip
    cupy: Any = ModuleType("cupy")
    cupy.cuda, cupy.ElementwiseKernel = cuda, kernel
    torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda: stream))
    for name, module in (("cupy", cupy), ("cupy.cuda", cuda), ("torch", torch)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(kind, "array", lambda self, tensor, dtype: tensor.array)
    return kind(), cublas, kernels


OPS = (
    "mm",
    "mm_nn",
    "mm_tn",
    "mm_tt",
    "bmm",
    "bmm_nn",
    "bmm_bias_gelu_nn",
    "gated",
    "pairs",
    "qkv",
)


@pytest.mark.parametrize("kind", [CupyCublas, CupyOnce])
@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize("op", OPS)
def test_cupy_computes_the_operation(op, pad, kind, monkeypatch):
    row = Row(op, 5, 7, 6, "f16", pad=pad, batch=3)
    peer, cublas, kernels = made(kind, monkeypatch)
    work, found = opened(row), chains(row.operation)
    steps = [len(one.steps) for one in found]
    if kind is CupyOnce and max(steps) < 2:
        with pytest.raises(BenchError, match="no steps to take together"):
            peer.make(work)
        return
    call = peer.make(work)
    found_y, wanted = call(), expected(row, work)
    assert cublas.batches == [3 if "B" in row.sizes else 1] * len(found)
    assert len(kernels) == (sum(steps) if kind is CupyCublas else 1)
    several = isinstance(wanted, tuple)
    pairs = zip(found_y, wanted, strict=True) if several else [(found_y, wanted)]
    for y, exact in pairs:
        np.testing.assert_allclose(y.array, exact, 4e-3, 2e-3)
