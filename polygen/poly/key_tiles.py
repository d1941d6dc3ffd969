"""Which tiles of keys a tile of rows visits, where a mask leaves a row a range of keys.

The same formulas are text of isl, in which they are proved, and of C, where they are computed; a
block has one tile of rows then, so that its loops run over as many tiles of keys as it visits.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.errors import VerifyError
from polygen.frontend.program import Dim
from polygen.poly.legality import Proof
from polygen.rewrite.key_range import KeyRange

FIRST = "k_first"  # the first tile of keys


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

    def first(self, tile: str, count: str) -> str:
        """The first tile, in C; `count`: how many tiles of keys there are."""
        if self.range.lower is None:
            return "0"
        start = f"{tile} * {self.rows}{self.range.lower:+d}"
        return f"min(max({start}, 0) / {self.keys}, {count} - 1)"

    def number(self, tile: str, count: str, first: str) -> str:
        """How many tiles, in C."""
        end = count
        if self.range.upper is not None:
            last = f"{tile} * {self.rows}{self.rows - 1 + self.range.upper:+d}"
            end = f"min({count}, max({last}, 0) / {self.keys} + 1)"
        return f"max({end} - {first}, 1)"

    def within(self, row: str, span: int, key: str) -> str:
        """When all keys of the tile that begins at `key` are those of `span` rows from `row`."""
        parts = []
        if self.range.upper is not None:
            parts.append(f"{key} + {self.keys - 1} <= {row}{self.range.upper:+d}")
        if self.range.lower is not None:
            parts.append(f"{key} >= {row}{span - 1 + self.range.lower:+d}")
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
    bounds = ["i >= 0", "0 <= j", f"j < {keys}"]
    bounds += [f"j >= i + {lower}"] if lower is not None else []
    bounds += [f"j <= i + {upper}"] if upper is not None else []
    block, size = f"{tiles.rows}*floor(i/{tiles.rows})", tiles.keys
    last = f"floor(({keys} - 1)/{size})"
    visited = ["0 <= i", f"floor(j/{size}) <= {last}"]
    if lower is not None:  # max(start, 0) / keys, or the last tile
        start = f"{block} + {lower}"
        visited.append(f"(j >= {size}*floor(({start})/{size}) or {start} < 0)")
    if upper is not None:
        visited.append(f"(floor(j/{size}) <= floor(({block} + {tiles.rows - 1 + upper})/{size}))")
    wanted = isl.Set(f"{parameters}{{ [i,j] : {' and '.join(bounds)} }}")
    have = isl.Set(f"{parameters}{{ [i,j] : {' and '.join(visited)} }}")
    rest = wanted.subtract(have)
    if not rest.is_empty():
        raise VerifyError(f"{isl.sample_point(rest)} is in no tile that is visited", where="keys")
    row, key = f"{span}*floor(i/{span})", f"{size}*floor(j/{size})"
    whole = ["i >= 0", "j >= 0"]
    whole += [f"{key} + {size - 1} <= {row} + {upper}"] if upper is not None else []
    whole += [f"{key} >= {row} + {span - 1 + lower}"] if lower is not None else []
    mask = [part for part in bounds if "i +" in part]
    inside = isl.Set(f"{{ [i,j] : {' and '.join(whole)} }}")
    rest = inside.subtract(isl.Set(f"{{ [i,j] : {' and '.join(mask) or '1 = 1'} }}"))
    if not rest.is_empty():
        raise VerifyError(f"{isl.sample_point(rest)} is masked, in a tile without", where="keys")
    return (
        Proof(f"every key {tiles.range} of a row is in a tile that its block visits", "keys"),
        Proof("tiles without mask have none of the other keys", "keys"),
    )
