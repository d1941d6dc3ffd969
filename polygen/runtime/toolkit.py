"""Where the parts of a CUDA toolkit may lie: NVIDIA's packages first, then an installed toolkit.

Packages of CUDA 13 and later share the folder ``nvidia/cu13``; those of CUDA 12 have one for each
part, as ``nvidia/cuda_nvrtc``. Packages come first because theirs is the compiler that polygen is
tested with. Of two majors, the one that the installed CuPy was built for comes first: what one
process loads should be of one toolkit.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path

CUPY_WHEELS = {"cupy-cuda13x": 13, "cupy-cuda12x": 12, "cupy": None}  # and the toolkit they are for
_PARTS_OF_12 = ("cuda_nvrtc", "cuda_runtime", "cuda_nvcc", "cuda_cccl")


def version(package: str) -> str | None:
    """The installed version of a distribution; None: it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cupy_major() -> int | None:
    """The CUDA major that the installed CuPy was built for; None: unknown, or there is no CuPy."""
    return next((major for wheel, major in CUPY_WHEELS.items() if major and version(wheel)), None)


def roots() -> tuple[Path, ...]:
    """Folders that may hold ``bin``, ``include``, ``lib`` or ``lib64``, best first."""
    found = _packages()
    found += [Path(root) for name in ("CUDA_HOME", "CUDA_PATH") if (root := os.environ.get(name))]
    found += [Path(sys.prefix), Path("/usr/local/cuda")]  # a Conda environment; the usual place
    return tuple(dict.fromkeys(folder for folder in found if folder.is_dir()))


def libraries() -> tuple[Path, ...]:
    """Folders of CUDA's C++ libraries (``<cuda/barrier>``, ``<cub/cub.cuh>``), best first.

    The packages of NVIDIA have them, and CuPy brings its own.
    """
    found = list(existing("include/cccl"))
    package = importlib.util.find_spec("cupy")
    for place in (package.submodule_search_locations or ()) if package else ():
        bundle = Path(place) / "_core" / "include" / "cupy" / "_cccl"
        found += [bundle / part for part in ("libcudacxx", "cub", "thrust")]
    return tuple(folder for folder in found if folder.is_dir())


def nvcc() -> Path | None:
    """The compiler of whole programs; None: there is none, or no compiler of the host for it."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        return None
    found = [folder / "nvcc" for folder in existing("bin") if (folder / "nvcc").is_file()]
    named = shutil.which("nvcc")
    return found[0] if found else Path(named) if named else None


def _packages() -> list[Path]:
    package = importlib.util.find_spec("nvidia")
    places = package.submodule_search_locations or () if package else ()
    folders = [folder for place in places for folder in Path(place).glob("cu[0-9]*")]
    by_major = [(int(folder.name[2:]), folder) for folder in folders if folder.name[2:].isdigit()]
    by_major += [(12, Path(place) / part) for place in places for part in _PARTS_OF_12]
    first = cupy_major()
    by_major.sort(key=lambda entry: (entry[0] == first, entry[0]), reverse=True)
    return [folder for _, folder in by_major]


def existing(*parts: str) -> tuple[Path, ...]:
    """The folders ``root/part`` that exist, by root and then by part."""
    folders = (root / part for root in roots() for part in parts)
    return tuple(folder for folder in folders if folder.is_dir())
