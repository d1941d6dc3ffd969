"""Statements before a product: taken out of the program, and what is left of them."""

import dataclasses

import numpy as np
import pytest

import polygen as pg
from polygen.analysis import prospect
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Access
from polygen.poly.elements import Along
from polygen.poly.prologue import multiplied, prologues, without_prologues
from polygen.poly.prologue_proofs import prove_prologues


def program(function, *signature, **options):
    return pg.fuse(function, name="sample").program(*signature, **options)


def both():
    return program(
        lambda x, q, s, b: pg.relu(
            (x * 2).astype("bf16") @ (q.astype("bf16") * s[:, None]).astype("bf16").T + b
        ),
        "bf16[M,K]", "s8[N,K]", "f32[N]", "f32[N]",
    )  # fmt: skip


def test_the_statements_of_each_operand_are_found():
    found = prologues(both())
    assert {value: [s.function for s in own] for value, own in found.items()} == {
        "v1": ["mul", "cast"],
        "v4": ["cast", "mul", "cast"],
    }
    plain = program(lambda x, w: x @ w, "bf16[M,K]", "bf16[K,N]")
    assert prologues(plain) == {} and without_prologues(plain) is plain
    assert prove_prologues(plain) == ()


def test_what_is_left_reads_arrays():
    left = without_prologues(both())
    assert [str(t) for t in left.inputs] == ["b: f32[N]", "v1: bf16[M, K]", "v4: bf16[N, K]"]
    assert [type(s).__name__ for s in left.statements] == ["Contraction"] + ["Pointwise"] * 3
    assert {a.name for a in left.contractions[0].reads} == {"v1", "v4"}


def test_both_parts_together_are_the_program():
    """The interpreter on what is left, given the operands that the interpreter computes."""
    made, sizes = both(), {"M": 5, "N": 4, "K": 6}
    rng = np.random.default_rng(0)
    arrays = {
        t.name: rng.integers(-3, 4, [sizes[d] for d in t.dims]).astype(float) for t in made.inputs
    }
    (wanted,) = evaluate(made, arrays, sizes)
    left = without_prologues(made)
    given = {"b": arrays["b"]}
    for value, statements in prologues(made).items():
        output = dataclasses.replace(left.tensors[value])
        alone = dataclasses.replace(made, outputs=(output,), statements=statements)
        (given[value],) = evaluate(alone, arrays, sizes)
        assert output.dtype == multiplied(program, statements[-1])
    np.testing.assert_array_equal(evaluate(left, given, sizes)[0], wanted)


def test_reads_are_over_the_dims_of_the_instruction():
    operands = dict(prospect(both()).matched.operands)
    a, b = operands["a"].computed, operands["b"].computed
    assert [(r.tensor.name, r.index) for r in a.reads] == [("x", (Along("m"), Along("k")))]
    assert [(r.tensor.name, r.index) for r in b.reads] == [
        ("q", (Along("n"), Along("k"))),
        ("s", (Along("n"),)),
    ]
    assert [str(operands[name]) for name in "ab"] == [
        "v1[m, k], contiguous along k", "v4[n, k], contiguous along k",
    ]  # fmt: skip
    assert a.dtype.name == b.dtype.name == "bf16"


def test_views_between_are_composed():
    """A slice of a computed value, whose argument is a slice, of a batch, transposed."""
    made = program(
        lambda x, w: pg.relu(x[:, ::2, 1:9].mT)[:, 1:, :] @ w, "bf16[B,64,16]", "bf16[32,N]"
    )
    (a,) = prospect(made).matched.side("m")
    (read,) = a.computed.reads
    assert read.index == (Along("z0"), Along("k", 2), Along("m", 1, 2))
    assert a.inner.dim == "m", "as what it is computed from lies"


@pytest.mark.parametrize(
    "signature, inner",
    [
        (("bf16[M,K]", "bf16[N,K]"), "k"),
        (("bf16[M,K]:col", "bf16[N,K]"), "m"),
        (("e4m3[M,K]:col", "bf16[N,K]"), "m"),
        (("tf32[M,K]:col", "tf32[N,K]"), "k"),  # as every instruction takes it
    ],
)
def test_an_operand_lies_as_what_it_is_computed_from(signature, inner):
    made = program(lambda x, w: (x + 1) @ w.T, *signature)
    assert prospect(made).matched.a.inner.dim == inner


def test_a_value_that_the_way_out_needs_stays_in_the_program():
    made = program(lambda x: (y := pg.relu(x)) @ y.T + y, "bf16[M,M]")
    left = without_prologues(made)
    assert [s.function for s in left.pointwise].count("maximum") == 1
    assert {access.name for access in left.contractions[0].reads} <= set(left.tensors)


def test_equal_operands_of_two_products_are_computed_once():
    made = program(
        lambda x, u, v: pg.silu(pg.relu(x) @ u.T) * (pg.relu(x) @ v.T),
        "bf16[M,K]", "bf16[N,K]", "bf16[N,K]",
    )  # fmt: skip
    assert [name for name, _ in prospect(made).matched.operands] == ["a", "b", "b2"]


def test_the_proof_names_the_statements():
    first, second = prove_prologues(both())
    assert first.subject == "v1 by P0, P1" and second.subject == "v4 by P2, P3, P4"


def test_chains_are_left_to_be_refused():
    made = program(lambda x, w, u: pg.relu(x @ w) @ u, "bf16[M,K]", "bf16[K,N]", "bf16[N,P]")
    assert prologues(made) == {}
    last = without_prologues(made).contractions[-1]
    assert isinstance(last.lhs, Access) and last.lhs.name not in made.tensors


def test_a_plan_says_who_computes_what():
    few = {"M": 128, "N": 128, "K": 256}
    for arch, rows, words, operand, row, sizes in (
        ("sm_80", "", "by all warps on its way", "a", "m", {"M": 16, "N": 128, "K": 64}),
        ("sm_90a", "@2", "the producer's threads", "b", "n", few),  # which are exchanged
    ):
        kernel = pg.fuse(lambda x, w: pg.silu(x) @ w.T, name="shown").compile(
            f"bf16[M,K]{rows}", "bf16[N,K]", arch=arch, sizes=sizes
        )
        text = kernel.show("plan")
        assert f"computed operands:\n  operand {operand}: v1[{row}, k], bf16, computed by" in text
        assert words in text and "v0 = silu(x_0)  (f32)" in text
        assert f"reads x_0 = x[{row}, k]: x: bf16[M, K]" in text
        assert "v1 by P0, P1" in text and "threads compute operands" in kernel.schedule_origin
        assert "computed by threads" in kernel.show("cost")


def test_a_plan_says_what_consumers_compute():
    kernel = pg.fuse(lambda x, w: (x + 1) @ w.T, name="shown").compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_90a"
    )
    text = kernel.show("plan")
    assert "operand a: v1, bf16, computed by consumers in their registers of x[m, k]" in text
    assert "v0 = add(x_0, 1.0)  (f32)" in text and "v1 by P0, P1" in text
    assert "consumers compute the left operand" in kernel.schedule_origin
    assert "8192 elements computed by consumers" in kernel.show("cost")


def test_a_plan_says_what_is_made_first():
    kernel = pg.fuse(lambda x, w: pg.silu(x) @ w.T, name="shown").compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_90a"
    )
    text = kernel.show("plan")
    assert "v1, bf16, made by the launch that goes before, once" in text
    assert "v0 = silu(x_0)  (f32)" in text and "v1 by P0, P1" in text
    assert "are made first" in kernel.schedule_origin
    assert "33.6 MB read and 33.6 MB written, 16777216 functions" in kernel.show("cost")
