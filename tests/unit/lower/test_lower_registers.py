"""Registers of consumers: what is counted, and the estimate beside the compiler's figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from polygen.analysis import prospect
from polygen.decision import decision
from polygen.errors import ResourceError
from polygen.fit import fitting, instruction_for
from polygen.hardware.device import device
from polygen.lower.registers import doubt, panel_words, registers_needed
from polygen.poly.results import narrower, panel_columns
from polygen.poly.tiling import tiling
from polygen.schedule.load import shipped
from polygen.schedule.problem import Fitted
from polygen.tune.registers import is_clean, parts, program_of

H200 = device("sm_90a")
RECORD = Path(__file__).parents[3] / "docs" / "results" / "registers.json"
WIDE = next(s for s in shipped(H200) if s.name == "pingpong_128x192x64")
HUNGRY = "r + g * (x @ w.T + b)"


def fit(expression, schedule=WIDE, careful=True):
    known = prospect(program_of(expression, None))
    return fitting(known.matched, H200, known.work, careful=careful)(schedule)


@pytest.mark.parametrize(
    ("expression", "columns", "words"),
    [
        ("x @ w.T", 64, 0),
        ("x @ w.T + b", 64, 16),  # two columns of each of eight groups
        ("x @ w.T + r", 64, 16),  # two rows by two columns of each, two in a word
        ("c * d + x @ w.T", 64, 64),
        (HUNGRY, 64, 48),
        (HUNGRY, 32, 24),
        ("(x @ w.T) * s + a * t", 64, 4),
    ],
)
def test_words_that_a_thread_holds_of_a_panel(expression, columns, words):
    program = program_of(expression, None)
    schedule = replace(WIDE, epilogue=replace(WIDE.epilogue, columns=columns))
    found = parts(program, schedule, H200)
    assert (found["sums"], found["words"]) == (192, words)
    direct = replace(WIDE, epilogue=replace(WIDE.epilogue, through="registers"))
    known = prospect(program)
    assert panel_words(direct, known.work, instruction_for(known.matched, H200, direct)) == 0


def test_panels_are_as_wide_as_registers_hold():
    work = prospect(program_of("x @ w.T + b", None)).work
    assert (panel_columns(WIDE), narrower(WIDE, work)) == (64, (32, 16))
    work = prospect(program_of('(x @ w.T + b).astype("s8")', None)).work  # 32 bytes are a span
    assert (panel_columns(WIDE), narrower(WIDE, work)) == (64, (32,))
    plain, hungry = fit("x @ w.T + b"), fit(HUNGRY)
    assert isinstance(plain, Fitted) and isinstance(hungry, Fitted)
    assert plain.schedule.epilogue == WIDE.epilogue
    assert hungry.schedule.epilogue == replace(WIDE.epilogue, columns=32)
    assert 0 <= hungry.spare < plain.spare
    # What is going to be measured, or was, keeps its panels.
    measured = fit(HUNGRY, careful=False)
    assert measured.schedule.epilogue == WIDE.epilogue and -doubt() <= measured.spare < 0


def test_what_needs_more_than_it_has_is_no_fit():
    assert "registers per consumer thread" in fit("tanh(x @ w.T) + b")
    fewer = replace(WIDE, roles=replace(WIDE.roles, consumer_registers=208))
    assert "about 224 registers per consumer thread" in fit("x @ w.T", fewer)
    with pytest.raises(ResourceError, match="about 232 registers"):  # of a file, what is certain
        known = prospect(program_of("x @ w.T", None))
        from polygen.lower.resources import resources

        atom = instruction_for(known.matched, H200, fewer)
        resources(fewer, known.matched, tiling(fewer, atom), atom, H200, 1024)


def test_a_consumer_alone_is_thought_to_need_more():
    lone = next(s for s in shipped(H200) if s.name == "cooperative_128x192x64_s5_e3p2")
    program = program_of("x @ w.T", None)
    alone, turns = (parts(program, one, H200)["estimate"] for one in (lone, WIDE))
    assert alone > turns == 224


def test_the_first_choice_for_what_once_spilled_three_times_has_registers_to_spare():
    program = program_of(HUNGRY, None)
    schedule, origin = decision(program, H200, {"M": 6144, "N": 6144, "K": 6144})
    known = prospect(program)
    atom = instruction_for(known.matched, H200, schedule)
    needed = registers_needed(schedule, known.matched, tiling(schedule, atom), atom, known.work)
    assert needed <= schedule.roles.consumer_registers
    assert "spill" not in origin


# --- the record ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def kernels():
    return json.loads(RECORD.read_text())["kernels"]


def test_almost_all_that_an_automatic_choice_takes_compiles(kernels):
    """Pairs drawn at random, none of which has many registers to spare."""
    assert len(kernels) >= 60
    assert len({row["expression"] for row in kernels}) >= 20
    assert len({row["schedule"] for row in kernels}) >= 15
    clean = sum(map(is_clean, kernels))
    assert clean >= 0.95 * len(kernels)


def test_the_recorded_estimates_are_those_of_today(kernels):
    """A change of the figures, or of what is counted, wants a new record."""
    known = {schedule.name: schedule for schedule in shipped(H200)}
    for row in kernels[::6]:
        found = fit_of(row, known)
        assert isinstance(found, Fitted), row
        program = program_of(row["expression"], row["out_dtype"])
        today = parts(program, found.schedule, H200)
        assert today == {name: row[name] for name in today}, row
        assert found.schedule.roles.consumer_registers == row["given"] >= row["estimate"]


def fit_of(row, known):
    known_program = prospect(program_of(row["expression"], row["out_dtype"]))
    return fitting(known_program.matched, H200, known_program.work, careful=True)(
        known[row["schedule"]]
    )
