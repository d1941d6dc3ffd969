"""Sums of a warp: cleared, and one instruction added to them (``mma.sync``)."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Clear, Product


@leaf("zero", "threads", Clear)
def _(plan: KernelPlan, one: Leaf, work: Clear) -> Text:
    wide = work.columns // plan.atom.n or plan.tiles.atoms[1]
    count = plan.tiles.atoms[0] * wide * plan.atom.c.variables
    cleared = " = ".join(f"(&{total}[0][0][0])[i]" for total in work.totals)
    return Text(f"#pragma unroll\n  for (int i = 0; i < {count}; ++i) {cleared} = 0;")


@leaf("multiply", "mma.sync", Product, ("s", "m", "n"), needs=("mma", "words", "places"))
def _(plan: KernelPlan, one: Leaf, work: Product) -> Text:
    slot, total, (a, b) = f"s % {plan.schedule.pipeline.fragments}", work.total, work.operands
    left = work.fragment or f"fragment_{a}[{slot}][m]"
    of = f"{work.fragment.partition('[')[0] or a}[m]"
    return Text(
        block(f"multiply({total}[m][n], {left}, fragment_{b}[{slot}][n]);"),
        f"{one.statement}[k,s,m,n]: {total}[m][n] += {of} * {b}[n], one {plan.atom.name}",
    )
