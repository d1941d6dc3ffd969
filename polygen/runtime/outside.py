"""CUDA text that polygen did not write -> PTX with line information; needs no GPU.

1. NVRTC compiles it: nothing is refused for being slow, and no machine code is made.
2. A file with code of the host, as programs around libraries have it, NVRTC does not take
   (`CompileError.host`). nvcc does, where there is one (`by_nvcc`).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from polygen.errors import CompileError
from polygen.runtime import compilelog, toolkit
from polygen.runtime.nvrtc_library import library

_ERROR = re.compile(r"^\S*?\((\d+)\): (?:catastrophic )?error:? *(.*)$", re.MULTILINE)
_NVCC_ERROR = re.compile(r"^(\S+?)[(:](\d+)(?:\)|:\d+)?: (?:fatal )?error:? *(.*)$", re.MULTILINE)
_PROGRAM = re.compile(r"\bmain\s*\(|<<<")
_INSTALL = ", or install nvcc and a compiler of the host, which are taken for whole programs"
_MISSING = re.compile(r'cannot open source file "([^"]+)"')
# Which package has the headers of a folder, or of a name.
_PACKAGES = (
    (re.compile(r"(cuda|cub|thrust|nv)/"), "nvidia-cuda-cccl"),
    (re.compile(r"(cooperative_groups|mma|cuda_\w+|vector_types|cuda)\.h"), "nvidia-cuda-runtime"),
    (re.compile(r"curand"), "nvidia-curand"),
    (re.compile(r"(cutlass|cute)/"), "nvidia-cutlass"),
)
_HOST = re.compile(
    r"(c?(std)?(assert|io|lib|int|def|bool|arg|math|string|time|float|limits)(\.h)?|"
    r"iostream|vector|string|algorithm|memory|utility|type_traits|tuple|array)$"
)


def _source_of(header: str) -> str:
    """What to do about a header that is not found."""
    for pattern, package in _PACKAGES:
        if pattern.match(header):
            return f"pip install {package}, or put it beside the file"
    if _HOST.match(header):
        return (
            "NVRTC has no headers of the host: printf, assert and the functions of math.h are "
            f"built in; <cuda/std/...> has the rest{_INSTALL}"
        )
    return "Put it beside the file"


def compile_ptx(path: Path, arch: str) -> str:
    """Compile a file for the PTX machine: by NVRTC, or a whole program by nvcc.

    Args:
        path: a CUDA file; it may include files beside it and the toolkit's headers.
        arch: the compiler's name of the target, as ``sm_90a``.

    Returns:
        The PTX; its ``.loc`` lines name the file.

    Raises:
        CompileError: the file cannot be read, or the compiler rejects it. Its ``log`` is the whole
            log, and its ``host`` is set where it needs nvcc and there is none.
        ToolchainMissing: NVRTC is not installed.
        ToolchainBroken: it is, and does not load.
    """
    try:
        return compile_text(read_text(path), path, arch)
    except CompileError as refused:
        if not refused.host or (found := toolkit.nvcc()) is None:
            raise
        return by_nvcc(found, path, arch, refused)


def read_text(path: Path) -> str:
    """The text of a CUDA file.

    Raises:
        CompileError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as reason:
        raise CompileError(f"cannot be read: {reason}", where=str(path)) from None


def by_nvcc(
    nvcc: Path, path: Path, arch: str, refused: CompileError, seconds: float = 600.0
) -> str:
    """Compile a whole program for the PTX machine.

    Args:
        nvcc: the compiler.
        path: a CUDA file, as for `compile_ptx`.
        arch: as there.
        refused: what NVRTC says of it.
        seconds: the compiler may take.

    Raises:
        CompileError: nvcc rejects it, or takes too long; `refused` itself where both lack a header.
    """
    extended = ("--extended-lambda", "--expt-relaxed-constexpr")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "program.ptx"
        command: list[str | Path] = [
            nvcc,
            "-ptx",
            "-lineinfo",
            "-w",
            f"-arch={arch}",
            "-std=c++17",
            *extended,
        ]
        command += [f"-I{path.resolve().parent}", path, "-o", out]
        try:
            done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise CompileError(f"nvcc was stopped after {seconds:g} s", where=str(path)) from None
        if done.returncode == 0 and out.exists():
            return out.read_text(encoding="utf-8", errors="replace")
    log = (done.stderr + done.stdout).decode(errors="replace")
    if "No such file or directory" in log and _MISSING.search(refused.log):
        raise refused
    found = _NVCC_ERROR.search(log)
    where = f"{path}, line {found[2]}" if found and Path(found[1]).name == path.name else str(path)
    what = f"{found[1]}, line {found[2]}: {found[3]}" if found else log.strip()
    raise compilelog.failure(f"nvcc says: {what}", where=where, log=log)


def compile_text(text: str, path: Path, arch: str) -> str:
    """Compile a text for the PTX machine.

    Args:
        text: CUDA.
        path: where it is from: includes are looked for beside it, and findings name it.
        arch: as for `compile_ptx`.

    Returns:
        The PTX.

    Raises:
        CompileError: NVRTC rejects it; with ``host`` where it may have code of the host.
        ToolchainMissing: NVRTC is not installed.
        ToolchainBroken: it is, and does not load.
    """
    folders = (path.resolve().parent, *toolkit.existing("include"), *toolkit.libraries())
    options = (f"-arch={arch}", "--std=c++17", "-default-device", "-device-int128", "-lineinfo")
    made = library().compile(text, path.name, (*options, *(f"-I{folder}" for folder in folders)))
    if made.ok:
        return made.ptx
    error = _rejection(text, path, made.log)
    error.host = bool(_MISSING.search(made.log) or "JIT mode" in made.log or _PROGRAM.search(text))
    raise error


def _rejection(text: str, path: Path, log: str) -> CompileError:
    """What NVRTC has against a text."""
    found = _ERROR.search(log)
    missing = _MISSING.search(log)
    if "not allowed in JIT mode" in log:
        return compilelog.failure(
            "a header declares functions of the host, which NVRTC does not take",
            where=str(path),
            log=log,
            nearest="Include what kernels use of it: <cub/block/block_reduce.cuh> instead of "
            f"<cub/cub.cuh>{_INSTALL}",
        )
    if missing is not None:
        return compilelog.failure(
            f"there is no header <{missing[1]}>",
            where=str(path),
            log=log,
            nearest=_source_of(missing[1]),
        )
    where = f"{path}, line {found[1]}" if found else str(path)
    quoted = compilelog.quote(text, int(found[1])) if found else f"\n{log.strip()}"
    what = f"NVRTC says: {found[2]}" if found else "NVRTC rejects it"
    return compilelog.failure(f"{what}{quoted}", where=where, log=log)
