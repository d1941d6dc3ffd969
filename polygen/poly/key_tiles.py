"""Which tiles of keys a block visits, where that is not all: a mask leaves a row a range of keys,
or the keys of a tile of rows are in parts, each of which a block of its own visits.

The same formulas are text of isl, in which they are proved, and of C, where they are computed; a
block has one tile of rows then, and one part, so that its loops run over as many tiles of keys as
it visits. A part behind the last key that a mask leaves visits one tile, in which all is masked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polygen import isl
from polygen.errors import VerifyError
from polygen.frontend.indices import named_in
from polygen.frontend.program import Dim
from polygen.poly.legality import Proof
from polygen.rewrite.key_range import KeyRange

FIRST = "k_first"  # the first tile of keys
COUNT = "k_tiles"  # how many from there on
ALL = "key_tiles"  # how many there are
PART = "part"  # which part of the keys
# The least and the greatest key that a row of the tile has, of bounds that arrays hold.
LOWEST, HIGHEST = "k_lowest", "k_highest"


Divided = Callable[[str, int], str]


def _in_c(text: str, by: int) -> str:
    """Of what is not negative."""
    return f"{text} / {by}"


def _in_isl(text: str, by: int) -> str:
    return f"floor(({text})/{by})"


def _plus(number: int) -> str:
    return f"{'+' if number >= 0 else '-'} {abs(number)}"


def _folded(function: str, texts: list[str]) -> str:
    """The least or the greatest of several, two at a time."""
    found = texts[0]
    for text in texts[1:]:
        found = f"{function}({found}, {text})"
    return found


@dataclass(frozen=True, slots=True)
class KeyTiles:
    """The tiles of keys of a block.

    Attributes:
        range: of a row; None: all keys.
        rows: of a tile.
        keys: of a tile.
        part: tiles of keys of a part; 0: a block visits all of its rows.
    """

    range: KeyRange | None
    rows: int
    keys: int
    part: int = 0

    def __str__(self) -> str:
        found = []
        if self.range is not None:
            found.append(f"keys {self.range}: a block visits the tiles that have some")
        if self.part:
            found.append(f"keys in parts of {self.part * self.keys}: a block visits one of them")
        return "; ".join(found)

    @property
    def lower(self) -> int | None:
        """The least key of a row less the row."""
        return None if self.range is None else self.range.lower

    @property
    def upper(self) -> int | None:
        """The greatest key of a row less the row."""
        return None if self.range is None else self.range.upper

    def held(self, side: str) -> bool:
        """Whether arrays hold bounds of a side."""
        return self.range is not None and bool(self.range.held(side))

    def first(self, tile: str, count: str, part: str = PART, divided: Divided = _in_c) -> str:
        """The first tile.

        Args:
            tile: of rows.
            count: how many tiles of keys there are.
            part: which part.
            divided: how a quotient of whole numbers is written.
        """
        found = []
        starts = [LOWEST] if self.held("lower") else []
        if self.lower is not None:
            starts.append(f"{tile} * {self.rows} {_plus(self.lower)}")
        if starts:
            start = _folded("max", [*starts, "0"])
            found.append(f"min({divided(start, self.keys)}, {count} - 1)")
        if self.part:
            found.append(f"{part} * {self.part}")
        return " + ".join(found) or "0"

    def number(self, tile: str, count: str, first: str, divided: Divided = _in_c) -> str:
        """How many tiles from the first one on; other arguments as of `first`."""
        end = count
        ends = [HIGHEST] if self.held("upper") else []
        if self.upper is not None:
            ends.append(f"{tile} * {self.rows} {_plus(self.rows - 1 + self.upper)}")
        if ends:
            last = f"max({_folded('min', ends)}, 0)"
            end = f"min({count}, {divided(last, self.keys)} + 1)"
        found = f"{end} - ({first})" if " " in first else f"{end} - {first}"
        found = f"min({found}, {self.part})" if self.part else found
        return f"max({found}, 1)"

    def of_rows(self) -> tuple[str, str]:
        """The first tile of the block's rows and their number, as C."""
        return self.first("b_m", ALL), self.number("b_m", ALL, FIRST)

    def within(self, row: str, span: int, key: str) -> str:
        """When all keys of the tile that begins at `key` are those of `span` rows from `row`."""
        parts = []
        if self.upper is not None:
            parts.append(f"{key} + {self.keys - 1} <= {row} {_plus(self.upper)}")
        if self.lower is not None:
            parts.append(f"{key} >= {row} {_plus(span - 1 + self.lower)}")
        return " && ".join(parts)


def prove_key_tiles(tiles: KeyTiles, keys: Dim, span: int) -> tuple[Proof, ...]:
    """Prove that every key of a row is in one tile that a block visits, and that tiles without mask
    have no other keys.

    Args:
        tiles: what is visited.
        keys: how many there are.
        span: rows for which a tile is masked or not.

    Raises:
        VerifyError: with a row and a key.
    """
    known = list(named_in(keys))
    known += [LOWEST] if tiles.held("lower") else []
    known += [HIGHEST] if tiles.held("upper") else []
    parameters = f"[{', '.join(known)}] -> " if known else ""
    mask = ["1 = 1"]
    # What an array holds for a row lies between the least and the greatest of the tile's rows.
    mask += [f"j >= {LOWEST}"] if tiles.held("lower") else []
    mask += [f"j <= {HIGHEST}"] if tiles.held("upper") else []
    mask += [f"j >= i {_plus(tiles.lower)}"] if tiles.lower is not None else []
    mask += [f"j <= i {_plus(tiles.upper)}"] if tiles.upper is not None else []
    tile, count = f"floor(i/{tiles.rows})", f"floor(({keys} + {tiles.keys - 1})/{tiles.keys})"
    first = tiles.first(tile, count, PART, _in_isl)
    number = tiles.number(tile, count, first, _in_isl)
    own = f"floor(j/{tiles.keys})"
    wanted = isl.Set(
        f"{parameters}{{ [i,j] : i >= 0 and 0 <= j < {keys} and {' and '.join(mask)} }}"
    )
    each = tiles.part * tiles.keys
    parts = f"floor(({keys} + {each - 1})/{each})" if tiles.part else "1"
    visits = isl.Map(
        f"{parameters}{{ [i,j] -> [{PART}] : i >= 0 and j >= 0 and 0 <= {PART} < {parts} and "
        f"{own} >= {first} and {own} < {first} + {number} }}"
    )
    rest = wanted.subtract(visits.domain())
    if not rest.is_empty():
        raise VerifyError(f"{isl.sample_point(rest)} is in no tile that is visited", where="keys")
    if not visits.is_single_valued():
        raise VerifyError("a tile of keys is visited in two parts", where="keys")
    row, key = f"{span}*floor(i/{span})", f"{tiles.keys}*floor(j/{tiles.keys})"
    found = []
    if tiles.range is not None:
        claim = f"every key {tiles.range} of a row is in a tile that its block visits"
        found.append(Proof(claim, "keys"))
    if tiles.range is not None and not tiles.range.arrays:
        whole = tiles.within(row, span, key).replace(" && ", " and ")
        inside = isl.Set(f"{{ [i,j] : i >= 0 and j >= 0 and {whole} }}")
        rest = inside.subtract(isl.Set(f"{{ [i,j] : {' and '.join(mask)} }}"))
        if not rest.is_empty():
            raise VerifyError(
                f"{isl.sample_point(rest)} is masked, in a tile without", where="keys"
            )
        found.append(Proof("tiles without mask have none of the other keys", "keys"))
    if tiles.part:
        found.append(Proof("every key of a row is in one part, which one block visits", "keys"))
    return tuple(found)
