"""Compares generated text with a file, or rewrites the file under ``--update-goldens``."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite the golden files")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Fails with a diff when the text differs from the file in any byte."""
    # The option exists only when this folder is named on the command line.
    update = request.config.getoption("--update-goldens", default=False)

    def compare(path: Path, text: str) -> None:
        if update:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode())
            return
        if not path.exists():
            pytest.fail(f"there is no {path.name} yet: run `make goldens`, and read what it says")
        wanted = path.read_bytes().decode()
        if text != wanted:
            lines = difflib.unified_diff(
                wanted.splitlines(), text.splitlines(), path.name, "generated", lineterm="", n=2
            )
            shown = "\n".join(list(lines)[:80])
            pytest.fail(f"{path.name} changed; `make goldens` accepts the change\n{shown}", False)

    return compare
