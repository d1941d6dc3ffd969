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
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        raise CompileError(f"cannot be read: {reason}", where=str(path)) from None
    folders = (path.resolve().parent, *toolkit.existing("include"))
    options = (f"-arch={arch}", "--std=c++17", "-default-device", "-lineinfo")
    made = library().compile(text, path.name, (*options, *(f"-I{folder}" for folder in folders)))
    if made.ok:
        return made.ptx
    found = _ERROR.search(made.log)
    where = f"{path}, line {found[1]}" if found else str(path)
    quoted = compilelog.quote(text, int(found[1])) if found else f"\n{made.log.strip()}"
    what = f"NVRTC says: {found[2]}" if found else "NVRTC rejects it"
    raise compilelog.failure(f"{what}{quoted}", where=where, log=made.log)
