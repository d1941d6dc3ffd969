"""Operands exchanged: names of dims and nothing else, and the bits that depend on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import polygen as pg
from polygen.analysis import prospect
from polygen.fit import instruction_for
from polygen.hardware.device import device
from polygen.invariance import sums_of
from polygen.poly.orientation import exchanged, exchanged_work, oriented, oriented_work
from polygen.schedule.load import dumps, loads, shipped
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Problem

PROGRAMS = {
    "epilogue": (
        lambda x, w, b, r: pg.relu(x @ w.T + b) + r,
        ("bf16[M,K]", "bf16[N,K]", "bf16[N]", "bf16[M,N]"),
    ),
    "batches": (lambda x, w: x @ w.mT, ("bf16[B,M,K]", "bf16[B,N,K]")),
    "several": (
        lambda x, u, v: (x @ u) * (x @ v),
        ("bf16[M,K]", "bf16[K,N]", "bf16[K,N]"),
    ),
    "coordinates": (lambda x, w: pg.dropout(x @ w.T, 0.5, seed=3), ("bf16[M,K]", "bf16[N,K]")),
    "vector": (lambda x, w: w @ x, ("bf16[K]", "bf16[N,K]")),
}
EXCHANGED = Schedule(exchange=True)


def found(name):
    function, signature = PROGRAMS[name]
    return prospect(pg.fuse(function).program(*signature))


@pytest.mark.parametrize("name", PROGRAMS)
def test_twice_is_as_before(name):
    one = found(name)
    assert exchanged(exchanged(one.matched)) == one.matched
    assert exchanged_work(exchanged_work(one.work)) == one.work
    assert one.under(Schedule()) == one
    assert one.under(EXCHANGED).under(EXCHANGED) == one


@pytest.mark.parametrize("name", PROGRAMS)
def test_m_and_n_change_their_places_and_k_and_batches_stay(name):
    one = found(name)
    other = oriented(one.matched, EXCHANGED)
    assert (other.m, other.n) == (one.matched.n, one.matched.m)
    assert other.depths == one.matched.depths and other.batches == one.matched.batches
    assert [t.tensor for t in other.side("m")] == [t.tensor for t in one.matched.side("n")]
    assert [t.tensor for t in other.side("n")] == [t.tensor for t in one.matched.side("m")]
    for product, before in zip(other.products, one.matched.products, strict=True):
        assert product.contraction is before.contraction
        left, right = other.operand(product.left), other.operand(product.right)
        assert (left.role, right.role) == ("m", "n")
        assert left.tensor == one.matched.operand(before.right).tensor
        assert left.extent("m") == other.m and right.extent("n") == other.n
    assert [role for _, role in sorted((n, t.role) for n, t in other.operands)] == [
        t.role for _, t in other.operands
    ]


def test_an_epilogue_in_rows_of_the_result_runs_along_m():
    one = found("epilogue")
    work = oriented_work(one.work, one.matched, EXCHANGED)
    kinds = {e.name: e.kind for e in work.reads}
    assert sorted(kinds.values()) == ["row", "strided"]  # the bias, the residual
    assert [w.kind for w in work.writes] == ["strided"]
    assert len(work.matrices) == 1


def test_a_problem_is_counted_in_the_terms_of_the_schedule():
    one = Problem(16, 4096, 512, k_inner=(True, False), operands=(1, 2), threaded=(1, 0))
    other = one.under(EXCHANGED)
    assert (other.m, other.n, other.k) == (4096, 16, 512)
    assert (other.k_inner, other.operands, other.threaded) == ((False, True), (2, 1), (0, 1))
    assert other.under(EXCHANGED) == one and one.under(Schedule()) is one
    assert other.operand_bytes == one.operand_bytes[::-1]


@pytest.mark.parametrize("known", [True, False])
def test_exchanged_operands_are_a_class_of_sums_of_their_own_unless_seen_to_be_alike(known):
    target, one = device("sm_90a"), found("batches")
    name = "cooperative_64x64x64_s11_k2"
    schedule = next(s for s in shipped(target) if s.name == name)
    texts = set()
    for each in (schedule, replace(schedule, exchange=True)):
        matched = oriented(one.matched, each)
        atom = replace(instruction_for(matched, target, each), exchangeable=known)
        texts.add(sums_of(each, atom, matched).text)
    assert len(texts) == (1 if known else 2)
    assert any("with operands exchanged" in text for text in texts) == (not known)


def test_the_file_says_it_only_where_it_is_so():
    assert "exchange" not in dumps(Schedule())
    assert "exchange = true" in dumps(EXCHANGED)
    assert loads(dumps(EXCHANGED), "text") == EXCHANGED
    assert loads("format = 1\nexchange = false\n", "text") == Schedule()
