"""Checks of what the copy engine moves: maps, boxes and corners are the program's accesses.

1. The axes of a map are the terms of the array's index (`verify_parameters`).
2. A box has the rows and columns of its buffer's tile, along the dims that the tile has them.
3. The corner of a tile's first box is where its first element is, whatever the coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polygen.errors import VerifyError
from polygen.frontend.program import Dim, Tensor
from polygen.hardware.matrix_layout import MatrixLayout
from polygen.lower.accesses import ROWS_BEFORE
from polygen.lower.formulas import ends, position, units, value
from polygen.lower.operands import K_INSIDE
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.verify_pages import check_pages
from polygen.lower.verify_panels import panels
from polygen.lower.verify_parameters import check_map_axes
from polygen.lower.work import Boxes
from polygen.poly.chain_match import KEYS, renamed
from polygen.poly.key_pages import paged_operand
from polygen.poly.key_tiles import FIRST
from polygen.poly.match import REST_RING, Along
from polygen.poly.operand import Operand
from polygen.poly.results import panel_name
from polygen.poly.tiling import share_of

Check = Callable[[Tensor, tuple[Along, ...], str, Mapping[str, str]], None]


def check_boxes(plan: KernelPlan, of: Boxes, leaf: Leaf, check: Check) -> None:
    """Check boxes that a leaf moves.

    Args:
        plan: the plan.
        of: the boxes.
        leaf: that moves them.
        check: refuses a text that is not the address of an index.

    Raises:
        VerifyError: with the array, and where its boxes begin instead of where they should.
    """
    index, tile, extents = _accessed(plan, of)
    if any(len(corner) != len(of.axes) for corner in (of.corner, *of.others)):
        raise VerifyError(f"corners {of.corner} of {len(of.axes)} axes", where=plan.entry)
    check_map_axes(plan, of, index, extents)
    _check_sides(plan, of, index)
    if of.pages or paged_operand(index) is not None:
        check_pages(plan, of, index, check)
        return
    batches = [dim for dim, _ in plan.batches]
    own = {name: 0 for name in ("group", "owner", "p", FIRST)}
    # Of blocks that share sums each has a range of k tiles, and of columns to finish.
    split, share, counted = plan.tiles.split, share_of(plan.tiles), plan.tiles.part_tiles
    ranges = [{"rank": 0, share: r, counted: n} for r in range(split) for n in range(2)]
    over = [dim for dim, _ in plan.match.sums]
    tile_of_k = K_INSIDE if over else "k"
    places = [*batches, *over, "b_m", "b_n", tile_of_k, ROWS_BEFORE]
    joined = plan.match.joined is not None  # of which `check_taps` goes through all k tiles
    outer = {*batches, *over}  # whose digits boxes may be at
    digits = [at for at in ends(places, index) if all(dim in outer for dim in at if at[dim])]
    for at in (one | own for one in (*units(places), *digits) for own in ranges):
        if joined and (at["k"] or at["rank"]):
            continue
        # Of sums over several axes `_check_walk` says which tile of which.
        k = at[tile_of_k] + (0 if over else at[share] * at[counted])
        first = at[share] * plan.tiles.share if not of.buffer.startswith("ring_") else 0
        rows = plan.match.box.along_m(tile[0])
        place = {"m": at["b_m"] * rows, "n": at["b_n"] * tile[1] + first, "k": k * tile[2]}
        place |= {dim: at[dim] for dim in (*batches, *over, ROWS_BEFORE)}
        found = [0] * len(index)
        for axis, corner in zip(of.axes, of.corner, strict=True):
            if axis.axis is not None:
                found[axis.axis] += axis.start + axis.step * value(corner, own | at)
        wanted = [position(one, place) for one in index]
        if found != wanted:
            number = next(n for n, one in enumerate(wanted) if found[n] != one)
            raise VerifyError(
                f"{leaf.statement}: boxes of {of.tensor.name} begin at {found[number]} of axis "
                f"{number} and not at {wanted[number]}",
                where=f"{plan.entry}: {', '.join(of.corner)}",
            )


def _check_sides(plan: KernelPlan, of: Boxes, index: tuple[Along, ...]) -> None:
    """Boxes have the rows and columns of their buffer's tile, along the dims that it has them."""
    where = f"{plan.entry}, {of.map}"
    (rows, columns), sides = _tile(plan, of)
    said = (of.box[0] * of.parts * of.pieces, of.count * of.span, of.box_bytes)
    if said != (rows, columns, rows * of.span):
        raise VerifyError(
            f"{of.count} boxes of {said[0]} rows of {of.span} bytes, {said[2]} apart",
            where=where,
            why=f"{of.buffer} has tiles of {rows} rows of {columns} bytes",
        )
    if plan.match.box and sides[0] == "m":  # row by row in `verify_pixels`
        return
    dims = []
    for one in of.axes:
        if one.box > 1 and one.axis is not None:
            along = index[one.axis]
            terms = [
                t
                for t in along.terms
                if t.dim in sides and t.per == 1 and t.scale == one.step * one.every
            ]
            dims.append(next((t.dim for t in terms), str(along)))
    if dims not in (list(sides), [sides[1]], [sides[0]]) and not of.pages:
        raise VerifyError(f"boxes go along {dims}, and tiles along {sides}", where=where)


def _tile(plan: KernelPlan, of: Boxes) -> tuple[tuple[int, int], tuple[str, str]]:
    """Rows, and bytes of one, of what boxes make or are made of, and the dims of both."""
    layout = plan.buffer(of.buffer).layout
    if not isinstance(layout, MatrixLayout):  # a panel
        panel = next((one for one in panels(plan) if one.buffer == of.buffer), None)
        if panel is None:
            raise VerifyError(f"nobody makes or reads panels of {of.buffer}", where=plan.entry)
        return (panel.rows, panel.columns * panel.element_bytes), ("m", "n")
    if layout.span != of.span:
        raise VerifyError(f"{of.buffer} is swizzled by {layout.span} bytes", where=plan.entry)
    shape = (layout.rows, layout.row_bytes)
    every: list[tuple[Operand, dict[str, str]]] = [
        (operand, {}) for name, operand in plan.match.operands if of.buffer == f"ring_{name}"
    ]
    if plan.scores is not None:
        every += [(one, KEYS) for name, one in plan.scores.operands if of.buffer == f"ring_{name}"]
    rest = plan.match.rest
    if rest is not None and of.buffer == f"ring_{REST_RING}":
        every.append((rest.operand, {}))
    operand, names = every[0]
    own, depth = names.get(operand.role, operand.role), names.get("k", "k")
    return shape, (own, depth) if operand.k_contiguous else (depth, own)


def _accessed(
    plan: KernelPlan, of: Boxes
) -> tuple[tuple[Along, ...], tuple[int, int, int], dict[str, Dim]]:
    """The index of what boxes move, the steps of tiles along m, n and k, the extents of dims."""
    for name, operand in plan.match.operands:
        if of.buffer == f"ring_{name}":
            rows, columns, depth = plan.tiles.cta
            if operand.whole:  # every tile has all of its columns
                columns = 0
            tiles = (rows, columns, depth // operand.packed)
            return operand.index, tiles, dict(operand.extents)
    if plan.match.rest is not None and of.buffer == f"ring_{REST_RING}":  # and all of its k
        rest = plan.match.rest.operand
        return rest.index, (*plan.tiles.cta[:2], 0), dict(rest.extents)
    for name, operand in plan.scores.operands if plan.scores is not None else ():
        if of.buffer == f"ring_{name}":
            extents = {KEYS.get(dim, dim): extent for dim, extent in operand.extents}
            return renamed(operand.index), plan.tiles.cta, extents
    kind, _, name = of.buffer.partition("_")
    elements = plan.work.matrices if kind == "panel" else plan.work.writes
    names = [panel_name(plan.work, e, at) for at, e in enumerate(elements)]
    if name not in names:
        raise VerifyError(f"nothing is moved from or to {of.buffer}", where=plan.entry)
    index = dict(zip(names, elements, strict=False))[name].index
    extents = {"m": plan.match.m, "n": plan.match.n, **dict(plan.batches)}
    return index, plan.tiles.cta, extents
