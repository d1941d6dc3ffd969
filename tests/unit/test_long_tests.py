"""Which tests are listed as long, and that the list names tests there are."""

from pathlib import Path

from long_tests import chosen, listed

ROOT = Path(__file__).parents[2]


def test_a_test_that_ran_is_listed_if_it_took_long():
    found = chosen({"a": 5.0, "b": 1.0, "c": 0.5}, ["b", "gone or not run"], 3.0)
    assert found == ["gone or not run"], "a is the only case of its test"
    assert chosen({"a": 50.0}, [], 3.0) == ["a"]


def test_the_shortest_case_of_a_test_stays():
    took = {"f[0]": 4.0, "f[1]": 3.5, "f[2]": 9.0, "g[0]": 4.0, "g[1]": 1.0}
    assert chosen(took, [], 3.0) == ["f[0]", "f[2]", "g[0]"]
    assert chosen({"f[0]": 14.0, "f[1]": 13.0}, [], 3.0) == ["f[0]", "f[1]"]


def test_the_list_names_functions_that_there_are():
    names = listed()
    assert names
    for test in {name.partition("[")[0] for name in names}:
        file, _, name = test.partition("::")
        function = name.rpartition("::")[2]
        assert f"def {function}(" in (ROOT / file).read_text(), test
