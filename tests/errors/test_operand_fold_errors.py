"""Refusals of folds of operands, and of norms in front of products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matrix import roles, small

import polygen as pg
from polygen.errors import DTypeError, ScheduleError, UnsupportedProgram, VerifyError
from polygen.frontend.build import build_program
from polygen.frontend.dtypes import BF16
from polygen.frontend.program import Tensor
from polygen.lower.tallies import check_shared, check_tallies
from polygen.lower.tally import Tally
from polygen.poly.folds import split_folds
from polygen.schedule.load import load_schedule, schedules_folder
from polygen.schedule.model import Epilogue

X, W = Tensor("x", BF16, ("M", "K"), (0, 1)), Tensor("w", BF16, ("N", "K"), (0, 1))
SIGNATURE = ("bf16[M,K]", "bf16[N,K]")


def program(function):
    return build_program(function, "f", "f", (X, W))


@pg.fuse
def distances(x, w):
    return np.sum(x * x, axis=1, keepdims=True) - x @ w.T


def test_an_index_of_an_operand():
    with pytest.raises(UnsupportedProgram, match="v1: an index of an operand's elements") as error:
        split_folds(program(lambda x, w: x @ w.T + np.argmax(x, axis=1)[:, None]))
    assert "Compute v" in str(error.value) and "in a function before, and pass it" in str(error)


def test_rows_of_several_axes():
    function = pg.fuse(lambda x, w: x @ w + np.sum(x, axis=(1, 2))[:, None, None])
    with pytest.raises(UnsupportedProgram, match=r"v\d is folded of an operand, and it") as error:
        function.compile("bf16[B,M,K]", "bf16[B,K,N]", arch="sm_80", single=True)
    assert "a block folds the rows of its operands' tiles" in str(error.value)


def test_blocks_that_share_sums():
    with pytest.raises(ScheduleError, match="k = 2 with v2, a fold of an operand") as error:
        distances.compile(*SIGNATURE, arch="sm_90a", schedule=roles("one", cluster=(1, 1, 2)))
    assert "Use cluster.k = 1" in str(error.value)


def test_clusters_that_share_operands():
    with pytest.raises(ScheduleError, match="a cluster of 2 x 1 with v2, a fold of an") as error:
        distances.compile(*SIGNATURE, arch="sm_90a", schedule=roles("one", cluster=(2, 1)))
    assert "Use cluster.m = 1" in str(error.value)


def test_exchanged_operands():
    given = replace(small(epilogue=Epilogue(through="registers")), exchange=True)
    with pytest.raises(ScheduleError, match="exchange with v2, a fold of an operand"):
        distances.compile(*SIGNATURE, arch="sm_80", schedule=given)


def test_what_is_no_factor_and_no_term():
    with pytest.raises(UnsupportedProgram, match=r"exp.* is not moved behind a product") as error:
        split_folds(program(lambda x, w: pg.softmax(x, axis=0).astype("bf16") @ w.T))
    assert "leave the sum" in str(error.value)
    assert "over another axis than the one that is summed" in str(error.value)


def test_folds_of_several_numbers_of_what_is_multiplied():
    """A log-sum-exp is one of two."""

    def function(x, g, w, u):
        y = pg.rms_norm(x, g)
        return y @ w.T, x @ u.T + pg.logsumexp(y, axis=-1)[:, None]

    signature = ("bf16[M,K]", "bf16[K]", "bf16[N,K]", "bf16[N,K]")
    with pytest.raises(UnsupportedProgram, match=r"the logsumexp of v.* is not moved behind"):
        pg.fuse(function).compile(*signature, arch="sm_90a", single=True)


def test_folds_of_operands_beside_rows_that_no_tile_covers():
    def function(x, w, h):
        return ((np.max(h, axis=1, keepdims=True) + x) @ w).T

    fused, signature = pg.fuse(function), ("[M,32]", "[32,32]", "[M,32]")
    f32, bf16 = ([kind + one for one in signature] for kind in ("f32", "bf16"))
    given = load_schedule(schedules_folder() / "sm_80" / "64x64x64_w32x32_s4.toml")
    with pytest.raises(UnsupportedProgram, match="beside results of whole rows") as error:
        fused.compile(*f32, arch="sm_90a", schedule=given)
    assert "Return w1 beside the matrix" in str(error.value)
    for each, arch in ((f32, "sm_80"), (f32, "sm_90a"), (bf16, "sm_90a")):
        assert not fused.compile(*each, arch=arch).check().findings  # a launch before makes it


def test_two_products_in_one():
    def both(x, w):
        least = np.min(x, axis=1, keepdims=True)
        return (abs(x) * least + x).astype("bf16") @ w.T + least

    with pytest.raises(UnsupportedProgram, match="has 2 terms with elements") as error:
        split_folds(program(both))
    assert "which is used beside the operand, is not made before the kernel" in str(error.value)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_rows_that_no_launch_before_makes(arch):
    found = pg.fuse(lambda x, w: np.sum(pg.softmax(x) @ w.T, axis=-1))
    with pytest.raises(UnsupportedProgram, match="in which are folds over its rows, bes") as error:
        found.compile("f32[M,K]", "f32[N,K]", arch=arch, single=True)
    assert "Compute the operand before the call" in str(error.value)


def test_folds_that_are_folded_of_folds():
    def most(x, w):
        centred = x - np.mean(x, axis=1, keepdims=True)
        return x @ w.T / np.max(centred, axis=1, keepdims=True)

    with pytest.raises(UnsupportedProgram, match="a fold of what comes of v"):
        split_folds(program(most))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 16}, "no agent has whole rows"),
        ({"part": ""}, "no agent has whole rows"),
        ({"role": "n"}, "rings are folded as"),
        ({"only": ("b_n",)}, "ring_a is folded where"),
    ],
)
def test_elements_that_are_left_out_or_read_elsewhere(change, message):
    schedule = small(epilogue=Epilogue(through="registers"))
    plan = distances.compile(*SIGNATURE, arch="sm_80", schedule=schedule).passes.plan
    leaves = tuple(
        replace(leaf, work=replace(leaf.work, **change)) if isinstance(leaf.work, Tally) else leaf
        for leaf in plan.leaves
    )
    with pytest.raises(VerifyError, match=message):
        check_tallies(replace(plan, leaves=leaves))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first": "b_m * 32"}, "is read from 0 of norms_a on"),
        ({"start": 16}, "is read from 16 of norms_a on"),
        ({"kind": "strided"}, "is read as strided"),
        ({"shared": "norms_b"}, "is read in norms_b"),
    ],
)
def test_results_that_are_read_elsewhere(change, message):
    schedule = small(epilogue=Epilogue(through="registers"))
    plan = distances.compile(*SIGNATURE, arch="sm_80", schedule=schedule).passes.plan
    with pytest.raises(VerifyError, match=message):
        check_shared(plan, replace(plan.epilogue.reads[0], **change), plan.work.reads[0])


TF32 = "f32[M,K]", "tf32[N,K]"


def test_what_is_written_in_the_place_of_a_cast_to_tf32_compiles():
    def scaled(x, w):
        return (x * 2).astype("tf32") @ w.T

    with pytest.raises(DTypeError, match="which is multiplied as tf32 beside a tf32 operand"):
        pg.fuse(scaled).program(*TF32)
    kernel = pg.fuse(lambda x, w: (x * 2).astype("f32") @ w.T).compile(*TF32, arch="sm_80")
    assert not kernel.check().findings


def test_a_norm_that_leaves_an_argument_of_another_type_says_which_types_meet():
    fused = pg.fuse(lambda x, w: pg.rms_norm(x) @ w.T)
    with pytest.raises(DTypeError, match=r"x @ w: x is f32, .*or tf32\[...\], whose arrays stay"):
        fused.compile(*TF32, arch="sm_80")
    assert not fused.compile("tf32[M,K]", TF32[1], arch="sm_80").check().findings


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_rows_of_other_types_that_are_folded_first_are_rounded_or_passed(arch):
    signature = "f16[M,K]", "e4m3[N,K]"
    with pytest.raises(UnsupportedProgram, match="none of bf16, f16, f32") as error:
        pg.fuse(lambda x, w: pg.softmax(x).astype("e4m3") @ w.T).compile(
            *signature, arch=arch, single=True
        )
    assert 'v.astype("bf16") @ w.astype("bf16")' in str(error.value)
    rounded = pg.fuse(lambda x, w: pg.softmax(x).astype("bf16") @ w.astype("bf16").T)
    assert not rounded.compile(*signature, arch=arch).check().findings
    with pytest.raises(UnsupportedProgram, match="v5 of f64, which is none of") as error:
        pg.fuse(lambda x, w: pg.softmax(x) @ w.T).compile(
            "f64[M,K]", "f64[N,K]", arch=arch, single=True
        )
    assert "pass it as an argument" in str(error.value) and 'bf16")' not in str(error.value)


@pytest.mark.parametrize(
    ("function", "fold"),
    [
        (lambda x, w: np.sum(x * x, axis=1, keepdims=True) - x @ w.T, "v2"),
        (lambda x, w: (x @ w.T, np.max(x @ w.T, axis=1)), "v2"),
        (lambda x, w: pg.rms_norm(x) @ w.T, "v1"),
    ],
    ids=["of an operand", "of results", "of a norm"],
)
@pytest.mark.parametrize("computes", ["producer", "before"])
def test_roles_for_f32_beside_folds_send_nobody_in_a_circle(function, fold, computes):
    given = roles("one")
    if (fold, computes) == ("v1", "before"):  # the launch makes rows with the norm, in parts
        given = replace(given, roles=replace(given.roles, computes=computes))
        with pytest.raises(ScheduleError, match=r"tile\.cta\.k = 32"):
            pg.fuse(function).compile("f32[M,K]", "f32[N,K]", arch="sm_90a", schedule=given)
        cta = replace(given.tile.cta, k=32)
        given = replace(given, tile=replace(given.tile, cta=cta))
        kernel = pg.fuse(function).compile("f32[M,K]", "f32[N,K]", arch="sm_90a", schedule=given)
        assert not kernel.check().findings
        return
    given = replace(given, roles=replace(given.roles, computes=computes))
    with pytest.raises(ScheduleError, match=f"roles with products of f32 beside {fold}") as error:
        pg.fuse(function).compile("f32[M,K]", "f32[N,K]", arch="sm_90a", schedule=given)
    assert "Use a schedule without roles" in str(error.value)
    without = load_schedule(schedules_folder() / "sm_80" / "64x64x64_w32x32_s4.toml")
    chosen = replace(without, epilogue=Epilogue("registers"))
    assert pg.fuse(function).compile("f32[M,K]", "f32[N,K]", arch="sm_90a", schedule=chosen)
