"""K tiles that go through several axes as through one: where the next tap of a window begins."""

from __future__ import annotations

from polygen.hardware.swizzle import chunk_bytes
from polygen.schedule.model import Schedule


def run_of(depth: int, size: int, schedule: Schedule) -> int:
    """Indices of k from one tap to the next.

    Args:
        depth: channels.
        size: bytes of an element.
        schedule: boxes of the copy engine, which feeds roles, are of whole chunks.
    """
    step = max(1, chunk_bytes() // size) if schedule.specialised else 1
    return -(-depth // step) * step
