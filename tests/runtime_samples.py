"""A tiny kernel, y = a * x, as a `KernelSource`, and fakes for a machine without a GPU."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass, field, replace

from polygen.emit.conditions import conditions
from polygen.emit.source import Argument, KernelSource, Launch
from polygen.frontend.dtypes import F32
from polygen.frontend.program import Program, Tensor
from polygen.runtime.artifact import Artifact, Resources
from polygen.runtime.driver import Driver

TEXT = """\
extern "C" __global__ void scale(float *y, long long ys, const float *x, long long xs,
                                 int rows, int columns, float a) {
  int row = blockIdx.y;
  int column = blockIdx.x * 64 + threadIdx.x;
  if (row < rows && column < columns) y[row * ys + column] = a * x[row * xs + column];
}
"""
X = Tensor("x", F32, ("M", "N"), (0, 1))
A = Tensor("a", F32, ())
Y = Tensor("y", F32, ("M", "N"), (0, 1))


def source(
    text: str = TEXT,
    arch: str = "sm_80",
    alignment: int = 4,
    shared: int = 0,
    outputs: tuple[Tensor, ...] = (Y,),
) -> KernelSource:
    launch = Launch("M", "N", 1, 64, 1, 64, shared)
    inputs, written = (
        tuple(replace(t, alignment=alignment) for t in some) for some in ((X,), outputs)
    )
    return KernelSource(
        entry="scale",
        text=text,
        header="",
        arch=arch,
        arguments=(
            Argument("y", "pointer", "y"),
            Argument("ys", "stride", "y", 0),
            Argument("x", "pointer", "x"),
            Argument("xs", "stride", "x", 0),
            Argument("rows", "size", dim="M"),
            Argument("columns", "size", dim="N"),
            Argument("a", "scalar", "a"),
        ),
        launch=launch,
        conditions=conditions(Program("scale", "a * x", inputs, written, ()), (), launch),
    )


def artifact() -> Artifact:
    return Artifact("ptx", b"cubin", Resources(8, 0, 0, 0, 0, 64), "log", "NVRTC 0")


@dataclass
class Device:
    """Stands in for CUDA; records launches with the parameters as the kernel would read them."""

    current: int = 0
    kinds: tuple[type, ...] = (
        ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int64,
        ctypes.c_int32, ctypes.c_int32, ctypes.c_float,
    )  # fmt: skip
    launches: list[tuple[object, ...]] = field(default_factory=list)
    loads: list[tuple[bytes, str, int]] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    scopes: list[int] = field(default_factory=list)
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        addresses = (ctypes.c_void_p * len(self.kinds)).from_address(parameters)
        values = tuple(
            kind.from_address(address).value
            for kind, address in zip(self.kinds, addresses, strict=True)
        )
        self.launches.append((function, (gx, gy, gz), (bx, by, bz), shared, stream, values))

    def load(self, cubin, entry, shared):
        self.loads.append((cubin, entry, shared))
        return 777 + self.current, self

    def resident(self, function, launch, device):
        self.asked.append((function, launch, device))
        return 4

    @contextlib.contextmanager
    def scope(self, stream):
        self.scopes.append(stream)
        yield

    @property
    def driver(self) -> Driver:
        return Driver(
            launch=self.launch,
            device=lambda: self.current,
            load=self.load,
            current_stream=lambda: 55,
            pointer_device=lambda pointer: 0,
            wait=lambda producer, consumer: self.waits.append((producer, consumer)),
            stream_scope=self.scope,
            resident=self.resident,
        )


def cupy_array(shape, pointer=0x10000, strides=None, dtype="f4", device=0):
    """A genuine CuPy array over an address that nobody ever reads."""
    import cupy

    memory = cupy.cuda.memory.UnownedMemory(pointer, 1 << 40, None, device)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides=strides)
