"""The cost of invariant sums, with a card that launches nothing but the PTX machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from invariant_samples import bits

from polygen.api import fuse
from polygen.bench import invariance
from polygen.errors import BenchError
from polygen.frontend.program import Program
from polygen.kernel import Kernel

TIMES = {invariance.FREE: [4.0, 5.0, 6.0], invariance.INVARIANT: [5.0, 5.5, 6.0]}


class Stub:
    """Results of the PTX machine; `turned` changes a bit of those with fewer rows."""

    name, arch = "a stub", "sm_80"

    def __init__(self, turned: bool = False) -> None:
        self.turned = turned
        self.timed: list[list[str]] = []

    def operands(self, program: Program, sizes: Mapping[str, int]) -> tuple[Any, ...]:
        return invariance.host_operands(program, sizes)

    def result(self, kernel: Kernel, operands: Sequence[Any]) -> tuple[Any, ...]:
        found = kernel.emulate(*operands)
        if self.turned and len(found) < 20:
            bits(found)[-1, 0] ^= 1
        return (found,)

    def times(self, kernels: Mapping[str, Kernel], operands: Any, repeats: int) -> Any:
        self.timed.append([kernel.schedule.name for kernel in kernels.values()])
        return TIMES


WORDS = ["--m", "1", "20", "--shapes", "24x32"]


def test_a_record_has_both_kernels_of_every_row(tmp_path, capsys):
    card, path = Stub(), tmp_path / "cost.json"
    assert invariance.main([*WORDS, "--out", str(path)], card) == 0
    found = json.loads(path.read_text())
    assert [(row["m"], row["n"], row["k"]) for row in found["rows"]] == [(20, 24, 32), (1, 24, 32)]
    for row in found["rows"]:
        assert row["ratio"] == pytest.approx(1.1)
        assert row["same_bits"] is True
        assert row["free"]["microseconds"] == 5.0
    assert len({row["invariant"]["sums"] for row in found["rows"]}) == 1
    assert found["summary"]["few_rows"] == {
        "rows": 2, "mean": pytest.approx(1.1), "most": pytest.approx(1.1),
    }  # fmt: skip
    assert "many_rows" not in found["summary"]
    assert json.loads(capsys.readouterr().out) == found["summary"]
    assert len(card.timed) == 2


def test_other_bits_are_said_and_fail(capsys):
    assert invariance.main(WORDS, Stub(turned=True)) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["summary"]["other_bits"] == 1
    assert "OTHER BITS" in printed.err


def test_a_row_that_fails_is_recorded_and_the_others_go_on(capsys):
    words = ["--m", "8", "--shapes", "24x32", "--program", "x @ w.T", "x:bf16[M,K]", "w:e4m3[N,K]"]
    assert invariance.main(words, Stub()) == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert "e4m3" in row["error"]


def test_a_shape_that_is_none_is_refused():
    with pytest.raises(BenchError, match="'4096' is no N x K"):
        invariance.shape("4096")


def test_operands_begin_alike_whatever_m():
    program = fuse(lambda x, w, r, s: (x.T @ w) * s + r, name="f").program(
        "f16[K,M]", "f16[K,N]", "f32[M,N]:col", "f32"
    )
    few, many = (invariance.host_operands(program, {"M": m, "N": 5, "K": 8}) for m in (4, 9))
    np.testing.assert_array_equal(few[0], many[0][:, :4])
    np.testing.assert_array_equal(few[1], many[1])
    np.testing.assert_array_equal(few[2], many[2][:4])
    assert few[2].flags.f_contiguous
    assert few[3] == many[3]
