"""The next tile of rows of a persistent block, in the order of `polygen.poly.row_order`."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import matrix_coordinates
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import LocateRows
from polygen.poly.key_tiles import COUNT, FIRST
from polygen.poly.row_order import BEHIND, BLOCKS, OWN, ROWS, number, of_last, of_pair, places


@leaf("locate_rows", "threads", LocateRows, ("i",))
def _(plan: KernelPlan, one: Leaf, work: LocateRows) -> Text:
    of_first, of_second = of_pair("place")
    forwards, backwards = places()
    rows, which = of_last("together")
    matrix = matrix_coordinates(work.batches)
    lines = [
        "int matrix;",
        "if (i < in_pairs) {",
        f"  const int pair = i / 2 * {BLOCKS} + {OWN}, place = pair % {ROWS};",
        f"  matrix = pair / {ROWS} * 2 + i % 2;",
        f"  b_m = i % 2 ? {of_second} : {of_first};",
        "} else {",
        f"  const int lap = i - in_pairs + {BEHIND}, at = lap % 2 ? {backwards} : {forwards};",
        f"  const int together = {number('lap', 'at')};",
        f"  matrix = paired + {which};",
        f"  b_m = {rows};",
        "}",
        *([f"{', '.join(matrix)};"] if matrix else []),
        f"{FIRST} = {work.first};",
        f"{COUNT} = {work.count};",
    ]
    names = ["b_m", *(name for name, _ in work.batches), FIRST, COUNT]
    comment = f"{one.statement}[i]: the i-th tile of rows of this block, and its tiles of keys"
    declared = f"int {', '.join(f'{name} = 0' for name in names)};"
    return Text(block(*lines), comment, ("const int b_n = 0;", declared))
