"""Kernels that run one after another as files: those of each, and a manifest that names them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polygen.errors import SavedKernelError
from polygen.frontend.program import Program
from polygen.generated import decode, encode, polygen_version
from polygen.runtime.files import write_bytes_atomic
from polygen.saved import FORMAT, KERNELS, folder_of


@dataclass(frozen=True, slots=True)
class SavedSequence:
    """What is kept of several kernels beside their own files.

    Attributes:
        program: what they compute together.
        entries: names of their files, in the order in which they run.
    """

    program: Program
    entries: tuple[str, ...]


def write(saved: SavedSequence, folder: Path | str, *, force: bool = False) -> Path:
    """Write the manifest, whole or not at all.

    Args:
        saved: what is kept.
        folder: where the kernels' files are.
        force: take the place of another manifest of this name.

    Raises:
        SavedKernelError: there is another program's manifest.
        CacheError: the file cannot be written.
    """
    path = folder_of(folder) / f"pg_{saved.program.name}.json"
    manifest = _manifest(saved)
    if not force and path.is_file():
        try:
            there = json.loads(path.read_text(encoding="utf-8"))
            same = KERNELS in there and there["program"] == manifest["program"]
        except (OSError, ValueError, KeyError, TypeError):
            same = False
        if not same:
            raise SavedKernelError(
                f"it holds another {path.stem}",
                where=str(path.parent),
                nearest="Give the kernel another name, use another folder, or force it: force=True "
                "in Python, --force on the command line",
            )
    write_bytes_atomic(path, (json.dumps(manifest, indent=2) + "\n").encode())
    return path


def read(path: Path | str) -> SavedSequence:
    """Read the manifest of several kernels.

    Raises:
        SavedKernelError: there is none, or it is not as it was written.
    """
    try:
        data = Path(path).read_bytes()
    except (OSError, TypeError, ValueError) as reason:
        raise SavedKernelError(
            f"the manifest cannot be read: {reason}",
            where=str(path),
            nearest="Name the .json that `save` wrote, as kernels_out/pg_block.json",
        ) from reason
    return _unpacked(data, str(path))


def _manifest(saved: SavedSequence) -> dict[str, Any]:
    found = {
        "format": FORMAT,
        "polygen": polygen_version(),
        KERNELS: list(saved.entries),
        "program": encode(saved.program),
    }
    return found | {"digest": _digest(found)}


def _digest(manifest: dict[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _unpacked(data: bytes, where: str) -> SavedSequence:
    try:
        manifest = json.loads(data)
        if KERNELS not in manifest:
            raise SavedKernelError(
                "it is the manifest of one kernel",
                where=where,
                nearest="Load it with polygen.Kernel.load",
            )
        if manifest["format"] != FORMAT:
            raise SavedKernelError(
                f"the manifest has format {manifest['format']!r}, and this polygen reads {FORMAT}",
                where=where,
                nearest="Save the kernels again with this version",
            )
        if manifest["digest"] != _digest(manifest):
            raise ValueError("its content does not have the digest that stands in it")
        entries = tuple(map(str, manifest[KERNELS]))
        return SavedSequence(decode(Program, manifest["program"]), entries)
    except (ValueError, KeyError, TypeError) as reason:
        raise SavedKernelError(
            "the saved kernels are damaged",
            where=where,
            why=f"{type(reason).__name__}: {reason}",
            nearest="Save them again",
        ) from reason
