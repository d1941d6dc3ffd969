"""Products by groups of rows in all that works on programs and kernels beside the passes."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.cli import main
from polygen.cli.accuracy import expected
from polygen.cli.trial import random_operands
from polygen.decision import decision
from polygen.frontend.alignment import realigned
from polygen.frontend.dtypes import S32
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program, Within
from polygen.generated import decode, encode
from polygen.hardware.device import device
from polygen.kernel import Kernel
from polygen.runtime.arrays import accepts, known
from polygen.schedule.load import shipped
from polygen.schedule.problem import Fitted, Problem
from polygen.small_problem import trial_ends
from polygen.tune.cost.counts import counts
from polygen.tune.data import operands
from polygen.tune.reference import row_axes, sampled

SIGNATURE = ("f16[T,K]", "f16[E,K,N]", "s32[E]", "f32[E,N]")
SIZES = {"T": 90, "E": 5, "K": 40, "N": 48}
TEXT = "relu(grouped_matmul(x, w, ends) + per_group(b, ends, x))"
OPERANDS = ["x:f16[T,K]", "w:f16[E,K,N]", "ends:s32[E]", "b:f32[E,N]"]


@pg.fuse
def layer(x, w, ends, b):
    return pg.relu(pg.grouped_matmul(x, w, ends) + pg.per_group(b, ends, x))


@pytest.fixture(scope="module")
def program():
    return layer.program(*SIGNATURE)


@pytest.fixture(scope="module")
def kernel():
    return layer.compile(*SIGNATURE, arch="sm_80", sizes=SIZES)


def arrays_of(program, ends):
    made = operands(np, program, SIZES, 0, integers=True)
    return made | {"ends": np.array(ends, np.int32)}


def test_trial_ends_have_an_empty_group_a_large_one_and_rows_of_none():
    for rows, groups in ((90, 5), (300, 8), (9, 3), (1, 1), (5, 40)):
        ends = trial_ends(groups, rows, np.random.default_rng(0))
        pg.check_ends(ends, rows)
        assert len(ends) == groups
    ends = trial_ends(5, 90, np.random.default_rng(0))
    counts_of = np.diff(ends, prepend=0)
    assert counts_of[1] == 0
    assert counts_of.max() > 45
    assert ends[-1] < 90


def test_programs_in_groups_are_plain_data(program):
    assert decode(Program, encode(program)) == program
    assert Within("i", "g", "ends") in program.statements[-1].write.index


def test_another_alignment_leaves_the_ends_alone(program):
    made = realigned(program, {"x": 4, "ends": 16})
    assert made.tensors["x"].alignment == 4
    assert made.tensors["ends"].alignment == 4


def test_a_loaded_kernel_runs_groups(kernel, tmp_path):
    kernel.save(tmp_path)
    loaded = Kernel.load(tmp_path / "pg_layer.json")
    assert loaded.program == kernel.program
    arrays = arrays_of(kernel.program, [10, 10, 70, 71, 88])
    values = [arrays[t.name].view(t.dtype.numpy) for t in kernel.program.inputs]
    (wanted,) = evaluate(kernel.program, arrays, SIZES)
    for one in (kernel, loaded):
        np.testing.assert_array_equal(np.asarray(one.emulate(*values)), wanted)


def test_the_command_line_checks_groups(capsys):
    sizes = [f"{name}={size}" for name, size in SIZES.items()]
    assert main(["check", TEXT, *OPERANDS, "--arch", "sm_80", "--size", *sizes]) == 0
    told = capsys.readouterr().out
    assert "every row of a group is in exactly one of its tiles" in told
    assert "equal to NumPy, bit for bit" in told


def test_the_command_line_shows_programs_in_groups(capsys):
    assert main(["show", TEXT, *OPERANDS, "--arch", "sm_90a", "--stage", "program"]) == 0
    assert "v0[g,i,j] += x[g.i,k] * w[g,k,j]" in capsys.readouterr().out


def test_rows_that_the_tuner_samples_are_those_of_their_groups(program):
    arrays = arrays_of(program, [10, 5, 70, 71, 88])
    rows = [0, 9, 10, 69, 70, 71, 87, 88, 89]
    (wanted,) = evaluate(program, arrays, SIZES, round_outputs=False)
    found = sampled(np, program, arrays, rows)["y0"]
    np.testing.assert_array_equal(found, wanted[rows])
    assert np.isnan(found[-2:]).all()
    assert row_axes(program) == {"y0": 0}


@pg.fuse
def routed(x, rows, q, s, ends):
    """Tokens by index, matrices of int8 with scales."""
    return pg.grouped_matmul(pg.relu(x[rows]), (q * s[:, :, None]).astype("f16").mT, ends)


@pg.fuse
def unsorted(x, w, ends, rows, out):
    out[rows] = pg.grouped_matmul(x, w, ends)
    return out


ROUTED_NAMES = ("x", "rows", "q", "s", "ends")
ROUTED = ("f16[S,K]", "s32[T]", "s8[E,N,K]", "f16[E,N]", "s32[E]")


def test_operands_by_index_and_computed_ones_are_sampled_in_their_groups():
    program = routed.program(*ROUTED)
    sizes = SIZES | {"S": 61}
    arrays = operands(np, program, sizes, 0, integers=True)
    arrays |= {"ends": np.array([10, 5, 70, 71, 88], np.int32)}
    rows = [0, 9, 10, 69, 70, 71, 87, 88, 89]
    (wanted,) = evaluate(program, arrays, sizes, round_outputs=False)
    assert (np.nan_to_num(wanted) != 0).any()
    np.testing.assert_array_equal(sampled(np, program, arrays, rows)["y0"], wanted[rows])


def test_what_a_run_allows_of_operands_by_index_and_computed_ones():
    program = routed.program(*ROUTED)
    sizes = SIZES | {"S": 61}
    arrays = dict(
        zip((t.name for t in program.inputs), random_operands(program, sizes, 0), strict=True)
    )
    arrays["ends"] = np.array([10, 5, 70, 71, 88], np.int32)
    (one,) = expected(program, arrays, sizes, 16)
    chosen = np.clip(arrays["rows"], 0, 60)
    x = np.maximum(arrays["x"][chosen].astype(np.float64), 0)
    scales = arrays["s"].astype(np.float64)[:, :, None]
    w = (arrays["q"] * scales).astype(np.float16).astype(np.float64)
    for group, (first, last) in enumerate([(0, 10), (10, 10), (10, 70), (70, 71), (71, 88)]):
        exact = x[first:last] @ w[group].T
        assert (abs(one.value[first:last] - exact) <= one.allowed[first:last]).all()
    assert np.isinf(one.allowed[88:]).all()
    assert (one.allowed[:88] < 0.5 * (1 + abs(one.value[:88]))).all()


def test_what_a_run_allows_of_rows_that_are_stored_by_index():
    program = unsorted.program("f16[T,K]", "f16[E,K,N]", "s32[E]", "s32[T]", "f32[S,N]")
    sizes = SIZES | {"S": 99}
    given = random_operands(program, sizes, 0)
    arrays = dict(zip((t.name for t in program.operands), given, strict=True))
    arrays["ends"] = np.array([10, 5, 70, 71, 88], np.int32)
    (one,) = expected(program, arrays, sizes, 16)
    (wanted,) = evaluate(program, arrays, sizes, round_outputs=False)
    np.testing.assert_allclose(one.value, wanted)
    places = arrays["rows"][:88]
    places = places[(places >= 0) & (places < 99)]
    others = np.setdiff1d(np.arange(99), places)
    assert len(others) > 8  # which keep what they had
    np.testing.assert_array_equal(one.value[others], arrays["out"][others])
    assert (one.allowed[others] == 0).all()
    assert (one.allowed[places] > 0).all()


def test_operands_by_index_and_computed_ones_are_those_of_numpy():
    random = np.random.default_rng(0)
    x, q = random.integers(-2, 3, (61, 40)), random.integers(-2, 3, (5, 48, 40))
    s, rows = random.integers(1, 3, (5, 48)), random.integers(-2, 64, 90)
    ends = np.array([10, 5, 70, 71, 88], np.int32)
    given = (x.astype(np.float16), rows.astype(np.int32), q.astype(np.int8), s.astype(np.float16))
    made = routed.compile(*ROUTED, arch="sm_80", sizes=SIZES | {"S": 61})
    found = np.asarray(made.emulate(*given, ends))
    picked = np.maximum(x[np.clip(rows, 0, 60)], 0)
    for group, (first, last) in enumerate([(0, 10), (10, 10), (10, 70), (70, 71), (71, 88)]):
        wanted = picked[first:last] @ (q * s[:, :, None])[group].T
        np.testing.assert_array_equal(found[first:last], wanted)
    (meant,) = evaluate(made.program, dict(zip(ROUTED_NAMES, (*given, ends), strict=True)))
    np.testing.assert_array_equal(found, meant)


def test_the_tuner_measures_rows_that_all_have_a_group(program):
    ends = operands(np, program, SIZES, 3, integers=False)["ends"]
    assert ends.dtype == np.int32
    pg.check_ends(ends, SIZES["T"])
    assert ends[-1] == SIZES["T"]


def test_what_a_run_allows_is_that_of_every_group(program):
    values = random_operands(program, SIZES, 0)
    arrays = dict(zip((t.name for t in program.inputs), values, strict=True))
    arrays["ends"] = np.array([10, 5, 70, 71, 88], np.int32)
    (one,) = expected(program, arrays, SIZES, 16)
    (wanted,) = evaluate(program, arrays, SIZES, round_outputs=False)
    np.testing.assert_allclose(one.value, wanted)
    assert np.isinf(one.allowed[88:]).all()
    assert (one.allowed[:88] < 0.1).all()
    off = wanted.copy()
    off[88:] = 7.0  # rows of none may hold anything
    assert one.compare(off)[2] == 0
    off[69, 3] += 1.0
    assert one.compare(off)[2] == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_choice_is_for_groups_of_the_mean_size(arch):
    made = pg.fuse(lambda x, w, ends: pg.grouped_matmul(x, w.mT, ends), name="grouped")
    program = made.program("bf16[T,K]", "bf16[E,N,K]", "s32[E]")
    few, many = (
        decision(program, device(arch), {"T": rows, "E": 64, "N": 2816, "K": 2048})
        for rows in (256, 65536)
    )
    assert few[0].tile.cta.m <= 64 < many[0].tile.cta.m
    assert "for 4x2816x2048" in few[1] or "128x128" in few[1]


def test_tiles_of_uneven_groups_are_counted_with_half_a_tile_for_each():
    hopper = device("sm_90a")
    schedule = next(s for s in shipped(hopper) if s.name == "pingpong_128x128x64")
    even, uneven = (Problem(160, 1024, 512, batches=64, uneven=which) for which in (False, True))
    assert counts(hopper, Fitted(schedule, 1), even).clusters == 2 * 8 * 64
    assert (
        counts(hopper, Fitted(schedule, 1), uneven).clusters
        == (160 * 64 + 64 * 127 // 2 + 127) // 128 * 8
    )
    tiny = Problem(4, 1024, 512, batches=64, uneven=True)
    assert counts(hopper, Fitted(schedule, 1), tiny).clusters == 64 * 8


def test_arrays_of_int32_are_what_ends_are_declared_as():
    assert known("int32") == S32
    assert accepts(S32, known("int32"))
    assert not accepts(S32, known("int64"))
    assert not accepts(S32, known("float32"))
