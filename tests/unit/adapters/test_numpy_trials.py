"""Plans are timed in their first executions: what takes less is what runs, with the same results.

No clock is read here: a backend says how long everything took.
"""

from __future__ import annotations

import ast
import subprocess
import sys

import numpy
import pytest

import polygen.adapters.numpy as np
from polygen.adapters.numpy import alone, forcing, structures
from polygen.adapters.numpy.backends import Backend
from polygen.adapters.numpy.trials import APART, JOINED, Spent, Trial


def spent(seconds):
    """Of a host that is busy all the time."""
    return seconds if isinstance(seconds, Spent) else Spent(seconds, seconds)


class Timed(Backend):
    """NumPy, with a stopwatch that goes by how many steps ran."""

    times = True

    def __init__(self, price):
        self.price, self.seen = price, []

    def timed(self, function):
        before = forcing.counts.steps
        function()
        self.seen.append(forcing.counts.steps - before)
        return spent(self.price(self.seen[-1]))


@pytest.fixture(autouse=True)
def _fresh():
    alone.counts.clear()
    structures._trials = type(structures._trials)(4096)
    structures._plans = type(structures._plans)(4096)
    yield
    alone.counts.clear()


def chain(x, y):
    z = np.tanh(x * 2 + y)
    return z, (z - 1).sum(axis=0)


def run(backend, rounds=20):
    a, b = numpy.arange(12.0).reshape(3, 4), numpy.arange(4.0)
    wanted = numpy.tanh(a * 2 + b)
    steps = []
    with np.polygen_options(backend=backend):
        x, y = np.asarray(a), np.asarray(b)
        for _ in range(rounds):
            before = forcing.counts.steps
            z, total = chain(x, y)
            numpy.testing.assert_array_equal(total.get(), (wanted - 1).sum(axis=0))
            numpy.testing.assert_array_equal(z.get(), wanted)
            steps.append(forcing.counts.steps - before)
    return steps


def test_what_is_planned_stays_where_it_takes_less():
    backend = Timed(lambda steps: steps)
    steps = run(backend)
    assert backend.seen == [2, 5] * 3, "three that count, after one of each"
    assert steps == [2, 5] * 4 + [2] * 12


def test_where_operations_apart_take_less_they_run_so_and_then_record_no_more():
    backend = Timed(lambda steps: 1 / steps)
    steps = run(backend, rounds=24)
    assert steps[:16] == [2, 5] * 4 + [5] * 8
    assert steps[16:] == [0] * 8, "eight graphs that gained nothing: no more graphs"


def test_a_little_is_no_reason_to_run_apart():
    backend = Timed(lambda steps: 0.97 if steps > 2 else 1.0)
    assert run(backend)[10:] == [2] * 10


JOINED_FIRST = {  # what the way as planned and operations apart spend, and which is taken
    "one kernel keeps the host for less, and the device at a stretch": ((10, 30), (25, 27), JOINED),
    "apart the device is done sooner, and the host has more to do": ((9, 20), (15, 17), JOINED),
    "apart both take less": ((30, 40), (20, 25), APART),
    "apart both take less, the device being the busier": ((10, 100), (20, 60), APART),
    "apart the host takes less, and the device no less": ((30, 40), (20, 41), JOINED),
}


@pytest.mark.parametrize("case", JOINED_FIRST)
def test_apart_takes_less_until_the_end_and_of_whichever_is_busier(case):
    joined, apart, taken = JOINED_FIRST[case]
    backend = Timed(lambda steps: Spent(*(joined if steps == 2 else apart)))
    run(backend, 24)
    (trial,) = structures._trials.values()
    assert trial.winner == taken


def test_what_cannot_be_timed_runs_as_planned():
    backend = Timed(lambda steps: 1 / steps)
    backend.waits = lambda: False  # as in a capture
    assert run(backend) == [2] * 20 and backend.seen == []


def test_writes_happen_once_whichever_way_is_timed():
    for price in (lambda steps: steps, lambda steps: 1 / steps):
        with np.polygen_options(backend=Timed(price)):
            x, y = np.zeros((3, 4)), np.ones(4)
            plain = numpy.zeros((3, 4))
            for step in range(30):
                x[1:] -= y * 2 + step
                plain[1:] -= numpy.ones(4) * 2 + step
                numpy.testing.assert_array_equal(x.get(), plain)


def test_what_does_not_fit_apart_runs_as_planned():
    trial, ran = Trial(), []

    def apart():
        ran.append(APART)
        raise MemoryError

    ways = {JOINED: lambda: ran.append(JOINED), APART: apart}

    def timed(function):
        function()
        return Spent(1.0, 1.0)

    runs = {JOINED: 0, APART: 0}
    trial.run(ways, timed, runs)
    trial.run(ways, timed, runs)
    assert ran == [JOINED, APART, JOINED] and trial.winner == JOINED


def test_what_fails_as_planned_fails():
    def fails():
        raise ValueError("no")

    ways = {JOINED: fails, APART: fails}
    with pytest.raises(ValueError, match="no"):
        Trial().run(ways, lambda function: function(), {JOINED: 0, APART: 0})

    def late(function):
        function()
        raise RuntimeError("the device")

    trial = Trial()
    runs = {JOINED: 1, APART: 1}
    trial.run({JOINED: int, APART: int}, lambda function: Spent(1.0, 1.0), runs)
    with pytest.raises(RuntimeError, match="the device"):  # what was written stays written once
        trial.run({JOINED: int, APART: int}, late, runs)


def test_large_graphs_and_single_operations_are_not_timed(monkeypatch):
    backend = Timed(lambda steps: steps)
    monkeypatch.setattr("polygen.adapters.numpy.trials._MOST_BYTES", 200)
    run(backend, 3)
    assert backend.seen == []
    monkeypatch.undo()
    with np.polygen_options(backend=backend):
        str(np.ones(3) * 2)
    assert backend.seen == []


def test_graphs_that_are_alike_but_for_their_sizes_share_what_was_found():
    """As in loops whose arrays become shorter in every round: 120 to 127 elements."""
    backend = Timed(lambda steps: 1 / steps)
    with np.polygen_options(backend=backend):
        x = np.asarray(numpy.arange(127.0))
        ran = []
        for _ in range(5):
            for length in range(127, 119, -1):
                before = forcing.counts.steps
                found = np.tanh(x[:length] * 2) - 1
                wanted = numpy.tanh(numpy.arange(length) * 2.0) - 1
                numpy.testing.assert_array_equal(found.get(), wanted)
                ran.append(forcing.counts.steps - before)
    assert ran[:16] == [1] * 8 + [3] * 8, "each has first executions of its own, which do not count"
    assert backend.seen == [1] * 8 + [3] * 3
    assert ran[16:27] == backend.seen and ran[27:35] == [3] * 8, "eight that gained nothing"
    assert ran[35:] == [0] * 5, "and then without a graph"


AUDITED = """
import collections, sys
import polygen.adapters.numpy as np
from polygen.adapters.numpy.backends import NUMPY
assert "filelock" not in sys.modules
events, on = collections.Counter(), False
sys.addaudithook(lambda event, args: events.update([event]) if on else None)
with np.polygen_options(backend=NUMPY):
    a = np.ones(3)
    for count in range(40):  # recorded, and at last at once
        on = count in (0, 38)
        found = a * 2.0
        on = False
        assert (found.node.value is None) == (count < 8)
        found.get()
print(dict(events))
"""


def test_frames_are_looked_at_once_an_operation():
    """What a library audits with is called for each look at a frame, its code, or an `id`."""
    told = subprocess.run([sys.executable, "-c", AUDITED], capture_output=True, text=True)
    assert not told.returncode, told.stderr
    events = ast.literal_eval(told.stdout)
    assert events.pop("sys._getframe") == 2
    assert events.pop("object.__getattr__", 0) <= 2 and not events
