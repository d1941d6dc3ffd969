"""Fields that decide nothing in a kernel: a value that is asked for there is refused, not ignored.

Which fields a kernel reads follows from who multiplies in it: warps that do everything, consumers
of a producer, or lanes. Fields that only some programs give a meaning are documented as such in
schedules/README.md, with the others.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.schedule.model import Schedule, leaves

# Of kernels whose warps multiply what they have copied themselves.
_LOOPS = ("loops.mma", "loops.k", "loops.phases", "smem.swizzle")
_COPIES = ("pipeline.distance", "pipeline.order", "pipeline.copies", "pipeline.across")
_FRAGMENTS = ("pipeline.fragments", "pipeline.lookahead")
_ROLES = (
    "pipeline.in_flight", "pipeline.overlap", "pipeline.together", "roles.producer_registers",
    "roles.consumer_registers", "roles.turns", "launch.trigger",
)  # fmt: skip
# Of programs of one product; a chain's kernel is of tiles of rows, whose operands are arguments.
_NO_CHAINS = (
    "pipeline.across", "pipeline.overlap", "pipeline.together", "exchange", "roles.computes",
    "roles.turns", "cluster.share", "cluster.columns", "raster.run", "launch.realign",
    "launch.dependent", "launch.ahead",
)  # fmt: skip
_SHARED = ("cluster.share", "cluster.columns")  # of blocks that share sums
_USUAL = dict(leaves(Schedule()))


def idle(schedule: Schedule, *, chain: bool = False) -> list[str]:
    """The fields that are no default and decide nothing in the schedule's kernels.

    Args:
        schedule: the record.
        chain: whether they are of chains of products.
    """
    fields: tuple[str, ...] = _ROLES
    if schedule.specialised:  # the ring is kept full, by barriers that follow from it
        fields = _LOOPS + _COPIES
        fields += _FRAGMENTS[1:] if schedule.from_registers else _FRAGMENTS
        fields += () if schedule.in_turns else ("roles.turns",)
    elif schedule.without_rings:
        fields += (*_LOOPS, *_COPIES, "pipeline.stages")
        fields += _FRAGMENTS if schedule.of_elements else ()
    if not (schedule.specialised or schedule.by_lanes):
        fields += ("launch.ahead",)
    if not schedule.specialised and not schedule.makes_first:  # who computes is who multiplies
        fields += ("roles.computes",)
    if chain:
        fields += _NO_CHAINS
        fields += () if schedule.epilogue.through == "tma" else ("epilogue.columns",)
    asked = dict(leaves(schedule))
    return [name for name in fields if asked[name] != _USUAL[name]]


def not_shared(schedule: Schedule) -> str:
    """What a message says to write where blocks are not to share sums."""
    asked = dict(leaves(schedule))
    return "cluster.k = 1" + _without([name for name in _SHARED if asked[name] != _USUAL[name]])


def computed_by(schedule: Schedule, who: str) -> str:
    """What a message says to write where others are to compute operands.

    Args:
        schedule: with roles.
        who: "producer" or "before".
    """
    other = replace(schedule, roles=replace(schedule.roles, computes=who))
    gone = [name for name in idle(other) if name not in idle(schedule)]
    return f'roles.computes = "{who}"' + _without(gone)


def _without(names: list[str]) -> str:
    return f", without {' and '.join(names)}" if names else ""
