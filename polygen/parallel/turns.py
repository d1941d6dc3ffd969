"""`Proved` and a number of microbatches -> `Plan`: what every rank does, tick by tick.

Points of the proved relations, put in order; nothing is decided here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from polygen import isl
from polygen.errors import PipelineError
from polygen.parallel.proved import Proved
from polygen.parallel.timetable import SIZE


@dataclass(frozen=True, slots=True)
class Work:
    """One phase of one stage for one microbatch, with its tick."""

    phase: str
    stage: int
    microbatch: int
    rank: int
    tick: int

    def __str__(self) -> str:
        return f"{self.phase}[{self.stage},{self.microbatch}]"


@dataclass(frozen=True, slots=True)
class Message:
    """What one work makes for another one on another rank."""

    source: Work
    target: Work

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True, slots=True)
class Turn:
    """What a rank does in one tick: first the work, then one batch of messages.

    Attributes:
        tick: which.
        work: to be done; None where the rank only sends or receives.
        sends: in an order that both ends share.
        receives: likewise.
    """

    tick: int
    work: Work | None
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A timetable for one number of microbatches.

    Attributes:
        microbatches: how many.
        ticks: from the first to the last.
        turns: per rank, in order; ticks in which it has nothing to do are left out.
        messages: all of them.
    """

    microbatches: int
    ticks: int
    turns: tuple[tuple[Turn, ...], ...]
    messages: tuple[Message, ...]

    @property
    def works(self) -> tuple[tuple[Work, ...], ...]:
        """Per rank its work, in order."""
        return tuple(tuple(t.work for t in turns if t.work is not None) for turns in self.turns)

    @property
    def bubble(self) -> float:
        """The part of all ranks' ticks in which they have no work."""
        done = sum(map(len, self.works))
        return 1 - done / (len(self.turns) * self.ticks)


def plan(proved: Proved, microbatches: int) -> Plan:
    """What every rank does.

    Args:
        proved: the timetable.
        microbatches: how many there are.

    Raises:
        PipelineError: the timetable is not for this number of them.
    """
    if not proved.takes(microbatches):
        raise PipelineError(
            f"{microbatches} microbatches",
            where=proved.timetable.name,
            why=f"the timetable is for {proved.timetable.requires or f'{SIZE} >= 1'}",
            nearest=_nearest(proved, microbatches),
        )
    works: dict[tuple[str, int, int], Work] = {}
    for phase, relation in proved.works:
        for stage, microbatch, rank, tick in isl.points(_fixed(relation, microbatches)):
            works[phase, stage, microbatch] = Work(phase, stage, microbatch, rank, tick)
    first = min(work.tick for work in works.values())
    last = max(work.tick for work in works.values())
    messages = [
        Message(works[source, stage, microbatch], works[target, to, of])
        for source, target, between in proved.messages
        for stage, microbatch, to, of in isl.points(_fixed(between, microbatches))
    ]
    messages.sort(key=lambda m: (m.source.tick, m.source.rank, m.target.rank, m.target.phase))
    return Plan(
        microbatches,
        last - first + 1,
        _turns(proved.timetable.ranks, list(works.values()), messages),
        tuple(messages),
    )


def _turns(ranks: int, works: list[Work], messages: list[Message]) -> tuple[tuple[Turn, ...], ...]:
    work = {(one.rank, one.tick): one for one in works}
    sends: dict[tuple[int, int], list[Message]] = defaultdict(list)
    receives: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for message in messages:
        sends[message.source.rank, message.source.tick].append(message)
        receives[message.target.rank, message.source.tick].append(message)
    busy = sorted({*work, *sends, *receives})
    return tuple(
        tuple(
            Turn(tick, work.get(at), tuple(sends[at]), tuple(receives[at]))
            for at in busy
            for tick in at[1:]
            if at[0] == rank
        )
        for rank in range(ranks)
    )


def _fixed(relation: isl.Map, microbatches: int) -> isl.Map:
    fixed = relation.intersect_params(isl.Set(f"[{SIZE}] -> {{ : {SIZE} = {microbatches} }}"))
    return fixed.project_out(isl.dim_type.param, 0, fixed.dim(isl.dim_type.param))


def _nearest(proved: Proved, microbatches: int) -> str:
    by_distance = sorted(range(1, 2 * microbatches + 64), key=lambda n: abs(n - microbatches))
    found = next((n for n in by_distance if proved.takes(n)), None)
    return "No number near it is" if found is None else f"Take {found}"
