"""The pages in which the next tile's keys lie: a table -> registers of whoever copies them."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import size_name
from polygen.emit.names import c_name
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import FindPages


@leaf("find_pages", "threads", FindPages, ("k",), needs=("page_at",))
def _(plan: KernelPlan, one: Leaf, work: FindPages) -> Text:
    start = " + ".join([c_name(work.table.name), *work.base])
    lines = [f"const int* const row = {start};"]
    count, extent = size_name(work.count), size_name(work.extent)
    for number, place in enumerate(work.places):
        step = f"({place}) * {work.step}" if work.step not in ("0", "1") else place
        at = f"row + {step}" if work.step != "0" else "row"
        lines.append(f"{work.registers}[{number}] = page_at({at}, {place} < {count}, {extent});")
    return Text(
        block(*lines),
        f"{one.statement}[{','.join(one.loops)}]: {work.note}",
        (f"int {work.registers}[{len(work.places)}];",),
    )
