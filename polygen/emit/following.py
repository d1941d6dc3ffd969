"""The launch that follows a kernel's: parts of folds -> results, and what comes of them.

The lanes of a warp have a result each, or share one where it has all parts; the warps of a block
share the parts of their results: warp w takes every so many, from the w-th on, in the order of
their numbers. The first warp combines what they have, warp after warp, and does what the program
computes from results. Results that elements of their own row use have a block each
(`polygen.emit.fold_rows`). So have rows of chains whose keys are in parts
(`polygen.emit.key_parts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polygen.emit.ctext import definition, pointwise
from polygen.emit.fold_rows import row_results
from polygen.emit.folds import (
    UNROLLED,
    array_text,
    combined,
    counts_text,
    exchanged,
    extent_text,
    identities,
    result_address,
    split_of,
    stored,
)
from polygen.emit.key_parts import merged_rows
from polygen.emit.leaves import size_name
from polygen.emit.names import c_name
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import Access, Constant, Dim, Extent, Pointwise
from polygen.lower.launch import Following, Results, workspace_argument
from polygen.lower.plan import KernelPlan
from polygen.poly.pointwise import Compute


def combining(plan: KernelPlan) -> tuple[list[str], list[str]]:
    """Functions that combine, in C, and the helpers that they and the results call."""
    lines, helpers = [], []
    folded = plan.following is not None and plan.scores is None
    rows = split_of(plan).rows if folded else ()
    late = (fold for one in rows for fold in one.folds)
    passes = (one for e in plan.epilogue.before for one in e.folds)
    made = [one.monoid for one in (*plan.epilogue.folds, *passes)]
    made += [one.function for one in late]
    for name in dict.fromkeys(made):
        monoid = MONOIDS[name]
        left, right = ([f"{side}{at}" for at in range(len(monoid.identity))] for side in "ab")
        parameters = [f"float& {one}" for one in left] + [f"const float {one}" for one in right]
        for suffix, function in (("", monoid.combine), ("_later", monoid.later)):
            if function is None:
                continue
            body, results, needs = definition(function, [*left, *right], fast=monoid.short)
            helpers += needs
            head = f"combine_{name}{suffix}({', '.join(parameters)})"
            lines += [
                f"__device__ __forceinline__ void {head} {{",
                *(f"  {line}" for line in body),
                *(f"  {own} = {value};" for own, value in zip(left, results, strict=True)),
                "}",
            ]
        helpers += definition(lambda *v, m=monoid: (m.finish(*v),), left)[2]
    if plan.following is not None:
        for group in plan.following.groups:
            helpers += _lines(plan, plan.following, group)[1]
    return lines, list(dict.fromkeys(helpers))


def following(plan: KernelPlan) -> dict[str, Any] | None:
    """What the templates need of the launch that follows; None without folds."""
    after = plan.following
    if after is None:
        return None
    lines = ["long long fold_block = blockIdx.x;"]
    blocks = []
    for number, group in enumerate(after.groups):
        each = after.results(group)
        blocks.append(f"(({extent_text(group.extents)} + {each - 1}) / {each})")
        inside = _lines(plan, after, group)[0]
        if number == len(after.groups) - 1:
            lines += inside
            continue
        lines += [f"if (fold_block < {blocks[-1]}) {{", *(f"  {line}" for line in inside)]
        lines += ["  return;", "}", f"fold_block -= {blocks[-1]};"]
    elements = [
        f"{parts.components} * ({counts_text(parts)}) * ({extent_text(parts.results)})"
        for parts in after.parts
    ]
    return {
        "entry": after.entry,
        "threads": after.threads,
        "blocks": " + ".join(blocks),
        "bytes": f"4 * ({' + '.join(elements)})",
        "alignment": after.alignment,
        "lines": lines,
        "sizes": ", ".join(f"int {size_name(name)}" for name in plan.program.sizes),
        "workspace": c_name(workspace_argument(plan.program)),
    }


def _lines(plan: KernelPlan, after: Following, group: Results) -> tuple[list[str], list[str]]:
    """The results of a block of a group, with the helpers that they call."""
    if group.merged:
        return merged_rows(plan, group)
    if group.rows:
        return row_results(plan, after, group)
    return _results(plan, after, group), _finished(plan, group)[1]


def _results(plan: KernelPlan, after: Following, group: Results) -> list[str]:
    """The results of a block: parts combined by its warps, then by its first one."""
    width, each = after.lanes, after.results(group)
    warps, shared = after.threads // width, group.lanes > 1
    lane, warp = f"threadIdx.x % {width}", f"threadIdx.x / {width}"
    own = "fold_block" if each == 1 else f"fold_block * {each} + {lane}"
    first, step = (warp, warps) if not shared else ("threadIdx.x", after.threads)
    lines = [
        f"const long long fold_result = {own};",
        f"const long long fold_results = {extent_text(group.extents)};",
    ]
    ends: list[str] = []
    for fold in group.folds:
        part = next(one for one in plan.epilogue.folds if one.value == fold)
        given = zip(part.names, identities(part.monoid), strict=True)
        arrays = [f"fold_from{at}" for at in range(len(part.names))]
        reads = [f"__ldcg({array} + fold_q * fold_results)" for array in arrays]
        met = [f"fold_{name}" for name in part.names]
        lines += [
            f"__shared__ float {', '.join(f'{name}[{warps}][{width}]' for name in met)};",
            f"float {', '.join(f'{name} = {value}' for name, value in given)};",
            "if (fold_result < fold_results) {",
            *(
                f"  const float* {array} = {array_text(plan, fold, at)} + fold_result;"
                for at, array in enumerate(arrays)
            ),
            f"  const long long fold_parts = {counts_text(part.parts)};",
            f"#pragma unroll {UNROLLED}",
            f"  for (long long fold_q = {first}; fold_q < fold_parts; fold_q += {step})",
            f"    {combined(part.monoid, part.names, reads)}",
            "}",
        ]
        if shared:
            masks = [1 << bit for bit in range(group.lanes.bit_length() - 1)]
            lines += exchanged(part.monoid, part.names, masks)
        lines += [
            f"{there}[{warp}][{lane}] = {name};"
            for there, name in zip(met, part.names, strict=True)
        ]
        others = [f"{there}[fold_w][{lane}]" for there in met]
        ends += [
            "#pragma unroll",
            f"for (int fold_w = 1; fold_w < {warps}; ++fold_w)",
            f"  {combined(part.monoid, part.names, others)}",
        ]
    one = "threadIdx.x != 0" if shared else f"threadIdx.x >= {width}"
    lines += ["__syncthreads();", f"if ({one} || fold_result >= fold_results) return;"]
    return lines + ends + _finished(plan, group)[0]


def _finished(plan: KernelPlan, group: Results) -> tuple[list[str], list[str]]:
    """Parts all combined -> results, and what is computed from them; with the helpers."""
    split = split_of(plan)
    folds = {one.value: one for one in plan.epilogue.folds}
    names: dict[str, str] = {}
    lines, helpers = [], []
    for fold in group.folds:
        components = folds[fold].names
        finish = MONOIDS[folds[fold].monoid].finish
        body, (value,), needs = definition(
            lambda *values, finish=finish: (finish(*values),), components, f"{fold}_"
        )
        lines += body
        helpers += needs
        names[fold] = value
    statements = [s for s in split.after if s.name in group.after]
    written = {name: f"{name}_result" for name in group.outputs}
    lines += [f"float {name};" for name in written.values()]
    computed, needs_of = pointwise(
        tuple(_computed(s, names) for s in statements), names, written, fast=False
    )
    lines += computed
    helpers += needs_of
    tensors = plan.program.tensors
    if group.extents and any(len(tensors[name].dims) > 1 for name in written):
        lines += _coordinates(group.extents)
    for name, value in written.items():
        place = result_address(tensors[name], group.extents)
        lines.append(f"*({place}) = {stored(tensors[name].dtype, value)};")
    return lines, helpers


def _computed(statement: Pointwise, names: dict[str, str]) -> Compute:
    """A statement over results; sizes become numbers under names of their own."""
    args: list[str | float] = []
    for arg in statement.args:
        if isinstance(arg, Constant):
            args.append(arg.value)
        elif isinstance(arg, Extent):
            names[str(arg)] = f"(float)({extent_text(arg.dims)})"
            args.append(str(arg))
        else:
            assert isinstance(arg, Access)
            args.append(arg.name)
    return Compute(statement.write.name, statement.function, tuple(args), statement.dtype)


def _coordinates(extents: Sequence[Dim]) -> list[str]:
    """Where a result is along its axes, the last fastest."""
    lines, rest = [], "fold_result"
    for at in reversed(range(len(extents))):
        inside = f" % {size_name(extents[at])}" if at else ""
        lines.append(f"const long long fold_at{at} = {rest}{inside};")
        rest = f"{rest} / {size_name(extents[at])}"
    return lines
