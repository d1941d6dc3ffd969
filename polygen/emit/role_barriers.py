"""Where barriers of a specialised kernel lie, who waits for them and who arrives, as C text."""

from __future__ import annotations

from typing import Any

from polygen.hardware.device import common_facts
from polygen.lower.role_plan import PlacedBarrier, RoleWork

BARRIER_BYTES = common_facts()["mbarrier_bytes"]


def address(placed: PlacedBarrier, slot: str, group: str) -> str:
    """The address of a barrier of one slot."""
    if placed.groups > 1:
        slot = f"({group} * {placed.barrier.slots} + {slot})"
    return f"shared + {placed.offset} + {slot} * {BARRIER_BYTES}"


def waits_of(work: RoleWork, statement: str, cursors: dict[str, str], group: str) -> list[Any]:
    """The waits in front of a statement; `cursors` by memory."""
    found = []
    for placed in work.barriers:
        barrier = placed.barrier
        if barrier.wait != statement:
            continue
        cursor = cursors[barrier.memory]
        flip = " ^ 1" if barrier.phase % 2 else ""
        found.append(
            {
                "name": barrier.name,
                "comment": f"wait_{barrier.name}: {'; '.join(barrier.dependences)}",
                "address": address(placed, f"{cursor}.slot", group),
                "parity": f"{cursor}.parity{flip}",
            }
        )
    return found


def releases_of(work: RoleWork, statement: str) -> list[PlacedBarrier]:
    """The barriers at which a statement's completion arrives through threads."""
    return [b for b in work.barriers if b.barrier.signal == statement and not b.bytes]
