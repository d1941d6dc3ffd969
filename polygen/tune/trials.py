"""Schedules -> times, by processes that may hang or crash: builders beside one timer.

1. A `Source` says how a schedule is built and how built ones are timed: on a GPU, or replayed from
   a record. It is sent to the processes, so that the tuner knows nothing of either.
2. Builders work in parallel, each watched by a thread: a schedule that kills or hangs its builder
   is that schedule's failure.
3. The timer checks contenders one by one, then times them side by side with the anchor, the
   automatic choice. When it is lost during a check, the schedule checked is to
   blame, and the others are timed again by a new process; when it is lost while timing, each is
   timed alone. A check may take long for reasons of the host's, such as other processes or what is
   compiled for the first time: who gives no answer is checked again, last, by a new process.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from polygen import knobs
from polygen.errors import PolygenError
from polygen.runtime.child import Handler, Lost
from polygen.schedule.model import Schedule
from polygen.tune.crew import Crew
from polygen.tune.records import CRASHED, HUNG, TIMED

_NICE = 10
_LEAVE_SECONDS = 2.0  # in which what is being built may end when the builders go on with another
_NO_ANSWER = "no answer"  # how `Lost` words a time limit


@dataclass(frozen=True, slots=True)
class Contender:
    """A schedule as the timer gets it."""

    key: str
    name: str
    built: Any  # what the source's builder made


@dataclass(frozen=True, slots=True)
class Batch:
    """A job of the timer.

    Attributes:
        anchor: timed beside the contenders.
        contenders: what to check and time.
        repeats: launches timed of each.
        limit: seconds that the check of one contender may take.
        brief: a contender much slower than the anchor may be timed less often.
    """

    anchor: Contender
    contenders: tuple[Contender, ...]
    repeats: int
    limit: float
    brief: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a schedule.

    Attributes:
        state: "timed", or why there is no time: "refused", "wrong", "hung", "crashed".
        reason: for people.
        microseconds: median.
        quartiles: of the times.
        repeats: launches timed.
        graph: whether they were replays of a CUDA graph.
    """

    state: str = TIMED
    reason: str = ""
    microseconds: float = 0.0
    quartiles: tuple[float, float] = (0.0, 0.0)
    repeats: int = 0
    graph: bool = False


@dataclass(frozen=True, slots=True)
class Built:
    """What a builder made of a schedule."""

    payload: Any


class Source(Protocol):
    """Where times come from. Picklable; its two methods are called in processes of their own."""

    def builder(self) -> Handler:
        """Give what turns a `Schedule` into `Built`, or into a `Trial` that says why not."""

    def timer(self) -> Handler:
        """Give what turns a `Batch` into a `Trial` for each key, the anchor's included.

        It names the stage ``check KEY`` before it runs a contender for the first time.
        """


_settings: list[contextlib.AbstractContextManager[knobs.Knobs]] = []  # in force until the end


def be_a_child(*, nice: bool, settings: knobs.Knobs | None = None) -> None:
    """Make this process leave Ctrl-C to its parent, and give way to others if `nice`.

    Args:
        nice: whether to.
        settings: the parent's, to take over.
    """
    if settings is not None and settings != knobs.current():
        _settings.append(knobs.scope(**asdict(settings)))
        _settings[-1].__enter__()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if nice:
        with contextlib.suppress(OSError):
            os.nice(max(0, _NICE - os.nice(0)))


class Trials:
    """What a crew does for one tuning; a context manager, after which it is free for another.

    Args:
        source: what is built and timed.
        crew: the processes.
        check_limit: seconds that the check of one contender may take.
        deadline: of the clock; after it nothing is tried again.
        now: the clock, in seconds.
    """

    def __init__(
        self,
        source: Source,
        crew: Crew,
        check_limit: float,
        deadline: float = math.inf,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._crew, self._now = source, crew, now
        self._limit, self._deadline, self._closing = check_limit, deadline, False
        self._threads = ThreadPoolExecutor(crew.builders)

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + _LEAVE_SECONDS
        while self._crew.busy and time.monotonic() < end:
            time.sleep(0.01)
        for worker in tuple(self._crew.busy):
            with contextlib.suppress(Exception):  # its thread may be stopping it too
                worker.stop()
        self._threads.shutdown(wait=True)

    def build(self, schedule: Schedule) -> Future[Built | Trial]:
        """Have a schedule built by the next builder that is free."""
        return self._threads.submit(self._build, schedule)

    def _build(self, schedule: Schedule) -> Built | Trial:
        worker = self._crew.idle.get()
        self._crew.busy.add(worker)
        try:
            found: Built | Trial = worker.ask((self._source, schedule))
            return found
        except Lost as lost:
            return _failure(lost)
        except Exception:
            if not self._closing:
                raise
            return Trial(CRASHED, "the tuner is closing")
        finally:
            self._crew.busy.discard(worker)
            self._crew.idle.put(worker)

    def time(
        self,
        anchor: Contender,
        contenders: Sequence[Contender],
        repeats: int,
        *,
        brief: bool = False,
    ) -> dict[str, Trial]:
        """Check and time contenders beside the anchor.

        Returns:
            One trial for each key. The anchor's is missing if no contender could be timed with it.

        Raises:
            PolygenError: the timer cannot work, or the anchor itself fails.
        """
        left = list(contenders)
        failed: dict[str, Trial] = {}
        silent: set[str] = set()  # gave no answer once
        while left or not contenders:
            try:
                limit = min(self._limit, max(1.0, self._deadline - self._now()))
                batch = Batch(anchor, tuple(left), repeats, limit, brief)
                found: Mapping[str, Trial] = self._crew.timer.ask((self._source, batch))
                return {**failed, **found}
            except Lost as lost:
                blamed = lost.stage.removeprefix("check ")
                if blamed in {one.key for one in left}:
                    if limit < self._limit and lost.why.startswith(_NO_ANSWER):
                        return failed  # the budget is over: that says nothing of the schedule
                    if lost.why.startswith(_NO_ANSWER) and blamed not in silent:
                        silent.add(blamed)
                        left.sort(key=lambda one: one.key == blamed)
                    else:
                        failed[blamed] = _failure(lost)
                elif lost.stage == "time" and len(left) == 1:
                    blamed = left[0].key
                    if lost.why.startswith(_NO_ANSWER) and blamed not in silent:
                        silent.add(blamed)
                    else:
                        failed[blamed] = _failure(lost)
                elif lost.stage == "time" and left:
                    for one in left:
                        if self._now() > self._deadline:
                            break
                        failed |= self.time(anchor, (one,), repeats, brief=brief)
                    return failed
                else:
                    raise PolygenError(
                        f"the automatic choice, {anchor.name}, cannot be timed"
                        if blamed == anchor.key
                        else "schedules cannot be timed",
                        where="tune",
                        why=str(lost),
                    ) from lost
                left = [one for one in left if one.key not in failed]
                if self._now() > self._deadline:
                    return failed
        return failed


def _failure(lost: Lost) -> Trial:
    return Trial(HUNG if lost.why.startswith(_NO_ANSWER) else CRASHED, lost.why)
