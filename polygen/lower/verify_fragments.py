"""Checks that fragments which consumers compute are what the program's statements say.

1. The statements are found in the program again: a leaf computes them in their order, on what the
   match says that they read.
2. Elements come from the places of the ring where the copy engine put them, other arrays' from the
   program's addresses, for all strides and coordinates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from polygen.errors import VerifyError
from polygen.frontend.program import Tensor
from polygen.hardware.formula import value
from polygen.lower.computed import group
from polygen.lower.fragment_proofs import prove
from polygen.lower.fragments import Make
from polygen.lower.making import ends_whole, pairs_of, runs
from polygen.lower.plan import KernelPlan
from polygen.lower.verify_computed import check_statements
from polygen.poly.elements import Along
from polygen.poly.register_operands import kept

Address = Callable[[Tensor, tuple[Along, ...], str, dict[str, str]], None]


def check_fragments(plan: KernelPlan, of: Make, check_address: Address) -> None:
    """Check the fragments of one operand.

    Args:
        plan: the kernel.
        of: what makes them.
        check_address: refuses a formula over `row` and `column` that is not where an index is.

    Raises:
        VerifyError: with what differs.
    """
    operand, where = plan.match.operand(of.operand), plan.entry
    fragment = operand.fragment
    if fragment is None or fragment.name != of.name or of.tensor != operand.tensor:
        raise VerifyError(f"make_{of.operand} computes {of.tensor.name}", where=where)
    made = fragment.prologue
    check_statements(plan, made, fragment.value)
    if of.statements != made.statements or of.coordinates != made.coordinates:
        raise VerifyError(f"make_{of.operand} computes other statements", where=where)
    if of.dtype != made.dtype or of.dtype != plan.atom.a.dtype or of.packed != fragment.packed:
        raise VerifyError(f"make_{of.operand} makes {of.dtype}", where=where)
    tile = (plan.tiles.cta[0], plan.tiles.cta[2])
    extents = (operand.extent(operand.role), fragment.depth)
    if (of.tile, of.extents) != (tile, extents):
        raise VerifyError(f"make_{of.operand} ends at {of.extents}", where=where)
    if of.ends_whole and not ends_whole(fragment.depth, tile[1] * plan.tiles.split):
        raise VerifyError(f"make_{of.operand} has whole k tiles of {fragment.depth}", where=where)
    if of.pairs is not None and of.pairs != pairs_of(of):
        raise VerifyError(f"make_{of.operand} computes other pairs", where=where)
    _check_k(plan, of)
    prove(of, plan.buffer(of.buffer).matrix, plan.atom)
    others = [one for one in made.reads if one.name != of.name]
    if [one.name for one in of.beside] != [one.name for one in others]:
        raise VerifyError(f"make_{of.operand} reads {of.beside}", where=where)
    for beside, one in zip(of.beside, others, strict=True):
        if not one.tensor.dims:
            continue
        ahead = one in kept(operand, plan.tiles.cta[2])
        counts = {"m": plan.tiles.atoms[0], "s": plan.tiles.k_steps, "": 0}
        if bool(beside.kept) != ahead or beside.count != counts[beside.along]:
            raise VerifyError(f"{one.tensor.name} is read {beside.count} times ahead", where=where)
        per = (group(one, operand.role), group(one, "k"))
        if beside.per != per or beside.tensor != one.tensor:
            raise VerifyError(f"{one.tensor.name} is read in groups of {beside.per}", where=where)
        if beside.run > 1 and not runs(one, beside.k_step, per[1], beside.run, of.block):
            raise VerifyError(f"{beside.run} of {one.tensor} are read at once", where=where)
        row, column = (
            name if count == 1 else f"({name} / {count})"
            for name, count in zip(("row", "column"), per, strict=True)
        )
        steps = [f"{row} * {beside.row_step}", f"{column} * {beside.k_step}"]
        text = " + ".join([*beside.base, *steps])
        check_address(one.tensor, one.index, text, {operand.role: "row", "k": "column"})


def _check_k(plan: KernelPlan, of: Make) -> None:
    """K tiles are counted through the blocks that share sums, rows through the consumers."""
    split, tiles = plan.tiles.split, plan.tiles
    for rank, k, k_tiles in itertools.product(range(split), range(2), (1, 3)):
        names = {"rank": rank, "k": k, "k_tiles": k_tiles}
        if value(of.k_tile, names) != rank * k_tiles + k:
            raise VerifyError(f"k tile {of.k_tile} of block {rank}", where=plan.entry)
    for agent in range(tiles.warps[0]):
        if value(f"0{of.part}", {"group": agent}) != agent * tiles.warp[0]:
            raise VerifyError(f"rows of consumer {agent} begin at{of.part}", where=plan.entry)
