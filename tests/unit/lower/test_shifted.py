"""Lines that begin anywhere: chunks that are shifted, and the elements at the ends of rows."""

from __future__ import annotations

import dataclasses

import pytest

from polygen.errors import VerifyError
from polygen.lower.shifted import Shifted, check_shifted, shifted

TILES = {"bf16": ((64, 64), 2), "f32": ((64, 32), 4), "e4m3": ((64, 128), 1)}
THREADS = 128


def made(name: str) -> Shifted:
    tile, size = TILES[name]
    found = shifted(tile, size, size, THREADS)
    assert found is not None
    return found


def other(of: Shifted, **texts: str) -> Shifted:
    """The same with other formulas."""
    kind = type(
        "Other", (Shifted,), {name: property(lambda self, t=t: t) for name, t in texts.items()}
    )
    return kind(of.elements, of.columns, of.ends, of.shifts)


@pytest.mark.parametrize("name", TILES)
def test_every_element_is_moved_once(name):
    tile, size = TILES[name]
    check_shifted(made(name), tile, size, THREADS)


@pytest.mark.parametrize(
    ("tile", "size", "width"),
    [
        ((64, 64), 2, 8),  # wide accesses as they are
        ((64, 16), 2, 2),  # too much of a row would lie at its ends
        ((64, 68), 2, 2),  # no whole chunks
        ((8, 64), 2, 2),  # not every thread has one
    ],
)
def test_some_panels_are_moved_as_they_are(tile, size, width):
    assert shifted(tile, size, width, THREADS) is None


WRONG = {
    "stored": ["column", "head + column + 1", "column - head", "head * 2 + column"],
    "beside": ["column + 8", "min(column + 8, 48)", "min(column + 4, 56)", "column"],
    "whole": ["first + 8 < left", "first + 7 <= left", "first + 9 <= left", "first < left"],
    "slot": ["column", "column + lap", "column + lap * 4", "column * 2 + lap"],
    "end": [
        "e + (e > head) * (max(left - head, 0) / 8 * 8)",
        "e + (e >= head) * (max(left, 0) / 8 * 8)",
        "e + (e >= head) * (max(left - head, 0) / 8 * 4)",
        "e + (max(left - head, 0) / 8 * 8)",
        "e",
    ],
    "fetched": ["column + h * 8", "column + h * 4 - offset", "column + h * 8 + offset"],
    "in_row": [
        "first + before >= 0",
        "first + 8 <= left",
        "first + before >= 0 && first + 7 <= left",
        "first + before + 1 >= 0 && first + 8 <= left",
    ],
    "needed": ["h == 0", "offset > 0", "h == 0 || offset > 1"],
    "at_ends": [
        "before < 8",
        "left < 72",
        "before < 7 && left < 72",
        "before < 1 || left < 72",
        "before < 8 || left < 71",
    ],
}


@pytest.mark.parametrize(
    ("field", "text"), [(field, text) for field, texts in WRONG.items() for text in texts]
)
def test_other_formulas_are_refused(field, text):
    of = made("bf16")
    assert getattr(of, field) != text
    changed = other(of, **{field: text})
    with pytest.raises(VerifyError, match=r"stored|made of|no chunk|not all of|left out"):
        check_shifted(changed, *TILES["bf16"], THREADS)


def test_other_records_are_refused():
    of, (tile, size) = made("bf16"), TILES["bf16"]
    ends, number = of.ends, "(i * 128 + thread % 128)"
    wrong = [
        dataclasses.replace(of, elements=4),
        dataclasses.replace(of, columns=56),
        dataclasses.replace(of, ends=dataclasses.replace(ends, end="3")),
        dataclasses.replace(of, ends=dataclasses.replace(ends, first="1")),
        dataclasses.replace(of, ends=dataclasses.replace(ends, row=f"{number} / 16")),
        dataclasses.replace(of, ends=dataclasses.replace(ends, column="i")),
    ]  # fmt: skip
    for one in wrong:
        with pytest.raises(VerifyError):
            check_shifted(one, tile, size, THREADS)
