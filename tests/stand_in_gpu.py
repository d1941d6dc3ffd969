"""A GPU that is none: launches run for real up to the driver, and there the program is evaluated.

Tensors of PyTorch on the CPU stand for those of a GPU. Everything between an operator and
``cuLaunchKernel`` is the code that runs on a GPU: kernels are generated and found, arrays bound,
parameter blocks and tensor maps filled, tables of all kinds consulted. The driver is played here:
it reads addresses, sizes, steps and numbers from the parameter block, as a kernel would, and runs
the program in float64 on what lies in memory there. So whatever keeps an address, a size or a
number for too long gives wrong results.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch._C._dynamo import guards as torch_guards

from polygen.adapters.torch import launching, running, tensors, watching
from polygen.emit.source import Argument, KernelSource
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program, Tensor
from polygen.kernel import Kernel
from polygen.runtime import arrays, driver, launch, outputs, sequence, workspace
from polygen.runtime.artifact import Artifact, Resources
from polygen.runtime.tensormaps import MAP_BYTES, MapLayout
from polygen.schedule import realign

DEVICE: Any = None  # of tensors on the CPU
STREAM = 77


@dataclass
class StandIn:
    """What was launched; `driver` plays CUDA."""

    launches: list[str] = field(default_factory=list)  # names of programs
    kernels: dict[bytes, Kernel] = field(default_factory=dict)
    handles: dict[int, tuple[Kernel, str]] = field(default_factory=dict)
    layouts: list[MapLayout] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self, cubin: bytes, entry: str, _: int) -> tuple[int, object]:
        with self.lock:
            handle = 1000 + len(self.handles)
            self.handles[handle] = self.kernels[cubin], entry
        return handle, self

    def encode(self, pointer: int, layout: MapLayout) -> bytes:
        with self.lock:
            self.layouts.append(layout)
            number = len(self.layouts) - 1
        found = np.zeros(MAP_BYTES // 8, np.uint64)
        found[:2] = pointer, number
        return found.tobytes()

    def launch(self, function: int, *given: Any) -> None:
        *_, stream, parameters, _ = given
        assert stream == STREAM
        kernel, entry = self.handles[function]
        source = kernel._generated.source
        if entry == source.entry:
            _run(kernel.program, source, parameters, self.layouts)
            self.launches.append(kernel.program.name)
        elif source.realign is not None and entry == source.realign.entry:
            _copy(source, parameters)
        # What follows a kernel combines parts, which its program has in it.

    @property
    def driver(self) -> driver.Driver:
        return driver.Driver(
            launch=self.launch,
            launch_dependent=self.launch,
            device=lambda: DEVICE,
            load=self.load,
            current_stream=lambda: STREAM,
            pointer_device=lambda _: DEVICE,
            wait=lambda *_: None,
            stream_scope=lambda _: contextlib.nullcontext(),
            encode_map=self.encode,
            resident=lambda *_: 132,
        )


def _array(dtype: Any, pointer: int, shape: tuple[int, ...], steps: tuple[int, ...]) -> Any:
    """Elements in memory, by address and by steps in elements."""
    if 0 in shape:
        return np.zeros(shape, dtype)
    item = np.dtype(dtype).itemsize
    reach = 1 + sum((extent - 1) * step for extent, step in zip(shape, steps, strict=True))
    memory = (ctypes.c_char * (reach * item)).from_address(pointer)
    flat = np.frombuffer(memory, dtype)
    return np.lib.stride_tricks.as_strided(
        flat, shape, tuple(step * item for step in steps), writeable=True
    )


def _parameter(kind: type, address: int) -> Any:
    return kind.from_address(address).value


def _run(program: Program, source: KernelSource, parameters: int, layouts: list[MapLayout]) -> None:
    """What a kernel does with a parameter block."""
    table = (ctypes.c_void_p * len(source.arguments)).from_address(parameters)
    sizes: dict[str, int] = {}
    places: dict[str, int] = {}
    steps: dict[tuple[str, int], int] = {}
    numbers: dict[str, float] = {}
    for argument, at in zip(source.arguments, table, strict=True):
        if argument.kind == "pointer":
            places[argument.tensor] = _parameter(ctypes.c_uint64, at)
        elif argument.kind == "size":
            sizes[argument.dim] = _parameter(ctypes.c_int32, at)
        elif argument.kind == "stride":
            steps[argument.tensor, argument.axis] = _parameter(ctypes.c_int32, at)
        elif argument.kind == "scalar":
            numbers[argument.tensor] = _parameter(ctypes.c_float, at)
        elif argument.kind == "map":
            pointer, number = (ctypes.c_uint64 * 2).from_address(at)
            places[argument.tensor] = pointer
            _of_map(argument, program, layouts[number], sizes, steps)
    values: dict[str, Any] = dict(numbers)
    for tensor in program.inputs:
        if tensor.dims:
            values[tensor.name] = _tensor(tensor, places, sizes, steps).copy()
    for tensor, value in zip(program.outputs, evaluate(program, values, sizes), strict=True):
        _tensor(tensor, places, sizes, steps)[...] = value


def _of_map(
    argument: Argument,
    program: Program,
    layout: MapLayout,
    sizes: dict[str, int],
    steps: dict[tuple[str, int], int],
) -> None:
    item = next(t for t in (*program.inputs, *program.outputs) if t.name == argument.tensor)
    strides = (item.dtype.bytes, *layout.strides)
    for axis, extent, stride in zip(reversed(argument.axes), layout.sizes, strides, strict=True):
        if axis.axis is not None and extent > 1:
            steps.setdefault((argument.tensor, axis.axis), stride // item.dtype.bytes // axis.step)
        if isinstance(axis.extent, str):
            sizes.setdefault(axis.extent, extent)


def _tensor(
    tensor: Tensor, places: dict[str, int], sizes: dict[str, int], steps: dict[Any, int]
) -> Any:
    shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in tensor.dims)
    last = tensor.order[-1] if shape else None
    found = tuple(
        1 if axis == last else steps.get((tensor.name, axis), 0) for axis in range(len(shape))
    )
    missing = [
        axis for axis, extent in enumerate(shape)
        if extent > 1 and axis != last and (tensor.name, axis) not in steps
    ]  # fmt: skip
    assert not missing, f"a kernel is not told the steps of {tensor} along {missing}"
    return _array(tensor.dtype.numpy, places[tensor.name], shape, found)


def _copy(source: KernelSource, parameters: int) -> None:
    """What the launch does that copies operands before a kernel."""
    copy = source.realign
    assert copy is not None and not copy.made, "operands are copied, not computed"
    count = sum(4 + 2 * (len(t.order) - 1) for t in copy.tensors)
    table = iter((ctypes.c_void_p * count).from_address(parameters))
    for tensor in copy.tensors:
        start, place = (_parameter(ctypes.c_uint64, next(table)) for _ in range(2))
        _, length = (_parameter(ctypes.c_int32, next(table)) for _ in range(2))
        shape, steps = [0] * len(tensor.order), [1] * len(tensor.order)
        shape[tensor.order[-1]] = length
        for axis in reversed(tensor.order[:-1]):
            shape[axis], steps[axis] = (_parameter(ctypes.c_int32, next(table)) for _ in range(2))
        sizes = {d: n for d, n in zip(tensor.dims, shape, strict=True) if isinstance(d, str)}
        to = realign.strides(tensor, sizes)
        dtype, extents = tensor.dtype.numpy, tuple(shape)
        _array(dtype, place, extents, to)[...] = _array(dtype, start, extents, tuple(steps))


@contextlib.contextmanager
def stand_in(monkeypatch: Any, arch: str = "sm_80") -> Any:
    """Tensors on the CPU are tensors on a GPU of this kind, but for those in float64."""
    made = StandIn()

    def artifact(kernel: Kernel) -> Artifact:
        with made.lock:
            cubin = str(len(made.kernels)).encode()
            made.kernels[cubin] = kernel
        return Artifact("", cubin, Resources(8, 0, 0, 0, 0, 64), "", "none")

    found = functools.cached_property(artifact)
    found.__set_name__(Kernel, "artifact")
    monkeypatch.setattr(Kernel, "artifact", found, raising=False)
    monkeypatch.setattr(launch, "cupy_driver", lambda: made.driver)
    monkeypatch.setattr(outputs, "cupy_driver", lambda: made.driver)
    monkeypatch.setattr(sequence, "cupy_driver", lambda: made.driver)
    monkeypatch.setattr(arrays, "_TORCH_DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(
        torch_guards, "_empty_strided_cuda", torch_guards._empty_strided_cpu, raising=False
    )
    monkeypatch.setattr(outputs, "_torch_current_stream", lambda _: lambda device: STREAM)
    monkeypatch.setattr(tensors, "DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(watching, "_is_there", lambda one: one.dtype != torch.float64)
    monkeypatch.setattr(running, "KERNELS", running.Kernels())
    on_cpu, on_gpu = running.Runner.on_cpu, running.Runner.on_gpu

    def anywhere(runner: running.Runner, operands: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        if tensors.is_reference(operands):
            return on_cpu(runner, operands)
        result = on_gpu(runner, operands)
        return result if isinstance(result, tuple) else (result,)

    monkeypatch.setattr(running.Runner, "on_cpu", anywhere)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    running._has_several_devices.cache_clear()
    assert workspace.allocator is outputs.allocator
    monkeypatch.setenv("POLYGEN_ARCH", arch)
    launching._runner.cache_clear()
    yield made
    launching._runner.cache_clear()  # whose kernels are for no other driver
    running._has_several_devices.cache_clear()
