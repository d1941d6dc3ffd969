"""Legality of the grid: thread blocks run in any order, so no dependence may connect two of them.

What is broken is reported with one concrete pair of instances at the smallest size showing it. The
order inside a block is that of the emitted trees, which `polygen.poly.refine` proves.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.errors import IllegalSchedule


@dataclass(frozen=True, slots=True)
class Proof:
    """A claim that isl has decided for all sizes."""

    claim: str
    subject: str  # what it was decided about

    def __str__(self) -> str:
        return f"proved: {self.claim} ({self.subject})"


def check_blocks(
    dependences: isl.UnionMap, block: isl.UnionMap, field: str, split: int = 1
) -> Proof:
    """Prove that no dependence connects two thread blocks.

    Args:
        dependences: between instances.
        block: instance -> its block, or of blocks that share sums or rows their cluster.
        field: of the schedule, which says what is mapped to blocks.
        split: blocks that share sums, or rows.

    Raises:
        IllegalSchedule: with one pair of instances in two blocks.
    """
    timed = dependences.apply_domain(block).apply_range(block)
    blocks = "thread blocks" if split == 1 else f"clusters of {split} thread blocks"
    claim = f"no dependence connects two {blocks}"
    if timed.is_empty():
        return Proof(claim, "grid")
    relation = isl.Map.from_union_map(timed)
    crossing = relation.subtract(isl.Map.identity(relation.get_space()))
    if crossing.is_empty():
        return Proof(claim, "grid")
    same = block.apply_range(block.reverse())
    pair = isl.sample_pair(dependences.subtract(same))
    raise IllegalSchedule(
        f"a dependence connects two thread blocks: {pair}",
        where="grid",
        why="thread blocks run in any order and at the same time",
        nearest=f"Change {field}: map only m and n to blocks",
    )
