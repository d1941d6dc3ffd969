"""The refinement proof: what the places' trees do is what the tile program says, synchronised.

It reads the trees that are emitted, as text, and the records of what synchronises them; nothing
else is taken from the derivation but the one tree over everything, which serves as the order in
which all that waits can run.

    instances   every place runs exactly the program's instances of its statements, and no other
                leaf
    groups      commit groups are closed in the order of their coordinates
    arrivals    a phase expects the arrivals that the trees make, whatever the sizes; all threads
                that a barrier waits for come
    counters    either side of an mbarrier meets the versions of its buffer once each, in their
                order, passing over those of others by skips, so that slot and parity follow from
                the version
    order       every dependence lies on a path of trees and syncs, with the fences it needs
    window      what is claimed is about few iterations of a loop whose numbers vary
    kept        what is in a cell is read before it is overwritten: no term of a sum is lost
    live        in one order of all leaves signals come before waits, and every tree follows it
    phases      a wait is for the signals of its own version: the phase before is over, the next
                not yet
    ends        nothing reads or writes the memory of a block that is gone
    grids       of a dependent launch, nothing touches global memory before its wait for the grids
                before
    frame       barriers are there before anybody uses them, and memory as long as it is reached
    necessary   without any one sync something above does not hold

All of it for every value of the parameters. A failure is refused with a pair of instances.
"""

from __future__ import annotations

from functools import lru_cache

from polygen import isl
from polygen.errors import IllegalSchedule, VerifyError
from polygen.poly.agent_order import LeafFacts
from polygen.poly.counters import check_counters, check_sides, check_turns
from polygen.poly.dependent import KIND as GRID
from polygen.poly.dependent import check_waits
from polygen.poly.emitted import Emitted, read_trees
from polygen.poly.frame import frame
from polygen.poly.handover import arrivals
from polygen.poly.happens_before import Order
from polygen.poly.kept_cells import check_kept
from polygen.poly.legality import Proof
from polygen.poly.liveness import check_live
from polygen.poly.phases import early, late
from polygen.poly.tile_program import Sync, TileStatement
from polygen.poly.versions import Dependence, TileModel, maps_of
from polygen.poly.window import check_window

_PARAM, _SET, _IN, _OUT = (
    isl.dim_type.param,
    isl.dim_type.set,
    isl.dim_type.in_,
    isl.dim_type.out,
)
_WHERE = "refinement"


@lru_cache(maxsize=64)
def refine(emitted: Emitted, *, necessary: bool = True) -> tuple[Proof, ...]:
    """Prove what is emitted; the same texts and records are proved once in a process.

    Args:
        emitted: trees and records.
        necessary: whether to prove that no sync can be dropped as well.

    Raises:
        VerifyError: a claim does not hold; with a witness.
    """
    proof = _Refinement(emitted)
    proof.check_instances()
    proof.check_groups()
    proof.check_arrivals()
    proof.check_counters()
    proof.check_order()
    known = tuple(emitted.known.values())
    check_window(proof.order, proof.needs, known)
    check_kept(proof.model)
    proof.check_carried()
    check_live(proof.order, emitted)
    proof.check_phases()
    proof.check_ends()
    proof.check_frame()
    check_waits(proof.order, proof.program, proof.facts)
    if necessary:
        proof.check_necessary()
    count = f"{len(emitted.syncs)} sync(s), {len(emitted.trees)} place(s)"
    claims = [
        "every place runs exactly its instances of the program",
        "arrivals are what barriers expect, and everybody comes",
        "all versions are met in their order, so that counts say slot and parity",
        "every dependence is ordered by the emitted trees and their synchronisation",
        "what elements leave for each other stays in order",
        "nothing is overwritten that nobody has read",
        "every wait is for something earlier, so that nothing waits for ever",
        "a wait is for its own phase: the one before is over, the next but one not yet",
        "barriers are there before they are used, and memory as long as it is",
    ]
    varying = emitted.program.varying
    if varying is not None:
        claims.append(
            f"all that for any {varying.name} in every iteration of {varying.loop}: claims are "
            f"about {varying.window} of them that follow each other, of any numbers"
        )
    if emitted.program.dependent:
        settled = any(one.settled for one in emitted.program.statements)
        but = ", but for reads of what nobody still writes," if settled else ""
        claims.append(f"nothing{but} touches global memory before the grids before are complete")
    if necessary:
        claims.append("no synchronisation can be dropped")
    return tuple(Proof(claim, count) for claim in claims)


class _Refinement:
    def __init__(self, emitted: Emitted) -> None:
        self.emitted = emitted
        self.program, self.syncs = emitted.program, emitted.syncs
        self.model = TileModel(self.program, emitted.leaves)
        self.known = emitted.known
        self.facts = {name: LeafFacts.of(leaf) for name, leaf in self.known.items()}
        self.times = read_trees(emitted, self.model.context)
        self._add_tokens()
        self.order = Order(self.model, self.times, self.facts, self.syncs)
        self.needs: tuple[Dependence, ...] = self.model.dependences()
        self.users: dict[str, list[Dependence]] = {}

    def _add_tokens(self) -> None:
        """Cells that only syncs know: what agents in turns pass on."""
        for sync in self.syncs:
            if sync.buffers and sync.buffers[0] not in self.model.cells:
                ((signal, cells),) = sync.signals
                if signal not in self.times:
                    raise VerifyError(
                        f"instances: {signal} of {sync.name} is in no tree", where=_WHERE
                    )
                relation = self.model.map(cells).intersect_domain(self.times[signal].domain())
                place = self.facts[signal].place
                versions = relation.dim(_OUT) - place.blocks
                self.model.add_token(sync.buffers[0], relation.range(), versions)

    def check_instances(self) -> None:
        """Exactly the program's instances, and no leaf that belongs to nothing."""
        for statement in self.program.statements:
            wanted = self.model.domains[statement.name]
            timed = self.times.get(statement.name)
            have = wanted.subtract(wanted) if timed is None else timed.domain()
            for claim, rest in (
                ("is never executed", wanted.subtract(have)),
                ("is executed, but is not in the program", have.subtract(wanted)),
            ):
                if not rest.is_empty():
                    raise VerifyError(f"instances: {isl.sample_point(rest)} {claim}", where=_WHERE)
            if timed is not None and not timed.is_single_valued():
                raise VerifyError(f"instances: {statement.name} runs twice", where=_WHERE)
        belong: dict[str, str] = {}
        for sync in self.syncs:
            for name in _leaves_of(sync):
                if name not in self.times:
                    raise VerifyError(
                        f"instances: {name} of {sync.name} is in no tree", where=_WHERE
                    )
                belong[name] = sync.name
        for leaf in self.emitted.leaves:
            if leaf.name in self.times and leaf.name not in belong:
                raise VerifyError(
                    f"instances: {leaf.name} belongs to no synchronisation", where=_WHERE
                )

    def check_groups(self) -> None:
        """Groups are closed in the order of their coordinates, which "later" goes by."""
        for group in {f.group for f in self.facts.values() if f.group}:
            if group not in self.times:
                raise VerifyError(f"groups: {group} is in no tree", where=_WHERE)
            agents = len(self.facts[group].place.agents)
            domain = self.times[group].domain()
            by_name = isl.Map.lex_lt(domain.get_space())
            for n in range(agents):
                by_name = by_name.equate(_IN, n, _OUT, n)
            by_name = by_name.intersect_domain(domain).intersect_range(domain)
            wrong = isl.beyond(self.order.before(group, group), by_name)
            if wrong is not None:
                raise VerifyError(
                    f"groups: {group} is closed out of order: {isl.sample_pair(wrong)}",
                    where=_WHERE,
                )

    def check_arrivals(self) -> None:
        """As many arrivals as expected; all agents at a barrier; slots as their buffers have."""
        for sync in self.syncs:
            if sync.kind == "bar":
                self._check_everyone(sync)
            if sync.kind not in ("mbarrier", "turn"):
                continue
            for leaf, cells in (*sync.signals, (sync.wait, sync.waits_for)):
                if self.model.map(cells).get_tuple_name(_OUT) != sync.buffers[0]:
                    raise VerifyError(
                        f"arrivals: {leaf} is not about a barrier of {sync.name}", where=_WHERE
                    )
            if len(dict(sync.signals)) != len(sync.signals):
                raise VerifyError(f"arrivals: a leaf arrives twice at {sync.name}", where=_WHERE)
            self._check_count(sync)
            for name in sync.buffers:
                if sync.kind == "mbarrier" and self.program.buffer(name).slots != sync.slots:
                    raise VerifyError(
                        f"slots: {sync.name} has {sync.slots}, {name} has "
                        f"{self.program.buffer(name).slots}",
                        where=_WHERE,
                    )

    def _check_everyone(self, sync: Sync) -> None:
        domain = self.times[sync.wait].domain()
        place = self.facts[sync.wait].place
        if self.facts[sync.wait].executes != "all":
            raise VerifyError(f"arrivals: not all threads come to {sync.name}", where=_WHERE)
        if sync.scope == "agent":
            return
        for n in range(place.blocks, len(place.agents)):
            every = domain.project_out(_SET, n, 1).insert_dims(_SET, n, 1)
            every = every.lower_bound_val(_SET, n, isl.Val(0))
            every = every.upper_bound_val(_SET, n, isl.Val(place.counts[n] - 1))
            missing = every.set_tuple_name(sync.wait).subtract(domain)
            if not missing.is_empty():
                raise VerifyError(
                    f"arrivals: {sync.name} waits for ever for {isl.sample_point(missing)}",
                    where=_WHERE,
                )

    def _check_count(self, sync: Sync) -> None:
        """Arrivals by bytes: one, of the Move of the block itself; by threads: counted."""
        signals = [
            (self.facts[s], self.model.map(r).intersect_domain(self.times[s].domain()))
            for s, r in sync.signals
        ]
        by_bytes = [f.unit is not None and f.unit.completion == "bytes" for f, _ in signals]
        if any(by_bytes):  # announced in the own block only; never mixed with arrivals of threads
            versions = self.model.versions[sync.buffers[0]]
            signals = [(f, _in_own_block(f, r, versions)) for f, r in signals]
        try:
            made = arrivals(signals) if all(by_bytes) or not any(by_bytes) else -1
        except IllegalSchedule as error:
            raise VerifyError(f"arrivals: {error.what}", where=_WHERE) from None
        if made != sync.arrivals:
            raise VerifyError(
                f"arrivals: {sync.name} expects {sync.arrivals} a phase, its signals make {made}",
                where=_WHERE,
            )

    def check_counters(self) -> None:
        """Versions in their order at both sides, and at all that works on their slots."""
        for sync in self.syncs:
            if sync.kind == "mbarrier":
                check_sides(self.order, sync)
            if sync.kind == "turn":
                check_turns(self.order, sync)
        check_counters(self.order, self.program, self.emitted.counters)

    def check_order(self) -> None:
        """Every dependence is kept."""
        for need in self.needs:
            rest, used = self.order.open_part(need)
            if not rest.is_empty():
                raise VerifyError(
                    f"order: nothing keeps {need}: {isl.sample_pair(rest)}", where=_WHERE
                )
            for name in used:
                self.users.setdefault(name, []).append(need)

    def check_carried(self) -> None:
        """What one element leaves for another stays in order: by a tree, else by syncs."""
        for need in maps_of(isl.UnionMap(f"{self.program.prefix}{{ {self.emitted.carried} }}")):
            source, target = str(need.get_tuple_name(_IN)), str(need.get_tuple_name(_OUT))
            there = self.model.numbered(need).intersect_domain(self.times[source].domain())
            there = there.intersect_range(self.times[target].domain())
            wrong = isl.beyond(there, self.order.before(source, target))
            if wrong is not None:  # what is left leads from one agent to another
                wrong, _ = self.order.uncovered(source, target, wrong)
            if wrong is not None and not wrong.is_empty():
                raise VerifyError(
                    f"order: tiles of the program run in the wrong order: {isl.sample_pair(wrong)}",
                    where=_WHERE,
                )

    def check_phases(self) -> None:
        """No wait is a phase off."""
        for sync in self.syncs:
            if sync.kind != "mbarrier":
                continue
            rest = early(self.order, sync) if sync.skips else None
            if rest is not None and not rest.is_empty():
                raise VerifyError(
                    f"phases: {sync.name}: a wait may begin before the phase before its own is "
                    f"over: {isl.sample_pair(rest)}",
                    where=_WHERE,
                )
            rest = late(self.order, sync)
            if not rest.is_empty():
                raise VerifyError(
                    f"phases: {sync.name}: a wait may be overtaken: {isl.sample_pair(rest)}",
                    where=_WHERE,
                )

    def check_ends(self) -> None:
        """What reads shared memory in the background is waited for at the end of its place."""
        for statement in self.program.statements:
            if not ends_open(self.model, statement):
                continue
            done = None
            for retire in self.order.retires(statement.name):
                if not self.known[retire.wait].loops:
                    pairs = self.order.complete_at(statement.name, retire.wait, retire.pending)
                    whole = pairs.domain()
                    done = whole if done is None else done.union(whole)
            every = self.times[statement.name].domain()
            rest = every if done is None else every.subtract(done)
            if not rest.is_empty():
                raise VerifyError(
                    f"ends: {isl.sample_point(rest)} may still use shared memory when its block "
                    "has ended",
                    where=_WHERE,
                )

    def check_frame(self) -> None:
        """Barriers are there before anybody uses them, and memory as long as anybody reaches it."""
        needed, have = frame(self.model, self.syncs), self.emitted.frame
        if not have.holds(needed):
            raise VerifyError(
                f"frame: begins with {have.begin} and ends with {have.end}, needed are "
                f"{needed.begin} and {needed.end}",
                where=_WHERE,
            )

    def check_necessary(self) -> None:
        """Without any one sync something is not ordered."""
        for sync in self.syncs:
            if sync.kind in ("turn", GRID) or self._is_last_wait(sync):
                continue
            order = self.order.having(tuple(s for s in self.syncs if s is not sync))
            users = self.users.get(sync.name, [])
            ranked = sorted(users, key=lambda d: d.buffer.name not in sync.buffers)
            if any(order.is_open(need, sync) for need in ranked):
                continue
            others = [s for s in order.syncs if s.kind == "mbarrier"]
            if any(
                not late(order, s).is_empty() or (s.skips and not early(order, s).is_empty())
                for s in others
            ):
                continue
            raise VerifyError(f"necessary: {sync.name} enforces nothing", where=_WHERE)

    def _is_last_wait(self, sync: Sync) -> bool:
        return (
            sync.kind == "retire"
            and not self.known[sync.wait].loops
            and any(
                ends_open(self.model, s) and s.unit.name == sync.unit
                for s in self.program.statements
            )
        )


def ends_open(model: TileModel, statement: TileStatement) -> bool:
    """Whether a statement may still use its block's shared memory after its thread has gone on."""
    shared = [b.name for b in model.program.buffers if b.space == "shared"]
    touches = any(
        statement.name in table[b] for table in (model.reads, model.writes) for b in shared
    )
    unit = statement.unit
    return touches and unit.completion == "groups" and unit.proxy == "async" and not unit.in_order


def _leaves_of(sync: Sync) -> tuple[str, ...]:
    return (sync.wait, *dict(sync.signals), *dict(sync.skips))


def _in_own_block(facts: LeafFacts, cells: isl.Map, versions: int) -> isl.Map:
    """The barriers of a Move's own block: there it announces the bytes."""
    for n in range(facts.place.blocks):
        cells = cells.equate(_IN, n, _OUT, versions + n)
    return cells
