"""Maxima of bounded values: where a number serves as the reference, and where it would not."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.frontend.evaluate import evaluate
from polygen.rewrite.chain import Chain, chain

BF16 = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")
F16 = tuple(one.replace("bf16", "f16") for one in BF16)


def _chain(function, *signature: str) -> Chain:
    found = chain(pg.fuse(function).program(*(signature or BF16)))
    assert found is not None
    return found


def _capped(q, k, cap: float = 30.0):
    return pg.tanh((q @ k.mT) * (0.125 / cap)) * cap


def _weights(s):
    return pg.exp(s - pg.max(s, -1, True))


def _with_sink(s, v):
    """Rows that have one key more, of score one half and without values."""
    total = pg.sum(_weights(s), -1, True) + pg.exp(0.5 - pg.max(s, -1, True))
    return (_weights(s) @ v) / total


def test_a_soft_cap_leaves_a_sum_alone() -> None:
    found = _chain(lambda q, k, v: pg.softmax(_capped(q, k)) @ v)
    assert found.reference == "" and found.correction == ()
    assert [(s.monoid, s.rescaled) for s in found.states] == [("sum", False)]
    (step,) = (s for s in found.steps if "in its place" in s)
    assert "between -1 and 1" in step and "between 8.8e-27 and 1" in step


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: (pg.softmax(_capped(q, k)) @ v, pg.logsumexp(_capped(q, k), axis=-1)),
        lambda q, k, v: pg.softmax(pg.sigmoid(q @ k.mT)) @ v,
        lambda q, k, v: pg.softmax(pg.clip(q @ k.mT, -20.0, 20.0)) @ v,
        lambda q, k, v: pg.softmax(pg.sin(q @ k.mT) * 3.0 + 100.0) @ v,
        lambda q, k, v: _with_sink(_capped(q, k), v),
    ],
    ids=["log-sum-exp", "sigmoid", "clip", "far from 0", "sink"],
)  # fmt: skip
def test_other_bounded_scores(function) -> None:
    assert _chain(function).reference == ""


def test_masks_stay_ranges_of_keys() -> None:
    def function(q, k, v):
        s = _capped(q, k)
        i, j = pg.indices(s)[-2:]
        return pg.softmax(pg.where(i >= j, s, -np.inf)) @ v

    found = _chain(function)
    assert found.reference == "" and found.range is not None and found.range.upper == 0
    assert found.range.inside


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: pg.softmax((q @ k.mT) * 0.125) @ v,
        lambda q, k, v: pg.softmax(_capped(q, k, 50.0)) @ v,
        lambda q, k, v: pg.softmax(pg.minimum(q @ k.mT, 10.0)) @ v,
        lambda q, k, v: (pg.softmax(_capped(q, k)) @ v, pg.max(_capped(q, k), axis=-1)),
        lambda q, k, v: _weights(_capped(q, k)) @ v,
        lambda q, k, v: _weights(_capped(q, k)) @ v / (
            pg.sum(_weights(_capped(q, k)), -1, True) + 1.0
        ),
        lambda q, k, v: (
            pg.softmax(_capped(q, k)) @ v, pg.log(pg.sum(_weights(_capped(q, k)), -1))
        ),
    ],
    ids=["no bound", "too wide", "one side", "returned", "no quotient", "another sum", "its log"],
)  # fmt: skip
def test_where_the_maximum_stays(function) -> None:
    found = _chain(function)
    assert found.reference and found.states[0].monoid == "max" and found.correction


def test_the_operands_type_says_how_small_weights_may_be() -> None:
    """The least normal number of f16 is 2^-14."""
    wide, narrow = (
        lambda q, k, v, cap=cap: pg.softmax(_capped(q, k, cap)) @ v for cap in (5.0, 4.5)
    )
    assert _chain(lambda q, k, v: wide(q, k, v), *F16).reference
    assert not _chain(lambda q, k, v: narrow(q, k, v), *F16).reference


@pytest.mark.parametrize("shift", [0.0, -30.0, 30.0])
def test_what_is_left_gives_what_the_program_means(shift: float) -> None:
    """Also where all scores are at an end of their interval, and in rows without a key."""

    def function(q, k, v):
        s = pg.tanh((q @ k.mT) * 0.05 + shift) * 30.0
        i, j = pg.indices(s)[-2:]
        s = pg.where(i > j, s, -np.inf)
        return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)

    program = pg.fuse(function).program(*BF16)
    found = chain(program)
    assert found is not None and found.reference == ""
    rng = np.random.default_rng(3)
    arrays = {n: rng.standard_normal((2, 23, 64)) for n in "qkv"}
    given = {t.name: arrays[t.name] for t in found.scores.inputs}
    made = evaluate(found.scores, given, None, False)
    terms = dict(zip((t.name for t in found.scores.outputs), made, strict=True))
    (state,) = found.states
    given = {state.value: terms[state.term].sum(-1), found.weight: terms[found.weight]}
    with np.errstate(divide="ignore"):
        rows, log_sums = evaluate(found.values, given | {"v": arrays["v"]}, None, False)
    with np.errstate(invalid="ignore"):
        wanted, wanted_sums = evaluate(program, arrays, None, False)
    assert not rows[:, 0].any() and (log_sums[:, 0] == -np.inf).all()
    # The program rounds what it multiplies to bf16: relative 2^-8 of each weight.
    assert np.abs(rows - wanted)[:, 1:].max() <= 2.0**-8 * np.abs(arrays["v"]).max()
    assert np.abs(log_sums[:, 1:, 0] - wanted_sums[:, 1:]).max() <= 1e-12
