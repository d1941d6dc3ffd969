"""What a run is made with: command, versions, settings, sources, card."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polygen
from polygen.bench.card import smi
from polygen.bench.protocol import DATA, TEXT
from polygen.bench.rows import suite

_SETTINGS = ("TORCHINDUCTOR_", "POLYGEN_", "CUBLAS", "CUDA_", "TRITON_", "NVIDIA_TF32")
_PACKAGE = Path(polygen.__file__).resolve().parent


def provenance(command: str, suites: Sequence[str], repeats: int) -> dict[str, Any]:
    """What is known before the child starts; it adds versions, ceilings and the card.

    Args:
        command: the command line.
        suites: names of those measured.
        repeats: launches of every contender.
    """
    card = smi("name,driver_version")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": without_folders(command),
        "polygen": polygen.__version__,
        "sources": sources_digest(),
        "suites": {name: suite(name).digest for name in suites},
        "python": platform.python_version(),
        "driver": card.get("driver_version"),
        "environment": {  # without folders: they say something about the machine alone
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_SETTINGS) and not value.startswith("/")
        },
        "protocol": TEXT,
        "repeats": repeats,
        "data": DATA,
    }


def sources_digest(folders: Iterable[Path] | None = None) -> str:
    """Twelve hexadecimal digits of everything that decides what code is generated.

    Args:
        folders: whose files count; None: the package and the shipped schedules.
    """
    if folders is None:
        beside = _PACKAGE.parent / "schedules"
        folders = (_PACKAGE, beside if beside.is_dir() else _PACKAGE / "_schedules")
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".j2", ".toml"):
                digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def without_folders(command: str) -> str:
    """A command whose absolute paths are only names, for folders are the machine's."""
    words = command.split(" ")
    return " ".join(Path(word).name if word.startswith("/") else word for word in words)
