"""Where programs of several products are cut, and that both parts are the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sequence_samples import SAMPLES

import polygen as pg
from polygen.errors import VerifyError
from polygen.frontend.dtypes import BF16, F32, TF32
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Fold
from polygen.rewrite.axes_of_one import without_axes_of_one
from polygen.rewrite.check_cuts import check_cut
from polygen.rewrite.cuts import cuts, levels
from polygen.small_problem import trial_operands


def traced(function, *signature):
    return pg.fuse(function, name="f").program(*signature)


def first(function, *signature):
    return next(cuts(traced(function, *signature), {}))


MLP = ("bf16[M,K]", "bf16[K,H]", "bf16[H,N]")


def test_an_operand_is_stored_as_it_is_multiplied():
    cut = first(lambda x, u, d: pg.gelu(x @ u) @ d, *MLP)
    (middle,) = cut.between
    assert (middle.name, middle.dtype, middle.dims) == ("m0", BF16, ("M", "H"))
    assert [t.name for t in cut.before.inputs] == ["x", "u"]
    assert [t.name for t in cut.after.inputs] == ["d", "m0"]
    assert [t.name for t in cut.after.outputs] == ["y0"]


def test_everything_else_is_stored_as_it_is_computed():
    cut = first(lambda x, u, d: (s := x @ u) @ d + s, "bf16[M,K]", "bf16[K,K]", "bf16[K,K]")
    assert [(t.dtype, t.dims) for t in cut.between] == [(BF16, ("M", "K")), (F32, ("M", "K"))]
    cut = first(lambda x, u, d: (x @ u) @ d, "tf32[M,K]", "tf32[K,H]", "tf32[H,N]")
    assert [t.dtype for t in cut.before.outputs] == [F32]
    assert [t.dtype for t in cut.between] == [TF32]


def test_results_of_the_first_part_are_its_own():
    cut = first(lambda x, u, d: ((h := pg.relu(x @ u)) @ d, h), *MLP)
    assert [t.name for t in cut.before.outputs] == ["m0", "y1"]
    assert [t.name for t in cut.after.outputs] == ["y0"]


def test_a_product_that_nothing_multiplies_stays_behind():
    cut = first(lambda x, u, d: pg.relu(x @ u) @ d + x @ d, "bf16[M,K]", "bf16[K,K]", "bf16[K,K]")
    assert len(cut.before.contractions) == 1 and len(cut.after.contractions) == 2


def test_a_norm_of_a_residual_is_made_again():
    def function(x, w, g, u):
        h = (x + x @ w).astype("bf16")
        return h + pg.rms_norm(h, g) @ u

    cut = first(function, "bf16[M,K]", "bf16[K,K]", "bf16[K]", "bf16[K,K]")
    assert [t.dtype for t in cut.between] == [BF16]
    assert not any(isinstance(one, Fold) for one in cut.before.statements)
    assert any(isinstance(one, Fold) for one in cut.after.statements)


def test_names_are_new():
    program = traced(lambda m0, u, d: pg.relu(m0 @ u) @ d, *MLP)
    assert [t.name for t in next(cuts(program, {})).between] == ["m1"]
    assert [t.name for t in next(cuts(program, {}, ["m1", "m2"])).between] == ["m3"]


def test_what_is_stored_least_goes_first():
    def function(q, k, w, v):
        return pg.softmax(q @ k.mT) @ (v @ w)

    program = traced(function, "bf16[S,64]", "bf16[T,64]", "bf16[32,64]", "bf16[T,32]")
    assert sorted(levels(program).values()) == [1, 1, 2]
    _, alone, other = cuts(program, {"S": 512, "T": 512})
    assert [t.dims for t in alone.between] == [("T", 64)]
    assert [t.dims for t in other.between] == [("S", "T")]


def test_one_product_is_not_cut():
    assert not list(cuts(traced(lambda x, w: pg.gelu(x @ w), "bf16[M,K]", "bf16[K,N]"), {}))


@pytest.mark.parametrize("name", [name for name, one in SAMPLES.items() if one.exact])
def test_both_parts_are_the_whole(name):
    sample = SAMPLES[name]
    program, sizes = traced(sample.function, *sample.signature), sample.sizes | sample.run
    given = trial_operands(program, sizes, 0)
    arrays = {t.name: one for t, one in zip(program.operands, given, strict=True)}
    wanted = dict(
        zip((t.name for t in program.outputs), evaluate(program, arrays, sizes), strict=True)
    )
    count = 0
    for cut in cuts(without_axes_of_one(program), sizes):
        count += 1
        known = dict(arrays)
        for part in (cut.before, cut.after):
            made = evaluate(part, {t.name: known[t.name] for t in part.inputs}, sizes)
            known |= {t.name: one for t, one in zip(part.outputs, made, strict=True)}
        for output, value in wanted.items():
            np.testing.assert_array_equal(
                known[output].astype(np.float64), value.astype(np.float64)
            )
    assert count


def test_axes_of_one_index_go_where_values_meet():
    def function(x, w, u):
        rows = x.shape[1]
        y = (x @ w).reshape(1, rows, 2, 32).swapaxes(1, 2).reshape(1, 1, 2, rows, 32)
        a = pg.relu(y).reshape(1, 2, rows, 32).swapaxes(1, 2).reshape(1, rows, 64)
        h = (x + a @ w).astype("bf16")
        return h + pg.relu(h @ u) @ w

    one = traced(function, "bf16[1,M,64]", "bf16[64,64]", "bf16[64,64]")
    found = without_axes_of_one(one)
    assert len(found.statements) < len(one.statements)
    assert all(extent != 1 for statement in found.statements for _, extent in statement.domain)
    assert without_axes_of_one(found) is found
    sizes = {"M": 5}
    given = {t.name: v for t, v in zip(one.inputs, trial_operands(one, sizes, 0), strict=True)}
    wanted, made = evaluate(one, given, sizes), evaluate(found, given, sizes)
    for before, after in zip(wanted, made, strict=True):
        np.testing.assert_array_equal(before, after)


def _with(program, number, **changes):
    """A program with one statement changed."""
    statements = list(program.statements)
    statements[number] = replace(statements[number], **changes)
    return replace(program, statements=tuple(statements))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda b, a: (_with(b, 1, function="square"), a), "is no statement of the whole"),
        (lambda b, a: (_with(b, -1, dtype=F32), a), "stores no value of the whole"),
        (lambda b, a: (replace(b, statements=b.statements[1:]), a), "which nobody makes"),
        (lambda b, a: (b, replace(a, statements=a.statements[1:])), "which nobody makes"),
        (lambda b, a: (b, replace(a, inputs=a.inputs[:1])), "which nobody makes"),
        (lambda b, a: (b, replace(a, outputs=())), "other results"),
        (lambda b, a: (b, _with(a, 0, lhs=a.statements[0].rhs)), "is no statement of the whole"),
    ],
)
def test_parts_that_are_not_the_whole_are_refused(broken, message):
    program = traced(lambda x, u, d: pg.relu(x @ u) @ d, *MLP)
    cut = next(cuts(program, {}))
    with pytest.raises(VerifyError, match=message):
        check_cut(program, *broken(cut.before, cut.after), cut.between)
