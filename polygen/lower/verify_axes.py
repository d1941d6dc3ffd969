"""Checks of sums over several axes and of windows: which k tile is which, which rows are inside."""

from __future__ import annotations

import itertools

from polygen.errors import VerifyError
from polygen.frontend.indices import size_value
from polygen.frontend.program import Dim
from polygen.lower.accesses import ROWS_BEFORE
from polygen.lower.formulas import ends, position, units, value
from polygen.lower.operands import walk
from polygen.lower.plan import KernelPlan
from polygen.lower.work import Boxes, Copy
from polygen.poly.match import Along


def check_walk(plan: KernelPlan) -> None:
    """K tiles of several axes are their tuples in order; behind the last there are none.

    Quotients and remainders by sizes: tried for all numbers of a few small ones.
    """
    formulas, (depth, *_) = walk(plan.match, plan.tiles, _named), plan.match.depths
    if not formulas:
        return
    tile, split = plan.tiles.cta[2], plan.tiles.split
    dims = [*(extent for _, extent in plan.match.sums), depth]
    free = [dim for dim in dict.fromkeys(dims) if isinstance(dim, str)]
    tried = [(1, tile, 2 * tile + 1) if dim == depth else (1, 2, 3) for dim in free]
    for chosen in itertools.product(*tried):
        sizes = dict(zip(free, chosen, strict=True))
        counts = [size_value(dim, sizes) for dim in dims]
        counts[-1] = -(-counts[-1] // tile)
        every = list(itertools.product(*map(range, counts)))
        own = -(-len(every) // split)
        names = {_named(dim): size for dim, size in sizes.items()} | {"k_tiles": own}
        found = []
        for rank, k in itertools.product(range(split), range(own)):
            at = names | {"rank": rank, "k": k, "min": min, "max": max}
            found.append(tuple(value(text, at) for _, text in formulas))
        behind = found[len(every) :]
        if found[: len(every)] != every or any(one[-1] < counts[-1] for one in behind):
            raise VerifyError(
                f"k tiles are {found[:4]}, ... and not {every[:4]}, ...",
                where=f"{plan.entry}: {', '.join(text for _, text in formulas)}",
            )


def _named(dim: Dim) -> str:
    """A size in formulas that are evaluated here."""
    return f"size_{dim}" if isinstance(dim, str) else str(dim)


def check_padding(
    plan: KernelPlan, c: Copy, index: tuple[Along, ...], dims: tuple[str, str]
) -> None:
    """Every axis with zeros around it keeps rows inside, wherever they are."""
    wanted = [(one, c.tensor.dims[axis]) for axis, one in enumerate(index) if one.padded]
    if [one.extent for one in c.padded] != [extent for _, extent in wanted]:
        raise VerifyError(
            f"zeros lie around {len(c.padded)} axes of {c.tensor.name}", where=plan.entry
        )
    fixed = [dim for dim, _ in (*plan.batches, *plan.match.sums)]
    for padding, (one, _) in zip(c.padded, wanted, strict=True):
        text = padding.place("row", "column")
        names = [*fixed, *dims]
        for at in (*units(names), *ends(names, (one,))):
            found = value(text, at | {"row": at[dims[0]], "column": at[dims[1]]})
            if found != one.at(at):
                raise VerifyError(
                    f"rows of {c.tensor.name} are kept inside at {found} and not at {one.at(at)}",
                    where=f"{plan.entry}: {text}",
                )


def check_taps(plan: KernelPlan, of: Boxes) -> None:
    """Of sums that are joined, every box of every k tile lies where its first element is read.

    The elements of a box are of one tap; what lies behind the last tap is outside of the array.
    """
    name = of.buffer.removeprefix("ring_")
    if plan.match.joined is None or not of.buffer.startswith("ring_"):
        return
    operand, tile, split = plan.match.operand(name), plan.tiles.cta[2], plan.tiles.split
    (length,), rows = plan.match.depths, not operand.k_contiguous
    width, count = (of.box[0], of.pieces) if rows else (of.box[1], of.count)
    corners = (of.corner, *of.others)
    whole = len(corners) == count and operand.run % width == 0 and count * width == tile
    if not isinstance(length, int) or not whole or (rows and of.others and not of.by_rows):
        raise VerifyError(
            f"{len(corners)} boxes of {width} of {operand.run} elements", where=f"{of.map}"
        )
    own = -(-length // (tile * split))
    fixed = {dim for dim, _ in plan.batches} | {"b_m", "b_n", ROWS_BEFORE}
    names = dict.fromkeys(("group", "owner", "p", *fixed), 0) | {"k_tiles": own}
    for rank, k, number in itertools.product(range(split), range(own), range(count)):
        first = ((rank * own if split > 1 else 0) + k) * tile + number * width
        found = [0] * len(operand.index)
        at = names | {"k": k, "rank": rank if split > 1 else 0}
        for axis, text in zip(of.axes, corners[number], strict=True):
            if axis.axis is not None:
                found[axis.axis] += axis.start + axis.step * value(text, at)
        if first >= length:
            right = _outside(of, corners[number], at)
        else:
            right = found == [position(one, {"k": first}) for one in operand.index]
        if not right:
            raise VerifyError(
                f"box {number} of k tile {k} of {operand.tensor.name} begins at {found}",
                where=f"{plan.entry}: {', '.join(corners[number])}",
            )


def _outside(of: Boxes, corner: tuple[str, ...], at: dict[str, int]) -> bool:
    """Whether a box lies outside of an axis of its map, whatever else is."""
    return any(
        isinstance(axis.extent, int) and value(text, at) >= axis.extent
        for axis, text in zip(of.axes, corner, strict=True)
    )
