"""Parts of folds in registers: begun with the identity, ended by lanes that meet and one that
writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from polygen.emit.ctext import definition
from polygen.emit.folds import (
    array_text,
    combined,
    exchanged,
    extent_text,
    identities,
    part_number,
)
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import (
    extent_names,
    plus,
    real_of,
    shared_number,
    write_number,
)
from polygen.frontend.monoids import MONOIDS
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Epilogue, Folding, FoldPart, Meeting
from polygen.poly.digits import numbered


@leaf("unfold", "threads", Folding)
def _(plan: KernelPlan, one: Leaf, work: Folding) -> Text:
    lines, declared, real = [], [], real_of(plan)
    for part in work.epilogue.folds:
        sizes = (part.atoms, len(part.offsets), part.registers)
        places, count = "".join(f"[{size}]" for size in sizes), math.prod(sizes)
        given = zip(part.names, identities(part.monoid, real), strict=True)
        cleared = [f"(&{name}[0][0][0])[fold_i] = {value};" for name, value in given]
        declared.append(f"{real} {', '.join(name + places for name in part.names)};")
        lines += [
            "#pragma unroll",
            f"  for (int fold_i = 0; fold_i < {count}; ++fold_i) {{ {' '.join(cleared)} }}",
        ]
    return Text("\n".join(lines), f"{one.statement}: nothing is folded yet", tuple(declared))


@leaf("fold", "threads", Folding)
def _(plan: KernelPlan, one: Leaf, work: Folding) -> Text:
    lines = []
    for part in work.epilogue.folds:
        lines += [
            "#pragma unroll",
            f"for (int fold_i = 0; fold_i < {part.atoms}; ++fold_i) {{",
            *(f"  {line}" for at in range(len(part.offsets)) for line in _slot(plan, part, at)),
            "}",
        ]
    text = block(*lines).replace("  #pragma", "#pragma")
    return Text(text, f"{one.statement}: lanes with elements of one place meet, one writes")


@leaf("meet", "threads", Meeting)
def _(plan: KernelPlan, one: Leaf, work: Meeting) -> Text:
    lines, declared, real = [], [], real_of(plan)
    for part in work.epilogue.folds:
        declared.append(f"{real} {part.known}[{part.atoms}][{len(part.offsets)}];")
        lines += [
            "#pragma unroll",
            f"for (int fold_i = 0; fold_i < {part.atoms}; ++fold_i) {{",
            *(f"  {line}" for at in range(len(part.offsets)) for line in _known(part, at, real)),
            "}",
        ]
    text = block(*lines).replace("  #pragma", "#pragma")
    note = f"{one.statement}: lanes with elements of one row meet, and each has its results"
    return Text(text, note, tuple(declared))


@leaf("give", "threads", Meeting, needs=("words",))
def _(plan: KernelPlan, one: Leaf, work: Meeting) -> Text:
    lines, first = [f"const unsigned own_rows = {_area(plan, one, work, '')};"], 0
    for part in work.epilogue.folds:
        lines += ["#pragma unroll", f"for (int fold_i = 0; fold_i < {part.atoms}; ++fold_i) {{"]
        for slot in range(len(part.offsets)):
            inside, names = met(part, slot, real_of(plan))
            places = [
                given(plan, work.epilogue, part, slot, first + at, "own_rows")
                for at in range(len(names))
            ]
            writes = [
                f"    {write_number(place, name, real_of(plan))};"
                for place, name in zip(places, names, strict=True)
            ]
            inside += [f"  if ((lane & {sum(part.masks)}) == 0) {{", *writes, "  }", "}"]
            lines += [f"  {line}" for line in inside]
        lines.append("}")
        first += len(part.terms)
    text = block(*lines).replace("  #pragma", "#pragma")
    return Text(text, f"{one.statement}: lanes with elements of one row meet, one of them writes")


@leaf("take", "threads", Meeting, needs=("words",))
def _(plan: KernelPlan, one: Leaf, work: Meeting) -> Text:
    count = work.epilogue.sharing
    areas = [_area(plan, one, work, f" / {count} * {count} + {v}") for v in range(count)]
    return taken(plan, one, work.epilogue, areas)


def taken(plan: KernelPlan, one: Leaf, e: Epilogue, areas: Sequence[str]) -> Text:
    """What agents of a row have given becomes the row's results, in the order of the agents.

    Args:
        plan: the kernel.
        one: the leaf.
        e: the pass.
        areas: where each of them has given it, as addresses.
    """
    declared, first, real = [], 0, real_of(plan)
    lines = [f"const unsigned rows_{v} = {area};" for v, area in enumerate(areas)]
    for part in e.folds:
        declared.append(f"{real} {part.known}[{part.atoms}][{len(part.offsets)}];")
        lines += ["#pragma unroll", f"for (int fold_i = 0; fold_i < {part.atoms}; ++fold_i) {{"]
        for slot in range(len(part.offsets)):
            names = [f"fold_{at}" for at in range(len(part.terms))]
            reads = [
                [
                    shared_number(given(plan, e, part, slot, first + at, f"rows_{v}"), real)
                    for at in range(len(names))
                ]
                for v in range(len(areas))
            ]
            begin = ", ".join(
                f"{name} = {text}" for name, text in zip(names, reads[0], strict=True)
            )
            inside = ["{", f"  {real} {begin};"]
            inside += [f"  {combined(part.monoid, names, other)}" for other in reads[1:]]
            lines += [f"  {line}" for line in (*inside, *_finished(part, slot, names, real))]
        lines.append("}")
        first += len(part.terms)
    text = block(*lines).replace("  #pragma", "#pragma")
    note = f"{one.statement}: what all that share a row have of it, one after the other"
    return Text(text, note, tuple(declared))


def _area(plan: KernelPlan, one: Leaf, work: Meeting, which: str) -> str:
    """Where an agent's rows are in shared memory."""
    buffer, agent = plan.buffer(work.given), plan.place(one.place).agent
    return f"shared + {buffer.offset} + ({agent}{which}) * {buffer.owner_bytes}"


def given(
    plan: KernelPlan, e: Epilogue, part: FoldPart, slot: int, component: int, area: str
) -> str:
    """Where a component of one of a lane's rows is, in the area of an agent."""
    atom = plan.atom
    quarter = "quarter + " if atom.scope == "warpgroup" else ""
    row = f"fold_i * {atom.m} + {quarter}{plus(e.row_of_lane, part.offsets[slot])}"
    return f"{area} + ({component * plan.tiles.warp[0]} + {row}) * {plan.program.real.bytes}"


def _known(part: FoldPart, slot: int, real: str) -> list[str]:
    """The result of one of the rows of a lane."""
    lines, names = met(part, slot, real)
    return [*lines, *_finished(part, slot, names, real)]


def _finished(part: FoldPart, slot: int, names: list[str], real: str) -> list[str]:
    """All components -> the result; closes a block."""
    finish = MONOIDS[part.monoid].finish
    body, (value,), _ = definition(lambda *v: (finish(*v),), names, "fold_", real=real)
    known = f"{part.known}[fold_i][{slot}] = {value};"
    return [*(f"  {line}" for line in (*body, known)), "}"]


def met(part: FoldPart, slot: int, real: str, registers: int = 0) -> tuple[list[str], list[str]]:
    """What all lanes have of a place becomes one, in all of them; opens a block.

    Args:
        part: the fold.
        slot: the place.
        real: the C type of terms.
        registers: of the place; 0: as many as took terms by turns.
    """
    names = [f"fold_{at}" for at in range(len(part.terms))]
    given = ", ".join(
        f"{name} = {register}[fold_i][{slot}][0]"
        for name, register in zip(names, part.names, strict=True)
    )
    lines = ["{", f"  {real} {given};"]
    for turn in range(1, registers or part.registers):
        others = [f"{register}[fold_i][{slot}][{turn}]" for register in part.names]
        lines.append(f"  {combined(part.monoid, names, others)}")
    return lines + [f"  {line}" for line in exchanged(part.monoid, names, part.masks)], names


def _slot(plan: KernelPlan, part: FoldPart, slot: int) -> list[str]:
    """What lanes do with one of their places."""
    e, extents = plan.epilogue, extent_names(plan)
    lines, names = met(part, slot, real_of(plan), 1 if part in e.at_once else 0)
    conditions = [f"(lane & {sum(part.masks)}) == 0"] if part.masks else []
    if part.along:
        lines.append(f"  const int fold_place = {_place(plan, e, part, slot)};")
        conditions.append(f"fold_place < {extents[part.along]}")
    sizes = dict(plan.batches)
    places = [
        (extents[dim] if dim in extents else extent_text([sizes[dim]]),
         "fold_place" if dim == part.along else dim)
        for dim in part.kept
    ]  # fmt: skip
    result = numbered(f"(long long){places[0][1]}", places[1:]) if places else "0LL"
    results = extent_text(part.parts.results)
    at = f"{part_number(part)} * ({results}) + {result}"
    writes = [
        f"({array_text(plan, part.value, number)})[fold_at] = {name};"
        for number, name in enumerate(names)
    ]
    lines += [
        f"  if ({' && '.join(conditions) or 'true'}) {{",
        f"    const long long fold_at = {at};",
        *(f"    {line}" for line in writes),
        "  }",
        "}",
    ]
    return lines


def _place(plan: KernelPlan, e: Epilogue, part: FoldPart, slot: int) -> str:
    """The row or the column of a lane's place."""
    base, lane, size = (
        (e.row_base, e.row_of_lane, plan.atom.m)
        if part.along == "m"
        else (e.column_base, e.column_of_lane, plan.atom.n)
    )
    return f"{base} + fold_i * {size} + {plus(lane, part.offsets[slot])}"
