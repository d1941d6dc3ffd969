"""What a launch needs from CUDA, as a record of functions that tests can replace.

Nothing here is called before the first launch; that first call creates the CUDA context.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polygen.errors import ToolchainMissing
from polygen.lower.launch import Launch
from polygen.runtime import dependent, occupancy, tensormaps
from polygen.runtime.cupy_import import import_cupy
from polygen.runtime.graph_memory import beside_captures, graph_memory

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@dataclass(frozen=True, slots=True)
class Driver:
    """The CUDA calls of a launch.

    Attributes:
        launch: ``cuLaunchKernel``: function, grid x y z, block x y z, dynamic shared bytes, stream,
            address of the parameter addresses, 0.
        device: the device of the calling thread's context, which it makes current if need be.
        load: cubin, entry, dynamic shared bytes -> function handle, and an object that keeps the
            module loaded.
        current_stream: CuPy's current stream as a number.
        pointer_device: the device that a pointer belongs to.
        wait: make the second stream wait for what is queued on the first.
        stream_scope: context manager: CuPy allocates on this stream inside it.
        encode_map: the tensor map of an address and a layout.
        resident: function handle, launch, device -> blocks of a persistent kernel that run at once.
        select: make a device the calling thread's, and its context current.
        capturing: whether a stream captures a graph.
        reserve: bytes, stream -> address: memory of the graph that the stream captures.
        beside_captures: what the thread asks for inside is no part of a capture.
        launch_dependent: as `launch`, of a kernel that waits by itself for those before it.
    """

    launch: Callable[..., Any]
    device: Callable[[], int]
    load: Callable[[bytes, str, int], tuple[int, object]]
    current_stream: Callable[[], int]
    pointer_device: Callable[[int], int]
    wait: Callable[[int, int], None]
    stream_scope: Callable[[int], contextlib.AbstractContextManager[Any]]
    encode_map: tensormaps.Encoder = tensormaps.encode
    resident: Callable[[int, Launch, int], int] = occupancy.resident_blocks
    select: Callable[[int], None] = lambda device: None
    capturing: Callable[[int], bool] = lambda _: False
    reserve: Callable[[int, int], int] = graph_memory.reserve
    beside_captures: Callable[[], contextlib.AbstractContextManager[None]] = beside_captures
    launch_dependent: Callable[..., Any] = dependent.launch


@functools.cache
def cupy_driver() -> Driver:
    """Give CUDA through CuPy.

    Raises:
        ToolchainMissing: CuPy is not installed, or there is no GPU.
    """
    without = "emulate() runs the kernel without a GPU"
    try:
        cupy = import_cupy()
    except ImportError as reason:
        raise ToolchainMissing(
            "CuPy, which launches kernels, cannot be imported",
            why=str(reason),
            nearest="Running needs an NVIDIA GPU and `pip install cupy-cuda13x`, or cupy-cuda12x "
            f"where the driver is of CUDA 12; {without}",
        ) from reason
    try:
        cupy.cuda.runtime.getDeviceCount()
    except Exception as reason:  # CuPy's own error when there is no driver
        raise ToolchainMissing(
            "there is no GPU to run on",
            why=str(reason) or type(reason).__name__,
            nearest=f"Running needs an NVIDIA GPU and its driver; {without}",
        ) from reason
    return _functions(cupy)


class _Foreign:
    """A stream by its address, as the CUDA stream protocol names it."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._pointer)  # version of the protocol, ``cudaStream_t``


def foreign_stream(cupy: Any, pointer: int) -> Any:
    """Give CuPy's object for a stream that somebody else made and keeps alive.

    Args:
        cupy: the module; before version 14 it has another class for such streams.
        pointer: ``cudaStream_t``.
    """
    make = getattr(cupy.cuda.Stream, "from_external", None)
    return cupy.cuda.ExternalStream(pointer) if make is None else make(_Foreign(pointer))


def _functions(cupy: Any) -> Driver:
    cuda, context_device = cupy.cuda, cupy.cuda.driver.ctxGetDevice

    def device() -> int:
        try:
            return context_device()  # type: ignore[no-any-return]
        except cuda.driver.CUDADriverError:  # a thread that has no context yet
            cuda.runtime.setDevice(cuda.runtime.getDevice())
            return int(context_device())

    def load(cubin: bytes, entry: str, shared_bytes: int) -> tuple[int, object]:
        module = cuda.function.Module()
        module.load(cubin)
        function = module.get_function(entry)
        if shared_bytes:
            cuda.driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, shared_bytes)
        return function.ptr, function  # the function holds its module

    def current_stream() -> int:
        return cuda.get_current_stream().ptr  # type: ignore[no-any-return]

    def pointer_device(pointer: int) -> int:
        return int(cuda.runtime.pointerGetAttributes(pointer).device)

    def wait(producer: int, consumer: int) -> None:
        event = cuda.Event(disable_timing=True)
        event.record(foreign_stream(cupy, producer))
        foreign_stream(cupy, consumer).wait_event(event)

    def stream_scope(stream: int) -> contextlib.AbstractContextManager[Any]:
        scope = foreign_stream(cupy, stream) if stream else cuda.Stream.null
        return scope  # type: ignore[no-any-return]

    def capturing(stream: int) -> bool:
        # The default stream captures nothing, and asking it would break captures of others.
        return stream != 0 and bool(cuda.runtime.streamIsCapturing(stream))

    return Driver(
        launch=cuda.driver.launchKernel,
        device=device,
        load=load,
        current_stream=current_stream,
        pointer_device=pointer_device,
        wait=wait,
        stream_scope=stream_scope,
        select=cuda.runtime.setDevice,
        capturing=capturing,
    )
