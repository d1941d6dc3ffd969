"""Which tiles have products, in C: how many, and the walk that finds them before the others.

All formulas of the walk are those that `polygen.poly.tile_walk` proves, in whatever order its steps
are made; the template makes them in the order of the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polygen.emit.ctext import assigned
from polygen.lower.plan import KernelPlan
from polygen.lower.work import Locate
from polygen.poly.half_planes import said
from polygen.poly.tile_domain import TileDomain
from polygen.poly.tile_program import INSIDE

WALK = "domain"
# Tiles with products of one matrix, and of all matrices.
TILES, ITEMS = "domain_tiles", "domain_items"


def walk_parts(plan: KernelPlan) -> dict[str, Any]:
    """What the walk over the tiles of a kernel needs; nothing where all have products."""
    walk = next((locate.walk for locate in plan.of(Locate)), None)
    if walk is None:
        return {}
    known, divided = walk.lower
    condition, below, above = walk.tile_other
    return {
        "dim": walk.dim,
        "lower": f"{known} ? {' : '.join(_divided(*one) for one in divided)}",
        "begin": walk.begin(_quotient),
        "end": walk.end(_quotient),
        "crossed": [f"if ({one} < 0) end = begin;" for one in walk.crossed],
        "tiles": f"others ? {walk.others} : {walk.inside}",
        "tile_inside": walk.tile_inside,
        "tile_other": f"{condition} ? {below} : {above}",
        "again": walk.again,
        "next_group": f"{assigned('column', walk.next_column)}, {assigned('low', walk.next_low)}",
        "high": walk.high,
        "passes": [
            {"columns": one.columns, "within": one.within, "step": assigned("column", one.to)}
            for one in walk.passes
        ],
        "lanes": walk.lanes,
    }


def _divided(sign: str, number: str) -> str:
    """A quotient as C rounds it, with its sign."""
    text = number if number.isidentifier() else f"({number})"
    return f"{sign}({text} / by)" if sign else f"{text} / by"


def alone(plan: KernelPlan) -> list[str]:
    """Whether the tile of a block that has one has products, as a declaration."""
    domain = plan.tile_domain
    if domain is None:
        return []
    return [f"const int {INSIDE} = {domain.has_text('b_m', 'b_n')};  // {_which(domain)}"]


def counted(plan: KernelPlan, matrices: str) -> list[str]:
    """How many tiles of all there are have products, as declarations.

    Args:
        plan: the kernel.
        matrices: what the tiles of one matrix are multiplied by.
    """
    domain, along = plan.tile_domain, plan.schedule.raster.along
    if domain is None:
        return []
    across = "n" if along == "m" else "m"
    return [
        f"// Those with products come before the others: {_which(domain)}.",
        f"const int {TILES} = tiles_with_products(tiles_{along}, tiles_{across});",
        f"const int {ITEMS} = {TILES}{matrices};",
    ]


def of_block(plan: KernelPlan) -> list[str]:
    """How many tiles of a persistent block have products, as a declaration."""
    if plan.tile_domain is None:
        return []
    return [f"const int {INSIDE} = ({ITEMS} - first + stride - 1) / stride;"]


def found(along: str, across: str, group: int, batches: Sequence[str]) -> list[str]:
    """The lines that find the tile of a work item.

    Args:
        along: the dim along which tiles are in groups.
        across: the other.
        group: tiles of a group.
        batches: where `matrix` lies along each batch dim, as assignments.
    """
    lines = [
        "const int work = first + i * stride;",
        f"const bool others = i >= {INSIDE};",
        f"int start = others ? {ITEMS} : 0;",
    ]
    if batches:
        each = f"tiles_{along} * tiles_{across} - {TILES}"
        lines += [
            f"const int of_matrix = others ? {each} : {TILES};",
            "const int matrix = (work - start) / of_matrix;",
            "start += matrix * of_matrix;",
            f"{', '.join(batches)};",
        ]
    call = f"{WALK}.find(work, start, others, tiles_{along}, tiles_{across}, {group})"
    return [*lines, f"b_{along} = {call}, b_{across} = {WALK}.column;"]


def _which(domain: TileDomain) -> str:
    return f"tiles that meet {said(domain.elements)}"


def _quotient(text: str, by: int) -> str:
    return text if by == 1 else f"lower_quotient({text}, {by})"
