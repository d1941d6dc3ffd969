"""A tile of one operand -> its ring, by all threads through registers, a word at a time."""

from __future__ import annotations

from polygen.emit.leaf.move_cp_async import (
    chunk_source,
    general_position,
    in_passes,
    positions,
    row_inside,
)
from polygen.emit.leaf.table import Text, leaf
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Copy

_WORD_BYTES = 4
_FEW = " 2"  # passes: where rows lie between zeros an address takes registers of its own


@leaf("move", "threads", Copy, ("k", "p"), needs=("words", "places"))
def _(plan: KernelPlan, one: Leaf, c: Copy) -> Text:
    elements = c.moved
    position, (rows, left) = general_position(plan, c)
    inside = row_inside(c, "from_row", "from_column")
    body = [
        *position,
        f"const int left = from_row < {rows}{inside} ? {left} : 0;",
        *_word(c, elements),
    ]
    if c.in_runs[1] and elements > 1:
        body = [*position[:-2], position[-1], *_scattered(plan, c, elements, rows)]
    few = _FEW if c.padded else ""
    return in_passes(plan, one, c, [], body, few)


def _word(c: Copy, elements: int) -> list[str]:
    """A word of narrow elements, each read if it is inside, and written to shared memory."""
    bits = 8 * c.element_bytes
    if c.element_bytes > _WORD_BYTES:
        return [
            "const double number = left > 0 ? __ldg(from) : 0.0;",
            "write_word(to, __double2loint(number));",
            f"write_word(to + {_WORD_BYTES}, __double2hiint(number));",
        ]
    if elements == 1:
        return ["write_word(to, left > 0 ? __float_as_uint(__ldg(from)) : 0);"]
    if elements == 2:
        lines = [
            "const unsigned low = left > 0 ? __ldg(from) : 0;",
            f"const unsigned high = left > 1 ? __ldg(from + {_elements(c, '1')}) : 0;",
        ]
        return [*lines, f"write_word(to, low | high << {bits});"]
    # Signed elements would smear their sign over the word.
    one = f"(unsigned)(unsigned char)__ldg(from + {_elements(c, 'e')})"
    return [
        "unsigned word = 0;",
        "#pragma unroll",
        f"for (int e = 0; e < {elements}; ++e)",
        f"  word |= (left > e ? {one} : 0) << e * {bits};",
        "write_word(to, word);",
    ]


def _scattered(plan: KernelPlan, c: Copy, elements: int, rows: str) -> list[str]:
    """A word of elements of which each lies where the digits of its own number say."""
    columns, bits = positions(plan, c)[3], 8 * c.element_bytes
    inside = row_inside(c, "from_row", "own_column")
    # Signed elements would smear their sign over the word.
    kind = "unsigned char" if c.element_bytes == 1 else "unsigned short"
    return [
        "unsigned word = 0;",
        "#pragma unroll",
        f"for (int e = 0; e < {elements}; ++e) {{",
        "  const int own_column = from_column + e;",
        f"  if (from_row < {rows} && own_column < {columns}{inside})",
        f"    word |= (unsigned)({kind})__ldg({chunk_source(c, 'from_row', 'own_column')}) "
        f"<< e * {bits};",
        "}",
        "write_word(to, word);",
    ]


def _elements(c: Copy, count: str) -> str:
    """From an element of a row to a later one."""
    return count if c.spread == "1" else f"{count} * {c.spread}"
