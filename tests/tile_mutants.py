"""Synchronised kernels with one mistake each: trees, records and counters that no proof may accept.

`CASES` names kernels of both families; `mutants(kernel)` yields a description and what would be
emitted. Every change is to what is emitted or claimed of it, never to the program that it is proved
against. Some changes turn out to be no mistakes: `EQUIVALENT` lists them, and why.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

from polygen import isl
from polygen.frontend.dtypes import BF16, F32
from polygen.hardware.atom import atoms_for
from polygen.hardware.device import device
from polygen.poly.counters import Counter
from polygen.poly.derive_syncs import Synchronised, derive
from polygen.poly.emitted import Emitted, emitted_of
from polygen.poly.frame import Frame
from polygen.poly.kernel_parts import Epilogue, MainLoop, Product, RestLoop, Ring
from polygen.poly.kernel_program import kernel_program
from polygen.poly.tile_program import Sync, SyncStatement, TileProgram
from polygen.poly.tile_tree import Leaf, Loop, Node, Steps, filtered, leaves, loops_around, without
from polygen.poly.tiling import Panels, RowVectors, tiling
from polygen.schedule.load import load_schedule
from polygen.schedule.model import Cluster, Pipeline

SCHEDULES = Path(__file__).parents[1] / "schedules"
_SET = isl.dim_type.set
_WARP = 32


ONE_PRODUCT = MainLoop((Ring("a", "m"), Ring("b", "n")), (Product("", "a", "b"),))
# silu(x @ u.T) * (x @ v.T), and x @ u.T + y @ v.T
SHARED = MainLoop(
    (Ring("a", "m"), Ring("b", "n"), Ring("b2", "n")),
    (Product("0", "a", "b"), Product("1", "a", "b2")),
)
APART = MainLoop(
    (Ring("a", "m"), Ring("a2", "m"), Ring("b", "n"), Ring("b2", "n")),
    (Product("0", "a", "b"), Product("1", "a2", "b2")),
)
# Of some tiles no sum is read: they have no products.
SOME = replace(ONE_PRODUCT, inside=True)
# x @ w.T + (x @ a.T) @ b.T
ON = MainLoop(
    (Ring("a", "m"), Ring("b", "n"), Ring("c", "n")),
    ONE_PRODUCT.products,
    rest=RestLoop(Product("middle", "a", "c"), Product("rest", "middle", "d"), 32),
)
# Threads fill the rings of both operands in rounds of several pieces, or that of one.
FILLED = MainLoop((Ring("a", "m", 2), Ring("b", "n", 1)), ONE_PRODUCT.products)
# All warps compute one operand, through registers, beside the other's background copies.
HALF_COMPUTED = MainLoop((Ring("a", "m", computed=True), Ring("b", "n")), ONE_PRODUCT.products)
# Consumers compute fragments of one operand, and multiply them from their registers.
FRAGMENTS = MainLoop(
    (Ring("a", "m", fragment=True, beside=True), Ring("b", "n")), ONE_PRODUCT.products
)
# Both operands pass through registers on their way, with products in between.
STAGED = MainLoop((Ring("a", "m", staged=True), Ring("b", "n", staged=True)), ONE_PRODUCT.products)
# Sums in blocks of a k tile, or of two, are promoted.
SCALED = replace(ONE_PRODUCT, products=(Product("", "a", "b", scaled=True),))
BY_STEP, IN_BLOCKS, IN_PAIRS = (replace(SCALED, block=block) for block in (32, 64, 128))
HALF_FILLED = MainLoop((Ring("a", "m"), Ring("b", "n", 2)), ONE_PRODUCT.products)


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel to break."""

    name: str
    schedule: str  # file under schedules/
    operands: tuple[str, ...] = ()  # matrices that the epilogue reads through panels
    outputs: tuple[str, ...] = ("y0",)
    asynchronous: bool = True
    in_flight: int | None = None
    main: MainLoop = ONE_PRODUCT
    stages: int | None = None
    k: int | None = None  # blocks of a cluster that share sums
    registers: int | None = None  # of the producer
    folds: bool = False  # whether terms are folded
    overlap: int = 1  # blocks of a run, of sums in blocks
    turns: int | None = None  # consumers that take turns
    cluster: tuple[int, int] | None = None  # tiles of a cluster


CASES = (
    Case("warps", "sm_80/128x128x32_w64x64_s4.toml"),
    Case("warps, some tiles alone", "sm_80/128x128x32_w64x64_s4.toml", main=SOME),
    Case("warps, spread copies", "sm_90a/128x256x32_w64x64_s6_spread.toml"),
    Case("warps, copies through registers", "sm_80/32x64x32_w16x32_s4.toml", asynchronous=False),
    Case("warps, staged copies", "sm_75/64x64x32_w32x32_s2.toml", asynchronous=False, main=STAGED),
    Case("warps, one operand computed", "sm_80/64x64x64_w32x32_s4.toml", main=HALF_COMPUTED),
    Case("warps, sums in blocks", "sm_80/128x128x32_w64x64_s4.toml", main=BY_STEP),
    Case("cooperative, residual", "sm_90a/cooperative_128x256x64.toml", ("r",)),
    Case(
        "cooperative, residual of some tiles",
        "sm_90a/cooperative_128x256x64.toml",
        ("r",),
        main=SOME,
    ),
    Case("cooperative, two outputs", "sm_90a/cooperative_128x128x64_s6.toml", (), ("y0", "y1")),
    Case("cooperative, none in flight", "sm_90a/cooperative_256x128x64.toml", ("r",), in_flight=0),
    Case("ping-pong, residual", "sm_90a/pingpong_64x256x64.toml", ("r",)),
    Case("ping-pong, from registers", "sm_90a/pingpong_64x160x64_s6_registers.toml"),
    Case("cluster of two", "sm_90a/cooperative_128x256x64_c2x1.toml", ("r",)),
    Case("shared sums, residual", "sm_90a/cooperative_64x64x64_s11_k4.toml", ("r",), stages=3),
    Case("shared sums, pair", "sm_90a/cooperative_64x64x64_s11_k4.toml", main=APART, stages=3, k=2),
    Case(
        "last round shared, residual",
        "sm_90a/cooperative_128x128x64_w64_s5_k2x16last.toml",
        ("r",),
        stages=3,
    ),
    Case("ping-pong, folds", "sm_90a/pingpong_64x160x64_s6_registers.toml", folds=True),
    Case("cooperative, folds of panels", "sm_90a/cooperative_128x256x64.toml", ("r",), folds=True),
    Case("warps, shared pair", "sm_80/64x64x64_w32x32_s4.toml", main=SHARED),
    Case("cooperative, pair", "sm_90a/cooperative_128x64x64.toml", main=APART, stages=3),
    Case("ping-pong, shared pair", "sm_90a/pingpong_64x96x64_s10.toml", main=SHARED, stages=4),
    Case("cooperative, sums that go on", "sm_90a/cooperative_128x64x64.toml", main=ON, stages=3),
    Case(
        "cooperative, filled by threads",
        "sm_90a/cooperative_128x64x64.toml",
        main=FILLED,
        stages=3,
        registers=120,
    ),
    Case(
        "cooperative, fragments computed",
        "sm_90a/cooperative_64x128x64.toml",
        main=FRAGMENTS,
        stages=3,
    ),
    Case(
        "cooperative, sums in blocks", "sm_90a/cooperative_128x64x64.toml", main=IN_BLOCKS, stages=3
    ),
    Case(
        "cooperative, runs of blocks",
        "sm_90a/cooperative_128x64x64.toml",
        main=IN_BLOCKS,
        stages=3,
        overlap=2,
    ),
    Case("ping-pong, sums in blocks", "sm_90a/pingpong_64x96x64_s10.toml", main=IN_PAIRS, stages=4),
    Case(
        "ping-pong, one operand by threads",
        "sm_90a/pingpong_64x96x64_s10.toml",
        main=HALF_FILLED,
        stages=4,
        registers=120,
    ),
)


@lru_cache(maxsize=16)
def kernel(case: Case) -> Synchronised:
    """The synchronised program of a case."""
    return derive(program(case))


def program(case: Case) -> TileProgram:
    """The tile program of a case."""
    schedule = load_schedule(SCHEDULES / case.schedule)
    if case.in_flight is not None:
        pipeline: Pipeline = replace(schedule.pipeline, in_flight=case.in_flight)
        schedule = replace(schedule, pipeline=pipeline)
    if case.stages is not None:
        schedule = replace(schedule, pipeline=replace(schedule.pipeline, stages=case.stages))
    if case.overlap > 1:
        schedule = replace(schedule, pipeline=replace(schedule.pipeline, overlap=case.overlap))
    if case.k is not None:
        schedule = replace(schedule, cluster=replace(schedule.cluster, k=case.k))
    if case.cluster is not None:
        schedule = replace(schedule, cluster=Cluster(*case.cluster))
    if case.turns is not None:
        schedule = replace(schedule, roles=replace(schedule.roles, turns=case.turns))
    if case.registers is not None:
        roles = replace(schedule.roles, producer_registers=case.registers)
        schedule = replace(schedule, roles=roles)
    scope = "warpgroup" if schedule.specialised else "warp"
    fitting = atoms_for(device("sm_90a"), BF16, BF16, F32)
    tiles = tiling(schedule, next(a for a in fitting if a.scope == scope))
    through = schedule.epilogue.through == "tma"
    width = tiles.share
    columns = schedule.epilogue.columns or next(c for c in (64, 32, 16) if width % c == 0)
    panels = Panels(columns, case.operands, case.outputs) if through else Panels(0, (), ())
    epilogue = Epilogue(RowVectors(8, 2, 32), panels, case.folds)
    return kernel_program(tiles, schedule, epilogue, case.main, asynchronous=case.asynchronous)


def emitted(of: Synchronised, **changes: object) -> Emitted:
    """What is emitted, with some parts exchanged.

    Args:
        of: the kernel.
        **changes: `tree`, `leaves`, `syncs`, `counters`, `program` (what it is proved against) or
            `shown` (the program whose domains the trees get).
    """
    shown = changes.pop("shown", of.program)
    proved = changes.pop("program", of.program)
    made = replace(of, **changes)  # type: ignore[arg-type]
    return replace(emitted_of(replace(made, program=shown)), program=proved)  # type: ignore[arg-type]


def mutants(of: Synchronised) -> Iterator[tuple[str, Emitted]]:
    """Every mistake that applies to a kernel."""
    yield from _instances(of)
    yield from _leaves(of)
    yield from _records(of)
    yield from _orders(of)
    yield from _counters(of)
    yield from _slots(of)
    yield from _frames(of)
    yield from _known_elsewhere(of)
    if any(s.name == "combine" for s in of.program.statements):
        yield from _shared_sums(of)


# ---- what the places run -------------------------------------------------------------------------


def _instances(of: Synchronised) -> Iterator[tuple[str, Emitted]]:
    """The last instance of each statement is left out, or one is run that is not in the program."""
    for statement in of.program.statements:
        if not statement.loops:
            continue
        last = statement.loops[-1]
        domain = isl.Set(f"{of.program.prefix}{{ {statement.domain} }}")
        position = domain.dim(_SET) - 1
        end = domain.dim_max(position)
        bound = str(end).partition("{")[2].rpartition("}")[0]
        most = bound.partition("[(")[2].partition(")]")[0]
        if not most:
            continue
        for what, more in (
            (f"{statement.name} without its last {last}", f" and {last} < {most}"),
            (f"{statement.name} without its first {last}", f" and {last} > 0"),
        ):
            changed = replace(statement, bounds=f"({statement.bounds}){more}")
            yield what, emitted(of, shown=_with(of.program, changed))


def _with(program: TileProgram, changed: object) -> TileProgram:
    name = changed.name  # type: ignore[attr-defined]
    new = tuple(changed if s.name == name else s for s in program.statements)
    return replace(program, statements=new)  # type: ignore[arg-type]


def _leaves(of: Synchronised) -> Iterator[tuple[str, Emitted]]:
    """A leaf that synchronises is dropped, runs once too rarely, or by the wrong threads."""
    for leaf in of.leaves:
        rest = tuple(x for x in of.leaves if x is not leaf)
        tree = without(of.tree, leaf.name)
        yield f"{leaf.name} is not emitted", emitted(of, tree=tree, leaves=rest)
        syncs = tuple(s for s in of.syncs if leaf.name not in _names(s))
        gone = {x for s in of.syncs if s not in syncs for x in _names(s)}
        fewer = tuple(x for x in of.leaves if x.name not in gone)
        if fewer != of.leaves and syncs != of.syncs:
            kept = filtered(of.tree, set(leaves(of.tree)) - (gone - _statements(of)))
            counters = tuple(
                replace(
                    c,
                    uses=tuple(u for u in c.uses if u[0] not in gone or u[0] in _statements(of)),
                    advances=tuple(
                        u for u in c.advances if u[0] not in gone or u[0] in _statements(of)
                    ),
                    skips=tuple(u for u in c.skips if u[0] not in gone),
                )
                for c in of.counters
            )
            counters = tuple(c for c in counters if c.advances)
            yield (
                f"the barrier of {leaf.name} is gone",
                emitted(of, tree=kept, leaves=fewer, syncs=syncs, counters=counters),
            )
        domain = isl.Set(leaf.domain)
        fewer_times = domain.subtract(domain.lexmax())
        if not fewer_times.is_empty():
            changed = replace(leaf, domain=str(fewer_times))
            yield (
                f"{leaf.name} is not run the last time",
                emitted(of, leaves=_replaced(of, changed)),
            )
        if leaf.kind == "bar":
            changed = replace(leaf, executes="one")
            yield f"{leaf.name} by one thread", emitted(of, leaves=_replaced(of, changed))
            if leaf.place.counts and leaf.place.counts[-1] > 1:
                first = domain.fix_val(_SET, len(leaf.place.agents) - 1, isl.Val(0))
                changed = replace(leaf, domain=str(first))
                yield f"{leaf.name} by one agent", emitted(of, leaves=_replaced(of, changed))
        if leaf.kind == "arrive" and leaf.place.threads > 1:
            for executes in {"all", "one", "warps"} - {leaf.executes}:
                changed = replace(leaf, executes=executes)
                yield (
                    f"{leaf.name} by {executes} thread(s)",
                    emitted(of, leaves=_replaced(of, changed)),
                )


def _statements(of: Synchronised) -> set[str]:
    return {s.name for s in of.program.statements}


def _names(sync: Sync) -> set[str]:
    return {sync.wait, *dict(sync.signals), *dict(sync.skips)}


def _replaced(of: Synchronised, changed: SyncStatement) -> tuple[SyncStatement, ...]:
    return tuple(changed if x.name == changed.name else x for x in of.leaves)


# ---- what the records say ------------------------------------------------------------------------


def _records(of: Synchronised) -> Iterator[tuple[str, Emitted]]:
    """Other numbers in a record."""
    for sync in of.syncs:
        changes: list[tuple[str, dict[str, object]]] = []
        if sync.kind == "mbarrier":
            changes += [
                ("the other phase", {"phase": -1 - sync.phase}),
                ("one slot more", {"slots": sync.slots + 1}),
                ("one slot fewer", {"slots": sync.slots - 1}),
                ("one arrival more", {"arrivals": sync.arrivals + 1}),
                ("one arrival fewer", {"arrivals": sync.arrivals - 1}),
            ]
            if sync.skips:
                changes.append(("nothing skipped", {"skips": ()}))
            if len(sync.signals) > 1:
                changes.append(("its last releases left out", {"signals": sync.signals[:1]}))
            if ", o2]" in sync.signals[0][1]:
                local = tuple((leaf, _own_block(cells)) for leaf, cells in sync.signals)
                changes.append(("arrivals at the own block alone", {"signals": local}))
        if sync.kind == "turn":
            changes.append(("two arrivals", {"arrivals": 2}))
        if sync.kind == "retire":
            changes.append(("one more pending", {"pending": sync.pending + 1}))
            other = "tma.store" if sync.unit != "tma.store" else "wgmma"
            changes.append(("groups of another unit", {"unit": other}))
        if sync.kind == "fence":
            other = "wgmma.fence" if sync.unit != "wgmma.fence" else "fence.proxy.async"
            changes.append(("another fence", {"unit": other}))
        if sync.kind == "bar" and sync.scope == "place":
            changes.append(("for one warp only", {"scope": "agent"}))
        for what, change in changes:
            new = replace(sync, **change)  # type: ignore[arg-type]
            syncs = tuple(new if s is sync else s for s in of.syncs)
            yield f"{sync.name}: {what}", emitted(of, syncs=syncs)


def _own_block(cells: str) -> str:
    return f"{cells} and o2 = rank"


# ---- where leaves stand --------------------------------------------------------------------------


def _orders(of: Synchronised) -> Iterator[tuple[str, Emitted]]:
    """A leaf changes places with its neighbour of the same place, or runs in another iteration."""
    places = {s.name: s.place for s in (*of.program.statements, *of.leaves)}
    own = _statements(of)
    for name, forward in itertools.product(leaves(of.tree), (True, False)):
        moved = _past_neighbour(of.tree, name, forward, places, own)
        if moved is not None:
            way = "after" if forward else "before"
            tree, neighbour = moved
            yield f"{name} {way} {neighbour}", emitted(of, tree=tree)
    for leaf in of.leaves:
        if leaf.kind in ("arrive", "retire", "bar") and _shares_a_loop(of.tree, leaf.name):
            for by in (1, -1):
                if leaf.kind != "arrive" and by == 1:
                    continue
                tree = shifted(of.tree, leaf.name, by)
                yield f"{leaf.name} {by:+} iteration(s)", emitted(of, tree=tree)


def _past_neighbour(
    tree: Node, name: str, forward: bool, places: dict[str, object], own: set[str]
) -> tuple[Node, str] | None:
    """The tree with a leaf moved past the next statement of its place; None where there is none."""
    if isinstance(tree, Leaf):
        return None
    if isinstance(tree, Loop):
        found = _past_neighbour(tree.child, name, forward, places, own)
        return None if found is None else (replace(tree, child=found[0]), found[1])
    children = list(tree.children)
    for n, child in enumerate(children):
        if child != Leaf(name):
            found = _past_neighbour(child, name, forward, places, own)
            if found is not None:
                children[n] = found[0]
                return Steps(tuple(children)), found[1]
            continue
        order = range(n + 1, len(children)) if forward else range(n - 1, -1, -1)
        for other in order:
            there = [x for x in leaves(children[other]) if places[x] == places[name]]
            if there and (set(there) & own or name in own):
                moved = [c for c in children if c != child]
                moved.insert(other, child)
                return Steps(tuple(moved)), there[0]
    return None


def _innermost(tree: Node, name: str) -> bool:
    if isinstance(tree, Leaf):
        return False
    if isinstance(tree, Loop):
        return name in leaves(tree)
    return any(_innermost(child, name) for child in tree.children)


def _shares_a_loop(tree: Node, name: str) -> bool:
    """Whether the innermost loop around a leaf holds others that it can change places with."""
    around = loops_around(tree, name)
    return bool(around) and len(around[-1].times) > 1


def shifted(tree: Node, name: str, by: int) -> Node:
    """The tree with a leaf some iterations later in its innermost loop."""
    if isinstance(tree, Steps):
        return Steps(tuple(shifted(c, name, by) if name in leaves(c) else c for c in tree.children))
    assert isinstance(tree, Loop)
    if _innermost(tree.child, name):
        return replace(tree, child=shifted(tree.child, name, by))
    times = tuple((x, f"{t} + {by}" if x == name else t) for x, t in tree.times)
    return replace(tree, times=times)


# ---- which slot a leaf works on ------------------------------------------------------------------


def _counters(of: Synchronised) -> Iterator[tuple[str, Emitted]]:
    """A counter goes up at another leaf, not at all, or does not count what is skipped."""
    for counter in of.counters:
        changes: list[tuple[str, Counter | None]] = [("is not kept", None)]
        if len(counter.uses) > 1 and counter.uses[0][0] != counter.advances[0][0]:
            changes.append(("goes up too early", replace(counter, advances=counter.uses[:1])))
        if counter.skips:
            changes.append(("does not count skips", replace(counter, skips=())))
        if len(counter.advances) > 1:
            changes.append(("goes up too rarely", replace(counter, advances=counter.advances[:1])))
        for what, new in changes:
            kept = tuple(new if c is counter else c for c in of.counters)
            yield f"{counter.name} {what}", emitted(of, counters=tuple(filter(None, kept)))


def _frames(of: Synchronised) -> Iterator[tuple[str, Emitted]]:
    """Places begin before barriers are there, or a block ends while others reach it."""
    for begin, end in itertools.product(("none", "block", "cluster"), repeat=2):
        made = Frame(begin, end)
        if not made.holds(of.frame):
            yield f"frame: {begin} at the beginning, {end} at the end", emitted(of, frame=made)


def _slots(of: Synchronised) -> Iterator[tuple[str, Emitted]]:
    """Buffers with other slots than the trees were made for."""
    for buffer in of.program.buffers:
        if buffer.space != "shared" or not buffer.versions:
            continue
        if buffer.slots > 1:
            fewer = replace(buffer, slots=buffer.slots - 1)
            buffers = tuple(fewer if b is buffer else b for b in of.program.buffers)
            program = replace(of.program, buffers=buffers)
            syncs = tuple(
                replace(s, slots=s.slots - 1) if buffer.name in s.buffers else s for s in of.syncs
            )
            yield f"{buffer.name}: one slot fewer", emitted(of, program=program, syncs=syncs)
        if buffer.slot is not None:
            names, formula = buffer.slot
            for other in (f"{names[-1]} mod {buffer.slots + 1}", "0"):
                changed = replace(buffer, slot=(names, other))
                buffers = tuple(changed if b is buffer else b for b in of.program.buffers)
                program = replace(of.program, buffers=buffers)
                if buffer.slots > 1:
                    yield f"{buffer.name}: slot {other} for {formula}", emitted(of, program=program)


# ---- mistakes that other projects shipped --------------------------------------------------------


def _known_elsewhere(of: Synchronised) -> Iterator[tuple[str, Emitted]]:
    """Classes of bugs reported of other generators of kernels with roles."""
    kinds = {leaf.name: leaf.kind for leaf in of.leaves}
    places = {s.name: s.place for s in (*of.program.statements, *of.leaves)}
    for name, kind in kinds.items():
        for other in _later(of.tree, name):
            if places[other] != places[name]:
                continue
            if kind == "retire" and kinds.get(other) == "arrive":
                what = f"slot released while products read: {name} after {other}"
                yield what, emitted(of, tree=moved_after(of.tree, name, other))
            if kind == "retire" and kinds.get(other) == "bar":
                what = f"published before it is complete: {name} after {other}"
                yield what, emitted(of, tree=moved_after(of.tree, name, other))
            if kind == "fence" and kinds.get(other) in ("bar", "arrive"):
                behind = "barrier" if kinds[other] == "bar" else "arrival"
                what = f"fence behind the {behind}: {name} after {other}"
                yield what, emitted(of, tree=moved_after(of.tree, name, other))
    for statement in of.program.statements:
        fills = any(cell.startswith("ring_") for cell in statement.writes)
        if fills and "0 <= k < k_tiles" in statement.bounds:
            longer = statement.bounds.replace("0 <= k < k_tiles", "0 <= k <= k_tiles")
            changed = replace(statement, bounds=longer)
            what = f"the producer overruns by an iteration: {statement.name}"
            yield what, emitted(of, shown=_with(of.program, changed))
    for leaf in of.leaves:
        for place in of.program.places:
            same = (place.agents, place.counts) == (leaf.place.agents, leaf.place.counts)
            if same and place != leaf.place:
                changed = replace(leaf, place=place)
                what = f"a leaf of another role: {leaf.name} by the {place.name}"
                yield what, emitted(of, leaves=_replaced(of, changed))
    barriers = [s for s in of.syncs if s.kind == "mbarrier"]
    for sync, other in itertools.permutations(barriers, 2):
        if sync.phase == other.phase:
            both = replace(sync, signals=(*sync.signals, *other.signals))
            syncs = tuple(both if s is sync else s for s in of.syncs)
            what = f"one barrier for two loops: {other.name} arrives at {sync.name}"
            yield what, emitted(of, syncs=syncs)
    for sync in barriers:
        twice = replace(sync, signals=(*sync.signals, sync.signals[0]))
        syncs = tuple(twice if s is sync else s for s in of.syncs)
        yield f"an arrival counted twice: {sync.name}", emitted(of, syncs=syncs)
        leaf = sync.signals[0][0]
        if leaf in kinds:
            one = next(x for x in of.leaves if x.name == leaf)
            domain = isl.Set(one.domain)
            if one.place.counts and one.place.counts[-1] > 1:
                last = len(one.place.agents) - 1
                fewer = domain.fix_val(_SET, last, isl.Val(0))
                what = f"arrive count of another role: {leaf} by its first agent alone"
                yield what, emitted(of, leaves=_replaced(of, replace(one, domain=str(fewer))))
        elif not sync.skips:
            threads = {**vars_of(sync), "arrivals": _WARP}
            what = f"arrive count of another role: {sync.name} for a warp instead of one thread"
            new = Sync(**threads)  # type: ignore[arg-type]
            syncs = tuple(new if s is sync else s for s in of.syncs)
            yield what, emitted(of, syncs=syncs)


# ---- sums that several blocks share --------------------------------------------------------------


def _shared_sums(of: Synchronised) -> Iterator[tuple[str, Emitted]]:
    """Parts that are added in another order or too early, or that a block does not send."""
    send = of.program.statement("send")
    most = send.place.counts[0] - 1
    for what, more in (
        ("the last block sends nothing", f"rank < {most}"),
        ("a block sends nothing but its first tile", "i = 0"),
    ):
        changed = replace(send, bounds=f"{send.bounds} and {more}")
        yield what, emitted(of, shown=_with(of.program, changed))
    combine = of.program.statement("combine")
    fewer = replace(combine, bounds=f"{combine.bounds} and q < {most}")
    yield "the last part is not added", emitted(of, shown=_with(of.program, fewer))
    outer = _holding(of.tree, "combine")
    adding = next(c for c in outer.children if "combine" in leaves(c))
    assert isinstance(adding, Loop)
    backwards = replace(adding, times=tuple((x, f"-{t}") for x, t in adding.times))
    yield (
        "parts are added in the wrong order",
        emitted(of, tree=_exchanged(of.tree, outer, adding, (backwards,))),
    )
    wait, tile = Leaf("wait_full_part"), _with_both(of.tree, "combine", "finish")
    exchange = next(c for c in tile.children if "combine" in leaves(c))
    finishing = next(c for c in tile.children if "finish" in leaves(c))
    chunks = tile is not outer  # parts are sent and added chunk by chunk, in a loop of their own
    for what, inside, order in (
        ("the epilogue before the parts are added", tile, (finishing, exchange)),
        ("the epilogue before the parts have come", tile, (finishing, wait, exchange)),
        ("parts are added before they have come", outer, (adding, wait, finishing)),
        (
            "parts are added before the own ones are sent",
            outer,
            (wait, adding, Leaf("send"), finishing),
        ),
    ):
        order = tuple(c for c in order if c in inside.children)
        if chunks and inside is tile and wait not in order and what.endswith("come"):
            continue
        kept = [c for c in inside.children if c not in order]
        at = next(n for n, c in enumerate(inside.children) if c in order)
        moved = Steps((*kept[:at], *order, *kept[at:]))
        yield what, emitted(of, tree=_replaced_node(of.tree, inside, moved))


def _with_both(tree: Node, first: str, second: str) -> Steps:
    """The innermost steps that hold two leaves in different children."""
    if isinstance(tree, Loop):
        return _with_both(tree.child, first, second)
    assert isinstance(tree, Steps)
    child = next(c for c in tree.children if first in leaves(c))
    return _with_both(child, first, second) if second in leaves(child) else tree


def _holding(tree: Node, name: str) -> Steps:
    """The steps of which one is the innermost loop around a leaf."""
    if isinstance(tree, Loop):
        return _holding(tree.child, name)
    assert isinstance(tree, Steps)
    child = next(c for c in tree.children if name in leaves(c))
    return tree if isinstance(child, Loop) and child.child == Leaf(name) else _holding(child, name)


def _exchanged(tree: Node, outer: Steps, old: Node, new: tuple[Node, ...]) -> Node:
    """The tree with other children for one of some steps."""
    children = tuple(x for c in outer.children for x in (new if c is old else (c,)))
    return _replaced_node(tree, outer, Steps(children))


def _replaced_node(tree: Node, old: Node, new: Node) -> Node:
    if tree is old:
        return new
    if isinstance(tree, Loop):
        return replace(tree, child=_replaced_node(tree.child, old, new))
    if isinstance(tree, Steps):
        return Steps(tuple(_replaced_node(c, old, new) for c in tree.children))
    return tree


def vars_of(sync: Sync) -> dict[str, object]:
    """The fields of a record."""
    return {f.name: getattr(sync, f.name) for f in fields(sync)}


def _later(tree: Node, name: str) -> tuple[str, ...]:
    """The leaves after a leaf among its siblings, with those below them."""
    if isinstance(tree, Leaf):
        return ()
    if isinstance(tree, Loop):
        return _later(tree.child, name)
    for n, child in enumerate(tree.children):
        if child == Leaf(name):
            return tuple(x for other in tree.children[n + 1 :] for x in leaves(other))
        if name in leaves(child):
            return _later(child, name)
    return ()


def moved_after(tree: Node, name: str, other: str, *, behind: bool = True) -> Node:
    """The tree with a leaf behind the sibling that holds another, or in front of it."""
    if isinstance(tree, Loop):
        return replace(tree, child=moved_after(tree.child, name, other, behind=behind))
    assert isinstance(tree, Steps)
    children = list(tree.children)
    if Leaf(name) in children:
        children.remove(Leaf(name))
        at = next(n for n, child in enumerate(children) if other in leaves(child))
        children.insert(at + behind, Leaf(name))
        return Steps(tuple(children))
    moved = (
        moved_after(child, name, other, behind=behind) if name in leaves(child) else child
        for child in tree.children
    )
    return Steps(tuple(moved))


# ---- changes that are no mistakes ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A change after which a kernel still does what its program says.

    Attributes:
        what: the descriptions `mutants` gives it.
        cases: beginnings of the names of the kernels where it is legal.
        reason: why.
    """

    what: tuple[str, ...]
    cases: tuple[str, ...]
    reason: str


_PANELS = (
    "cooperative", "ping-pong, residual", "ping-pong, shared", "ping-pong, one operand",
    "ping-pong, sums", "cluster", "shared sums", "last round",
)  # fmt: skip
_LAGGING = (
    "cooperative, folds",
    "cooperative, residual", "cooperative, two", "cooperative, pair", "cooperative, filled",
    "cooperative, fragments", "cooperative, sums", "ping-pong", "cluster", "shared sums",
    "last round",
)  # fmt: skip
EQUIVALENT = (
    Equivalent(
        ("load_a after load_b", "load_b before load_a"),
        ("warps",),
        "fragments of the two operands do not depend on each other",
    ),
    Equivalent(
        ("load_b after mma",),
        ("warps",),
        "with a lookahead the products between are of an earlier step, from the other fragment",
    ),
    Equivalent(
        ("copy_a after copy_b", "copy_b before copy_a"),
        ("warps",),
        "the rings of the two operands do not depend on each other",
    ),
    Equivalent(
        ("fetch_a after fetch_b", "fetch_b before fetch_a"),
        ("warps, staged",),
        "the registers in which tiles of the two operands wait do not depend on each other",
    ),
    Equivalent(
        ("bar_load_a before fetch_b", "fetch_b after bar_load_a"),
        ("warps, staged",),
        "a fetch writes registers of its own thread, and the barrier is for what lies in the rings",
    ),
    Equivalent(
        ("prepare before fetch_a",),
        ("warps, staged",),
        "registers of one thread that nothing else touches",
    ),
    Equivalent(
        ("copy_a before load_a",),
        ("warps", "warps, copies"),
        "a copy is behind the barrier all the same, and its slot is that of an earlier k tile",
    ),
    Equivalent(
        ("copy_a before mma",),
        ("warps, spread",),
        "a copy is behind the barrier all the same, and products read fragments only",
    ),
    Equivalent(
        ("prepare after bar_stage", "bar_stage before prepare"),
        ("warps",),
        "registers of one thread, written and read behind it",
    ),
    Equivalent(
        ("prepare before wait_load_a",),
        ("warps", "warps, spread"),
        "registers of one thread that nothing else touches",
    ),
    Equivalent(
        ("prepare before bar_load_a",),
        ("warps, copies",),
        "registers of one thread that nothing else touches",
    ),
    Equivalent(
        ("bar_load_a -1 iteration(s)",),
        ("warps, copies",),
        "what threads store is complete at once; of the barriers between a copy and its loads, and "
        "between loads and the copy over them, one is left",
    ),
    Equivalent(
        ("retire_empty_ring is not run the last time",),
        (
            "cooperative, residual",
            "cooperative, two",
            "cooperative, pair",
            "cooperative, sums",
            "cooperative, filled",
            "cooperative, folds",
            "cluster",
            "shared sums",
        ),
        "the drain of the last tile follows before anything of that release is used: the release "
        "itself is one of the last, and nobody waits for it",
    ),
    Equivalent(
        ("wait_store is not run the last time",),
        _PANELS,
        "no panel is written over any more, and the last wait of all is for every store",
    ),
    Equivalent(
        ("wait_store after store", "wait_store before finish"),
        _PANELS,
        "a wait for all stores is no weaker one position earlier or later in the loop: it stays "
        "between the store of a slot and the barrier before its next writes",
    ),
    Equivalent(
        ("wait_store -1 iteration(s)",),
        (
            "cooperative, pair",
            "cooperative, sums",
            "cooperative, runs",
            "cooperative, filled",
            "shared sums",
        ),
        "of two slots, a panel writes over the one that was stored two panels before; a wait for "
        "all stores one panel before comes behind that",
    ),
    Equivalent(
        ("multiply_0 after multiply_1", "multiply_1 before multiply_0"),
        ("cooperative, pair", "ping-pong, shared", "shared sums, pair"),
        "two products add to sums of their own, from tiles that have arrived together",
    ),
    Equivalent(
        ("multiply before multiply_middle", "multiply_middle after multiply"),
        ("cooperative, sums",),
        "two products add to sums of their own, from tiles that have arrived together",
    ),
    Equivalent(
        (
            "convert after wait_full_ring_d",
            "wait_full_ring_d before convert",
            "convert before arrive_empty_ring_rest",
            "wait_empty_ring_d before wait_empty_ring",
            "arrive_empty_ring_d after finish",
        ),
        ("cooperative, sums",),
        "what is between the products is in registers, of a tile whose sums are complete; and a "
        "tile's memory may be asked for sooner, and be given back later",
    ),
    Equivalent(
        (
            "load_b after load_b2",
            "load_b2 before load_b",
            "copy_b after copy_b2",
            "copy_b2 before copy_b",
            "load_b2 after mma_0",
        ),
        ("warps, shared",),
        "operands of two products do not depend on each other, nor does the first product on the "
        "second one's",
    ),
    Equivalent(
        ("arrive_turn after finish",),
        ("ping-pong, shared", "ping-pong, one operand", "ping-pong, sums"),
        "the turn is passed on later, which is slower and no less ordered",
    ),
    Equivalent(
        ("skip_ring before finish",),
        ("ping-pong, shared", "ping-pong, sums"),
        "the tile has no more use of the ring's counters by then",
    ),
    Equivalent(
        ("prepare after wait_full_ring",),
        ("cooperative", "cluster", "shared sums", "last round"),
        "it reads operands of the epilogue that no barrier hands over",
    ),
    Equivalent(
        ("prepare after wait_turn", "wait_turn before prepare"),
        ("ping-pong, residual", "ping-pong, shared", "ping-pong, one operand", "ping-pong, sums"),
        "it reads operands of the epilogue that no barrier hands over",
    ),
    Equivalent(
        ("locate_consumer after wait_turn", "wait_turn before locate_consumer"),
        ("ping-pong, from", "ping-pong, folds"),
        "the tile is the thread's own; the turn is for the products",
    ),
    Equivalent(
        ("arrive_turn after wait_full_r", "arrive_turn after store"),
        ("ping-pong",),
        "the turn is passed on later, which is slower and no less ordered",
    ),
    Equivalent(
        ("skip_ring before wait_full_r", "skip_ring before store"),
        ("ping-pong",),
        "the tile has no more use of the ring's counters by then",
    ),
    Equivalent(
        ("arrive_empty_r after store",),
        (
            "cooperative, residual",
            "cooperative, none",
            "cooperative, folds",
            "ping-pong, residual",
            "cluster",
            "shared sums, residual",
            "last round",
        ),
        "the panel is released later, which is slower and no less ordered",
    ),
    Equivalent(
        ("arrive_turn after unfold",),
        ("ping-pong, folds",),
        "the turn is passed on later, which is slower and no less ordered",
    ),
    Equivalent(
        ("fold after skip_ring", "skip_ring before fold"),
        ("ping-pong, folds",),
        "the tile has no more use of the ring's counters by then",
    ),
    Equivalent(
        ("unfold before arrive_empty_ring_rest",),
        ("ping-pong, folds", "cooperative, folds"),
        "registers of one thread; the last slots of the ring are released later, which is slower "
        "and no less ordered",
    ),
    Equivalent(
        ("send before arrive_empty_ring_rest",),
        ("shared sums",),
        "the products are complete by then; the last slots of the ring are released later, which "
        "is slower and no less ordered",
    ),
    Equivalent(
        ("combined after wait_full_r", "combined after finish"),
        ("shared sums",),
        "it only counts, and the landing areas have no use before the next tile",
    ),
    Equivalent(
        ("arrive_empty_r +1 iteration(s)",),
        ("shared sums, residual",),
        "a block finishes one panel of the tile, so that one later is still behind its last use",
    ),
    Equivalent(
        ("panel_r: one slot fewer",),
        ("shared sums, residual",),
        "with one panel of a tile a ring of one is another right kernel: its barriers have one as "
        "well",
    ),
    Equivalent(
        ("panel_r: one slot fewer",),
        ("last round",),
        "slots are counted, as shared tiles have fewer panels: a ring of one is another right "
        "kernel, whose barriers have one as well",
    ),
    Equivalent(
        ("skip_ring_a before finish", "skip_ring_b before finish"),
        ("ping-pong, one operand",),
        "the tile has no more use of the ring's counters by then",
    ),
    Equivalent(
        ("fill after put",),
        ("ping-pong, one operand",),
        "the copy engine and the threads fill rings of their own",
    ),
    Equivalent(
        ("ring_a: one slot fewer",),
        ("ping-pong, one operand",),
        "rings that are handed over apart need not have as many slots",
    ),
    Equivalent(
        ("arrive_empty_ring +1 iteration(s)", "arrive_empty_ring_a +1 iteration(s)"),
        (*_LAGGING, "cooperative, runs"),
        "the slot is released later, and with its rings of three or more nobody waits for it yet",
    ),
    Equivalent(
        ("prepare after take_a", "read_a after wait_full_ring", "wait_full_ring before read_a"),
        ("cooperative, fragments",),
        "registers of one thread, and memory that no barrier hands over",
    ),
    Equivalent(
        ("multiplied after arrive_empty_ring", "arrive_empty_ring before multiplied"),
        ("cooperative, fragments",),
        "arrivals have a counter of their own, which goes up behind them",
    ),
    Equivalent(
        (
            "read_scales after wait_full_ring",
            "wait_full_ring before read_scales",
            "fence_multiply before read_scales",
            "prepare after read_scales",
        ),
        ("cooperative, sums", "ping-pong, sums"),
        "registers of one thread, and memory that no barrier hands over",
    ),
    Equivalent(
        (
            "read_scales before clear",
            "clear after read_scales",
            "clear before load_b",
            "load_b after clear",
            "read_scales after mma",
        ),
        ("warps, sums",),
        "factors, inner sums and fragments are registers of their own; factors wait for the "
        "promotion",
    ),
    Equivalent(
        ("arrive_empty_ring after promote", "arrive_empty_ring after wait_promote"),
        ("cooperative, sums", "cooperative, runs", "ping-pong, sums"),
        "the slot is released later, which is slower and no less ordered",
    ),
    Equivalent(
        ("wait_promote_last -1 iteration(s)",),
        ("cooperative, runs",),
        "one instruction covers the rows: the wait runs before the loop over them, not in it",
    ),
    Equivalent(
        ("wait_promote -1 iteration(s)",),
        ("ping-pong, sums",),
        "one instruction covers the rows: the wait runs before the loop over them, not in it",
    ),
    Equivalent(
        ("fence_multiply is not run the last time",),
        ("ping-pong, sums",),
        "the last k tile is the second one of its block: its sum is touched before the first alone",
    ),
    Equivalent(
        ("result_y0: slot p mod 3 for p mod 2",),
        ("cooperative, fragments",),
        "a tile has two panels, which lie in the first two slots either way",
    ),
)


def equivalents(case: Case) -> set[str]:
    """The changes of a kernel that are no mistakes."""
    return {what for one in EQUIVALENT if _of_case(one, case) for what in one.what} & {
        what for what, _ in mutants(kernel(case))
    }


def _of_case(one: Equivalent, case: Case) -> bool:
    return any(case.name == name or case.name.startswith(f"{name}") for name in one.cases)
