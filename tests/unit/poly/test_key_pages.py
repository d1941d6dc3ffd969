"""Keys in pages: tiles that pages fit, the formulas of boxes, and mistakes in them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from polygen.errors import VerifyError
from polygen.poly.elements import Along
from polygen.poly.key_pages import KeyPages, in_c, paged_operand, prove_key_pages


def _operand(page: int):
    """``pages[table[z0, floor(k / page)], k mod page, z1, n]``; of 0 one page of all keys."""
    places = (Along("z0"), Along("k", per=page)) if page else (Along("z0"),)
    named = Along("", 0, rows="table", extent="N", places=places)
    return paged_operand((named, Along("k", modulo=page), Along("z1"), Along("n")))


@pytest.mark.parametrize(
    ("page", "keys", "boxes"), [(16, 64, 4), (8, 48, 6), (64, 64, 1), (192, 64, 1), (0, 64, 1)]
)
def test_every_key_comes_from_its_row_of_its_page(page: int, keys: int, boxes: int) -> None:
    pages, found = KeyPages(page, keys), _operand(page)
    assert pages.fits and (pages.boxes, pages.rows) == (boxes, keys // boxes)
    assert (found.page, found.axis, found.inside, found.along) == (page, 0, 1, 1 if page else -1)
    assert "whatever numbers stand there" in str(prove_key_pages("pages", found, pages, 960))
    prove_key_pages("pages", found, pages, "T")
    prove_key_pages("pages", found, pages, "16*J")


@pytest.mark.parametrize(("page", "keys"), [(20, 16), (12, 48), (48, 64), (16, 24), (100, 32)])
def test_tiles_that_pages_do_not_fit(page: int, keys: int) -> None:
    assert not KeyPages(page, keys).fits


def test_formulas_in_c() -> None:
    assert KeyPages(16, 32).places("k") == ("k * 2 + 0", "k * 2 + 1")
    assert KeyPages(16, 32).row("k") == "0"
    assert (KeyPages(96, 32).places("k"), KeyPages(96, 32).row("k")) == (("k / 3",), "k % 3 * 32")
    assert (KeyPages(0, 32).places("k"), KeyPages(0, 32).row("k")) == (("0",), "k * 32")


@dataclass(frozen=True, slots=True)
class _Wrong(KeyPages):
    """Formulas with one mistake."""

    mistake: str = ""

    def place(self, tile, box, divided=in_c):
        if self.mistake == "the page of the next tile":
            return KeyPages.place(self, f"({tile} + 1)", box, divided)
        if self.mistake == "the pages of a tile in another order":
            return KeyPages.place(self, tile, self.boxes - 1 - box, divided)
        if self.mistake == "one page for all":
            return KeyPages.place(self, tile, 0, divided)
        return KeyPages.place(self, tile, box, divided)

    def row(self, tile, divided=in_c):
        if self.mistake == "a row too far":
            return f"{KeyPages.row(self, tile, divided)} + 1"
        if self.mistake == "the first rows of a page again":
            return "0"
        return KeyPages.row(self, tile, divided)


@pytest.mark.parametrize(
    ("page", "mistake"),
    [
        (16, "the page of the next tile"),
        (192, "the page of the next tile"),
        (16, "the pages of a tile in another order"),
        (16, "one page for all"),
        (16, "a row too far"),
        (192, "the first rows of a page again"),
        (0, "the first rows of a page again"),
    ],
)
def test_mistakes_are_refused_with_a_key(page: int, mistake: str) -> None:
    with pytest.raises(VerifyError, match=r"\(tile, key\) -> \(page, row\) is \[\d+,\d+\] -> "):
        prove_key_pages("pages", _operand(page), _Wrong(page, 64, mistake), 960)
