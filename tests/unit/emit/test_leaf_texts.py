"""Texts of leaves with a mistake are refused where they are written, or do the same.

Every number, name and sign of a text is changed, and every term and condition left out. Threads
that make the same calls with the same numbers, and leave the same in registers, do the same;
others that are accepted are listed with the reason why they are no mistakes. No PTX is run.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from fragment_samples import computed, loaded
from matrix import small
from text_mutants import accepted

import polygen as pg
from polygen.emit.c_text import read, read_value
from polygen.emit.leaf.table import prove, proved
from polygen.emit.run_text import State
from polygen.emit.text_functions import FUNCTIONS, run
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan
from polygen.schedule.model import Epilogue

# What is changed, and in which text: why those that are accepted are no mistakes.
EQUIVALENT = {
    r"\[\d+\](;|,| = \{).*: \d+ -> \d+$": "registers that nobody uses",
    r"combine_.*: (\d+ -> \d+|% -> /)$": "which of a place's registers takes a term: all are "
    "combined behind",
    r"load_shared.*: \d+ -> \d+$": "chunks of a row are read in another order, each once; terms "
    "are added up",
    r"if \(count >= 2\) \{: 2 -> 4$": "pairs are finished one by one",
    r"if \(first_column - .* <= N\)": "what reads at the edge reads right everywhere",
    r"min\(column, N - 1\).*: 1 -> 2$": "columns end behind a pair",
    r"read_sum\(.*: (M -> N|1 -> 0)$": "what is read in rows outside is not stored",
}
REGISTERS = small(epilogue=Epilogue(through="registers"))


def distances(x, w):
    return (x @ w.T) / np.sqrt(np.sum(x * x, axis=1, keepdims=True))


def of_columns(x, w):
    return (x @ w.T) / np.sqrt(np.sum(w * w, axis=1))


def beside(x, w, g):
    return (x @ w.T) / np.max(x * g, axis=1, keepdims=True)


def gated(x, w, r, c, g):
    return (x @ w.T) * r[:, None] + g * c


def folded(x, w):
    v = x @ w.T
    return pg.softmax(v), np.max(v, axis=0), np.sum(v, axis=0), np.max(v, axis=1) + 1


def largest(x, w):
    v = x @ w.T
    return pg.relu(v), np.max(v, axis=1)


def narrow(x, w, g):
    return ((x @ w.T) * g).astype("e4m3")


PAIR, GATED = ("bf16[M,K]", "bf16[N,K]"), ("f16[M,K]", "f16[N,K]", "f32[M]", "bf16[N]", "f16[M,N]")
KERNELS = {
    "distances": (distances, PAIR, "sm_90a"),
    "distances by warps": (distances, PAIR, "sm_80"),
    "of columns": (of_columns, ("e4m3[M,K]", "e4m3[N,K]"), "sm_90a"),
    "beside": (beside, ("f16[M,K]", "f16[N,K]", "f16[K]"), "sm_80"),
    "gated": (gated, GATED, "sm_80"),
    "folded": (folded, PAIR, "sm_80"),
    "gated panels": (gated, GATED, "sm_90a"),
    "largest": (largest, PAIR, "sm_90a"),
    "narrow": (narrow, ("e4m3[M,K]", "e4m3[N,K]", "e4m3[M,N]"), "sm_90a"),
}
# Kernel, and which of its leaves.
CASES = [
    ("distances", "share"), ("distances by warps", "share"), ("of columns", "share"),
    ("beside", "share"), ("computed", "make"), ("loaded", "make"), ("gated", "edge"),
    ("gated", "store_pairs"), ("folded", "edge"), ("folded", "store_pairs"),
    ("gated panels", "finish"), ("largest", "finish"), ("narrow", "finish"),
    ("distances", "finish"),
]  # fmt: skip
EVERY = 12  # of the mutants, one in so many is tried in the fast tests


@cache
def plan(name: str) -> KernelPlan:
    if name in ("computed", "loaded"):
        return computed() if name == "computed" else loaded()
    function, types, arch = KERNELS[name]
    schedule = REGISTERS if name in ("gated", "folded") else "auto"
    kernel = pg.fuse(function, name=function.__name__)
    return kernel.compile(*types, arch=arch, schedule=schedule).passes.plan


def check(name, op, every):
    of = plan(name)
    leaf = next(one for one in of.leaves if one.op == op and proved(one))
    tried, found = accepted(of, leaf, every)
    left = [one for one, same in found if not same]
    assert not [one for one in left if not any(re.search(known, one) for known in EQUIVALENT)]
    assert tried - len(found) > tried // 2
    return tried, len(found), len(left)


@pytest.mark.parametrize(("name", "op"), CASES)
def test_some_mistakes_of_texts_are_refused_or_do_the_same(name, op):
    check(name, op, EVERY)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "op"), CASES)
def test_mistakes_of_texts_are_refused_or_do_the_same(name, op):
    check(name, op, 1)


def test_a_text_of_another_leaf_is_refused():
    of = plan("gated panels")
    finish, compute = of.leaf("finish"), of.leaf("compute")
    with pytest.raises(VerifyError, match="nothing is called"):
        prove(of, finish, ("y0_words[0][0] = 1;",))
    with pytest.raises(VerifyError, match="elements are written of"):
        prove(of, finish, (";",))
    assert not proved(compute)


# --- reading and running texts -------------------------------------------------------------------
def value(text, threads=4, **names):
    return read_value(text)(State(dict(names), FUNCTIONS, threads))


def left(text, threads=4, **names):
    return run(read(text), names, threads).names


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 + 2 * 3", 7), ("(1 + 2) * 3", 9), ("7 / 2 % 2 == 1 && 1 < 2", True),
        ("-7 / 2", -3), ("-7 % 4", -3), ("1 << 3 | 1", 9), ("6 & 3 ^ 1", 3), ("~0 & 0xff", 255),
        ("!(2 > 1) ? 5 : 6", 6), ("(unsigned char)(300)", 44), ("(unsigned)(-1) > 5u", True),
        ("(signed char)(200)", -56), ("min(3, 4) + max(3, 4)", 7), ("16ULL * 2", 32),
    ],
)  # fmt: skip
def test_expressions_mean_what_they_mean_in_c(text, wanted):
    assert value(text) == wanted


def test_threads_take_their_own_branches():
    lane = np.arange(4)
    text = """
      int found = 0;
      for (int i = 0; i < 8; ++i) {
        if (i == lane) continue;
        if (i > lane + 3) break;
        found += i;
      }
      if (found > 5) { found = 100; } else if (lane == 0) found = 7;
    """
    own = [sum(i for i in range(8) if i != t and i <= t + 3) for t in range(4)]
    wanted = [100 if one > 5 else 7 if t == 0 else one for t, one in enumerate(own)]
    assert left(text, lane=lane)["found"].tolist() == wanted


def test_names_inside_of_blocks_are_forgotten():
    found = left("int i = 5; for (int i = 0; i < 2; ++i) { int k = i; } { const int i = 9; }")
    assert found["i"] == 5 and "k" not in found


def test_registers_are_of_each_thread():
    text = "int r[2][2] = {{1, 2}, {3, 4}}; r[lane % 2][1] += 10; int s[3]; (&s[0])[1] = r[1][0];"
    found = left(text, lane=np.arange(4))
    assert found["r"].base.tolist() == [[1] * 4, [12, 2, 12, 2], [3] * 4, [4, 14, 4, 14]]
    assert found["s"].base[1].tolist() == [3] * 4


def test_lanes_exchange_with_who_is_there():
    lane = np.arange(32)
    found = left("int v = __shfl_xor_sync(0xffffffffu, lane, 4);", 32, lane=lane)
    assert found["v"].tolist() == (lane ^ 4).tolist()
    with pytest.raises(VerifyError, match="not all of them have"):
        left("if (lane < 3) { int v = __shfl_xor_sync(0xffffffffu, lane, 4); }", 32, lane=lane)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("goto end;", "leaves are not written"), ("int x = y;", "nothing is called y"),
        ("int r[2]; r[2] = 1;", "registers have 2 elements"), ("x = 1;", "nothing is called x"),
        ("for (int i = 0; i < 2; i += 0) {}", "a loop has no end"), ("int a = $;", "have no '\\$'"),
        ("int r[2]; int x = r - 1;", "what this does is not known"),
        ("5 = 6;", "cannot be written"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(text, says):
    with pytest.raises(VerifyError, match=says):
        left(text)
