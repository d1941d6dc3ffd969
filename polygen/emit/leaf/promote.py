"""Sums in blocks of k: factors -> registers, and inner sums, multiplied by them, -> sums."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import scaled, size_name
from polygen.emit.names import c_name
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.promoting import Factor, Promote


@leaf("read_scales", "threads", Promote, ("k",))
def _(plan: KernelPlan, one: Leaf, work: Promote) -> Text:
    rows = [factor for factor in work.factors if factor.side != "n"]
    columns = [factor for factor in work.factors if factor.side == "n"]
    lines = [f"const int k_of_all = k * {work.tile[2]};"] if work.factors else []
    lines += _numbers(work, "row", rows, work.row_numbers, work.row_of("n"), 0)
    declared = [f"{work.scales}_row[{work.row_numbers}]"]
    if columns:
        count = work.column_numbers
        lines += _numbers(work, "column", columns, count, work.column_of("n"), 1)
        declared.append(f"{work.scales}_column[{count}]")
    return Text(
        block(*lines),
        f"{one.statement}[i,k]: what multiplies the sum of the next {work.block} of k -> registers",
        (f"float {', '.join(declared)};",),
    )


def _numbers(
    work: Promote, side: str, factors: list[Factor], count: int, at: str, axis: int
) -> list[str]:
    """The numbers of a thread's rows or columns: the products of all factors that go with them."""
    to = f"{work.scales}_{side}[n]"
    product = " * ".join(_read(factor) for factor in factors) or "1.0f"
    return [
        "#pragma unroll",
        f"for (int n = 0; n < {count}; ++n) {{",
        *(
            [f"  const int at = min({at}, {size_name(work.extents[axis])} - 1);"]
            if any(factor.side for factor in factors)
            else []
        ),
        f"  {to} = {product};",
        "}",
    ]


def _read(factor: Factor) -> str:
    """One element of a factor as a float."""
    tensor = factor.tensor
    if not tensor.dims:
        return c_name(tensor.name)
    places = (("at", factor.per[0], factor.step), ("k_of_all", factor.per[1], factor.k_step))
    parts = [
        scaled(name if per == 1 else f"({name} / {per})", step)
        for name, per, step in places
        if step != "0"
    ]
    return f"from_{tensor.dtype}(__ldg({' + '.join([c_name(tensor.name), *factor.base, *parts])}))"


@leaf("promote", "threads", Promote, ("k", "m"))
def _(plan: KernelPlan, one: Leaf, work: Promote) -> Text:
    added = []
    for first in (True, False):
        added += [
            "#pragma unroll",
            f"  for (int j = 0; j < {work.groups}; ++j) {{",
            *(f"    {line}" for line in _promoted(work, first=first)),
            "  }",
        ]
    half = len(added) // 2
    return Text(
        block(
            f"if (k < {work.tiles}) {{  // the first block of a sum",
            *added[:half],
            "} else {",
            *added[half:],
            "}",
        ),
        f"{one.statement}[i,k,m]: {work.total}[m] += the block's factors * {work.inner}[m]",
    )


def _promoted(work: Promote, *, first: bool) -> list[str]:
    """The elements of group `j`: overwritten by the first block, added to by all others."""
    found = []
    for element in range(len(work.offsets)):
        factor = f"{work.scales}_row[{work.row_number(element)}]"
        if work.column_numbers:
            factor += f" * {work.scales}_column[{work.column_number(element)}]"
        inner, total = (f"{name}[m][j][{element}]" for name in (work.inner, work.total))
        found.append(
            f"{total} = {factor} * {inner};"
            if first
            else f"{total} = fmaf({factor}, {inner}, {total});"
        )
    return found
