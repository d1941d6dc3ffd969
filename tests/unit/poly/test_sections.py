"""Sections: which statements are one, and the proofs that they share nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

import polygen as pg
from polygen.errors import VerifyError
from polygen.frontend.program import Access, Affine
from polygen.poly.sections import prove_apart, prove_items, sections


def program_of(function, *signature, **sizes):
    return pg.fuse(function).program(*signature, sizes=sizes)


X, WIDE, NARROW = "bf16[M,K]", "bf16[N,K]", "bf16[P,K]"


def test_products_over_other_domains_are_sections_with_their_own_arrays():
    program = program_of(lambda x, w, b, u: (x @ w.T + b, x @ u.T), X, WIDE, "f32[N]", NARROW)
    first, second = sections(program)
    assert [t.name for t in first.inputs] == ["x", "w", "b"]
    assert [t.name for t in second.inputs] == ["x", "u"]
    assert [t.name for t in (*first.outputs, *second.outputs)] == ["y0", "y1"]
    every = [s.name for one in (first, second) for s in one.statements]
    assert sorted(every) == sorted(s.name for s in program.statements)


def test_products_over_one_domain_are_one_section():
    program = program_of(lambda x, w, u: (x @ w.T, x @ u.T), X, WIDE, WIDE)
    assert sections(program) == (program,)


def test_values_join_products():
    program = program_of(
        lambda x, w, u, v: (pg.silu(x @ w.T) * (x @ u.T), x @ v.T), X, WIDE, WIDE, NARROW
    )
    assert [len(one.contractions) for one in sections(program)] == [2, 1]


def test_what_is_computed_of_arguments_alone_is_in_every_section_that_reads_it():
    program = program_of(lambda x, w, u: ((x + 2) @ w.T, (x + 2) @ u.T), X, WIDE, NARROW)
    first, second = sections(program)
    shared = {s.name for s in first.statements} & {s.name for s in second.statements}
    assert {s.function for s in program.pointwise if s.name in shared} == {"add", "cast"}
    prove_apart(program, (first, second))


def test_sections_that_write_one_element_are_refused():
    program = program_of(lambda x, w, u: (x @ w.T, x @ u.T), X, "bf16[64,K]", "bf16[32,K]")
    prove_apart(program, sections(program))
    out = replace(program.outputs[0], dims=("M", 96))

    def moved(statement, offset):
        own = statement.write.index
        column = Affine(own[1], 1, offset) if offset else own[1]
        return replace(statement, write=Access("y0", (own[0], column)))

    stored = [s.name for s in program.statements if s.write.name in ("y0", "y1")]
    for offset, apart in ((64, True), (63, False)):
        statements = tuple(
            moved(s, offset * (s.name == stored[1])) if s.name in stored else s
            for s in program.statements
        )
        joined = replace(program, outputs=(out,), statements=statements)
        found = sections(joined)
        assert len(found) == 2
        if apart:
            prove_apart(joined, found)
        else:
            with pytest.raises(VerifyError, match=r"a dependence connects two sections: .*M = 1"):
                prove_apart(joined, found)


def test_work_items_are_the_tiles_of_all_sections():
    assert "exactly one work item" in str(prove_items(3))
