"""Plain TOML, read line by line, means what `tomllib` says of it."""

import tomllib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polygen import plain
from polygen.hardware.data_file import DATA
from polygen.schedule.load import schedules_folder

FILES = sorted(schedules_folder().rglob("*.toml"))


def meaning(read, text):
    try:
        return read(text)
    except (ValueError, RecursionError) as error:
        return str(error)


def test_shipped_files_and_facts_of_instructions_are_plain():
    for path in (*FILES, *(DATA / name for name in ("atoms.toml", "devices.toml", "cost.toml"))):
        text = path.read_text(encoding="utf-8")
        assert plain._plain(text) == tomllib.loads(text), path


# Pieces of lines, some legal, put together in any order.
PIECES = st.sampled_from([
    "a", "b", "a.b", "[a]", "[b]", "[a.b]", "[[a]]", "[[b]]", "[a.b.a]", " = ", "=", "1", "-0",
    "01", "1.5", "-0.0", ".5", "1e3", "0x1", '"x"', '"\\n"', '"#"', "'y'", '""', '"é"', "true",
    "false", "[", "]", ", ", ",", "{", "}", " # c", "#", "\n", "\n", "\n", "\r\n", " ", "\t",
    "\x7f", "1_000", "inf",
])  # fmt: skip
LINES = st.sampled_from([
    "a = 1", "b = [1, 2]", "a = []", "b = [1,]", '"a" = 1', "a.b = 2", "[a]", "[a.b]", "[b]",
    "[[a]]", "[[b]]", "[a . b]", "a = {b = 1}", "a = [[1]]", 'b = ["x""y"]', "# x", "b = [1 2]",
    "a = [\n1,\n 2,\n]", "a = [\n# c\n]", "b = [,]", "a = 1979-05-27", "b = [1.5, true]",
    "b = -1 # c", "", "a", 'a = {b = 1, c = "x = 2, y"}', "a = {b = 1, b = 2}", '["a"]', '["a".b]',
    '["a.b"]', '[a."b"]', 'a = [[1, 2], [], ["]"]]', "a = [[1], 2]", "a = {b = [1]}", "a = {}",
])  # fmt: skip
TEXTS = st.lists(PIECES, max_size=12).map("".join) | st.lists(LINES, max_size=6).map("\n".join)


@settings(max_examples=400, deadline=None)
@given(TEXTS)
@example("[a.b]\n[a]\nb = 1\n")
@example("a = {b = 1}\n[a]\n")
@example("[b]\na = {b = 1}\n[b.a.c]\n")
@example('[a]\n["a"]\n')
@example("[[a]]\n[a.b]\nb = 1\n[[a]]\n")
def test_any_text_means_what_tomllib_says(text):
    assert repr(meaning(plain.loads, text)) == repr(meaning(tomllib.loads, text))


@pytest.mark.parametrize("text", ["a = 1\nb = [\n", "a = 1\na = 2\n"])
def test_mistakes_are_told_as_before(text):
    with pytest.raises(tomllib.TOMLDecodeError) as mine:
        plain.loads(text)
    with pytest.raises(tomllib.TOMLDecodeError) as theirs:
        tomllib.loads(text)
    assert str(mine.value) == str(theirs.value)
