"""CUDA text that polygen did not write -> PTX with line information; needs no GPU.

NVRTC alone: nothing is refused for being slow, and no machine code is made.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from polygen.errors import CompileError
from polygen.runtime import compilelog, nvrtc

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
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        raise CompileError(f"cannot be read: {reason}", where=str(path)) from None
    library = nvrtc._nvrtc()
    folders = (str(path.resolve().parent), *_toolkit_folders())
    options = (f"-arch={arch}", "--std=c++17", "-default-device", "-lineinfo")
    program = library.createProgram(text, path.name, (), ())
    try:
        library.compileProgram(program, (*options, *(f"-I{folder}" for folder in folders)))
        return str(library.getPTX(program).decode())
    except library.NVRTCError as reason:
        log = library.getProgramLog(program)
        found = _ERROR.search(log)
        where = f"{path}, line {found[1]}" if found else str(path)
        quoted = compilelog.quote(text, int(found[1])) if found else f"\n{log.strip()}"
        what = f"NVRTC says: {found[2]}" if found else "NVRTC rejects it"
        raise compilelog.failure(f"{what}{quoted}", where=where, log=log) from reason
    finally:
        library.destroyProgram(program)


def _toolkit_folders() -> tuple[str, ...]:
    """Where CUDA headers may be: a toolkit, or the packages that hold its parts."""
    roots = [Path(root) for name in ("CUDA_HOME", "CUDA_PATH") if (root := os.environ.get(name))]
    package = importlib.util.find_spec("nvidia")
    for place in package.submodule_search_locations or () if package else ():
        roots += sorted(Path(place).glob("cu[0-9]*"), reverse=True)
        roots.append(Path(place) / "cuda_runtime")
    return tuple(str(root / "include") for root in roots if (root / "include").is_dir())
