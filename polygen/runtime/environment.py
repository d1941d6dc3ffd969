"""What this machine has: versions, GPUs, compiler. Never fails, and creates no CUDA context."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np

from polygen.errors import ToolchainBroken, ToolchainMissing
from polygen.runtime import cache, nvrtc, toolkit
from polygen.runtime.cupy_import import import_cupy

_PACKAGES = ("polygen", "islpy", "numpy", "ml_dtypes", "torch", "jax")
_MAJOR, _MINOR = 75, 76  # cudaDevAttrComputeCapabilityMajor, ...Minor


def _cupy_runtime() -> Any:
    """Give CuPy's CUDA runtime calls; None without CuPy, a driver or a GPU."""
    try:
        runtime = import_cupy().cuda.runtime
        return runtime if runtime.getDeviceCount() else None
    except Exception:  # ImportError, or CuPy's own error when there is no driver
        return None


def arch_name(major: int, minor: int) -> str:
    """Name the target of a compute capability, with the "a" features where they exist (9.0 on)."""
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def current_arch() -> str | None:
    """Name the target of the current GPU, ``sm_90a``; None without a GPU."""
    runtime = _cupy_runtime()
    if runtime is None:
        return None
    device = runtime.getDevice()
    major, minor = (runtime.deviceGetAttribute(what, device) for what in (_MAJOR, _MINOR))
    return arch_name(major, minor)


def _gpus(runtime: Any) -> list[dict[str, object]]:
    found = []
    for device in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(device)
        name = properties["name"]
        found.append(
            {
                "name": name.decode() if isinstance(name, bytes) else name,
                "compute_capability": f"{properties['major']}.{properties['minor']}",
                "arch": arch_name(properties["major"], properties["minor"]),
                "memory_bytes": properties["totalGlobalMem"],
                "multiprocessors": properties["multiProcessorCount"],
            }
        )
    return found


def _driver_version() -> str | None:
    """Read the kernel driver's version, as people and release notes name it."""
    file = Path("/sys/module/nvidia/version")
    return file.read_text().strip() if file.exists() else None


def environment() -> dict[str, object]:
    """Describe this machine.

    Returns:
        Plain values that JSON can hold; None for what is absent.
    """
    try:
        compiler: str | None = nvrtc.compiler_version()
    except (ToolchainMissing, ToolchainBroken):
        compiler = None
    runtime = _cupy_runtime()
    held = cache.info()
    return {
        **{package: toolkit.version(package) for package in _PACKAGES},
        "numpy": np.__version__,
        "cupy": next(filter(None, map(toolkit.version, toolkit.CUPY_WHEELS)), None),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "nvrtc": compiler,
        "driver": _driver_version(),
        "cuda_driver_api": runtime.driverGetVersion() if runtime else None,
        "gpus": _gpus(runtime) if runtime else [],
        "arch": current_arch(),
        "cache": {"path": str(held.path), "entries": held.entries, "bytes": held.bytes},
    }
