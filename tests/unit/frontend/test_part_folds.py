"""Folds over a part of an axis, and of values that are read in parts: what programs become."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.frontend.program import Contraction, Fold

X_W = ("bf16[M,K]", "bf16[128,K]")
VALUES = np.random.default_rng(0).integers(-2, 3, (6, 8)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).integers(-2, 3, (128, 8)).astype(np.float32)


def written(function, *signature):
    """Per product and fold, the extents of what it runs over, without the sum of products."""
    program = pg.fuse(function, name="parts").program(*signature)
    found = []
    for one in program.statements:
        if isinstance(one, Contraction):
            sizes = dict(one.domain)
            found.append(("product", tuple(sizes[it] for it in one.write.iterators)))
        elif isinstance(one, Fold):
            found.append((one.function, tuple(extent for _, extent in one.domain)))
    return found


def meant(function):
    """What the program means, of numbers, beside the function of them."""
    fused = pg.fuse(function, name="parts")
    return fused.reference(VALUES, WEIGHTS), function(VALUES, WEIGHTS)


def heads(x, w):
    return (x @ w.T).reshape(-1, 4, 32)


def most_of_heads(x, w):
    return np.max(heads(x, w), axis=-1)


def most_of_what_is_added(x, w):
    v = (x @ w.T + 1).reshape(-1, 4, 32)
    return v - np.max(v, axis=-1, keepdims=True)


def heads_in_another_order(x, w):
    v = heads(x, w)
    return v.swapaxes(0, 1), np.sum(v, axis=2)


def halves(x, w):
    v = x @ w.T
    v = v - np.max(v, axis=1, keepdims=True)
    return v[:, :64] - v[:, 64:]


def quarters_in_turns(x, w):
    v = x @ w.T
    v = v + np.sum(v * v, axis=1, keepdims=True)
    return v[:, ::4] + v[:, 1::4] - v[:, 2::4] - v[:, 3::4]


def halves_of_heads(x, w):
    v = heads(x, w)
    v = v * np.sum(abs(v), axis=-1, keepdims=True)
    return np.stack([v[..., :16], v[..., 16:]])


def halves_of_two_levels(x, w):
    v = heads(x, w)
    v = v - np.max(v, axis=-1, keepdims=True)
    v = v * np.sum(abs(v), axis=-1, keepdims=True)
    return v[..., :16] - v[..., 16:]


def one_head(x, w):
    v = (x @ w.T).reshape(-1, 1, 128)
    return v - np.max(v, axis=-1, keepdims=True)


def halves_of_one_head(x, w):
    v = (x @ w.T).reshape(-1, 1, 128)
    v = v - np.max(v, axis=-1, keepdims=True)
    return v[..., :64] * 2 - v[..., 64:]


def halves_of_heads_beside_others(x, w):
    """Of both sets of heads in one array, each has halves of its own."""
    y = x @ w.T
    q, k = y[:, :64].reshape(-1, 2, 32), y[:, 64:].reshape(-1, 2, 32)
    q, k = (v - np.max(v, axis=-1, keepdims=True) for v in (q, k))
    return q[..., :16] - q[..., 16:], k[..., :16] * 2 - k[..., 16:]


def beside_the_whole(x, w):
    v = x @ w.T
    return v, np.max(v.reshape(-1, 4, 32), axis=2)


def beside_what_is_made_of_the_whole(x, w):
    v = (x @ w.T) * 2 + 1
    heads = v.reshape(-1, 4, 32)
    most = np.max(abs(heads), axis=-1)
    return v, v.T, v.reshape(-1, 2, 64), v * np.repeat(most, 32, axis=1), heads - most[..., None]


def beside_groups_of_rows(x, w):
    v = x @ w.T
    return v * 2, np.max(v.reshape(-1, 2, 128), axis=1)


SPLIT = {
    halves_of_one_head: [*[("product", ("M", 1, 64))] * 2, ("max", ("M", 1, 64))],
    halves_of_heads_beside_others: [
        *[("product", ("M", 2, 16))] * 4,
        *[("max", ("M", 2, 16))] * 2,
    ],
    beside_the_whole: [("product", ("M", 4, 32)), ("max", ("M", 4, 32))],
    beside_what_is_made_of_the_whole: [("product", ("M", 4, 32)), ("max", ("M", 4, 32))],
    most_of_heads: [("product", ("M", 4, 32)), ("max", ("M", 4, 32))],
    most_of_what_is_added: [("product", ("M", 4, 32)), ("max", ("M", 4, 32))],
    heads_in_another_order: [("product", ("M", 4, 32)), ("sum", ("M", 4, 32))],
    halves: [("product", ("M", 64)), ("product", ("M", 64)), ("max", ("M", 64))],
    quarters_in_turns: [*[("product", ("M", 32))] * 4, ("sum", ("M", 32))],
    halves_of_two_levels: [
        *[("product", ("M", 4, 16))] * 2,
        ("max", ("M", 4, 16)),
        ("sum", ("M", 4, 16)),
    ],
    one_head: [("product", ("M", 1, 128)), ("max", ("M", 1, 128))],
    halves_of_heads: [*[("product", ("M", 4, 16))] * 2, ("sum", ("M", 4, 16))],
}


@pytest.mark.parametrize("function", SPLIT, ids=lambda one: one.__name__)
def test_folds_are_over_axes_of_products(function):
    assert written(function, *X_W) == SPLIT[function]
    got, wanted = meant(function)
    for one, other in zip(
        got if isinstance(got, tuple) else (got,),
        wanted if isinstance(wanted, tuple) else (wanted,),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def all_of_both(x, w):
    """Folded over all digits of an axis that is split: it may as well be whole."""
    return np.sum(heads(x, w), axis=(1, 2))


def unlike_parts(x, w):
    v = x @ w.T
    v = v - np.max(v, axis=1, keepdims=True)
    return v[:, :64] - v[:, 32:96]


def beside_folds_of_the_whole(x, w):
    v = x @ w.T
    return np.sum(v, axis=1), np.max(v.reshape(-1, 4, 32), axis=2)


def most_at(x, w):
    """An index of all columns is none of a part's."""
    v = x @ w.T
    best = np.argmax(v, axis=1)
    return (v + best[:, None])[:, :64] - (v + best[:, None])[:, 64:]


KEPT = {
    all_of_both: [("product", ("M", 128)), ("sum", ("M", 4, 32))],
    beside_folds_of_the_whole: [
        ("product", ("M", 128)),
        ("max", ("M", 4, 32)),
        ("sum", ("M", 128)),
    ],
    unlike_parts: [*[("product", ("M", 64)), ("product", ("M", 128))], ("max", ("M", 128))],
    most_at: [("product", ("M", 64)), ("product", ("M", 128)), ("argmax", ("M", 128))],
}


def test_groups_of_rows_lie_beside_the_whole():
    """A reshape of rows wants their number."""
    found = written(beside_groups_of_rows, "bf16[6,K]", "bf16[128,K]")
    assert found == [("product", (3, 2, 128)), ("max", (3, 2, 128))]
    for one, other in zip(*meant(beside_groups_of_rows), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_axis_of_one_index_is_none_of_the_product():
    program = pg.fuse(lambda x, w: (x @ w.T)[:, None]).program(*X_W)
    product, stored = program.statements
    assert dict(product.domain).keys() > dict(stored.domain).keys()
    assert str(stored.write) == "y0[i,0,j]"


@pytest.mark.parametrize("function", KEPT, ids=lambda one: one.__name__)
def test_others_stay_as_they_are_written(function):
    found = written(function, *X_W)
    assert {*KEPT[function]} == {*found}
