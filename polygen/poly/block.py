"""The schedule tree of one thread block: pipelined k loop, instruction loops, epilogue, barriers in their places.

Time of the main loop is `t`. A copy of k tile k runs at t = k, the MMAs that need it at t = k + distance; inside one
step the schedule's order decides. Inside a k tile, fragment loads run `lookahead` MMA steps ahead. Prologue, steady
state and tail are not written anywhere: they are the pieces into which isl's AST generator splits the t loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.poly.tiles import PREFIX, TileProgram
from polygen.poly.tree import Band, Filter, Mark, Node, Sequence, domain_tree
from polygen.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class Barrier:
    """A place where threads wait for each other, as a statement of the tree."""

    name: str  # "bar_0"
    scope: str  # "block" or "warp"
    phase: str  # "main" or "epilogue"
    before: str  # the group of statements it precedes: "copy", "mma", "stage", "store"
    pending: (
        int | None
    )  # asynchronous copy groups that may still be in flight; None: no wait in front of it

    @property
    def wait(self) -> str:
        """The name of the statement that waits for asynchronous copies in front of it."""
        return "wait" + self.name.removeprefix("bar")


def candidates(schedule: Schedule) -> tuple[Barrier, ...]:
    """Every place where a barrier can stand: before each group of statements."""
    found = [
        Barrier(f"bar_{group}", "block", "main", group, None) for group in schedule.pipeline.order
    ]
    if schedule.epilogue.through == "smem":
        found += [
            Barrier(f"bar_{group}", "warp", "epilogue", group, None) for group in ("stage", "store")
        ]
    return tuple(found)


def steps_domain(schedule: Schedule) -> str:
    """The steps of the k loop in which MMAs run, over t."""
    distance = schedule.pipeline.distance
    return f"{distance} <= t < k_tiles + {distance}"


def commit_domain(schedule: Schedule) -> str:
    """The steps of the k loop at which the step's copies are closed as one group, over t."""
    return f"0 <= t < k_tiles + {schedule.pipeline.distance}"


def extra_instances(
    schedule: Schedule, barriers: tuple[Barrier, ...], asynchronous: bool, warp: str
) -> list[tuple[str, str]]:
    """The statements that synchronisation adds: (instance, bounds); `warp` is "" or "w,"."""
    found = []
    if asynchronous:
        found.append((f"commit[{warp}t]", commit_domain(schedule)))
    for barrier in barriers:
        if barrier.phase == "main":
            found.append((f"{barrier.name}[{warp}t]", steps_domain(schedule)))
            if barrier.pending is not None:
                found.append((f"{barrier.wait}[{warp}t]", steps_domain(schedule)))
    return found


def block_tree(
    program: TileProgram,
    schedule: Schedule,
    barriers: tuple[Barrier, ...],
    *,
    asynchronous: bool,
    warp: bool,
) -> Filter:
    """The tree, with the chosen barriers.

    Args:
        program: the block's statements.
        schedule: order, distance, lookahead, loop nest, phases.
        barriers: what synchronises, and where.
        asynchronous: whether copies complete in groups that are waited for.
        warp: whether statements carry the warp dimension (for proofs) or not (for code).
    """
    builder = _Builder(program, schedule, barriers, asynchronous, "w," if warp else "")
    phases = {"main": builder.main(), "epilogue": builder.epilogue()}
    order = tuple(phases[name] for name in schedule.loops.phases)
    tree = Sequence((Filter((builder.instance("zero"),)), *order))
    bound = f" and 0 <= w < {program.warps}" if warp else ""
    extra = [
        f"{instance} : {bounds}{bound}"
        for instance, bounds in extra_instances(schedule, barriers, asynchronous, builder.warp)
    ]
    extra += [
        f"{b.name}[{builder.warp}m] : {program.statement('store').bounds}{bound}"
        for b in barriers
        if b.phase == "epilogue"
    ]
    domain = program.domain(warp).removesuffix(" }")
    return domain_tree("; ".join([domain, *extra]) + " }", tree, "k_tiles >= 1")


@dataclass(frozen=True, slots=True)
class _Builder:
    program: TileProgram
    schedule: Schedule
    barriers: tuple[Barrier, ...]
    asynchronous: bool
    warp: str

    def instance(self, name: str) -> str:
        return self.program.statement(name).instance(bool(self.warp))

    def main(self) -> Filter:
        """The k loop."""
        pipeline = self.schedule.pipeline
        groups = {"copy": self._copies(), "mma": self._multiply()}
        children: list[Filter] = []
        for name in pipeline.order:
            children += self._synchronise("main", name, "t")
            children += groups[name]
        backward = self.schedule.loops.k == "backward"
        at = "k_tiles - 1 - k" if backward else "k"
        times = []
        for child in children:
            for item in child.instances:
                own = item.startswith(("commit", "wait", "bar"))
                delayed = item.startswith(("load", "mma"))
                time = "t" if own else f"{at} + {pipeline.distance}" if delayed else at
                times.append((item, time))
        band = Band((tuple(times),), Sequence(tuple(children)), "separate[x]")
        everything = tuple(item for child in children for item in child.instances)
        return Filter(everything, Mark("ktile", band))

    def _synchronise(self, phase: str, before: str, dim: str) -> list[Filter]:
        found = []
        for barrier in self.barriers:
            if (barrier.phase, barrier.before) != (phase, before):
                continue
            if barrier.pending is not None:
                found.append(Filter((f"{barrier.wait}[{self.warp}{dim}]",)))
            found.append(Filter((f"{barrier.name}[{self.warp}{dim}]",)))
        return found

    def _copies(self) -> list[Filter]:
        names = [self.instance("copy_a"), self.instance("copy_b")]
        if self.asynchronous:
            names.append(f"commit[{self.warp}t]")
        each = Sequence(tuple(Filter((name,)) for name in names))
        return [Filter(tuple(names), Mark("copy", each))]

    def _multiply(self) -> list[Filter]:
        """Fragment loads and MMAs of one k tile."""
        loads = [self.instance("load_a"), self.instance("load_b")]
        product, order = self.instance("mma"), self.schedule.loops.mma
        ahead = self.schedule.pipeline.lookahead
        dims = {"k": "s", "m": "m", "n": "n"}
        if order[0] == "k":
            nest = Band(tuple(((product, dims[d]),) for d in order[1:]))
            each = Sequence(
                (*(Filter((load,)) for load in loads), Filter((product,), Mark("mma", nest)))
            )
            member = (*((load, "s") for load in loads), (product, f"s + {ahead}"))
            body: Node = Mark("step", Band((member,), each, "separate[x]" if ahead else ""))
            return [Filter((*loads, product), body)]
        both = Sequence(tuple(Filter((load,)) for load in loads))
        first = Mark("step", Band((tuple((load, "s") for load in loads),), both))
        nest = Band(tuple(((product, dims[d]),) for d in order))
        return [Filter(tuple(loads), first), Filter((product,), Mark("mma", nest))]

    def epilogue(self) -> Filter:
        """The rows of instructions, each staged and stored."""
        staged = self.schedule.epilogue.through == "smem"
        children: list[Filter] = []
        for group in ("stage", "store") if staged else ("store",):
            children += self._synchronise("epilogue", group, "m")
            children.append(Filter((self.instance(group),)))
        everything = tuple(item for child in children for item in child.instances)
        band = Band((tuple((item, "m") for item in everything),), Sequence(tuple(children)))
        return Filter(everything, Mark("epilogue", band))


__all__ = ["PREFIX", "Barrier", "block_tree", "candidates", "commit_domain", "steps_domain"]
