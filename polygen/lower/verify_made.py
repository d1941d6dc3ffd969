"""Checks that what the launch before a kernel makes of an operand is what the program says.

What its chunks are computed of, and how, is checked as of operands that threads compute on their
way to shared memory (`polygen.lower.verify_computed`). Beside it: rows of the operand and their
elements are all of its axes, each once, so that what is proved of rows and chunks is said of all of
its elements; and the kernel multiplies the array that was made.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.errors import VerifyError
from polygen.lower.computed import Fetch
from polygen.lower.plan import KernelPlan, MakePlan
from polygen.lower.realign_work import RowMake
from polygen.lower.verify_accesses import check_address_in
from polygen.lower.verify_computed import check_chunks, check_statements
from polygen.poly.elements import Along


def check_made(plan: KernelPlan, of: MakePlan) -> None:
    """Check one operand.

    Args:
        plan: the kernel that multiplies it.
        of: what makes it.

    Raises:
        VerifyError: with what differs.
    """
    tensor, made = of.tensor, of.operand.computed
    works = [leaf.work for leaf in of.leaves if isinstance(leaf.work, RowMake)]
    if made is None or len(works) != 1:
        raise VerifyError(f"nothing makes {tensor.name}", where=plan.entry)
    (work,) = works
    if tensor not in plan.program.inputs or work.tensor != tensor:
        raise VerifyError(f"{work.tensor} is made, and {tensor} multiplied", where=plan.entry)
    axes = [(f"{one.dim}", dim) for one, dim in zip(of.operand.index, tensor.dims, strict=True)]
    wanted = [axes[axis] for axis in reversed(tensor.order)]
    found = [("k", work.length), *work.outer]
    plain = all(one == Along(one.dim) for one in of.operand.index)
    if found != wanted or not plain or len({dim for dim, _ in axes}) != len(axes):
        raise VerifyError(
            f"rows of {tensor} are counted along {found}, fastest first, and not {wanted}",
            where=plan.entry,
        )
    if work.computed.dims != ("m", "k") or work.computed.dtype != tensor.dtype:
        raise VerifyError(f"rows of {work.computed.dtype} are made of {tensor}", where=plan.entry)
    source = replace(plan, program=plan.whole)
    check_statements(source, made, tensor.name)
    batches = tuple(dim for dim, _ in work.outer if dim != "m")

    def check(fetch: Fetch, index: tuple[Along, ...], text: str, names: dict[str, str]) -> None:
        check_address_in(plan.entry, batches, fetch.tensor, index, text, names)

    check_chunks(source, work.computed, made, f"what makes {tensor.name}", check)
