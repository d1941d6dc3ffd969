"""Products by groups of rows: their statements, and what they mean for every table of ends."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import polygen as pg
from polygen.errors import ArgumentError
from polygen.frontend.evaluate import evaluate, reference
from polygen.frontend.grouping import one_group
from polygen.frontend.groups import bounds, routed_ends
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Within

SIGNATURE = ("bf16[T,K]", "bf16[E,K,N]", "s32[E]")
TABLES = [
    [2, 2, 7],  # an empty group
    [0, 0, 0],  # no rows at all
    [7, 7, 7],  # all rows of the first
    [3, 5, 6],  # a row of none
    [5, 3, 6],  # unsorted
    [-4, 2, 5],  # negative
    [4, 99, 99],  # behind the last row
    [-(2**31), 2**31 - 1, 0],
]


def product(x, w, ends):
    return pg.grouped_matmul(x, w, ends)


def numbers(*shape):
    return np.random.default_rng(shape).integers(-3, 4, shape).astype(np.float64)


def by_hand(x, w, ends):
    """Row by row, as the definition says it."""
    found = np.full((len(x), w.shape[2]), np.nan)
    for t in range(len(x)):
        group = next((e for e, end in enumerate(ends) if t < end), None)
        if group is not None:
            found[t] = x[t] @ w[group]
    return found


def test_statements_run_over_groups_and_rows():
    @pg.fuse
    def layer(x, w, ends, b, r):
        return pg.relu(pg.grouped_matmul(x, w, ends) + pg.per_group(b, ends, x)) + r

    program = layer.program(*SIGNATURE, "bf16[E,N]", "bf16[T,N]")
    assert [str(s) for s in program.statements] == [
        "v0[g,i,j] += x[g.i,k] * w[g,k,j]",
        "v1[g,i,j] = add(v0[g,i,j], b[g,j])",
        "v2[g,i,j] = maximum(v1[g,i,j], 0.0)",
        "v3[g,i,j] = add(v2[g,i,j], r[g.i,j])",
        "y0[g.i,j] = cast(v3[g,i,j])",
    ]
    assert {s.domain[:2] for s in program.statements} == {(("g", "E"), ("i", "T"))}
    assert program.ends == "ends"
    assert program.tensors["ends"].alignment == 4
    write = program.statements[-1].write
    assert write.index == (Within("i", "g", "ends"), "j")
    assert write.by_group == write.iterators == ("g", "i", "j")


def test_iterators_over_groups_avoid_names_of_dims():
    program = pg.fuse(product).program("bf16[T,K]", "bf16[g,K,N]", "s32[g]")
    assert program.statements[0].domain[0] == ("e", "g")


def test_the_matrices_may_be_stored_the_other_way_round():
    function = pg.fuse(lambda x, w, ends: pg.grouped_matmul(x, w.mT, ends))
    program = function.program("bf16[T,K]", "bf16[E,N,K]", "s32[E]")
    assert str(program.contractions[0]) == "v0[g,i,j] += x[g.i,k] * w[g,j,k]"


@pytest.mark.parametrize("ends", TABLES)
def test_every_table_of_ends_means_what_the_definition_says(ends):
    x, w = numbers(7, 4), numbers(3, 4, 5)
    wanted = by_hand(x, w, ends)
    program = pg.fuse(product).program(*SIGNATURE)
    arrays = {"x": x, "w": w, "ends": np.array(ends, np.int64)}
    np.testing.assert_array_equal(evaluate(program, arrays, round_outputs=False)[0], wanted)
    np.testing.assert_array_equal(reference(product, [x, w, np.array(ends)]), wanted)


def test_bounds_partition_the_rows_in_front_of_the_greatest_end():
    for rows, count in itertools.product(range(4), range(1, 4)):
        for ends in itertools.product(range(-1, rows + 2), repeat=count):
            first, last = bounds(ends, rows)
            groups = [e for t in range(rows) for e in range(count) if first[e] <= t < last[e]]
            wanted = [next((e for e in range(count) if t < ends[e]), None) for t in range(rows)]
            assert groups == [e for e in wanted if e is not None]


def layer(x, w, v, ends, b, s, r):
    """A gated pair, vectors over columns and over groups, a matrix, a scale of every group."""
    up = pg.grouped_matmul(x, w, ends) + pg.per_group(b, ends, x)
    gate = pg.silu(pg.grouped_matmul(x, v, ends) * pg.per_group(s, ends, x)[:, None])
    i, _ = pg.indices(up)
    return pg.where(i >= 2, up * gate, -1.0) + r


@pytest.mark.filterwarnings("ignore:invalid value")  # of NaN, in rows that have no group
def test_epilogues_of_groups_mean_the_same_in_both_oracles():
    signature = ("f16[T,K]", "f16[E,K,N]", "f16[E,K,N]", "s32[E]", "f16[E,N]", "f32[E]", "f16[T,N]")
    program = pg.fuse(layer).program(*signature)
    arrays = [numbers(*s) for s in ((7, 4), (3, 4, 5), (3, 4, 5), (3,), (3, 5), (3,), (7, 5))]
    arrays[3] = np.array([1, 4, 6])
    wanted = reference(layer, arrays)
    given = dict(zip((t.name for t in program.inputs), arrays, strict=True))
    (found,) = evaluate(program, given, round_outputs=False)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert np.isnan(found[6]).all()
    assert np.isfinite(found[:6]).all()
    assert (found[:2] == arrays[6][:2] - 1).all()  # rows count from the first of all groups


def test_a_product_without_groups_may_stand_beside():
    def both(x, w, ends, shared):
        return pg.grouped_matmul(x, w, ends) + x @ shared

    program = pg.fuse(both).program(*SIGNATURE, "bf16[K,N]")
    assert [str(s) for s in program.contractions] == [
        "v0[g,i,j] += x[g.i,k] * w[g,k,j]",
        "v1[g,i,j] += x[g.i,k] * shared[k,j]",
    ]
    x, w, shared = numbers(7, 4), numbers(3, 4, 5), numbers(4, 5)
    arrays = {"x": x, "w": w, "ends": np.array([2, 2, 7]), "shared": shared}
    (found,) = evaluate(program, arrays, round_outputs=False)
    np.testing.assert_array_equal(found, by_hand(x, w, [2, 2, 7]) + x @ shared)


def test_expressions_given_as_text_have_groups():
    function = parse_expression("relu(grouped_matmul(x, w.mT, e) + per_group(b, e, x))", "xweb")
    program = pg.fuse(function).program("bf16[T,K]", "bf16[E,N,K]", "s32[E]", "bf16[E,N]")
    assert [str(s) for s in program.statements[:2]] == [
        "v0[g,i,j] += x[g.i,k] * w[g,j,k]",
        "v1[g,i,j] = add(v0[g,i,j], b[g,j])",
    ]


def test_one_group_alone_is_a_plain_product():
    program = pg.fuse(product).program(*SIGNATURE)
    alone = one_group(program, 2, 5, 3)
    assert [str(s) for s in alone.statements] == [
        "v0[i,j] += x[i+5,k] * w[2,k,j]",
        "y0[i,j] = cast(v0[i,j])",
    ]
    assert alone.statements[0].domain == (("i", 3), ("j", "N"), ("k", "K"))


def test_rows_that_go_to_groups_by_chance_all_go_somewhere():
    ends = routed_ends(64, 1000, 0)
    assert ends.dtype == np.int32
    assert ends[-1] == 1000
    pg.check_ends(ends, 1000)


@pytest.mark.parametrize(
    ("ends", "rows", "group", "legal"),
    [([3, 2], None, 1, "from 3"), ([-1, 2], 4, 0, "0 to 4"), ([1, 5], 4, 1, "1 to 4")],
)
def test_ends_that_are_no_prefix_sums_are_refused_on_request(ends, rows, group, legal):
    with pytest.raises(ArgumentError, match=f"group {group} ends at .*Legal there: {legal}"):
        pg.check_ends(np.array(ends), rows)


def test_ends_that_are_prefix_sums_pass():
    pg.check_ends(np.array([0, 0, 3, 3, 8], np.int32), 8)
    pg.check_ends([1, 2])


@pytest.mark.parametrize("ends", [np.zeros((2, 2), int), np.array([1.0])])
def test_what_is_no_vector_of_whole_numbers_is_refused(ends):
    with pytest.raises(ArgumentError, match="Pass whole numbers, one for each group"):
        pg.check_ends(ends)
