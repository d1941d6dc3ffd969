"""Disassembles a cubin with NVIDIA's own tool, when it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from polygen.errors import ToolchainMissing

_TOOLS = ("nvdisasm", "cuobjdump")


def disassemble(cubin: bytes) -> str:
    """The machine code of a cubin as text.

    Raises:
        ToolchainMissing: neither nvdisasm nor cuobjdump is installed.
    """
    tool = _find()
    if tool is None:
        raise ToolchainMissing(
            f"no disassembler: looked for {' and '.join(_TOOLS)}",
            where="show sass",
            nearest="pip install nvidia-cuda-nvdisasm, or put the CUDA toolkit on PATH",
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        options = ["-c"] if "nvdisasm" in Path(tool).name else ["-sass"]
        done = subprocess.run(
            [tool, *options, str(path)], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise ToolchainMissing(f"{tool} failed: {done.stderr.strip()}", where="show sass")
    return done.stdout


def _find() -> str | None:
    wheels = [Path(entry) / "nvidia" / "cu13" / "bin" for entry in sys.path]
    search = os.pathsep.join([os.environ.get("PATH", ""), *map(str, wheels)])
    found = (shutil.which(tool, path=search) for tool in _TOOLS)
    return next((tool for tool in found if tool), None)
