"""Dot products by lanes: chunks of rows into registers, products, sums folded."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import c_type, extent_names, real_of, scaled, size_name
from polygen.emit.names import c_name
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Epilogue
from polygen.lower.work import Product, Stream


@leaf("load", "lanes", Stream, ("k", "s"), needs=("dots",))
def _(plan: KernelPlan, one: Leaf, work: Stream) -> Text:
    copy, slot = work.copy, f"fragment_{work.operand}[s % {work.slots}]"
    count, each = _count(plan, work), plan.atom.k // plan.atom.lanes
    extent, depth = (size_name(one) for one in copy.extents)
    rows, kind = f"rows_{work.operand}", c_type(copy.tensor.dtype)
    kept = "" if plan.launch.dependent else " const"
    starts = []
    for i in range(count):
        row = f"min({work.first} + {i}, {extent} - 1)"
        terms = [c_name(copy.tensor.name), *copy.base]
        terms += [] if copy.stride == "0" else [scaled(row, copy.stride)]
        starts.append(" + ".join([*terms, f"lane * {each}"]))
    return Text(
        block(
            f"const int first = k * {copy.tile_k} + s * {plan.atom.k};",
            f"const bool inside = first + lane * {each} < {depth};",
        )
        + "\n#pragma unroll\n"
        + block(
            f"for (int i = 0; i < {count}; ++i) "
            f"{chunk_read(work)}({slot}[i], {rows}[i] + first, inside);"
        ),
        f"{one.statement}[k,s]: a chunk of each of {count} row(s) of {copy.tensor.name} for "
        "every lane, zeros behind their ends",
        (
            f"const {kind}*{kept} {rows}[{count}] = {{",
            *(f"  {start}," for start in starts),
            "};",
        ),
    )


def _count(plan: KernelPlan, work: Stream) -> int:
    """Rows of a warp."""
    return plan.tiles.warp["mn".index(work.role)]


def row_starts(plan: KernelPlan) -> list[str]:
    """The variables with the addresses of rows, of all operands; none but where lanes multiply."""
    return [f"rows_{one.operand}[{i}]" for one in plan.of(Stream) for i in range(_count(plan, one))]


def chunk_read(work: Stream) -> str:
    """The name of the wrapper that reads a chunk."""
    return "chunk_read_once" if work.once else "chunk_read"


@leaf("multiply", "dot", Product, ("s", "m", "n"), needs=("dots",))
def _(plan: KernelPlan, one: Leaf, work: Product) -> Text:
    slots = {stream.operand: stream.slots for stream in plan.of(Stream)}
    left, right = (
        f"fragment_{name}[s % {slots[name]}][{at}]"
        for name, at in zip(work.operands, "mn", strict=True)
    )
    return Text(
        block(f"add_products({work.total}[m][n], {left}, {right});"),
        f"{one.statement}[k,s,m,n]: the lane's part of {work.total}[m][n] += its products",
    )


@leaf("store", "lanes", Epilogue, ("m",), needs=("dots",))
def _(plan: KernelPlan, one: Leaf, e: Epilogue) -> Text:
    extents, columns, real = extent_names(plan), plan.tiles.atoms[1], real_of(plan)
    totals = [total for _, total in e.sums]
    lines = [f"{real} own_{total} = 0;" for total in totals]
    folded = [f"for (int n = 0; n < {columns}; ++n) {{"]
    for total in totals:
        folded.append(f"  const {real} whole_{total} = sum_of_lanes({total}[m][n][0]);")
        folded.append(f"  if (lane == n) own_{total} = whole_{total};")
    folded.append("}")
    last = [
        f"const int row = {e.row_base} + m, column = {e.column_base} + lane;",
        f"if (lane < {columns} && row < {extents['m']} && column < {extents['n']}) "
        f"finish_element(row, column, 0, {', '.join(f'own_{total}' for total in totals)});",
    ]
    return Text(
        "\n".join([block(*lines), "#pragma unroll", block(*folded), block(*last)]),
        f"{one.statement}[m]: parts -> one sum, a result for each of {columns} lane(s)",
    )
