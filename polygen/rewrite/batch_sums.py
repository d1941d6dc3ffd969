"""A sum over matrices of a batched product is a product that sums over them as well.

    v0[b,i,j] = sum over k of x[b,i,k] * w[b,k,j]
    v1[i,j] = sum over b of v0[b,i,j]                ->
                                        v1[i,j] = sum over b, k of x[b,i,k] * w[b,k,j]

It holds where nobody else reads the product, and both operands have a matrix for each b: then all
terms are in one accumulator, matrix after matrix, and no product of a batch is kept. What it
assumes of numbers is that reals are added in another order.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.frontend.dtypes import F32
from polygen.frontend.program import Access, Contraction, Fold, Program, Statement


def batches_in_sums(program: Program) -> Program:
    """The program whose sums over matrices of products are products."""
    readers: dict[str, list[Statement]] = {}
    for statement in program.statements:
        for access in statement.reads:
            readers.setdefault(access.name, []).append(statement)
    joined: dict[str, Contraction] = {}
    for product in program.contractions:
        used = readers.get(product.write.name, [])
        fold = used[0] if len(used) == 1 else None
        made = _joined(product, fold) if isinstance(fold, Fold) else None
        if made is not None and fold is not None:
            joined[product.name] = joined[fold.name] = made
    if not joined:
        return program
    statements = tuple(
        joined.get(s.name, s)
        for s in program.statements
        if not (isinstance(s, Contraction) and s.name in joined)
    )
    return replace(program, statements=statements)


def _joined(product: Contraction, fold: Fold) -> Contraction | None:
    """The product that a fold of it is; None where it is none."""
    (given, *others) = fold.args
    axes = product.write.iterators
    plain = product.write.index == axes and isinstance(given, Access)
    if fold.function != "sum" or others or not plain or product.dtype != F32:
        return None
    assert isinstance(given, Access)
    sizes, over = dict(product.domain), dict(fold.domain)
    own = dict(zip(given.index, axes, strict=True))  # each axis by what the fold calls it
    if set(own) != set(over) or any(sizes[own[it]] != over[it] for it in over):
        return None  # digits of an axis that a reshape splits, or a part of one
    summed = [own[it] for it in fold.folded]
    if not all(it in product.lhs.iterators and it in product.rhs.iterators for it in summed):
        return None
    kept = tuple(own[it] for it in fold.write.index)
    inner = [it for it in sizes if it not in axes]
    order = (*kept, *summed, *inner)
    return replace(
        product,
        domain=tuple((it, sizes[it]) for it in order),
        write=Access(fold.write.name, kept),
    )
