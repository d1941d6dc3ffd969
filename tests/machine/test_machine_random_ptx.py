"""Random programs of PTX against an interpreter of one thread at a time."""

from __future__ import annotations

import numpy as np
import pytest
import random_ptx

from polygen.machine import Launch, run


def compared(seed: int) -> list[str]:
    """Registers that differ at the end of a program."""
    steps, first, turns = random_ptx.program(seed), random_ptx.start(seed), seed % 2 == 1
    outs = [np.zeros_like(column) for column in first.values()]
    launch = Launch((1, 1, 1), (random_ptx.THREADS, 1, 1), 0, (*first.values(), *outs))
    report = run(random_ptx.ptx(steps, first, turns), launch)
    assert report.ok, str(report)
    wanted = random_ptx.followed(steps, first, turns)
    wrong = []
    for (name, column), found in zip(wanted.items(), report.arrays[len(first) :], strict=True):
        same = found == column
        if column.dtype.kind == "f":
            same &= np.signbit(found) == np.signbit(column)
            same |= np.isnan(found) & np.isnan(column)
        if not same.all():
            row = int(np.flatnonzero(~same)[0])
            wrong.append(f"seed {seed}, thread {row}: {name} is {found[row]}, not {column[row]}")
    return wrong


def test_there_are_many_instructions():
    assert len(random_ptx.CASES) > 450


@pytest.mark.parametrize("first", range(0, 48, 8))
def test_programs_leave_what_one_thread_at_a_time_does(first):
    assert not [line for seed in range(first, first + 8) for line in compared(seed)]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_many_programs(first):
    assert not [line for seed in range(first, first + 100) for line in compared(seed)]


def test_a_wrong_rule_is_noticed(monkeypatch):
    """The comparison can fail: an interpreter that forgets guards."""
    seed = next(seed for seed in range(0, 40, 2) if any(s.guard for s in random_ptx.program(seed)))
    assert not compared(seed)
    true = random_ptx._once

    def careless(steps, held):
        true([random_ptx.Step(s.case, s.target, s.sources) if s.case else s for s in steps], held)

    monkeypatch.setattr(random_ptx, "_once", careless)
    assert any(compared(other) for other in range(0, 20, 2))
