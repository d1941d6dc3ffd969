# ruff: noqa: E501 - PTX text
"""Registers of 128 bits: moves, loads, stores and atomics, by themselves and against each other."""

from __future__ import annotations

import numpy as np
import pytest

from polygen.errors import PtxError
from polygen.machine import Launch, run

PTX = """.version 8.4
.target sm_90
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 other, .param .u64 out) {
  .reg .b64 %rd<20>; .reg .b32 %r<9>; .reg .pred %p<9>; .reg .b128 %q<9>;
  .shared .align 16 .b8 s[1024];
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [other]; ld.param.u64 %rd3, [out];
  cvta.to.global.u64 %rd1, %rd1; cvta.to.global.u64 %rd2, %rd2; cvta.to.global.u64 %rd3, %rd3;
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 32, %r1; mul.wide.u32 %rd4, %r3, 16;
  add.s64 %rd5, %rd1, %rd4; add.s64 %rd6, %rd2, %rd4; add.s64 %rd7, %rd3, %rd4;
  mov.u32 %r4, s; mad.lo.u32 %r4, %r1, 16, %r4; cvt.u64.u32 %rd8, %r4; cvta.shared.u64 %rd9, %rd8;
  setp.lt.u32 %p1, %r1, 16;
  BODY
  ret;
}
"""
# What each thread is given in `in` and `other`, and what it leaves in `out` (rows of two words).
BODIES = {
    "moved": ("ld.global.b128 %q1, [%rd5]; mov.b128 %q2, %q1; st.global.b128 [%rd7], %q2;", lambda a, b: a),
    "taken apart and put together": (
        "ld.global.b128 %q1, [%rd5]; mov.b128 {%rd10, %rd11}, %q1; mov.b128 %q2, {%rd11, %rd10}; st.global.b128 [%rd7], %q2;",
        lambda a, b: a[:, ::-1],
    ),
    "one half": ("ld.global.b128 %q1, [%rd5]; mov.b128 {%rd10, _}, %q1; mov.b128 %q2, {%rd10, %rd10}; st.global.b128 [%rd7], %q2;", lambda a, b: a[:, [0, 0]]),
    "in a scope of its own": (
        "{ .reg .b128 t; ld.relaxed.gpu.global.b128 t, [%rd5]; st.release.gpu.global.b128 [%rd7], t; }", lambda a, b: a),
    "under a predicate": (
        "ld.global.b128 %q1, [%rd5]; @%p1 ld.global.b128 %q1, [%rd6]; st.global.b128 [%rd7], %q1;",
        lambda a, b: np.where(np.arange(len(a))[:, None] % 32 < 16, b, a),
    ),
    "moved under a predicate, across a branch": (
        "ld.global.b128 %q1, [%rd5]; ld.global.b128 %q2, [%rd6]; @%p1 bra over; mov.b128 %q1, %q2; over: st.global.b128 [%rd7], %q1;",
        lambda a, b: np.where(np.arange(len(a))[:, None] % 32 < 16, a, b),
    ),
    "through shared memory": (
        "ld.global.b128 %q1, [%rd5]; st.shared.b128 [%r4], %q1; ld.b128 %q2, [%rd9]; st.global.b128 [%rd7], %q2;", lambda a, b: a),
    "exchanged in global memory": (
        "ld.global.b128 %q1, [%rd6]; atom.relaxed.gpu.global.exch.b128 %q2, [%rd5], %q1; st.global.b128 [%rd7], %q2;", lambda a, b: a),
    "exchanged in shared memory": (
        "ld.global.b128 %q1, [%rd5]; ld.global.b128 %q2, [%rd6]; st.shared.b128 [%r4], %q1; atom.shared.exch.b128 %q3, [%r4], %q2; ld.shared.b128 %q4, [%r4]; mov.b128 {%rd10, %rd11}, %q3; mov.b128 {%rd12, %rd13}, %q4; mov.b128 %q5, {%rd10, %rd13}; st.global.b128 [%rd7], %q5;",
        lambda a, b: np.stack([a[:, 0], b[:, 1]], 1),
    ),
    "compared and swapped": (
        "ld.global.b128 %q1, [%rd6]; mov.b64 %rd10, 7; mov.b128 %q2, {%rd10, %rd10}; atom.acq_rel.gpu.global.cas.b128 %q3, [%rd5], %q1, %q2; st.global.b128 [%rd7], %q3;",
        lambda a, b: a,
    ),
    "compared and swapped at a generic address": (
        "ld.global.b128 %q1, [%rd6]; ld.global.b128 %q2, [%rd5]; st.shared.b128 [%r4], %q2; mov.b64 %rd10, 7; mov.b128 %q2, {%rd10, %rd10}; atom.cas.b128 %q3, [%rd9], %q1, %q2; ld.shared.b128 %q4, [%r4]; st.global.b128 [%rd7], %q4;",
        lambda a, b: np.where((a == b).all(1)[:, None], 7, a),
    ),
    "compared and swapped under a predicate": (
        "ld.global.b128 %q1, [%rd5]; mov.b64 %rd10, 7; mov.b128 %q2, {%rd10, %rd10}; mov.b128 %q3, %q2; @%p1 atom.global.cas.b128 %q3, [%rd5], %q1, %q2; st.global.b128 [%rd7], %q3;",
        lambda a, b: np.where(np.arange(len(a))[:, None] % 32 < 16, a, 7),
    ),
}  # fmt: skip


def given():
    """Two columns of pairs: a third equal, a third with one half equal, a third different."""
    random = np.random.default_rng(0)
    a = random.integers(0, 2**64, (64, 2), np.uint64)
    b = random.integers(0, 2**64, (64, 2), np.uint64)
    b[::3] = a[::3]
    b[1::6, 0], b[4::6, 1] = a[1::6, 0], a[4::6, 1]
    return a, b


@pytest.mark.parametrize("what", BODIES)
def test_pairs_of_words(what):
    body, rule = BODIES[what]
    a, b = given()
    launch = Launch((2, 1, 1), (32, 1, 1), 0, (a, b, np.zeros((64, 2), np.uint64)))
    report = run(PTX.replace("BODY", body), launch)
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.arrays[2], rule(a, b))
    if what.startswith("compared and swapped") and "generic" not in what:
        hit = (a == b).all(1) if "predicate" not in what else np.arange(64) % 32 < 16
        np.testing.assert_array_equal(report.arrays[0], np.where(hit[:, None], 7, a))
    elif what == "exchanged in global memory":
        np.testing.assert_array_equal(report.arrays[0], b)


def test_all_threads_exchange_at_one_place():
    """What each finds is what another left, or what was there; none is lost, none comes twice."""
    body = "ld.global.b128 %q1, [%rd6]; atom.global.exch.b128 %q2, [%rd1], %q1; st.global.b128 [%rd7], %q2;"
    a, b = given()
    b = b + np.uint64(1)  # all different
    launch = Launch((2, 1, 1), (32, 1, 1), 0, (a, b, np.zeros((64, 2), np.uint64)))
    report = run(PTX.replace("BODY", body), launch)
    assert report.ok
    found = {tuple(row) for row in report.arrays[2].tolist()}
    found.add(tuple(report.arrays[0][0].tolist()))
    assert found == {tuple(row) for row in b.tolist()} | {tuple(a[0].tolist())}


LOOP = """ld.global.b128 %q1, [%rd1];
again: mov.b128 {%rd10, %rd11}, %q1; add.u64 %rd12, %rd10, 1; add.u64 %rd13, %rd11, 3; mov.b128 %q2, {%rd12, %rd13};
  atom.acq_rel.gpu.global.cas.b128 %q3, [%rd1], %q1, %q2; mov.b128 {%rd14, %rd15}, %q3;
  setp.ne.u64 %p2, %rd14, %rd10; setp.ne.or.u64 %p2, %rd15, %rd11, %p2; mov.b128 %q1, %q3; @%p2 bra again;"""


def test_a_loop_that_compares_and_swaps():
    a = np.zeros((64, 2), np.uint64)
    launch = Launch((2, 1, 1), (32, 1, 1), 0, (a, a.copy(), a.copy()))
    report = run(PTX.replace("BODY", LOOP), launch)
    assert report.ok and report.arrays[0][0].tolist() == [64, 192]


def test_an_atomic_at_half_its_size_is_found():
    body = (
        "add.s64 %rd5, %rd5, 8; mov.b128 %q1, {%rd1, %rd1}; atom.global.exch.b128 %q2, [%rd5], %q1;"
    )
    a, b = given()
    report = run(PTX.replace("BODY", body), Launch((1, 1, 1), (32, 1, 1), 0, (a, b, a)))
    assert {one.code for one in report.findings} == {"misaligned"}


def test_what_nothing_has_written_is_found():
    a, b = given()
    launch = Launch((1, 1, 1), (32, 1, 1), 0, (a, b, np.zeros((64, 2), np.uint64)))
    report = run(PTX.replace("BODY", "st.global.b128 [%rd7], %q1;"), launch)
    assert {one.code for one in report.findings} == {"unwritten-register"}


@pytest.mark.parametrize(
    "text, words",
    [
        ("add.u64 %rd10, %q1, %rd1;", "add.u64` is refused"),
        ("xor.b128 %q1, %q1, %q1;", "xor.b128` is refused"),
        ("mov.b128 %q1, %rd1;", "`%rd1` is no register of 128 bits"),
        ("mov.b128 %q1, {%rd1, %rd2, %rd3};", "is no register of 128 bits"),
        ("ld.global.b128 %rd1, [%rd5];", "`%rd1` is no register of 128 bits"),
        ("atom.global.add.b128 %q1, [%rd5], %q2;", "atom.global.add.b128`"),
        ("atom.global.cas.b128 %q1, [%rd5], %q2;", "atom.global.cas.b128`"),
        ("st.global.b64 [%rd5], %q2;", "st.global.b64` is refused"),
    ],
)
def test_what_has_no_operands_of_128_bits_is_refused(text, words):
    a, b = given()
    with pytest.raises(PtxError, match=words):
        run(PTX.replace("BODY", text), Launch((1, 1, 1), (32, 1, 1), 0, (a, b, a)))
