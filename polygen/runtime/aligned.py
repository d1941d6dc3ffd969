"""Copies of arrays whose rows start at lines of the cache, in the arrays' own library.

They are made once and kept by whoever asked for them (`polygen.planned`), so that a library's own
copy is good enough.
"""

from __future__ import annotations

from typing import Any

from polygen.frontend.program import Tensor
from polygen.runtime.arrays import describe, numpy_dtype
from polygen.runtime.outputs import allocator
from polygen.schedule.realign import line_bytes, row_multiple


def is_aligned(array: Any, tensor: Tensor) -> bool:
    """Whether the copy engine takes an array's rows: address and steps are multiples of 16 bytes.

    Args:
        array: of any library.
        tensor: what it is for.

    Raises:
        ArgumentError: not an array in device memory.
    """
    view, size = describe(array, name=tensor.name), tensor.dtype.bytes
    outer = [axis for axis in tensor.order[:-1] if view.shape[axis] > 1]
    places = (view.pointer, *(view.strides[axis] * size for axis in outer))
    return all(place % row_multiple() == 0 for place in places)


def aligned_copy(array: Any, tensor: Tensor) -> Any:
    """A copy with whole lines from one row to the next; on the current stream of its library.

    Args:
        array: of any library, in device memory; of libraries that have no strided arrays the copy
            is CuPy's.
        tensor: what it is for; its order says what rows are.

    Raises:
        ArgumentError: not an array in device memory.
    """
    view, row = describe(array, name=tensor.name), tensor.order[-1]
    line = line_bytes() // tensor.dtype.bytes
    shape = list(view.shape)
    shape[row] = -(-shape[row] // line) * line
    room = allocator(view.library, view.device, tuple(shape), tensor.dtype, tensor.order)()
    rows = (slice(None),) * row + (slice(0, view.shape[row]),)
    copy = room[rows]
    if view.library == "torch":
        return copy.copy_(array.detach())
    return _filled(copy, array, tensor)


def _filled(copy: Any, array: Any, tensor: Tensor) -> Any:
    """A CuPy array with the bits of another library's; CuPy copies numbers, of all types."""
    import cupy  # noqa: PLC0415

    kind = numpy_dtype(tensor.dtype)
    bits = f"u{kind.itemsize}"
    copy.view(bits)[...] = cupy.asarray(array).view(bits)
    return copy
