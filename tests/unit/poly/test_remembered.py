"""Texts of sets and relations are read once, whatever their tuples are called."""

import pytest

from polygen import isl, remembered

SETS = [
    "{ S[] }",
    "[n] -> { S[i, k] : 0 <= i < n and (i + k) mod 2 = 0 and 0 <= k <= 3 }",
    "[n] -> { S[i] : exists (e0: 2e0 = i and e0 < n) }",
    "{ S[i, k = 3] : i >= 0 }",
    "{ [i] : i > 0 }",
    "[n] -> { : n > 0 }",
]
MAPS = [
    "[n] -> { S[i,k] -> [0,i,2,floor(k/2)] }",
    "[n] -> { S[i,k] -> [0, k + 1, 10,3,i,0 ] }",
    "{ S[] -> [0,7] }",
    "{ S[i] -> [i,-1,2] }",
    "{ S[i] -> [max(i,3),5,i,2] }",
    "[n] -> { S[i] -> [n,1] }",
    "{ S[i] -> T[1,i] }",
    "[n] -> { S[i, k] -> T[1 + i, k] : 0 <= i < n }",
    "{ S[i] -> T[] }",
    "{ S[i] -> T[o0, o1] : o0 > i and 0 <= o1 < 4 }",
    "{ [i] -> [i] }",
    "{ S[i] -> T[i] : i > 0; S[i] -> T[-i] : i < 0 }",
    "{ [S[i] -> T[j]] -> [i] }",
    "[n] -> { S[i] -> T[i] : i < 3 or i > n }",
]


@pytest.mark.parametrize("text", SETS)
def test_sets_are_what_they_say(text):
    assert str(remembered.read_set(text)) == str(isl.Set(text))
    assert str(remembered.read_set(text.replace("S[", "U["))) == str(
        isl.Set(text.replace("S[", "U["))
    )


@pytest.mark.parametrize("text", MAPS)
def test_relations_are_what_they_say(text):
    for name in "SUT":
        named = text.replace("S[", f"{name}[")
        assert str(remembered.read_map(named)) == str(isl.Map(named))


def test_names_alone_take_no_reading(monkeypatch):
    remembered.forget()
    read = []
    monkeypatch.setattr(remembered, "Map", lambda text: read.append(text) or isl.Map(text))
    for name in ("first", "second", "third"):
        remembered.read_map(f"{{ {name}[i] -> cell[i] : i >= 0 }}")
    assert len(read) == 1
    remembered.forget()
