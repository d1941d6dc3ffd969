"""Timetables of pipelines that are wrong, each refused with what it breaks and where."""

from __future__ import annotations

import re

import pytest

from polygen.errors import IllegalPipeline, PipelineError
from polygen.parallel import Timetable, plan, prove, timetable

INSIDE = "0 <= s < 4 and 0 <= m < microbatches"
FORWARD = f"forward[s,m] -> [s, s + m] : {INSIDE}"
BACKWARD = f"backward[s,m] -> [s, microbatches + 6 - s + m] : {INSIDE}"


def written(*works: str) -> Timetable:
    return timetable(f"[microbatches] -> {{ {'; '.join(works)} }}", 4, 4)


def test_what_is_varied_is_legal():
    assert prove(written(FORWARD, BACKWARD)).length == "6 + 2microbatches"


ILLEGAL = {
    "a stage before its input": (
        [f"forward[s,m] -> [s, m] : {INSIDE}", BACKWARD],
        "a dependence is broken: forward[0,0] -> forward[1,0] with microbatches = 1",
    ),
    "gradients that go the wrong way": (
        [FORWARD, BACKWARD.replace("- s", "+ s")],
        "a dependence is broken: backward[1,0] -> backward[0,0] with microbatches = 1",
    ),
    "a backward pass before its forward pass": (
        [f"forward[s,m] -> [s, s + 2*m] : {INSIDE}",
         f"backward[s,m] -> [s, 2*m - s - 1] : {INSIDE}"],
        "a dependence is broken: forward[0,0] -> backward[0,0] with microbatches = 1",
    ),
    "right for few microbatches alone": (
        [FORWARD, f"backward[s,m] -> [s, 10 - s + m] : {INSIDE}"],
        "two works in one tick: backward[3,0] -> forward[3,4] with microbatches = 5",
    ),
    "a dependence that many microbatches break": (
        [f"forward[s,m] -> [s, 4*s + 4*m] : {INSIDE}",
         f"backward[s,m] -> [s, 41 - 2*s + 2*m] : {INSIDE}"],
        "a dependence is broken: forward[3,12] -> backward[3,12] with microbatches = 13",
    ),
    "two works in one tick": (
        [f"forward[s,m] -> [s, s + 2*m] : {INSIDE}",
         f"backward[s,m] -> [s, 8 - s + 2*m] : {INSIDE}"],
        "two works in one tick: backward[3,0] -> forward[3,1] with microbatches = 2",
    ),
    "a microbatch left out": (
        [FORWARD.replace("<= m <", "<= m != 3 and m <"), BACKWARD],
        "work without rank and tick: forward[0,3] with microbatches = 4",
    ),
    "work that is done twice": (
        [FORWARD, BACKWARD, "forward[0,0] -> [0, -5]"],
        "work that is done twice: forward[0,0] -> [0,-5] with microbatches = 1",
    ),
    "a rank that is not there": (
        [FORWARD.replace("[s, s", "[s + 1, s"), BACKWARD.replace("[s, m", "[s + 1, m")],
        "work on a rank that is not there: backward[3,0] -> [4,4] with microbatches = 1",
    ),
    "a stage that moves": (
        [FORWARD, BACKWARD.replace("[s, m", "[3 - s, m")],
        "a stage on two ranks: backward[0,0] -> forward[0,0] with microbatches = 1",
    ),
    "parameters' gradients before the cotangents": (
        [FORWARD, f"backward[s,m] -> [s, 2*microbatches + 6 - s + m] : {INSIDE}",
         f"weights[s,m] -> [s, microbatches + 6 - s + m] : {INSIDE}"],
        "a dependence is broken: backward[0,0] -> weights[0,0] with microbatches = 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", ILLEGAL)
def test_an_illegal_timetable_is_refused_with_its_witness(seed):
    works, message = ILLEGAL[seed]
    with pytest.raises(IllegalPipeline, match=re.escape(message)):
        prove(written(*works))


def test_more_buffers_than_there_are():
    with pytest.raises(IllegalPipeline, match=r"\[0,0\] -> \[0,3\] with microbatches = 4.*a dead"):
        prove(timetable("1f1b", 4, 4), buffers=3)
    assert prove(timetable("1f1b", 4, 4), buffers=4)
    with pytest.raises(IllegalPipeline, match="as many as there are microbatches"):
        prove(timetable("gpipe", 4, 4), buffers=100)


def test_messages_have_slots_too():
    """Stage 1 begins when all microbatches have come: that takes a slot for each."""
    works = [
        f"{phase}[{s},m] -> [{s}, {n}*microbatches + m] : 0 <= m < microbatches"
        for n, (phase, s) in enumerate(
            [("forward", 0), ("forward", 1), ("backward", 1), ("backward", 0)]
        )
    ]
    proved = prove(timetable(f"[microbatches] -> {{ {'; '.join(works)} }}", 2, 2))
    assert [str(ring) for ring in proved.rings[2:]] == [
        "messages for forward of stage 1: as many as microbatches",
        "messages for backward of stage 0: as many as microbatches",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{ forward[s,m] -> [s, m ", "cannot be read"),
        ("{ forward[s,m] -> [s, m] }", "is about forward. Phases are"),
        ("{ upward[s,m] -> [s, m] }", r"is not phase\[stage, microbatch\]"),
        ("[K] -> { forward[s,m] -> [s, K] }", "its parameters are K"),
        ("{ }", "it is empty"),
        ("1f2b", "Known: gpipe, 1f1b"),
    ],
)
def test_what_is_no_timetable(text, message):
    with pytest.raises(PipelineError, match=message):
        prove(timetable(text, 4, 4))


def test_pipelines_that_do_not_fit():
    with pytest.raises(PipelineError, match=r"5 stages on 2 ranks.*4 stages"):
        timetable("1f1b", 5, 2)
    with pytest.raises(PipelineError, match="0 stages on 2 ranks"):
        timetable("1f1b", 0, 2)
    with pytest.raises(PipelineError, match="0 buffers"):
        prove(timetable("1f1b", 4, 2), buffers=0)
    with pytest.raises(PipelineError, match="is for 4 stages on 4 ranks"):
        timetable(written(FORWARD, BACKWARD), 4, 2)
    with pytest.raises(PipelineError, match=r"3 microbatches .*mod 2 = 0.*Take 2"):
        plan(prove(timetable("interleaved", 4, 2)), 3)
    with pytest.raises(PipelineError, match="condition 'M > 2' cannot be read"):
        prove(Timetable("mine", 4, 4, written(FORWARD, BACKWARD).relation, "M > 2"))
