"""The plans of sections -> the plan of the one kernel that works through the tiles of all.

1. Every section was planned as if it were alone, by the same schedule. What they share has to be
   the same in all of them: the tile program with its synchronisation, places and loops, shared
   memory. Then one set of loops does for all, and a leaf asks whose tile it works on.
2. Tensor maps are named apart.
3. `locate` numbers the tiles of all sections through.
4. Parts of folds of all sections lie in one workspace, and one launch follows the kernel, with the
   groups of results of all.
5. What remains is checked section by section, as every plan is (`polygen.lower.verify`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polygen.errors import VerifyError
from polygen.frontend.program import Program
from polygen.lower.buffers import Buffer
from polygen.lower.build import arguments
from polygen.lower.launch import Argument, Extents, Following
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Store
from polygen.lower.work import Boxes, Locate, Move, SectionTiles
from polygen.poly.sections import prove_apart, prove_items
from polygen.schedule.sums import Sums


def join(program: Program, plans: Sequence[KernelPlan]) -> KernelPlan:
    """One plan of several.

    Args:
        program: of which the plans' programs are the sections.
        plans: of the sections, in their order.

    Raises:
        VerifyError: two of them differ in what they have to share.
    """
    first = plans[0]
    for other in plans[1:]:
        _require_shared(first, other)
    maps: dict[str, Argument] = {}
    named = [_with_maps(plan, maps) for plan in plans]
    after = _together([plan.following for plan in plans if plan.following is not None])
    whole = arguments(program, tuple(maps.values()), workspace=after is not None)
    tiles = tuple(
        SectionTiles(extents.along, extents.across, plan.match.batches)
        for plan in plans
        for extents in plan.launch.sections
    )
    ready = tuple(
        replace(plan, leaves=_located(plan.leaves, tiles), arguments=whole, following=after)
        for plan in named
    )
    proofs = [proof for plan in plans for proof in plan.proofs]
    proofs += [prove_apart(program, [plan.program for plan in plans]), prove_items(len(plans))]
    further = tuple(
        Extents(plan.launch.along, plan.launch.across, plan.launch.batches) for plan in plans[1:]
    )
    return replace(
        ready[0],
        program=program,
        arguments=whole,
        leaves=_every_leaf(ready),
        launch=replace(first.launch, further=further),
        proofs=tuple(dict.fromkeys(proofs)),
        sums=Sums(
            tuple(order for plan in plans for order in plan.sums.orders),
            folds=tuple(order for plan in plans for order in plan.sums.folds),
        ),
        sections=ready,
        following=after,
        groups=tuple(group for plan in plans for group in plan.groups),
    )


def alone(plan: KernelPlan) -> tuple[KernelPlan, ...]:
    """The plans of a kernel's sections, each with the part of the launch that follows that is its.

    Raises:
        VerifyError: that launch makes what is no section's, or in another order.
    """
    found = []
    for one in plan.sections:
        made = {fold.value for fold in one.epilogue.folds}
        stored = {write.tensor.name for write in one.epilogue.writes}
        after = plan.following
        if after is not None:
            after = replace(
                after,
                groups=tuple(group for group in after.groups if made & {*group.folds}),
                parts=tuple(parts for parts in after.parts if parts.value in made),
                kept=tuple(kept for kept in after.kept if kept.name in stored),
            )
        after = after if made else None
        own = after.groups if after is not None else ()
        groups = tuple(group for group in plan.groups if group.group in own)
        found.append(replace(one, following=after, groups=groups))
    together = _together([one.following for one in found if one.following is not None])
    folds = any(one.epilogue.folds for one in plan.sections)
    every = tuple(group.group for group in plan.groups)
    if (
        together != plan.following
        or any(one.following != together for one in plan.sections)
        or every != (together.groups if together is not None else ())
        or folds != (together is not None)
    ):
        raise VerifyError(f"what follows is {plan.following}, and not {together}", where=plan.entry)
    return tuple(found)


def _together(every: Sequence[Following]) -> Following | None:
    """The launch that follows a kernel of sections: their groups, parts and kept matrices.

    Raises:
        VerifyError: blocks of their launches are not alike.
    """
    if not every:
        return None
    first = every[0]
    for other in every[1:]:
        alike = (other.entry, other.threads, other.lanes, other.real)
        if alike != (first.entry, first.threads, first.lanes, first.real):
            raise VerifyError("the launches that follow have other blocks", where=first.entry)
    return replace(
        first,
        groups=tuple(one for of in every for one in of.groups),
        parts=tuple(one for of in every for one in of.parts),
        kept=tuple(one for of in every for one in of.kept),
    )


def _require_shared(one: KernelPlan, other: KernelPlan) -> None:
    """What all sections run in, wait for and keep their tiles in is the same."""
    shared = (
        ("the instruction", one.atom, other.atom),
        ("the schedule", one.schedule, other.schedule),
        ("the tile program", one.synchronised, other.synchronised),
        ("places and their loops", one.places, other.places),
        ("shared memory", _memory(one.buffers), _memory(other.buffers)),
        ("barriers", [p.sync for p in one.syncs], [p.sync for p in other.syncs]),
        ("statements", _statements(one), _statements(other)),
    )
    for what, here, there in shared:
        if here != there:
            names = (plan.program.contractions[0].name for plan in (one, other))
            raise VerifyError(f"{what}: not the same for {' and '.join(names)}", where=one.entry)


def _memory(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Where buffers are and how tiles lie in rings; what is in them may be of any section."""
    return [
        replace(one, note="", layout=one.layout if one.kind == "ring" else None) for one in buffers
    ]


def _statements(plan: KernelPlan) -> list[tuple[object, ...]]:
    return [
        (leaf.statement, leaf.op, leaf.unit, leaf.loops, leaf.place, leaf.advances)
        for leaf in plan.leaves
    ]


def _with_maps(plan: KernelPlan, maps: dict[str, Argument]) -> KernelPlan:
    """The plan with its tensor maps under names that no other map of the kernel has.

    Args:
        plan: of a section.
        maps: of the sections before, by name; its own are added.
    """

    def named(of: Boxes) -> Boxes:
        made = Argument(of.map, "map", tensor=of.tensor.name, axes=of.axes, swizzle=of.span)
        name, number = of.map, 0
        while maps.setdefault(name, replace(made, name=name)) != replace(made, name=name):
            number += 1
            name = f"{of.map}_{number}"
        return replace(of, map=name, once="")

    def leaf(one: Leaf) -> Leaf:
        if isinstance(one.work, Move):
            return replace(one, work=replace(one.work, boxes=tuple(map(named, one.work.boxes))))
        if isinstance(one.work, Store):
            moved = tuple((panel, named(boxes)) for panel, boxes in one.work.panels)
            return replace(one, work=replace(one.work, panels=moved))
        return one

    return replace(plan, leaves=tuple(map(leaf, plan.leaves)))


def _located(leaves: tuple[Leaf, ...], tiles: tuple[SectionTiles, ...]) -> tuple[Leaf, ...]:
    """Leaves, of which `locate` goes through the tiles of all sections."""
    return tuple(
        replace(one, work=replace(one.work, sections=tiles))
        if isinstance(one.work, Locate)
        else one
        for one in leaves
    )


def _every_leaf(plans: Sequence[KernelPlan]) -> tuple[Leaf, ...]:
    """The leaves of the first section, each with those of others behind it that are not the same.

    A tile is located alike, whoever's it is.
    """
    found = []
    for leaves in zip(*(plan.leaves for plan in plans), strict=True):
        found.append(leaves[0])
        if not isinstance(leaves[0].work, Locate):
            found += [
                replace(leaf, section=number)
                for number, leaf in enumerate(leaves)
                if leaf != leaves[0]
            ]
    return tuple(found)
