"""Sums in blocks of k: factors -> registers, and inner sums, multiplied by them, -> sums."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import extent_names, scaled, set_of, size_name
from polygen.emit.names import c_name
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.promoting import Factor, Promote


@leaf("read_scales", "threads", Promote, ("k",))
def _(plan: KernelPlan, one: Leaf, work: Promote) -> Text:
    lines, declared = [f"const int k_of_all = k * {work.tile[2]};"], []
    ends = [size_name(extent) for extent in work.extents]
    if plan.match.groups:  # behind the last row of a group is another's, or nothing
        ends[0] = extent_names(plan)["m"]
    for side, count, first, end in (
        ("row", work.row_numbers, work.row_of("n"), ends[0]),
        ("column", work.column_numbers, work.column_of("n"), ends[1]),
    ):
        if count:
            declared.append(f"{work.scales}_{side}[{count}]")
            lines += [
                "#pragma unroll",
                f"for (int n = 0; n < {count}; ++n) {{",
                f"  const int at = min({first}, {end} - 1);",
                f"  {work.scales}_{side}[n] = {_product(work, 'mn'[side == 'column'])};",
                "}",
            ]
    if work.of_side(""):
        declared.append(f"{work.scales}_all")
        lines.append(f"{work.scales}_all = {_product(work, '')};")
    return Text(
        block(*lines),
        f"{one.statement}[{','.join(one.loops)}]: what multiplies the sum of the next {work.block} "
        "of k -> registers",
        (f"float {', '.join(declared)};",),
    )


def _product(work: Promote, side: str) -> str:
    """The number of a row, a column, or of all of them: the product of the factors."""
    return " * ".join(_read(factor) for factor in work.of_side(side))


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


@leaf("promote", "threads", Promote, ("k", "m"), ("k",))
def _(plan: KernelPlan, one: Leaf, work: Promote) -> Text:
    clear = " = ".join(f"{work.total}[m][j][{element}]" for element in range(len(work.offsets)))
    lines = [
        f"if (k < {work.tiles}) {{  // the first block of a sum: -0 + x is x, and -0 where x is",
        "#pragma unroll",
        f"  for (int j = 0; j < {work.groups}; ++j) {clear} = -0.0f;",
        '  asm volatile("");  // a branch: nothing is selected, or moved, in other blocks',
        "}",
        "#pragma unroll",
        f"for (int j = 0; j < {work.groups}; ++j) {{",
        *(f"  {line}" for line in _promoted(work)),
        "}",
    ]
    by = "the block's factors * " if work.factors else ""
    if "m" not in one.loops:
        rows = ["#pragma unroll", f"for (int m = 0; m < {work.instructions}; ++m) {{"]
        lines = [*rows, *(f"  {line}" for line in lines), "}"]
    return Text(
        block(*lines),
        f"{one.statement}[{','.join(one.loops)}]: {work.total}[m] += {by}{work.inner}[m]",
    )


def _promoted(work: Promote) -> list[str]:
    """The elements of group `j`, added to."""
    found = []
    for element in range(len(work.offsets)):
        numbers = []
        if work.row_numbers:
            numbers.append(f"{work.scales}_row[{work.row_number(element)}]")
        if work.column_numbers:
            numbers.append(f"{work.scales}_column[{work.column_number(element)}]")
        if work.of_side(""):
            numbers.append(f"{work.scales}_all")
        factor = " * ".join(numbers)
        inner = f"{work.inner}{set_of(work.sets)}[m][j][{element}]"
        total = f"{work.total}[m][j][{element}]"
        more = f"fmaf({factor}, {inner}, {total})" if factor else f"{total} + {inner}"
        found.append(f"{total} = {more};")
    return found
