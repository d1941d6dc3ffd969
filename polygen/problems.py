"""The problem that a program is at sizes: what the cost model and measurements know it by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from polygen.analysis import Prospect
from polygen.emit.functions import is_costly
from polygen.fit_sections import together
from polygen.frontend.indices import known_size
from polygen.frontend.monoids import INDEX, MONOIDS
from polygen.frontend.pitches import row_step
from polygen.frontend.program import Dim, Program
from polygen.hardware.atom import products_of
from polygen.hardware.device import common_facts
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.pairs import in_pairs
from polygen.poly.elements import Element
from polygen.poly.fills import by_threads, held
from polygen.poly.joined import joinable
from polygen.poly.match import Match
from polygen.poly.operand import Operand
from polygen.poly.pixel_axes import first_axis, row_axes
from polygen.poly.pointwise import Pointwork
from polygen.poly.prologue import Prologue
from polygen.poly.realign import copied
from polygen.poly.register_operands import stored, stored_bits
from polygen.poly.ring_folds import RingFolds
from polygen.poly.turned import turned_operands
from polygen.rewrite.programs import rewritten
from polygen.schedule.problem import Problem
from polygen.schedule.realign import row_bytes, row_multiple, rows

# The size taken along a dim for which a call gives none.
TYPICAL_SIZE = 4096
_TYPICAL_BATCHES = 16  # along a batch dim
_AXES_OF_MATRICES = 2


def size_of(dim: Dim, sizes: dict[str, int]) -> int:
    """A size to optimise for: the number that it is, that is given, or that is taken for it."""
    known = known_size(dim, sizes)
    return TYPICAL_SIZE if known is None else known


def whole_problem(program: Program, found: Prospect, sizes: dict[str, int]) -> Problem:
    """The problem of a program; of several sections, one product of all their results."""
    problems = [problem_of(program, one.matched, one.work, sizes) for one in found.each]
    return together(problems) if found.others else problems[0]


def problem_of(program: Program, matched: Match, work: Pointwork, sizes: dict[str, int]) -> Problem:
    """The sizes to optimise for, and the weight of the epilogue."""

    def size(dim: Dim) -> int:
        return size_of(dim, sizes)

    batches = {dim for dim, _ in matched.batches}
    many = {extent for _, extent in matched.batches}

    def counted(dim: Dim) -> int:
        """The same of a dim that may count matrices, of which there are fewer than rows."""
        return size(dim) if dim not in many or dim in sizes else _matrices(dim)

    count = math.prod(counted(extent) for _, extent in matched.batches)
    lefts, rights = (
        # What all of a tile's rows have besides weighs little.
        tuple(one for one in matched.side(role) if not one.whole)
        for role in "mn"
    )
    whole, threads = work.matrices, held((*lefts, *rights))
    alike = bool(_made(lefts)) and _computed(lefts) == _computed(rights)
    rings = work.ring_folds(matched)
    return Problem(
        # Groups of rows are matrices below one another, of so many rows in the mean.
        m=-(-size(matched.m) // count) if matched.groups else size(matched.m),
        n=size(matched.n),
        k=max(map(size, matched.depths)) * math.prod(size(count) for _, count in matched.sums),
        element_bytes=matched.a.tensor.dtype.bytes,
        matrices=len(whole),
        functions=sum(
            is_costly(s.function, s.args) for one in (*work.before, work) for s in one.statements
        ),
        pointwise=any(s.function != "cast" for s in work.statements),
        astride=(_astride(lefts, sizes), _astride(rights, sizes)),
        matrix_bytes=sum(read.tensor.dtype.bytes for read in whole),
        result_bytes=sum(write.tensor.dtype.bytes for write in work.writes),
        k_inner=(matched.a.k_contiguous, matched.b.k_contiguous),
        sum_bytes=matched.contraction.dtype.bytes,
        access_bytes=(_access_bytes(lefts), _access_bytes(rights)),
        products=len(matched.products),
        operands=(len(lefts), len(rights)),
        batches=count,
        threaded=(sum(map(by_threads, lefts)), sum(map(by_threads, rights))),
        own=(_has_any(lefts, batches), _has_any(rights, batches)),
        uncopied=(_uncopied(matched, lefts), _uncopied(matched, rights)),
        computed=(len(_made(lefts)), len(_made(rights))),
        source_bytes=(_source_bytes(lefts, size), _source_bytes(rights, size)),
        vectors=(_vectors(lefts, paired=False), _vectors(rights, paired=False)),
        paired_vectors=(_vectors(lefts, paired=True), _vectors(rights, paired=True)),
        operand_functions=(_functions(lefts), _functions(rights)),
        stored_bits=(_stored_bits(lefts), _stored_bits(rights)),
        held=(threads.words, threads.beside) if _made((*lefts, *rights)) else (0, 0),
        uneven=matched.groups is not None,
        folds=_folds(work),
        parted=_parted(work),
        zeros=matched.of_zeros,
        **_rows(matched, size, counted),
        depth=size(matched.depths[0]) if matched.sums else 0,
        joinable=joinable(matched),
        stored=(_stored(lefts, counted), _stored(rights, counted)),
        row_passes=_row_passes(lefts if alike else (*lefts, *rights), counted),
        beside=0 if matched.rest is None else matched.rest.padded,
        terms=products_of(matched.a.multiplied, matched.b.multiplied),
        domain=() if work.before or work.operands.folds else matched.domain,
        passes=len(work.before),
        block=matched.block,
        reading=sum(bool(one.matrices) for one in work.before),
        tallied=_tallied(rings),
        unringed=_unringed(rings),
        leaving=bool(rings) and not any(map(work.uses, rings)),
        turned=_turned(program, counted),
        alike=alike,
        values=(_values(program, lefts, counted), _values(program, rights, counted)),
    )


def _turned(program: Program, size: Callable[[Dim], int]) -> tuple[int, int]:
    """Bytes of arrays that are copied with their axes in another order, and of their copies."""
    read = written = 0
    for tensor in turned_operands(rewritten(program)).values():
        dims = {dim: size(dim) for dim in tensor.dims if isinstance(dim, str)}
        count, own = rows(tensor, dims), row_bytes(tensor, dims)
        read += count * own
        written += count * -(-own // row_multiple()) * row_multiple()  # whole chunks
    return read, written


def _tallied(rings: tuple[RingFolds, ...]) -> tuple[int, int]:
    """Instructions of folds beside the products, for an element of each side's operands.

    One brings it and makes a number of it, and two a term of each component.
    """
    found = dict.fromkeys("mn", 0)
    for one in rings:
        found[one.role] += 1 + sum(2 * len(fold.terms) for fold in one.folds)
    return found["m"], found["n"]


def _unringed(rings: tuple[RingFolds, ...]) -> tuple[bool, bool]:
    """Whether folds of each side are of what no ring has, where threads compute what it has."""
    sides = {one.role for one in rings if any(not fold.element for fold in one.folds)}
    return "m" in sides, "n" in sides


def _matrices(dim: Dim) -> int:
    """How many matrices there are along a dim of which no number is known."""
    return dim if isinstance(dim, int) else _TYPICAL_BATCHES


def _rows(
    matched: Match, size: Callable[[Dim], int], counted: Callable[[Dim], int]
) -> dict[str, Any]:
    """The axes that rows may run along: of windows, or of three and more, all but one numbers.

    Rows of two axes are those of products of matrices one by one, which have tiles of their own.
    """
    axes = row_axes(matched)
    windows = len(axes) > 1 and (bool(matched.sums) or len(axes) > _AXES_OF_MATRICES)
    numbered = sum(isinstance(extent, str) for _, extent in axes) <= 1
    if not windows or not numbered or matched.rest is not None or matched.block:
        return {}
    first = next(at for at, (dim, _) in enumerate(axes) if dim == first_axis(axes))
    pixels = tuple(size(extent) if dim == "m" else counted(extent) for dim, extent in axes)
    return {"pixels": pixels, "first": first}


def _stored(operands: tuple[Operand, ...], size: Callable[[Dim], int]) -> int:
    """Elements of the arrays that windows are read of; 0: there are no windows."""
    slid = [one for one in operands if any(at.together and len(at.terms) > 1 for at in one.index)]
    return sum(math.prod(map(size, one.tensor.dims)) for one in slid)


def _folds(work: Pointwork) -> tuple[int, int, int]:
    """Terms of an element that are folded: into sums and the like, with indices, exponentials.

    What has more than two components, with a division in it, counts as an exponential.
    """
    made = [MONOIDS[f.monoid] for one in (*work.before, work) for f in one.folds]
    indexed = sum(INDEX in m.terms for m in made)
    exponentials = sum(m.short or len(m.terms) > 2 for m in made)
    return len(made) - indexed - exponentials, indexed, exponentials


def _parted(work: Pointwork) -> tuple[int, int, int]:
    """Numbers of the parts of folds: of a row's, of a column's, and of all elements'."""
    along = ["m" if "m" in fold.kept else "n" if "n" in fold.kept else "" for fold in work.folds]
    rows, columns, whole = (
        sum(len(f.terms) for f, at in zip(work.folds, along, strict=True) if at == dim)
        for dim in ("m", "n", "")
    )
    return rows, columns, whole


def _uncopied(matched: Match, operands: tuple[Operand, ...]) -> int:
    """How many operands threads move that no copy helps."""
    copies = {tensor.name for tensor in copied(matched)}
    return sum(by_threads(one) and one.tensor.name not in copies for one in operands)


def _stored_bits(operands: tuple[Operand, ...]) -> int:
    """Bits of an element of all operands that are computed, as rings have them for consumers."""
    each = [stored_bits(operand) for operand in operands if operand.computed is not None]
    return sum(each) if all(each) else 0


def _computed(operands: tuple[Operand, ...]) -> set[str]:
    """The operands that are computed, by name."""
    return {one.tensor.name for one in operands if one.computed is not None}


def _made(operands: tuple[Operand, ...]) -> list[Prologue]:
    """How those operands are computed that are."""
    return [operand.computed for operand in operands if operand.computed is not None]


def _values(program: Program, operands: tuple[Operand, ...], size: Callable[[Dim], int]) -> int:
    """Elements of operands that are computed: of parts fewer than are multiplied."""
    domains = {one.write.name: one.domain for one in rewritten(program).statements}
    made = (domains[one.tensor.name] for one in operands if one.computed is not None)
    return sum(math.prod(size(extent) for _, extent in domain) for domain in made)


def _source_bytes(operands: tuple[Operand, ...], size: Callable[[Dim], int]) -> int:
    """Bytes of the arguments that operands are computed from, of one matrix."""
    reads = {
        (one.tensor, one.index): math.prod(
            -(-size(operand.extent(along.dim)) // along.per)
            for along in one.index
            if along.dim in ("m", "n", "k")
        )
        * (_bytes_across(one) if operand.computed.passes else one.tensor.dtype.bytes)
        for operand in operands
        if operand.computed is not None
        for one in operand.computed.reads
        if one.tensor.dims
    }
    return sum(reads.values())


def _bytes_across(one: Element) -> int:
    """Bytes that come with an element that is read along a row: where neighbours lie across rows, a
    sector of them.
    """
    inner = one.index[one.tensor.order[-1]].dim
    sector: int = common_facts()["sector_bytes"]
    return one.tensor.dtype.bytes if inner == "k" or one.axis("k") is None else sector


def _row_passes(operands: tuple[Operand, ...], size: Callable[[Dim], int]) -> int:
    """How often blocks go through rows that are made before the kernel: for folds, and to write."""
    return sum(
        (operand.computed.passes + 1)
        * math.prod(size(operand.tensor.dims[axis]) for axis in operand.tensor.order[:-1])
        for operand in operands
        if operand.computed is not None and operand.computed.passes
    )


def _vectors(operands: tuple[Operand, ...], *, paired: bool) -> int:
    """Arrays with a number for every k and none for rows that operands are computed from.

    Args:
        operands: all of them.
        paired: whether of those that consumers compute in pairs, or of the others.
    """
    return sum(
        one.axis(operand.role) is None and any(at.dim == "k" and at.per == 1 for at in one.index)
        for operand in operands
        if operand.computed is not None and _is_paired(operand) == paired
        for one in operand.computed.reads
    )


def _is_paired(operand: Operand) -> bool:
    """Whether consumers compute two elements of 16 bits at once."""
    found = stored(operand)
    if found is None or found.fragment is None or found.fragment.packed > 1:
        return False
    of = found.fragment
    reads = [one for one in of.prologue.reads if one.name != of.name and one.tensor.dims]
    if any(
        one.alignment < 2 * one.tensor.dtype.bytes and any(at.dim == "k" for at in one.index)
        for one in reads
    ):  # they are read one by one
        return False
    beside = {one.name: one.tensor.dtype for one in reads}
    ring = {of.name: found.tensor.dtype.name}
    return in_pairs(of.prologue.statements, ring, beside, of.prologue.dtype) is not None


def _functions(operands: tuple[Operand, ...]) -> int:
    """Functions beyond arithmetic in an element of all operands that are computed."""
    return sum(is_costly(s.function, s.args) for made in _made(operands) for s in made.statements)


def _access_bytes(operands: tuple[Operand, ...]) -> int:
    """The widest access that the rows of those that are arguments allow, a chunk at most."""
    return min([chunk_bytes(), *(one.alignment for one in operands if one.computed is None)])


def _has_any(operands: tuple[Operand, ...], dims: set[str]) -> bool:
    """Whether an operand has an axis along one of the dims; true where there are none."""
    return not dims or any(one.dim in dims for operand in operands for one in operand.index)


def _astride(operands: tuple[Operand, ...], sizes: dict[str, int]) -> float:
    """Share of the rows of arrays of these sizes and pitches that lie astride lines of the cache.

    Of a row that is longer than a line, its first line's bytes count. Where it begins in its line
    is a multiple of what its pitch and a line have in common.
    """
    line, shares = common_facts()["cache_line_bytes"], []
    for one in operands:
        if one.computed is None:
            pitch = (row_step(one.tensor, sizes) or 0) * one.tensor.dtype.bytes
            step = math.gcd(pitch, line)
            inside = (line - min(pitch, line)) // step + 1
            shares.append(max(1 - inside * step / line, 0.0))
    return sum(shares) / max(len(shares), 1)
