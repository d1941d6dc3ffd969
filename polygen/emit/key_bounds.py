"""Bounds of rows' keys that arrays hold, in C: the least and the greatest of a tile of rows.

Every warp finds them for itself, a lane for every so many rows, before its place begins. What has
no row, as the length of a sequence, is read once.
"""

from __future__ import annotations

from polygen.emit.leaves import extent_names, position
from polygen.lower.plan import KernelPlan
from polygen.poly.key_tiles import HIGHEST, LOWEST

# Of a side: its name, how bounds of one row combine, how those of rows do, and what is none.
_SIDES = {
    "lower": (LOWEST, "max", "min", "2147483647"),
    "upper": (HIGHEST, "min", "max", "-2147483647"),
}


def key_bounds(plan: KernelPlan) -> list[str]:
    """Declarations of both, as far as there are arrays."""
    lines: list[str] = []
    for side, (name, each, rows, nothing) in _SIDES.items():
        found = [(one, read) for one, read in plan.key_bounds if one.side == side]
        if not found:
            continue
        texts = [f"__ldg({position(read, 'row', '0')}) + {one.offset}" for one, read in found]
        own = texts[0]
        for text in texts[1:]:
            own = f"{each}({own}, {text})"
        if all(read.m_stride == "0" for _, read in found):
            lines.append(f"const int {name} = {own};")
            continue
        tile, warp = plan.tiles.cta[0], plan.device.warp_size
        end = f"min(b_m * {tile} + {tile}, {extent_names(plan)['m']})"
        lines += [
            f"int {name} = {nothing};",
            f"for (int row = b_m * {tile} + lane; row < {end}; row += {warp})",
            f"  {name} = {rows}({name}, {own});",
            "#pragma unroll",
            f"for (int mask = {warp // 2}; mask > 0; mask /= 2)",
            f"  {name} = {rows}({name}, __shfl_xor_sync(0xffffffffu, {name}, mask));",
        ]
    return lines
