"""The walk over groups of rows: proved a group at a time, and compared with the definition."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from matrix import small

import polygen as pg
from polygen.errors import VerifyError
from polygen.lower.launch import Launch
from polygen.lower.verify import verify
from polygen.poly import row_groups
from polygen.poly.row_groups import divided, group_walk, prove_row_groups

ROWS, GROUPS = 5, 3


WALK = group_walk(32)


def formula(text):
    """A formula of the record in Python: C differs in quotients alone."""
    names = re.sub(r"\b(group|first_tile|tiles|before|rows)\b", r"self.\1", text)
    return divided(names, "({}) // tile")


def function(head, *lines):
    """A function of these lines."""
    found = {}
    exec("\n    ".join([f"def {head}:", *lines]), found)
    return found[head.partition("(")[0]]


class Walk:
    """What is written of a `GroupWalk`, in Python: its formulas, in their order."""

    next = function(
        "next(self, ends, most, tile)",
        "end = ends[self.group + 1]",
        *(f"self.{name} = {formula(text)}" for name, text in WALK.next),
    )
    beyond = function("beyond(self, wanted)", f"return {formula(WALK.beyond)}")
    last = function("last(self, groups)", f"return {formula(WALK.last)}")

    def __init__(self) -> None:
        self.group, self.first_tile, self.tiles, self.before, self.rows = -1, 0, 0, 0, 0

    def find(self, ends, most, tile, wanted):
        while self.beyond(wanted):
            if self.last(len(ends)):
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
    one, all_of_them, found = prove_row_groups(WALK, tile)
    assert "every row of a group is in exactly one of its tiles" in str(one)
    assert "numbered through" in str(all_of_them)
    assert "a walk finds the group of every tile" in str(found)


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


def stepping(name, to):
    """Another assignment of the step to the next group."""
    return replace(WALK, next=tuple((n, to if n == name else text) for n, text in WALK.next))


def knowing(name, to):
    """Another result of the lanes together."""
    return replace(WALK, together=tuple((n, to if n == name else t) for n, t in WALK.together))


MUTANTS = {
    "the tiles of a group are not passed": stepping("first_tile", "first_tile + tiles - 1"),
    "tiles begin with every group": stepping("first_tile", "0"),
    "rows of a group are passed twice": stepping("before", "before + 2 * rows"),
    "every second group": stepping("group", "group + 2"),
    "ends behind the last row": stepping("rows", "max(end - before, 0)"),
    "rows from the beginning": stepping("rows", "max(min(end, most), 0)"),
    "groups with fewer rows than none": stepping("rows", "min(end, most) - before"),
    "rounded down": stepping("tiles", "{rows}"),
    "a tile without rows": stepping("tiles", "{rows + tile}"),
    "rows of the group before": replace(WALK, next=(*WALK.next[3:], *WALK.next[:3])),
    "the tiles of a group before its rows": replace(
        WALK, next=(*WALK.next[:3], WALK.next[4], WALK.next[3])
    ),
    "a tile too far": replace(WALK, beyond="wanted > first_tile + tiles"),
    "a tile too early": replace(WALK, beyond="wanted >= first_tile + tiles - 1"),
    "a group too many": replace(WALK, last="group >= groups"),
    "a group too few": replace(WALK, last="group + 2 >= groups"),
    "together, ends behind the last row": replace(WALK, own_end="end"),
    "together, rounded down": replace(WALK, own_tiles="{end - start}"),
    "together, a tile too far": replace(WALK, found="wanted <= last_tile"),
    "together, a tile too early": replace(WALK, found="wanted < last_tile - 1"),
    "together, tiles up to the group's end": knowing("first_tile", "last_tile"),
    "together, rows up to the group's end": knowing("before", "end"),
    "together, rows of all groups": knowing("rows", "end"),
    "together, all tiles": knowing("tiles", "last_tile"),
    "together, nothing of rows": replace(WALK, together=WALK.together[:-1]),
    "lanes leave others out": replace(WALK, shifts=(1, 2, 4, 8)),
    "lanes combine others twice": replace(WALK, shifts=(1, 1, 2, 4, 8, 16)),
    "lanes skip others": replace(WALK, shifts=(2, 4, 8, 16)),
    "not the last lane": replace(WALK, carry=30),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_no_proof_accepts_a_walk_that_is_broken(name):
    with pytest.raises(VerifyError):
        prove_row_groups(MUTANTS[name], 64)


def test_no_code_is_written_for_a_plan_with_another_walk():
    grouped = pg.fuse(lambda x, w, ends: pg.grouped_matmul(x, w, ends))
    signature = ("bf16[T,K]", "bf16[E,K,N]", "s32[E]")
    plan = grouped.compile(*signature, arch="sm_80", schedule=small()).passes.plan
    verify(plan)
    for walk, message in (
        (MUTANTS["every second group"], "a step of the walk is"),
        (group_walk(16), "16 lanes walk over groups together"),
        (None, "groups of rows have no walk"),
    ):
        with pytest.raises(VerifyError, match=message):
            verify(replace(plan, group_walk=walk))
