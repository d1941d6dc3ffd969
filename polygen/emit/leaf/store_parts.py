"""A part of the keys: its sums and states -> the workspace, for the launch that combines parts."""

from __future__ import annotations

from polygen.emit.folds import array_text, extent_text
from polygen.emit.leaf.table import Text, leaf
from polygen.emit.leaves import extent_names, made_sums, plus
from polygen.lower.key_parts import part_row
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.scan_work import PartStore

_UNROLL = "#pragma unroll"


def _row(plan: KernelPlan, row: str) -> str:
    """The number of a row among those of all matrices, in 64 bits."""
    inside = f"(long long)matrix * {extent_names(plan)['m']} + {row}"
    return inside if plan.batches else f"(long long){row}"


@leaf("store_parts", "threads", PartStore, ("m",), needs=("scan",))
def _(plan: KernelPlan, one: Leaf, work: PartStore) -> Text:
    e, extents, elements = work.epilogue, extent_names(plan), plan.atom.c.of_thread
    pairs = isinstance(plan.match.n, int) and plan.match.n % 2 == 0
    halves = max(row for row, _ in elements) + 1
    second = next(o for o, (row, _) in zip(e.element_offsets, elements, strict=True) if row)
    stored = []
    for first in range(0, len(elements), 2):
        half, offset = elements[first]
        assert elements[first + 1] == (half, offset + 1)
        values = [f"{work.sums}[m][n][{first + at}]" for at in range(2)]
        inner = plus(f"{e.column_base} + n * {plan.atom.n} + {e.column_of_lane}", offset)
        stored.append((half, inner, values))
    whole = [*(extent for _, extent in plan.batches), plan.match.m]
    lines = [
        *(f"  {line}" for line in made_sums(plan, f"{work.sums}[m]")),
        f"  const long long fold_rows = {extent_text(whole)};",
        f"  float* const sums = {array_text(plan, work.total.value, 0)};",
    ]
    for half in range(halves):
        below = second[0] * half
        row = f"{e.row_base} + m * {plan.atom.m} + {plus(e.row_of_lane, below)}"
        lines += [
            f"  if (const int row = {row}; row < {extents['m']}) {{",
            f"    const long long at = {part_row(work.part, 'fold_rows', _row(plan, 'row'))};",
        ]
        if work.states:
            lines.append(f"    if ({e.column_of_lane} == 0) {{")
            lines += [
                f"      *({array_text(plan, parts.value, 0)} + at) = {state.register}[m][{half}];"
                for state, parts in work.states
            ]
            lines.append("    }")
        lines += [_UNROLL, f"    for (int n = 0; n < {plan.tiles.columns // plan.atom.n}; ++n) {{"]
        for own, inner, (left, right) in stored:
            if own != half:
                continue
            width = extents["n"]
            place = f"sums + at * {width} + column"
            lines.append(f"      const int column = {inner};")
            if pairs:
                lines.append(
                    f"      if (column < {width}) *reinterpret_cast<float2*>({place}) = "
                    f"make_float2({left}, {right});"
                )
            else:
                lines += [
                    f"      if (column < {width}) *({place}) = {left};",
                    f"      if (column + 1 < {width}) *({place} + 1) = {right};",
                ]
        lines += ["    }", "  }"]
    at = ",".join(one.loops)
    comment = f"{one.statement}[{at}]: sums and states of this part of the keys -> the workspace"
    return Text("\n".join(lines), comment)
