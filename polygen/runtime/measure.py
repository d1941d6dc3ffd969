"""Arrays to and from the GPU, and the time of launches by CUDA events."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polygen.runtime.driver import cupy_driver

FLUSHED_BYTES = 256 << 20  # several times the largest L2 cache there is


def to_gpu(array: np.ndarray[Any, Any]) -> Any:
    """Copy a NumPy array to the current GPU, its axes stored in the same order.

    Of 8-bit floats, which CuPy does not have, the bytes.

    Raises:
        ToolchainMissing: there is no GPU.
    """
    cupy_driver()
    import cupy  # noqa: PLC0415

    if array.itemsize == 1 and array.dtype.kind in "fV":
        array = array.view(np.uint8)
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    stored = array.transpose(order)
    if array.flags.c_contiguous or not stored.flags.c_contiguous:
        return cupy.asarray(array)  # no other order, or gaps
    return cupy.asarray(stored).transpose([order.index(axis) for axis in range(array.ndim)])


def to_host(array: Any) -> np.ndarray[Any, Any]:
    """Copy a CuPy array to the host, after the work queued on its stream."""
    return np.asarray(array.get())


def device_name() -> str:
    """Give the current GPU's marketing name."""
    from cupy.cuda import runtime  # noqa: PLC0415

    name = runtime.getDeviceProperties(runtime.getDevice())["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def milliseconds(launch: Callable[[], Any], *, warm: int = 5, repeats: int = 20) -> list[float]:
    """Time launches one by one with CUDA events on CuPy's current stream.

    Args:
        launch: queues the work and returns.
        warm: launches before the first one timed.
        repeats: launches timed.

    Returns:
        Device time of each launch; the data it leaves in the L2 cache is there for the next one.
    """
    from cupy.cuda import Event, get_elapsed_time  # noqa: PLC0415

    for _ in range(warm):
        launch()
    pairs = [(Event(), Event()) for _ in range(repeats)]
    for start, stop in pairs:
        start.record()
        launch()
        stop.record()
    pairs[-1][1].synchronize()
    return [float(get_elapsed_time(start, stop)) for start, stop in pairs]


def interleaved(
    contenders: Mapping[str, Callable[[], Any]], repeats: int, *, warm: int = 3, seed: int = 0
) -> dict[str, list[float]]:
    """Time contenders side by side: in random order, each launch with a cold L2 cache.

    Args:
        contenders: by name, what queues one launch on the default stream.
        repeats: launches timed of each.
        warm: launches of each before the first one timed.
        seed: of the order.

    Returns:
        Microseconds of every launch by CUDA events, by name.
    """
    import cupy  # noqa: PLC0415
    from cupy.cuda import Event, get_elapsed_time  # noqa: PLC0415

    flush = cupy.empty(FLUSHED_BYTES // 4, dtype=cupy.int32)
    for call in contenders.values():
        for _ in range(warm):
            call()
    pairs: dict[str, list[tuple[Any, Any]]] = {name: [] for name in contenders}
    names, order = list(contenders), random.Random(seed)
    for _ in range(repeats):
        order.shuffle(names)
        for name in names:
            flush.fill(0)
            start, stop = Event(), Event()
            start.record()
            contenders[name]()
            stop.record()
            pairs[name].append((start, stop))
    cupy.cuda.runtime.deviceSynchronize()
    return {n: [get_elapsed_time(a, b) * 1e3 for a, b in found] for n, found in pairs.items()}


def captured(call: Callable[[Any], Any]) -> Callable[[], Any]:
    """Make one launch a CUDA graph, so that the host's share of its time is not measured.

    Args:
        call: queues one launch on the stream it is given, and allocates nothing; it has been called
            before.

    Returns:
        What queues a replay on the default stream.
    """
    import cupy  # noqa: PLC0415

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        call(stream)
        graph = stream.end_capture()

    def replay() -> None:
        graph.launch(cupy.cuda.Stream.null)

    return replay
