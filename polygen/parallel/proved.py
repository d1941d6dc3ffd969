"""`Timetable` -> `Proved`: legal, live and within its buffers for every number of microbatches.

1. Domain and accesses of the pipeline are sets and relations: ``forward[s, m]`` reads what stage
   s - 1 made and writes what s + 1 reads, and what its own backward pass keeps; gradients go back.
   Every element is written once, so that *flow dependences* are writes composed with reads.
2. The timetable gives every piece of work one rank and one tick, no tick of a rank twice, and all
   work of a stage to one rank, where its parameters are.
3. No dependence is broken: its target is in a later tick than its source. Dependences between ranks
   are the *messages*. One leaves at the end of its source's tick, in one batch with all others of
   its rank, sent and received, so that both ends of a message are in the same batch.
4. What is kept between ticks lies in rings, microbatch m in slot m mod n: a stage's activations
   from its forward to its last pass, and messages from their batch to the tick that reads them. The
   least n that no two microbatches share is found, or that it grows with their number.
5. Waits: work for messages, batches for work and for slots of rings. Every wait is for something
   earlier, in ticks and batches, so that none is for itself, however many are between.

Every refusal shows one pair of works with the smallest number of microbatches that has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.errors import IllegalPipeline, PipelineError
from polygen.parallel.rings import Ring, rings
from polygen.parallel.timetable import BACKWARD, FORWARD, PHASES, SIZE, WEIGHTS, Timetable
from polygen.poly.legality import Proof

FIXED = "Change the relation of the schedule"


@dataclass(frozen=True, slots=True)
class Proved:
    """A timetable with all that is known of it.

    Attributes:
        timetable: what was proved.
        phases: that it has.
        home: per stage its rank.
        works: per phase the relation ``[stage, microbatch] -> [rank, tick]``.
        messages: phases of source and target, and ``[stage, microbatch] -> [stage, microbatch]``:
            the dependences between ranks.
        rings: of activations by stage, then of messages.
        length: ticks from the first to the last, an expression in ``microbatches``.
        proofs: what was decided, for all numbers of microbatches.
    """

    timetable: Timetable
    phases: tuple[str, ...]
    home: tuple[int, ...]
    works: tuple[tuple[str, isl.Map], ...]
    messages: tuple[tuple[str, str, isl.Map], ...]
    rings: tuple[Ring, ...]
    length: str
    proofs: tuple[Proof, ...]

    def __str__(self) -> str:
        ranks = "; ".join(
            f"rank {rank}: {', '.join(str(s) for s, home in enumerate(self.home) if home == rank)}"
            for rank in range(self.timetable.ranks)
        )
        return "\n".join(
            [str(self.timetable), f"stages of {ranks}", f"ticks: {self.length}", "slots of rings:"]
            + [f"  {ring}" for ring in self.rings]
            + [str(proof) for proof in self.proofs]
        )

    def takes(self, microbatches: int) -> bool:
        """Whether the timetable is for this number of microbatches."""
        return (
            not _condition(self.timetable)
            .intersect(isl.Set(f"[{SIZE}] -> {{ : {SIZE} = {microbatches} }}"))
            .is_empty()
        )


def prove(timetable: Timetable, buffers: int | None = None) -> Proved:
    """Prove a timetable.

    Args:
        timetable: what to prove.
        buffers: slots that every ring may have at most, in microbatches; None: any number.

    Raises:
        PipelineError: the relation cannot be read, or is about something else.
        IllegalPipeline: it is wrong for some number of microbatches; the message has a witness.
    """
    if buffers is not None and buffers < 1:
        raise PipelineError(
            f"{buffers} buffers",
            where=timetable.name,
            why="work keeps something",
            nearest="At least 1",
        )
    with isl.operations_budget(what=f"the proof of {timetable.name}"):
        return _Prover(timetable, buffers).run()


def _condition(timetable: Timetable) -> isl.Set:
    """The numbers of microbatches that a timetable is for."""
    text = f"{SIZE} >= 1" + (f" and {timetable.requires}" if timetable.requires else "")
    try:
        return isl.Set(f"[{SIZE}] -> {{ : {text} }}")
    except isl.Error:
        raise PipelineError(
            f"the condition {timetable.requires!r} cannot be read",
            where=timetable.name,
            nearest=f"As in {SIZE} mod {timetable.ranks} = 0",
        ) from None


class _Prover:
    """The steps, in order; each may refuse."""

    def __init__(self, timetable: Timetable, buffers: int | None) -> None:
        self.timetable, self.buffers = timetable, buffers
        self.condition = _condition(timetable)
        self.relation = self._read()
        names = {name.partition("[")[0].strip() for name in isl.pieces(self.relation.domain())}
        if not names <= set(PHASES) or not {FORWARD, BACKWARD} <= names:
            raise PipelineError(
                f"the relation is about {', '.join(sorted(names)) or 'nothing'}",
                where=timetable.name,
                nearest=f"Phases are forward[s,m], backward[s,m] and {WEIGHTS}[s,m], if any",
            )
        self.phases = tuple(phase for phase in PHASES if phase in names)
        self.last = self.phases[-1]
        stages = timetable.stages
        inside = f"0 <= s < {stages} and 0 <= m < {SIZE}"
        self.domain = self._set("; ".join(f"{p}[s, m] : {inside}" for p in self.phases))
        self.proofs: list[Proof] = []

    def run(self) -> Proved:
        self._function()
        self.relation = self.relation.intersect_domain(self.domain)
        self.tick = self.relation.apply_range(self._map("[r, t] -> [t]"))
        self.work = self.tick.apply_range(self._map("[t] -> [t, 0]"))
        self.batch = self.tick.apply_range(self._map("[t] -> [t, 1]"))
        self.rank = self.relation.apply_range(self._map("[r, t] -> [r]"))
        home = self._homes()
        self._alone()
        flow = self._flow()
        self._order(flow)
        activations = self._activations()
        messages = self._messages(flow)
        self._live(flow)
        return Proved(
            self.timetable,
            self.phases,
            home,
            tuple((phase, self._of(phase)) for phase in self.phases),
            self._sent(flow),
            (*activations, *messages),
            self._length(),
            tuple(self.proofs),
        )

    # --- reading and helpers
    def _read(self) -> isl.UnionMap:
        timetable = self.timetable
        try:
            found = isl.UnionMap(timetable.relation)
            texts = isl.pieces(found)
        except isl.Error as error:
            raise PipelineError(
                "the relation cannot be read",
                where=timetable.name,
                why=str(error).strip().splitlines()[0] if str(error).strip() else "isl's grammar",
                nearest="As in [microbatches] -> { forward[s,m] -> [s, s + m]; … }",
            ) from None
        two = isl.UnionMap(f"[{SIZE}] -> {{ "
                           + "; ".join(f"{p}[s, m] -> [r, t]" for p in PHASES) + " }")  # fmt: skip
        space = found.get_space()
        names = {
            space.get_dim_name(isl.dim_type.param, n) for n in range(space.dim(isl.dim_type.param))
        }
        if not texts or not names <= {SIZE} or not found.is_subset(two):
            raise PipelineError(
                "the relation is not phase[stage, microbatch] -> [rank, tick]",
                where=timetable.name,
                why=f"its parameters are {', '.join(sorted(map(str, names)))}"
                if not names <= {SIZE} else texts[0] if texts else "it is empty",
                nearest="As in [microbatches] -> { forward[s,m] -> [s, s + m]; … }",
            )  # fmt: skip
        return found.intersect_params(self.condition)

    def _map(self, text: str) -> isl.UnionMap:
        return isl.UnionMap(f"[{SIZE}] -> {{ {text} }}").intersect_params(self.condition)

    def _set(self, text: str) -> isl.UnionSet:
        return isl.UnionSet(f"[{SIZE}] -> {{ {text} }}").intersect_params(self.condition)

    def _of(self, phase: str) -> isl.Map:
        """``[stage, microbatch] -> [rank, tick]`` of one phase."""
        named = self._map(f"[s, m] -> {phase}[s, m]")
        return isl.Map.from_union_map(named.apply_range(self.relation)).coalesce()

    def _proved(self, claim: str) -> None:
        self.proofs.append(Proof(claim, self.timetable.name))

    def _refuse(self, what: str, wrong: isl.UnionMap, why: str, nearest: str = FIXED) -> None:
        """Refuse if there is a pair that is wrong."""
        pair = isl.sample_pair(wrong)
        if pair is not None:
            raise IllegalPipeline(
                f"{what}: {pair}", where=self.timetable.name, why=why, nearest=nearest
            )

    # --- the steps
    def _function(self) -> None:
        missing = self.domain.subtract(self.relation.domain())
        if not missing.is_empty():
            absent = str(isl.sample_pair(missing.identity())).partition(" -> ")[2]
            raise IllegalPipeline(
                f"work without rank and tick: {absent}",
                where=self.timetable.name,
                why="every stage takes every microbatch through every phase",
                nearest=FIXED,
            )
        relation = self.relation.intersect_domain(self.domain)
        twice = relation.reverse().apply_range(relation)
        twice = twice.subtract(relation.range().identity())
        if not twice.is_empty():
            who = isl.sample_pair(relation.intersect_range(twice.domain()))
            raise IllegalPipeline(
                f"work that is done twice: {who}, and {isl.sample_pair(twice)}",
                where=self.timetable.name,
                why="work is done once",
                nearest=FIXED,
            )
        ranks = self._set(f"[r, t] : 0 <= r < {self.timetable.ranks}")
        self._refuse(
            "work on a rank that is not there",
            relation.subtract_range(ranks),
            f"ranks are 0 to {self.timetable.ranks - 1}",
        )
        self._proved("every work has one rank and one tick")

    def _homes(self) -> tuple[int, ...]:
        rank = self.rank
        same_stage = self._map("; ".join(
            f"{a}[s, m] -> {b}[s, n]" for a in self.phases for b in self.phases))  # fmt: skip
        same_stage = same_stage.intersect_domain(self.domain).intersect_range(self.domain)
        self._refuse(
            "a stage on two ranks",
            same_stage.subtract(rank.apply_range(rank.reverse())),
            "its parameters are on one",
        )
        self._proved("all work of a stage is on one rank")
        stage = self._map("; ".join(f"{p}[s, m] -> [s]" for p in self.phases))
        homes = isl.Map.from_union_map(stage.reverse().apply_range(rank)).project_out(
            isl.dim_type.param, 0, 1
        )
        return tuple(rank for _, rank in isl.points(homes.coalesce()))

    def _alone(self) -> None:
        together = self.relation.apply_range(self.relation.reverse())
        self._refuse(
            "a rank has two works in one tick",
            together.subtract(self.domain.identity()),
            "a rank does one at a time",
        )
        self._proved("a rank does one work at a time")

    def _flow(self) -> isl.UnionMap:
        """From what writes an element to what reads it: an element is written once."""
        final = self.timetable.stages - 1
        writes = [
            f"{FORWARD}[s, m] -> output[s, m]",
            f"{FORWARD}[s, m] -> kept[s, m]",
            f"{BACKWARD}[s, m] -> gradient[s, m]",
        ]
        reads = [
            f"{FORWARD}[s, m] -> output[s - 1, m] : s > 0",
            f"{BACKWARD}[s, m] -> kept[s, m]",
            f"{BACKWARD}[s, m] -> gradient[s + 1, m] : s < {final}",
        ]
        if WEIGHTS in self.phases:
            writes.append(f"{BACKWARD}[s, m] -> inner[s, m]")
            reads += [f"{WEIGHTS}[s, m] -> inner[s, m]", f"{WEIGHTS}[s, m] -> kept[s, m]"]
        made = self._map("; ".join(writes)).intersect_domain(self.domain)
        read = self._map("; ".join(reads)).intersect_domain(self.domain)
        return made.apply_range(read.reverse()).coalesce()

    def _crossing(self, flow: isl.UnionMap) -> isl.UnionMap:
        """The dependences between two ranks: what is sent."""
        return flow.subtract(self.rank.apply_range(self.rank.reverse()))

    def _sent(self, flow: isl.UnionMap) -> tuple[tuple[str, str, isl.Map], ...]:
        found = []
        crossing = self._crossing(flow)
        for source in self.phases:
            for target in self.phases:
                named = self._map(f"[s, m] -> {source}[s, m]").apply_range(crossing)
                between = named.apply_range(self._map(f"{target}[s, m] -> [s, m]"))
                if not between.is_empty():
                    found.append((source, target, isl.Map.from_union_map(between).coalesce()))
        return tuple(found)

    def _order(self, flow: isl.UnionMap) -> None:
        broken = flow.intersect(self.tick.lex_ge_union_map(self.tick))
        self._refuse(
            "a dependence is broken",
            broken,
            "the second reads what the first makes, and is not in a later tick: "
            "it would wait for ever",
        )
        self._proved("no dependence is broken")

    def _activations(self) -> list[Ring]:
        first = self._map(f"[s, m] -> {FORWARD}[s, m]").apply_range(self.work)
        last = self._map(f"[s, m] -> {self.last}[s, m]").apply_range(self.work)
        found = rings(self.timetable, "activations", (first, last), self.buffers)
        self._proved("activations stay in their slots until they have been read")
        return found

    def _messages(self, flow: isl.UnionMap) -> list[Ring]:
        """The rings of what comes from other ranks, by the phase that reads it."""
        crossing = self._crossing(flow)
        found: list[Ring] = []
        for phase in (FORWARD, BACKWARD):
            to = self._set(f"{phase}[s, m]").intersect(self.domain)
            messages = crossing.intersect_range(to)
            if messages.is_empty():
                continue
            named = self._map(f"[s, m] -> {phase}[s, m]").intersect_range(messages.range())
            source = named.apply_range(messages.reverse()).apply_range(self.batch)
            held = (source, named.apply_range(self.work))
            found += rings(self.timetable, f"messages for {phase}", held, self.buffers)
        self._proved("messages stay in their slots until they have been read")
        return found

    def _live(self, flow: isl.UnionMap) -> None:
        """Every wait is for something earlier: work in tick t is at (t, 0), its batch at (t, 1)."""
        crossing, work, batch = self._crossing(flow), self.work, self.batch
        # Work waits for the batch that brings what it reads; a batch for the work that makes it.
        stuck = crossing.intersect(batch.lex_ge_union_map(work))
        own = flow.subtract(crossing).intersect(work.lex_ge_union_map(work))
        self._refuse(
            "a wait that never ends",
            stuck.union(own),
            "the second waits for the first, which comes later",
        )
        made = self.domain.identity().intersect(work.lex_ge_union_map(batch))
        self._refuse("a batch before what it sends", made, "it leaves behind the tick")
        self._proved("every wait is for something earlier: no deadlock")

    def _length(self) -> str:
        ticks = isl.Set.from_union_set(self.tick.range())
        first, last = ticks.dim_min(0), ticks.dim_max(0)
        length = last.sub(first).add_constant_val(isl.Val(1)).coalesce()
        text = str(length.gist_params(self.condition))
        body = text.partition("{")[2].rpartition("}")[0].strip()
        return body.replace("[(", "").replace(")]", "")
