"""CUDA text that polygen did not write -> PTX with line information; needs no GPU.

NVRTC alone: nothing is refused for being slow, and no machine code is made.
"""

from __future__ import annotations

import re
from pathlib import Path

from polygen.errors import CompileError
from polygen.runtime import compilelog, toolkit
from polygen.runtime.nvrtc_library import library

_ERROR = re.compile(r"^\S*?\((\d+)\): (?:catastrophic )?error:? *(.*)$", re.MULTILINE)
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
            "built in; <cuda/std/...> has the rest"
        )
    return "Put it beside the file"


def compile_ptx(path: Path, arch: str) -> str:
    """Compile a file for the PTX machine.

    Args:
        path: a CUDA file; it may include files beside it and the toolkit's headers.
        arch: the compiler's name of the target, as ``sm_90a``.

    Returns:
        The PTX; its ``.loc`` lines name the file.

    Raises:
        CompileError: the file cannot be read, or NVRTC rejects it. Its ``log`` is the whole log.
        ToolchainMissing: NVRTC is not installed.
        ToolchainBroken: it is, and does not load.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as reason:
        raise CompileError(f"cannot be read: {reason}", where=str(path)) from None
    return compile_text(text, path, arch)


def compile_text(text: str, path: Path, arch: str) -> str:
    """Compile a text for the PTX machine.

    Args:
        text: CUDA.
        path: where it is from: includes are looked for beside it, and findings name it.
        arch: as for `compile_ptx`.

    Returns:
        The PTX.

    Raises:
        CompileError: NVRTC rejects it.
        ToolchainMissing: NVRTC is not installed.
        ToolchainBroken: it is, and does not load.
    """
    folders = (path.resolve().parent, *toolkit.existing("include"), *toolkit.libraries())
    options = (f"-arch={arch}", "--std=c++17", "-default-device", "-device-int128", "-lineinfo")
    made = library().compile(text, path.name, (*options, *(f"-I{folder}" for folder in folders)))
    if made.ok:
        return made.ptx
    found = _ERROR.search(made.log)
    missing = _MISSING.search(made.log)
    if "not allowed in JIT mode" in made.log:
        raise compilelog.failure(
            "a header declares functions of the host, which NVRTC does not take",
            where=str(path),
            log=made.log,
            nearest="Include what kernels use of it: <cub/block/block_reduce.cuh> instead of "
            "<cub/cub.cuh>",
        )
    if missing is not None:
        raise compilelog.failure(
            f"there is no header <{missing[1]}>",
            where=str(path),
            log=made.log,
            nearest=_source_of(missing[1]),
        )
    where = f"{path}, line {found[1]}" if found else str(path)
    quoted = compilelog.quote(text, int(found[1])) if found else f"\n{made.log.strip()}"
    what = f"NVRTC says: {found[2]}" if found else "NVRTC rejects it"
    raise compilelog.failure(f"{what}{quoted}", where=where, log=made.log)
