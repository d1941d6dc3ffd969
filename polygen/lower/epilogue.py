"""The way out: the epilogue's accesses in the kernel's terms, vectors of a warp, panels.

1. Every access gets its strides by argument, and the bytes of one access.
2. Where a lane's sums belong follows from the instruction's fragment map, as formulas over `lane`.
3. Panels are portions of a consumer's tile; a lane reaches its elements in one by a formula that is
   proved against the fragment map and the panel's swizzle.
"""

from __future__ import annotations

import math

import numpy as np

from polygen.hardware.device import common_facts
from polygen.hardware.matrix_layout import span_swizzle, spans
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.accesses import Step, base, corner, map_axes, steps_along
from polygen.lower.buffers import Buffer
from polygen.lower.computed import rows_of
from polygen.lower.folds import fold_parts
from polygen.lower.given import Given
from polygen.lower.lanes import closed_form, flat_form, panel_lanes
from polygen.lower.pixels import part_of, starts
from polygen.lower.realign_work import WORD
from polygen.lower.result_work import (
    Epilogue,
    Finish,
    Line,
    Lines,
    Panel,
    Read,
    Store,
    Visits,
    Warm,
    Write,
)
from polygen.lower.shares import line_share, vector_share
from polygen.lower.shifted import shifted
from polygen.lower.tallies import given_read
from polygen.lower.work import Boxes
from polygen.poly.fold_parts import HELD
from polygen.poly.pointwise import Element, Pointwork
from polygen.poly.realign_program import SOURCES
from polygen.poly.results import row_vectors
from polygen.poly.tiling import Panels, Tiling, completed, in_pass, share_of

_WIDEST = 16  # bytes of one access of a thread
_IN_FLIGHT = 8  # registers of a thread with reads that are on their way together
_BESIDE = 72  # registers that a consumer needs beside its sums and what is on its way


def epilogue(given: Given) -> Epilogue:
    """The fused statements, with the vectors that lanes finish; passes go before the last one."""
    before: list[Epilogue] = []
    for number, work in enumerate(given.work.before):
        before.append(_of_pass(given, work, in_pass("", number), tuple(before)))
    return _of_pass(given, given.work, "", tuple(before))


def _of_pass(given: Given, work: Pointwork, suffix: str, before: tuple[Epilogue, ...]) -> Epilogue:
    made = {fold.value: fold for one in before for fold in one.folds}
    schedule, tiles, atom = given.schedule, given.tiles, given.atom
    rows = row_vectors(given.program, schedule)
    table = atom.c.table
    staged = schedule.epilogue.through == "smem"
    first = table[: common_facts()["warp_size"], 0, :]  # of a warpgroup, its first warp
    # The warps of a warpgroup hold a quarter of the rows each.
    inside = " + quarter" if atom.scope == "warpgroup" else ""
    return Epilogue(
        staged=staged,
        vector=rows.vector,
        batch=rows.batch,
        fixed_column=staged and rows.lanes % (tiles.warp[1] // rows.vector) == 0,
        reads=tuple(given_read(given, one, _read(one, rows.vector)) for one in work.reads),
        statements=work.statements,
        sums=_sums(given, work),
        writes=tuple(
            Write(
                w.tensor,
                w.kind,
                *_strides(w),
                _width(w, rows.vector),
                base(w.tensor, w.index),
                w.name,
                (rows_of(w, "m"), rows_of(w, "n")),
            )
            for w in work.writes
        ),
        row_base=f"b_m * {tiles.cta[0]} + w_m * {tiles.warp[0]}{inside}",
        column_base=f"b_n * {tiles.cta[1]} + w_n * {tiles.warp[1]}{own_columns(tiles)}",
        row_of_lane=closed_form(first[:, 0]),
        column_of_lane=closed_form(first[:, 1]),
        element_offsets=tuple((int(r), int(c)) for r, c in table[0] - first[0]),
        coordinates=work.coordinates,
        folds=fold_parts(given, work.folds),
        suffix=suffix,
        known=tuple(made[name] for name in work.known),
        before=before,
        holds=(work.holds, in_pass(HELD, len(before))) if work.holds else None,
        sizes=work.sizes,
        sharing=tiles.warps[1],
        folding=work.folding,
        streamed=schedule.of_elements,
        share=vector_share(tiles.warp, rows.vector, rows.lanes, rows.batch) if staged else None,
    )


def _sums(given: Given, work: Pointwork) -> tuple[tuple[str, str], ...]:
    """What is computed from, with the registers that it is in: sums, or what a pass has left."""
    value, left_by = work.takes
    if value:
        return ((value, in_pass(HELD, left_by)),)
    called = completed(given.tiles)
    return tuple(
        (one.contraction.write.name, product.called(called))
        for one, product in zip(given.match.products, given.tree.main.products, strict=True)
    )


def _read(element: Element, vector: int) -> Read:
    if element.kind == "scalar":
        return Read(element.name, element.tensor, "scalar", (), (), 0)
    width, start = _width(element, vector), base(element.tensor, element.index)
    rows = rows_of(element, "m"), rows_of(element, "n")
    return Read(element.name, element.tensor, element.kind, *_strides(element), width, start, rows)


def _strides(element: Element) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Elements along m, and along n."""
    tensor, index = element.tensor, element.index
    return steps_along(tensor, index, "m"), steps_along(tensor, index, "n")


def _width(element: Element, vector: int) -> int:
    """Bytes per access: what the alignment allows, at most the whole vector, at most 16."""
    return min(_WIDEST, element.alignment, vector * element.tensor.dtype.bytes)


# --- panels --------------------------------------------------------------------------------------
def own_part(tiles: Tiling, axis: int, agent: str, step: int) -> str:
    """Where an agent's part of a tile begins along m (0) or n (1), as a term; "" at 0.

    Args:
        tiles: of which each consumer that cooperates has one warp tile.
        axis: 0 or 1.
        agent: formula for the agent.
        step: from one part to the next.
    """
    return f" + {agent} * {step}" if tiles.warps[axis] > 1 else ""


def own_columns(tiles: Tiling) -> str:
    """Where a block's columns of a tile begin that several finish, as a term; "" if one does."""
    return f" + {share_of(tiles)} * {tiles.share}" if tiles.split > 1 else ""


def tile_corner(tiles: Tiling, agent: str) -> tuple[str, str]:
    """The row and the column where an agent's tile begins."""
    return (
        f"b_m * {tiles.cta[0]}{own_part(tiles, 0, agent, tiles.warp[0])}",
        f"b_n * {tiles.cta[1]}{own_part(tiles, 1, agent, tiles.warp[1])}{own_columns(tiles)}",
    )


def panel(given: Given, element: Element, buffer: Buffer, chosen: Panels, counter: str) -> Panel:
    """One matrix of the epilogue, an operand or a result; `counter`: of its slots."""
    atom = given.atom
    size = element.tensor.dtype.bytes
    span = next(s for s in spans() if chosen.columns * size % s == 0)
    lanes = panel_lanes(atom, size, span)
    proved = given.tree.synchronised.program.buffer(buffer.name).slot
    slot = f"{counter}.slot"
    if proved is not None:
        slot = f"p % {buffer.slots}"  # as the tile program says, of the panel's number
        assert proved[1] == f"p mod {buffer.slots}"
    return Panel(
        name=element.name,
        tensor=element.tensor,
        buffer=buffer.name,
        slot=slot,
        rows=atom.m,
        columns=chosen.columns,
        element_bytes=size,
        span=span,
        address=lanes.address,
        step=lanes.step,
        half_bytes=lanes.half_bytes,
    )


def panel_corner(given: Given, of: Panel, agent: str) -> dict[str, str]:
    """Where panel p of an agent's tile begins along m and n."""
    row, column = tile_corner(given.tiles, agent)
    per_block = given.tiles.columns // of.columns
    return {
        "m": f"{row} + p / {per_block} * {of.rows}",
        "n": f"{column} + p % {per_block} * {of.columns}",
    }


def _first_row(given: Given, of: Panel, agent: str) -> str:
    """The row of a tile that panel p of an agent begins with."""
    per_block = given.tiles.columns // of.columns
    own = own_part(given.tiles, 0, agent, given.tiles.warp[0]).removeprefix(" + ")
    return " + ".join([*([own] if own else []), f"p / {per_block} * {of.rows}"])


def panel_boxes(given: Given, element: Element, of: Panel, agent: str, direction: str) -> Boxes:
    """The boxes of panel p of an agent's tile; direction "in" or "out"."""
    rows, columns = of.box
    sides, begins = {"m": rows, "n": columns}, panel_corner(given, of, agent)
    if given.match.box:
        own = part_of(given.match.box, rows)
        sides = dict(own.sides) | {"n": columns}
        begins |= starts(given.match.box, own, _first_row(given, of, agent))
    axes, dims = map_axes(of.tensor, element.index, given.sizes, sides)
    return Boxes(
        of.tensor, f"map_{direction}_{of.name}", of.buffer, axes, of.boxes, of.span,
        of.rows * of.span, corner(dims, begins),
        f"{of.tensor.name} -> {of.buffer}, {of.rows} x {of.columns}",
    )  # fmt: skip


def finish(
    given: Given,
    out: Epilogue,
    operands: tuple[Panel, ...],
    results: tuple[Panel, ...],
) -> Finish:
    """How a warpgroup turns sums into panels of results."""
    tiles, atom = given.tiles, given.atom
    table = atom.c.table[: common_facts()["warp_size"]]
    row, column = tile_corner(tiles, "group")
    lane_row = flat_form(table[:, 0, 0])
    return Finish(
        epilogue=out,
        operands=operands,
        results=results,
        column=column,
        first_row=f"{row} + block * {atom.m} + quarter + {lane_row}",
        lane_column=flat_form(np.asarray(table[:, 0, 1])),
    )


def lines(given: Given, out: Epilogue, panels: tuple[Panel, ...], agent: str) -> Lines:
    """Panels that the threads of a warpgroup move, operands or results."""
    elements = {e.name: e for e in (*given.work.reads, *given.work.writes)}
    accesses: dict[str, Read | Write] = {read.name: read for read in out.reads}
    accesses |= {write.name: write for write in out.writes}
    spare = _spare(given)  # two chunks are on their way for each portion
    roomy, found = spare >= SOURCES * chunk_bytes() // WORD, []
    for one in panels:
        element, access = elements[one.name], accesses[one.name]
        start, along, width = panel_corner(given, one, agent), "n", one.element_bytes
        if element.kind == "vector":
            width = max(width, min(_WIDEST, element.alignment))
        elif access.m == (Step("1"),):
            along = "m"
        tile, threads = (one.rows, one.columns), given.device.group_threads
        shift, most = None, _IN_FLIGHT
        if element.kind == "vector" and access.n == (Step("1"),) and access.rows[1] is None:
            shift = shifted(tile, one.element_bytes, width, threads)
        if shift is not None and (roomy or not given.work.matrices):
            width, most = chunk_bytes(), max(spare, _IN_FLIGHT)
        else:
            shift = None
        share = line_share(tile, width // one.element_bytes, threads, along)
        words = max(1, width // WORD) * (1 if shift is None else SOURCES)
        count = int(share.end)
        together = max(n for n in (1, 2, 4, 8) if n == 1 or (count % n == 0 and n * words <= most))
        corner, place = (start["m"], start["n"]), panel_place(one)
        found.append(Line(one, access, along, width, *corner, share, place, together, shift))
    return Lines(tuple(found), given.device.group_threads)


def _spare(given: Given) -> int:
    """Registers of a consumer beside its sums and what it needs besides."""
    sums = math.prod(given.tiles.warp) // given.device.group_threads * len(given.match.products)
    return given.schedule.roles.consumer_registers - sums - _BESIDE


def panel_place(of: Panel) -> str:
    """The byte of a panel where the element at `row` and `column` is, by its swizzle."""
    size, swizzle, elements = chunk_bytes(), span_swizzle(of.span), of.span // of.element_bytes
    inside = "column" if of.boxes == 1 else f"column % {elements}"
    byte = f"{inside} * {of.element_bytes}"
    spread = f"(row >> {swizzle.shift} & {swizzle.mask})"
    box = "" if of.boxes == 1 else f"column / {elements} * {of.rows * of.span} + "
    chunk = f"({byte} / {size} ^ {spread})"
    return f"{box}row * {of.span} + ({chunk} * {size} + {byte} % {size})"


def warm(given: Given, work: Finish) -> Warm:
    """What a tile's epilogue reads per column, and of matrices passes in front of it, or threads
    that fetch panels.
    """
    moved = {one.name for one in work.operands}
    in_lines = given.schedule.epilogue.through == "lines"
    passes = (read for one in work.epilogue.before for read in one.reads)
    panels = (read for read in work.epilogue.reads if in_lines and read.name in moved)
    matrices = {
        read.name: read
        for read in (*passes, *(one for one in panels if one.rows == (None, None)))
        if read.kind == "vector" and read.m and not read.shared
    }
    row, _ = tile_corner(given.tiles, "group")
    vectors = (read for read in column_reads(work) if read.kind == "vector")
    return Warm(
        tuple(_visits(given, read, 1) for read in vectors),
        tuple(_visits(given, read, given.tiles.warp[0]) for read in matrices.values()),
        row,
        work.column,
        given.device.group_threads,
    )


def _visits(given: Given, read: Read, rows: int) -> Visits:
    """An element in every line: one more than columns fill, as rows may begin anywhere in one."""
    per_line = given.device.cache_line_bytes // read.tensor.dtype.bytes
    count = -(-given.tiles.columns // per_line) + 1
    if rows == 1:
        return Visits(read, count, "0", f"{{}} * {per_line}")
    return Visits(read, rows * count, f"{{}} / {count}", f"{{}} % {count} * {per_line}")


def column_reads(work: Finish) -> list[Read]:
    """The reads that go past the panels and depend on the column."""
    moved = {one.name for one in work.operands}
    return [
        r for r in work.epilogue.reads if r.kind in ("vector", "strided") and r.name not in moved
    ]


def store(given: Given, results: tuple[Panel, ...]) -> Store:
    """The panels of results, written by the copy engine."""
    written = {element.name: element for element in given.work.writes}
    return Store(
        tuple((one, panel_boxes(given, written[one.name], one, "group", "out")) for one in results)
    )
