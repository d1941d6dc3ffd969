"""Which elements of sums are read, which tiles have products, and that no proof accepts fewer."""

from dataclasses import replace

import numpy as np
import pytest
from tile_mutants import CASES, SOME, emitted, kernel

import polygen as pg
from polygen import isl
from polygen.analysis import analysed
from polygen.errors import VerifyError
from polygen.poly.half_planes import said
from polygen.poly.needed import needed
from polygen.poly.refine import refine
from polygen.poly.tile_domain import (
    TileDomain,
    prove_tile_domain,
    tile_planes,
)
from polygen.poly.tile_walk import prove_walk, tile_walk

PLAIN = ("bf16[M,K]", "bf16[K,N]")


def masked(mask, other=0.0):
    def function(x, w):
        v = x @ w
        i, j = pg.indices(v)
        return pg.where(mask(i, j), pg.relu(v), other)

    return function


def plus(function):
    return lambda x, w: function(x, w) + x @ w


# what is written, and the half planes that its sums are read in
READ = {
    "lower": (lambda x, w: np.tril(x @ w), "m - n >= 0"),
    "upper": (lambda x, w: np.triu(pg.exp(x @ w) * 2, 3) + 1, "-m + n - 3 >= 0"),
    "band": (
        masked(lambda i, j: (i - j < 64) & (j - i < 64), 7),
        "-m + n + 63 >= 0 and m - n + 63 >= 0",
    ),
    "by distance": (masked(lambda i, j: abs(i - j) <= 5), "-m + n + 5 >= 0 and m - n + 5 >= 0"),
    "turned round": (masked(lambda i, j: ~(2 * i + 3 > j)), "-2 * m + n - 3 >= 0"),
    "either": (
        masked(lambda i, j: (i > j + 9) | ((i > j + 4) & (j > 3))), "m - n - 5 >= 0",
    ),
    "in one of two": (
        lambda x, w: np.tril(x @ w, -4) + np.tril(pg.relu(x @ w), -2), "m - n - 2 >= 0",
    ),
    "beside an array": (
        lambda x, w, b: pg.where(
            (b > 0) & (pg.indices(x @ w)[0] >= pg.indices(x @ w)[1]), x @ w, b
        ),
        "m - n >= 0",
    ),
    "everywhere too": (plus(masked(lambda i, j: i >= j)), ""),
    "by factors": (lambda x, w: (x @ w) * np.tril(x @ w), ""),
    "above and below": (lambda x, w: np.tril(x @ w) + np.triu(pg.exp(x @ w)), ""),
    "by large factors": (masked(lambda i, j: 3 * (3 * (3 * i)) >= 26 * j), ""),
    "by large numbers": (masked(lambda i, j: i + 2**21 >= j + 2**21), ""),
    "by a fraction": (masked(lambda i, j: i >= j + 0.25), ""),
    "of data": (lambda x, w, b: pg.where(b > 0, x @ w, b), ""),
    "every row": (masked(lambda i, j: i >= 0), ""),
    "no row": (masked(lambda i, j: i < 0), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_is_read_of_sums(name):
    function, planes = READ[name]
    more = ("bf16[M,N]",) if "b" in function.__code__.co_varnames[2:] else ()
    program = pg.fuse(function).program(*PLAIN, *more)
    assert said(analysed(program).prospect.matched.domain) == planes


def test_products_are_restricted_in_the_model():
    found = analysed(pg.fuse(lambda x, w: np.tril(x @ w)).program(*PLAIN))
    outside = isl.UnionSet("[M,K,N] -> { S0[i,j,k] : i < j; Z0[i,j] : i < j }")
    assert found.model.domain.intersect(outside).is_empty()
    assert not needed(pg.fuse(lambda x, w: x @ w).program(*PLAIN))


def brute(planes, tile, tall, wide):
    """Whether tiles have an element of every half plane."""
    rows, columns = np.indices((tall * tile[0], wide * tile[1]))
    met = np.ones((tall, wide), bool)
    for a, b, c in planes:
        inside = a * rows + b * columns + c >= 0
        met &= inside.reshape(tall, tile[0], wide, tile[1]).any(axis=(1, 3))
    return met


@pytest.mark.parametrize("along", ["m", "n"])
@pytest.mark.parametrize("planes", [
    ((1, -1, 0),), ((-1, 1, -40),), ((1, -1, 30), (-1, 1, 50)), ((1, -2, 9), (0, -1, 30)),
    ((3, 2, -70),), ((-1, -1, 90), (1, 0, -20)), ((0, 0, -1),),
])  # fmt: skip
def test_tiles_are_those_that_meet_every_half_plane(planes, along):
    for tile in ((16, 16), (32, 16), (24, 40)):
        domain = TileDomain(planes, tile, tile_planes(planes, tile))
        tall, wide = 7, 9
        wanted = brute(planes, tile, tall, wide)
        found = [[domain.has(row, column) for column in range(wide)] for row in range(tall)]
        np.testing.assert_array_equal(np.array(found), wanted)
        assert domain.count(tall * tile[0], wide * tile[1]) == wanted.sum()
        assert not domain.planes or prove_walk(tile_walk(domain, along, 4, 32))


def test_far_half_planes_are_left_out_rather_than_counted_too_far():
    assert tile_planes(((1000, -1, 0),), (16, 16)) == ()
    assert tile_planes(((1, -1, -(2**31)),), (1, 1)) == ()
    assert tile_planes(((1, 1, -5),), (16, 16)) == ()  # leaves no tile out


def test_a_tile_too_few_is_refused():
    instances = isl.UnionSet("[M,K,N] -> { S0[i,j,k] : 0 <= j <= i < M and j < N and 0 <= k < K }")
    tiles = isl.UnionMap("[M,K,N] -> { S0[i,j,k] -> [floor(i/32), floor(j/16)] }")
    right = TileDomain(((1, -1, 0),), (32, 16), tile_planes(((1, -1, 0),), (32, 16)))
    assert prove_tile_domain(right, instances, tiles)
    ((a, b, c),) = right.planes
    with pytest.raises(VerifyError, match=r"a product of a tile that has none: S0\["):
        prove_tile_domain(replace(right, planes=((a, b, c - 1),)), instances, tiles)


def some(name):
    """A kernel of which some tiles have no products, as it is emitted."""
    case = next(one for one in CASES if one.name == name)
    return emitted(kernel(replace(case, main=SOME)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["warps", "ping-pong, residual", "cluster of two"])
def test_kernels_with_such_tiles_are_proved_with_nothing_to_spare(name):
    assert refine(some(name))[-1].claim == "no synchronisation can be dropped"


# in which tree, the end of a domain, and what it is changed to
TREES = [
    ("warps", "warps", "inside = 1 and 0 <= k < k_tiles", "inside = 1 and 0 <= k < k_tiles - 1"),
    ("warps", "warps", "mma[k, s, m, n] : inside = 1", "mma[k, s, m, n] : inside = 2"),
    ("ping-pong, from registers", "consumer", "i < inside", "i < inside - 1"),
    ("ping-pong, from registers", "producer", "i < inside", "i <= inside"),
]


@pytest.mark.parametrize(("name", "place", "old", "new"), TREES)
def test_a_tree_that_skips_a_tile_with_products_is_refused(name, place, old, new):
    right = some(name)
    trees = []
    for tree in right.trees:
        if tree.place.name == place:
            assert old in tree.text
            tree = replace(tree, text=tree.text.replace(old, new))
        trees.append(tree)
    with pytest.raises(VerifyError, match=r"never executed|not in the program"):
        refine(replace(right, trees=tuple(trees)), necessary=False)
