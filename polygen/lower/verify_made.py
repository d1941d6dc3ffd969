"""Checks of the launch before a kernel: arrays are copied, and operands are what the program says.

Blocks run the tree that was proved of their shape (`polygen.lower.verify_blocks`); bytes are
shifted as far as rows are.

What an operand's chunks are computed of, and how, is checked as of operands that threads compute on
their way to shared memory (`polygen.lower.verify_computed`). Beside it: rows of the operand and
their elements are all of its axes, each once, so that what is proved of rows and chunks is said of
all of its elements; and the kernel multiplies the array that was made.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.errors import VerifyError
from polygen.lower.begins import before_early
from polygen.lower.computed import Fetch
from polygen.lower.plan import CopyPlan, KernelPlan, MakePlan, MakeRowsPlan
from polygen.lower.realign_work import RowCopy, RowMake
from polygen.lower.sync_work import Grids
from polygen.lower.verify_accesses import check_address_in
from polygen.lower.verify_blocks import check_block
from polygen.lower.verify_computed import check_chunks, check_statements
from polygen.lower.verify_made_rows import check_made_rows
from polygen.poly.elements import Along
from polygen.poly.make_program import make_program
from polygen.poly.realign_program import WHERE, realign_program
from polygen.poly.tile_program import TileProgram
from polygen.poly.turn_program import TurnShape, turn_program


def check_preceding(plan: KernelPlan) -> None:
    """Check the launch that goes before; nothing where none does.

    Raises:
        VerifyError: with the array or the operand, and what differs.
    """
    found = plan.realign.every if plan.realign is not None else ()
    if tuple(one.tensor for one in plan.copies) != found:
        raise VerifyError(f"arrays before the kernel are not {found}", where=plan.entry)
    early = before_early(plan)
    for at, one in enumerate(plan.copies):
        said = (plan.realign is not None and plan.realign.dependent,
                one.tree.synchronised.program.dependent)  # fmt: skip
        if said != (early, early):
            raise VerifyError(f"what goes before begins early: {said}, not {early}", where=WHERE)
        if isinstance(one, MakeRowsPlan):
            check_made_rows(plan, one)
            continue
        works = [leaf.work for leaf in one.leaves if isinstance(leaf.work, RowCopy | RowMake)]
        if not works or any(work != works[0] for work in works):
            raise VerifyError(f"leaves of {one.tensor.name} differ", where=plan.entry)
        work, copied = works[0], isinstance(one, CopyPlan)
        wanted = _program(work)
        if isinstance(work, RowCopy) != copied or one.tree.synchronised.program != wanted:
            raise VerifyError(f"blocks of {one.tensor.name} do not do {work.shape}", where=WHERE)
        if isinstance(work, RowCopy):
            check_block(plan.entry, one, WHERE, Grids(work.pointers))
            if work.item != one.tensor.dtype.bytes:
                raise VerifyError(f"{one.tensor} has elements of {work.item} bytes", where=WHERE)
        else:
            check_block(plan.entry, one, WHERE, Grids(arrays=work.arrays))
            if work.at != at:
                raise VerifyError(f"{one.tensor.name} is number {work.at} of {at}", where=WHERE)
        if isinstance(one, MakePlan):
            check_made(plan, one)


def _program(work: RowCopy | RowMake) -> TileProgram:
    """What a block does."""
    if isinstance(work.shape, TurnShape):
        return turn_program(work.shape)
    return (realign_program if isinstance(work, RowCopy) else make_program)(work.shape)


def _is_copy(work: RowMake) -> bool:
    """Whether elements are those of one array, as they are stored there."""
    of, names = work.computed, tuple(fetch.name for fetch in work.computed.fetches)
    plain = [(one.function, one.args, one.dtype) for one in of.statements]
    stored = {fetch.tensor.dtype for fetch in of.fetches}
    return plain == [("cast", names, of.dtype)] and stored == {of.dtype}


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
    assert plan.realign is not None
    copied = tensor.name in plan.realign.turned
    if work.by_lanes != (copied or tensor.name in plan.realign.across):
        raise VerifyError(f"{tensor} is made by blocks of {work.shape}", where=plan.entry)
    if copied and not _is_copy(work):
        raise VerifyError(f"{tensor} is no array as it is", where=plan.entry)
    if work.computed.dims != ("m", "k") or work.computed.dtype != tensor.dtype:
        raise VerifyError(f"rows of {work.computed.dtype} are made of {tensor}", where=plan.entry)
    source = replace(plan, program=plan.whole)
    check_statements(source, made, tensor.name, of_all=True)
    batches = tuple(dim for dim, _ in work.outer if dim != "m")

    def check(fetch: Fetch, index: tuple[Along, ...], text: str, names: dict[str, str]) -> None:
        check_address_in(plan.entry, batches, fetch.tensor, index, text, names)

    check_chunks(source, work.computed, made, f"what makes {tensor.name}", check)
