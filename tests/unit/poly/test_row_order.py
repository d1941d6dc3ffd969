"""The order of tiles of rows: every tile once, and blocks that have as much to do as others."""

from __future__ import annotations

import pytest

from polygen.errors import VerifyError
from polygen.hardware.formula import value
from polygen.poly import row_order
from polygen.poly.row_order import (
    end,
    last_matrices,
    number,
    of_last,
    of_pair,
    places,
    prove_pairs,
    prove_together,
)


def _number(text: str, **names: int) -> int:
    return int(value(text, names))


def _tiles(rows: int, matrices: int, blocks: int) -> list[list[tuple[int, int]]]:
    """(matrix, rows) of the tiles of each block, as the kernel's code finds them."""
    known = {"tiles_m": rows, "matrices": matrices, "stride": blocks}
    paired = (matrices - _number(last_matrices("stride"), **known)) // 2 * 2
    left, pairs = matrices - paired, paired // 2 * rows
    taken = pairs % blocks
    whole, rest = divmod(left * rows + taken, blocks)
    found = []
    for first in range(blocks):
        own = known | {"first": first, "left": left, "taken": taken, "whole": whole, "rest": rest}
        behind = int(first < taken)
        in_pairs = 2 * (pairs // blocks + behind)
        last = _number(places()[whole % 2], **own)
        tiles = in_pairs + _number(end("last"), **own, last=last) - behind
        mine = []
        for i in range(tiles):
            if i < in_pairs:
                matrix, place = divmod(i // 2 * blocks + first, rows)
                mine.append(
                    (2 * matrix + i % 2, _number(of_pair("place")[i % 2], **own, place=place))
                )
                continue
            lap = i - in_pairs + behind
            at = _number(places()[lap % 2], **own)
            t = _number(number("lap", "at"), **own, lap=lap, at=at)
            row, which = of_last("t")
            mine.append((paired + _number(which, **own, t=t), _number(row, **own, t=t)))
        found.append(mine)
    return found


SIZES = [
    (rows, matrices, blocks)
    for rows in (1, 2, 3, 7, 32)
    for matrices in (1, 2, 3, 8, 64)
    for blocks in (1, 2, 3, 5, 132)
    if blocks <= rows * matrices
]


@pytest.mark.parametrize(("rows", "matrices", "blocks"), SIZES)
def test_every_tile_is_one_blocks(rows: int, matrices: int, blocks: int) -> None:
    found = [tile for mine in _tiles(rows, matrices, blocks) for tile in mine]
    assert sorted(found) == [(m, r) for m in range(matrices) for r in range(rows)]


@pytest.mark.parametrize(
    ("rows", "matrices"), [(32, 64), (128, 16), (16, 64), (64, 32), (22, 64), (11, 128)]
)
def test_blocks_have_as_much_to_do(rows: int, matrices: int) -> None:
    """Triangles: tile r has r + 1 tiles of keys; no block has many more than the mean."""
    work = [sum(r + 2 for _, r in mine) for mine in _tiles(rows, matrices, 132)]
    assert max(work) <= 1.06 * sum(work) / len(work)


def test_it_is_proved_for_any_numbers() -> None:
    assert prove_pairs()[0] == prove_together()
    assert "one persistent block's" in prove_pairs()[1].claim


@pytest.mark.parametrize(
    ("name", "wrong", "why"),
    [
        ("of_pair", lambda place: ("tiles_m - " + place, place), "pairs do not have every tile"),
        ("of_pair", lambda place: (place, place), "different numbers of rows"),
        ("places", lambda: ("first", "stride - first"), "not one block's"),
        ("places", lambda: ("first", "first + 1"), "not one block's"),
        ("number", lambda lap, at: f"{lap} * stride + {at}", "numbers of tiles"),
        ("of_last", lambda t: (f"tiles_m - {t} / left", f"{t} % left"), "last matrices"),
        ("of_last", lambda t: (f"tiles_m - 1 - {t} / left", "0"), "last matrices"),
    ],
)
def test_wrong_formulas_are_refused(monkeypatch, name: str, wrong, why: str) -> None:
    for proof in (prove_pairs, prove_together):
        proof.cache_clear()
    monkeypatch.setattr(row_order, name, wrong)
    with pytest.raises(VerifyError, match=why):
        prove_pairs()
    monkeypatch.undo()
    for proof in (prove_pairs, prove_together):
        proof.cache_clear()
