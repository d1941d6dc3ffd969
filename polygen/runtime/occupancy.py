"""How many blocks of a persistent kernel a GPU holds at once.

The blocks of a cluster must share one of the GPU's processing clusters, whose multiprocessors are
not always a multiple of the cluster's size; how many clusters fit, only the driver knows. Blocks
beyond that would start when the others have ended, with tiles that nobody shares their time with.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from polygen.errors import ToolchainMissing
from polygen.lower.launch import Launch

_SUCCESS = 0
_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``; without attributes the kernel's own cluster shape holds."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


@functools.cache
def _library() -> Any:
    """The CUDA driver.

    Raises:
        ToolchainMissing: there is none.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as reason:
        raise ToolchainMissing("there is no CUDA driver", why=str(reason)) from reason


def resident_blocks(function: int, launch: Launch, device: int) -> int:
    """Blocks of a persistent kernel that run at once: as many of a multiprocessor as the
    kernel is made for, whole clusters.

    Args:
        function: the loaded kernel, ``CUfunction``, of the current context.
        launch: how it is launched.
        device: ordinal of the current device.

    Raises:
        ToolchainMissing: the driver cannot say, or no cluster fits the GPU.
    """
    blocks = launch.blocks
    found = ctypes.c_int()
    if blocks == 1:
        status = _library().cuDeviceGetAttribute(ctypes.byref(found), _MULTIPROCESSORS, device)
    else:
        config = LaunchConfig(
            (blocks, 1, 1), (launch.threads, 1, 1), launch.shared_bytes, None, None, 0
        )
        status = _library().cuOccupancyMaxActiveClusters(
            ctypes.byref(found), ctypes.c_void_p(function), ctypes.byref(config)
        )
    if status != _SUCCESS or found.value < 1:
        raise ToolchainMissing(
            f"device {device} holds no cluster of {blocks} blocks",
            why=f"the driver answers {found.value} clusters, status {status}",
            nearest="Use a schedule with smaller clusters",
        )
    # Of clusters the driver counts those of all multiprocessors, however many each holds.
    return found.value * (launch.per_multiprocessor if blocks == 1 else blocks)
