"""Axes of one index that an integer takes off a value: what is computed of it keeps them.

    v0[i,j] += x[i,k] * w[k,j]     j < 1        v0[i,j] += x[i,k] * w[k,j]     j < 1
    v1[i] = relu(v0[i,0])                  ->   v1[i,j] = relu(v0[i,j])
    y0[i] = cast(v1[i])                         y0[i] = cast(v1[i,j])

A kernel's statements are over the axes of its product. Only what is stored has lost the axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polygen.frontend.iterators import Iterators
from polygen.frontend.program import Access, Contraction, Fold, Pointwise, Program, Statement


def with_kept_axes(program: Program) -> Program:
    """The program, over axes of one index that statements have of what they read; else as it is."""
    iterators = Iterators([*program.tensors, *program.sizes])
    written: dict[str, Statement] = {}
    # Values that have axes more than they are read with: which of their axes those are.
    wider: dict[str, tuple[int, ...]] = {}
    found: list[Statement] = []
    for one in program.statements:
        of: Statement
        if isinstance(one, Contraction):
            of = replace(one, lhs=_at_zero(one.lhs, wider), rhs=_at_zero(one.rhs, wider))
        else:
            of = _wider(one, written, wider, iterators)
        stored = of.write.name in program.tensors
        if of.domain != one.domain and not stored and isinstance(of, Pointwise):
            index = tuple(iterator for iterator, _ in of.domain)
            own = one.write.iterators
            wider[of.write.name] = tuple(n for n, it in enumerate(index) if it not in own)
            of = replace(of, write=replace(of.write, index=index))
        written[of.write.name] = of
        found.append(of)
    made = tuple(found)
    return program if made == program.statements else replace(program, statements=made)


def _at_zero(access: Access, wider: Mapping[str, Sequence[int]]) -> Access:
    """An access to a value that has more axes now, of one index each."""
    index = list(access.index)
    for axis in wider.get(access.name, ()):
        index.insert(axis, 0)
    return replace(access, index=tuple(index))


def _wider(
    one: Pointwise | Fold,
    written: Mapping[str, Statement],
    wider: Mapping[str, Sequence[int]],
    iterators: Iterators,
) -> Pointwise | Fold:
    """A statement over the axes of the values that it reads all other axes of; as it is where
    these are others of each.
    """
    args = [_at_zero(a, wider) if isinstance(a, Access) else a for a in one.args]
    own, sizes = tuple(iterator for iterator, _ in one.domain), dict(one.domain)
    plain, domains = replace(one, args=tuple(args)), set()
    for at, arg in enumerate(args):
        if not isinstance(arg, Access) or arg.name not in written:
            continue
        taken = [a for a in _of_one_index(written[arg.name]) if arg.index[a] == 0]
        others = tuple(index for axis, index in enumerate(arg.index) if axis not in taken)
        if not taken or others != own:
            continue
        free = (name for name in iterators.output(len(arg.index)) if name not in own)
        index = tuple(next(free) if n in taken else place for n, place in enumerate(arg.index))
        args[at] = replace(arg, index=index)
        domains.add(tuple((str(name), sizes.get(str(name), 1)) for name in index))
    return replace(one, args=tuple(args), domain=domains.pop()) if len(domains) == 1 else plain


def _of_one_index(one: Statement) -> list[int]:
    """The axes of a value along which it has one index, and was computed so."""
    sizes = dict(one.domain)
    return [
        axis
        for axis, index in enumerate(one.write.index)
        if isinstance(index, str) and sizes[index] == 1
    ]
