"""Timetables of pipelines: the known ones are proved for all numbers of microbatches, and shown."""

from __future__ import annotations

import itertools
import json

import pytest

from polygen.cli import main
from polygen.parallel import KNOWN, plan, prove, timetable
from polygen.parallel.turns import Plan

# Slots from first to last by the formulas of the literature, in works of one tick each, for R
# ranks, v stages to a rank and M microbatches.
LENGTH = {
    "gpipe": lambda r, v, m: 2 * v * (m + r - 1),
    "1f1b": lambda r, v, m: 2 * v * (m + r - 1),
    "interleaved": lambda r, v, m: 2 * v * m + 2 * (r - 1),
    "zero-bubble": lambda r, v, m: v * (3 * m + r - 1),
}


def run(found: Plan) -> int:
    """Runs the turns with messages that must have come; the number of works that were done."""
    inbox: set[object] = set()
    done: dict[object, int] = {}
    turns = sorted(itertools.chain(*found.turns), key=lambda turn: turn.tick)
    for tick, together in itertools.groupby(turns, key=lambda turn: turn.tick):
        batch: list[object] = []
        for turn in together:
            if turn.work is not None:
                arrived = {m for m in found.messages if m.target == turn.work}
                assert arrived <= inbox
                done[turn.work] = tick
            batch += turn.sends
        for turns_of in found.turns:
            received = [m for t in turns_of if t.tick == tick for m in t.receives]
            assert received == [m for m in batch if m in received], "both ends have one order"
            inbox |= set(received)
    return len(done)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_timetable_is_proved_and_as_long_as_its_formula(name):
    for stages, ranks, microbatches in ((4, 4, 8), (4, 2, 6), (6, 3, 9), (3, 1, 2)):
        proved = prove(timetable(name, stages, ranks))
        found = plan(proved, microbatches)
        each = stages // ranks
        assert found.ticks == LENGTH[name](ranks, each, microbatches)
        assert run(found) == stages * microbatches * len(proved.phases)
        assert len(proved.proofs) == 7


def slots(name: str, stages: int, ranks: int) -> list[int | None]:
    proved = prove(timetable(name, stages, ranks))
    return [ring.slots for ring in proved.rings if ring.holds == "activations"]


def test_what_a_rank_keeps_grows_with_microbatches_or_does_not():
    assert slots("gpipe", 4, 4) == [None] * 4
    assert slots("1f1b", 4, 4) == [4, 3, 2, 1]
    assert slots("1f1b", 4, 2) == [2, 2, 1, 1]
    assert slots("interleaved", 4, 2) == [4, 3, 2, 1]
    assert slots("zero-bubble", 4, 4) == [7, 6, 5, 4]


def test_a_timetable_may_be_written_and_for_some_numbers_alone():
    text = """[microbatches] -> {
        forward[s, m] -> [s, 4*floor(m/2) + m mod 2 + s] : 0 <= s < 1 and 0 <= m < microbatches;
        backward[s, m] -> [s, 4*floor(m/2) + 3 - m mod 2] : 0 <= s < 1 and 0 <= m < microbatches }
    """
    proved = prove(timetable(text, 1, 1), buffers=2)
    assert [str(work) for work in plan(proved, 2).works[0]] == [
        "forward[0,0]", "forward[0,1]", "backward[0,1]", "backward[0,0]"
    ]  # fmt: skip
    assert not prove(timetable("interleaved", 4, 2)).takes(3)
    assert prove(timetable("interleaved", 4, 2)).takes(4)


def test_it_is_shown(capsys, tmp_path):
    sizes = ["--size", "stages=2", "ranks=2", "microbatches=3"]
    assert main(["show", "--stage", "pipeline", "1f1b", *sizes]) == 0
    text = capsys.readouterr().out
    assert "ticks: 2 + 2microbatches" in text
    assert text.splitlines()[-3:] == [
        "3 microbatches: 8 ticks, bubble 25.0%, 6 messages",
        "rank  0 |F0 F1 .  B0 F2 B1 .  B2",
        "rank  1 |.  F0 B0 F1 B1 F2 B2 . ",
    ]
    page = tmp_path / "page.html"
    words = ["show", "--stage", "pipeline", "zero-bubble", *sizes, "--html", str(page), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["bubble"] == pytest.approx(1 / 10)
    assert page.read_text().count("<title>weights[") == 6
    assert main(["show", "--stage", "pipeline", "1f1b", "--size", "stage=2"]) == 2
    assert "Sizes: stages, ranks" in capsys.readouterr().err
