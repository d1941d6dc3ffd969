"""The next output tile of a persistent block."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Locate


@leaf("locate", "threads", Locate, ("i",))
def _(plan: KernelPlan, one: Leaf, work: Locate) -> Text:
    along, across, group, (rows, columns) = work.along, work.across, work.group, work.cluster
    band = f"({group} * tiles_{across})"
    lines = [
        "const int item = first + i * stride;",
        f"const int band = item / {band}, in_band = item - band * {band};",
        f"const int width = min({group}, tiles_{along} - band * {group});",
        f"b_{along} = band * {group} + in_band % width, b_{across} = in_band / width;",
    ]
    if rows * columns > 1:
        lines.append(f"b_m = b_m * {rows} + rank % {rows}, b_n = b_n * {columns} + rank / {rows};")
    comment = (
        f"{one.statement}[i]: the i-th output tile of this block. Groups of {group} along {along}."
    )
    return Text(block(*lines), comment, ("int b_m = 0, b_n = 0;",))
