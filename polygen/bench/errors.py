"""The error of the measurements; worded as all of `polygen.errors` are."""

from __future__ import annotations

from polygen.errors import PolygenError


class BenchError(PolygenError):
    """A suite, row, peer or record is unknown or wrong, or a run cannot start."""
