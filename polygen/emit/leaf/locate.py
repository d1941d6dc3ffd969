"""The next output tile of a persistent block."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import matrix_coordinates
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Locate


@leaf("locate", "threads", Locate, ("i",))
def _(plan: KernelPlan, one: Leaf, work: Locate) -> Text:
    along, across, group, (rows, columns) = work.along, work.across, work.group, work.cluster
    band = f"({group} * tiles_{across})"
    per_matrix = f"(tiles_{along} * tiles_{across})"
    lines = ["const int item = first + i * stride;"]
    if work.batches:
        lines = [
            f"const int work = first + i * stride, matrix = work / {per_matrix};",
            f"const int item = work - matrix * {per_matrix};",
            f"{', '.join(matrix_coordinates(work.batches))};",
        ]
    lines += [
        f"const int band = item / {band}, in_band = item - band * {band};",
        f"const int width = min({group}, tiles_{along} - band * {group});",
        f"b_{along} = band * {group} + in_band % width, b_{across} = in_band / width;",
    ]
    if rows * columns > 1:
        lines.append(f"b_m = b_m * {rows} + rank % {rows}, b_n = b_n * {columns} + rank / {rows};")
    comment = (
        f"{one.statement}[i]: the i-th output tile of this block. Groups of {group} along {along}."
    )
    names = ["b_m", "b_n", *(name for name, _ in work.batches)]
    return Text(block(*lines), comment, (f"int {', '.join(f'{name} = 0' for name in names)};",))
