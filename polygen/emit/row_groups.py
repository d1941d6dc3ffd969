"""The walk over groups of rows in C: which group a tile is of, and where its rows are.

Every place walks the same table alike: `ends`, group by group, with the tiles of each numbered
through. All formulas of the walk are those that `polygen.poly.row_groups` proves.
"""

from __future__ import annotations

from typing import Any

from polygen.emit.ctext import assigned
from polygen.emit.leaves import size_name
from polygen.emit.names import c_name
from polygen.lower.accesses import ROWS_BEFORE, ROWS_OF_GROUP
from polygen.lower.plan import KernelPlan
from polygen.poly.match import RowGroups
from polygen.poly.row_groups import divided

_WALK = "groups"


def group_parts(plan: KernelPlan) -> dict[str, Any]:
    """What the walk of a kernel needs; nothing where rows are in no groups."""
    walk = plan.group_walk
    if walk is None:
        return {}
    return {
        "next": [assigned(name, _divided(to)) for name, to in walk.next],
        "beyond": walk.beyond,
        "last": walk.last,
        "lanes": walk.lanes,
        "own_end": walk.own_end,
        "own_tiles": _divided(walk.own_tiles),
        "found": walk.found,
        "together": walk.together,
        "shifts": walk.shifts,
        "carry": walk.carry,
    }


def _divided(text: str) -> str:
    return divided(text, "({}) / tile")


def declared() -> str:
    """The walk, in front of the first group."""
    return f"RowGroups {_WALK};"


def of_group(groups: RowGroups) -> dict[str, str]:
    """What the rest of a kernel knows of a tile's group: names, and what they are in the walk."""
    return {
        groups.dim: f"{_WALK}.group",
        ROWS_BEFORE: f"{_WALK}.before",
        ROWS_OF_GROUP: f"{_WALK}.rows",
    }


def find(plan: KernelPlan, groups: RowGroups, blocks: int, tile: str, how: str = "find") -> str:
    """The call that goes on to the group of a row of tiles.

    Args:
        plan: the kernel.
        groups: of rows.
        blocks: of a cluster below one another, whose tiles count as one.
        tile: its number.
        how: "find", by every thread from the group where it is; or "find_together", by whole warps
            from the first group on.
    """
    return f"{_WALK}.{how}({_table(plan, groups, blocks)}, {tile})"


def count(plan: KernelPlan, groups: RowGroups, blocks: int) -> str:
    """How many rows of tiles there are in all groups."""
    return f"RowGroups().all_tiles({_table(plan, groups, blocks)})"


def _table(plan: KernelPlan, groups: RowGroups, blocks: int) -> str:
    rows, tile = size_name(plan.match.m), plan.tiles.cta[0] * blocks
    return f"{c_name(groups.ends)}, {size_name(groups.extent)}, {rows}, {tile}"
