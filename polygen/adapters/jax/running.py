"""What XLA calls: programs on arrays of JAX, as kernels on CUDA devices, as NumPy on the CPU."""

from __future__ import annotations

import ctypes
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from polygen.adapters.jax.frames import Array, Call, handler
from polygen.adapters.kernels import Kernels, sizes_of
from polygen.chained import is_chain
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program
from polygen.generated import decode
from polygen.kernel import Kernel
from polygen.runtime.arrays import ArrayView, known
from polygen.runtime.driver import cupy_driver
from polygen.runtime.recent import Recent

TARGET = "polygen_launch"
KERNELS = Kernels()
_MOST = 4096
_ready: Recent[Any, Kernel] = Recent(_MOST)
_handlers: list[Any] = []  # XLA keeps their addresses


@functools.lru_cache(_MOST)
def read(text: bytes) -> Program:
    """The program that a call holds as text."""
    return decode(Program, json.loads(text))


def kernel(text: bytes, shapes: tuple[tuple[int, ...], ...], device: int) -> Kernel:
    """The kernel of a program for arrays of these shapes, for the GPU that is current.

    Raises:
        PolygenError: no kernel can be made of it.
    """
    key = (text, shapes, device)
    found = _ready.get(key)
    if found is None:
        program = read(text)
        found = _ready.put(key, in_one_launch(program, sizes_of(program, shapes)))
    return found


def in_one_launch(program: Program, sizes: Mapping[str, int]) -> Kernel:
    """The kernel of a program, without keys in parts: XLA gives a call no memory for them.

    Raises:
        PolygenError: no kernel can be made of it.
    """
    found = KERNELS.find(program, sizes)
    schedule = found.schedule
    if not (is_chain(program) and schedule.tile.part):
        return found
    tile, (name, _, _) = replace(schedule.tile, part=0), schedule.name.rpartition("_")
    whole = replace(schedule, name=name, tile=tile)
    return KERNELS.find(program, sizes, whole)


def _operands(program: Program, arrays: tuple[Any, ...], call: Call) -> list[Any]:
    """Arrays and numbers in the order of the program's inputs."""
    if len(arrays) == len(program.inputs):
        return list(arrays)
    each, numbers = iter(arrays), iter(call.numbers["scalars"])
    return [next(each if tensor.dims else numbers) for tensor in program.inputs]


def _on_gpu(call: Call) -> None:
    device, stream = call.device(), call.stream()
    cupy_driver().select(device)
    text = call.texts["program"]
    chosen = kernel(text, tuple(one.shape for one in call.arguments), device)
    views = tuple(_view(one, device) for one in call.arguments)
    outs = tuple(_view(one, device) for one in call.results)
    chosen(*_operands(read(text), views, call), out=outs, stream=stream)


def _view(array: Array, device: int) -> ArrayView:
    strides, step = [], 1
    for extent in reversed(array.shape):
        strides.append(step)
        step *= extent
    return ArrayView(
        array.pointer, array.shape, tuple(strides[::-1]), known(array.storage), device, "jax"
    )


def _on_cpu(call: Call) -> None:
    """The program's meaning, statement by statement: for tests, and for small things."""
    program = read(call.texts["program"])
    operands = _operands(program, tuple(map(_numpy, call.arguments)), call)
    given = {t.name: value for t, value in zip(program.inputs, operands, strict=True)}
    sizes = sizes_of(program, [one.shape for one in call.arguments])
    for result, value in zip(call.results, evaluate(program, given, sizes), strict=True):
        _numpy(result)[...] = value


def _numpy(array: Array) -> Any:
    dtype: Any = jax.numpy.dtype(array.storage)
    count = math.prod(array.shape)
    data = (ctypes.c_char * (count * dtype.itemsize)).from_address(array.pointer)
    return np.frombuffer(data, dtype).reshape(array.shape)


@functools.cache
def register() -> None:
    """Tell XLA of the two ways to run a program; once per process."""
    for platform, run in (("CUDA", _on_gpu), ("cpu", _on_cpu)):
        made = handler(run)
        _handlers.append(made)
        capsule = jax.ffi.pycapsule(ctypes.cast(made, ctypes.c_void_p))
        jax.ffi.register_ffi_target(TARGET, capsule, platform=platform)
