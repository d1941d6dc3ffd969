"""The schedule tree of one thread block: pipelined k loop, instructions, epilogue, barriers.

Time of the main loop is `t`. A copy of k tile k runs at t = k, the MMAs that need it at t = k +
distance; inside one step the schedule's order decides. Inside a k tile, fragment loads run
`lookahead` MMA steps ahead. Prologue, steady state and tail are not written anywhere: they are the
pieces into which isl's AST generator splits the t loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.poly.tiles import PREFIX, TileProgram
from polygen.poly.tree import Band, Filter, Mark, Sequence, domain_tree
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
    groups = ("mma",) if spread_copies(schedule) else schedule.pipeline.order
    found = [Barrier(f"bar_{group}", "block", "main", group, None) for group in groups]
    if schedule.epilogue.through == "smem":
        found.append(Barrier("bar_stage", "block", "epilogue", "stage", None))
        found.append(Barrier("bar_store", "warp", "epilogue", "store", None))
    return tuple(found)


def spread_copies(schedule: Schedule) -> bool:
    """Whether copies run between the MMA steps instead of as a group of their own."""
    return schedule.pipeline.copies == "spread" and schedule.loops.mma[0] == "k"


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
    builder = _Builder(
        program, schedule, barriers, asynchronous, "w," if warp else "", program.k_steps
    )
    phases = {"main": builder.main(), "epilogue": builder.epilogue()}
    order = tuple(phases[name] for name in schedule.loops.phases)
    tree = Sequence((Filter((builder.instance("zero"),)), *order))
    bound = f" and 0 <= w < {program.warps}" if warp else ""
    extra = [
        f"{instance} : {bounds}{bound}"
        for instance, bounds in extra_instances(schedule, barriers, asynchronous, builder.warp)
    ]
    extra += [
        f"{b.name}[{builder.warp.rstrip(',')}] : 1 = 1{bound}"
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
    steps: int

    def instance(self, name: str) -> str:
        return self.program.statement(name).instance(bool(self.warp))

    def main(self) -> Filter:
        """The k loop."""
        if spread_copies(self.schedule):
            commit = [Filter((f"commit[{self.warp}t]",))] if self.asynchronous else []
            children = [*self._synchronise("main", "mma", "t"), *self._steps(spread=True), *commit]
        else:
            groups = {"copy": self._copies(), "mma": self._multiply()}
            children = []
            for name in self.schedule.pipeline.order:
                children += [*self._synchronise("main", name, "t"), *groups[name]]
        times = tuple((item, self._time(item)) for child in children for item in child.instances)
        band = Band((times,), Sequence(tuple(children)), "separate[x]")
        everything = tuple(item for child in children for item in child.instances)
        return Filter(everything, Mark("ktile", band))

    def _time(self, instance: str) -> str:
        """When an instance runs, in steps of the k loop."""
        pipeline = self.schedule.pipeline
        at = "k_tiles - 1 - k" if self.schedule.loops.k == "backward" else "k"
        if instance.startswith(("commit", "wait", "bar")):
            return "t"
        if instance.startswith("copy"):
            return at
        if instance.startswith("mma") and self._across:
            return f"{at} + {pipeline.distance} + floor((s + {pipeline.lookahead})/{self.steps})"
        return f"{at} + {pipeline.distance}"

    @property
    def _across(self) -> bool:
        """Whether the lookahead runs on into the next k tile."""
        pipeline = self.schedule.pipeline
        return pipeline.across and pipeline.lookahead > 0 and self.schedule.loops.mma[0] == "k"

    def _synchronise(self, phase: str, before: str, dim: str) -> list[Filter]:
        found = []
        for barrier in self.barriers:
            if (barrier.phase, barrier.before) != (phase, before):
                continue
            if barrier.pending is not None:
                found.append(Filter((f"{barrier.wait}[{self.warp}{dim}]",)))
            dims = f"{self.warp}{dim}".rstrip(",")
            found.append(Filter((f"{barrier.name}[{dims}]",)))
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
        dims = {"k": "s", "m": "m", "n": "n"}
        if order[0] == "k":
            return self._steps(spread=False)
        both = Sequence(tuple(Filter((load,)) for load in loads))
        first = Mark("step", Band((tuple((load, "s") for load in loads),), both))
        nest = Band(tuple(((product, dims[d]),) for d in order))
        return [Filter(tuple(loads), first), Filter((product,), Mark("mma", nest))]

    def _steps(self, spread: bool) -> list[Filter]:
        """The MMA steps of one k tile: fragment loads, MMAs, and parts of copies between them."""
        loads = [self.instance("load_a"), self.instance("load_b")]
        copies = [self.instance("copy_a"), self.instance("copy_b")] if spread else []
        product, ahead = self.instance("mma"), self.schedule.pipeline.lookahead
        dims = {"m": "m", "n": "n"}
        nest = Band(tuple(((product, dims[d]),) for d in self.schedule.loops.mma[1:]))
        group = [Filter((copy,)) for copy in copies]
        multiply = [Filter((product,), Mark("mma", nest))]
        first_copies = self.schedule.pipeline.order[0] == "copy"
        ordered = [*group, *multiply] if first_copies else [*multiply, *group]
        each = Sequence((*(Filter((load,)) for load in loads), *ordered))
        after = f"(s + {ahead}) mod {self.steps}" if self._across else f"s + {ahead}"
        member = [(load, "s") for load in loads] + [(copy, "p") for copy in copies]
        band = Band(((*member, (product, after)),), each, "unroll[x]" if ahead else "")
        return [Filter((*loads, *copies, product), Mark("step", band))]

    def epilogue(self) -> Filter:
        """Sums to outputs: staged in rows and stored in vectors, or stored from registers."""
        if self.schedule.epilogue.through != "smem":
            store = self.instance("store")
            return Filter((store,), Mark("epilogue", Band((((store, "m"),),))))
        children = [Filter((self.instance("prepare"),))]
        for group, dim in (("stage", "m"), ("store", "r")):
            item = self.instance(group)
            children += self._synchronise("epilogue", group, "")
            children.append(Filter((item,), Mark(group, Band((((item, dim),),)))))
        everything = tuple(item for child in children for item in child.instances)
        return Filter(everything, Mark("epilogue", Sequence(tuple(children))))


__all__ = ["PREFIX", "Barrier", "block_tree", "candidates", "commit_domain", "steps_domain"]
