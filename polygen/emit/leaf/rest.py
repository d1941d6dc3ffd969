"""Sums of one product -> the left operand of the next, in the registers where they are.

A thread's sums of a group of columns, in pairs, are the registers of its own operand
(`polygen.lower.carried`). Columns behind the last, which tiles have for the instruction's sake, are
zero whatever the statements make of zero.
"""

from __future__ import annotations

from polygen.emit.ctext import pointwise
from polygen.emit.leaf.table import Text, leaf
from polygen.emit.leaves import plus
from polygen.emit.names import c_name
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.rest_work import Convert

_UNROLL = "#pragma unroll"
_MADE = "made_of_sum"  # the function of one sum


def _lines(work: Convert) -> tuple[list[str], tuple[str, ...]]:
    """The statements on one sum, and the helper files that they need."""
    names = {work.value: "sum_of"} | {one.name: c_name(one.tensor.name) for one in work.reads}
    outputs = {work.statements[-1].result: "result"}
    return pointwise(work.statements, names, outputs, fast=True)


def rest_helpers(plan: KernelPlan) -> list[str]:
    """Helper files of all that is between products that share sums."""
    return [name for work in plan.of(Convert) for name in _lines(work)[1]]


@leaf("convert", "registers", Convert, needs=("scan", "pack"))
def _(plan: KernelPlan, one: Leaf, work: Convert) -> Text:
    steps, first = len(work.registers), work.registers[0]
    per_step = plan.atom.k // plan.atom.n
    padded = steps * per_step > work.groups
    body = []
    for register, (group, element) in enumerate(first):
        at = plus(f"s * {per_step}", group)
        pair = ", ".join(f"{_MADE}({work.total}[m][{at}][{element + e}])" for e in range(2))
        value = f"pack_{work.dtype}({pair})"
        if padded:
            value = f"{at} < {work.groups} ? {value} : 0u"
        body.append(f"    {work.fragment}[m][s][{register}] = {value};")
    lines = [
        _UNROLL,
        f"  for (int m = 0; m < {work.rows}; ++m) {{",
        f"    made({work.total}[m]);",
        _UNROLL,
        f"    for (int s = 0; s < {steps}; ++s) {{",
        *(f"  {line}" for line in body),
        "    }",
        "  }",
    ]
    declared = [
        f"unsigned {work.fragment}[{work.rows}][{steps}][{len(first)}];",
        f"auto {_MADE} = [&](float sum_of) __attribute__((always_inline)) {{",
        "  float result;",
        *(f"  {line}" for line in _lines(work)[0]),
        "  return result;",
        "};",
    ]
    comment = (
        f"{one.statement}[i]: {work.total} -> the operand of the product that goes on with the "
        "sums, proved to be in the registers of the same thread"
    )
    return Text("\n".join(lines), comment, tuple(declared))
