"""Folds in the launch that follows: parts into registers, and what warps have into one result."""

from __future__ import annotations

from polygen.emit.folds import (
    combined,
    counts_text,
    exchanged,
    identities,
    offset_text,
    workspace_name,
)
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import real_of
from polygen.lower.follow_work import CombineParts, Meet
from polygen.lower.plan import KernelPlan, Leaf
from polygen.poly.follow_program import OTHER, OWN, PART


@leaf("begin_folds", "threads", Meet)
def _(plan: KernelPlan, one: Leaf, work: Meet) -> Text:
    real = real_of(plan)
    begun = [
        f"{name} = {value};"
        for fold in work.folds
        for name, value in zip(fold.names, identities(fold.monoid, real), strict=True)
    ]
    names = ", ".join(name for fold in work.folds for name in fold.names)
    values = ", ".join(fold.value for fold in work.folds)
    note = f"{one.statement}: nothing of {values} is combined yet"
    return Text(block(*begun), note, (f"{real} {names};",))


@leaf("combine_parts", "threads", CombineParts, (PART,))
def _(plan: KernelPlan, one: Leaf, work: CombineParts) -> Text:
    (_, parts), *_ = work.folds
    real = real_of(plan)
    declared = [f"const long long {work.count} = {counts_text(parts)};"]
    # Lanes beyond the last result read its parts, and store nothing.
    place = "fold_result" if work.shared else "min(fold_result, fold_results - 1)"
    lines, number = [], PART
    if work.shared:
        lines = [
            f"const long long fold_own = {OWN.format(PART)};",
            f"const long long fold_at = min(fold_own, {work.count} - 1);",
        ]
        number = "fold_at"
    combine = []
    for fold, _ in work.folds:
        read = []
        for at, name in enumerate(fold.names):
            # An offset: addresses are made behind the wait for the kernel.
            offset, begin = f"{name}_from", offset_text(plan, fold.value, at)
            declared.append(f"const long long {offset} = {begin} + {place};")
            own = f"{workspace_name(plan)} + ({offset} + {number} * fold_results)"
            lines.append(f"const {real} {name}_read = __ldcg({own});")
            read.append(f"{name}_read")
        combine.append(combined(fold.monoid, fold.names, read))
    if work.shared:
        combine = [f"if (fold_own < {work.count}) {{", *(f"  {c}" for c in combine), "}"]
    values = ", ".join(fold.value for fold, _ in work.folds)
    what = "one for each lane, from" if work.shared else "of the results of all lanes,"
    note = f"{one.statement}: parts of {values}, {what} part {PART}"
    return Text(
        block(*lines, *combine), note, tuple(declared), parameters=f"const long long {PART}"
    )


@leaf("give_folds", "threads", Meet)
def _(plan: KernelPlan, one: Leaf, work: Meet) -> Text:
    width = plan.device.warp_size
    size = f"[{work.warps}]" if work.shared else f"[{work.warps}][{width}]"
    declared, lines, gives, real = [], [], [], real_of(plan)
    for fold in work.folds:
        declared.append(f"__shared__ {real} {', '.join(name + size for name in fold.given)};")
        if work.shared:
            masks = [1 << bit for bit in range(width.bit_length() - 1)]
            lines += exchanged(fold.monoid, fold.names, masks)
        own = "[warp]" if work.shared else "[warp][lane]"
        both = zip(fold.given, fold.names, strict=True)
        gives += [f"{there}{own} = {name};" for there, name in both]
    if work.shared:
        gives = ["if (lane == 0) {", *(f"  {line}" for line in gives), "}"]
    meet = "lanes meet, one writes" if work.shared else "every lane writes"
    note = f"{one.statement}: {meet} what the warp has"
    return Text(block(*lines, *gives), note, tuple(declared))


@leaf("take_folds", "threads", Meet, (OTHER,))
def _(plan: KernelPlan, one: Leaf, work: Meet) -> Text:
    own = f"[{OTHER}]" if work.shared else f"[{OTHER}][lane]"
    first, others = [], []
    for fold in work.folds:
        there = [f"{name}{own}" for name in fold.given]
        first += [f"{name} = {of};" for name, of in zip(fold.names, there, strict=True)]
        others.append(combined(fold.monoid, fold.names, there))
    lines = [
        f"if ({OTHER} == 0) {{",
        *(f"  {line}" for line in first),
        "} else {",
        *(f"  {line}" for line in others),
        "}",
    ]
    note = f"{one.statement}: what warp {OTHER} has, behind what the warps before it have"
    return Text(block(*lines), note)
