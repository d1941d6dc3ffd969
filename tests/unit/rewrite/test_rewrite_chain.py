"""Chains of products as scans: what is derived, and what is refused with a counterexample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polygen as pg
from polygen.errors import UnsupportedProgram
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program
from polygen.rewrite.chain import Chain, chain, products_in_chain
from polygen.rewrite.separation import correction

SIGNATURE = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")


def softmax(q, k, v):
    return pg.softmax((q @ k.mT) * 0.125) @ v


def with_log_sum(q, k, v):
    s = (q @ k.mT) * 0.125
    return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)


def masked(low, high):
    def function(q, k, v):
        s = (q @ k.mT) * 0.125
        i, j = pg.indices(s)[-2:]
        seen = i >= j if low is None else pg.logical_and(i - j >= -high, i - j < -low)
        return pg.softmax(pg.where(seen, s, -np.inf)) @ v

    return function


def _chain(function, *signature: str) -> Chain:
    found = chain(pg.fuse(function).program(*(signature or SIGNATURE)))
    assert found is not None
    return found


def test_softmax_is_a_maximum_with_two_sums_that_it_rescales() -> None:
    found = _chain(softmax)
    kinds = [(s.monoid, s.rescaled) for s in found.states]
    assert kinds == [("max", False), ("sum", True)]
    assert found.reference == found.states[0].value
    factor = "exp(neg(mul(m', 0.125)) - neg(mul(m, 0.125)))"
    assert correction(found.correction) == factor
    assert "a positive factor leaves a maximum" in found.steps[0]
    assert "the same for all keys" in found.steps[1]


def test_log_sum_exp_shares_the_states_of_softmax() -> None:
    found = _chain(with_log_sum)
    assert len(found.states) == 2
    assert [tensor.name for tensor in found.rows] == ["y1"]
    assert "logsumexp" in found.steps[0]


def _scanned(found: Chain, program: Program, arrays: dict[str, np.ndarray], block: int):
    """The chain as its own statements say it, block of keys after block."""
    keys = next(t for t in program.inputs if t.name == "v").dims[-2]
    columns = arrays["v"].shape[-2]
    states: dict[str, np.ndarray] = {}
    total = None
    for first in range(0, columns, block):
        part = {n: a[..., first : first + block, :] for n, a in arrays.items() if n in "kv"}
        given = {"q": arrays["q"], **part}
        names = [t.name for t in found.scores.outputs]
        row = arrays["q"].shape[:-1]
        old = states.get(found.reference, np.full(row, -np.inf))
        trial = {n: np.zeros(row) for n in (s.value for s in found.states)}
        open_ = dict(zip(names, evaluate(found.scores, given | trial, None, False), strict=True))
        x = open_[found.states[0].term]
        new = np.maximum(old, x.max(axis=-1))
        terms = dict(
            zip(
                names,
                evaluate(found.scores, given | {found.reference: new}, None, False),
                strict=True,
            )
        )
        c = np.exp(0.125 * (old - new))
        for state in found.states[1:]:
            states[state.value] = states.get(state.value, 0.0) * c + terms[state.term].sum(-1)
        more = terms[found.weight] @ part["v"]
        total = more if total is None else total * c[..., None] + more
        states[found.reference] = new
    assert keys == "T"
    return states, total


@pytest.mark.parametrize("block", [1, 5, 32])
def test_blocks_of_the_scan_give_what_the_program_means(block: int) -> None:
    program = pg.fuse(softmax).program(*SIGNATURE)
    rng = np.random.default_rng(block)
    arrays = {n: rng.standard_normal((2, 23, 64)) for n in "qkv"}
    found = chain(program)
    assert found is not None
    states, total = _scanned(found, program, arrays, block)
    (wanted,) = evaluate(program, arrays, None, False)
    made = total / states[found.states[1].value][..., None]
    # The program rounds what it multiplies to bf16: relative 2^-8 of each weight.
    assert np.abs(made - wanted).max() <= 2.0**-8 * np.abs(arrays["v"]).max()


@pytest.mark.parametrize(
    ("low", "high", "lower", "upper"), [(None, 0, None, 0), (-100, 0, -99, 0), (-1, 64, 0, 64)]
)
def test_affine_masks_are_ranges_of_keys(low, high, lower, upper) -> None:
    found = _chain(masked(low, high)).range
    assert found is not None and found.inside
    assert (found.lower, found.upper) == (lower, upper)


def test_a_mask_whose_other_side_counts_is_no_range() -> None:
    def function(q, k, v):
        s = (q @ k.mT) * 0.125
        i, j = pg.indices(s)[-2:]
        return pg.softmax(pg.where(i >= j, s, -5.0)) @ v

    assert _chain(function).range is None


def test_programs_without_a_chain_are_left_alone() -> None:
    program = pg.fuse(lambda x, u, w: pg.silu(x @ u) * (x @ w)).program(
        "bf16[M,K]", "bf16[K,N]", "bf16[K,N]"
    )
    assert products_in_chain(program) is None and chain(program) is None


def test_a_term_that_is_no_factor_is_refused_with_numbers() -> None:
    def function(q, k, v):
        s = (q @ k.mT) * 0.125
        return pg.tanh(s - pg.max(s, axis=-1, keepdims=True)) @ v

    with pytest.raises(UnsupportedProgram) as error:
        _chain(function)
    assert "dependence F2 ->" in str(error.value)
    assert "changes by the factor" in str(error.value)


def test_two_references_are_refused() -> None:
    def function(q, k, v):
        s = (q @ k.mT) * 0.125
        m = pg.max(s, axis=-1, keepdims=True)
        return pg.exp(s - m - pg.max(pg.exp(s - m), axis=-1, keepdims=True)) @ v

    with pytest.raises(UnsupportedProgram, match="one of each row"):
        _chain(function)


def test_a_mean_that_terms_read_is_refused() -> None:
    def function(q, k, v):
        s = (q @ k.mT) * 0.125
        return pg.relu(s - pg.mean(s, axis=-1, keepdims=True)) @ v

    with pytest.raises(UnsupportedProgram, match="known behind the last key"):
        _chain(function)


def test_what_rules_separate_is_tried_on_numbers() -> None:
    found = _chain(softmax)
    # One factor less than there is: the check on numbers is what would find a wrong rule.
    from polygen.rewrite.separation import _counterexample
    from polygen.rewrite.values import Values

    values = Values(found.scores.statements)
    term = found.states[1].term
    assert _counterexample(values, term, found.reference, found.correction) == ""
    twice = (*found.correction, *found.correction)
    assert "changes by the factor" in _counterexample(values, term, found.reference, twice)


def test_the_sums_of_a_product_may_be_folded_themselves() -> None:
    found = _chain(lambda q, k, v: pg.softmax(q @ k.mT) @ v)
    assert [s.monoid for s in found.states] == ["max", "sum"]


def test_there_may_be_as_many_columns_as_keys() -> None:
    found = _chain(softmax, "bf16[B,S,64]", "bf16[B,64,64]", "bf16[B,64,64]")
    other = _chain(softmax)
    assert len(found.values.statements) == len(other.values.statements)
    read = {access.name for s in found.values.statements for access in s.reads}
    written = {s.write.name for s in found.values.statements}
    assert read - written <= {tensor.name for tensor in found.values.inputs}


def test_nothing_of_a_chain_stays_behind() -> None:
    found = _chain(with_log_sum)
    for made in (found.scores, found.values):
        known = {t.name for t in made.inputs}
        for statement in made.statements:
            assert {a.name for a in statement.reads} <= known | {statement.write.name}
            known.add(statement.write.name)
    assert replace(found, steps=()).rows


def _bounded(condition):
    def function(q, k, v, n):
        s = (q @ k.mT) * 0.125
        i, j = pg.indices(s)[-2:]
        return pg.softmax(pg.where(condition(i, j, n), s, -np.inf)) @ v

    return function


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        (lambda i, j, n: j < n[:, None], "j <= n[i] - 1"),
        (lambda i, j, n: n[:, None] <= j - 2, "n[i] + 2 <= j"),
        (lambda i, j, n: pg.logical_and(j <= i, n[:, None] > j), "j <= min(i, n[i] - 1)"),
        (lambda i, j, n: j + 1 > n[:, None], "n[i] <= j"),
    ],
)
def test_bounds_that_arrays_hold_are_ranges(condition, said: str) -> None:
    found = _chain(_bounded(condition), *SIGNATURE, "s32[S]")
    assert str(found.range) == said and found.range is not None and not found.range.inside


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        (lambda i, j, n: j < n[:, None], "f32[S]"),
        (lambda i, j, n: j + 0.5 < n[:, None], "s32[S]"),
        (lambda i, j, n: j < n, "s32[T]"),
        (lambda i, j, n: 2 * j < n[:, None], "s32[S]"),
    ],
)
def test_what_is_no_bound_of_a_row_stays_a_condition(condition, kind: str) -> None:
    assert _chain(_bounded(condition), *SIGNATURE, kind).range is None
