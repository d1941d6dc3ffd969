"""Which tiles of keys a tile of rows visits, where a mask leaves a row a range of keys.

The same formulas are text of isl, in which they are proved, and of C, where they are computed; a
block has one tile of rows then, so that its loops run over as many tiles of keys as it visits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polygen import isl
from polygen.errors import VerifyError
from polygen.frontend.program import Dim
from polygen.poly.legality import Proof
from polygen.rewrite.key_range import KeyRange

FIRST = "k_first"  # the first tile of keys


Divided = Callable[[str, int], str]


def _in_c(text: str, by: int) -> str:
    """Of what is not negative."""
    return f"{text} / {by}"


def _in_isl(text: str, by: int) -> str:
    return f"floor(({text})/{by})"


def _plus(number: int) -> str:
    return f"{'+' if number >= 0 else '-'} {abs(number)}"


@dataclass(frozen=True, slots=True)
class KeyTiles:
    """The tiles of keys of row tile b.

    Attributes:
        range: of a row.
        rows: of a tile.
        keys: of a tile.
    """

    range: KeyRange
    rows: int
    keys: int

    def first(self, tile: str, count: str, divided: Divided = _in_c) -> str:
        """The first tile.

        Args:
            tile: of rows.
            count: how many tiles of keys there are.
            divided: how a quotient of whole numbers is written.
        """
        if self.range.lower is None:
            return "0"
        start = f"max({tile} * {self.rows} {_plus(self.range.lower)}, 0)"
        return f"min({divided(start, self.keys)}, {count} - 1)"

    def number(self, tile: str, count: str, first: str, divided: Divided = _in_c) -> str:
        """How many tiles from the first one on; other arguments as of `first`."""
        end = count
        if self.range.upper is not None:
            last = f"max({tile} * {self.rows} {_plus(self.rows - 1 + self.range.upper)}, 0)"
            end = f"min({count}, {divided(last, self.keys)} + 1)"
        return f"max({end} - {first}, 1)"

    def within(self, row: str, span: int, key: str) -> str:
        """When all keys of the tile that begins at `key` are those of `span` rows from `row`."""
        parts = []
        if self.range.upper is not None:
            parts.append(f"{key} + {self.keys - 1} <= {row} {_plus(self.range.upper)}")
        if self.range.lower is not None:
            parts.append(f"{key} >= {row} {_plus(span - 1 + self.range.lower)}")
        return " && ".join(parts)


def prove_key_tiles(tiles: KeyTiles, keys: Dim, span: int) -> tuple[Proof, ...]:
    """Prove that every key of a row is in a tile that its block visits, and that tiles without mask
    have no other keys.

    Args:
        tiles: what is visited.
        keys: how many there are.
        span: rows for which a tile is masked or not.

    Raises:
        VerifyError: with a row and a key.
    """
    parameters = f"[{keys}] -> " if isinstance(keys, str) else ""
    lower, upper = tiles.range.lower, tiles.range.upper
    mask = ["1 = 1"]
    mask += [f"j >= i {_plus(lower)}"] if lower is not None else []
    mask += [f"j <= i {_plus(upper)}"] if upper is not None else []
    tile, count = f"floor(i/{tiles.rows})", f"floor(({keys} + {tiles.keys - 1})/{tiles.keys})"
    first = tiles.first(tile, count, _in_isl)
    number = tiles.number(tile, count, first, _in_isl)
    own = f"floor(j/{tiles.keys})"
    wanted = isl.Set(
        f"{parameters}{{ [i,j] : i >= 0 and 0 <= j < {keys} and {' and '.join(mask)} }}"
    )
    visited = f"{own} >= {first} and {own} < {first} + {number}"
    rest = wanted.subtract(isl.Set(f"{parameters}{{ [i,j] : {visited} }}"))
    if not rest.is_empty():
        raise VerifyError(f"{isl.sample_point(rest)} is in no tile that is visited", where="keys")
    row, key = f"{span}*floor(i/{span})", f"{tiles.keys}*floor(j/{tiles.keys})"
    whole = tiles.within(row, span, key).replace(" && ", " and ")
    inside = isl.Set(f"{{ [i,j] : i >= 0 and j >= 0 and {whole} }}")
    rest = inside.subtract(isl.Set(f"{{ [i,j] : {' and '.join(mask)} }}"))
    if not rest.is_empty():
        raise VerifyError(f"{isl.sample_point(rest)} is masked, in a tile without", where="keys")
    return (
        Proof(f"every key {tiles.range} of a row is in a tile that its block visits", "keys"),
        Proof("tiles without mask have none of the other keys", "keys"),
    )
