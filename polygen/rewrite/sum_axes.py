"""Which of the axes that a product sums over is cut into k tiles.

An instruction sums over neighbours of one axis, which both operands have for themselves. Of several
it is the one along which most operands have neighbours adjacent in memory, and of these the last.
"""

from __future__ import annotations

from collections.abc import Sequence

from polygen.frontend.forms import Form
from polygen.frontend.program import Access, Affine, Contraction, Index, Program


def cut(product: Contraction) -> list[str]:
    """The summed iterators that may be cut: no axis has one of them together with rows."""
    every = [set(access.iterators) for access in product.reads]
    return [
        it
        for it in product.summed
        if all(it in one for one in every)
        and not any(_shared(a, it, product) for a in product.reads)
    ]


def innermost(program: Program, product: Contraction, fitting: Sequence[str]) -> str:
    """The one that is cut.

    Args:
        program: whose arrays lie somehow.
        product: one of its products.
        fitting: what may be cut, one at least.
    """
    own = product.summed
    return max(fitting, key=lambda it: (_adjacent(program, product, it), own.index(it)))


def _shared(access: Access, iterator: str, product: Contraction) -> bool:
    """Whether an axis is indexed by an iterator and by rows, or columns, of results.

    What both operands have of the result counts matrices.
    """
    left, right = (set(one.iterators) for one in product.reads)
    kept = set(product.write.iterators) - (left & right)
    return any(
        isinstance(index, Form) and iterator in index.iterators and kept & set(index.iterators)
        for index in access.index
    )


def _adjacent(program: Program, product: Contraction, iterator: str) -> int:
    """In how many operands neighbours along an iterator are adjacent in memory."""
    found = 0
    for access in product.reads:
        tensor = program.tensors.get(access.name)  # what is computed has its last axis innermost
        inner = tensor.order[-1] if tensor is not None else -1
        found += step(access.index[inner], iterator) == 1
    return found


def step(index: Index, iterator: str) -> int:
    """The scale of an iterator in an index; 0: it is not in it."""
    if isinstance(index, Form):
        return next((term.scale for term in index.terms if term.of == iterator), 0)
    if isinstance(index, Affine):
        return index.scale if index.iterator == iterator else 0
    return int(index == iterator)
