"""Layers in front of a chain: what is one, and what is refused of products in a row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polygen as pg
from polygen.chained import whole_dims
from polygen.errors import UnsupportedProgram
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program
from polygen.rewrite.chain import chain
from polygen.rewrite.layers import layers_in_front, stages

FOUR = ("bf16[M,32]", "bf16[32,48]", "bf16[48,64]", "bf16[64,40]", "bf16[40,24]")


def four(x, a, b, c, d):
    return pg.relu(pg.relu(pg.relu(x @ a) @ b) @ c) @ d


def gated(x, g, u, d):
    return (pg.silu(x @ g) * (x @ u)) @ d


def program(function: Callable, *signature: str) -> Program:
    return pg.fuse(function).program(*signature)


def test_four_products_are_two_layers_and_a_chain() -> None:
    layers, rest = layers_in_front(program(four, *FOUR))
    assert [one.made for one in layers] == ["v2", "v5"]
    assert [[s.name for s in one.program.statements] for one in layers] == [
        ["S0", "P1", "P2"], ["S3", "P4", "P5"],
    ]  # fmt: skip
    assert [t.name for t in layers[1].program.inputs] == ["v2", "b"]
    assert [t.name for t in rest.inputs] == ["v5", "c", "d"]
    found = chain(program(four, *FOUR))
    assert found is not None and found.layers == layers and found.weight == "v8"


def test_what_the_parts_compute_is_what_the_whole_does() -> None:
    whole = program(four, *FOUR)
    rng = np.random.default_rng(0)
    shapes = [(5, 32), (32, 48), (48, 64), (64, 40), (40, 24)]
    arrays = {t.name: rng.integers(-1, 2, one) for t, one in zip(whole.inputs, shapes, strict=True)}
    (wanted,) = evaluate(whole, arrays)
    layers, rest = layers_in_front(whole)
    for one in layers:
        (arrays[one.made],) = evaluate(one.program, arrays)
    (found,) = evaluate(rest, arrays)
    assert np.array_equal(found, wanted) and wanted.any()


def test_products_of_the_same_rows_are_one_stage() -> None:
    found = stages(program(gated, "bf16[M,32]", "bf16[32,48]", "bf16[32,48]", "bf16[48,24]"))
    assert [([one.name for one in stage.products], stage.rows) for stage in found] == [
        (["S0", "S1"], "x"), (["S5"], "v4"),
    ]  # fmt: skip


def test_two_products_have_no_layers() -> None:
    two = program(lambda x, a, b: pg.relu(x @ a) @ b, *FOUR[:3])
    assert layers_in_front(two) == ((), two)


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (lambda x, y, a, b, c: (pg.relu(x @ a) + pg.relu(y @ b)) @ c,
         ("bf16[M,32]", "bf16[M,32]", "bf16[32,32]", "bf16[32,32]", "bf16[32,32]")),
        (lambda x, w, a, b: x @ w + (x @ a) @ b,
         ("bf16[M,32]", "bf16[32,48]", "bf16[32,16]", "bf16[16,48]")),
        (lambda x, a, b, c: (pg.relu(x @ a) @ b) * (pg.relu(x @ a) @ c),
         ("bf16[M,32]", "bf16[32,32]", "bf16[32,48]", "bf16[32,48]")),
    ],
    ids=["two arrays of rows", "a sum with a rest", "two at the end"],
)  # fmt: skip
def test_products_that_are_not_in_a_row_have_no_stages(function, signature) -> None:
    assert stages(program(function, *signature)) == []


def test_inner_widths_are_taken_from_the_arrays_of_a_call() -> None:
    symbolic = ("bf16[M,A]", "bf16[A,B]", "bf16[B,C]", "bf16[C,D]", "bf16[D,E]")
    assert whole_dims(program(four, *symbolic)) == ("A", "B", "C", "E")  # D: keys, any number


def residual(x, a, b, c):
    h = pg.relu(x @ a)
    return pg.relu(pg.relu(h @ b) + h) @ c


def across_layers(x, a, b, c, d):
    h = pg.relu(x @ a)
    g = pg.relu(h @ b)
    return pg.relu(pg.relu(g @ c) + h) @ d


def behind(x, a, b, c):
    h = pg.relu(x @ a)
    return pg.relu(h @ b) @ c + h


def inside(x, a, b, c):
    s = x @ a
    return pg.relu(pg.relu(pg.relu(s) @ b) + pg.silu(s)) @ c


def twice(x, a, b, c):
    h = pg.relu(x @ a)
    return (pg.relu(h @ b) + h - h.astype("bf16") * 2.0) @ c


@pytest.mark.parametrize(
    ("function", "given", "kept"),
    [(residual, 4, ["v1"]), (across_layers, 5, ["v1", "v5"])],
)
def test_what_a_layer_makes_is_read_again(function, given: int, kept: list[str]) -> None:
    """Before it is rounded for the product, where that is what is read."""
    found = chain(program(function, *["bf16[32,32]"] * given))
    assert [one.kept for one in found.layers] == kept
    assert next(one.made for one in found.layers) == "v2"
    assert "v1" in {tensor.name for tensor in found.scores.inputs}


def test_what_a_layer_makes_is_read_behind_the_last_product() -> None:
    found = chain(program(behind, *SQUARE))
    assert [one.kept for one in found.layers] == ["v1"] and found.kept == found.weight
    assert "v1" in {tensor.name for tensor in found.values.inputs}
    two = chain(program(lambda x, a, b: (h := pg.relu(x @ a)) + h @ b, *SQUARE[:3]))
    assert (two.kept, two.weight, two.layers) == ("v1", "v2", ())


def returned(x, a, b, c):
    h = pg.relu(x @ a).astype("bf16")
    g = h @ b
    return pg.relu(g) @ c, h, g


def test_results_are_of_the_products_whose_sums_they_are_made_of() -> None:
    found = chain(program(returned, *SQUARE))
    (layer,) = found.layers
    assert [one.name for one in layer.returned] == ["y1"]
    assert [one.name for one in found.returned] == ["y2"]
    assert [one.name for one in found.values.outputs] == ["y0"]


def test_the_parts_of_a_program_with_results_of_layers_compute_what_it_does() -> None:
    whole = program(returned, *SQUARE)
    rng = np.random.default_rng(1)
    arrays = {t.name: rng.integers(-1, 2, (32, 32)) for t in whole.inputs}
    wanted = evaluate(whole, arrays)
    layers, rest = layers_in_front(whole)
    (layer,) = layers
    arrays[layer.made], first = evaluate(layer.program, arrays)
    last, second = evaluate(rest, arrays)
    for one, other in zip((last, first, second), wanted, strict=True):
        assert np.array_equal(one, other) and other.any()


def test_rows_with_results_at_every_key_have_all_keys() -> None:
    """A mask is computed there, and hides no tile of keys."""

    def masked(x, a, b, *, results: bool):
        s = pg.relu(x @ a)
        i, j = pg.indices(s)
        s = pg.where(j <= i, s, 0.0)
        return (s @ b, s) if results else s @ b

    with_ = chain(program(lambda x, a, b: masked(x, a, b, results=True), *SQUARE[:3]))
    without = chain(program(lambda x, a, b: masked(x, a, b, results=False), *SQUARE[:3]))
    assert (with_.range is None) and (without.range is not None)


def summed(x, a, b, c):
    h = pg.relu(x @ a)
    return pg.relu(h @ b) @ c, h.sum(axis=-1)


def both(x, a, b):
    h = pg.relu(x @ a)
    return h @ b + h - h.astype("bf16") * 2.0


def folded(x, a, b, c):
    return pg.relu(pg.softmax(x @ a) @ b) @ c


def turned(x, a, b, c, d):
    return pg.relu(pg.relu(pg.relu(x @ a).mT @ b) @ c) @ d


def computed(x, a, b, c):
    return pg.relu(pg.relu((x + 2.0) @ a) @ b) @ c


SQUARE = ("bf16[32,32]", "bf16[32,32]", "bf16[32,32]", "bf16[32,32]")
REFUSED = {
    "in the middle of a layer": (inside, SQUARE, "of a layer before"),
    "two values of a layer": (twice, SQUARE, "are read again, of one layer"),
    "a fold that is returned": (summed, SQUARE, "lies between the layers S0 and S"),
    "two values behind": (both, SQUARE[:3], "are read behind S"),
    "a fold": (folded, SQUARE, "folds of a row run between the last two products alone"),
    "turned": (turned, (*SQUARE, "bf16[32,32]"), "does not multiply the rows of v2"),
    "computed rows": (computed, SQUARE, "which is computed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_more_than_the_next_product_reads_is_refused(name: str) -> None:
    function, signature, says = REFUSED[name]
    with pytest.raises(UnsupportedProgram, match=says):
        chain(program(function, *signature))
