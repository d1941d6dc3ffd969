"""The fastest of some schedules, by measuring, within a budget of seconds.

1. Candidates, the first of them the anchor (the automatic choice without the records of this
   machine), are ranked by the model. What was measured beside that anchor under this version is
   taken from the records.
2. Builders prove and compile the most promising first, while the timer times what is built, a few
   launches each, in batches beside the anchor. Every other candidate built is a neighbour of the
   best found so far: one decision away.
3. When the time left is what the finals need, successive halving: fewer and fewer of the best are
   timed with more and more launches. Times are compared as ratios to the anchor's in the same
   batch, because clocks drift.
4. Every measurement is entered in the records at once. A killed or interrupted tuning is continued
   by the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from polygen.brief import Brief
from polygen.hardware.device import Device
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.crew import Crew
from polygen.tune.ranking import Candidate, differences, ranked
from polygen.tune.records import TIMED, Measurement, Records, Target, Version
from polygen.tune.trials import Built, Contender, Source, Trial, Trials

DEFAULT_BUDGET = 30.0  # seconds
CHECK_SECONDS = 3.0  # until a schedule that is run for the first time counts as hung

_FIRST_REPEATS = 5
_BATCH = 8
# Rounds of the finals: how many enter, and launches of each.
_FINALS = ((16, 15), (6, 40), (3, 100))
_WARM = 3
_FLUSH_SECONDS = 150e-6  # beside each launch that is timed
_FINALS_SHARE = 0.4  # of the budget at most
_FINALS_LEAST = 0.7  # seconds
_BEST_WATCHED = 4  # whose neighbours are tried
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a tuning is: for people to watch."""

    stage: str
    done: int
    total: int
    seconds: float
    best: str
    microseconds: float
    anchor_microseconds: float


@dataclass(frozen=True, slots=True, repr=False)
class Tuning(Brief):
    """What a tuning found.

    Attributes:
        best: the fastest schedule, with its time.
        anchor: the automatic choice until then, by name.
        anchor_microseconds: its median time beside the best one.
        candidates: schedules that fit.
        states: how many of them are timed, refused, wrong, hung, crashed; resumed ones included.
        resumed: how many of those had been measured before.
        seconds: that it took.
        finished: whether the finals were completed.
        interrupted: whether it was stopped by Ctrl-C.
        gpu: where it was measured.
    """

    best: Measurement
    anchor: str
    anchor_microseconds: float
    candidates: int
    states: tuple[tuple[str, int], ...]
    resumed: int
    seconds: float
    finished: bool
    interrupted: bool
    gpu: str

    @property
    def speedup(self) -> float:
        """The anchor's time over the best one's."""
        return 1 / self.best.ratio if self.best.ratio else 1.0

    def __str__(self) -> str:
        return (
            f"{self.best.schedule.name}, {self.best.microseconds:.2f} us, {self.speedup:.3f} times "
            f"as fast as {self.anchor}, of {self.candidates} schedules, on {self.gpu}"
        )


class _Search:
    """One tuning: the candidates, what is known of them, and the processes that find out more."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        records: Records,
        target: Target,
        version: Version,
        deadline: float,
        builders: int,
        report: Callable[[Progress], None],
        now: Callable[[], float],
    ) -> None:
        self.candidates = {one.key: one for one in candidates}
        self.anchor = candidates[0]
        self.records, self.version, self.builders = records, version, builders
        self.trials: Trials  # set before the search begins
        self.started, self.deadline, self._report, self._now = now(), deadline, report, now
        self.problem = records.problem(target)
        known = records.measured(self.problem, version)
        self.known = {key: found for key, found in known.items() if key in self.candidates}
        self.resumed = len(self.known)
        self.built: dict[str, object] = {}
        self.pending: dict[Future[Built | Trial], str] = {}
        skipped = {*self.known, self.anchor.key}
        self.waiting = {one.key: one for one in candidates if one.key not in skipped}
        self._near: list[str] = []  # keys that wait, near what is fast
        self.anchor_time = 0.0
        self.finished = False
        self._turn = 0

    # --- building ---------------------------------------------------------------------------
    def left(self) -> float:
        return self.deadline - self._now()

    def finals_seconds(self) -> float:
        """What the finals will take, from the anchor's time."""
        launches = sum((repeats + _WARM) * (entered + 1) for entered, repeats in _FINALS)
        return launches * (1.2 * self.anchor_time * 1e-6 + _FLUSH_SECONDS) + _FINALS_LEAST

    def next_candidate(self) -> Candidate:
        """By turns the best of the model's ranking, and the best neighbour of what is fast."""
        self._turn += 1
        if self._turn % 2 == 0:
            while self._near:
                key = self._near.pop(0)
                if key in self.waiting:
                    return self.waiting.pop(key)
        return self.waiting.pop(next(iter(self.waiting)))

    def _look_around(self) -> None:
        """Find what waits one decision away from the fastest known, in the model's order."""
        fast = [self.candidates[key].decisions for key in self.ranking()[:_BEST_WATCHED]]
        self._near = [
            key
            for key, one in self.waiting.items()
            if any(differences(one.decisions, other) <= 1 for other in fast)
        ]

    def ranking(self) -> list[str]:
        """Keys of what is timed, the fastest first."""
        timed = [(found.ratio, key) for key, found in self.known.items() if found.ratio is not None]
        return [key for _, key in sorted(timed)]

    def submit(self, one: Candidate) -> None:
        self.pending[self.trials.build(one.fitted.schedule)] = one.key

    def collect(self, timeout: float) -> list[str]:
        """Keys of what has been built since the last call; what is refused is entered."""
        done, _ = wait(self.pending, timeout=max(0.0, timeout), return_when=FIRST_COMPLETED)
        ready = []
        for future in done:
            key, found = self.pending.pop(future), future.result()
            if isinstance(found, Built):
                self.built[key] = found.payload
                ready.append(key)
            else:
                self.enter(key, found, 0, None)
        return ready

    def contender(self, key: str) -> Contender:
        return Contender(key, self.candidates[key].fitted.schedule.name, self.built[key])

    # --- timing -----------------------------------------------------------------------------
    def enter(self, key: str, trial: Trial, rung: int, anchor: Trial | None) -> None:
        """Put a trial into the records."""
        timed = trial.state == TIMED
        before = self.known.get(key)
        if before is not None and before.state == TIMED and timed and before.rung > rung:
            return
        found = Measurement(
            self.candidates[key].fitted.schedule,
            trial.state,
            trial.reason,
            trial.microseconds if timed else None,
            trial.quartiles if timed else None,
            trial.repeats,
            rung,
            trial.microseconds / anchor.microseconds if timed and anchor else None,
            trial.graph,
        )
        self.records.measure(self.problem, self.version, found)
        self.known[key] = found

    def time(self, keys: Sequence[str], repeats: int, rung: int) -> None:
        """Time candidates beside the anchor, and enter what is found."""
        own = [self.contender(key) for key in keys if key != self.anchor.key]
        anchor = self.contender(self.anchor.key)
        found = self.trials.time(anchor, own, repeats, brief=rung == 0)
        beside = found.get(self.anchor.key)
        if beside is not None:
            self.anchor_time = beside.microseconds
        for key, trial in found.items():
            self.enter(key, trial, rung, beside or Trial(microseconds=self.anchor_time))

    def report(self, stage: str) -> None:
        # Before the anchor is timed, ratios of earlier tunings are no times.
        ranking = self.ranking() if self.anchor_time else []
        best = self.known[ranking[0]] if ranking else None
        self._report(
            Progress(
                stage,
                len(self.known),
                len(self.candidates),
                self._now() - self.started,
                best.schedule.name if best else "",
                (best.ratio or 0.0) * self.anchor_time if best else 0.0,
                self.anchor_time,
            )
        )

    # --- the search -------------------------------------------------------------------------
    def begin(self) -> None:
        """Build and time the anchor: everything else is compared with it."""
        self.report("start")
        self.submit(self.anchor)
        self._fill()
        ready: list[str] = []
        while self.anchor.key not in self.built:
            ready += self.collect(_POLL_SECONDS)
            refused = self.known.get(self.anchor.key)
            if refused is not None and refused.state != TIMED and self.anchor.key not in self.built:
                found = Trial(refused.state, refused.reason)
                raise AnchorFailed(self.anchor.fitted.schedule, found)
            self._fill()
        self.time([self.anchor.key], _FIRST_REPEATS, 0)
        self._explore([key for key in ready if key != self.anchor.key])

    def _fill(self) -> None:
        while self.waiting and len(self.pending) < 2 * self.builders + _BATCH:
            self.submit(self.next_candidate())

    def _explore(self, ready: list[str]) -> None:
        """Time what is built, in batches, until the finals are due or nothing is left."""
        budget = self.deadline - self.started
        reserved = min(self.finals_seconds(), _FINALS_SHARE * budget)
        while (ready or self.pending or self.waiting) and self.left() > reserved:
            self._fill()
            if len(ready) >= _BATCH or (ready and not self.pending):
                batch, ready = ready[:_BATCH], ready[_BATCH:]
                self.time(batch, _FIRST_REPEATS, 0)
                self._look_around()
                self.report("search")
            ready += self.collect(0.0 if len(ready) >= _BATCH else min(_POLL_SECONDS, self.left()))
        if ready and self.left() > reserved / 2:
            self.time(ready[:_BATCH], _FIRST_REPEATS, 0)

    def finals(self) -> None:
        """Successive halving among the fastest."""
        for rung, (entered, repeats) in enumerate(_FINALS, 1):
            keys = [key for key in self.ranking() if self.known[key].rung >= rung - 1][:entered]
            keys = self._buildable([key for key in keys if key != self.anchor.key])
            self.time(keys, repeats, rung)
            self.report(f"final {rung}")
            self.conclude(finished=rung == len(_FINALS))
            if self.left() <= 0 and rung < len(_FINALS):
                return
        self.finished = True

    def _buildable(self, keys: Sequence[str]) -> list[str]:
        """Those whose kernels are at hand; what was measured by an earlier tuning is built now."""
        for future in [f for f, key in self.pending.items() if key not in keys]:
            future.cancel()
            del self.pending[future]
        for key in keys:
            if key not in self.built and key not in self.pending.values():
                self.submit(self.candidates[key])
        while any(key in keys for key in self.pending.values()) and self.left() > 0:
            self.collect(min(_POLL_SECONDS, max(0.0, self.left())))
        return [key for key in keys if key in self.built]

    def winner(self) -> Measurement | None:
        """The fastest of the last round that anything took part in; the anchor unless beaten."""
        timed = [m for m in self.known.values() if m.ratio is not None]
        last = max((m.rung for m in timed), default=0)
        in_last = [m for m in timed if m.rung == last]
        anchor = self.known.get(self.anchor.key)
        best = min(in_last, key=lambda m: (m.ratio or 0.0, m.schedule.name), default=anchor)
        return anchor if best is not None and (best.ratio or 1.0) >= 1.0 and anchor else best

    def conclude(self, *, finished: bool) -> None:
        """Enter the best schedule known."""
        best = self.winner()
        if best is not None:
            times = (self.anchor.fitted.schedule.name, self.anchor_time)
            self.records.conclude(self.problem, self.version, best, times, finished=finished)


class AnchorFailed(Exception):
    """The automatic choice cannot be built.

    Attributes:
        schedule: it.
        trial: why.
    """

    def __init__(self, schedule: Schedule, trial: Trial) -> None:
        super().__init__(f"{schedule.name}: {trial.reason}")
        self.schedule, self.trial = schedule, trial


def search(
    candidates: Sequence[Fitted],
    device: Device,
    problem: Problem,
    target: Target,
    version: Version,
    source: Source,
    records: Records,
    *,
    crew: Crew,
    budget: float | None = DEFAULT_BUDGET,
    check_limit: float = CHECK_SECONDS,
    report: Callable[[Progress], None] = lambda _: None,
    now: Callable[[], float] = time.monotonic,
) -> Tuning:
    """Find the fastest of some schedules.

    Args:
        candidates: the anchor first; of equal ones the first stays.
        device: the target, for the model.
        problem: sizes and epilogue, for the model.
        target: what the records call the problem.
        version: of generator and compiler.
        source: builds and times.
        records: where measurements are entered, and where those of this version come from.
        crew: the processes.
        budget: seconds; None: until everything is measured.
        check_limit: seconds until a contender counts as hung.
        report: called after every step.
        now: the clock that the budget is of, in seconds.

    Raises:
        AnchorFailed: the anchor cannot be built.
        PolygenError: nothing can be timed, or the records cannot be written.
    """
    started = now()
    ordered = ranked(candidates, device, problem)
    deadline = started + (float("inf") if budget is None else budget)
    run = _Search(ordered, records, target, version, deadline, crew.builders, report, now)
    run.started = started
    interrupted = False
    done = records.concluded(run.problem, version)
    if done is not None and not run.waiting and run.anchor.key in run.known:
        run.anchor_time, run.finished = done, True  # nothing is left to measure
    else:
        try:
            with Trials(source, crew, check_limit, deadline, now) as run.trials:
                run.begin()
                run.finals()
        except KeyboardInterrupt:
            interrupted = True
            run.conclude(finished=False)
    best = run.winner()
    if best is None:
        raise KeyboardInterrupt
    return Tuning(
        best=best,
        anchor=run.anchor.fitted.schedule.name,
        anchor_microseconds=run.anchor_time,
        candidates=len(run.candidates),
        states=_states(run.known.values()),
        resumed=run.resumed,
        seconds=now() - started,
        finished=run.finished,
        interrupted=interrupted,
        gpu=target.gpu,
    )


def _states(known: Iterable[Measurement]) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for found in known:
        counts[found.state] = counts.get(found.state, 0) + 1
    return tuple(sorted(counts.items()))
