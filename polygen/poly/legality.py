"""Legality: a schedule is accepted only if every dependence goes forward in time, for every size.

1. A schedule is a relation from instances to time. A dependence is broken if its target is not
   strictly later.
2. Thread blocks run in any order, so no dependence may connect two blocks.
3. What is broken is reported with the dependence, and one concrete pair of instances at the
   smallest size showing it.
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


def check_order(
    dependences: isl.UnionMap, time: isl.UnionMap, *, where: str, claim: str, field: str
) -> Proof:
    """Prove that every dependence goes strictly forward in `time`.

    Args:
        dependences: source instance -> target instance.
        time: instance -> time vector; all vectors have one length.
        where: what the tree is, for the message.
        claim: what is proved, in words.
        field: the schedule fields that decide the order, for the hint.

    Raises:
        IllegalSchedule: with the broken dependence and one concrete pair.
    """
    timed = dependences.apply_domain(time).apply_range(time)
    broken = _not_later(timed)
    if broken.is_empty():
        return Proof(claim, where)
    backward = isl.UnionMap.lex_ge_union_map(time, time)
    pair = isl.sample_pair(dependences.intersect(backward))
    raise IllegalSchedule(
        f"the schedule breaks a dependence: {pair}",
        where=where,
        why="the second instance needs what the first leaves behind, but is not scheduled after it",
        nearest=f"Change {field}",
    )


def _not_later(timed: isl.UnionMap) -> isl.UnionMap:
    """The part of a time relation that does not go strictly forward."""
    if timed.is_empty():
        return timed
    relation = isl.Map.from_union_map(timed)
    back = isl.Map.lex_ge(relation.get_space().domain())
    return isl.UnionMap.from_map(relation.intersect(back))


def check_blocks(dependences: isl.UnionMap, block: isl.UnionMap, field: str) -> Proof:
    """Prove that no dependence connects two thread blocks.

    Raises:
        IllegalSchedule: with one pair of instances in two blocks.
    """
    timed = dependences.apply_domain(block).apply_range(block)
    claim = "no dependence connects two thread blocks"
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
