"""XLA's CPU as a GPU that is none: calls are lowered as for CUDA, and the driver is played.

XLA plans the workspace, makes the call frame and hands it over, as on a GPU; everything behind it,
up to ``cuLaunchKernel``, is the code that runs on one (`stand_in_gpu`). A workspace is filled with
ones before its call and behind it: what lies there is of no account, and if it were not the call's
alone, or not as long, arguments or results would show it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import stand_in_gpu
from jax.interpreters import mlir

from polygen.adapters.jax import frames, launching, running
from polygen.adapters.kernels import Kernels
from polygen.kernel import Kernel
from polygen.runtime.recent import Recent

_TARGET = "polygen_launch_played"
_FILLED = 0xFF


@dataclass
class Played:
    """What was launched."""

    gpu: stand_in_gpu.StandIn
    rooms: list[tuple[int, int]] = field(default_factory=list)  # address and bytes, by launch
    entries: list[str] = field(default_factory=list)

    def launch(self, function: int, *given: Any) -> None:
        """A launch of `StandIn`, and what it does with its workspace."""
        kernel, entry = self.gpu.handles[function]
        source, after = kernel._generated.source, kernel._generated.source.following
        self.entries.append(entry)
        if after is not None and entry == source.entry:
            self.rooms.append(_filled(kernel, given[-2]))
        stand_in_gpu.StandIn.launch(self.gpu, function, *given)
        if after is not None and entry == after.entry:
            assert _filled(kernel, given[-2]) == self.rooms[-1]


def _filled(kernel: Kernel, parameters: int) -> tuple[int, int]:
    """The workspace that a parameter block names, filled."""
    source = kernel._generated.source
    table = (ctypes.c_void_p * len(source.arguments)).from_address(parameters)
    kinds = {"size": ctypes.c_int32, "workspace": ctypes.c_uint64}
    found = {
        argument.dim or argument.kind: kinds[argument.kind].from_address(at).value
        for argument, at in zip(source.arguments, table, strict=True)
        if argument.kind in kinds
    }
    start, count = found.pop("workspace"), kernel.workspace(found)
    assert start % source.following.alignment == 0
    ctypes.memset(start, _FILLED, count)
    return start, count


def _lowered_as(rule: Any) -> None:
    lowered = mlir.lower_fun(rule, multiple_results=True)
    mlir.register_lowering(launching._CALL, lowered, platform="cpu")


@functools.cache
def _register() -> None:
    made = frames.handler(lambda call: running._on_gpu(call))
    running._handlers.append(made)
    capsule = jax.ffi.pycapsule(ctypes.cast(made, ctypes.c_void_p))
    jax.ffi.register_ffi_target(_TARGET, capsule, platform="cpu")


@contextlib.contextmanager
def played(monkeypatch: Any, arch: str) -> Any:
    """JAX on the CPU runs kernels for a GPU of this kind, whose driver is played."""
    with stand_in_gpu.stand_in(monkeypatch, arch) as gpu:
        made = Played(gpu)
        running.register()
        _register()
        gpu.launch = made.launch
        monkeypatch.setattr(stand_in_gpu, "DEVICE", 0)
        monkeypatch.setattr(frames.Call, "stream", lambda _: stand_in_gpu.STREAM)
        monkeypatch.setattr(frames.Call, "device", lambda _: 0)
        monkeypatch.setattr(running, "cupy_driver", lambda: gpu.driver)
        monkeypatch.setattr(running, "TARGET", _TARGET)
        monkeypatch.setattr(running, "KERNELS", Kernels())
        monkeypatch.setattr(running, "_ready", Recent(64))
        _lowered_as(launching._foreign_on_cuda)
        jax.clear_caches()
        try:
            yield made
        finally:
            _lowered_as(launching._foreign)
            jax.clear_caches()
