"""The walk over groups of rows: proved a group at a time, and compared with the definition."""

from __future__ import annotations

import itertools

import pytest

from polygen.errors import VerifyError
from polygen.lower.launch import Launch
from polygen.poly import row_groups
from polygen.poly.row_groups import prove_row_groups

ROWS, GROUPS = 5, 3


class Walk:
    """`instructions/row_groups.cu.j2` in Python, line by line."""

    def __init__(self) -> None:
        self.group, self.first_tile, self.tiles, self.before, self.rows = -1, 0, 0, 0, 0

    def next(self, ends, most, tile):
        self.first_tile += self.tiles
        self.before += self.rows
        self.group += 1
        self.rows = max(min(ends[self.group], most) - self.before, 0)
        self.tiles = (self.rows + tile - 1) // tile

    def find(self, ends, most, tile, wanted):
        while wanted >= self.first_tile + self.tiles:
            if self.group + 1 == len(ends):
                return False
            self.next(ends, most, tile)
        return True


def tables():
    """Every table of up to three ends, sorted or not, negative, and behind the last row."""
    for count in range(1, GROUPS + 1):
        yield from itertools.product(range(-1, ROWS + 2), repeat=count)


@pytest.mark.parametrize("tile", [1, 2, 3, 8])
def test_the_walk_meets_every_row_once_in_the_group_that_the_definition_says(tile):
    for ends in tables():
        owner, covered, number = {}, [], 0
        walk = Walk()
        while walk.find(ends, ROWS, tile, number):
            first = (number - walk.first_tile) * tile
            rows = range(first, min(first + tile, walk.rows))
            assert rows, (ends, number)  # no tile is empty
            for row in rows:
                covered.append(walk.before + row)
                owner[walk.before + row] = walk.group
            number += 1
        definition = {
            t: next((e for e, end in enumerate(ends) if t < end), None) for t in range(ROWS)
        }
        assert owner == {t: e for t, e in definition.items() if e is not None}, ends
        assert covered == sorted(set(covered))
        most = Launch("T", "N", tile, 8, 1, 32, 0, groups="E", grouped="along")
        assert number <= most.tiles("along", {"T": ROWS, "E": len(ends)})


@pytest.mark.parametrize("tile", [1, 2, 3])
def test_a_later_tile_is_found_from_any_earlier_one(tile):
    for ends in tables():
        step_by_step, at = [], Walk()
        while at.find(ends, ROWS, tile, len(step_by_step)):
            step_by_step.append((at.group, at.first_tile, at.before, at.rows))
        for stride in (2, 3):
            jumping = Walk()
            for number in range(0, len(step_by_step), stride):
                assert jumping.find(ends, ROWS, tile, number)
                found = (jumping.group, jumping.first_tile, jumping.before, jumping.rows)
                assert found == step_by_step[number]


@pytest.mark.parametrize("tile", [1, 16, 64, 128, 192, 256, 512])
def test_tiles_of_a_group_partition_its_rows(tile):
    one, all_of_them = prove_row_groups(tile)
    assert "every row of a group is in exactly one of its tiles" in str(one)
    assert "numbered through" in str(all_of_them)


@pytest.mark.parametrize(
    "count",
    [
        "floor(r/128)",  # the last rows have no tile
        "floor((r + 128)/128)",  # a tile without rows
        "floor((r + 126)/128)",  # one row has none, where it is the first of a tile
    ],
)
def test_another_number_of_tiles_is_refused(count):
    known = f"t >= 0 and b >= 0 and r >= 0 and c = {count}"
    with pytest.raises(VerifyError, match="tiles of 128 rows do not partition a group"):
        row_groups._prove_group(128, known)


def test_groups_that_overlap_are_refused():
    with pytest.raises(VerifyError, match="do not follow each other"):
        row_groups._prove_step("t >= 0 and b >= 0 and r >= -1 and c >= -1")


def test_a_grid_has_room_for_the_tiles_of_any_groups():
    plain = Launch("T", "N", 128, 64, 8, 256, 0)
    grouped = Launch("T", "N", 128, 64, 8, 256, 0, groups="E", grouped="along")
    sizes = {"T": 1000, "N": 130, "E": 64}
    assert plain.grid(sizes) == (3 * 8, 1, 1)
    assert grouped.tiles("along", sizes) == (1000 + 64 * 127) // 128
    assert grouped.grid(sizes) == (3 * 8, -(-grouped.tiles("along", sizes) // 8), 1)
    across = Launch("N", "T", 64, 128, 8, 256, 0, 132, groups=64, grouped="across")
    assert across.work(sizes) == 3 * ((1000 + 64 * 127) // 128)
