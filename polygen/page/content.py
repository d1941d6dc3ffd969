"""What a page says: texts of the stages, barriers with what they enforce, the pictures."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup, escape

from polygen.hardware.cost_parameters import cost_parameters
from polygen.lower.sync_work import Placed
from polygen.page.pictures import (
    Picture,
    Roofline,
    draw_roofline,
    draw_timeline,
    memory_of,
    roofline,
)
from polygen.page.timeline import Timeline, timeline
from polygen.pipeline import Passes
from polygen.poly.tile_program import Sync
from polygen.problems import size_of
from polygen.schedule.problem import Fitted
from polygen.schedule.sums import reproducible
from polygen.show import problem_for, show_cost, show_plan
from polygen.tune.cost import cost

_DEPENDENCE = re.compile(
    r"(?P<source>\w+) -> (?P<target>\w+) \((?P<kind>[\w ]+?) through (?P<buffer>\w+)(?P<more>.*)\)"
)


@dataclass(frozen=True, slots=True)
class Dependence:
    """What a barrier keeps in order.

    Attributes:
        text: as the plan prints it.
        source: the statement that comes first; "" where the text is about something else.
        target: the one that comes second.
        buffer: through which.
    """

    text: str
    source: str = ""
    target: str = ""
    buffer: str = ""


@dataclass(frozen=True, slots=True)
class Barrier:
    """One synchronisation, with what it is for.

    Attributes:
        name: of it, which its id and its mentions have.
        title: what it is, as the plan prints it.
        kind: mbarrier, bar, turn.
        leaves: names in the trees and in the code that belong to it.
        enforces: the dependences that need it.
    """

    name: str
    title: str
    kind: str
    leaves: tuple[str, ...]
    enforces: tuple[Dependence, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A column of the page."""

    name: str
    says: str
    text: Markup


@dataclass(frozen=True, slots=True)
class Content:
    """All that the template prints of a kernel.

    Attributes:
        anchor: what ids begin with: of pages with several kernels.
        microseconds: predicted; None: the cost model does not know it.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    stages: tuple[Stage, ...]
    barriers: tuple[Barrier, ...]
    timeline: Picture
    run: Timeline
    memory: Picture
    roofline: Picture | None
    point: Roofline | None
    colours: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    anchor: str = ""
    microseconds: float | None = None


def content(passes: Passes, sizes: dict[str, int], anchor: str = "") -> Content:
    """Gather what a page says of a kernel.

    Args:
        passes: of the kernel.
        sizes: that it was optimised for; without all of them there is no roofline.
        anchor: what ids begin with.
    """
    plan, tree = passes.plan, passes.tree
    barriers = tuple(_barrier(placed) for placed in plan.syncs)
    others = tuple(_plain(s) for s in tree.synchronised.syncs if not _known(s, barriers))
    named = barriers + others
    mark = _marker(named)
    k_tiles, point, told, takes = _predicted(passes, sizes)
    made = tree.synchronised
    run = timeline(plan.tile_program, made.leaves, made.syncs, tree.places, k_tiles)
    statements = [s.name for s in plan.tile_program.statements]
    drawn = draw_timeline(run, statements)
    colours = {box.name: box.kind.split()[-1] for box in drawn.boxes if "hue" in box.kind}
    tensors = (*passes.program.inputs, *passes.program.outputs)
    facts = (
        ("computes", passes.program.source),
        *((t.name, str(t).partition(": ")[2]) for t in tensors),
        ("target", str(plan.device)),
        ("schedule", f"{plan.schedule.name}: {passes.origin}"),
        ("grid", plan.mapping),
        ("takes", str(plan.resources)),
        ("bits", reproducible(plan.sums)),
    )
    proofs = "\n".join(str(proof) for proof in plan.proofs)
    stages = (
        Stage("program", "what it means, statement by statement, and how it is fused",
              mark(f"{passes.program}\n\n{tree.fusion}\n\n{tree.match}")),
        Stage("proof", "what was proved of what is emitted, for every size", mark(proofs)),
        Stage("tree", "the statements tiled, then what every place runs", mark(str(tree))),
        Stage("plan", "memory, leaves, barriers, loops", mark(show_plan(plan, passes.origin))),
        Stage("cost", "where the predicted time goes", mark(told)),
        Stage("cuda", "the code", mark(passes.source.text)),
    )  # fmt: skip
    return Content(
        passes.program.name,
        facts,
        tuple(stage for stage in stages if stage.text),
        named,
        drawn,
        run,
        memory_of(plan),
        draw_roofline(point) if point else None,
        point,
        tuple(colours.items()),
        tuple(_notes(passes)),
        anchor,
        takes,
    )


def _notes(passes: Passes) -> list[str]:
    found = []
    if passes.plan.following is not None:
        found.append("A second launch makes results of the parts of folds; it is in the code.")
    if passes.plan.realign is not None:
        found.append("A copy of operands goes before; it is in the code.")
    return found


# --- prediction -----------------------------------------------------------------------------------
def _predicted(
    passes: Passes, sizes: dict[str, int]
) -> tuple[int, Roofline | None, str, float | None]:
    """The k tiles of a problem, its point under the roofs, the model's explanation, its time."""
    plan = passes.plan
    if plan.scores is not None:  # the model knows no chains
        keys = plan.match.depths[0]
        text = show_cost(passes.program, plan, sizes, passes.origin)
        return -(-size_of(keys, sizes) // plan.tiles.cta[2]), None, text, None
    problem = problem_for(plan, sizes)
    fitted = Fitted(plan.schedule, plan.resources.blocks_per_multiprocessor)
    found = cost(plan.device, fitted, problem)
    point = roofline(plan.device, problem, found, cost_parameters(plan.device))
    text = show_cost(passes.program, plan, sizes, passes.origin)
    return found.counts.k_tiles, point, text, found.microseconds


# --- barriers -------------------------------------------------------------------------------------
def _known(sync: Sync, barriers: tuple[Barrier, ...]) -> bool:
    return any(barrier.name == sync.name for barrier in barriers)


def _barrier(placed: Placed) -> Barrier:
    return Barrier(
        placed.name,
        str(placed),
        placed.sync.kind,
        _leaves(placed.sync),
        tuple(map(dependence, placed.sync.enforces)),
    )


def _plain(sync: Sync) -> Barrier:
    """A wait for groups, a fence and the like, which take no place in memory."""
    left = f"all but the last {sync.pending} group(s)" if sync.pending else "all groups"
    kinds = {
        "retire": f"waits for {left} of {sync.unit}",
        "fence": f"the fence {sync.unit}",
        "grid": "waits for the grids before this one",
    }
    said = f"{sync.name}: {kinds.get(sync.kind, sync.kind)}"
    return Barrier(sync.name, said, sync.kind, _leaves(sync), tuple(map(dependence, sync.enforces)))


def _leaves(sync: Sync) -> tuple[str, ...]:
    """The names that only this synchronisation has; statements that signal are not among them."""
    arrivals = [leaf for leaf, _ in sync.signals if leaf.startswith("arrive_")]
    skips = [leaf for leaf, _ in sync.skips]
    return tuple(dict.fromkeys((sync.name, sync.wait, *arrivals, *skips)))


def dependence(text: str) -> Dependence:
    """Read a dependence as the plan prints it."""
    found = _DEPENDENCE.fullmatch(text)
    if found is None:
        return Dependence(text)
    return Dependence(text, found["source"], found["target"], found["buffer"])


def _marker(barriers: tuple[Barrier, ...]) -> Callable[[str], Markup]:
    """A function that marks every mention of a barrier in a text, which it escapes."""
    owner: dict[str, str] = {}
    for barrier in barriers:
        for leaf in barrier.leaves:
            owner.setdefault(leaf, barrier.name)
    if not owner:
        return escape
    longest = sorted(owner, key=len, reverse=True)
    names = re.compile(rf"\b({'|'.join(map(re.escape, longest))})\b")

    def mark(text: str) -> Markup:
        parts = names.split(text)
        return Markup("").join(
            Markup('<span class="mention" data-sync="{}">{}</span>').format(owner[part], part)
            if position % 2
            else escape(part)
            for position, part in enumerate(parts)
        )

    return mark
