"""A program as a call inside `jax.jit`, with a rule for `jax.vmap`.

The program travels as text in the call's attributes, so that what JAX compiles is complete: it can
be kept in JAX's cache on disk and run by another process that imports this adapter.

A call is a primitive, which becomes a foreign call where JAX lowers it for a platform. For CUDA the
kernel that the arrays' sizes choose is known then, and its workspace is one more result of the
foreign call, of bytes, which nobody reads: it lies in XLA's memory, planned with everything else,
and no two executions share it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir, xla

from polygen.adapters.batching import batched
from polygen.adapters.jax import running
from polygen.adapters.kernels import sizes_of
from polygen.adapters.legality import refusal_in_order
from polygen.errors import GradientError
from polygen.frontend.indices import size_value
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

    def alone(*arrays: Any) -> tuple[jax.Array, ...]:
        running.register()
        found = _CALL.bind(*arrays, text=text, scalars=scalars)
        # Inside shard_map, results differ over the axes of the mesh over which an array does.
        axes = {axis for array in arrays for axis in jax.typeof(array).manual_axis_type.varying}
        return tuple(jax.lax.pcast(one, tuple(sorted(axes)), to="varying") for one in found)

    def over_a_batch(size: int, in_batch: list[bool], *arrays: Any) -> Any:
        each = iter(in_batch)
        whole, has = batched(program, [next(each) if axes else False for axes in has_axes])
        if refusal_in_order(whole) is None and all(has):
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


# --- the primitive --------------------------------------------------------------------------------
def _shapes(arrays: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, array.shape)) for array in arrays)


def _results(text: str, arrays: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    """Shapes and types of a program's outputs."""
    program = running.read(text)
    sizes = sizes_of(program, _shapes(arrays))
    return [
        jax.ShapeDtypeStruct(
            tuple(size_value(d, sizes) for d in tensor.dims),
            jax.numpy.dtype(tensor.dtype.storage),
        )
        for tensor in program.outputs
    ]


def _avals(*arrays: Any, text: str, scalars: tuple[float, ...]) -> list[Any]:
    return [jax.core.ShapedArray(one.shape, one.dtype) for one in _results(text, arrays)]


def _foreign(
    *arrays: Any, text: str, scalars: tuple[float, ...], workspace: int = 0
) -> list[jax.Array]:
    """The foreign call, with a workspace of so many bytes."""
    results = _results(text, arrays)
    room = [jax.ShapeDtypeStruct((workspace,), np.uint8)] if workspace else []
    numbers = {"scalars": np.asarray(scalars, np.float32)} if scalars else {}
    call = jax.ffi.ffi_call(running.TARGET, [*results, *room])
    return list(call(*arrays, program=text, **numbers)[: len(results)])


def _foreign_on_cuda(*arrays: Any, text: str, scalars: tuple[float, ...]) -> list[jax.Array]:
    count = running.workspace(text, _shapes(arrays))
    return _foreign(*arrays, text=text, scalars=scalars, workspace=count)


def _no_derivative(*_: Any, **__: Any) -> Any:
    raise GradientError(
        "a second derivative",
        where="polygen.adapters.jax",
        why="derivatives of derivatives are not derived",
        nearest="Differentiate once, or compute it with jax.numpy",
    )


_CALL = Primitive(running.TARGET)
_CALL.multiple_results = True
_CALL.def_impl(functools.partial(xla.apply_primitive, _CALL))
_CALL.def_abstract_eval(_avals)
ad.primitive_jvps[_CALL] = _no_derivative
for _platform, _lowered in (("cpu", _foreign), ("cuda", _foreign_on_cuda)):
    mlir.register_lowering(
        _CALL, mlir.lower_fun(_lowered, multiple_results=True), platform=_platform
    )
