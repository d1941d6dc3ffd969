"""A program as a call inside `jax.jit`, with a rule for `jax.vmap`.

The program travels as text in the call's attributes, so that what JAX compiles is complete: it can
be kept in JAX's cache on disk and run by another process that imports this adapter.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from polygen.adapters.batching import batched
from polygen.adapters.jax import running
from polygen.adapters.kernels import sizes_of
from polygen.adapters.legality import refusal
from polygen.frontend.program import Program
from polygen.generated import content

_MOST = 1024


def launch(
    program: Program, arrays: Sequence[Any], scalars: tuple[float, ...] = ()
) -> tuple[jax.Array, ...]:
    """Run a program as one kernel.

    Args:
        program: a kernel can be made of it.
        arrays: its inputs that are no scalars, in order.
        scalars: the others, in order.

    Returns:
        The outputs, in order.
    """
    found: tuple[jax.Array, ...] = _launcher(program, scalars)(*arrays)
    return found


@functools.lru_cache(_MOST)
def _launcher(program: Program, scalars: tuple[float, ...]) -> Any:
    text = content(program)
    has_axes = [bool(tensor.dims) for tensor in program.inputs]
    numbers = {"scalars": np.asarray(scalars, np.float32)} if scalars else {}

    def alone(*arrays: Any) -> tuple[jax.Array, ...]:
        running.register()
        shapes = tuple(tuple(map(int, array.shape)) for array in arrays)
        sizes = sizes_of(program, shapes)
        results = [
            jax.ShapeDtypeStruct(
                tuple(sizes[d] if isinstance(d, str) else d for d in tensor.dims),
                jax.numpy.dtype(tensor.dtype.storage),
            )
            for tensor in program.outputs
        ]
        found = jax.ffi.ffi_call(running.TARGET, results)(*arrays, program=text, **numbers)
        # Inside shard_map, results differ over the axes of the mesh over which an array does.
        axes = {axis for array in arrays for axis in jax.typeof(array).manual_axis_type.varying}
        return tuple(jax.lax.pcast(one, tuple(sorted(axes)), to="varying") for one in found)

    def over_a_batch(size: int, in_batch: list[bool], *arrays: Any) -> Any:
        each = iter(in_batch)
        whole, has = batched(program, [next(each) if axes else False for axes in has_axes])
        if refusal(whole) is None and all(has):
            return launch(whole, arrays, scalars), has
        return _one_by_one(run, size, in_batch, arrays), (True,) * len(program.outputs)

    run = jax.custom_batching.custom_vmap(alone)
    run.def_vmap(over_a_batch)
    return run


def _one_by_one(run: Any, size: int, in_batch: list[bool], arrays: tuple[Any, ...]) -> Any:
    """A launch for each member of a batch, where no kernel takes it whole."""
    moving = tuple(a for a, has in zip(arrays, in_batch, strict=True) if has)

    def one(members: tuple[Any, ...]) -> Any:
        each = iter(members)
        return run(*(next(each) if h else a for a, h in zip(arrays, in_batch, strict=True)))

    return jax.lax.map(one, moving)
