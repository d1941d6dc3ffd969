"""What is asked of cuBLASLt, by a stand-in that computes what column-major memory says.

The stand-in reads the same descriptors through the same pointers as the library, and computes with
NumPy ``epilogue(alpha op(A) op(B) + beta C + bias)``; so wrong leading dimensions, transpositions,
operands exchanged, batches a wrong stride apart, or a bias along the wrong axis give wrong numbers
here.
"""

from __future__ import annotations

import ctypes
import enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polygen.bench.operations import chains, results, value
from polygen.bench.peers import cublaslt
from polygen.bench.rows import Row

ALGORITHM = np.dtype([("data_", "<u8", (8,))])
RESULT = np.dtype(
    [("algo", ALGORITHM), ("workspace_size", "<u8"), ("state", "<i4"), ("waves_count", "<f4"),
     ("reserved", "<i4", (4,))]
)  # fmt: skip


class Attribute(enum.IntEnum):
    TRANSA, TRANSB, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8


class Epilogue(enum.IntEnum):
    DEFAULT, RELU, BIAS, RELU_BIAS, GELU, GELU_BIAS = 1, 2, 4, 6, 32, 36


class Layout(enum.IntEnum):
    BATCH_COUNT, STRIDED_BATCH_OFFSET = 5, 6


class Preference(enum.IntEnum):
    MAX_WORKSPACE_BYTES = 1


class Lt:
    """cuBLASLt's functions, for f16 in host memory."""

    MatmulDescAttribute, MatmulPreferenceAttribute = Attribute, Preference
    MatrixLayoutAttribute = Layout
    matmul_heuristic_result_dtype = RESULT

    def __init__(self) -> None:
        self.Epilogue = Epilogue
        self.held: list[Any] = [None]
        self.used: list[int] = []

    def _keep(self, value: Any) -> int:
        self.held.append(value)
        return len(self.held) - 1

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        return self._keep({"compute": compute, "scale": scale})

    def matmul_desc_set_attribute(self, desc: int, name: int, pointer: int, size: int) -> None:
        raw = ctypes.string_at(pointer, size)
        self.held[desc][Attribute(name)] = int.from_bytes(raw, "little")

    def matrix_layout_create(self, kind: int, rows: int, columns: int, leading: int) -> int:
        assert leading >= rows
        return self._keep({"rows": rows, "columns": columns, "leading": leading})

    def matrix_layout_set_attribute(self, layout: int, name: int, pointer: int, size: int) -> None:
        assert size == {Layout.BATCH_COUNT: 4, Layout.STRIDED_BATCH_OFFSET: 8}[Layout(name)]
        raw = ctypes.string_at(pointer, size)
        self.held[layout][Layout(name)] = int.from_bytes(raw, "little")

    def matmul_preference_create(self) -> int:
        return self._keep({})

    def matmul_preference_set_attribute(self, *_: Any) -> None: ...

    def matmul_preference_destroy(self, preference: int) -> None: ...

    def matmul_algo_get_heuristic(
        self, handle: int, desc: int, a: int, b: int, c: int, d: int, preference: int, most: int,
        results: int, count: int,
    ) -> None:  # fmt: skip
        made = np.zeros(3, RESULT)
        made["algo"]["data_"][:, 0] = [7, 8, 9]
        ctypes.memmove(results, made.ctypes.data, made.nbytes)
        ctypes.memmove(count, np.array(3, np.int32).ctypes.data, 4)

    def matrix(self, pointer: int, layout: int) -> Any:
        """A batch of matrices, of one where the layout has none."""
        held = self.held[layout]
        rows, columns, leading = (held[name] for name in ("rows", "columns", "leading"))
        count, apart = held.get(Layout.BATCH_COUNT, 1), held.get(Layout.STRIDED_BATCH_OFFSET, 0)
        size = apart * (count - 1) + leading * (columns - 1) + rows
        flat = np.frombuffer((ctypes.c_uint16 * size).from_address(pointer), np.float16)
        return np.lib.stride_tricks.as_strided(
            flat, (count, rows, columns), (2 * apart, 2, 2 * leading)
        )

    def matmul(
        self, handle: int, desc: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int,
        beta: int, c: int, c_layout: int, d: int, d_layout: int, algorithm: int, workspace: int,
        size: int, stream: int,
    ) -> None:  # fmt: skip
        told = self.held[desc]
        self.used.append(ctypes.c_uint64.from_address(algorithm).value)
        left, right = self.matrix(a, a_layout), self.matrix(b, b_layout)
        left = left.swapaxes(1, 2) if told[Attribute.TRANSA] else left
        right = right.swapaxes(1, 2) if told[Attribute.TRANSB] else right
        scale = ctypes.c_float.from_address(beta).value
        z = left.astype(float) @ right.astype(float)
        z = z + scale * self.matrix(c, c_layout).astype(float) if scale else z
        epilogue = Epilogue(told[Attribute.EPILOGUE])
        if "BIAS" in epilogue.name:
            memory = (ctypes.c_uint16 * z.shape[1]).from_address(told[Attribute.BIAS_POINTER])
            z = z + np.frombuffer(memory, np.float16).astype(float)[:, None]
        if "RELU" in epilogue.name:
            z = np.maximum(z, 0)
        if "GELU" in epilogue.name:
            z = 0.5 * z * (1 + np.tanh(0.7978845608 * (z + 0.044715 * z**3)))
        self.matrix(d, d_layout)[...] = z


class Tensor:
    """A NumPy array with the attributes of a tensor."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape = array, array.shape

    def stride(self, axis: int) -> int:
        return int(self.array.strides[axis] // 2)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)


def opened(row: Row) -> Any:
    generator = np.random.default_rng(1)
    timed = {}
    for name, _ in row.operation.operands:
        shape = row.shape(name)
        wide = (*shape[:-1], shape[-1] + (row.pad if len(shape) > 1 else 0))
        array = generator.integers(-2, 3, wide).astype(np.float16)[..., : shape[-1]]
        timed[name] = Tensor(array)
    scratches = tuple(Tensor(np.full(shape, np.nan, np.float16)) for shape in row.products)
    values = {value(number): z for number, z in enumerate(scratches)}
    operands = SimpleNamespace(timed=timed, scratches=scratches, values=values)
    return SimpleNamespace(row=row, operands=operands, timed=None)


def expected(row: Row, work: Any) -> Any:
    held = {name: tensor.array.astype(float) for name, tensor in work.operands.timed.items()}
    names = {
        "relu": lambda z: np.maximum(z, 0),
        "silu": lambda z: z / (1 + np.exp(-z)),
        "gelu": lambda z, approximate: 0.5 * z * (
            1 + np.tanh(0.7978845608 * (z + 0.044715 * z**3))
        ),
    }  # fmt: skip
    return eval(row.operation.expression, names, held)


OPS = (
    "mm", "mm_nn", "mm_tn", "mm_tt", "bias", "bias_relu", "bias_relu_nn", "bias_relu_tn",
    "bias_relu_tt", "bias_gelu", "residual", "bias_residual_relu", "bmm", "bmm_nn",
    "bmm_bias_gelu_nn", "pairs", "qkv",
)  # fmt: skip


@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize("op", OPS)
def test_a_call_of_cublaslt_for_each_product_computes_the_operation(op, pad, monkeypatch):
    stream = SimpleNamespace(cuda_stream=0)
    torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda: stream))
    monkeypatch.setitem(__import__("sys").modules, "torch", torch)
    row, lt = Row(op, 5, 7, 6, "f16", pad=pad, batch=3), Lt()
    work = opened(row)
    found = chains(row.operation)
    for number in reversed(range(len(found))):
        split = cublaslt.native(found[number], cublaslt.ranks_of(row))
        assert split.rest == ()
        problem = cublaslt.Problem(lt, work, number, split)
        algorithms = problem.algorithms(0, 1 << 20)
        assert len(algorithms) == 3
        problem.launch(0, algorithms[2], Tensor(np.zeros((1, 1), np.float16)))
    assert lt.used == [9] * len(found)
    wanted = expected(row, work)
    ends = results(row.operation)
    for number, y in zip(ends, wanted if len(ends) > 1 else (wanted,), strict=True):
        np.testing.assert_allclose(work.operands.scratches[number].array, y, 2e-3, 1e-6)
