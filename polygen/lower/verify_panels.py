"""Checks of panels: where lanes and threads reach their elements, who moves them, and how wide.

1. A lane's access to a panel is where the panel's swizzle has the lane's elements, in every group
   of columns and in both halves of its rows.
2. The slot of a panel holds it, and it is of the matrix that the epilogue accesses.
3. Lines of a panel run along the dim whose elements are adjacent, in accesses that the array's
   alignment allows; the threads of an agent share them, each portion once.
4. What is brought near before a tile is what the tile reads per column.
"""

from __future__ import annotations

import itertools

import numpy as np

from polygen.errors import VerifyError
from polygen.hardware import formula
from polygen.hardware.device import common_facts
from polygen.hardware.matrix_layout import span_swizzle, spans
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.accesses import Step
from polygen.lower.lanes import matrix_lanes
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Finish, Line, Lines, Panel, Read, Store, Warm, Write
from polygen.poly.results import panel_name


def panels(plan: KernelPlan) -> tuple[Panel, ...]:
    """The panels of a plan, each once."""
    found: list[Panel] = []
    for finish in plan.of(Finish):
        found += [*finish.operands, *finish.results]
    return tuple(found)


def check_panels(plan: KernelPlan) -> None:
    """Check the panels of a kernel, and the leaves that move them.

    Raises:
        VerifyError: with the panel, and what is wrong with it.
    """
    for finish in plan.of(Finish):
        _check_named(plan, finish)
    known = panels(plan)
    for one in known:
        _check_panel(plan, one)
    for leaf in plan.leaves:
        if isinstance(leaf.work, Store):
            moved = [panel for panel, _ in leaf.work.panels]
        elif isinstance(leaf.work, Lines):
            moved = [line.panel for line in leaf.work.moved]
            _check_lines(plan, leaf, leaf.work)
        elif isinstance(leaf.work, Warm):
            _check_warm(plan, leaf.work)
            continue
        else:
            continue
        if any(one not in known for one in moved) or len(set(moved)) != len(moved):
            raise VerifyError(f"{leaf.statement} moves panels that nobody makes", where=plan.entry)


def _check_named(plan: KernelPlan, finish: Finish) -> None:
    """Panels are those of the matrices that are read and of the results, in their order."""
    work = plan.work
    operands = [(e.name, e.tensor, f"panel_{panel_name(work, e, n)}")
                for n, e in enumerate(work.matrices)]  # fmt: skip
    results = [(e.name, e.tensor, f"result_{panel_name(work, e, n)}")
               for n, e in enumerate(work.writes)]  # fmt: skip
    for made, wanted in ((finish.operands, operands), (finish.results, results)):
        said = [(one.name, one.tensor, one.buffer) for one in made]
        if said != wanted[: len(said)] or (made is finish.results and len(said) != len(wanted)):
            raise VerifyError(f"panels are {said} and not {wanted}", where=plan.entry)
    if len(finish.operands) != len([b for b in plan.buffers if b.name.startswith("panel_")]):
        raise VerifyError("a matrix is brought that nobody reads", where=plan.entry)


def _check_panel(plan: KernelPlan, of: Panel) -> None:
    """Every access of a warp to a panel is where the swizzle has the lanes' elements."""
    where, atom = f"{plan.entry}, {of.name}: {of.address}", plan.atom
    if of.span not in spans() or of.columns * of.element_bytes % of.span:
        raise VerifyError(f"rows of {of.span} bytes do not fill a panel", where=where)
    if plan.buffer(of.buffer).slot_bytes != of.bytes:
        raise VerifyError(f"a slot has no {of.bytes} bytes", where=where)
    table, swizzle = atom.c.table[: common_facts()["warp_size"]], span_swizzle(of.span)
    rows, byte, group = table[:, 0, 0], of.element_bytes * table[:, 0, 1], of.element_bytes * atom.n
    half = int(table[0, 2, 0] - table[0, 0, 0])
    if of.element_bytes == 2:  # each lane gives the address of a row of a matrix
        rows, chunks = matrix_lanes(atom)
        byte, group = chunk_bytes() * chunks, chunk_bytes()
    if of.step != (of.span // group, group) or of.half_bytes != half * of.span:
        raise VerifyError(f"lanes go on by {of.step} and {of.half_bytes} bytes", where=where)
    quarters = atom.c.table[:: common_facts()["warp_size"], 0, 0]
    words = 2 if of.element_bytes == 2 else 1
    lane = np.arange(common_facts()["warp_size"])
    for quarter, first in itertools.product(quarters, range(0, of.span, words * group)):
        found = formula.value(of.address, {"lane": lane, "quarter": int(quarter)}) ^ first
        for offset in (0,) if of.element_bytes == 2 else (0, half):
            wanted = swizzle.address(rows + offset + int(quarter), byte + first, of.span)
            if not np.array_equal(found + offset * of.span, wanted):
                raise VerifyError("lanes reach other places than the swizzle has", where=where)


def _check_lines(plan: KernelPlan, leaf: Leaf, of: Lines) -> None:
    """Who moves lines, which way, and how wide."""
    place = next(tree.place for tree in plan.trees if tree.place.name == leaf.place)
    if of.threads != place.threads:
        raise VerifyError(f"{of.threads} threads move lines", where=f"{plan.entry}, {leaf.op}")
    for line in of.moved:
        if isinstance(line.access, Read) != (leaf.op == "fetch") or (
            isinstance(line.access, Write) != (leaf.op == "store")
        ):
            raise VerifyError(f"{leaf.op} of {line.panel.name}", where=plan.entry)
        _check_line(plan, line, of.threads)


def _check_line(plan: KernelPlan, line: Line, threads: int) -> None:
    """A line runs along the dim whose elements are adjacent; wide accesses are aligned."""
    panel, where = line.panel, f"{plan.entry}, {line.panel.name}"
    size, adjacent = panel.element_bytes, line.access.kind == "vector"
    along = "m" if not adjacent and line.access.m == (Step("1"),) else "n"
    elements = {e.name: e for e in (*plan.work.reads, *plan.work.writes)}
    most = max(size, elements[line.access.name].alignment) if adjacent else size
    count = panel.rows if along == "m" else panel.columns
    fits = line.width and most % line.width == 0 and line.width % size == 0
    if line.along != along or not fits or count * size % line.width:
        raise VerifyError(f"lines along {line.along} by {line.width} bytes", where=where)
    if line.width > chunk_bytes() or panel.bytes % (line.width * threads):
        raise VerifyError(f"{threads} threads share no lines of {line.width} bytes", where=where)


def _check_warm(plan: KernelPlan, of: Warm) -> None:
    """What is brought near is what a tile reads per column, from its first column on."""
    for finish in plan.of(Finish):
        moved = {one.name for one in finish.operands}
        reads = tuple(one for one in finish.epilogue.reads
                      if one.kind in ("vector", "strided") and one.name not in moved)  # fmt: skip
        if (of.reads, of.column, of.columns) != (reads, finish.column, plan.tiles.columns):
            raise VerifyError(f"{len(of.reads)} operands are brought near, of {of.columns} columns",
                              where=f"{plan.entry}: {of.column}")  # fmt: skip
