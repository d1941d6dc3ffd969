"""Dependent launches: ``cuLaunchKernelEx`` with programmatic stream serialization, by ctypes.

CuPy's launches have no attributes. With this one a kernel may begin as soon as the one before it on
the stream lets it, and waits by itself for that one's end; in a graph that is captured the edge is
a programmatic one. Where the driver cannot do so, the kernel begins when the one before has ended:
later, and as right.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from polygen.errors import LaunchError, ToolchainMissing
from polygen.runtime.occupancy import LaunchConfig

_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # cuda.h: CUlaunchAttributeID
_MOST_CONFIGS = 1024
_VALUE_BYTES = 64  # cuda.h: of a CUlaunchAttributeValue


class _Attribute(ctypes.Structure):
    """cuda.h: CUlaunchAttribute, whose value is a number here."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * (_VALUE_BYTES - 4)),
    )


@functools.cache
def _launch_kernel_ex() -> Any:
    """``cuLaunchKernelEx`` of the installed driver.

    Raises:
        ToolchainMissing: there is no driver, or it is older than launch attributes.
    """
    try:
        function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    except (OSError, AttributeError) as reason:
        raise ToolchainMissing(
            "the CUDA driver has no dependent launches",
            why=str(reason),
            nearest="Update the driver to CUDA 12.0 or newer",
        ) from reason
    function.restype = ctypes.c_int
    function.argtypes = (ctypes.c_void_p,) * 4
    return function


_ATTRIBUTE = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, b"", 1)


@functools.lru_cache(_MOST_CONFIGS)
def _config(
    gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared_bytes: int, stream: int
) -> LaunchConfig:
    """How to launch, which the driver only reads: calls and threads may share it."""
    attribute = ctypes.addressof(_ATTRIBUTE)
    return LaunchConfig((gx, gy, gz), (bx, by, bz), shared_bytes, stream, attribute, 1)


def launch(
    function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared_bytes: int,
    stream: int, parameters: int, extra: int,
) -> None:  # fmt: skip
    """Launch a kernel that waits by itself for those before it; as CuPy's ``launchKernel``.

    Args:
        function: handle (``CUfunction``).
        gx: blocks along x; and so on.
        gy: blocks.
        gz: blocks.
        bx: threads of a block along x; and so on.
        by: threads.
        bz: threads.
        shared_bytes: dynamic shared memory of a block.
        stream: ``CUstream``.
        parameters: address of the addresses of the parameters.
        extra: 0.

    Raises:
        ToolchainMissing: the driver cannot.
        LaunchError: the driver refuses the launch.
    """
    config = _config(gx, gy, gz, bx, by, bz, shared_bytes, stream)
    code = _launch_kernel_ex()(ctypes.addressof(config), function, parameters, extra or None)
    if code:
        raise LaunchError(
            f"the driver refuses a dependent launch (CUresult {code})",
            where=f"{gx} x {gy} x {gz} blocks of {bx * by * bz} threads",
            nearest="Use launch.dependent = false",
        )
