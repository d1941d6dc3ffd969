"""A product of f32 operands is a sum of products of their parts, which are tf32.

    v0[i,j] += x[i,k] * w[k,j]                                            x, w: f32

    a[q,i,k] = x1[i,k], x0[i,k] for q = 0, 1          x0: the nearest tf32 to x; x1: to x - x0
    b[q,k,j] = w0[k,j], w1[k,j]
    v0[i,j] += a[p mod 2 + floor(p/2),i,k] * b[p mod 2,k,j]   over p < 3, k; in blocks of 32 of k

1. For p = 0, 1, 2 these are x1 * w0, x0 * w1, x0 * w0: what is small is added up first, so that
   additions to sums that are large already are no more than without parts. What is left out,
   x1 * w1 and what x1 loses, is less than 3 * 2^-22 of a product.
2. The parts are operands that are computed: whoever makes those of other products makes these. Of
   an operand that is computed itself its statements are part of that, for each part again. Where
   folds over its own rows are among them (`polygen.rewrite.rows_first`), each part has rows of its
   own, which are made of the same arguments.
3. Instructions of warpgroups cut sums off where f32 instructions round. So sums are in blocks, each
   promoted by an f32 instruction; no factor multiplies it.

What it assumes of numbers: that reals are added in another order, and what is left out.
Instructions of warps do the same to fragments in registers. Which of the two is generated is a
matter of the schedule (`polygen.decision`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from polygen.frontend.dtypes import BOOL, F32, DType
from polygen.frontend.forms import Digit, Form
from polygen.frontend.indexing import at_places
from polygen.frontend.program import (
    Access,
    Affine,
    Argument,
    Constant,
    Contraction,
    Coordinate,
    Dim,
    Fold,
    Index,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.rewrite.rows_first import row_operand
from polygen.rewrite.simplify import Fresh

BLOCK = 32  # of k, whose products are added up before they are promoted
PRODUCTS = 3  # of parts
_PARTS = 2  # of an operand
_MOST = 64  # programs


@functools.lru_cache(maxsize=_MOST)
def in_parts(program: Program) -> Program | None:
    """The program whose products of f32 multiply parts of their operands.

    Args:
        program: no chain.

    Returns:
        None if it has other products, or some whose operands are computed of products, or of folds
        and not row by row before the kernel, or are read as rows in groups or by index, as windows,
        or at rows that a reshape cuts.
    """
    products = program.contractions
    if not products or program.rest is not None or not all(_splits(program, p) for p in products):
        return None
    fresh = Fresh(program.statements, (*program.tensors, *program.sizes))
    known: dict[tuple[Access, tuple[tuple[str, Dim], ...], int], Access] = {}
    found: list[Statement] = []
    first: list[str] = []
    for one in program.statements:
        if not isinstance(one, Contraction):
            found.append(one)
            continue
        p = _unused("p", one)
        low, high = Digit(p, modulo=_PARTS), Digit(p, per=_PARTS)
        sides = []
        for access, side in zip(one.reads, (Form((low, high)), Form((low,))), strict=True):
            key = (access, one.domain, len(side.terms))
            if key not in known:
                statements = _made(program, one, access, fresh, rest=2 - len(side.terms))
                found += statements
                known[key] = statements[-1].write
                first += [known[key].name] if access.name in program.first else []
            sides.append(Access(known[key].name, (side, *known[key].index[1:])))
        (k,) = one.summed
        kept = tuple(item for item in one.domain if item[0] != k)
        domain = (*kept, (p, PRODUCTS), (k, dict(one.domain)[k]))
        sums = replace(one, domain=domain, lhs=sides[0], rhs=sides[1], block=BLOCK, exact=False)
        found.append(sums)
    left = tuple(_without_unread(found, program))
    return replace(program, statements=left, first=tuple(first))


def _splits(program: Program, product: Contraction) -> bool:
    """Whether both operands are f32, arguments or computed of them, each element of which has one
    place.
    """
    for access in product.reads:
        tensor = program.tensors.get(access.name)
        if tensor is None and not (product.exact and _behind(program, access)):
            return False
        if not _each_once(access, tensor, dict(product.domain)):
            return False
        if tensor is not None and tensor.dtype != F32:
            return False
    return not product.block and len(product.summed) == 1


def _each_once(access: Access, tensor: Tensor | None, extents: Mapping[str, Dim]) -> bool:
    """Whether elements of an array have one place each, and rows go on in one.

    Args:
        access: of a product.
        tensor: the array; None: it is computed.
        extents: of the product's iterators.
    """
    for axis, index in enumerate(access.index):
        if isinstance(index, Form):
            inner = tensor is None or axis == tensor.order[-1]
            if inner or index.padded or index.overlaps(extents):
                return False
        elif not isinstance(index, str | int | Affine):
            return False
    return True


_Placed = tuple[Pointwise | Fold, Mapping[str, int]]  # and which axis each of its iterators is


def _behind(program: Program, access: Access) -> tuple[_Placed, ...]:
    """The statements that compute an operand, each at its own point, in their order; () if it is
    none that they compute so, or one of rows in groups.
    """
    if access.name in program.first:
        by_row = row_operand(program, access.name)
        return tuple((one, dict(axes)) for one, axes in by_row.statements)
    writers = {one.write.name: one for one in program.statements}
    wanted, met = [access.name], set[str]()
    while wanted:
        name = wanted.pop()
        one = writers[name]
        own = tuple(iterator for iterator, _ in one.domain)
        if not isinstance(one, Pointwise) or name in program.tensors or one.write.index != own:
            return ()
        for read in one.reads:
            if read.name in writers and read.index != own:
                return ()
            wanted += [read.name] if read.name in writers and read.name not in met else []
        met.add(name)
    if program.ends or not all(isinstance(index, str) for index in access.index):
        return ()
    return tuple(
        (one, {iterator: axis for axis, (iterator, _) in enumerate(one.domain)})
        for one in program.pointwise
        if one.write.name in met
    )


def _without_unread(statements: list[Statement], program: Program) -> list[Statement]:
    """What is left where parts are computed in the place of operands that nothing else reads."""
    names = {tensor.name for tensor in program.outputs}
    names |= {one.write.name for one in program.statements} - {
        access.name for one in program.statements for access in one.reads
    }
    kept: list[Statement] = []
    for one in reversed(statements):
        if one.write.name in names:
            kept.append(one)
            names |= {access.name for access in one.reads}
    return kept[::-1]


def _unused(letter: str, product: Contraction) -> str:
    """A name that no iterator of a product has."""
    taken = {iterator for iterator, _ in product.domain}
    while letter in taken:
        letter += "_"
    return letter


def _made(
    program: Program, product: Contraction, access: Access, fresh: Fresh, rest: int
) -> list[Pointwise | Fold]:
    """The statements that compute the parts of an operand: over their number, and its iterators.

    Args:
        program: whose statements may compute the operand.
        product: that reads it.
        access: how.
        fresh: names.
        rest: which part what the nearest tf32 leaves is.
    """
    q, own = _unused("q", product), tuple(dict.fromkeys(access.iterators))
    sizes = dict(product.domain)
    domain = ((q, _PARTS), *((iterator, sizes[iterator]) for iterator in own))
    found: list[Pointwise | Fold] = []

    def made(function: str, *args: Argument, dtype: DType = F32) -> Access:
        value = Access(fresh("w"), (q, *own))
        found.append(Pointwise(fresh("R"), domain, value, function, args, dtype))
        return value

    if access.name not in program.tensors:
        found, access = _again(_behind(program, access), access, domain, fresh)
    nearest = made("nearest_tf32", access)
    left = made("sub", access, nearest)
    is_left = made("eq", Coordinate(q), Constant(float(rest)), dtype=BOOL)
    made("where", is_left, left, nearest)
    return found


def _again(
    statements: Sequence[_Placed],
    access: Access,
    domain: tuple[tuple[str, Dim], ...],
    fresh: Fresh,
) -> tuple[list[Pointwise | Fold], Access]:
    """The statements behind an operand over a domain that counts its parts as well, and its value.

    Args:
        statements: at their own points.
        access: of a product to the value that the last one writes.
        domain: the number of the part, then the iterators of the access.
        fresh: names.
    """
    extents = dict(domain)
    (part, _), *_ = domain
    values: dict[str, Access] = {}
    found: list[Pointwise | Fold] = []
    for one, axes in statements:
        # Iterators that are none of the operand's axes run over one index, 0.
        at: dict[str, Index] = {
            it: access.index[axes[it]] if it in axes else 0 for it, _ in one.domain
        }

        def moved(index: Index, at: Mapping[str, Index] = at) -> Index:
            there = at_places(index, at, extents)
            assert there is not None  # iterators are others, or 0
            return there

        def argument(of: Argument, moved: Callable[[Index], Index] = moved) -> Argument:
            if isinstance(of, Coordinate):
                return Coordinate(moved(of.index))
            if not isinstance(of, Access):
                return of
            index = tuple(map(moved, of.index))
            return (
                Access(values[of.name].name, (part, *index))
                if of.name in values
                else Access(of.name, index)
            )

        own = dict.fromkeys(one for one in at.values() if isinstance(one, str))
        over = (domain[0], *((iterator, extents[iterator]) for iterator in own))
        args = tuple(argument(of) for of in one.args)
        write = Access(fresh("w"), (part, *map(moved, one.write.index)))
        values[one.write.name] = write
        found.append(replace(one, name=fresh("R"), domain=over, write=write, args=args))
    return found, Access(values[access.name].name, (part, *access.index))
