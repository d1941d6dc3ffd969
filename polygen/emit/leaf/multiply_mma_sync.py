"""Sums of a warp: cleared, and one instruction added to them (``mma.sync``)."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Nothing, Product


@leaf("zero", "threads", Nothing)
def _(plan: KernelPlan, one: Leaf, work: Nothing) -> Text:
    count = plan.tiles.atoms[0] * plan.tiles.atoms[1] * plan.atom.c.registers
    loop = f"  for (int i = 0; i < {count}; ++i) (&sum[0][0][0])[i] = 0;"
    return Text(f"#pragma unroll\n{loop}")


@leaf("multiply", "mma.sync", Product, ("s", "m", "n"), needs=("mma", "words", "places"))
def _(plan: KernelPlan, one: Leaf, work: Product) -> Text:
    slot = f"s % {plan.schedule.pipeline.fragments}"
    return Text(
        block(f"multiply(sum[m][n], fragment_a[{slot}][m], fragment_b[{slot}][n]);"),
        f"{one.statement}[k,s,m,n]: sum[m][n] += a[m] * b[n], one {plan.atom.name}",
    )
