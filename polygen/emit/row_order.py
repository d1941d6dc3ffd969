"""In which order blocks take tiles of rows, in C; proved in `polygen.poly.row_order`."""

from __future__ import annotations

from polygen.emit.leaves import matrix_coordinates, size_name
from polygen.lower.plan import KernelPlan
from polygen.poly.raster import rows_of_range
from polygen.poly.row_order import (
    BEHIND,
    BLOCKS,
    LEFT,
    MATRICES,
    OWN,
    REST,
    ROWS,
    TAKEN,
    WHOLE,
    end,
    last_matrices,
    of_last,
    places,
)
from polygen.schedule.model import LONGEST

_ONE = "// A block has one tile of rows,"


def one_tile(plan: KernelPlan) -> list[str]:
    """Which tile of rows a block has that has one alone."""
    first = rows_of_range("blockIdx.y", "gridDim.y")
    matrix = matrix_coordinates(plan.batches)
    if plan.schedule.raster.order != LONGEST or not matrix:
        lines = [
            f"{_ONE} the last of a matrix first: those have the most keys.",
            f"const int b_m = {first}, b_n = 0, tiles = 1;",
        ]
        return [*lines, f"const int matrix = blockIdx.z, {', '.join(matrix)};"] if matrix else lines
    at_once = str(plan.device.multiprocessors * plan.schedule.min_blocks)
    rows, which = of_last("together")
    return [
        f"{_ONE} the last of a matrix first: those have the most keys.",
        "// Tiles of the last few matrices are taken together.",
        f"const int {ROWS} = gridDim.y, {MATRICES} = gridDim.z;",
        f"const int {LEFT} = {last_matrices(at_once)};",
        f"const int before = {MATRICES} - {LEFT}, place = blockIdx.y, own = blockIdx.z;",
        f"const int together = (own - before) * {ROWS} + place;",
        f"const int b_m = own < before ? {rows_of_range('place', ROWS)} : {rows};",
        "const int b_n = 0, tiles = 1;",
        f"const int matrix = own < before ? own : before + {which}, {', '.join(matrix)};",
    ]


def of_persistent(plan: KernelPlan) -> list[str]:
    """How many tiles of rows a persistent block has, and where they are."""
    rows, tile = size_name(plan.match.m), plan.tiles.cta[0]
    matrices = " * ".join(size_name(extent) for extent in plan.launch.batches) or "1"
    forwards, backwards = places()
    return [
        f"const int {ROWS} = ({rows} + {tile - 1}) / {tile}, {MATRICES} = {matrices};",
        f"const int {OWN} = blockIdx.x, {BLOCKS} = gridDim.x;",
        "// Tiles of two matrices are in pairs that have as many keys as each other, but for those",
        "// of the last few matrices, which are taken together, in rounds of one for each block.",
        f"const int paired = ({MATRICES} - {last_matrices(BLOCKS)}) / 2 * 2;",
        f"const int {LEFT} = {MATRICES} - paired, pairs = paired / 2 * {ROWS};",
        f"const int {TAKEN} = pairs % {BLOCKS}, {BEHIND} = {OWN} < {TAKEN};",
        f"const int in_pairs = 2 * (pairs / {BLOCKS} + {BEHIND});",
        f"const int places = {LEFT} * {ROWS} + {TAKEN};",
        f"const int {WHOLE} = places / {BLOCKS}, {REST} = places % {BLOCKS};",
        f"const int last_place = {WHOLE} % 2 ? {backwards} : {forwards};",
        f"const int tiles = in_pairs + {end('last_place')} - {BEHIND};",
    ]
