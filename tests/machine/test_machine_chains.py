"""Whole attention kernels on the PTX machine: every form, random scores, no findings."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import numpy as np
import pytest
from chain_samples import arrays_of as _arrays
from chain_samples import bf16, few_rows
from chain_samples import run as _run

import polygen as pg
from polygen.comparison import operands_off


def softmax(q, k, v):
    return pg.softmax((q @ k.mT) * 0.125) @ v


@pytest.mark.parametrize(
    ("rows", "keys"), [(1, 1), (64, 128), (70, 130), (129, 257), (130, 16), (3, 400)]
)
def test_any_lengths(rows: int, keys: int) -> None:
    sides = ((1, rows, 64), (1, keys, 64), (1, keys, 64))
    signature = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")
    _run(softmax, signature, _arrays(rows, *sides))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("dtype", "depth", "columns"),
    [("bf16", 128, 128), ("f16", 64, 64), ("f16", 32, 48), ("bf16", 256, 256), ("bf16", 192, 128)],
)
def test_head_dims(dtype: str, depth: int, columns: int) -> None:
    kind = bf16 if dtype == "bf16" else np.float16
    arrays = _arrays(depth, (70, depth), (90, depth), (90, columns), dtype=kind)
    signature = (f"{dtype}[S,{depth}]", f"{dtype}[T,{depth}]", f"{dtype}[T,{columns}]")
    _run(softmax, signature, arrays)


def test_heads_inside_rows_are_read_in_place() -> None:
    def function(q, k, v):
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        return softmax(q, k, v).swapaxes(1, 2)

    arrays = _arrays(1, (2, 70, 2, 64), (2, 90, 2, 64), (2, 90, 2, 64))
    _run(function, ("bf16[B,S,H,64]", "bf16[B,T,H,64]", "bf16[B,T,H,64]"), arrays)


def test_groups_of_heads_share_keys() -> None:
    arrays = _arrays(2, (1, 2, 3, 70, 64), (1, 2, 1, 90, 64), (1, 2, 1, 90, 64))
    _run(softmax, ("bf16[B,K,G,S,64]", "bf16[B,K,1,T,64]", "bf16[B,K,1,T,64]"), arrays)


def test_log_sums_are_a_second_output() -> None:
    def function(q, k, v):
        s = (q @ k.mT) * 0.125
        return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)

    arrays = _arrays(3, (2, 70, 64), (2, 150, 64), (2, 150, 64))
    found, wanted = _run(function, ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]"), arrays)
    assert np.abs(found[1] - wanted[1]).max() < 1e-5


@pytest.mark.parametrize("turned", [False, True], ids=["rows first", "rows last"])
def test_log_sums_beside_values_whose_axes_are_in_another_order(turned: bool) -> None:
    """Heads lie inside of the values' rows, in the order of whose axes log-sum-exp is or is not."""

    def function(q, k, v):
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        s = (q @ k.mT) * 0.125
        found = pg.logsumexp(s, axis=-1) + 1
        return (pg.softmax(s) @ v).swapaxes(1, 2), found.swapaxes(1, 2) if turned else found

    arrays = _arrays(13, (2, 70, 3, 64), (2, 90, 3, 64), (2, 90, 3, 64))
    signature = ("bf16[B,S,H,64]", "bf16[B,T,H,64]", "bf16[B,T,H,64]")
    found, wanted = _run(function, signature, arrays)
    assert np.abs(found[1] - wanted[1]).max() < 1e-5


def _masked(seen: Callable) -> Callable:
    def function(q, k, v):
        s = (q @ k.mT) * 0.125
        i, j = pg.indices(s)[-2:]
        s = pg.where(seen(i, j), s, -np.inf)
        return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)

    return function


@pytest.mark.parametrize(
    "seen",
    [
        lambda i, j: i >= j,
        lambda i, j: j - i <= 30,
        lambda i, j: pg.logical_and(i >= j, i - j < 100),
        lambda i, j: j >= i + 20,
    ],
    ids=["causal", "ahead", "window", "behind"],
)
def test_masks_by_rows_and_keys(seen) -> None:
    arrays = _arrays(4, (1, 300, 64), (1, 280, 64), (1, 280, 64))
    signature = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")
    found, wanted = _run(_masked(seen), signature, arrays)
    empty = ~np.isfinite(wanted[0]).all(axis=-1)  # rows without a key
    assert (found[0].astype(np.float64)[empty] == 0.0).all()
    assert (found[1][empty] == -np.inf).all()


def test_tiles_outside_a_mask_are_never_visited() -> None:
    arrays = _arrays(5, (1, 192, 64), (1, 2560, 64), (1, 2560, 64))
    signature = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")
    count = {}
    for name, function in (("all", softmax), ("causal", _masked(lambda i, j: i >= j))):
        kernel = pg.fuse(function).compile(*signature, arch="sm_90a")
        count[name] = kernel.emulation(*arrays).report.instructions
    # 2 tiles of 20; masked ones cost more.
    assert count["causal"] < 0.5 * count["all"]


def test_equal_large_and_absent_scores() -> None:
    q, k, v = _arrays(6, (70, 64), (130, 64), (130, 64))
    signature = ("bf16[S,64]", "bf16[T,64]", "bf16[T,64]")
    _run(softmax, signature, [np.zeros_like(q), k, v])
    _run(softmax, signature, [(q * bf16(30)).astype(bf16), k, v])
    k[64:] = k[0]
    _run(softmax, signature, [q, k, v])


@pytest.mark.parametrize(
    ("cap", "size"),
    [
        (5.0, 0.3), (30.0, 4.0), (50.0, 0.3),
        pytest.param(5.0, 4.0, marks=pytest.mark.slow),
        pytest.param(30.0, 0.3, marks=pytest.mark.slow),
        pytest.param(50.0, 4.0, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_soft_caps_below_and_far_beyond(cap: float, size: float) -> None:
    """Tangents that become exponents: as precise as the weights, wherever scores are. Beyond a cap
    of 30.5 weights under it could be less than 2^-88, and the maximum is folded.
    """

    def capped(q, k, v):
        s = pg.tanh((q @ k.mT) * 0.125 / cap) * cap
        return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)

    q, k, v = arrays = _arrays(11, (1, 70, 64), (1, 200, 64), (1, 200, 64))
    arrays = [(q * bf16(size)).astype(bf16), (k * bf16(size)).astype(bf16), v]
    signature = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")
    kernel = pg.fuse(capped).compile(*signature, arch="sm_90a")
    name = "tanh_of_score" if cap == 50.0 else "scaled_tanh"
    assert f"= {name}(score, 0.0" in kernel.source
    assert ("rescale" in kernel.source) == (cap == 50.0)
    found, wanted = _run(capped, signature, arrays)
    assert np.abs(found[1] - wanted[1]).max() < cap * 2.0**-20


def test_under_a_soft_cap_rows_do_not_depend_on_others() -> None:
    """Tangents of a tile without a large score are shorter, with the same bits."""

    def capped(q, k, v):
        return pg.softmax(pg.tanh((q @ k.mT) * 0.125 / 5.0) * 5.0) @ v

    q, k, v = _arrays(12, (70, 64), (200, 64), (200, 64))
    q = (q * bf16(0.3)).astype(bf16)
    signature = ("bf16[S,64]", "bf16[T,64]", "bf16[T,64]")
    kernel = pg.fuse(capped).compile(*signature, arch="sm_90a")
    small = kernel.emulation(q, k, v)
    q[5] = (q[5] * bf16(50)).astype(bf16)
    mixed = kernel.emulation(q, k, v)
    assert small.report.findings == mixed.report.findings == ()
    same = (small.results == mixed.results).all(axis=-1)
    assert not same[5] and same[np.arange(70) != 5].all()
    assert mixed.report.instructions > small.report.instructions + 500


def test_scores_that_are_no_exponents_have_the_precise_tangent() -> None:
    arrays = _arrays(7, (70, 64), (64, 96), (96, 64))
    arrays[1] = (arrays[1] * bf16(0.1)).astype(bf16)
    signature = ("bf16[M,64]", "bf16[64,R]", "bf16[R,64]")
    function = lambda x, a, b: pg.tanh(x @ a) @ b  # noqa: E731
    assert "fast_tanh(" in pg.fuse(function).compile(*signature, arch="sm_90a").source
    _run(function, signature, arrays)


def test_no_folds_between() -> None:
    arrays = _arrays(7, (70, 64), (64, 96), (96, 64))
    arrays[1] = (arrays[1] * bf16(0.1)).astype(bf16)
    signature = ("bf16[M,64]", "bf16[64,R]", "bf16[R,64]")
    _run(lambda x, a, b: pg.gelu(x @ a) @ b, signature, arrays)
    _run(lambda x, a, b: pg.sigmoid(x @ a) @ b, signature, arrays)


def _off_by_one(q, k, v):
    """Softmax that may attend to nothing: a score of 0 beside all others."""
    s = q @ k.mT
    m = np.maximum(np.max(s, axis=-1, keepdims=True), 0)
    e = np.exp(s - m)
    return (e / (np.exp(-m) + np.sum(e, axis=-1, keepdims=True))) @ v


def _sink_of_a_head(q, k, v, sink):
    e = np.exp((q @ k.mT) * 0.125)
    return (e / (np.exp(sink[:, None, None]) + np.sum(e, axis=-1, keepdims=True))) @ v


def _gated_by_its_sink(q, k, v, sink):
    """The same, however large scores are: what the sink leaves is a gate of the row."""
    s = (q @ k.mT) * 0.125
    return (pg.softmax(s) @ v) * pg.sigmoid(pg.logsumexp(s, axis=-1) - sink[:, None])[..., None]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("function", [_off_by_one, _sink_of_a_head, _gated_by_its_sink])
def test_what_is_made_of_a_row_divides_it(function, arch):
    """Work on states at every key is work of the row, and leaves the second product."""
    sides = ("bf16[B,H,S,64]", "bf16[B,H,T,64]", "bf16[B,H,T,64]")
    signature = sides if function is _off_by_one else (*sides, "f32[H]")
    sizes = {"B": 1, "H": 2, "S": 40, "T": 72}
    kernel = pg.fuse(function, name="sink").compile(*signature, arch=arch, sizes=sizes)
    report = kernel.check(sizes)
    assert report.ok, str(report)


def test_results_of_32_bits_are_judged_by_what_is_rounded_between_products():
    """Weights are rounded before a row's sum divides them: within a share of all terms."""

    def wide(q, k, v):
        return softmax(q, k, v).astype("f32")

    kernel = pg.fuse(wide).compile("bf16[S,64]", "bf16[T,64]", "bf16[T,64]", arch="sm_80")
    report = kernel.check({"S": 40, "T": 72})
    assert report.ok, str(report)
    assert list(operands_off(kernel.program).values()) == [2.0**-7]


def test_sinks_and_gates() -> None:
    def function(q, k, v, z, g):
        s = (q @ k.mT) * 0.2
        m = pg.max(s, -1, True)
        e = pg.exp(s - m)
        return (e @ v) / (pg.sum(e, -1, True) + pg.exp(z[:, None, None] - m)) * pg.sigmoid(g)

    arrays = _arrays(8, (2, 70, 64), (2, 90, 64), (2, 90, 64))
    arrays += [np.float32([0.3, 1.0]), _arrays(9, (2, 70, 64))[0]]
    signature = ("bf16[H,S,64]", "bf16[H,T,64]", "bf16[H,T,64]", "f32[H]", "bf16[H,S,64]")
    _run(function, signature, arrays)


# --- random scores -------------------------------------------------------------------------------
def _random_scores(seed: int, *, ends: bool) -> Callable:
    """A score program: some steps on the scaled product, any of them a mask; `ends`: and a last one
    by an array that says where the keys of a row end.
    """
    choose = random.Random(seed)
    steps: list[Callable] = []
    for _ in range(choose.randint(1, 3)):
        number = choose.uniform(0.2, 2.0)
        shift = choose.randint(-40, 40)
        steps.append(
            choose.choice(
                [
                    lambda s, i, j, c=number: s * c,
                    lambda s, i, j, c=number: pg.tanh(s * (1 / c)) * c,
                    lambda s, i, j, c=number: s + (j - i) * (c * 0.01),
                    lambda s, i, j, c=number: pg.where(s > c, s, s * 0.5),
                    lambda s, i, j, d=shift: pg.where(i + d >= j, s, -np.inf),
                    lambda s, i, j, d=shift: pg.where(j + 50 >= i + d, s, -np.inf),
                    lambda s, i, j, c=number: pg.abs(s) - c,
                ]
            )
        )

    def scores(q, k):
        s = (q @ k.mT) * 0.125
        i, j = pg.indices(s)[-2:]
        for step in steps:
            s = step(s, i, j)
        return s, j

    def function(q, k, v):
        return pg.softmax(scores(q, k)[0]) @ v

    def with_ends(q, k, v, end):
        s, j = scores(q, k)
        return pg.softmax(pg.where(j < end[:, None], s, -np.inf)) @ v

    return with_ends if ends else function


MORE_SCORES = int(os.environ.get("POLYGEN_SCORES", "10"))  # random programs; 304 have been run


@pytest.mark.parametrize("seed", range(4))
def test_random_scores(seed: int) -> None:
    _random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, MORE_SCORES))
def test_more_random_scores(seed: int) -> None:
    _random(seed)


def _random(seed: int) -> None:
    choose = random.Random(seed)
    rows, keys = choose.randint(1, 200), choose.randint(1, 300)
    arrays = _arrays(seed, (1, rows, 64), (1, keys, 64), (1, keys, 64))
    signature = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")
    schedule = few_rows(choose.choice((64, 128))) if choose.random() < 0.3 else "auto"
    ends = choose.random() < 0.3
    if ends:
        bounds = np.random.default_rng(seed).integers(-3, keys + 3, rows)
        arrays, signature = [*arrays, bounds.astype(np.int32)], (*signature, "s32[S]")
    _run(_random_scores(seed, ends=ends), signature, arrays, schedule=schedule)
