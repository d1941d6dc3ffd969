"""Operands that are computed: pointwise statements before a product become part of its copies.

    P0[i,k]   v0 = mul(x[i,k], g[k])            v0 is an operand, computed where it is copied:
    P1[i,k]   v1 = cast(v0[i,k])        ->      the element at (m, k) is cast(x[m,k] * g[k])
    S2[i,j,k] v2 += v1[i,k] * w[j,k]

1. A value that only products read, and that no product has a part in, is computed from arguments
   alone. Arguments never change, and every value has one writer, so that an element may be computed
   as often as it is read, by whoever reads it: all dependences that the statements had are gone.
2. What is left is a program whose products read an array of that name: `without_prologues`. The
   passes after it see no difference between such an operand and an argument.
3. The reads of the statements, composed with the product's own access, are elements over m or n, k
   and the batch dims: `prologue`. Who copies the operand's tile computes them.
4. That each element which a product reads is one that the statements compute is proved for all
   sizes.

An element is rounded to the type that is multiplied, as the program says; what lies between is f32,
of f64 f64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.closure import needed
from polygen.frontend.dtypes import BF16, E4M3, E5M2, F16, F32, F64, S8, TF32, U8, DType
from polygen.frontend.indexing import repeats
from polygen.frontend.program import (
    Access,
    Constant,
    Contraction,
    Coordinate,
    Dim,
    Extent,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.poly.elements import Along, Compute, Element, composed

Prologues = Mapping[str, tuple[Pointwise, ...]]
COMPUTED_TYPES = (BF16, F16, TF32, F32, F64)  # in which a computed operand is multiplied
_MOVED_TYPES = (E4M3, E5M2, S8, U8)  # and one that is elements of an argument as they are
_ROUNDED = (BF16, F16, F32, F64)  # that casts between its statements round to


@dataclass(frozen=True, slots=True)
class Prologue:
    """How the element of an operand at (m or n, k) is computed.

    Attributes:
        result: the value.
        reads: arguments, each with the variable that holds its element.
        statements: on one element, in order; the last casts to the type that is multiplied.
        coordinates: variable, and the number that it holds.
        inner: the value's axis whose neighbours are adjacent where the operand is stored.
        passes: how often its row is gone through before an element is known, for folds over it;
            then a launch before the kernel makes the operand, and nobody else.
    """

    result: str
    reads: tuple[Element, ...]
    statements: tuple[Compute, ...]
    coordinates: tuple[tuple[str, Along], ...] = ()
    inner: int = -1
    passes: int = 0

    @property
    def dtype(self) -> DType:
        """What is multiplied."""
        return self.statements[-1].dtype


@dataclass(frozen=True, slots=True)
class Fragment:
    """How consumers compute an operand's fragments from the elements in its ring.

    Attributes:
        value: what the program calls the operand.
        prologue: how an element is computed; it reads them, and other arrays.
        name: the variable that holds the ring's element.
        packed: indices of k that have one of them, as of numbers of four bits.
        depth: the size of the problem along k; the operand's own counts stored elements.
    """

    value: str
    prologue: Prologue
    name: str
    packed: int
    depth: Dim


def prologues(program: Program) -> dict[str, tuple[Pointwise, ...]]:
    """The statements that compute an operand, by its value, in their order.

    Operands that a product has a part in are not among them, nor those that are made row by row.

    Raises:
        UnsupportedProgram: a statement reads a value at another point than its own, or the operand
            is of a type in which none is computed.
    """
    writers: dict[str, Statement] = {s.write.name: s for s in program.statements}
    found: dict[str, tuple[Pointwise, ...]] = {}
    turned = dict(program.turned)
    for product in program.contractions:
        for access in product.reads:
            if access.name in (*found, *program.first, *program.tensors):
                continue
            if access.name not in writers:
                continue
            behind = needed(program.statements, [access.name])
            if not all(isinstance(s, Pointwise) for s in behind):
                continue
            own = tuple(s for s in program.pointwise if s in behind)
            found[access.name] = own
            if access.name in turned:  # of any type: its elements are those of an array
                continue
            kind = multiplied(program, own[-1])
            if kind not in _MOVED_TYPES or not _is_moved(program, own):
                _require_type(program, access.name, kind)
            elif kind in _MOVED_TYPES:
                _require_each_k(program, own[0], product, access)
            for statement in own:
                _require_own_point(program, statement, writers)
                if kind not in _MOVED_TYPES:
                    _require_rounding(program, statement)
    return found


def multiplied(program: Program, last: Pointwise) -> DType:
    """The type in which products take a value: f32 as what they say that it is, by default tf32.

    Raises:
        UnsupportedProgram: one product takes it as f32, another as tf32.
    """
    value = last.write.name
    if last.dtype != F32 or value in dict(program.turned):
        return last.dtype
    said = {one.exact for one in program.contractions if value in (one.lhs.name, one.rhs.name)}
    if len(said) > 1:
        raise UnsupportedProgram(
            f"the operand {value} is multiplied as {F32} and as {TF32}",
            where=program.name,
            why="an operand is brought to shared memory in one type",
            nearest=f"Say {TF32}[...] or {F32}[...] of all that it meets",
        )
    return F32 if said == {True} else TF32


def _require_own_point(
    program: Program, statement: Pointwise, writers: Mapping[str, Statement]
) -> None:
    own = tuple(iterator for iterator, _ in statement.domain)
    for access in statement.reads:
        if access.name in writers and access.index != own:
            raise UnsupportedProgram(
                f"{statement.name} reads {access}: parts of computed values are not generated yet",
                where=program.name,
                why="an operand's element is computed where it is copied, from arguments at its "
                "own point",
                nearest="Slice the arguments instead, as in relu(x[:, ::2]) for relu(x)[:, ::2]",
            )


def _require_rounding(program: Program, statement: Pointwise) -> None:
    if statement.function == "cast" and statement.dtype not in _ROUNDED:
        named = ", ".join(map(str, _ROUNDED))
        raise UnsupportedProgram(
            f"{statement.name} rounds to {statement.dtype}: {statement}",
            where=program.name,
            why=f"an operand's statements round to {named}",
            nearest=f'Write .astype("{BF16}"), or pass what is rounded as an argument',
        )


def _is_moved(program: Program, own: tuple[Pointwise, ...]) -> bool:
    """Whether a value's elements are those of an argument of its type, as they are."""
    (one, *more), (read, *_) = own, own[0].args
    if more or one.function != "cast" or not isinstance(read, Access):
        return False
    return read.name in program.tensors and program.tensors[read.name].dtype == one.dtype


def _require_each_k(
    program: Program, copy: Pointwise, product: Contraction, access: Access
) -> None:
    """Bytes that are moved as they are lie beside each other along what is summed."""
    at = zip(copy.write.index, access.index, strict=True)
    summed = {str(own) for own, iterator in at if iterator in product.summed}
    repeated = {it for read in copy.reads for index in read.index for it in repeats(index)}
    if repeated & summed:
        raise UnsupportedProgram(
            f"elements of {copy.dtype} are repeated along what is summed",
            where=program.name,
            why=f"{copy.name}: {copy}; bytes are moved as they are",
            nearest=f'Write .astype("{BF16}") behind both operands',
        )


def _require_type(program: Program, value: str, dtype: DType) -> None:
    if dtype not in COMPUTED_TYPES:
        named = ", ".join(map(str, COMPUTED_TYPES))
        raise UnsupportedProgram(
            f"the operand {value} is computed and rounded to {dtype}",
            where=program.name,
            why=f"computed operands are multiplied as {named}",
            nearest=f'Write .astype("{BF16}") behind both operands, or pass the computed matrix as '
            "an argument",
        )


def without_prologues(program: Program, found: Prologues | None = None) -> Program:
    """The program whose products read computed operands as if they were arguments.

    Args:
        program: with statements before its products, or without.
        found: what `prologues` finds.
    """
    found = prologues(program) if found is None else found
    if not found:
        return program
    writers: dict[str, list[Statement]] = {}
    for statement in program.statements:  # several of an array that is put together
        writers.setdefault(statement.write.name, []).append(statement)
    wanted = [s.write.name for s in program.contractions]
    wanted += [t.name for t in program.outputs]
    # Terms of folds are read by no statement of the kernel (`polygen.poly.folds`).
    used = {access.name for s in program.statements for access in s.reads}
    wanted += [s.write.name for s in program.statements if s.write.name not in used]
    needed: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in needed or name not in writers:
            continue
        needed.add(name)
        for statement in writers[name]:
            kept = not isinstance(statement, Contraction)  # else operands are arrays from here on
            wanted += [a.name for a in statement.reads if kept or a.name not in found]
    statements = tuple(s for s in program.statements if s.write.name in needed)
    read = {access.name for s in statements for access in s.reads}
    inside = {access.name for own in found.values() for s in own for access in s.reads}
    arguments = tuple(t for t in program.inputs if t.name in read or t.name not in inside)
    made = tuple(operand_of(program, own[-1]) for own in found.values())
    return replace(program, inputs=(*arguments, *made), statements=statements)


def operand_of(program: Program, last: Pointwise) -> Tensor:
    """The value that a statement computes as an array, which nobody stores."""
    extents = dict(last.domain)
    dims = tuple(extents[it] if isinstance(it, str) else 1 for it in last.write.index)
    kind = multiplied(program, last)
    return Tensor(last.write.name, kind, dims, tuple(range(len(dims))))


def size_in_front(size: str) -> UnsupportedProgram:
    """The refusal of a size that is computed with in front of a product."""
    return UnsupportedProgram(
        f"{size}: a size is computed with in front of a product",
        why="who computes operands has the elements of arguments, and numbers that are arguments",
        nearest="Compute with it behind the product, make the dim static, or pass the number as an "
        "argument (f32)",
    )


def prologue(
    tensors: Mapping[str, Tensor],
    statements: tuple[Pointwise, ...],
    index: tuple[Along, ...],
    dtype: DType,
) -> Prologue:
    """The element of an operand that is read at `index`.

    Args:
        tensors: the arguments.
        statements: that compute the value, the last one writing it.
        index: per axis of the value, over the dims of the instruction.
        dtype: in which it is multiplied.
    """
    last = statements[-1]
    places = dict(zip(last.write.index, index, strict=True))
    at = {iterator: places[iterator] for iterator, _ in last.domain}
    reads, coordinates, computed = of_elements(tensors, statements, at)
    found = list(computed)
    if last.function != "cast" or last.dtype != dtype:  # as f32 is multiplied as tf32
        found.append(Compute(f"{last.write.name}_out", "cast", (last.write.name,), dtype))
    return Prologue(found[-1].result, reads, tuple(found), coordinates)


def of_elements(
    tensors: Mapping[str, Tensor], statements: tuple[Pointwise, ...], at: Mapping[str, Along]
) -> tuple[tuple[Element, ...], tuple[tuple[str, Along], ...], tuple[Compute, ...]]:
    """Statements over the same iterators, on one element.

    Args:
        tensors: the arguments.
        statements: that read them, and each other.
        at: what every iterator is.

    Returns:
        What is read; variables of coordinates, and the numbers that they hold; the statements.
    """
    reads: dict[tuple[str, tuple[Along, ...]], Element] = {}
    numbers: dict[Along, str] = {}
    found = []
    for statement in statements:
        arguments: list[str | float] = []
        for argument in statement.args:
            if isinstance(argument, Constant):
                arguments.append(argument.value)
            elif isinstance(argument, Coordinate):
                place = composed(argument.index, at)
                name = f"at{len(numbers)}"
                arguments.append(
                    numbers.setdefault(place, name) if place.dim else float(place.offset)
                )
            elif isinstance(argument, Extent):
                raise size_in_front(f"{argument} in {statement.name}")
            elif argument.name not in tensors:
                arguments.append(argument.name)
            else:
                arguments.append(_read(argument, at, tensors, reads).name)
        name = statement.write.name
        found.append(Compute(name, statement.function, tuple(arguments), statement.dtype))
    coordinates = tuple((name, place) for place, name in numbers.items())
    return tuple(reads.values()), coordinates, tuple(found)


def _read(
    access: Access,
    at: Mapping[str, Along],
    tensors: Mapping[str, Tensor],
    reads: dict[tuple[str, tuple[Along, ...]], Element],
) -> Element:
    index = tuple(composed(one, at) for one in access.index)
    known = reads.get((access.name, index))
    if known is None:
        known = Element(f"{access.name}_{len(reads)}", tensors[access.name], index)
        reads[access.name, index] = known
    return known


def operand_array(
    made: Prologue, value: str, dims: tuple[tuple[str, Dim], ...], role: str
) -> tuple[Tensor, tuple[Along, ...]]:
    """The array as which an operand is copied, and its index: an axis for every dim.

    It lies as the largest array that it is computed from lies, so that neighbours are read
    together; types of other than 16 bits lie along k, as all instructions take them. Where rows of
    an array are read by index, they are rows of shared memory, each of which reads its own.

    Args:
        made: how an element is computed.
        value: its name.
        dims: that it depends on, with their extents.
        role: "m" or "n".

    Raises:
        UnsupportedProgram: elements of what lies along rows of shared memory are read by index.
    """
    whole = [r for r in made.reads if r.axis(role) is not None and r.axis("k") is not None]
    most = min(whole, key=lambda r: math.prod(one.per for one in r.index), default=None)
    inner = most.index[most.tensor.order[-1]].dim if most is not None else "k"
    by_index = {one.dim: one for read in made.reads for one in read.index if one.rows}
    if by_index:
        inner = "k" if role in by_index else role
        one_side = set(by_index) in ({role}, {"k"})
        if not one_side or (inner == role and made.dtype.bits != 16):
            raise _not_of_rows(value, list(by_index.values()), made.dtype)
    along_role = made.dtype.bits == 16 and inner == role
    last = [role, "k"] if not along_role else ["k", role]
    ordered = [d for d, _ in dims if d not in last] + [d for d in last if d in dict(dims)]
    extents = dict(dims)
    axes = tuple(extents[dim] for dim in ordered)
    tensor = Tensor(value, made.dtype, axes, tuple(range(len(axes))))
    return tensor, tuple(Along(dim) for dim in ordered)


def _not_of_rows(value: str, by_index: list[Along], dtype: DType) -> UnsupportedProgram:
    return UnsupportedProgram(
        f"the operand {value} reads {' and '.join(map(str, by_index))}",
        why=f"threads compute adjacent elements of a row of {dtype}, all from one row by index; a "
        "type of other than 16 bits lies along the sum",
        nearest="Index the axis that is not summed, of one operand: x[rows] @ w.T",
    )
