"""Writes a file whole or not at all: a temporary name in the same folder, then a rename."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from polygen.errors import CacheError, echo


def replace_with(path: Path, data: bytes, *, sync: bool) -> None:
    """Put `data` at `path` in one step; readers see the old file or the new one, never a part.

    Args:
        path: the file; its folder must exist.
        data: the content.
        sync: force the data to the disk before the rename, so that it survives a power failure.

    Raises:
        OSError: nothing was written, and nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105 (the name that tests make fail)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_bytes_atomic(path: str | Path, data: bytes) -> None:
    """Write a file the user asked for, whole or not at all; makes the folder if needed.

    A device or a pipe is written to: another file in its place would be the end of it.

    Args:
        path: the file.
        data: the content.

    Raises:
        CacheError: full disk, no permission, not a folder; the old file, if any, is untouched.
    """
    target = Path(path)
    if not target.name or "\0" in target.name:
        raise CacheError(f"{echo(str(path))} is no file to write", nearest="Name one, as out.html")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
        else:
            replace_with(target, data, sync=True)
    except OSError as reason:
        raise unwritable(target, reason) from reason


def write_text_atomic(path: str | Path, text: str) -> None:
    """`write_bytes_atomic` for text, as UTF-8 with the line ends it has."""
    write_bytes_atomic(path, text.encode())


def unwritable(
    path: Path,
    reason: OSError | NotImplementedError,
    advice: str = "Free space, or choose another folder",
) -> CacheError:
    """Word the error for a file that cannot be written."""
    files = [one for one in path.parents if one.is_file()]
    if files:
        return CacheError(
            "the file cannot be written",
            where=str(path),
            why=f"{files[0]} is a file",
            nearest="Name a folder, or one that is not there yet",
        )
    return CacheError(
        "the file cannot be written",
        where=str(path),
        why=getattr(reason, "strerror", None) or str(reason) or type(reason).__name__,
        nearest=advice,
    )
