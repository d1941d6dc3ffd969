"""A kernel of several sections in CUDA: whose tile is next, and leaves that ask whose it is.

Every place numbers the tiles of all sections through, and knows from the number of a work item
whose tile it is (`polygen.poly.sections`). Leaves that come out the same for all sections are
written once; others have a branch for each section that differs, with the helpers that it calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from polygen.emit.leaf.table import INDENT, Text, block, kind_of, render, written
from polygen.emit.leaves import matrix_coordinates, size_name
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Locate, SectionTiles
from polygen.poly.raster import item_tile, last_width, width_of


# --- whose tile ----------------------------------------------------------------------------------
def in_raster(work: Locate) -> list[str]:
    """From the number of an item of one matrix to the block's tile."""
    along, across, group = work.along, work.across, work.group
    width = width_of(group, "band", f"tiles_{along}")
    if work.divides:
        lines = [
            "const int band = item / per_band, in_band = item % per_band;",
            f"const auto width = {width} == {group} ? Divisor({group}) : last_width;",
        ]
    else:
        band = f"({group} * tiles_{across})"
        lines = [
            f"const int band = item / {band}, in_band = item - band * {band};",
            f"const int width = {width};",
        ]
    own_along, own_across = item_tile(group, "band", "in_band", "width")
    return [*lines, f"b_{along} = {own_along}, b_{across} = {own_across};", *in_cluster(work)]


def of_matrix(work: Locate) -> tuple[str, str]:
    """From the number of an item of all matrices to its `matrix`, and to its number there."""
    if work.divides:
        return "work / per_matrix", "work % per_matrix"
    per_matrix = "(tiles_m * tiles_n)"
    return f"work / {per_matrix}", f"work - matrix * {per_matrix}"


def divisors(work: Locate) -> tuple[str, ...]:
    """What the numbers of items are divided by, as declarations."""
    if not work.divides:
        return ()
    numbers = {"per_matrix": "tiles_m * tiles_n"} if work.batches else {}
    numbers["per_band"] = f"{work.group} * tiles_{work.across}"
    numbers["last_width"] = last_width(work.group, f"tiles_{work.along}")
    return tuple(f"const auto {name} = Divisor({number});" for name, number in numbers.items())


def in_cluster(work: Locate) -> list[str]:
    """From the tiles of a cluster to the block's."""
    rows, columns = work.cluster
    if rows * columns == 1:
        return []
    return [f"b_m = b_m * {rows} + rank % {rows}, b_n = b_n * {columns} + rank / {rows};"]


def counted(
    plan: KernelPlan, sections: Sequence[SectionTiles], tile: tuple[int, int]
) -> tuple[list[str], str]:
    """How many tiles, or clusters of them, the sections have: lines, and how many in all.

    Args:
        plan: the kernel.
        sections: their outputs.
        tile: rows and columns of a tile, or of a cluster of them.
    """
    sides = "mn" if plan.schedule.raster.along == "m" else "nm"
    lines, before = [], ""
    for number, one in enumerate(sections):
        extents = dict(zip(sides, (one.along, one.across), strict=True))
        counts = (
            f"tiles_{side}_{number} = ({size_name(extents[side])} + {step - 1}) / {step}"
            for side, step in zip("mn", tile, strict=True)
        )
        lines.append(f"const int {', '.join(counts)};")
        sizes = "".join(f" * {size_name(extent)}" for _, extent in one.batches)
        own = f"tiles_m_{number} * tiles_n_{number}{sizes}"
        lines.append(f"const int items_{number} = {before}{own};")
        before = f"items_{number} + "
    return lines, f"items_{len(sections) - 1}"


def located(plan: KernelPlan, one: Leaf, work: Locate) -> Text:
    """The next output tile of a block: first whose, then which."""
    batches = list(dict.fromkeys(name for s in work.sections for name, _ in s.batches))
    lines = ["int item = first + i * stride, tiles_m = 1, tiles_n = 1;"]
    last = len(work.sections) - 1
    for number, own in enumerate(work.sections):
        test = f"if (item < items_{number}) " if number < last else ""
        lines.append(f"{'} else ' if number else ''}{test}{{")
        if number:
            lines.append(f"  item -= items_{number - 1};")
        count = f"section = {number}, tiles_m = tiles_m_{number}, tiles_n = tiles_n_{number};"
        lines.append(f"  {count}")
        if own.batches:
            lines += [
                "  const int matrix = item / (tiles_m * tiles_n);",
                "  item -= matrix * (tiles_m * tiles_n);",
                f"  {', '.join(matrix_coordinates(own.batches))};",
            ]
    lines += ["}", *in_raster(work)]
    names = ["section", "b_m", "b_n", *batches]
    return Text(
        block(*lines),
        f"{one.statement}[i]: the i-th output tile of this block, and whose it is. Groups of "
        f"{work.group} along {work.along}.",
        (f"int {', '.join(f'{name} = 0' for name in names)};",),
    )


# --- leaves --------------------------------------------------------------------------------------
def render_all(plan: KernelPlan, place: str, depth: int) -> list[str]:
    """The leaves of a place, for the tiles of all sections."""
    own = [leaf for leaf in plan.leaves if leaf.place == place and not leaf.section]
    every = {leaf.statement: _texts(plan, leaf) for leaf in own}
    helps = {leaf.statement for leaf in own if every[leaf.statement][0].parameters is not None}
    # Helpers call each other: they are written once together, or in the branches that call them.
    apart = any(len(set(every[name])) > 1 for name in helps)
    lines: list[str] = []
    for leaf in own:
        texts = every[leaf.statement]
        if leaf.statement in helps and apart:
            continue
        helpers = [other for other in own if other.statement in helps] if apart else []
        calls = any(_calls(text, helper) for text in texts for helper in helpers)
        if len(set(texts)) == 1 and not calls:
            lines += render(plan.sections[0], leaf, depth)
        else:
            lines += written(leaf, _branches(plan, leaf, texts, helpers), depth)
    return lines


def _texts(plan: KernelPlan, leaf: Leaf) -> list[Text]:
    """What a leaf is for each section."""
    return [kind_of(one).text(of, one) for of, one in _for_each(plan, leaf)]


def _for_each(plan: KernelPlan, leaf: Leaf) -> Iterator[tuple[KernelPlan, Leaf]]:
    for of in plan.sections:
        same = (one for one in of.leaves if one.statement == leaf.statement)
        yield of, next(one for one in same if one.place == leaf.place)


def _calls(text: Text, helper: Leaf) -> bool:
    return f"{helper.statement}(" in text.body


def _branches(plan: KernelPlan, leaf: Leaf, texts: Sequence[Text], helpers: Sequence[Leaf]) -> Text:
    """A leaf with a branch for each section that is not like one before it.

    Raises:
        VerifyError: leaves beside it would see what only one section declares.
    """
    # What stands in front of a leaf may be more than names, such as registers that others read.
    shared = len({text.declarations for text in texts}) == 1
    every = dict.fromkeys(line for text in texts for line in text.declarations)
    above = texts[0].declarations if shared else tuple(filter(_is_register, every))
    if not shared:
        _require_apart(leaf, above)
    texts = [
        replace(text, declarations=tuple(d for d in text.declarations if d not in above))
        for text in texts
    ]
    whose: dict[tuple[str, ...], list[int]] = {}
    for number, text in enumerate(texts):
        whose.setdefault(_branch(plan, number, text, helpers), []).append(number)
    lines, comments = [], dict.fromkeys(text.comment for text in texts)
    for at, (branch, numbers) in enumerate(whose.items()):
        test = " || ".join(f"section == {number}" for number in numbers)
        head = f"if ({test}) {{" if at < len(whose) - 1 else "{"
        lines += [f"{'} else ' if at else ''}{head}", *branch]
    body = "\n".join(line if line.startswith("#") else INDENT + line for line in [*lines, "}"])
    return Text(body, "; or ".join(filter(None, comments)), above)


def _is_register(line: str) -> bool:
    """Whether a declaration is of registers, which leaves of one section alone read."""
    return not line.startswith("const ")


def _require_apart(leaf: Leaf, lines: Sequence[str]) -> None:
    """Refuse registers of several sections under one name."""
    names = [name for line in lines for name in re.findall(r"(\w+)(?:\[\w+\])*[,;]", line)]
    if len(set(names)) < len(names):
        raise VerifyError(f"{leaf.statement}: sections declare other registers", where="emit")


def _branch(plan: KernelPlan, number: int, text: Text, helpers: Sequence[Leaf]) -> tuple[str, ...]:
    """The lines of a section's branch: what it declares, the helpers it calls, what it does."""
    of, bodies = plan.sections[number], [text.body]
    called: list[Leaf] = []
    for helper in reversed(helpers):
        if any(f"{helper.statement}(" in body for body in bodies):
            (one,) = (other for p, other in _for_each(plan, helper) if p is of)
            called.insert(0, one)
            bodies.append(kind_of(one).text(of, one).body)
    lines = [INDENT + line for line in text.declarations]
    for one in called:
        lines += render(of, one, 1)
    body = [INDENT + text.body] if text.inline else text.body.splitlines()
    return (*lines, *body)
