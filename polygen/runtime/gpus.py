"""The driver and its GPUs, asked of the driver's own library: no CuPy, and no CUDA context."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ..._MINOR
_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the driver tells it; `arch` is the target's name."""

    name: str
    arch: str


def cuda_driver() -> tuple[int, tuple[Gpu, ...]] | None:
    """What the driver's library tells, without a context and without CuPy; None: there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)):
        return None
    count = ctypes.c_int()
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)):
        return version.value, ()
    return version.value, tuple(_gpu(library, ordinal) for ordinal in range(count.value))


def _gpu(library: ctypes.CDLL, ordinal: int) -> Gpu:
    from polygen.runtime.environment import arch_name  # noqa: PLC0415 (numpy may be missing)

    device = ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), ordinal)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    library.cuDeviceGetName(name, _NAME_BYTES, device)
    capability = []
    for what in (_MAJOR, _MINOR):
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), what, device)
        capability.append(value.value)
    return Gpu(name.value.decode(errors="replace"), arch_name(*capability))
