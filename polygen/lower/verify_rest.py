"""Checks of what goes on with the sums of a product: it computes what the program says, whole.

1. What is between the products is what the program says of every sum, on its own fragment.
2. The products beside and behind have the columns that the tile program's cells have, and are of
   one right operand each.
"""

from __future__ import annotations

from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan
from polygen.lower.rest import conversion
from polygen.lower.rest_work import Convert
from polygen.lower.work import Product
from polygen.poly.kernel_parts import main_loop


def check_rest(plan: KernelPlan) -> None:
    """Check the leaves of what goes on with sums; nothing where nothing does.

    Raises:
        VerifyError: with what differs.
    """
    rest, found = plan.match.rest, plan.of(Convert)
    loop = main_loop(plan.match).rest
    if rest is None or loop is None:
        if found:
            raise VerifyError("a product that is none of the program's", where=plan.entry)
        return
    wanted = conversion(plan.match, loop, plan.tiles, plan.atom)
    if found != (wanted,) or rest.columns != wanted.groups * plan.atom.n:
        raise VerifyError(
            f"{loop.last.left} is not what the program makes of {rest.middle.write.name}",
            where=plan.entry,
        )
    (main,) = plan.match.products
    sums = {
        (main.left, main.right): ("sum", 0),
        (loop.middle.left, loop.middle.right): (loop.middle.called("sum"), rest.padded),
        (loop.last.left, loop.last.right): ("sum", 0),
    }
    made = {one.operands: (one.total, one.columns) for one in plan.of(Product)}
    if made != sums:
        raise VerifyError(f"products add to {made}, and not to {sums}", where=plan.entry)
