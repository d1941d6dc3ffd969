"""The launch before a kernel, array by array: tile programs, and the leaves of them.

All arrays that are copied have one tile program, all operands that are made in chunks another one,
and all that are copied with their axes in another order a third one (`polygen.poly.turn_program`).
They are synchronised and proved like a kernel's (`polygen.poly.realign_program`,
`polygen.poly.make_program`); each array has leaves of its own, with its elements and its
parameters. Operands with folds over their rows are made by rows (`polygen.lower.make_rows`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from polygen.frontend.program import Dim, Program, Tensor
from polygen.hardware.device import common_facts
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.begins import before_early
from polygen.lower.block_plan import block_parts
from polygen.lower.computed import computed
from polygen.lower.make_rows import make_rows
from polygen.lower.plan import CopyPlan, KernelPlan, Leaf, MakePlan, MakeRowsPlan
from polygen.lower.realign_work import RowCopy, RowMake, word_shifts
from polygen.lower.sync_work import Grids
from polygen.lower.verify_made import check_preceding
from polygen.poly.block_tree import BlockTree, Derive, block_tree
from polygen.poly.make_program import MADE, check_making, make_program
from polygen.poly.operand import Operand
from polygen.poly.prologue import prologue, prologues
from polygen.poly.prologue_proofs import prove_prologues
from polygen.poly.realign import in_rows
from polygen.poly.realign_program import CHUNK, WHERE, RealignShape, check_copy, realign_program
from polygen.poly.realign_rows import BlockShape
from polygen.poly.row_operands import row_operands
from polygen.poly.turn_program import TURNED, TurnShape, check_turning, turn_program
from polygen.schedule.realign import ROUNDS, TOGETHER, WARPS, Realign

_HALVES = 2


def precede(plan: KernelPlan, copy: Realign | None, derived: Derive, asked: Program) -> KernelPlan:
    """The plan with the tile programs of the launch that goes before, if there is one.

    Args:
        plan: a kernel that has been verified.
        copy: which arrays are copied, and which are made; None: none.
        derived: what synchronises a tile program, derived or kept from before.
        asked: the program with the statements that compute what is made.

    Raises:
        VerifyError: a chunk is left out or written twice, something outside of its row is read, an
            operand is not what the program says, or what would be emitted does not do what the tile
            program says.
    """
    if copy is None:
        return plan
    copy = replace(copy, dependent=before_early(plan))
    dependent = copy.dependent
    shape = plain_shape(plan.device.warp_size, dependent=dependent)
    by_rows = row_operands(asked)

    @cache
    def turned(turn: TurnShape) -> BlockTree:
        return block_tree(turn, turn_program, check_turning, WHERE, derived)

    @cache
    def tree(what: str) -> BlockTree:
        if what == "copies":
            return block_tree(shape, realign_program, check_copy, WHERE, derived)
        return block_tree(shape, make_program, check_making, WHERE, derived)

    def part(at: int, one: Tensor) -> CopyPlan | MakePlan | MakeRowsPlan:
        if one in copy.tensors:
            return _copy(one, shape, tree("copies"))
        if one.name in copy.by_rows:
            words, warps = plan.schedule.epilogue.row_words, copy.warps
            return make_rows(
                by_rows[one.name], plan.program, shape.lanes, derived,
                dependent=dependent, warps=warps, words=words,
            )  # fmt: skip
        if one.name in (*copy.turned, *copy.across):
            turn = turn_shape(shape.lanes, one.dtype.bytes, dependent=dependent)
            how = "turn_chunks" if one.name in copy.turned else "make_across"
            return _make(at, one, turn, turned(turn), asked, (TURNED, how))
        return _make(at, one, shape, tree("chunks"), asked, (MADE, "make_chunks"))

    found = [part(at, one) for at, one in enumerate(copy.every)]
    proofs = [proof for one in dict.fromkeys(x.tree for x in found) for proof in one.proofs]
    proofs += prove_prologues(asked) if copy.made else ()
    plan = replace(plan, realign=copy, copies=tuple(found), proofs=(*plan.proofs, *proofs))
    plan = replace(plan, asked=asked if copy.made else None)
    check_preceding(plan)
    return plan


def plain_shape(lanes: int, *, dependent: bool = False) -> RealignShape:
    """What a block does that copies or makes chunks, and so where rows lie in the workspace."""
    return RealignShape(WARPS, lanes, TOGETHER, ROUNDS, chunk_bytes(), dependent)


def turn_shape(lanes: int, item: int, *, dependent: bool = False) -> TurnShape:
    """What a block does of an operand whose rows run across what it is copied or computed of.

    Args:
        lanes: of a warp.
        item: bytes of an element.
        dependent: whether the launch may begin while the grids before it still run.
    """
    group = min(lanes, max(common_facts()["sector_bytes"] // item, lanes // WARPS))
    return TurnShape(WARPS, lanes, group, ROUNDS, chunk_bytes(), dependent)


def _copy(tensor: Tensor, shape: RealignShape, tree: BlockTree) -> CopyPlan:
    """The leaves of one array's blocks."""
    work = RowCopy(tensor.dtype.bytes, shape, word_shifts(shape.size))
    leaves = [
        Leaf("edges", "read_edges", "threads", (), work),
        Leaf("shifted", "shift_chunks", "threads", (CHUNK,), work),
    ]
    return CopyPlan(tree, *block_parts(tree, leaves, Grids(work.pointers)), tensor)


def _make(
    at: int,
    tensor: Tensor,
    shape: BlockShape,
    tree: BlockTree,
    asked: Program,
    leaf: tuple[str, str],
) -> MakePlan:
    """The leaf of one operand's blocks: its statement, and what it does."""
    operand = made_operand(tensor, asked)
    of = computed(operand)
    assert of is not None  # it was asked for because it is
    *outer, inner = tensor.order
    names = {axis: operand.index[axis].dim for axis in outer}
    extents = tuple((names[axis], tensor.dims[axis]) for axis in reversed(outer))
    turns = _in_halves(operand, extents)
    work = RowMake(at, tensor, shape, of, extents, tensor.dims[inner], turns)
    leaves = [Leaf(*leaf, "threads", (CHUNK,), work)]
    return MakePlan(tree, *block_parts(tree, leaves, Grids(arrays=work.arrays)), tensor, operand)


def _in_halves(operand: Operand, outer: tuple[tuple[str, Dim], ...]) -> bool:
    """Whether an operand's rows are two halves that are made of the same, as both parts of numbers.

    Args:
        operand: as it is made.
        outer: variable and extent of every axis but the row's own, the fastest first.
    """
    assert operand.computed is not None
    dim, extent = outer[-1] if outer else ("", 1)
    reads = (at for one in operand.computed.reads for at in one.index)
    terms = (term for at in reads for each in (at, *at.places) for term in each.terms)
    return extent == _HALVES and all(term.dim != dim for term in terms)


def made_operand(tensor: Tensor, asked: Program) -> Operand:
    """An operand as the launch before computes it: a matrix in rows, or one of several.

    Its stored rows run along "k", their number is "m", and what is left are batch dims.

    Args:
        tensor: as which it is stored.
        asked: the program that says how it is computed.
    """
    index = in_rows(tensor)
    extents = {one.dim: dim for one, dim in zip(index, tensor.dims, strict=True)}
    made = prologue(asked.tensors, prologues(asked)[tensor.name], index, tensor.dtype)
    return Operand(tensor, "m", index, tuple(({"m": 1} | extents).items()), made)
