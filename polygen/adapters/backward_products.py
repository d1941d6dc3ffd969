"""What reaches an operand of products, as a program: a sum of products with the other operands.

1. Of ``v[i,j] += x[i,k] * w[j,k]``, what reaches ``x[i,k]`` is ``d[i,j] * w[j,k]`` summed over j,
   where d is what reaches v: over all iterators that x does not have.
2. Axes that lie side by side in every array that has them become one: a batch of rows and the rows
   are rows, and a sum over both is a sum over one axis, which is what an instruction sums over.
3. Several products with one operand, or one product with an operand twice, become several products
   in one program, added up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from polygen.frontend.dtypes import F32, TF32, DType
from polygen.frontend.forms import Form
from polygen.frontend.iterators import Iterators
from polygen.frontend.program import (
    Access,
    Contraction,
    Dim,
    Gathered,
    Index,
    Pointwise,
    Program,
    Statement,
    Tensor,
)

Groups = tuple[tuple[int, ...], ...]  # per axis of a program's array the axes that it is made of


@dataclass(frozen=True, slots=True)
class Piece:
    """A program, and how it reads the arrays of a call.

    Attributes:
        program: what is computed.
        operands: per input of the program, the array of the call.
        groups: per input, which axes of that array are one in the program; axes of size 1 that
            belong to none are dropped.
        results: per output, what it is called in the call.
        again: whether its products are those of the forward pass, computed again.
        factors: per result the two arrays of the call whose elements it multiplies; (): it is more.
    """

    program: Program
    operands: tuple[str, ...]
    groups: tuple[Groups, ...]
    results: tuple[str, ...]
    again: bool = False
    factors: tuple[tuple[str, str], ...] = ()


def whole(program: Program) -> Piece:
    """A piece that reads arrays as they are, under their own names."""
    return Piece(
        program,
        tuple(tensor.name for tensor in program.inputs),
        tuple(map(each_apart, program.inputs)),
        tuple(tensor.name for tensor in program.outputs),
    )


def each_apart(tensor: Tensor) -> Groups:
    """The axes of an array that is read as it is."""
    return tuple((axis,) for axis in range(len(tensor.dims)))


@dataclass(frozen=True, slots=True)
class Contribution:
    """One product's part of what reaches an operand.

    Attributes:
        product: the product.
        gradient: what reaches the product, in its iterators.
        operand: the access whose array it is for.
        other: the access of the other operand.
    """

    product: Contraction
    gradient: Access
    operand: Access
    other: Access


@dataclass(slots=True)
class _Part:
    """A contribution under construction: indices in names that all contributions share."""

    gradient: tuple[Index, ...]
    other: tuple[Index, ...]
    names: tuple[str, str]  # of the arrays
    kind: DType


@dataclass(slots=True)
class _Making:
    """The indices of a program under construction, and the extents of its iterators."""

    target: tuple[Index, ...]
    parts: list[_Part]
    extents: dict[str, Dim]
    merged: dict[str, list[str]] = field(default_factory=dict)  # what an iterator is made of

    def indices(self) -> Iterator[tuple[Index, ...]]:
        yield self.target
        for part in self.parts:
            yield part.gradient
            yield part.other


def product_piece(
    program: Program,
    arrays: Mapping[str, Tensor],
    parts: Sequence[Contribution],
    result: str,
    *,
    merge: bool = True,
) -> Piece:
    """The program of what reaches one operand.

    Args:
        program: what is differentiated.
        arrays: by name, all that the contributions read.
        parts: the contributions.
        result: what to call the output. It has the operand's axes without those of size 1 that are
            stretched, and neighbours that became one.
        merge: whether neighbours become one at all.
    """
    making = _common(parts)
    originals = [(part.gradient, part.other) for part in making.parts]
    if merge:
        _merge(making, [*arrays, *program.sizes])
    return _written(program, arrays, making, originals, result)


def _common(parts: Sequence[Contribution]) -> _Making:
    """All contributions in one set of iterators: t0, t1, … of the operand, s0, … summed."""
    extents: dict[str, Dim] = {}
    made = []
    count = 0
    target: tuple[Index, ...] = ()
    for part in parts:
        domain = dict(part.product.domain)
        kept = [index for index in part.operand.index if isinstance(index, str)]
        names = {iterator: f"t{n}" for n, iterator in enumerate(kept)}
        for iterator in domain:
            if iterator not in names:
                names[iterator] = f"s{count}"
                count += 1
        extents |= {names[iterator]: extent for iterator, extent in domain.items()}
        target = tuple(names[iterator] for iterator in kept)
        made.append(
            _Part(
                _renamed(part.gradient.index, names),
                _renamed(part.other.index, names),
                (part.gradient.name, part.other.name),
                part.product.dtype,
            )
        )
    return _Making(target, made, extents, {name: [name] for name in extents})


def _named(index: Sequence[Index]) -> Iterator[str]:
    """The iterators of an index, none of which a reshape has split or merged: `gradients`."""
    for one in index:
        if not isinstance(one, int):
            assert not isinstance(one, (Gathered, Form))
            yield one if isinstance(one, str) else one.iterator


def _renamed(index: Sequence[Index], names: Mapping[str, str]) -> tuple[Index, ...]:
    def renamed(one: Index) -> Index:
        assert not isinstance(one, (Gathered, Form))  # refused before
        if isinstance(one, int):
            return one
        return names[one] if isinstance(one, str) else replace(one, iterator=names[one.iterator])

    return tuple(map(renamed, index))


def _merge(making: _Making, taken: Sequence[str]) -> None:
    """Make iterators one that are neighbours, in this order, wherever one of them occurs."""
    while True:
        pair = next(_neighbours(making), None)
        if pair is None:
            return
        first, second = pair
        a, b = making.extents[first], making.extents.pop(second)
        if isinstance(a, int) and isinstance(b, int):
            making.extents[first] = a * b
        else:
            name = f"{a}_{b}" if isinstance(a, str) else f"D{a}_{b}"
            while name in taken:
                name += "_"
            making.extents[first] = name
        making.merged[first] += making.merged.pop(second)
        making.target = tuple(i for i in making.target if i != second)
        for part in making.parts:
            part.gradient = tuple(i for i in part.gradient if i != second)
            part.other = tuple(i for i in part.other if i != second)


def _neighbours(making: _Making) -> Iterator[tuple[str, str]]:
    for index in making.indices():
        for first, second in itertools.pairwise(index):
            if not (isinstance(first, str) and isinstance(second, str)):
                continue
            if all(_beside(first, second, other) for other in making.indices()):
                yield first, second


def _beside(first: str, second: str, index: tuple[Index, ...]) -> bool:
    """Whether an index has both, one after the other, or neither."""
    found = [i if isinstance(i, int) else next(_named([i])) for i in index]
    if first not in found and second not in found:
        return True
    places = [n for n, i in enumerate(index) if i == first]
    return len(places) == 1 and index[places[0] + 1 : places[0] + 2] == (second,)


def _written(
    program: Program,
    arrays: Mapping[str, Tensor],
    making: _Making,
    originals: Sequence[tuple[tuple[Index, ...], tuple[Index, ...]]],
    result: str,
) -> Piece:
    iterators = Iterators([*arrays, *program.sizes, *map(str, making.extents.values()), result])
    rows = [i for i in making.target if isinstance(i, str)]
    names = dict(zip(rows, iterators.output(len(rows)), strict=True))
    inputs: dict[tuple[str, Groups, tuple[Dim, ...]], Tensor] = {}
    statements: list[Statement] = []
    sums: list[Access] = []
    domain = tuple((names[i], making.extents[i]) for i in rows)
    here = tuple(iterator for iterator, _ in domain)
    value = "v"
    while any(name.startswith(value) for name in arrays):
        value += "_"

    def read(name: str, index: tuple[Index, ...], before: tuple[Index, ...], kind: DType) -> str:
        """The input that stands for an array under merged axes."""
        tensor, groups = arrays[name], _groups(making, index, before)
        dims = tuple(
            making.extents[i] if isinstance(i, str) else tensor.dims[axes[0]]
            for i, axes in zip(index, groups, strict=True)
        )
        key = (name, groups, dims)
        if key not in inputs:
            own, count = name, 0
            while any(own == t.name for t in inputs.values()):
                count += 1
                own = f"{name}_{count}"
            inputs[key] = Tensor(own, kind, dims, tuple(range(len(dims))))
        return inputs[key].name

    for part, before in zip(making.parts, originals, strict=True):
        summed = [i for i in _iterators(part.gradient, part.other) if i not in names]
        own = names | dict(zip(summed, iterators.summed(len(summed)), strict=True))
        kind = arrays[part.names[1]].dtype
        left = read(part.names[0], part.gradient, before[0], kind)
        right = read(part.names[1], part.other, before[1], kind)
        write = Access(f"{value}{len(statements)}", here)
        statements.append(
            Contraction(
                f"S{len(statements)}",
                (*domain, *((own[i], making.extents[i]) for i in summed)),
                write,
                Access(left, _renamed(part.gradient, own)),
                Access(right, _renamed(part.other, own)),
                F32,
            )
        )
        sums.append(write)
    total = sums[0]
    for one in sums[1:]:
        write = Access(f"{value}{len(statements)}", here)
        statements.append(Pointwise(f"P{len(statements)}", domain, write, "add", (total, one), F32))
        total = write
    kind = arrays[making.parts[0].names[1]].dtype
    stored = F32 if kind == TF32 else kind
    output = Tensor(result, stored, tuple(e for _, e in domain), tuple(range(len(domain))))
    statements.append(
        Pointwise(f"P{len(statements)}", domain, Access(result, here), "cast", (total,), stored)
    )
    made = Program(
        f"{program.name}_{result}",
        f"what reaches {result.partition('_')[2]} of {program.source}",
        tuple(inputs.values()),
        (output,),
        tuple(statements),
    )
    groups = tuple(key[1] for key in inputs)
    return Piece(made, tuple(key[0] for key in inputs), groups, (result,))


def _iterators(*indices: tuple[Index, ...]) -> list[str]:
    found = [i for index in indices for i in _named(index)]
    return list(dict.fromkeys(found))


def _groups(making: _Making, index: tuple[Index, ...], before: tuple[Index, ...]) -> Groups:
    """Per axis of a merged index, the axes of the array that it is made of."""
    groups = []
    axis = 0
    for one in index:
        width = len(making.merged[one]) if isinstance(one, str) else 1
        groups.append(tuple(range(axis, axis + width)))
        axis += width
    assert axis == len(before)
    return tuple(groups)
