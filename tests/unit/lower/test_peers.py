"""Blocks of a cluster that send each other parts: formulas with another number are refused."""

from __future__ import annotations

import dataclasses
import re

import pytest

from polygen.errors import VerifyError
from polygen.lower.peers import all_blocks, blocks_of_row, check_peers

CASES = {
    "sums of two": (all_blocks(2), (1, 2), 1),
    "sums of four": (all_blocks(4), (1, 4), 1),
    "rows of two": (blocks_of_row((1, 2), 4), (1, 2), 4),
    "rows of eight": (blocks_of_row((1, 8), 4), (1, 8), 4),
    "rows below others": (blocks_of_row((2, 4), 4), (2, 4), 4),
    "rows of six": (blocks_of_row((1, 6), 4), (1, 6), 4),
    "rows of three below others": (blocks_of_row((2, 3), 2), (2, 3), 2),
    "rows of one lane": (blocks_of_row((2, 2), 1), (2, 2), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_every_block_gets_a_part_of_each(name):
    check_peers(*CASES[name])


@pytest.mark.parametrize("name", ["sums of four", "rows of six", "rows of three below others"])
def test_another_number_is_refused(name):
    right, cluster, lanes = CASES[name]
    tried = 0
    for field in ("number", "target", "sends", "leaves", "own"):
        text = getattr(right, field)
        for one in re.finditer(r"\b\d+\b", text):
            for number in (int(one[0]) + 1, int(one[0]) - 1):
                other = f"{text[: one.start()]}{number}{text[one.end() :]}"
                tried += 1
                with pytest.raises(VerifyError):
                    check_peers(dataclasses.replace(right, **{field: other}), cluster, lanes)
    for steps in (right.steps - 1, right.steps - 2):
        with pytest.raises(VerifyError, match=r"sends to|divides by 0"):
            check_peers(dataclasses.replace(right, steps=steps), cluster, lanes)
    assert tried > 5


@pytest.mark.parametrize("name", CASES)
def test_who_begins_with_another_block_is_refused(name):
    right, cluster, lanes = CASES[name]
    turned = right.target.replace("there", "(there + 1)")
    with pytest.raises(VerifyError, match="sends to"):
        check_peers(dataclasses.replace(right, target=turned), cluster, lanes)
