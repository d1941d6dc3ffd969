"""Disassembles a cubin with NVIDIA's own tool, when it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from polygen.errors import ToolchainBroken, ToolchainMissing
from polygen.runtime import toolkit

_TOOLS = ("nvdisasm", "cuobjdump")
PACKAGE = "nvidia-cuda-nvdisasm>=13.2"  # as the extra `sass` of pyproject.toml


def disassemble(cubin: bytes) -> str:
    """The machine code of a cubin as text.

    Raises:
        ToolchainMissing: neither nvdisasm nor cuobjdump is installed.
        ToolchainBroken: the tool does not run, or fails.
    """
    tool = find()
    if tool is None:
        raise ToolchainMissing(
            f"no disassembler: looked for {' and '.join(_TOOLS)}",
            where="show sass",
            nearest=f"`pip install '{PACKAGE}'`, or put the CUDA toolkit on PATH",
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        options = ["-c"] if "nvdisasm" in Path(tool).name else ["-sass"]
        try:
            done = subprocess.run(
                [tool, *options, str(path)], capture_output=True, text=True, check=False
            )
        except OSError as reason:
            raise ToolchainBroken(
                "the disassembler does not run", where=tool, why=str(reason.strerror)
            ) from reason
    if done.returncode:
        raise ToolchainBroken(
            "the disassembler fails", where=tool, why=done.stderr.strip() or f"{done.returncode}"
        )
    return done.stdout


def find() -> str | None:
    """The first tool on PATH, else in a package or toolkit."""
    folders = [os.environ.get("PATH") or os.defpath, *map(str, toolkit.existing("bin"))]
    found = (shutil.which(tool, path=os.pathsep.join(folders)) for tool in _TOOLS)
    return next((tool for tool in found if tool), None)
