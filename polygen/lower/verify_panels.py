"""Checks of panels: who moves them, and how wide.

1. The slot of a panel holds it, and it is of the matrix that the epilogue accesses.
2. Lines of a panel run along the dim whose elements are adjacent, in accesses that the array's
   alignment allows; the threads of an agent share them, each portion once.
3. What is brought near before a tile is what the tile reads per column.

Where lanes reach their elements is proved of texts (`polygen/emit/proofs/panels.py`).
"""

from __future__ import annotations

import functools

import numpy as np

from polygen.errors import VerifyError
from polygen.hardware import formula
from polygen.hardware.matrix_layout import span_swizzle, spans
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.accesses import Step
from polygen.lower.formulas import units, value
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Finish, Line, Lines, Panel, Read, Store, Visits, Warm, Write
from polygen.lower.shares import check_share
from polygen.lower.shifted import check_shifted
from polygen.lower.verify_places import agents
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
    rows = [write for write in finish.epilogue.writes if write.kind == "row"]
    if list(finish.beside) != (rows if plan.chained is not None else []):
        raise VerifyError(f"{len(finish.beside)} results of rows are stored", where=plan.entry)
    stored = {write.name for write in finish.beside}
    matrices = [write for write in work.writes if write.name not in stored]
    results = [(e.name, e.tensor, f"result_{panel_name(work, e, n)}")
               for n, e in enumerate(matrices)]  # fmt: skip
    for made, wanted in ((finish.operands, operands), (finish.results, results)):
        said = [(one.name, one.tensor, one.buffer) for one in made]
        if said != wanted[: len(said)] or (made is finish.results and len(said) != len(wanted)):
            raise VerifyError(f"panels are {said} and not {wanted}", where=plan.entry)
    if len(finish.operands) != len([b for b in plan.buffers if b.name.startswith("panel_")]):
        raise VerifyError("a matrix is brought that nobody reads", where=plan.entry)


def _check_panel(plan: KernelPlan, of: Panel) -> None:
    """A panel has whole rows of its swizzle, and fills its slot."""
    where = f"{plan.entry}, {of.name}: {of.address}"
    if of.span not in spans() or of.columns * of.element_bytes % of.span:
        raise VerifyError(f"rows of {of.span} bytes do not fill a panel", where=where)
    if plan.buffer(of.buffer).slot_bytes != of.bytes:
        raise VerifyError(f"a slot has no {of.bytes} bytes", where=where)


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
    if line.shifted is not None:
        most = _check_shifted(line, threads, where)
    fits = line.width and most % line.width == 0 and line.width % size == 0
    if line.along != along or not fits or count * size % line.width:
        raise VerifyError(f"lines along {line.along} by {line.width} bytes", where=where)
    if line.width > chunk_bytes() or panel.bytes % (line.width * threads):
        raise VerifyError(f"{threads} threads share no lines of {line.width} bytes", where=where)
    if line.share.elements * size != line.width:
        raise VerifyError(f"portions of {line.share.elements} elements", where=where)
    for agent in range(2):
        tile = (panel.rows, panel.columns)
        check_share(line.share, tile, threads, 1, before=agent * threads)
    if int(line.share.end) % line.together:
        raise VerifyError(f"{line.together} of {line.share.end} portions at once", where=where)
    _check_portions(line, line.share.elements, where)
    if line.shifted is not None:
        _check_portions(line, 1, where)


def _check_shifted(line: Line, threads: int, where: str) -> int:
    """Rows whose elements are adjacent are moved by chunks, wherever they begin: bytes of one."""
    panel, by = line.panel, line.shifted
    if line.access.n != (Step("1"),) or line.access.rows[1] is not None or by is None:
        raise VerifyError("chunks of elements that are not adjacent", where=where)
    if by.elements != line.share.elements:
        raise VerifyError(f"chunks of {by.elements} elements", where=where)
    check_shifted(by, (panel.rows, panel.columns), panel.element_bytes, threads)
    return chunk_bytes()


def _check_portions(line: Line, elements: int, where: str) -> None:
    """Portions of so many elements lie where the swizzles of the boxes have them, in one piece."""
    panel, size = line.panel, line.panel.element_bytes
    per_box, swizzle = panel.span // size, span_swizzle(panel.span)
    row, column = np.indices((panel.rows, panel.columns // elements))
    column = column * elements
    found = formula.value(line.place, {"row": row, "column": column})
    for e in range(elements):
        box, inside = np.divmod(column + e, per_box)
        wanted = box * panel.rows * panel.span + swizzle.address(row, inside * size, panel.span)
        if not np.array_equal(found + e * size, wanted):
            raise VerifyError("portions lie in other places than the swizzle has", where=where)


def _check_warm(plan: KernelPlan, of: Warm) -> None:
    """What is brought near is what a tile reads per column, and what passes read of matrices."""
    where, tiles = f"{plan.entry}: {of.row}, {of.column}", plan.tiles
    for finish in plan.of(Finish):
        moved = {one.name for one in finish.operands}
        vectors = tuple(one for one in finish.epilogue.reads
                        if one.kind == "vector" and one.name not in moved)  # fmt: skip
        passes = [one for e in finish.epilogue.before for one in e.reads]
        if plan.schedule.epilogue.through == "lines":  # by threads, and so are panels of matrices
            passes += [one for one in finish.epilogue.reads
                       if one.name in moved and not any(one.rows)]  # fmt: skip
        matrices = {one.name: one for one in passes
                    if one.kind == "vector" and one.m and not one.shared}  # fmt: skip
        found = tuple(tuple(one.read for one in each) for each in (of.vectors, of.matrices))
        if found != (vectors, tuple(matrices.values())) or of.column != finish.column:
            raise VerifyError(f"{len(found[0])} and {len(found[1])} operands are brought near",
                              where=where)  # fmt: skip
    for own, names in agents(plan):
        for at in units(("b_m",)):
            if value(of.row, names | at) != at["b_m"] * tiles.cta[0] + own[0] * tiles.warp[0]:
                raise VerifyError(f"rows of another agent than {own} are brought near", where=where)
    if of.threads != plan.device.group_threads:
        raise VerifyError(f"{of.threads} threads of an agent", where=where)
    for one, rows in (*((o, 1) for o in of.vectors), *((o, tiles.warp[0]) for o in of.matrices)):
        per_line = plan.device.cache_line_bytes // one.read.tensor.dtype.bytes
        check_visits(one, rows, tiles.columns, per_line)
        if rows == 1 and one.count > of.threads:
            raise VerifyError(f"{one.count} lines for {of.threads} threads", where=where)


@functools.lru_cache(maxsize=64)
def check_visits(of: Visits, rows: int, columns: int, per_line: int) -> None:
    """Every line that has elements of the tile is visited, wherever rows begin and the array ends.

    Of others at most the next one is, inside of the array; and no visit could be left out.

    Args:
        of: the visits.
        rows: of the tile.
        columns: of it.
        per_line: elements of a line.

    Raises:
        VerifyError: with what is visited instead.
    """
    where = f"{of.read.tensor.name}: {of.row}, {of.column}"
    each, number = of.count // rows, np.arange(of.count)
    row, column = (
        np.broadcast_to(formula.value(text.format("visit"), {"visit": number}), number.shape)
        for text in (of.row, of.column)
    )
    wanted = np.repeat(np.arange(rows), each)
    order = np.lexsort((column, row))
    if each * rows != of.count or not np.array_equal(row[order], wanted):
        raise VerifyError(f"{of.count} visits of {rows} rows", where=where)
    in_rows = column[order].reshape(rows, each)
    visited = in_rows[0]
    if (in_rows != visited).any():
        raise VerifyError("rows are visited at other columns", where=where)
    # Wherever in a line rows begin; and the array ends in the tile, or behind it.
    shift, end, own = np.ix_(np.arange(per_line), np.arange(1, columns + per_line + 1), visited)
    lines = (shift + np.minimum(own, end - 1)) // per_line
    last = ((shift + np.minimum(end, columns) - 1) // per_line)[:, :, 0]
    tile = np.arange(each + 1)
    met = (lines[..., None] == tile) & (tile <= last[..., None, None])
    whole = np.array_equal(met.any(2).sum(2), last + 1) and (lines <= last[..., None] + 1).all()
    if not whole or not (last + 1 == each).any():
        raise VerifyError(f"visits at {', '.join(map(str, visited))} are not a line each",
                          where=where)  # fmt: skip
