"""What XLA calls: programs on arrays of JAX, as kernels on CUDA devices, as NumPy on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from polygen.adapters.jax.frames import Array, Call, handler
from polygen.adapters.kernels import Kernels, sizes_of
from polygen.api import target
from polygen.errors import ArgumentError, ToolchainMissing
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program
from polygen.generated import decode
from polygen.kernel_sequence import AnyKernel
from polygen.runtime.arrays import ArrayView, known
from polygen.runtime.driver import cupy_driver
from polygen.runtime.recent import Recent

TARGET = "polygen_launch"
KERNELS = Kernels()
_MOST = 4096
Shapes = tuple[tuple[int, ...], ...]
_ready: Recent[Any, tuple[AnyKernel, int]] = Recent(_MOST)
_handlers: list[Any] = []  # XLA keeps their addresses


@functools.lru_cache(_MOST)
def read(text: bytes | str) -> Program:
    """The program that a call holds as text."""
    return decode(Program, json.loads(text))


def workspace(text: str, shapes: Shapes) -> int:
    """Bytes of the workspace that the kernel of a program takes.

    Args:
        text: the program.
        shapes: of its arrays.

    Returns:
        Those of the kernel for the GPU that is current, or for the target that `POLYGEN_ARCH`
        names; 0 where there is neither.

    Raises:
        PolygenError: no kernel can be made of it.
    """
    try:
        target(None)
    except ToolchainMissing:  # what is lowered here runs elsewhere, and is asked there
        return 0
    return _found(text, shapes)[1]


def _found(text: bytes | str, shapes: Shapes) -> tuple[AnyKernel, int]:
    """The kernel of a program for arrays of these shapes, with the bytes of its workspace."""
    program = read(text)
    sizes = sizes_of(program, shapes)
    chosen = KERNELS.find(program, sizes)
    with contextlib.suppress(ToolchainMissing):  # a launch will say so
        chosen.compiled()  # first: an automatic choice that spills is another kernel
    return chosen, chosen.workspace(sizes)


def _operands(program: Program, arrays: tuple[Any, ...], call: Call) -> list[Any]:
    """Arrays and numbers in the order of the program's inputs."""
    if len(arrays) == len(program.inputs):
        return list(arrays)
    each, numbers = iter(arrays), iter(call.numbers["scalars"])
    return [next(each if tensor.dims else numbers) for tensor in program.inputs]


def _on_gpu(call: Call) -> None:
    device, stream = call.device(), call.stream()
    cupy_driver().select(device)
    program = read(text := call.texts["program"])
    key = (text, tuple(one.shape for one in call.arguments), device)
    chosen, needed = _ready.get(key) or _ready.put(key, _found(*key[:2]))
    views, results = ([_view(one, device) for one in of] for of in (call.arguments, call.results))
    outs, given = tuple(results[: len(program.outputs)]), results[len(program.outputs) :]
    _require_room(program, needed, given)
    room = given[0] if needed else None
    chosen(*_operands(program, tuple(views), call), out=outs, stream=stream, workspace=room)


def _require_room(program: Program, needed: int, given: Sequence[ArrayView]) -> None:
    """Refuse a call whose kernel takes more than XLA has planned.

    Raises:
        ArgumentError: the workspace is too small, or there is none.
    """
    room = sum(math.prod(one.shape) for one in given)
    if needed > room:
        raise ArgumentError(
            f"XLA gives the call {room} bytes of workspace, and its kernel takes {needed}",
            where=program.name,
            why="where it was lowered there was no GPU, or one for which another kernel is chosen",
            nearest="Lower it with such a GPU as the current one, or with "
            f"POLYGEN_ARCH={target(None).name}",
        )


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
