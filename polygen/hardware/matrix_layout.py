"""How an operand tile of a warpgroup instruction lies in shared memory: boxes, swizzle, descriptor.

1. The innermost dim is cut into spans of 128, 64 or 32 bytes, the row of a swizzle; the copy engine
   writes one box per span. Where no more than a chunk of 16 bytes is of one tap of a window, a span
   is a chunk, without a swizzle.
2. A matrix descriptor tells the instruction where groups of 8 rows, and the next span, begin.
3. Both sides are formulas in ``data/matrix_layouts.toml``. For every instruction of the tile they
   are evaluated on all its elements and must agree: what the copy wrote is what is multiplied.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from polygen.errors import ScheduleError, VerifyError
from polygen.hardware.data_file import Integers, evaluate, read, take
from polygen.hardware.device import common_facts
from polygen.hardware.swizzle import Swizzle, chunk_bytes, swizzle

FILE = "matrix_layouts.toml"
ADDRESS_MASK = (1 << read(FILE)["descriptor"]["address_bits"]) * read(FILE)["descriptor"][
    "unit"
] - 1
GROUP_ROWS = 8  # stored rows that one swizzle pattern covers


@dataclass(frozen=True, slots=True)
class MatrixLayout:
    """One operand's tile in shared memory; sizes in bytes unless said."""

    major: str  # "k": k is innermost; "mn": m or n is
    rows: int  # stored rows of the tile
    row_bytes: int
    span: int  # the swizzle's row
    leading: int  # descriptor fields
    stride: int
    k_steps: tuple[int, ...]  # start of each instruction's k slice
    block: int  # from one instruction's rows (or columns) of the operand to the next

    @property
    def boxes(self) -> int:
        """Boxes that the copy engine moves, each `rows` by `span`."""
        return self.row_bytes // self.span

    @property
    def box_bytes(self) -> int:
        """Bytes of one box."""
        return self.rows * self.span

    @property
    def bytes(self) -> int:
        """Bytes of the tile."""
        return self.rows * self.row_bytes

    @property
    def descriptor(self) -> int:
        """The descriptor of a matrix at address 0."""
        field = read(FILE)["descriptor"]
        unit = field["unit"]
        code = field["swizzle_codes"][str(self.span)]
        return int(
            (max(1, self.leading // unit) << field["leading_bit"])
            | (self.stride // unit << field["stride_bit"])
            | (code << field["swizzle_bit"])
        )

    def __str__(self) -> str:
        inner = "k" if self.major == "k" else "m or n"
        how = "swizzled" if swizzle_bytes(self.span) else "each chunk of a row by itself"
        return f"{inner} innermost, {self.boxes} box(es) of {self.rows} x {self.span} B, {how}"


def box_rows_most() -> int:
    """Rows of one box at most."""
    return common_facts()["tensor_map_box_most"]


def pattern_bytes() -> int:
    """Bytes after which every swizzle repeats: what slots in shared memory are aligned to."""
    return int(read(FILE)["descriptor"]["pattern_bytes"])


@functools.cache
def spans() -> tuple[int, ...]:
    """The rows of the copy engine's swizzles in bytes, widest first."""
    codes = take(read(FILE)["descriptor"], "swizzle_codes", FILE)
    return tuple(sorted((int(span) for span, code in codes.items() if code), reverse=True))


def swizzle_bytes(span: int) -> int:
    """The row of the swizzle that boxes of a span have; 0: rows of one chunk have none."""
    return span if span in spans() else 0


@functools.lru_cache(maxsize=64)
def span_of(part_bytes: int, *, plain: bool = False) -> int | None:
    """The widest row of a swizzle that divides `part_bytes`; None if none does.

    Args:
        part_bytes: of a row.
        plain: whether it may be a chunk, without a swizzle.
    """
    known = (*spans(), chunk_bytes()) if plain else spans()
    return next((span for span in known if part_bytes % span == 0), None)


def span_swizzle(span: int) -> Swizzle:
    """The swizzle of a span, as the data proves it."""
    return swizzle(read(FILE)["descriptor"]["swizzles"][str(span)])


def matrix_layout(
    major: str,
    tile: int,
    tile_k: int,
    element: int,
    atom_k: int,
    block: int,
    where: str,
    run: int = 0,
) -> MatrixLayout:
    """The layout of an operand tile, proved.

    Args:
        major: the innermost dim: "k" or "mn".
        tile: elements along m or n.
        tile_k: elements along k.
        element: bytes of one.
        atom_k: elements along k of one instruction.
        block: elements along m or n of one instruction.
        where: what to call it in messages.
        run: bytes of a row that boxes do not go beyond: of one tap; 0: all.

    Raises:
        ScheduleError: the tile has no span the swizzles know.
        VerifyError: the instruction would read another element than the copy wrote.
    """
    rows, row_bytes = (tile, tile_k * element) if major == "k" else (tile_k, tile * element)
    # With m or n innermost, every instruction's part of a row is whole spans too.
    part_bytes = row_bytes if major == "k" else math.gcd(row_bytes, block * element)
    own = block * element
    if run:
        part_bytes, own = math.gcd(part_bytes, run), run
    span = span_of(part_bytes, plain=bool(run) and major == "k")
    if span is None:
        parts = "" if part_bytes == row_bytes else f", in parts of {own}"
        raise ScheduleError(
            f"rows of {row_bytes} bytes in shared memory{parts}",
            where=where,
            why=f"the swizzles of the copy engine work on {', '.join(map(str, spans()[:-1]))} "
            f"or {spans()[-1]} bytes",
            nearest=f"Use multiples of {spans()[-1] // element} elements",
        )
    if rows % GROUP_ROWS:
        raise ScheduleError(
            f"{rows} stored rows",
            where=where,
            why=f"matrix descriptors count in groups of {GROUP_ROWS} rows",
            nearest=f"Use a multiple of {GROUP_ROWS}",
        )
    box = rows * span
    steps = range(tile_k // atom_k)
    if major == "k":
        starts = [s * atom_k * element for s in steps]
        k_steps = tuple(start // span * box + start % span for start in starts)
        next_block, leading = block * span, 0 if swizzle_bytes(span) else box
    else:
        k_steps = tuple(s * atom_k * span for s in steps)
        next_block, leading = block * element // span * box, box
    made = MatrixLayout(
        major, rows, row_bytes, span, leading, GROUP_ROWS * span, k_steps, next_block
    )
    try:
        _check(made, tile, tile_k, element, atom_k, block)
    except VerifyError as error:
        raise VerifyError(error.what, where=where) from None
    return made


@functools.lru_cache(maxsize=256)
def _check(
    layout: MatrixLayout, tile: int, tile_k: int, element: int, atom_k: int, block: int
) -> None:
    """`_prove`, once for a tile: many of the schedules that are weighed have it in common."""
    _prove(layout, tile, tile_k, element, atom_k, block, "")


def _prove(
    layout: MatrixLayout,
    tile: int,
    tile_k: int,
    element: int,
    atom_k: int,
    block: int,
    where: str,
) -> None:
    """Every element of the tile is read where the copy engine puts it."""
    along, k = np.meshgrid(np.arange(tile), np.arange(tile_k), indexing="ij")
    written = _offset(layout, "copy_engine", *_stored(layout, along, k, element))
    start = along // block * layout.block + np.array(layout.k_steps)[k // atom_k]
    inside = _stored(layout, along % block, k % atom_k, element)
    wanted = start + _offset(layout, layout.major, *inside)
    if not np.array_equal(written, wanted):
        first = tuple(int(x) for x in np.argwhere(written != wanted)[0])
        raise VerifyError(
            f"element {first} of the tile is written at byte {int(written[first])} "
            f"and multiplied from byte {int(wanted[first])}",
            where=where,
        )


def copied_to(layout: MatrixLayout, row: Integers, byte: Integers) -> Integers:
    """Where the copy engine puts byte `byte` of stored row `row`, swizzled, from a tile's start."""
    swizzled = span_swizzle(layout.span)
    flat = _offset(layout, "copy_engine", row, byte)
    # The swizzle XORs bits of addresses; slots begin where all patterns do.
    return swizzled.address(flat // layout.span, flat % layout.span, layout.span)


def _stored(
    layout: MatrixLayout, along: Integers, k: Integers, element: int
) -> tuple[Integers, Integers]:
    """(stored row, byte in it) of elements."""
    return (along, k * element) if layout.major == "k" else (k, along * element)


def _offset(layout: MatrixLayout, side: str, row: Integers, byte: Integers) -> Integers:
    entry = read(FILE)[side]
    numbers = {
        "span": layout.span,
        "rows": layout.rows,
        "stride": layout.stride,
        "leading": layout.leading,
    }
    variables = {"row": row, "byte": byte}
    variables |= {name: np.full_like(row, value) for name, value in numbers.items()}
    return evaluate(take(entry, "offset", FILE), variables, f"hardware/data/{FILE}, {side}")
