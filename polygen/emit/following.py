"""The launch that follows a kernel's: parts of folds -> results, and what comes of them.

The blocks of each group of results run the leaves and loops of its tile program, which is derived
and proved as the kernel's own (`polygen.lower.follow`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from polygen.emit.ctext import definition, loops
from polygen.emit.fold_terms import declared_of_many, function_of_many
from polygen.emit.fold_terms import function as function_of_all
from polygen.emit.folds import counts_text, extent_text, section_of, workspace_name
from polygen.emit.leaf import render
from polygen.emit.leaf.finish_folds import finish_lines
from polygen.emit.leaf.merge_keys import merge_helpers, row_of_keys
from polygen.emit.leaf.tally import tally_monoids
from polygen.emit.leaf.walk_row import walk_lines
from polygen.emit.leaves import real_of, size_name
from polygen.emit.row_places import coordinates, kept_bytes
from polygen.frontend.monoids import MONOIDS
from polygen.lower.folds import at_hand, split_of
from polygen.lower.follow_work import Settle, Walk
from polygen.lower.key_parts import AFTER
from polygen.lower.plan import BlockPlan, GroupPlan, KernelPlan, MakeRowsPlan
from polygen.poly.follow_program import ELEMENT, ELEMENTS, PART, result_of

# Parts, and elements, that are on their way to a thread.
_TOGETHER, _OF_KEYS = {PART: 8, ELEMENT: 4}, {PART: 4}


def monoids(plan: KernelPlan) -> tuple[str, ...]:
    """What folds of results and of operands combine by."""
    every = plan.each if plan.following is not None else ()
    rows = [one for of in every for one in split_of(of).rows]
    late = (fold for one in rows for fold in one.folds)
    own = [one.epilogue for one in plan.each]
    passes = (fold for e in own for before in e.before for fold in before.folds)
    made = [fold.monoid for fold in (*(fold for e in own for fold in e.folds), *passes)]
    made += [one.function for one in late]
    made += tally_monoids(plan)
    made += [fold.function for one in _rows_first(plan) for fold in one.made.rows.folds]
    return tuple(dict.fromkeys(made))


def _rows_first(plan: KernelPlan) -> list[MakeRowsPlan]:
    return [one for one in plan.copies if isinstance(one, MakeRowsPlan)]


def combining(plan: KernelPlan) -> tuple[list[str], list[str]]:
    """Functions that combine, in C, and the helpers that they and the results call."""
    lines, helpers, real = [], [], real_of(plan)
    for name in monoids(plan):
        monoid = MONOIDS[name]
        left, right = ([f"{side}{at}" for at in range(len(monoid.identity))] for side in "ab")
        parameters = [f"{real}& {one}" for one in left]
        parameters += [f"const {real} {one}" for one in right]
        for suffix, function in (("", monoid.combine), ("_later", monoid.later)):
            if function is None:
                continue
            body, results, needs = definition(
                function, [*left, *right], fast=monoid.short, real=real
            )
            helpers += needs
            head = f"combine_{name}{suffix}({', '.join(parameters)})"
            lines += [
                f"__device__ __forceinline__ void {head} {{",
                *(f"  {line}" for line in body),
                *(f"  {own} = {value};" for own, value in zip(left, results, strict=True)),
                "}",
            ]
        if any(one.monoid == name for e in plan.epilogues for one in e.at_once):
            all_at_once, needs = function_of_all(name, parameters[: len(left)], real)
            lines, helpers = [*lines, *all_at_once], [*helpers, *needs]
        for more, needs in _of_many(plan, name, parameters[: len(left)], real):
            lines, helpers = [*lines, *more], [*helpers, *needs]
        helpers += definition(lambda *v, m=monoid: (m.finish(*v),), left, real=real)[2]
    for group in (*plan.groups, *_rows_first(plan)):
        for one in group.leaves:
            of = section_of(plan, group.group) if isinstance(group, GroupPlan) else plan
            if isinstance(one.work, Settle):
                helpers += finish_lines(of, one.work)[1]
            if isinstance(one.work, Walk):
                helpers += walk_lines(of, one.work)[1]
    helpers += merge_helpers(plan)
    return lines, list(dict.fromkeys(helpers))


def _of_many(
    plan: KernelPlan, name: str, parameters: list[str], real: str
) -> Iterator[tuple[list[str], list[str]]]:
    """The functions that combine several terms at once where elements stream, and their helpers."""
    e = plan.epilogue
    own = [one for one in e.together if one.monoid == name]
    if own and MONOIDS[name].of_many is None:
        yield function_of_all(name, parameters, real)
    elif own:
        yield declared_of_many(name, parameters, real), []
        for count in sorted({at_hand(e, one) for one in own}):
            yield function_of_many(name, parameters, count, real)


def following(plan: KernelPlan) -> dict[str, Any] | None:
    """What the templates need of the launch that follows; None without folds."""
    after = plan.following
    if after is None:
        return None
    lines = ["long long fold_block = blockIdx.x;"]
    lines.append(
        f"const int lane = threadIdx.x % {after.lanes}, warp = threadIdx.x / {after.lanes};"
    )
    blocks = []
    for number, own in enumerate(plan.groups):
        group = own.group
        each = after.results(group)
        blocks.append(f"(({extent_text(group.extents)} + {each - 1}) / {each})")
        inside = _lines(section_of(plan, group), own)
        if number == len(plan.groups) - 1:
            lines += inside
            continue
        lines += [f"if (fold_block < {blocks[-1]}) {{", *(_deeper(line) for line in inside)]
        lines += ["  return;", "}", f"fold_block -= {blocks[-1]};"]
    elements = [
        f"{parts.components} * ({counts_text(parts)}) * ({extent_text(parts.results)})"
        for parts in after.parts
    ]
    return {
        "title": "The launch that follows: parts of folds -> results.",
        "entry": after.entry,
        "threads": after.threads,
        "dependent": after.dependent,
        "blocks": " + ".join(blocks),
        "bytes": " + ".join(
            [f"{after.real.bytes} * ({' + '.join(elements)})", *map(kept_bytes, after.kept)]
        ),
        "alignment": after.alignment,
        "lines": lines,
        "sizes": ", ".join(f"int {size_name(name)}" for name in plan.program.sizes),
        "workspace": workspace_name(plan),
    }


def _deeper(line: str) -> str:
    return line if line.startswith("#") else f"  {line}"


def _lines(plan: KernelPlan, own: GroupPlan) -> list[str]:
    """The results of a block: what it has, the leaves of its tile program, and its loops."""
    group, together = own.group, _TOGETHER
    if group.merged:
        lines, together = row_of_keys(plan, group), _OF_KEYS
        for one in plan.leaves:
            lines += render(plan, one, 0) if one.place == AFTER else []
    else:
        each = 1 if group.lanes > 1 else plan.device.warp_size
        lines = [
            f"const long long fold_result = {result_of(each)};",
            f"const long long fold_results = {extent_text(group.extents)};",
        ]
    return [*lines, *row_lines(plan, own, together)]


def row_lines(
    plan: KernelPlan, own: BlockPlan, together: Mapping[str, int] = _TOGETHER
) -> list[str]:
    """Where a block's result, or row, is; the leaves of its tile program, and its loops.

    Args:
        plan: the kernel.
        own: what the block does.
        together: of what loops go through, how many are on their way to a thread.
    """
    lines = []
    walks = [one.work for one in own.leaves if isinstance(one.work, Walk)]
    if walks:
        rows = walks[0].rows
        lines += coordinates("fold_result", [(at, rows.axes[at]) for at in rows.own])
        inner = extent_text([rows.axes[at] for at in rows.inner])
        lines.append(f"const long long {ELEMENTS} = {inner};")
    for one in own.leaves:
        lines += render(plan, one, 0)
    lines.append("// The loops, generated by isl from the schedule tree.")
    return lines + loops(own.place.loops, {}, 0, counting="long long", together=dict(together))
