"""cuBLAS through CuPy, then one CuPy kernel per step, in place: the founding paper's baseline.

``cupy.matmul`` takes no bf16, so that the product is CuPy's own call of ``cublasGemmEx``, which
does, batches by ``cublasGemmStridedBatchedEx``. cuBLAS sees column-major matrices: the row-major
result is the transposed product with the operands exchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from polygen.bench.operations import VALUE, Step, fixed_forms
from polygen.bench.peers.in_turn import Stage, in_turn
from polygen.bench.source import Call
from polygen.errors import BenchError
from polygen.runtime.driver import foreign_stream

# cudaDataType_t, cublasComputeType_t and cublasGemmAlgo_t of cuBLAS's headers.
_TYPES = {"f16": 2, "bf16": 14, "tf32": 0}
_SUMS = {("f16", "f32"): 68, ("bf16", "f32"): 68, ("f16", "f16"): 64, ("tf32", "f32"): 77}
_DEFAULT = -1

_SCALAR = {  # of the running value z as float, giving the new one
    "relu": "z > 0.f ? z : 0.f",
    "silu": "z / (1.f + __expf(-z))",
    "gelu": "0.5f * z * (1.f + erff(z * 0.70710678f))",
    "gelu tanh": "0.5f * z * (1.f + tanhf(0.79788456f * (z + 0.044715f * z * z * z)))",
    "sigmoid": "1.f / (1.f + __expf(-z))",
    "tanh": "tanhf(z)",
    "square": "z * z",
}
_STORAGE = {"f16": "float16", "bf16": "uint16", "tf32": "float32"}
# CuPy's kernels compute bf16 from its bits, which every version of CuPy can.
_LOAD = {
    "f16": "static_cast<float>({})",
    "bf16": "__uint_as_float(unsigned({}) << 16)",
    "tf32": "{}",
}
_STORE = {
    "tf32": "y = v",
    "f16": "y = static_cast<float16>(v)",
    "bf16": "unsigned u = __float_as_uint(v); y = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16",
}
_BINARY = {"add": "z + b", "sub": "z - b", "mul": "z * b", "div": "z / b"}


class CupyCublas:
    """CuPy."""

    def __init__(self) -> None:
        import cupy  # noqa: PLC0415
        from cupy.cuda import cublas  # noqa: PLC0415

        self._cupy, self._cublas = cupy, cublas

    def versions(self) -> dict[str, Any]:
        """CuPy's, and its cuBLAS's."""
        handle = self._cupy.cuda.device.get_cublas_handle()
        return {"version": self._cupy.__version__, "cublas": self._cublas.getVersion(handle)}

    def array(self, tensor: Any, dtype: str) -> Any:
        """A tensor's memory as a CuPy array."""
        kind = self._cupy.dtype(_STORAGE[dtype])
        size = tensor.element_size()
        held = (tensor.untyped_storage().nbytes() - tensor.storage_offset() * size) or size
        memory = self._cupy.cuda.UnownedMemory(tensor.data_ptr(), held, tensor)
        return self._cupy.ndarray(
            tuple(tensor.shape),
            kind,
            self._cupy.cuda.MemoryPointer(memory, 0),
            tuple(s * size for s in tensor.stride()),
        )

    def make(self, work: Any) -> Call:
        """Each product into its scratch matrix, and its steps.

        Raises:
            BenchError: a step has no kernel here, or the type no product.
        """
        import torch  # noqa: PLC0415

        row, operands = work.row, work.operands
        if row.dtype not in _TYPES:
            raise BenchError(f"no product of {row.dtype} goes through gemmEx", where="CuPy")
        tensors = operands.timed | operands.values
        arrays = {name: self.array(tensor, row.dtype) for name, tensor in tensors.items()}
        stages = [
            Stage(self._product(row, found, operands, z), self._steps(found.steps, z, arrays, row))
            for found, z in zip(fixed_forms(row.operation), operands.scratches, strict=True)
        ]
        launches = in_turn(row.operation, stages)

        def call() -> Any:
            with foreign_stream(self._cupy, torch.cuda.current_stream().cuda_stream):
                return launches()

        return call

    def _product(self, row: Any, found: Any, operands: Any, c: Any) -> Callable[[], Any]:
        import numpy as np  # noqa: PLC0415

        cublas = self._cublas
        half = row.acc == "f16"
        one, zero = (np.array(v, np.float16 if half else np.float32) for v in (1, 0))
        a, b = operands.timed[found.right[0]], operands.timed[found.left[0]]
        turn_a, turn_b = found.right[1], found.left[1]
        kind, sums = _TYPES[row.dtype], _SUMS[row.dtype, row.acc]
        batched = len(c.shape) > 2
        multiply = cublas.gemmStridedBatchedEx if batched else cublas.gemmEx
        (n, k), m = a.shape[-2:] if turn_a else a.shape[-2:][::-1], c.shape[-2]
        count = (int(c.shape[0]),) if batched else ()

        def matrix(tensor: Any) -> tuple[int, ...]:
            apart = (int(tensor.stride(0)),) if batched else ()
            return (tensor.data_ptr(), kind, _leading(tensor), *apart)

        def call() -> Any:
            handle = self._cupy.cuda.device.get_cublas_handle()  # on the current stream
            cublas.setStream(handle, self._cupy.cuda.get_current_stream().ptr)
            mode = cublas.getPointerMode(handle)
            cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)
            try:
                multiply(
                    handle, int(turn_a), int(turn_b), n, m, k, one.ctypes.data, *matrix(a),
                    *matrix(b), zero.ctypes.data, *matrix(c), *count, sums, _DEFAULT,
                )  # fmt: skip
            finally:
                cublas.setPointerMode(handle, mode)
            return c

        return call

    def _steps(
        self, steps: Sequence[Step], z: Any, arrays: dict[str, Any], row: Any
    ) -> list[Callable[[Any], Any]]:
        """Kernels that change a value, each of them giving it."""
        changed = self.array(z, row.dtype)
        made: list[Callable[[Any], Any]] = []
        for part in self._parts(tuple(steps)):
            text, names = together(part)
            kernel = _kernel(self._cupy, text, row.dtype, len(names))
            given = [arrays[name] for name in names]
            made.append(functools.partial(_launch, kernel, changed, given))
        return made

    def _parts(self, steps: tuple[Step, ...]) -> list[tuple[Step, ...]]:
        """The steps of each kernel."""
        return [(step,) for step in steps]


class CupyOnce(CupyCublas):
    """CuPy, with one kernel for all steps after a product."""

    def make(self, work: Any) -> Call:
        """Each product into its scratch matrix, and its steps in one kernel.

        Raises:
            BenchError: no product has several steps; a step has no code here, or the type no
                product.
        """
        if all(len(found.steps) < 2 for found in fixed_forms(work.row.operation)):
            raise BenchError("there are no steps to take together", where="CuPy")
        return super().make(work)

    def _parts(self, steps: tuple[Step, ...]) -> list[tuple[Step, ...]]:
        return [steps] if steps else []


def together(steps: Sequence[Step]) -> tuple[str, list[str]]:
    """Statements that change ``z``, and the names of the operands b0, b1, ... that they take.

    Raises:
        BenchError: a step has no code here.
    """
    text: list[str] = []
    names: list[str] = []
    for step in steps:
        name = " ".join((step.function, *step.words))
        found = _SCALAR.get(name) if len(step.arguments) == 1 else None
        if step.function in _BINARY and len(step.arguments) == 2:
            other = next(a for a in step.arguments if a != VALUE)
            swapped = step.arguments[0] != VALUE
            if isinstance(other, str) and not (swapped and step.function in ("sub", "div")):
                found = _BINARY[step.function].replace("b", f"b{len(names)}")
                names.append(other)
        if found is None:
            raise BenchError(f"no kernel does {name}", where="CuPy")
        text.append(f"z = {found}")
    return "; ".join(text), names


def _leading(tensor: Any) -> int:
    """Elements from row to row; of a single row, its length."""
    return max(int(tensor.stride(-2)), int(tensor.shape[-1]))


def _launch(kernel: Any, changed: Any, given: Sequence[Any], value: Any) -> Any:
    kernel(changed, *given, changed)
    return value


@functools.cache
def _kernel(cupy: Any, text: str, dtype: str, operands: int) -> Any:
    """An elementwise kernel that changes z, with so many operands b0, b1, ... beside it."""
    names = ["z", *(f"b{number}" for number in range(operands))]
    loads = "; ".join(f"float {name} = {_LOAD[dtype].format(f'{name}_')}" for name in names)
    body = f"{loads}; {text}; float v = z; {_STORE[dtype]}"
    inputs = ", ".join(f"{_STORAGE[dtype]} {name}_" for name in names)
    name = f"polygen_bench_{len(names)}"
    return cupy.ElementwiseKernel(inputs, f"{_STORAGE[dtype]} y", body, name)
