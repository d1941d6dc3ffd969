"""Factors of a product's operands leave its sum: all of it, or the sum of a block.

    v0[i,k] = x[i,k] * s[i,floor(k/128)]        x, w: e4m3
    v1[j,k] = w[j,k] * t[floor(j/128),floor(k/128)] * c[j]
    y[i,j] = sum over k of v0[i,k] * v1[j,k]

    u[i,j] = sum over b of s[i,b] * t[floor(j/128),b] * (sum over k of block b of x[i,k] * w[j,k])
    y[i,j] = u[i,j] * c[j]

1. Both operands are 8-bit floats times scales (`polygen.frontend.scaled`): what is stored has an
   element for every (row, k), and is multiplied as it is. No instruction takes anything wider.
2. A factor that does not depend on k leaves the sum.
3. A factor that is the same for `g` neighbours along k leaves the sum of these: that is the side
   condition, an index ``floor(k / g)``. Blocks have as many neighbours as the smallest g; all
   others are multiples of it, and so is the length of the sum. The product then has `block` and
   `factors`, which the scop makes two statements of: the sum of every block, and its promotion.

What it assumes of numbers: that reals are multiplied and added in another order. Nothing is rounded
that was not: the operand that the program names is f32, and no kernel has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.closure import needed
from polygen.frontend.dtypes import F32
from polygen.frontend.program import (
    Access,
    Affine,
    Contraction,
    Dim,
    Index,
    Pointwise,
    Program,
    Statement,
)
from polygen.frontend.scaled import STORED
from polygen.rewrite.simplify import Fresh


@dataclass(frozen=True, slots=True)
class _Scaled:
    """An operand: what is stored, and what it is multiplied by."""

    stored: Access
    factors: tuple[Access, ...]


def factors_behind(program: Program) -> Program:
    """The program whose products of scaled 8-bit floats multiply what is stored.

    Raises:
        UnsupportedProgram: a factor is another one for every k, or groups do not divide; with the
            product.
    """
    writers = {s.write.name: s for s in program.statements}
    fresh = Fresh(program.statements, (*program.tensors, *program.sizes))
    made: list[Statement] = []
    for statement in program.statements:
        found = _operands(program, writers, statement)
        if found is None:
            made.append(statement)
        else:
            assert isinstance(statement, Contraction)
            made += _without_factors(program, statement, found, fresh)
    if tuple(made) == program.statements:
        return program
    outputs = [tensor.name for tensor in program.outputs]
    # Terms of folds are read by no statement of the kernel (`polygen.poly.folds`).
    read = {access.name for s in program.statements for access in s.reads}
    ends = [s.write.name for s in program.statements if s.write.name not in read]
    return replace(program, statements=tuple(needed(made, (*outputs, *ends))))


def _operands(
    program: Program, writers: Mapping[str, Statement], statement: Statement
) -> tuple[_Scaled, _Scaled] | None:
    """Both operands of a product of scaled 8-bit floats; None: it is another statement."""
    if not isinstance(statement, Contraction):
        return None
    if all(access.name in program.tensors for access in statement.reads):
        return None
    left, right = (_scaled(program, writers, access) for access in statement.reads)
    if left is not None and right is not None:
        return left, right
    if all(_is_stored(program, writers, access.name) for access in statement.reads):
        raise _refusal(
            program,
            statement,
            "parts, rows by index or reshapes of 8-bit floats times scales",
            "an element of an operand is one that is stored, times factors of its row and of k",
            "Take them of the arrays before, and pass these",
        )
    return None


def _is_stored(program: Program, writers: Mapping[str, Statement], name: str) -> bool:
    """Whether a value is made of an 8-bit float by multiplying, wherever its elements are read."""
    if name in program.tensors:
        return program.tensors[name].dtype in STORED
    writer = writers[name]
    return _multiplies(writer) and any(
        _is_stored(program, writers, access.name) for access in writer.reads
    )


def _multiplies(statement: Statement) -> bool:
    """Whether a statement is a product of its arguments, or a cast that rounds nothing."""
    if not isinstance(statement, Pointwise):
        return False
    cast = statement.function == "cast" and statement.dtype == F32
    return cast or statement.function == "mul"


def _scaled(program: Program, writers: Mapping[str, Statement], access: Access) -> _Scaled | None:
    """What an access to a product of arguments reads; None: it reads something else."""
    tensor = program.tensors.get(access.name)
    if tensor is not None:
        return _Scaled(access, ()) if tensor.dtype in STORED else None
    writer = writers[access.name]
    own = tuple(it for it, _ in writer.domain)
    if not isinstance(writer, Pointwise) or not _multiplies(writer) or writer.write.index != own:
        return None
    at = dict(zip(own, access.index, strict=True))
    stored: list[Access] = []
    factors: list[Access] = []
    for argument in writer.args:
        moved = _moved(argument, at) if isinstance(argument, Access) else None
        if moved is None:
            return None
        inner = _scaled(program, writers, moved)
        if inner is not None:
            stored.append(inner.stored)
            factors += inner.factors
            continue
        alone = _factors(program, writers, moved)
        if alone is None:
            return None
        factors += alone
    return _Scaled(stored[0], tuple(factors)) if len(stored) == 1 else None


def _factors(
    program: Program, writers: Mapping[str, Statement], access: Access
) -> list[Access] | None:
    """The arguments whose product a value is; None: it is another function of them."""
    if access.name in program.tensors:
        return [access]
    writer = writers[access.name]
    if not isinstance(writer, Pointwise) or writer.function != "mul":
        return None
    at = dict(zip((it for it, _ in writer.domain), access.index, strict=True))
    found: list[Access] = []
    for argument in writer.args:
        moved = _moved(argument, at) if isinstance(argument, Access) else None
        more = _factors(program, writers, moved) if moved is not None else None
        if more is None:
            return None
        found += more
    return found


def _moved(access: Access, at: Mapping[str, Index]) -> Access | None:
    """An access at other iterators; None where an index of it is of no one iterator."""
    index: list[Index] = []
    for one in access.index:
        if isinstance(one, int):
            index.append(one)
        elif isinstance(one, str):
            index.append(at[one])
        elif isinstance(one, Affine) and isinstance(at[one.iterator], str):
            index.append(replace(one, iterator=str(at[one.iterator])))
        else:
            return None
    return Access(access.name, tuple(index))


def _without_factors(
    program: Program, product: Contraction, operands: tuple[_Scaled, _Scaled], fresh: Fresh
) -> list[Statement]:
    """The product of what is stored, and what its factors multiply behind it."""
    left, right = operands
    every = (*left.factors, *right.factors)
    inside = [one for one in every if set(product.summed) & set(one.iterators)]
    behind = [one for one in every if one not in inside]
    block = _block(program, product, inside) if inside else 0
    total = Access(fresh("w"), product.write.index) if behind else product.write
    found: list[Statement] = [
        replace(
            product,
            write=total,
            lhs=left.stored,
            rhs=right.stored,
            block=block,
            factors=tuple(inside),
        )
    ]
    domain = tuple(item for item in product.domain if item[0] in product.write.iterators)
    for number, factor in enumerate(behind, 1):
        last = number == len(behind)
        write = product.write if last else Access(fresh("w"), product.write.index)
        found.append(Pointwise(fresh("R"), domain, write, "mul", (total, factor), F32))
        total = write
    return found


def _block(program: Program, product: Contraction, factors: Sequence[Access]) -> int:
    """Neighbours along the sum for which all factors are the same."""
    sizes = [_group(program, product, one) for one in factors]
    block = min(sizes)
    for size, one in zip(sizes, factors, strict=True):
        if size % block:
            other = factors[sizes.index(block)]
            raise _refusal(
                program,
                product,
                f"{one.name} has groups of {size}, {other.name} of {block}",
                "all factors are the same in a block of k, which smaller groups divide into",
                f"Use groups that divide each other, as {block} and {-(-size // block) * block}",
            )
    (k,) = product.summed
    length: Dim = dict(product.domain)[k]
    if not isinstance(length, int) or length % block:
        raise _refusal(
            program,
            product,
            f"{length} terms in groups of {block}",
            "every block of a sum is a whole one",
            f"Pad both operands with zeros to {-(-length // block) * block}"
            if isinstance(length, int)
            else f"Give the axis a number, a multiple of {block}",
        )
    return block


def _group(program: Program, product: Contraction, factor: Access) -> int:
    """Neighbours along the sum for which one factor is the same."""
    summed = set(product.summed)
    along = [one for one in factor.index if _iterator(one) in summed]
    (one, *more) = along
    if isinstance(one, Affine) and one.per > 1 and not more and len(summed) == 1:
        return one.per
    raise _refusal(
        program,
        product,
        f"the factor {factor} is another one for every {one}",
        "products of 8-bit floats are summed as they are stored, and a factor leaves a sum in "
        "which it is the same",
        f"Scale groups, as pg.repeat({factor.name}, 128, axis=1); or round both operands to "
        'another type, as in (x * s).astype("bf16") @ w.astype("bf16").T',
    )


def _iterator(index: Index) -> str:
    return index if isinstance(index, str) else getattr(index, "iterator", "")


def _refusal(
    program: Program, product: Contraction, what: str, why: str, nearest: str
) -> UnsupportedProgram:
    return UnsupportedProgram(
        f"{product.name}: {product}: {what}", where=program.name, why=why, nearest=nearest
    )
