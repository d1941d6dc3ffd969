"""Arrays to and from the GPU, and the time of launches by CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from polygen.runtime.driver import cupy_driver


def to_gpu(array: np.ndarray[Any, Any]) -> Any:
    """Copy a NumPy array to the current GPU, column-major ones as column-major.

    Raises:
        ToolchainMissing: there is no GPU.
    """
    cupy_driver()
    import cupy  # noqa: PLC0415

    if array.ndim == 2 and array.flags.f_contiguous and not array.flags.c_contiguous:
        return cupy.asarray(np.ascontiguousarray(array.T)).T
    return cupy.asarray(array)


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
