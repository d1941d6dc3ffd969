"""Types in which JAX multiplies, and how values are rounded to what kernels store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from polygen.frontend.dtypes import DType

jnp = jax.numpy
_MOST = 2.0**31  # the least number above all of 32 bits


def multiplied(kinds: Sequence[Any]) -> tuple[Any, Any]:
    """The types of sums and of what is multiplied, as kernels do it.

    Args:
        kinds: of the operands.
    """
    if all(jnp.issubdtype(kind, jnp.integer) for kind in kinds):
        return jnp.int32, jnp.int32
    same = len(set(kinds)) == 1 and kinds[0].itemsize > 1
    return jnp.float32, kinds[0] if same else jnp.float32


def rounded(values: Any, dtype: DType) -> Any:
    """Values as a kernel stores them: `polygen.frontend.rounding` in JAX.

    Args:
        values: any shape.
        dtype: integers are the nearest, ties to even, and saturate, as floats of 8 bits do.
    """
    if values.dtype == jnp.bool_:
        return values.astype(dtype.storage)
    if dtype.kind == "int":
        limits = jnp.iinfo(dtype.storage)
        if jnp.issubdtype(values.dtype, jnp.integer):
            return jnp.clip(values, limits.min, limits.max).astype(dtype.storage)
        nearest = jnp.nan_to_num(jnp.round(values), nan=0.0, posinf=_MOST, neginf=-_MOST)
        below = jnp.nextafter(jnp.float32(_MOST), jnp.float32(0))
        inside = jnp.clip(nearest, limits.min, jnp.minimum(limits.max, below))
        found = inside.astype(dtype.storage)
        return jnp.where(nearest >= limits.max, limits.max, found).astype(dtype.storage)
    if dtype.kind == "float" and dtype.bits == 8:
        largest = float(jnp.finfo(dtype.storage).max)
        values = jnp.clip(values, -largest, largest)
    return values.astype(dtype.storage)
