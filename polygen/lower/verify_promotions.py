"""Checks that promotions multiply by the program's factors, of their own rows, columns and blocks.

1. The program says by what the sum of a block is multiplied, and how long blocks are. A leaf has
   all of these factors, each at the program's address for all strides and coordinates.
2. Every element takes the numbers of its row and column (`polygen.lower.promoting.prove`).

Where sums begin again is checked of all products (`polygen.lower.verify_overwrites`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from polygen.errors import VerifyError
from polygen.frontend.program import Tensor
from polygen.lower.formulas import units, value
from polygen.lower.plan import KernelPlan
from polygen.lower.promoting import Factor, Promote, promote, prove
from polygen.lower.work import Product
from polygen.poly.elements import Along, Element
from polygen.poly.match import Multiplied

Address = Callable[[Tensor, tuple[Along, ...], str, dict[str, str]], None]


def check_promotions(plan: KernelPlan, of: Promote, check_address: Address) -> None:
    """Check the promotions of one product.

    Args:
        plan: the kernel.
        of: its record.
        check_address: refuses a formula over `row`, `column` and `k_of_all` that is not where an
            index is.

    Raises:
        VerifyError: with what differs.
    """
    where = plan.entry
    work, product = promoted(plan, of)
    contraction = product.contraction
    names = [one.name for one in contraction.factors]
    made = [one.tensor.name for one in of.factors]
    if product.block != contraction.block or of.block != product.block or made != names:
        raise VerifyError(
            f"{of.total} is promoted by {made} every {of.block} of k, and is {contraction}",
            where=where,
        )
    extents = (plan.match.m, plan.match.n)
    called, sets = (of.inner, of.total, of.scales), _sets(plan, of)
    wanted = promote(product, called, plan.tiles, plan.atom, of.parts, extents, sets)
    if of != wanted or work.sets != sets:
        raise VerifyError(f"{of.total} is promoted as {of}, of {work.sets} set(s)", where=where)
    prove(of, plan.atom, plan.tiles)
    _check_parts(plan, of)
    for factor, element in zip(of.factors, product.factors, strict=True):
        _check_factor(factor, element, check_address)


def promoted(plan: KernelPlan, of: Promote) -> tuple[Product, Multiplied]:
    """What is added to the inner sum that is promoted, and the program's product.

    Raises:
        VerifyError: nothing is.
    """
    for work in plan.of(Product):
        for product in plan.match.products:
            if work.total == of.inner and (product.left, product.right) == work.operands:
                return work, product
    raise VerifyError(f"nothing is added to {of.inner}", where=plan.entry)


def check_sets(plan: KernelPlan) -> None:
    """Check that sums which nothing promotes have registers once.

    Raises:
        VerifyError: with a product whose k tiles take several in turns.
    """
    promoted = {one.inner for one in plan.of(Promote)}
    for work in plan.of(Product):
        if work.sets != 1 and work.total not in promoted:
            raise VerifyError(f"{work.total} has {work.sets} sets of registers", where=plan.entry)


def _sets(plan: KernelPlan, of: Promote) -> int:
    """Sets of the inner sum's registers: leaves take that of k tile `k`, which is the block's.

    Raises:
        VerifyError: the tile program has blocks in other slots.
    """
    buffer = plan.tile_program.buffer(of.inner)
    coordinates, slot = buffer.slot or ((), "")
    in_turns = coordinates and slot == f"{coordinates[-1]} mod {buffer.slots}"
    if buffer.slots > 1 and not (in_turns and of.tiles == 1):
        raise VerifyError(
            f"blocks of {of.tiles} k tiles lie in slots {buffer.slot}", where=plan.entry
        )
    return buffer.slots


def _check_parts(plan: KernelPlan, of: Promote) -> None:
    """Agents promote their own rows and columns of a tile."""
    tiles = plan.tiles
    for own in itertools.product(*map(range, tiles.warps)):
        # Warpgroups share rows or columns, and one number tells them apart.
        names = {"group": max(own), "w_m": own[0], "w_n": own[1], "rank": 0}
        for axis in range(2):
            if value(f"0{of.parts[axis]}", names) != own[axis] * tiles.warp[axis]:
                raise VerifyError(
                    f"consumer {own} promotes from{of.parts[axis]} on", where=plan.entry
                )
    for at in units(("b_m", "b_n")):
        zero = dict.fromkeys(("quarter", "lane", "group", "w_m", "w_n", "rank"), 0) | at
        found = value(of.row_of("0"), zero), value(of.column_of("0"), zero)
        if found != (at["b_m"] * tiles.cta[0], at["b_n"] * tiles.cta[1]):
            raise VerifyError(f"tiles are promoted from {found} on", where=plan.entry)


def _check_factor(factor: Factor, element: Element, check_address: Address) -> None:
    side = factor.side or "m"
    if factor.tensor != element.tensor or (side == "m" and element.axis("n") is not None):
        raise VerifyError(f"{factor.tensor.name} goes with {factor.side}", where="promotion")
    if not factor.tensor.dims:
        return
    row, k = (
        name if count == 1 else f"({name} / {count})"
        for name, count in zip(("row", "k_of_all"), factor.per, strict=True)
    )
    text = " + ".join([*factor.base, f"{row} * {factor.step}", f"{k} * {factor.k_step}"])
    check_address(factor.tensor, element.index, text, {side: "row", "k": "k_of_all"})
