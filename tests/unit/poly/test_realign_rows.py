"""Formulas of the launch before a kernel: every number in them, were it another, is refused."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from polygen.errors import VerifyError
from polygen.hardware import formula
from polygen.poly import realign_rows
from polygen.poly.realign_program import RealignShape
from polygen.poly.realign_rows import check_rows, row_texts

SHAPE, LINE = RealignShape(8, 32, 4, 4, 16), 128

# Where elements have several bytes rows begin and end at multiples of them: these count alike.
SAME = {"chunks": " 14)", "base": "~14", "last": "- 2)", "blocks": " 8190)"}


@pytest.mark.parametrize("item", [1, 2, 4])
def test_another_number_is_refused(item):
    right, tried = row_texts(SHAPE, item, LINE), 0
    for field in dataclasses.fields(right):
        text = getattr(right, field.name)
        for one in re.finditer(r"\b\d+", text):
            for number in (int(one[0]) + 1, int(one[0]) - 1):
                other = f"{text[: one.start()]}{number}{text[one.end() :]}"
                tried += 1
                wrong = dataclasses.replace(right, **{field.name: other})
                if item > 1 and SAME.get(field.name, "none") in other:
                    check_rows(wrong, SHAPE, item, LINE)
                    continue
                with pytest.raises(VerifyError, match=r"counted otherwise|divides by 0"):
                    check_rows(wrong, SHAPE, item, LINE)
    assert tried > 30


def test_groups_and_segments_of_blocks_exchanged_are_refused(monkeypatch):
    right = row_texts(SHAPE, 2, LINE)
    exchanged = ("block % segments", "block / segments")
    monkeypatch.setattr(realign_rows, "of_block", lambda **_: exchanged)
    with pytest.raises(VerifyError, match="counted otherwise by"):
        check_rows(right, SHAPE, 2, LINE)


@pytest.mark.parametrize(
    "change",
    [("+ 1) / 2", ") / 2"), ("% 2", "% 3"), ("groups + 1", "groups + 3"), ("/ 2)", "/ 3)")],
)
def test_halves_that_take_turns_otherwise_are_refused(monkeypatch, change):
    right, of_block = row_texts(SHAPE, 2, LINE), realign_rows.of_block

    def wrong(*, turns=False):
        rows, segment = of_block(turns=turns)
        assert not turns or change[0] in rows
        return rows.replace(*change) if turns else rows, segment

    monkeypatch.setattr(realign_rows, "of_block", wrong)
    with pytest.raises(VerifyError, match="counted otherwise by"):
        check_rows(right, SHAPE, 2, LINE)


@pytest.mark.parametrize("groups", [1, 2, 7, 8])
def test_groups_of_both_halves_are_beside_each_other(groups):
    text, _ = realign_rows.of_block(turns=True)
    names = {"segments": 1, "groups": groups, "block": np.arange(groups)}
    found, half = formula.value(text, names), (groups + 1) // 2
    for own, other in zip(found[::2], found[1::2], strict=False):
        assert other - own == half
