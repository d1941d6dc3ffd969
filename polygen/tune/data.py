"""What a tuner multiplies: operands in their layouts, of integers or random, and room for results.

The array module is an argument: CuPy where this is used, NumPy where it is tested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from polygen.frontend.dtypes import F16, TF32, DType
from polygen.frontend.grouping import rows_in_groups
from polygen.frontend.groups import routed_ends
from polygen.frontend.indices import size_value
from polygen.frontend.pitches import pitch_of
from polygen.frontend.program import Program, Tensor
from polygen.runtime.arrays import numpy_dtype
from polygen.tune.reference import bits, host

# A prime: rows of a repeated pool of numbers then differ.
_POOL = 1_000_003


def operands(
    xp: Any, program: Program, sizes: Mapping[str, int], seed: int, *, integers: bool
) -> dict[str, Any]:
    """Operands in their declared layouts, by name; numbers for run-time scalars.

    Args:
        xp: the module whose arrays to make, CuPy or NumPy.
        program: whose inputs to make.
        sizes: of the symbolic dims.
        seed: of the numbers.
        integers: small integers, of which every sum is exact; else normal random numbers, scaled
            so that sums are about 1.
    """
    contraction = program.contractions[0]
    multiplied = {access.name for product in program.contractions for access in product.reads}
    kept = contraction.write.index
    depth = [d for it, d in contraction.domain if it not in kept]
    scale = math.prod(size_value(d, sizes) for d in depth) ** -0.25
    # Sums in f16, and of 8-bit products, are exact for fewer bits.
    narrow = contraction.dtype == F16 or any(
        t.dtype.bits == 8 for t in program.inputs if t.name in multiplied
    )
    most = 1 if narrow else 2
    found: dict[str, Any] = {}
    for at, tensor in enumerate(program.inputs):
        generator = np.random.default_rng((seed, at))
        if integers:
            pool = generator.integers(-most, most + 1, _POOL).astype(np.float32)
        else:
            pool = generator.standard_normal(_POOL, dtype=np.float32)
            pool *= scale if tensor.name in multiplied else 1.0
        if not tensor.dims:
            found[tensor.name] = float(pool[0])
            continue
        shape = tensor.shape(sizes)
        if tensor.name == program.ends:
            rows = rows_in_groups(program)
            count = size_value(rows, sizes)
            found[tensor.name] = xp.asarray(routed_ends(shape[0], count, seed))
            continue
        if tensor.name in program.gathered:
            extent = program.gathered[tensor.name]
            count = size_value(extent, sizes)
            found[tensor.name] = xp.asarray(generator.integers(0, count, shape, dtype=np.int32))
            continue
        pitch = sizes.get(pitch_of(tensor.name))
        found[tensor.name] = _repeated(xp, stored(tensor.dtype, pool), shape, tensor, pitch)
    return found


def stored(dtype: DType, values: Any) -> Any:
    """Values as a program stores them: NumPy, in the type in which CuPy keeps `dtype`."""
    if dtype == TF32:  # values that tf32 holds: drop the mantissa's last 13 bits
        values = (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return values.astype(dtype.numpy).view(numpy_dtype(dtype))


def _repeated(xp: Any, pool: Any, shape: tuple[int, ...], tensor: Tensor, pitch: int | None) -> Any:
    """An array of `shape` in the tensor's storage order, filled with the pool again and again."""
    size = _elements(shape, tensor, pitch)
    data = xp.tile(xp.asarray(bits(pool)), -(-size // len(pool)))[:size].view(pool.dtype)
    return _in_order(data, shape, tensor, pitch)


def _order(shape: tuple[int, ...], tensor: Tensor) -> tuple[int, ...]:
    return tensor.order or tuple(range(len(shape)))


def _elements(shape: tuple[int, ...], tensor: Tensor, pitch: int | None) -> int:
    """Elements of an array, and those between its rows."""
    row = shape[_order(shape, tensor)[-1]]
    return math.prod(shape) // row * max(row, pitch or 0)


def _in_order(data: Any, shape: tuple[int, ...], tensor: Tensor, pitch: int | None) -> Any:
    order = _order(shape, tensor)
    *rows, row = (shape[axis] for axis in order)
    array = data.reshape((*rows, max(row, pitch or 0)))[..., :row]
    return array.transpose(tuple(order.index(axis) for axis in range(len(shape))))


def empty(xp: Any, tensor: Tensor, sizes: Mapping[str, int]) -> Any:
    """An array for an output, in its storage order."""
    shape = tensor.shape(sizes)
    pitch = sizes.get(pitch_of(tensor.name))
    data = xp.empty(_elements(shape, tensor, pitch), numpy_dtype(tensor.dtype))
    return _in_order(data, shape, tensor, pitch)


def poison(array: Any) -> None:
    """Fill an output with ones in all bits: not-a-number in every float type."""
    bits(array).fill((1 << 8 * array.dtype.itemsize) - 1)


def meant(array: Any, tensor: Tensor) -> Any:
    """A stored array as a NumPy array of its type; a number as it is."""
    return host(bits(array)).view(tensor.dtype.numpy) if hasattr(array, "shape") else array
