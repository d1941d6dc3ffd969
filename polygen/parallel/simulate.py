"""A timetable on paper: how long its works and messages take, what waits, what must be kept.

1. Works are taken in the order of their ticks. One begins when its rank is free and what it reads
   has arrived; how long it takes is given, by phase.
2. A message leaves when it is made and its link, a direction between two ranks, is free; it arrives
   after the link's latency and its bytes at the link's bandwidth. Ranks of one host have one kind
   of link, others another. Sending takes no time of a rank.
3. When all work of a rank is done it adds up its gradients with those of its copies, on a ring.
4. From the last event backwards, what each one waited for is the critical path; what it spends in
   works, on links and in sums over copies says what bounds the whole.

Nothing here is measured. Times that were measured elsewhere are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.hardware.links import Link
from polygen.parallel.timetable import FORWARD
from polygen.parallel.turns import Message, Plan, Work

COMPUTE, COPIES = "compute", "copies"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a timetable is tried on.

    Attributes:
        seconds: per phase, of one stage's work on one microbatch.
        message: bytes of a microbatch between two stages.
        kept: bytes that a stage keeps of a microbatch until its last phase.
        parameters: bytes of a stage's gradients, which copies add up.
        host: ranks of one host, which `inside` links.
        inside: the link of ranks in a host.
        between: the link of ranks in different hosts.
        copies: of the whole pipeline, with other data; 1 for none.
    """

    seconds: tuple[tuple[str, float], ...]
    message: float
    kept: float
    parameters: float
    host: int
    inside: Link
    between: Link
    copies: int = 1

    def link(self, source: int, target: int) -> Link:
        """The link between two ranks."""
        return self.inside if source // self.host == target // self.host else self.between


@dataclass(frozen=True, slots=True)
class Simulated:
    """What comes out.

    Attributes:
        seconds: for one batch.
        bubble: the part of that in which a rank does no work, on average.
        peak: bytes that the fullest rank keeps, messages that have arrived among them.
        critical: seconds on the critical path, by what they are spent on.
        busiest: the link that carries messages longest, and the part of the time that it does.
    """

    seconds: float
    bubble: float
    peak: float
    critical: tuple[tuple[str, float], ...]
    busiest: tuple[str, float]

    @property
    def bounds(self) -> str:
        """The link that most of the critical path is spent on, beside work."""
        found = [(spent, name) for name, spent in self.critical if name != COMPUTE]
        spent, name = max(found, default=(0.0, COMPUTE))
        return name if spent > 0 else COMPUTE


def simulate(plan: Plan, machine: Machine) -> Simulated:
    """Run a plan on paper.

    Args:
        plan: a proved timetable for one number of microbatches.
        machine: what it runs on.
    """
    return _Simulation(plan, machine).run()


class _Simulation:
    def __init__(self, plan: Plan, machine: Machine) -> None:
        self.plan, self.machine = plan, machine
        self.lasts = dict(machine.seconds)
        self.ends: dict[Work, float] = {}
        self.because: dict[Work, Message | Work | None] = {}  # what a work waited for
        self.arrivals: dict[Work, list[tuple[float, Message]]] = {}
        self.left: dict[Message, float] = {}
        self.links: dict[tuple[int, int], float] = {}
        self.carried: dict[tuple[int, int], float] = {}

    def run(self) -> Simulated:
        sends: dict[Work, list[Message]] = {}
        for message in self.plan.messages:
            sends.setdefault(message.source, []).append(message)
        free: dict[int, Work] = {}
        works = [work for row in self.plan.works for work in row]
        for work in sorted(works, key=lambda work: (work.tick, work.rank)):
            before = free.get(work.rank)
            begin, why = (self.ends[before], before) if before else (0.0, None)
            cause: Message | Work | None = why
            for at, message in self.arrivals.get(work, ()):
                if at > begin:
                    begin, cause = at, message
            self.because[work] = cause
            self.ends[work] = begin + self.lasts[work.phase]
            free[work.rank] = work
            for message in sends.get(work, ()):
                self._send(message, self.ends[work])
        return self._found(works, free)

    def _send(self, message: Message, made: float) -> None:
        ends = (message.source.rank, message.target.rank)
        link = self.machine.link(*ends)
        leaves = max(made, self.links.get(ends, 0.0))
        takes = self.machine.message / link.bandwidth
        self.links[ends] = leaves + takes
        self.carried[ends] = self.carried.get(ends, 0.0) + takes
        self.left[message] = leaves
        arrives = leaves + link.seconds(self.machine.message)
        self.arrivals.setdefault(message.target, []).append((arrives, message))

    def _found(self, works: list[Work], last: dict[int, Work]) -> Simulated:
        machine, copies = self.machine, self.machine.copies
        summed = dict.fromkeys(last, 0.0)
        if copies > 1:
            stages = {(work.rank, work.stage) for work in works}
            for rank in last:
                size = machine.parameters * sum(1 for at, _ in stages if at == rank)
                steps = 2 * (copies - 1)
                summed[rank] = steps * machine.between.seconds(size / copies)
        end, final = max((self.ends[work] + summed[rank], rank) for rank, work in last.items())
        busy = sum(self.lasts[work.phase] for work in works)
        spent = self._path(last[final])
        if copies > 1:
            spent[COPIES] = summed[final]
        ends, carried = max(self.carried.items(), key=lambda item: item[1], default=((0, 0), 0.0))
        name = f"{machine.link(*ends).name} {ends[0]} -> {ends[1]}" if carried else ""
        return Simulated(
            end,
            1 - busy / (len(last) * end),
            max(self._peak(rank) for rank in last),
            tuple(sorted(spent.items())),
            (name, carried / end),
        )

    def _path(self, work: Work | None) -> dict[str, float]:
        """Seconds of the critical path up to a work, by what they are spent on."""
        spent = {COMPUTE: 0.0}
        while work is not None:
            spent[COMPUTE] += self.lasts[work.phase]
            cause = self.because[work]
            if not isinstance(cause, Message):
                work = cause
                continue
            name = self.machine.link(cause.source.rank, cause.target.rank).name
            began = self.ends[work] - self.lasts[work.phase]
            spent[name] = spent.get(name, 0.0) + began - self.ends[cause.source]
            work = cause.source
        return spent

    def _peak(self, rank: int) -> float:
        """Bytes kept on a rank: what stages keep, and messages until they have been read."""
        events: list[tuple[float, float]] = []
        final = self.plan.works[rank]
        ends = {(work.stage, work.microbatch): self.ends[work] for work in final}
        for work in final:
            begin = self.ends[work] - self.lasts[work.phase]
            if work.phase == FORWARD:
                events += [(begin, self.machine.kept)]
                events += [(ends[work.stage, work.microbatch], -self.machine.kept)]
            # What a forward pass reads becomes a part of what its stage keeps.
            until = begin if work.phase == FORWARD else self.ends[work]
            for at, _ in self.arrivals.get(work, ()):
                if at < until:
                    events += [(at, self.machine.message), (until, -self.machine.message)]
        most = held = 0.0
        for _, change in sorted(events):  # at one time what is given back comes first
            held += change
            most = max(most, held)
        return most
