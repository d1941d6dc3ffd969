"""cuBLAS through CuPy, then one CuPy kernel per step, in place: the founding paper's baseline.

``cupy.matmul`` takes no bf16, so that the product is CuPy's own call of ``cublasGemmEx``, which
does. cuBLAS sees column-major matrices: the row-major result is the transposed product with the
operands exchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from polygen.bench.operations import VALUE, Step, chain
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
        """A product into the scratch matrix, and its steps.

        Raises:
            BenchError: a step has no kernel here, or the type no product.
        """
        import torch  # noqa: PLC0415

        row, operands = work.row, work.operands
        if row.dtype not in _TYPES:
            raise BenchError(f"no product of {row.dtype} goes through gemmEx", where="CuPy")
        found = chain(row.operation)
        product = self._product(row, found, operands)
        z = self.array(operands.scratch, row.dtype)
        arrays = {n: self.array(t, row.dtype) for n, t in operands.timed.items()}
        steps = [self._step(step, arrays, row.dtype) for step in found.steps]
        result = operands.scratch

        def call() -> Any:
            with foreign_stream(self._cupy, torch.cuda.current_stream().cuda_stream):
                product()
                for step in steps:
                    step(z)
            return result

        return call

    def _product(self, row: Any, found: Any, operands: Any) -> Callable[[], None]:
        import numpy as np  # noqa: PLC0415

        cublas = self._cublas
        half = row.acc == "f16"
        one, zero = (np.array(v, np.float16 if half else np.float32) for v in (1, 0))
        a, b, c = operands.timed[found.right[0]], operands.timed[found.left[0]], operands.scratch
        turn_a, turn_b = found.right[1], found.left[1]
        kind, sums = _TYPES[row.dtype], _SUMS[row.dtype, row.acc]

        def call() -> None:
            handle = self._cupy.cuda.device.get_cublas_handle()  # on the current stream
            cublas.setStream(handle, self._cupy.cuda.get_current_stream().ptr)
            mode = cublas.getPointerMode(handle)
            cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)
            try:
                cublas.gemmEx(
                    handle, int(turn_a), int(turn_b), row.n, row.m, row.k, one.ctypes.data,
                    a.data_ptr(), kind, _leading(a), b.data_ptr(), kind, _leading(b),
                    zero.ctypes.data, c.data_ptr(), kind, _leading(c), sums, _DEFAULT,
                )  # fmt: skip
            finally:
                cublas.setPointerMode(handle, mode)

        return call

    def _step(self, step: Step, arrays: dict[str, Any], dtype: str) -> Callable[[Any], None]:
        """A kernel that changes the running value."""
        name = " ".join((step.function, *step.words))
        if step.function in _BINARY and len(step.arguments) == 2:
            other = next(a for a in step.arguments if a != VALUE)
            swapped = step.arguments[0] != VALUE
            if isinstance(other, str) and not (swapped and step.function in ("sub", "div")):
                kernel = _kernel(self._cupy, _BINARY[step.function], dtype, "zb")
                operand = arrays[other]
                return lambda z: kernel(z, operand, z)
        elif name in _SCALAR and len(step.arguments) == 1:
            unary = _kernel(self._cupy, _SCALAR[name], dtype, "z")
            return lambda z: unary(z, z)
        raise BenchError(f"no kernel does {name}", where="CuPy")


def _leading(tensor: Any) -> int:
    """Elements from row to row; of a single row, its length."""
    return max(int(tensor.stride(0)), int(tensor.shape[1]))


@functools.cache
def _kernel(cupy: Any, text: str, dtype: str, operands: str) -> Any:
    """An elementwise kernel of the running value z, and of b where there are two operands."""
    loads = "; ".join(f"float {name} = {_LOAD[dtype].format(name + '0')}" for name in operands)
    body = f"{loads}; float v = {text}; {_STORE[dtype]}"
    inputs = ", ".join(f"{_STORAGE[dtype]} {name}0" for name in operands)
    name = f"polygen_bench_{len(operands)}"
    return cupy.ElementwiseKernel(inputs, f"{_STORAGE[dtype]} y", body, name)
