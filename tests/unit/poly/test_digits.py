"""Numbers of tuples: the texts are each other's inverses, and another text is refused."""

from __future__ import annotations

import itertools

import pytest

from polygen.errors import VerifyError
from polygen.hardware import formula
from polygen.poly import digits as module
from polygen.poly.digits import check_digits, digits, numbered, peeled


@pytest.mark.parametrize("places", range(6))
@pytest.mark.parametrize("form", [digits, peeled])
def test_places_of_a_number_have_this_number(form, places):
    counts = [f"c{n}" for n in range(places)]
    texts = form("number", counts)
    sizes = dict(zip(counts, (5, 7, 2, 3, 4), strict=False))
    for number, own in enumerate(itertools.product(*map(range, sizes.values()))):
        names = sizes | {"number": number}
        assert tuple(formula.value(text, names) for text in texts) == own
        if places:
            others = list(zip(counts[1:], map(str, own[1:]), strict=True))
            assert formula.value(numbered(str(own[0]), others), names) == number


def test_texts():
    assert digits("matrix", ["A", "B", "C"]) == [
        "matrix / (B * C)", "matrix / C % B", "matrix % C",
    ]  # fmt: skip
    assert peeled("at", ["A", "B"]) == ["at / B", "at % B"]
    assert numbered("(long long)b", [("M", "row")]) == "((long long)b * (M) + row)"


WRONG = {
    "the first place fastest": lambda number, counts: digits(number, counts)[::-1],
    "no remainder": lambda number, counts: [one.split(" %")[0] for one in digits(number, counts)],
    "a remainder by the count of another place": lambda number, counts: [
        one.replace(f"% {counts[-1]}", f"% {counts[0]}") for one in digits(number, counts)
    ],
    "a quotient by one place only": lambda number, counts: [
        one.replace(f"({counts[1]} * {counts[2]})", counts[1]) for one in digits(number, counts)
    ],
    "one more": lambda number, counts: [f"{one} + 1" for one in digits(number, counts)],
}


@pytest.mark.parametrize("name", WRONG)
def test_other_places_are_refused(name):
    with pytest.raises(VerifyError, match="places of numbers up to"):
        check_digits(WRONG[name], 3)


def test_another_number_is_refused(monkeypatch):
    """What numbers tuples and what takes numbers apart are proved against each other."""
    check_digits.cache_clear()
    monkeypatch.setattr(module, "_numbered", lambda first, others: first)
    with pytest.raises(VerifyError, match="places of numbers up to"):
        numbered("a", [("B", "b")])
    check_digits.cache_clear()
