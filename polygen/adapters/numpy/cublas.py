"""Products of matrices and vectors, asked of cuBLAS as CuPy asks it, without finding out anew how.

In every call CuPy finds out which types and layouts operands have, and copies what is not without
gaps. In a program the same product comes again and again: the forms and strides of its operands
have one call, made when they are first seen. A matrix whose rows or columns lie apart, such as
``q[:, j:]``, is read where it is; so is a vector of one element a row.

cuBLAS reads columns: ``C = A B`` in rows is ``C' = B' A'`` in columns, of the same memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.adapters.numpy.operations import ArrayForm, Shape

_MOST_LAYOUTS = 4096
_MOST = 1 << 31  # sizes and steps are 32 bits
_NORMAL, _TRANSPOSED = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gemm:
    """A product as cuBLAS takes it, in columns.

    Attributes:
        shape: of the result, in rows without gaps.
        ways: whether the second operand, and the first, is transposed there.
        sizes: columns and rows of the result, and length of the sums.
        leading: elements from one column to the next of the second operand, and of the first.
    """

    shape: Shape
    ways: tuple[int, int]
    sizes: tuple[int, int, int]
    leading: tuple[int, int]


def laid_out(first: Shape, steps: Strides, second: Shape, others: Strides) -> Gemm | None:
    """How cuBLAS multiplies two operands.

    Args:
        first: shape of the first operand: a matrix, or a vector, which is a row.
        steps: its strides, in elements.
        second: shape of the second operand: a matrix, or a vector, which is a column.
        others: its strides, in elements.

    Returns:
        None: neither rows nor columns of an operand are without gaps, there is nothing to
        multiply, both are vectors, or they do not fit.
    """
    if not 3 <= len(first) + len(second) <= 4 or max(len(first), len(second)) > 2:
        return None
    shape = (*first[:-1], *second[1:])
    if len(first) == 1:
        first, steps = (1, *first), (0, *steps)
    if len(second) == 1:
        second, others = (*second, 1), (*others, 0)
    (rows, length), (depth, columns) = first, second
    if length != depth or not rows * columns * length:
        return None
    along, down = _by_rows(first, steps), _by_columns(first, steps)
    one = (_NORMAL, along) if along else (_TRANSPOSED, down)
    along, down = _by_rows(second, others), _by_columns(second, others)
    other = (_TRANSPOSED, down) if down else (_NORMAL, along)
    if not one[1] or not other[1] or max(rows, columns, length, one[1], other[1]) >= _MOST:
        return None
    return Gemm(shape, (other[0], one[0]), (columns, rows, length), (other[1], one[1]))


def _by_rows(shape: Shape, steps: Strides) -> int:
    """Elements from one row to the next, where each row is without gaps; 0: it is not."""
    (rows, columns), (step, inner) = shape, steps
    if columns > 1 and inner != 1:
        return 0
    step = columns if rows == 1 else step
    return step if step >= columns else 0


def _by_columns(shape: Shape, steps: Strides) -> int:
    return _by_rows(shape[::-1], steps[::-1])


class Products:
    """Products of float32 and float64 on the GPU; what is none of cuBLAS's own is CuPy's.

    Args:
        module: CuPy.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._known: dict[Any, Any] = {}

    def __call__(self, first: Any, second: Any, form: ArrayForm, other: ArrayForm) -> Any:
        """``first @ second``.

        Args:
            first: an array of CuPy.
            second: likewise.
            form: of the first.
            other: of the second.
        """
        key = (form, first.strides, other, second.strides)
        found = self._known.get(key)
        if found is None:
            result = first @ second  # CuPy has loaded what it needs then
            if len(self._known) >= _MOST_LAYOUTS:
                self._known.clear()
            self._known[key] = self._call(first, second, result)
            return result
        return found(first, second) if found else first @ second

    def _call(self, first: Any, second: Any, result: Any) -> Callable[[Any, Any], Any] | bool:
        """What multiplies such operands; False: CuPy does."""
        dtype = first.dtype
        if dtype != second.dtype or dtype.char not in "fd" or result.dtype != dtype:
            return False
        item = dtype.itemsize
        if any(step % item for step in (*first.strides, *second.strides)):
            return False
        steps, others = ([step // item for step in a.strides] for a in (first, second))
        made = laid_out(first.shape, tuple(steps), second.shape, tuple(others))
        if made is None or made.shape != result.shape or not self.is_usual(dtype):
            return False
        return self._made(made, dtype)

    def is_usual(self, dtype: np.dtype[Any]) -> bool:
        """Whether one GPU is there, and CuPy multiplies this type without an option."""
        try:
            own = importlib.import_module("cupy._core._routines_linalg")
            usual = own.get_compute_type(dtype) == own.COMPUTE_TYPE_DEFAULT
            return bool(usual) and self._module.cuda.runtime.getDeviceCount() == 1
        except (ImportError, AttributeError):
            return False

    def _made(self, made: Gemm, dtype: np.dtype[Any]) -> Callable[[Any, Any], Any] | bool:
        try:
            cublas: Any = importlib.import_module("cupy_backends.cuda.libs.cublas")
            device, runtime = self._module.cuda.device, self._module.cuda.runtime
            wide = dtype.char == "d"
            kind = runtime.CUDA_R_64F if wide else runtime.CUDA_R_32F
            compute = cublas.CUBLAS_COMPUTE_64F if wide else cublas.CUBLAS_COMPUTE_32F
            way = cublas.CUBLAS_GEMM_DEFAULT
            multiply, handle, array = cublas.gemmEx, device.get_cublas_handle, self._module.ndarray
        except (ImportError, AttributeError):
            return False
        (other, one), (m, n, k), (step, line) = made.ways, made.sizes, made.leading
        factors = np.array([1, 0], dtype)  # of the product, and of what was in the result before
        unit = factors.ctypes.data
        none, shape = unit + dtype.itemsize, made.shape

        def product(first: Any, second: Any, _: Any = factors) -> Any:
            found = array(shape, dtype)
            multiply(handle(), other, one, m, n, k, unit, second.data.ptr, kind, step,
                     first.data.ptr, kind, line, none, found.data.ptr, kind, m, compute,
                     way)  # fmt: skip
            return found

        return product
