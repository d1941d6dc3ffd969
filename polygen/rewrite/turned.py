"""Operands that no instruction reads as they lie: copied first, with their axes in another order.

    v0[i,j] += x[i,k] * w[k,j]                8-bit elements, w has j innermost
                                              P1[a0,a1]  w_turned[a0,a1] = cast(w[a0,a1])
                                      ->      v0[i,j] += x[i,k] * w_turned[k,j]

1. Instructions on 8-bit elements take fragments along the sum; of arrays whose neighbours run
   along rows or columns of results nothing loads them.
2. Along the axis whose neighbours are adjacent in memory no window slides, no loop of a sum runs
   and no zeros lie: rows of a tile are neighbours there, and begin where rows of the array do.
3. The copy is the identity on elements, and has all of the array's axes: whoever read an element
   of the one reads the same of the other. It lies in rows along the axis that is cut into k tiles
   (`polygen.rewrite.sum_axes`), which `Program.turned` says. A launch before the kernel makes it
   (`polygen.poly.turned`).
4. Folds of what the array holds, as sums of its columns, are made of tiles of the products: they
   read the copy too.

Accesses decide, and what lies where; no operation has a part in it. Operands of chains, and those
that are computed, are left as they are.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.frontend.closure import multiplies_sums, needed
from polygen.frontend.forms import Form
from polygen.frontend.program import (
    Access,
    Affine,
    Contraction,
    Fold,
    Pointwise,
    Program,
    Tensor,
)
from polygen.rewrite.sum_axes import cut, innermost, step

_SIZES = (8, 16, 32)  # bits of elements that are copied
_ALONG_SUMS = 8  # bits of elements whose fragments are loaded along the sum alone


def turned(program: Program) -> Program:
    """The program whose operands lie as instructions read them; itself where all do."""
    if program.turned or program.rest is not None or multiplies_sums(program):
        return program
    values: dict[tuple[str, int], str] = {}
    found: dict[Contraction, Contraction] = {}
    for product in program.contractions:
        lhs, rhs = (_read(program, product, access, values) for access in product.reads)
        found[product] = replace(product, lhs=lhs, rhs=rhs)
    if not values:
        return program
    number = len(program.statements)
    copies = [
        _copy(f"P{number + at}", program.tensors[name], value)
        for at, ((name, _), value) in enumerate(values.items())
    ]
    folded = _folded(program)
    own = {name: value for (name, _), value in values.items()}
    behind = (
        found[one] if isinstance(one, Contraction)
        else _renamed(one, own) if one.name in folded else one
        for one in program.statements
    )  # fmt: skip
    statements = (*copies, *behind)
    read = {access.name for one in statements[len(copies) :] for access in one.reads}
    return replace(
        program,
        inputs=tuple(one if one.name in read else _anywhere(one, values) for one in program.inputs),
        statements=statements,
        turned=tuple((value, axis) for (_, axis), value in values.items()),
    )


def _folded(program: Program) -> set[str]:
    """The statements of folds of arguments, which are made beside products, of what these read."""
    found: set[str] = set()
    for one in program.folds:
        behind = needed(program.statements, [one.write.name])
        if not any(isinstance(each, Contraction) for each in behind):
            found |= {each.name for each in behind}
    return found


def _renamed(statement: Pointwise | Fold, values: dict[str, str]) -> Pointwise | Fold:
    """The statement with copies in the place of arrays."""
    args = tuple(
        Access(values.get(one.name, one.name), one.index) if isinstance(one, Access) else one
        for one in statement.args
    )
    return replace(statement, args=args)


def _read(
    program: Program, product: Contraction, access: Access, values: dict[tuple[str, int], str]
) -> Access:
    """What a product reads in the place of an array, whose copy is noted; or the array."""
    tensor = next((one for one in program.inputs if one.name == access.name), None)
    fitting = cut(product)
    if tensor is None or len(tensor.dims) < 2 or tensor.dtype.bits not in _SIZES or not fitting:
        return access
    k = innermost(program, product, fitting)
    axis = next((at for at, one in enumerate(access.index) if _along(one, k)), None)
    if axis is None or not _unread(tensor, product, access, k):
        return access
    known = {
        *program.tensors,
        *program.sizes,
        *(s.write.name for s in program.statements),
        *values.values(),
    }
    value = f"{tensor.name}_turned"
    while value in known:
        value += "_"
    return Access(values.setdefault((tensor.name, axis), value), access.index)


def _along(index: object, k: str) -> bool:
    """Whether an axis runs along the sum, or along it and matrices, with no zeros around it."""
    if isinstance(index, Form):
        return k in index.iterators and not index.padded
    return index == k or (isinstance(index, Affine) and index.iterator == k)


def _unread(tensor: Tensor, product: Contraction, access: Access, k: str) -> bool:
    """Whether no instruction reads an array as it lies."""
    index = access.index[tensor.order[-1]]
    along = set(Access("", (index,)).iterators)
    if k in along:
        return False
    if along & set(product.summed) or (isinstance(index, Form) and index.padded):
        return True
    other = product.rhs if access == product.lhs else product.lhs
    of_results = bool(along) and not along & set(other.iterators)
    adjacent = any(abs(step(index, one)) == 1 for one in along)
    return tensor.dtype.bits == _ALONG_SUMS and of_results and adjacent


def _anywhere(tensor: Tensor, values: dict[tuple[str, int], str]) -> Tensor:
    """An array that is only copied, element by element: it may begin anywhere."""
    copied = any(name == tensor.name for name, _ in values)
    return replace(tensor, alignment=tensor.dtype.bytes) if copied else tensor


def _copy(name: str, tensor: Tensor, value: str) -> Pointwise:
    """The statement that copies an array."""
    domain = tuple((f"a{axis}", dim) for axis, dim in enumerate(tensor.dims))
    index = tuple(iterator for iterator, _ in domain)
    return Pointwise(
        name, domain, Access(value, index), "cast", (Access(tensor.name, index),), tensor.dtype
    )
