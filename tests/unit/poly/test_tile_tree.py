"""Trees over all statements: filtered, filled with leaves, printed for isl."""

import pytest

from polygen import isl
from polygen.poly.tile_tree import (
    Leaf,
    Steps,
    depth,
    filtered,
    insert,
    isl_text,
    leaves,
    level_children,
    loop,
    loops_around,
    replace_leaf,
    steps,
    times,
    without,
)

TREE = steps(
    "a", loop("k", steps("b", loop("s", "c"), "d"), "separate[x]", b="k - 1"), loop("r", "e")
)


def test_leaves_stand_in_the_order_of_the_text():
    assert leaves(TREE) == ("a", "b", "c", "d", "e")


def test_a_loop_says_when_each_leaf_runs():
    around = loops_around(TREE, "b")
    assert [one.variable for one in around] == ["k"]
    assert (around[0].time("b"), around[0].time("c")) == ("k - 1", "k")
    assert (depth(TREE, "a"), depth(TREE, "c")) == (0, 2)


def test_a_filtered_tree_keeps_loops_that_have_something_left():
    found = filtered(TREE, {"c", "e"})
    assert leaves(found) == ("c", "e")
    assert [one.variable for one in loops_around(found, "c")] == ["k", "s"]
    assert dict(loops_around(found, "c")[0].times) == {"c": "k"}
    assert filtered(TREE, ()) is None
    assert leaves(without(TREE, "b", "e")) == ("a", "c", "d")


def test_time_vectors_have_one_length_and_follow_the_tree():
    assert times(TREE) == {
        "a": ("0", "0", "0", "0"),
        "b": ("1", "k - 1", "0", "0"),
        "c": ("1", "k", "1", "s"),
        "d": ("1", "k", "2", "0"),
        "e": ("2", "r", "0", "0"),
    }


@pytest.mark.parametrize(
    ("level", "near", "after", "order", "around"),
    [
        (1, ("c",), False, ("a", "b", "x", "c", "d", "e"), ["k"]),
        (1, ("c",), True, ("a", "b", "c", "x", "d", "e"), ["k"]),
        (1, ("b", "d"), True, ("a", "b", "c", "d", "x", "e"), ["k"]),
        (2, ("c",), False, ("a", "b", "x", "c", "d", "e"), ["k", "s"]),
        (0, ("b",), False, ("a", "x", "b", "c", "d", "e"), []),
        (0, ("e",), True, ("a", "b", "c", "d", "e", "x"), []),
    ],
)
def test_a_leaf_is_inserted_under_as_many_loops_as_asked(level, near, after, order, around):
    when = ("k + 1", "s")[:level]
    found = insert(TREE, level, near, "x", when, after=after)
    assert leaves(found) == order
    loops = loops_around(found, "x")
    assert [one.variable for one in loops] == around
    assert tuple(one.time("x") for one in loops) == when
    assert without(found, "x") == TREE or level == 2  # a loop's only leaf became a sequence


def test_a_leaf_becomes_a_loop():
    found = replace_leaf(TREE, "d", loop("q", "d"))
    assert [one.variable for one in loops_around(found, "d")] == ["k", "q"]
    assert leaves(found) == leaves(TREE)


def test_children_under_some_loops():
    assert [leaves(child) for child in level_children(TREE, 0, "c")] == [
        ("a",), ("b", "c", "d"), ("e",),
    ]  # fmt: skip
    assert [leaves(child) for child in level_children(TREE, 1, "c")] == [("b",), ("c",), ("d",)]
    assert level_children(TREE, 2, "c") == (Leaf("c"),)


def test_the_text_is_the_tree_that_isl_reads():
    coordinates = {"a": "", "b": "k", "c": "k,s", "d": "k", "e": "r"}
    domain = (
        "[n] -> { a[]; b[k] : 0 < k <= n; c[k,s] : 0 <= k < n and 0 <= s < 2; "
        "d[k] : 0 <= k < n; e[r] : 0 <= r < 3 }"
    )
    text = isl_text(TREE, domain, "[n] -> ", lambda name: f"{name}[{coordinates[name]}]", "n >= 1")
    schedule = isl.Schedule(text)
    found = schedule.get_map().intersect_domain(schedule.get_domain())
    wanted = "; ".join(
        f"{name}[{coordinates[name]}] -> [{','.join(vector)}]"
        for name, vector in times(TREE).items()
    )
    expected = isl.UnionMap(f"[n] -> {{ {wanted} }}").intersect_domain(isl.UnionSet(domain))
    known = isl.Set("[n] -> { : n >= 1 }")
    assert found.intersect_params(known).is_equal(expected.intersect_params(known))
    for part in ('mark: "k"', "separate", "context"):
        assert part in isl.to_yaml(schedule)


def test_steps_take_names_and_trees():
    assert steps("a", Leaf("b")) == Steps((Leaf("a"), Leaf("b")))
