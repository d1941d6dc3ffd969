"""KernelSource -> Artifact: NVRTC in this process; needs neither a GPU nor a driver nor CuPy."""

from __future__ import annotations

import functools
import re

from polygen import knobs
from polygen.emit.source import KernelSource
from polygen.runtime import compilelog
from polygen.runtime.artifact import Artifact
from polygen.runtime.nvrtc_library import identity, library

_BUILD = re.compile(r"^// Cuda compilation tools, release [\d.]+, V([\d.]+)", re.MULTILINE)


def options(source: KernelSource) -> tuple[str, ...]:
    """Give the compiler options for `source` under the knobs in force."""
    fixed = (
        f"-arch={source.arch}",
        "--std=c++17",
        "-default-device",
        "--ptxas-options=-v",
        "--no-cache",
        *source.options,
    )
    return (*fixed, "-lineinfo") if knobs.current().line_info else fixed


@functools.cache
def compiler_identity(target: str = "") -> str:
    """Name the NVRTC build: builds that could make different cubins have different names.

    Args:
        target: what it compiles for; old ones are left to an older NVRTC.

    Raises:
        ToolchainMissing: NVRTC is not installed, or none that still makes code for the target.
        ToolchainBroken: it is, and does not load.
    """
    return identity(target)


def compiler_version() -> str:
    """Give major and minor version of NVRTC, ``13.0``.

    Raises:
        ToolchainMissing: NVRTC is not installed.
        ToolchainBroken: it is, and does not load.
    """
    return ".".join(map(str, library().version))


def compile_source(source: KernelSource, *, allow_spills: bool = False) -> Artifact:
    """Compile one kernel.

    Args:
        source: the CUDA text; ``source.arch`` is the target.
        allow_spills: let spills and a stack frame pass (for experiments).

    Returns:
        PTX, cubin, resources and log.

    Raises:
        ToolchainMissing: NVRTC is not installed, or none that still makes code for the target.
        ToolchainBroken: it is, and does not load.
        CompileError: NVRTC rejects the source, the kernel spills or uses local memory, or the
            compiler reports a potential performance loss. Its ``log`` is the compiler's log.
    """
    made = library(source.arch).compile(source.text, f"{source.entry}.cu", options(source))
    if not made.ok:
        raise compilelog.rejection(source, made.log, made.ptx)
    log = compilelog.without_timings(made.log)
    found = compilelog.resources(source, log)
    compilelog.refuse_slow(source, found, log, allow_spills=allow_spills)
    build = _BUILD.search(made.ptx)
    version = build[1] if build else compiler_version()
    return Artifact(made.ptx, made.cubin, found, log, f"NVRTC {version}")
