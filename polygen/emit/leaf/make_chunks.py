"""The launch before a kernel: chunks of an operand that it makes.

A lane reads what all of its chunks are computed from, then computes and stores one after another:
so many reads are on their way at once. At the end of a row chunks are read one by one, whole where
they are whole, else what is left of them: nothing outside of an array is read.
"""

from __future__ import annotations

from polygen.emit.leaf.computed_chunk import makes, reads
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import size_name
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.realign_work import RowMake
from polygen.lower.work import Load
from polygen.poly.realign_program import CHUNK, CHUNKS, FIRST, RealignShape


@leaf("make_chunks", "threads", RowMake, (CHUNK,), needs=("store_computed",))
def _(plan: KernelPlan, one: Leaf, work: RowMake) -> Text:
    of, shape = work.computed, work.shape
    assert isinstance(shape, RealignShape)
    length = size_name(work.length)
    each = ["#pragma unroll", f"for (int u = 0; u < {shape.together}; ++u) {{"]
    own = [f"  const int own = {shape.own}, from_column = own * {of.elements};"]
    whole = reads(of, "held[u]", "row", "from_column")
    parts = [
        f"const int left = {length} - from_column;",
        f"if (left >= {of.elements}) {{",
        *_deeper(whole),
        "} else if (left > 0) {",
        *_deeper(reads(of, "held[u]", "row", "from_column", "left")),
        "}",
    ]
    made = made_chunk(plan, work, "held[u]", f"{length} - from_column")
    lines = [
        f"unsigned held[{shape.together}][{max(of.words, 1)}] = {{}};",
        f"if ({FIRST} + {CHUNK} + {shape.step} <= {length} / {of.elements}) {{",
        *_deeper([*each, *own, *_deeper(whole), "}"]),
        "} else {",
        *_deeper([*each, *own, *_deeper(parts), "}"]),
        "}",
        *each,
        *own,
        f"  if (own < {CHUNKS}) {{",
        *_deeper(_deeper(made)),
        "  }",
        "}",
    ]
    note = (
        f"{one.statement}: {shape.together} chunks of each lane of {work.tensor.name}, from "
        f"{CHUNK}, computed; zeros behind the end of a row"
    )
    return Text(block(*lines), note)


def made_chunk(plan: KernelPlan, work: RowMake, words: str, left: str) -> list[str]:
    """Lines that compute and store chunk `own` of a row.

    Args:
        plan: the kernel.
        work: the operand.
        words: that hold what is read for it.
        left: elements of the row from the chunk's first one on.
    """
    return makes(
        work.computed, words, "row", "from_column", f"to + own * {work.shape.size}LL",
        left, rounded=rounded(plan), write="store_computed",
    )  # fmt: skip


def rounded(plan: KernelPlan) -> bool:
    """Whether tf32 is rounded where it is made: no load of fragments does."""
    return not any(load.round_to_tf32 for load in plan.of(Load))


def _deeper(lines: list[str]) -> list[str]:
    return [line if line.startswith("#") else f"  {line}" for line in lines]
