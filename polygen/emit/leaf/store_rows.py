"""The scratch area -> pointwise functions -> row vectors of results, by the lanes of each warp.

Where a whole vector lies inside the arrays, operands are read in words, a batch of rows at a time.
Operands that do not depend on the row are read once, before the sums are staged.
"""

from __future__ import annotations

from polygen.emit.leaf.elements import is_hoisted, read_vector, vector_record, word_count
from polygen.emit.leaf.table import Text, block, filled, leaf
from polygen.emit.leaves import areas, extent_names
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Epilogue
from polygen.lower.shares import Share

_QUAD = 4  # sums of one read of the scratch area


def _share(e: Epilogue) -> Share:
    """Which vectors of a warp's tile each lane has."""
    assert e.share is not None
    return e.share


@leaf("prepare", "threads", Epilogue)
def _(plan: KernelPlan, one: Leaf, e: Epilogue) -> Text:
    hoisted = [read for read in e.reads if is_hoisted(e, read)]
    lines = []
    if hoisted:
        vector, n_extent = e.vector, extent_names(plan)["n"]
        lane = _share(e).column.replace("item", "lane")  # the same for all items of a lane
        lines = [
            f"const int column = {e.column_base} + {lane};",
            f"if (column + {vector} > {n_extent}) return;",
            *(read_vector(read, read.name + "_words", e) for read in hoisted),
        ]
    return Text(
        block(*lines),
        f"{one.statement}: operands that are the same in every row",
        tuple(f"unsigned {read.name}_words[{word_count(read, e)}];" for read in hoisted),
    )


@leaf("store_rows", "threads", Epilogue, ("r",), needs=("words", "places"))
def _(plan: KernelPlan, one: Leaf, e: Epilogue) -> Text:
    scratch, extents = plan.buffer("scratch"), extent_names(plan)
    share = _share(e)
    record = vector_record(e) | {
        "area": f"shared + {scratch.offset} + warp * {scratch.owner_bytes}",
        "scratch": scratch.name,
        "sums": [
            {"name": f"{total}s", "area": area}
            for (_, total), area in zip(e.sums, areas(scratch, len(e.sums)), strict=True)
        ],
        "m_extent": extents["m"],
        "n_extent": extents["n"],
        "row_base": e.row_base,
        "column_base": e.column_base,
        "item": share.piece,
        "local_row": share.row,
        "local_column": share.column,
        "first": share.first,
        "end": share.end,
        "beyond": share.beyond,
        "parts": list(range(0, e.vector, _QUAD)),
    }
    comment = (
        f"{one.statement}[r]: scratch -> {e.batch} vector(s) of {e.vector} adjacent results "
        "per lane"
    )
    return Text(filled("store_rows_threads", record), comment)
