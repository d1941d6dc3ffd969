"""Lines of panels that begin anywhere: by chunks of the array, which are shifted on their way."""

from __future__ import annotations

from polygen.emit.leaf.line_text import edges, element_type, panel_start, source, stored
from polygen.emit.leaf.shifting import shift_words
from polygen.emit.leaves import position
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.plan import KernelPlan
from polygen.lower.realign_work import WORD
from polygen.lower.result_work import Line
from polygen.poly.realign_program import SOURCES

# Where portions are is computed anew: to keep it would take registers that reads need.
_ANEW = '  asm volatile("" : "+r"(j));'
_LETTERS = "xyzw"  # the words of a chunk in a register of four
_WORDS = ", ".join(f"words[{at}]" for at in range(chunk_bytes() // WORD))


def store_shifted(plan: KernelPlan, line: Line) -> list[str]:
    """Chunks of the array, then elements in front of the first and behind the last."""
    name, size, by, of = line.panel.name, line.panel.element_bytes, line.shifted, line.access
    assert by is not None
    element, ends = element_type(size), by.ends
    row_inside, _, left = edges(plan, line, f"{name}_column")
    named, known = stored(line, row_inside)
    inside = " && ".join([*known, row_inside])
    begin = [
        f"  const int to_row = {name}_row + row, to_column = {name}_column;",
        *named,
        f"  {element}* const to = ({element}*)({position(of, 'to_row', 'to_column')});",
        f"  const int head = (unsigned)(-(unsigned long long)to % {chunk_bytes()}) / {size};",
    ]
    at, beside = (f"{name}_at + {line.place.replace('column', c)}" for c in ("column", "beside"))
    words = ", ".join(f"{part}.{letter}" for part in ("low", "high") for letter in _LETTERS)
    return [
        *panel_start(plan, line),
        f"const int left = min({left}, {by.columns});",
        "#pragma unroll",
        f"for (int i = {line.share.first}; i < {line.share.end}; ++i) {{",
        f"  const int row = {line.share.row}, column = {line.share.column};",
        *begin,
        f"  const int first = {by.stored}, beside = {by.beside};",
        f"  if ({inside} && {by.whole}) {{",
        f"    const uint4 low = read_portion<uint4>({at}), high = read_portion<uint4>({beside});",
        f"    const unsigned from[] = {{{words}}};",
        *(f"    {text}" for text in shift_words(by.shifts, "from", f"head * {size}")),
        f"    *(uint4*)(to + first) = make_uint4({_WORDS});",
        "  }",
        "}",
        f"for (int lap = 0; lap < (left < {by.columns} ? {SOURCES} : 1); ++lap)",
        "#pragma unroll 4",
        f"for (int i = {ends.first}; i < {ends.end}; ++i) {{",
        f"  const int row = {ends.row}, e = {by.slot.replace('column', f'({ends.column})')};",
        *begin,
        f"  const int column = {by.end};",
        f"  if ({inside} && column < left) to[column] = read_portion<{element}>({at});",
        "}",
    ]


def fetch_shifted(plan: KernelPlan, line: Line) -> list[str]:
    """Portions of the panel, each of two chunks of the array."""
    name, size, by, share = line.panel.name, line.panel.element_bytes, line.shifted, line.share
    assert by is not None
    batch, words, element = line.together, chunk_bytes() // WORD, element_type(size)
    begins = ("+ first", "- before", "+ left")
    parts = ", ".join(f"(unsigned long long)(from {at})" for at in begins)
    row_inside, _, left = edges(plan, line, f"{name}_column")
    begin = [
        f"    const int row = {share.row}, column = {share.column};",
        f"    const int to_row = {name}_row + row, to_column = before;",
        f"    const {element}* const from = (const {element}*)({source(plan, line)});",
        f"    const int offset = (unsigned)((unsigned long long)from % {chunk_bytes()}) / {size};",
    ]
    each = [
        "#pragma unroll",
        f"  for (int r = 0; r < {batch}; ++r) {{",
        "    const int i = j + r;",
        *begin,
        "#pragma unroll",
        f"    for (int h = 0; h < {SOURCES}; ++h) {{",
        f"      const int first = {by.fetched};",
        f"      const bool whole = {row_inside} && {by.in_row};",
    ]
    return [
        *panel_start(plan, line),
        f"const int before = {name}_column, left = {left};",
        f"const bool at_ends = {by.at_ends};",
        "#pragma unroll 1",
        f"for (int j = {share.first}; j < {share.end}; j += {batch}) {{",
        f"  unsigned held[{batch}][{SOURCES * words}];",
        *each,  # no branch between the reads, which are on their way together
        "      uint4 part = {};",
        "      if (whole) part = __ldg((const uint4*)(from + first));",
        *(f"      held[r][{words} * h + {n}] = part.{at};" for n, at in enumerate(_LETTERS)),
        "    }",
        "  }",
        "  if (at_ends) {",
        _ANEW,
        *each,
        f"      if (!whole && {row_inside} && ({by.needed})) {{",
        f"        unsigned piece[{words}];",
        f"        row_edge<{size}>(piece, {parts});",
        *(f"        held[r][{words} * h + {n}] = piece[{n}];" for n in range(words)),
        "      }",
        "    }",
        "  }",
        "  }",
        _ANEW,
        "#pragma unroll",
        f"  for (int r = 0; r < {batch}; ++r) {{",
        "    const int i = j + r;",
        *begin,
        *(f"    {text}" for text in shift_words(by.shifts, "held[r]", f"offset * {size}")),
        f"    write_portion({name}_at + {line.place}, make_uint4({_WORDS}));",
        "  }",
        "}",
    ]
