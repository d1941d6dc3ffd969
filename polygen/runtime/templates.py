"""What templates compile to, kept beside the compiled kernels and shared by all processes.

One file for all of them: read before the first is rendered, written again after one was compiled
that it did not have. It is a matter of time only: what cannot be read or written is compiled again,
in silence, and a template whose text has changed is another one (`polygen.emit.environment`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

from polygen import knobs
from polygen.emit.environment import compiled
from polygen.runtime.cache import directory
from polygen.runtime.files import replace_with

FOLDER = "templates"  # of the cache
_DIGEST = 32  # bytes of SHA-256


@contextlib.contextmanager
def templates_kept() -> Iterator[None]:
    """Templates that are rendered inside are compiled once, by whichever process comes first."""
    if not knobs.current().cache:
        yield
        return
    name = compiled().made_by
    path = directory() / FOLDER / name[:2] / f"{name}.bin"
    _read(path)
    yield
    if compiled().new:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            codes = compiled().take()
            replace_with(path, hashlib.sha256(codes).digest() + codes, sync=False)


@functools.lru_cache(maxsize=8)
def _read(path: Path) -> None:
    """Put in what a file has, once in a process."""
    try:
        data = path.read_bytes()
    except OSError:  # absent, or unreadable
        return
    codes = data[_DIGEST:]
    if hashlib.sha256(codes).digest() == data[:_DIGEST]:
        compiled().put(codes)
