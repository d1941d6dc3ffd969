"""Checks of sums over several axes and of windows: which k tile is which, which rows are inside."""

from __future__ import annotations

import itertools

from polygen.errors import VerifyError
from polygen.frontend.program import Dim
from polygen.lower.formulas import units, value
from polygen.lower.operands import walk
from polygen.lower.plan import KernelPlan
from polygen.lower.work import Copy
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
        counts = [sizes[dim] if isinstance(dim, str) else dim for dim in dims]
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


def check_padding(plan: KernelPlan, c: Copy, index: tuple[Along, ...], row: str) -> None:
    """Every axis with zeros around it keeps rows inside, wherever they are."""
    wanted = [(one, c.tensor.dims[axis]) for axis, one in enumerate(index) if one.padded]
    if [one.extent for one in c.padded] != [extent for _, extent in wanted]:
        raise VerifyError(
            f"zeros lie around {len(c.padded)} axes of {c.tensor.name}", where=plan.entry
        )
    fixed = [dim for dim, _ in (*plan.batches, *plan.match.sums)]
    for padding, (one, _) in zip(c.padded, wanted, strict=True):
        for at in units([*fixed, row]):
            found = value(padding.place("row"), at | {"row": at[row]})
            if found != one.at(at):
                raise VerifyError(
                    f"rows of {c.tensor.name} are kept inside at {found} and not at {one.at(at)}",
                    where=f"{plan.entry}: {padding.place('row')}",
                )
