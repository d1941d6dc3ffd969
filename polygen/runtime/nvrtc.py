"""KernelSource -> Artifact: NVRTC in this process; needs neither a GPU nor a driver.

NVRTC is called through CuPy's low-level module and not through ``RawKernel``, because CuPy always
appends its own ``-arch`` for the present GPU, which cannot name ``sm_90a``.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from pathlib import Path
from typing import Any

from polygen import knobs
from polygen.emit.source import KernelSource
from polygen.errors import ToolchainMissing
from polygen.runtime import compilelog
from polygen.runtime.artifact import Artifact

_BUILD = re.compile(r"^// Cuda compilation tools, release [\d.]+, V([\d.]+)", re.MULTILINE)


@functools.cache
def _nvrtc() -> Any:
    """CuPy's NVRTC module, once it is known to find its library."""
    try:
        from cupy.cuda import nvrtc  # noqa: PLC0415

        nvrtc.getVersion()
    except Exception as reason:  # CuPy raises ImportError, RuntimeError or its own error here
        raise ToolchainMissing(
            "the CUDA compiler NVRTC cannot be used",
            why=str(reason) or type(reason).__name__,
            nearest="pip install 'polygen[cuda13]'",
        ) from reason
    return nvrtc


def options(source: KernelSource) -> tuple[str, ...]:
    """Give the compiler options for `source` under the knobs in force."""
    fixed = (
        f"-arch={source.arch}",
        "--std=c++17",
        "-default-device",
        "--ptxas-options=-v",
        "--no-cache",
    )
    return (*fixed, "-lineinfo") if knobs.current().line_info else fixed


@functools.cache
def compiler_identity() -> str:
    """Name the NVRTC build: builds that could make different cubins have different names.

    The library itself only tells major and minor; the versions of the packages and the size of the
    mapped file tell the rest.

    Raises:
        ToolchainMissing: NVRTC is not installed.
    """
    parts = ["NVRTC", *map(str, _nvrtc().getVersion())]
    for package in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "cupy-cuda13x", "cupy-cuda12x"):
        try:
            parts.append(f"{package}={importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    maps = Path("/proc/self/maps")
    if maps.exists():
        mapped = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines()}
        for name in sorted(path for path in mapped if "libnvrtc" in path):
            library = Path(name)
            size = library.stat().st_size if library.exists() else -1
            parts.append(f"{library.name}={size}")
    return " ".join(parts)


def compiler_version() -> str:
    """Give major and minor version of NVRTC, ``13.0``.

    Raises:
        ToolchainMissing: NVRTC is not installed.
    """
    return ".".join(map(str, _nvrtc().getVersion()))


def compile_source(source: KernelSource, *, allow_spills: bool = False) -> Artifact:
    """Compile one kernel.

    Args:
        source: the CUDA text; ``source.arch`` is the target.
        allow_spills: let spills and a stack frame pass (for experiments).

    Returns:
        PTX, cubin, resources and log.

    Raises:
        ToolchainMissing: NVRTC is not installed.
        CompileError: NVRTC rejects the source, the kernel spills or uses local memory, or the
            compiler reports a potential performance loss. Its ``log`` is the compiler's log.
    """
    nvrtc = _nvrtc()
    program = nvrtc.createProgram(source.text, f"{source.entry}.cu", (), ())
    try:
        nvrtc.compileProgram(program, options(source))
        ptx = nvrtc.getPTX(program).decode()
        # CuPy strips the last byte as if the cubin were a C string; that byte is always zero.
        cubin = nvrtc.getCUBIN(program) + b"\0"
        log = nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as reason:
        log, ptx = nvrtc.getProgramLog(program), nvrtc.getPTX(program).decode()
        raise compilelog.rejection(source, log, ptx) from reason
    finally:
        nvrtc.destroyProgram(program)
    log = compilelog.without_timings(log)
    found = compilelog.resources(source, log)
    compilelog.refuse_slow(source, found, log, allow_spills=allow_spills)
    build = _BUILD.search(ptx)
    version = build[1] if build else compiler_version()
    return Artifact(ptx, cubin, found, log, f"NVRTC {version}")
