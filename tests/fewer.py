"""Cases of which the fast tests take some, always the same, and the slow ones the others."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def one_in(count: int, cases: Iterable[object]) -> list[object]:
    """Parameters of a test; all but the first of every `count` are slow."""
    found = []
    for at, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        found.append(pytest.param(*values, marks=[pytest.mark.slow] if at % count else []))
    return found
