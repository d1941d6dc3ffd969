"""Whole attention kernels of targets without warpgroups on the PTX machine, and broken ones.

What is between the products is the same as with roles (`test_machine_chains.py`): here are the
forms in which fragments, copies and the launch differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from chain_samples import arrays_of, by_warps, run
from generated import edited
from machine.conftest import ptx_of

import polygen as pg
from polygen.emulated import emulate
from polygen.frontend.evaluate import reference

THREE = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")
_run = functools.partial(run, arch="sm_80")


def softmax(q, k, v):
    return pg.softmax((q @ k.mT) * 0.125) @ v


def masked(seen: Callable) -> Callable:
    def function(q, k, v):
        s = (q @ k.mT) * 0.125
        i, j = pg.indices(s)[-2:]
        s = pg.where(seen(i, j), s, -np.inf)
        return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)

    return function


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (128, 128), (70, 130), (129, 257), (3, 400)])
def test_any_lengths(rows: int, keys: int) -> None:
    _run(softmax, THREE, arrays_of(rows, (1, rows, 64), (1, keys, 64), (1, keys, 64)))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("dtype", "depth", "columns"),
    [
        ("bf16", 128, 128), ("f16", 64, 64), ("f16", 32, 48), ("bf16", 256, 256),
        ("bf16", 192, 128), ("bf16", 96, 80), ("f16", 40, 24),
    ],
)  # fmt: skip
def test_head_dims(dtype: str, depth: int, columns: int) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bf16" else np.float16
    arrays = arrays_of(depth, (70, depth), (90, depth), (90, columns), dtype=kind)
    _run(softmax, (f"{dtype}[S,{depth}]", f"{dtype}[T,{depth}]", f"{dtype}[T,{columns}]"), arrays)


@pytest.mark.parametrize("depth", [36, 35], ids=["8 bytes at a time", "an element at a time"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_rows_that_begin_anywhere(depth: int, arch: str) -> None:
    """What the copy engine cannot move threads copy, down to single elements, on every target."""
    given = tuple(f"bf16[{side},{depth}]" for side in "STT")
    kernel = pg.fuse(softmax).compile(*given, arch=arch)
    assert ("cp.async" in kernel.source) == (depth == 36) and not kernel.schedule.specialised
    run(softmax, given, arrays_of(depth, (70, depth), (90, depth), (90, depth)), arch=arch)


@pytest.mark.sample(2)
@pytest.mark.parametrize("turned", ["q", "k", "v"])
def test_operands_with_their_rows_innermost(turned: str) -> None:
    """Each is then loaded by the other form of ldmatrix."""

    def function(q, k, v):
        q, k, v = (x.mT if name == turned else x for x, name in zip((q, k, v), "qkv", strict=True))
        return softmax(q, k, v)

    sides = [(72, 64), (88, 64), (88, 64)]
    names = [("S", "64"), ("T", "64"), ("T", "64")]
    at = "qkv".index(turned)
    sides[at], names[at] = sides[at][::-1], names[at][::-1]
    _run(function, tuple(f"bf16[{','.join(one)}]" for one in names), arrays_of(at, *sides))


def test_heads_inside_rows_and_in_groups() -> None:
    def function(q, k, v):
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        return softmax(q, k, v).swapaxes(1, 2)

    arrays = arrays_of(1, (2, 70, 2, 64), (2, 90, 2, 64), (2, 90, 2, 64))
    _run(function, ("bf16[B,S,H,64]", "bf16[B,T,H,64]", "bf16[B,T,H,64]"), arrays)
    arrays = arrays_of(2, (1, 2, 3, 70, 64), (1, 2, 1, 90, 64), (1, 2, 1, 90, 64))
    _run(softmax, ("bf16[B,K,G,S,64]", "bf16[B,K,1,T,64]", "bf16[B,K,1,T,64]"), arrays)


MASKS = {
    "causal": lambda i, j: i >= j,
    "window": lambda i, j: pg.logical_and(i >= j, i - j < 100),
    "behind": lambda i, j: j >= i + 20,
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("mask", MASKS)
def test_masks_by_rows_and_keys(mask: str) -> None:
    arrays = arrays_of(4, (1, 300, 64), (1, 280, 64), (1, 280, 64))
    found, wanted = _run(masked(MASKS[mask]), THREE, arrays)
    empty = ~np.isfinite(wanted[0]).all(axis=-1)  # rows without a key
    assert (found[0].astype(np.float64)[empty] == 0.0).all()
    assert (found[1][empty] == -np.inf).all()
    assert np.abs(found[1][~empty] - wanted[1][~empty]).max() < 1e-5


def test_tiles_outside_a_mask_are_never_visited() -> None:
    arrays = arrays_of(5, (1, 128, 64), (1, 1280, 64), (1, 1280, 64))
    count = {}
    for name, function in (("all", softmax), ("causal", masked(MASKS["causal"]))):
        kernel = pg.fuse(function).compile(*THREE, arch="sm_80")
        count[name] = kernel.emulation(*arrays).report.instructions
    assert count["causal"] < 0.3 * count["all"]  # 2 tiles of 20; masked ones cost more


def test_bounds_that_arrays_hold() -> None:
    def packed(q, k, v, begin, end):
        s = (q @ k.mT) * 0.125
        j = pg.indices(s)[-1]
        s = pg.where(pg.logical_and(j >= begin[:, None], j < end[:, None]), s, -np.inf)
        return pg.softmax(s) @ v

    ends = np.array([5, 70, 71, 200])
    begin = np.concatenate([[0], ends[:-1]])
    which = np.searchsorted(ends, np.arange(200), side="right")
    bounds = [one[which].astype(np.int32) for one in (begin, ends)]
    arrays = [*arrays_of(6, (2, 200, 64), (2, 200, 64), (2, 200, 64)), *bounds]
    _run(packed, ("bf16[H,S,64]", "bf16[H,S,64]", "bf16[H,S,64]", "s32[S]", "s32[S]"), arrays)


SCORES = {
    "soft cap": lambda s, i, j: pg.tanh(s / 5.0) * 5.0,
    "positions": lambda s, i, j: s + (j - i) * 0.01,
    "biases": lambda s, i, j, b: s + b,
}


@pytest.mark.parametrize("score", SCORES)
def test_scores_of_any_code(score: str) -> None:
    def function(q, k, v, *b):
        s = (q @ k.mT) * 0.125
        return pg.softmax(SCORES[score](s, *pg.indices(s)[-2:], *b)) @ v

    arrays = arrays_of(7, (1, 70, 64), (1, 200, 64), (1, 200, 64), (70, 200))
    if score == "biases":
        _run(lambda q, k, v, b: function(q, k, v, b), (*THREE, "bf16[S,T]"), arrays)
    else:
        _run(lambda q, k, v: function(q, k, v), THREE, arrays[:3])


def test_chains_without_a_reference() -> None:
    arrays = arrays_of(8, (70, 64), (64, 96), (96, 64))
    arrays[1] = (arrays[1] * ml_dtypes.bfloat16(0.1)).astype(ml_dtypes.bfloat16)
    given = ("bf16[M,64]", "bf16[64,R]", "bf16[R,64]")
    _run(lambda x, a, b: pg.gelu(x @ a) @ b, given, arrays)
    _run(lambda q, k, v: pg.sigmoid((q @ k.mT) * 0.125) @ v, THREE,
         arrays_of(9, (1, 70, 64), (1, 90, 64), (1, 90, 64)), tolerance=0.04)  # fmt: skip


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_keys_in_parts(mask: str) -> None:
    function = masked(MASKS.get(mask, lambda i, j: j >= 0))
    arrays = arrays_of(10, (2, 70, 64), (2, 330, 64), (2, 330, 64))
    found, wanted = _run(function, THREE, arrays, schedule=by_warps(part=128))
    assert np.abs(found[1] - wanted[1]).max() < 1e-5


@pytest.mark.parametrize(
    "schedule",
    [
        by_warps(1, 64, 16, fragments=1, lookahead=0),
        by_warps(3, 32, 48, stages=3, distance=2, order=("mma", "copy")),
        by_warps(2, 16, 32, stages=3, distance=3, order=("mma", "copy")),
        by_warps(2, 16, 80, stages=2, distance=2, order=("mma", "copy"), fragments=3, lookahead=2),
    ],
    ids=["one warp", "three stages", "no slot to spare", "fragments of three steps"],
)
def test_schedules_that_are_given(schedule) -> None:
    _run(softmax, THREE, arrays_of(11, (1, 70, 64), (1, 200, 64), (1, 200, 64)), schedule=schedule)


def test_warps_do_everything_on_hopper_where_a_schedule_says_so() -> None:
    arrays = arrays_of(13, (1, 30, 64), (1, 90, 64), (1, 90, 64))
    run(softmax, THREE, arrays, arch="sm_90a", schedule=by_warps())


@pytest.mark.sample(2)
@pytest.mark.parametrize("arch", ["sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_every_later_target_has_one(arch: str) -> None:
    run(softmax, THREE, arrays_of(12, (1, 30, 64), (1, 90, 64), (1, 90, 64)), arch=arch)


# --- mistakes forced into the text ----------------------------------------------------------------
WRONG = "wrong values"
RACES = {"race-read-write", "race-write-write", "race-write-read", "in-flight-access"}
UNSEEN = {"in-flight-access", "uninitialised-shared-read", "race-write-read"}
BROKEN = {
    "no rescale": ([("rescale(t - 1);", "")], WRONG),
    "a correction of the tile before": (
        [("*= correction[m][0]", "*= 1.0f"), ("*= correction[m][1]", "*= 1.0f")], WRONG,
    ),
    "sums of scores are not cleared": ([("    clear(t - 1);\n", "")], WRONG),
    "no barrier": ([("    bar_copy_a(t);\n", "")], RACES),
    "no wait for copies": ([("    wait_copy_a(t);\n", "")], UNSEEN),
    "a wait that leaves a group": ([("cp.async.wait_group 0;", "cp.async.wait_group 1;")], UNSEEN),
    "values of another tile": ([("load_c(t - 1, 2);", "load_c(t, 2);")], {WRONG, *RACES, *UNSEEN}),
    "one key too many": ([(">= keys)", "> keys)")], WRONG),
}  # fmt: skip
FEW = {"one key too many": 3}  # keys, among which one more counts


def _changed(edits: list, keys: int):
    """The findings of a changed kernel, and whether its values are right."""
    kernel = pg.fuse(softmax).compile("bf16[S,64]", "bf16[T,64]", "bf16[T,64]", arch="sm_80")
    source = kernel.passes.source
    changed = replace(source, text=edited(source.text, edits))
    arrays = [2 * one for one in arrays_of(3, (150, 64), (keys, 64), (keys, 64))]
    done = emulate(kernel.program, changed, ptx_of(changed), arrays)
    error = np.abs(done.results.astype(np.float64) - reference(softmax, arrays))
    return {finding.code for finding in done.report.findings}, bool((error <= 0.03).all())


def test_the_kernel_itself_is_right() -> None:
    assert _changed([("#pragma", "#pragma")], 300) == (set(), True)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", BROKEN)
def test_mistakes_are_found(name: str) -> None:
    edits, shows = BROKEN[name]
    found, right = _changed(edits, FEW.get(name, 300))
    if shows == WRONG:
        assert not right
    else:
        assert found & shows or (WRONG in shows and not right), found
