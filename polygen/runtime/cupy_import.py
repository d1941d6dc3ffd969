"""Imports CuPy on machines whose home folder is missing or cannot be written.

CuPy makes the folder of its own kernel cache while it is imported, and fails where it cannot. Here
it gets a folder below polygen's cache instead, or where that cannot be written either, one that
lives as long as the process. A CUPY_CACHE_DIR that can be written is left alone.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from polygen.runtime import cache

_VARIABLE = "CUPY_CACHE_DIR"
_USUAL = "~/.cupy/kernel_cache"


@functools.cache
def import_cupy() -> Any:
    """CuPy.

    Raises:
        ImportError: it is not installed, or does not load.
    """
    give_folder()
    return importlib.import_module("cupy")


def give_folder() -> None:
    """See to it that CuPy's cache has a folder that can be written; before its first import."""
    usual = os.environ.get(_VARIABLE) or os.path.expanduser(_USUAL)  # noqa: PTH111 (as CuPy does)
    if usual.startswith("~") or not _can_hold_files(Path(usual)):  # ~: nobody knows the user
        own = cache.directory() / "cupy"
        os.environ[_VARIABLE] = str(own) if _can_hold_files(own) else _passing_folder()


def _can_hold_files(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _passing_folder() -> str:
    folder = tempfile.mkdtemp(prefix="polygen-cupy-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
