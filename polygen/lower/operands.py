"""Operands: how their tiles come into shared memory, lie there, and are read.

1. Threads copy 16, 8 or 4 bytes in the background, or 2 through registers, as alignment allows, and
   load fragments with what the data proves equal to the instruction's. What is staged they write
   16 bytes at a time, whatever accesses read them; so they do with what they compute.
2. The copy engine moves boxes of one swizzle span through tensor maps; the layout is proved equal
   to what the instruction's matrix descriptors read. A tile's stored rows are cut among the blocks
   of the cluster that share it; each moves its part of every box to all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from polygen.errors import ScheduleError, UnsupportedProgram
from polygen.frontend.program import Dim
from polygen.hardware.atom import Atom
from polygen.hardware.fragment_load import atom_load
from polygen.hardware.matrix_layout import (
    GROUP_ROWS,
    MatrixLayout,
    box_rows_most,
    matrix_layout,
)
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.accesses import (
    Sliding,
    base,
    corner,
    map_axes,
    paddings,
    row_starts,
    row_step,
    steps_along,
)
from polygen.lower.computed import computed
from polygen.lower.given import Given
from polygen.lower.pixels import part_of, starts
from polygen.lower.work import Boxes, Copy, Load
from polygen.poly.by_warps import copy_parts, staging
from polygen.poly.digits import digits
from polygen.poly.match import Along, Match
from polygen.poly.operand import Operand
from polygen.poly.pixel_boxes import ONE_LINE
from polygen.poly.tiling import Tiling, share_of
from polygen.schedule.model import Schedule

K_INSIDE = "k_inside"  # of sums over several axes the k tile of the innermost one


# --- by threads ----------------------------------------------------------------------------------
def copy(
    given: Given,
    name: str,
    operand: Operand,
    asynchronous: bool,
    *,
    staged: bool = False,
    extents: tuple[int, int] | None = None,
    starts: tuple[str, str] = ("", ""),
) -> Copy:
    """The copies of one operand's footprint.

    Args:
        given: the kernel.
        name: of the operand.
        operand: what is copied.
        asynchronous: whether copies run in the background.
        staged: whether they pass through registers in two statements.
        extents: elements of its tile along m or n, and along k; None: those of the tile hierarchy.
        starts: where that begins, as `Copy.starts`.

    Raises:
        ScheduleError: stored rows are no whole chunks.
    """
    tensor, (tile, tile_k) = operand.tensor, extents or given.extents(operand)
    size = tensor.dtype.bytes
    dims = (operand.role, "k") if operand.k_contiguous else ("k", operand.role)
    made = computed(operand)
    # Of what is computed, every array that is read has steps of its own.
    rows, columns = (() if made else steps_along(tensor, operand.index, dim) for dim in dims)
    found = Copy(
        operand=name,
        tensor=tensor,
        buffer=f"ring_{name}",
        element_bytes=size,
        width=min(chunk_bytes(), operand.alignment) if asynchronous or staged or made else size,
        asynchronous=asynchronous and made is None,
        k_contiguous=operand.k_contiguous,
        role=operand.role,
        tile=tile,
        tile_k=tile_k,
        parts=copy_parts(given.tiles, given.schedule),
        ragged=operand.ragged,
        extents=(operand.extent(dims[0]), operand.extent(dims[1])),
        lie=(rows, columns),
        base=() if made else base(tensor, operand.index),
        computed=made,
        staging=staging(name) if staged and made is None else "",
        padded=() if made else paddings(tensor, operand.index, dims),
        starts=starts,
    )
    if found.columns * size % chunk_bytes():
        dim = "tile.cta.k" if operand.k_contiguous else f"tile.cta.{operand.role}"
        step = chunk_bytes() // size
        raise ScheduleError(
            f"{dim} = {found.columns} of {tensor.dtype} is {found.columns * size} bytes",
            where=f"schedule {given.schedule.name}",
            why=f"rows in shared memory are whole {chunk_bytes()}-byte chunks",
            nearest=f"Use a multiple of {step}",
        )
    return found


def load(
    given: Given, name: str, operand: Operand, own: int = 0, order: tuple[int, ...] = ()
) -> Load:
    """The fragment loads of one operand.

    Args:
        given: the kernel.
        name: of the operand.
        operand: what is loaded.
        own: elements along m or n that a warp has; 0: those of its tile.
        order: in which k is loaded, as `atom_load` has it.

    Raises:
        UnsupportedProgram: no instruction loads its storage order.
    """
    tensor, side = operand.tensor, 0 if operand.role == "m" else 1
    tiles, atom = given.tiles, given.atom
    own = own or tiles.warp[side]
    count = own // (atom.m, atom.n)[side]
    found = atom_load(atom, "ab"[side], operand.k_contiguous, count, order)
    if found is None:
        k = str(operand.extent("k"))
        raise UnsupportedProgram(
            f"{tensor.name}: {tensor.dtype} has to be contiguous along {k}",
            where=atom.name,
            why="no instruction loads the transposed fragments of 8-bit elements",
            nearest=f"Store {tensor.name} with {k} innermost",
        )
    return Load(
        operand=name,
        role=operand.role,
        buffer=f"ring_{name}",
        load=found,
        tiles=count // found.subtiles,
        warp_tile=own,
        element_bytes=tensor.dtype.bytes,
        slots=given.schedule.pipeline.fragments,
        round_to_tf32=tensor.dtype.name == "tf32" or atom.pieces > 1,
        rest=atom.fragment("ab"[side]).registers if atom.pieces > 1 else 0,
    )


# --- by the copy engine --------------------------------------------------------------------------
def major(operand: Operand) -> str:
    """The innermost dim of an operand: k, or m and n."""
    return "k" if operand.k_contiguous else "mn"


def operand_layout(
    operand: Operand, extents: tuple[int, int], schedule: Schedule, atom: Atom
) -> MatrixLayout:
    """The layout of an operand's tile, proved.

    Args:
        operand: whose.
        extents: elements of the tile along m or n, and along k.
        schedule: whose consumers read it, and whose clusters share it.
        atom: the instruction.

    Raises:
        ScheduleError: the tile has none, or blocks of a cluster cannot share it.
    """
    side = 0 if operand.role == "m" else 1
    tensor, cluster = operand.tensor, schedule.cluster
    own = operand.whole or (atom.m if side == 0 else schedule.tile.warp.n)
    where = f"schedule {schedule.name}, {tensor.name}"
    size = tensor.dtype.bytes
    field = "tile.cta.k" if operand.k_contiguous else ("tile.cta.m", "tile.warp.n")[side]
    step = atom.k // operand.packed  # stored elements of an instruction along k
    run = operand.run * size if operand.k_contiguous else 0  # bytes of a row that are of one tap
    layout = matrix_layout(major(operand), *extents, size, step, own, f"{where}, {field}", run)
    parts = _parts(operand, schedule)
    if layout.rows % (GROUP_ROWS * parts):
        raise ScheduleError(
            f"a cluster of {cluster.m} x {cluster.n} cannot share {tensor.name}",
            where=where,
            why=f"{layout.rows} stored rows of its tile are cut into {parts} groups of "
            f"{GROUP_ROWS}",
            nearest="Use a cluster of 1",
        )
    pieces, every = _pieces(operand, layout, parts), row_step(operand.index, operand.role)
    most, pixels = box_rows_most() // every, side == 0 and schedule.tile.pixels
    if not pixels and layout.rows // parts > most * pieces:  # of pixels each side has its most
        raise ScheduleError(
            f"{tensor.name}: a box of {layout.rows // parts} rows"
            + (f", every {every} of the array's" if every > 1 else ""),
            where=where,
            why=f"the copy engine moves at most {most} such rows at once",
            nearest=f"Use a tile of {most * parts}",
        )
    return layout


def boxes(given: Given, name: str, operand: Operand, layout: MatrixLayout) -> Boxes:
    """The boxes of one operand's footprint."""
    schedule, (tile, tile_k) = given.schedule, given.extents(operand)
    along, across = schedule.cluster.m, schedule.cluster.n
    parts, left = _parts(operand, schedule), operand.role == "m"
    pixels = given.match.box if left else ONE_LINE
    pieces = 1 if pixels else _pieces(operand, layout, parts)
    if operand.run and not operand.k_contiguous:  # rows of one tap each
        pieces = layout.rows // math.gcd(layout.rows, operand.run)
    box = (layout.rows // (parts * pieces), layout.span // operand.tensor.dtype.bytes)
    rows, columns = (operand.role, "k") if operand.k_contiguous else ("k", operand.role)
    k = k_place(given)
    begin = "0" if operand.whole else f"b_{operand.role} * {tile}"
    corners = {operand.role: begin, "k": f"{k} * {tile_k}"}
    part = mask = ""
    sides = {rows: box[0], columns: box[1]}
    if pixels:
        inside = part_of(pixels, box[0])
        corners |= starts(pixels, inside, f"rank / {along} * {box[0]}" if parts > 1 else "")
        sides = dict(inside.sides) | {columns: box[1]}
    if parts > 1:
        part = f"rank / {along}" if left else f"rank % {along}"
        row = f"{sum(1 << (x * along) for x in range(across))} << (rank % {along})"
        mask = row if left else f"{(1 << along) - 1} << (rank / {along} * {along})"
        if not pixels:
            corners[rows] += f" + {part} * {box[0]}"
    corners = row_starts(operand.index, corners)
    axes, dims = map_axes(operand.tensor, operand.index, dict(operand.extents), sides)
    first, *others = (
        _box_corner(given, operand, dims, corners, ahead)
        for ahead in _ahead(operand, layout.boxes, pieces, box)
    )
    # Blocks share sums, and operands are exchanged, where rows are few: what one row of tiles
    # needs, nobody reads again.
    own = all(dim in dict(operand.extents) for dim, _ in given.match.batches)
    few = (schedule.cluster.k > 1 or schedule.exchange) and own
    once = f"tiles_{'n' if left else 'm'} == 1" if few else ""
    share = f", each of {parts} blocks its part for all" if parts > 1 else ""
    if schedule.cluster.k > 1:
        share = f", each of {schedule.cluster.k} blocks its range of k"
    what = f"pixels, {pixels}," if pixels else f"of {operand.role}"
    note = (
        f"operand {name}: {operand.tensor.name}, {tile} {what} x {tile_k} of k -> "
        f"ring_{name}, {layout.boxes * pieces} box(es) of {box[0]} x {box[1]} elements by the copy "
        f"engine{share}; zeros outside the array; "
        "proved equal to what the instruction's descriptors read"
    )
    return Boxes(
        operand.tensor, f"map_{name}", f"ring_{name}", axes, layout.boxes, layout.span,
        layout.box_bytes, first, note, part, parts, mask, once, pieces, tuple(others),
        bool(others) and not operand.k_contiguous,
    )  # fmt: skip


def _ahead(operand: Operand, count: int, pieces: int, box: tuple[int, int]) -> range:
    """Where boxes that have corners of their own begin in a k tile: all of taps, else the first."""
    if not operand.run:
        return range(1)
    number, width = (count, box[1]) if operand.k_contiguous else (pieces, box[0])
    return range(0, number * width, width)


def _box_corner(
    given: Given,
    operand: Operand,
    dims: tuple[Along | Sliding, ...],
    corners: dict[str, str],
    ahead: int,
) -> tuple[str, ...]:
    """Where the box lies that begins so many indices of k behind the k tile.

    Of taps that are joined, what lies behind the last one is moved outside of the innermost axis,
    where zeros are read: others, of images, go on there. Those of rows end with the last tap.
    """
    if not operand.run:
        return corner(dims, corners)
    k = f"{corners['k']} + {ahead}" if ahead else corners["k"]
    *outer, inner = corner(dims, corners | {"k": k})
    length, tiles = operand.extent("k"), given.tiles
    assert isinstance(length, int)  # as digits have it
    if operand.k_contiguous and length % (tiles.cta[2] * tiles.split):
        inner = f"{inner} + {operand.run} * (({k}) / {length})"
    return (*outer, inner)


def _pieces(operand: Operand, layout: MatrixLayout, parts: int) -> int:
    """Pieces that boxes of a block's own are cut into, as the copy engine moves so many rows.

    They are of whole swizzle patterns, so that each lies where the whole box would have its rows.
    """
    count = -(-layout.rows * row_step(operand.index, operand.role) // box_rows_most())
    return count if parts == 1 and layout.rows % (GROUP_ROWS * count) == 0 else 1


def k_place(given: Given) -> str:
    """Which k tile of the innermost summed axis the block's k-th is."""
    return K_INSIDE if given.match.sums else k_of_all(given.tiles)


def walk(
    match: Match, tiles: Tiling, size: Callable[[Dim], str] = str
) -> tuple[tuple[str, str], ...]:
    """Where the block's k-th tile lies in sums over several axes: dims, and formulas over k.

    Of blocks that share sums the last ranges may go on behind the last tile: then the axes stay at
    their end, and the tile is one behind the innermost axis.

    Args:
        match: the products.
        tiles: the tile hierarchy.
        size: of a dim, as C.
    """
    if not match.sums:
        return ()
    (depth,), tile = match.depths, tiles.cta[2]
    last = (
        str(-(-depth // tile))
        if isinstance(depth, int)
        else (f"(({size(depth)} + {tile - 1}) / {tile})")
    )
    names = [*(dim for dim, _ in match.sums), K_INSIDE]
    found = digits(k_of_all(tiles), [*(size(extent) for _, extent in match.sums), last])
    if tiles.split > 1:
        most = f"({size(match.sums[0][1])} - 1)"
        found[-1] = f"{found[-1]} + max({found[0]} - {most}, 0) * {last}"
        found[0] = f"min({found[0]}, {most})"
    return tuple(zip(names, found, strict=True))


def k_of_all(tiles: Tiling) -> str:
    """Which of all k tiles the block's k-th is: blocks that share sums have a range each."""
    if tiles.split == 1:
        return "k"
    return f"({share_of(tiles)} * {tiles.part_tiles} + k)"


def _parts(operand: Operand, schedule: Schedule) -> int:
    """Blocks of the cluster that share an operand's tile."""
    return schedule.cluster.n if operand.role == "m" else schedule.cluster.m
