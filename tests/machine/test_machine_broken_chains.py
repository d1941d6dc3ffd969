"""Mistakes forced into the text of attention kernels: found by the machine, or by the values.

The proofs refuse most of these before any code exists (`tests/unit/poly/test_chain_program.py`);
here a second witness sees them, which knows nothing of the proofs.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from generated import edited

import polygen as pg
from polygen.emulated import emulate
from polygen.errors import PressureError
from polygen.frontend.evaluate import reference
from polygen.runtime.nvrtc import compile_source

SIGNATURE = ("bf16[S,64]", "bf16[T,64]", "bf16[T,64]")
ROWS, KEYS = 200, 520


def plain(q, k, v):
    return pg.softmax((q @ k.mT) * 0.125) @ v


def causal(q, k, v):
    s = (q @ k.mT) * 0.125
    i, j = pg.indices(s)[-2:]
    return pg.softmax(pg.where(i + 300 >= j, s, -np.inf)) @ v


FUNCTIONS = {"plain": plain, "causal": causal}
OVERWRITTEN = {"in-flight-access", "race-read-write", "race-write-write"}
WRONG = "wrong values"
REFUSED = {"refused"}  # by the compiler, whose log says so

# name -> kernel, edits, what shows it: findings, any of which must be there, or the values
BROKEN = {
    "no rescale": ("plain", [(" rescale(i, k);", "")], WRONG),
    "a correction of the tile before": (
        "plain", [("correction[m][0];", "1.0f;"), ("correction[m][1];", "1.0f;")], WRONG,
    ),
    "states without their correction": (
        "plain", [("[m][row] * correction[m][row];", "[m][row];")], WRONG,
    ),
    "values released before they are used": (
        "plain",
        [
            (" arrive_empty_ring_c(i, k - 1);", ""),
            (" commit_multiply(i, k - 1);", " commit_multiply(i, 0); arrive_empty_ring_c(i, 0);"),
        ],
        OVERWRITTEN,
    ),
    "keys released before they are used": (
        "plain",
        [
            (" arrive_empty_ring_b(i, k);", ""),
            (" commit_score(i, k);", " commit_score(i, k); arrive_empty_ring_b(i, 0);"),
        ],
        OVERWRITTEN,
    ),
    "scores read while they are made": (
        "plain", [(" retire_empty_ring_b(i, k);", "")], REFUSED,
    ),
    "sums rescaled while they are made": (
        "plain", [(" retire_empty_ring_c(i, k - 1);", "")], REFUSED,
    ),
    "keys before they have come": (
        "plain", [(" wait_full_ring_b(i, k);", "")],
        {"in-flight-access", "uninitialised-shared-read", "race-write-read"},
    ),
    "one key too many": ("plain", [(">= keys)", "> keys)")], WRONG),
    "a mask off by one": ("causal", [("+ 300 >=", "+ 301 >="), ("300.0f", "301.0f")], WRONG),
    "a tile of keys less": ("causal", [("+ 491, 0) / 128 + 1)", "+ 491, 0) / 128)")], WRONG),
    "no mask in a tile that has one": ("causal", [("127 <= b_m", "0 <= b_m")], WRONG),
}  # fmt: skip
FEW = {"one key too many": 3}  # keys, among which one more counts
# What is for speed alone.
HARMLESS = {
    "no turns": ("plain", [(" wait_turn(i, k);", ""), (" wait_turn(i, 0);", "")]),
    "every row is rescaled": ("plain", [("if (!__all_sync(0xffffffffu, same))", "if (true)")]),
    "masks everywhere": ("causal", [("if (whole && ", "if (false && ")]),
}


@functools.cache
def _kernel(name: str) -> pg.Kernel:
    return pg.fuse(FUNCTIONS[name]).compile(*SIGNATURE, arch="sm_90a")


@functools.cache
def _arrays(keys: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(3)
    shapes = ((ROWS, 64), (keys, 64), (keys, 64))
    return tuple((2 * rng.standard_normal(s)).astype(ml_dtypes.bfloat16) for s in shapes)


def _run(name: str, edits: list[tuple], keys: int = KEYS):
    """The findings of a changed kernel, and whether its values are right."""
    kernel = _kernel(name)
    source = kernel.passes.source
    # Some edits are of one text among several: those that the kernel has.
    known = [edit for edit in edits if edit[0] in source.text]
    assert known, edits
    changed = replace(source, text=edited(source.text, known))
    try:
        ptx = compile_source(changed, allow_spills=True).ptx
    except PressureError:
        return REFUSED, False
    done = emulate(kernel.program, changed, ptx, _arrays(keys))
    wanted = reference(FUNCTIONS[name], _arrays(keys))
    error = np.abs(done.results.astype(np.float64) - wanted)
    return {finding.code for finding in done.report.findings}, bool((error <= 0.03).all())


@pytest.mark.parametrize("name", ["plain", "causal"])
def test_the_kernels_themselves_are_right(name: str) -> None:
    assert _run(name, [("#pragma", "#pragma")]) == (set(), True)


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_mistakes_are_found(name: str) -> None:
    kernel, edits, shows = BROKEN[name]
    found, right = _run(kernel, edits, FEW.get(name, KEYS))
    if shows == WRONG:
        assert not right
    else:
        assert found & shows, found


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_for_speed_alone_changes_nothing(name: str) -> None:
    assert _run(*HARMLESS[name]) == (set(), True)
