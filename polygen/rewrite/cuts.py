"""Where a program of several products is cut into two, of which the second reads what the first
stores.

    S0  v0[i,j] += x[i,k] * u[k,j]                       first: m0 = v1
    P1  v1[i,j] = cast(gelu(v0[i,j]))
    S2  v2[i,l] += v1[i,j] * d[j,l]                      second: reads m0 for v1

1. A product is of level 1 if no other is behind its operands, else one level behind the highest of
   those that are. A cut behind level n has the products up to there that operands behind it are
   made of; those that nothing multiplies again stay with what adds them up.
2. Products that no other is behind can also be cut from each other: those of one result, those of
   one domain, and each alone.
3. What the second part reads of the first is stored as it is: an operand in the type in which it is
   multiplied, anything else as what it is computed in. So both parts round as the whole does.
4. Results that are made of the first part alone are the first part's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from polygen.frontend.closure import needed
from polygen.frontend.dtypes import F32, TF32, DType
from polygen.frontend.indices import named_in, size_value
from polygen.frontend.program import (
    Access,
    Contraction,
    Dim,
    Fold,
    Pointwise,
    Program,
    Statement,
    Tensor,
    Within,
)
from polygen.rewrite.check_cuts import check_cut
from polygen.rewrite.simplify import Fresh
from polygen.rewrite.values import Values

_UNKNOWN = 4096  # a size that nobody has named, where cuts are compared


@dataclass(frozen=True, slots=True)
class Cut:
    """A program as two.

    Attributes:
        before: what runs first.
        after: what runs then; outputs of `before` are among its inputs.
        between: these.
    """

    before: Program
    after: Program
    between: tuple[Tensor, ...]


def cuts(program: Program, sizes: Mapping[str, int], taken: Collection[str] = ()) -> Iterator[Cut]:
    """The cuts of a program, the one with most products in the first part first, and last those
    between products that need not be apart.

    Args:
        program: of several products; it stores into no argument.
        sizes: as far as they are known.
        taken: names that no array between the parts may have.
    """
    seen: list[frozenset[str]] = []
    for first in _firsts(program, sizes):
        if first and first not in seen:
            seen.append(first)
            spread = _spread(program, first)
            found = [_cut(program, first, taken, spread)] if spread else []
            found.append(_cut(program, first, taken))
            yield from (cut for cut in found if cut.before.inputs)  # else it stores constants


def _firsts(program: Program, sizes: Mapping[str, int]) -> Iterator[frozenset[str]]:
    """Products that a cut has in front of it, by what they sum."""
    behind, at = _products_behind(program), levels(program)
    for level in range(max(at.values()) - 1, 0, -1):
        later = [name for name in at if at[name] > level]
        found = frozenset().union(*(behind[name] for name in later))
        yield frozenset(name for name in found if at[name] <= level)
    for alone in (_of_operands(program), _beside(program)):
        yield from sorted(alone, key=lambda one: _elements(program, one, sizes))


def _products_behind(program: Program) -> dict[str, frozenset[str]]:
    """The products that every product's operands are made of, by what they sum."""
    values = Values(program.statements)
    sums = {product.write.name for product in program.contractions}
    return {
        product.write.name: frozenset().union(
            *(values.behind(access.name) & sums for access in product.reads)
        )
        for product in program.contractions
    }


def levels(program: Program) -> dict[str, int]:
    """How many products lie behind each other up to each, itself counted."""
    behind, found = _products_behind(program), dict[str, int]()
    for product in program.contractions:  # each behind what it reads
        name = product.write.name
        found[name] = 1 + max((found[one] for one in behind[name]), default=0)
    return found


def _of_operands(program: Program) -> list[frozenset[str]]:
    """The products that a single operand is made of, which are of level 1."""
    values, at = Values(program.statements), levels(program)
    read = (access.name for product in program.contractions for access in product.reads)
    behind = (values.behind(name) & set(at) for name in read)
    return [one for one in behind if one and all(at[name] == 1 for name in one)]


def _beside(program: Program) -> list[frozenset[str]]:
    """Some of the products, and what is behind them: those of one result, of one domain, each
    alone; most of them first.
    """
    values, behind = Values(program.statements), _products_behind(program)
    results = [values.behind(tensor.name) & set(behind) for tensor in program.outputs]
    domains: dict[tuple[Dim, ...], set[str]] = {}
    for product in program.contractions:
        sizes = dict(product.domain)
        extents = tuple(sizes[iterator] for iterator in product.write.iterators)
        domains.setdefault(extents, set()).add(product.write.name)
    wanted = [*results, *map(frozenset, domains.values()), *(frozenset([one]) for one in behind)]
    closed = [one.union(*(behind[name] for name in one)) for one in wanted]
    return sorted((one for one in closed if len(one) < len(behind)), key=len, reverse=True)


def _elements(program: Program, first: frozenset[str], sizes: Mapping[str, int]) -> int:
    """How many elements a cut stores: what is stored least goes first, and with it operands that a
    chain needs as arguments before the scores that it would keep on chip.
    """
    return sum(
        math.prod(
            size_value(dim, dict.fromkeys(named_in(dim), _UNKNOWN) | dict(sizes))
            for dim in tensor.dims
        )
        for tensor in _cut(program, first, ()).between
    )


def _spread(program: Program, first: frozenset[str]) -> frozenset[str]:
    """Values of the first part that are spread over more axes than anything of it has that they are
    made of, as `x * v[:, None]` of a vector of sums, or made of results of folds beside arguments,
    and what is made of these. The second part can make them.
    """
    values = Values(program.statements)
    sums = {product.write.name for product in program.contractions}
    found: set[str] = set()
    folded: set[str] = set()  # results of folds, and what is made of them alone
    for one in program.statements:
        if not _is_early(values.behind(one.write.name) & sums, first):
            continue
        read = [access for access in one.reads if values.behind(access.name) & sums]
        of_folds = isinstance(one, Pointwise) and {access.name for access in read} <= folded
        if isinstance(one, Fold) or of_folds:
            folded.add(one.write.name)
        if not isinstance(one, Pointwise):
            continue
        if (
            any(access.name in found for access in read)
            or not any({*access.iterators}.issuperset(one.write.iterators) for access in read)
            or (of_folds and len(read) < len(one.reads))
        ):
            found.add(one.write.name)
    return frozenset(found)


def _cut(
    program: Program,
    first: frozenset[str],
    taken: Collection[str],
    spread: frozenset[str] = frozenset(),
) -> Cut:
    values = Values(program.statements)
    sums = {product.write.name for product in program.contractions}
    early = {name for name in values.writers if _is_early(values.behind(name) & sums, first)}
    early -= spread
    free = {name for name in values.writers if not values.behind(name) & sums}
    late = [one for one in program.statements if one.write.name not in early | free]
    crossing = dict.fromkeys(a.name for one in late for a in one.reads if a.name in early)
    crossing = _without_folds_of_others(values, crossing, sums)
    fresh = Fresh(program.statements, [*program.tensors, *program.sizes, *taken])
    names = {name: fresh("m") for name in crossing}
    own = [tensor for tensor in program.outputs if tensor.name in early]
    arrays = _Arrays(program, names)
    stores = [arrays.stored(values.writers[value], fresh) for value in names]
    before = needed([*program.statements, *stores], [*names.values(), *(t.name for t in own)])
    rest = tuple(tensor for tensor in program.outputs if tensor.name not in early)
    statements = [arrays.reading(one) for one in program.statements]
    after = needed(statements, [tensor.name for tensor in rest], names)
    between = tuple(arrays.tensor(values.writers[value], after) for value in names)
    parts = (
        _part(program, before, (), (*map(_as_result, between), *own)),
        _part(program, after, between, rest),
    )
    check_cut(program, *parts, between)
    return Cut(*parts, between)


def _without_folds_of_others(
    values: Values, crossing: dict[str, None], sums: Collection[str]
) -> dict[str, None]:
    """What is stored, but for what folds make of others of these: norms of a residual, which the
    second part makes of it again.
    """
    found = dict(crossing)
    for value in crossing:
        others = {name for name in found if name != value}
        own = needed(values.statements, [value], others)
        folded = any(isinstance(one, Fold) for one in own)
        if folded and not any(one.write.name in sums for one in own):
            del found[value]
    return found


def _is_early(products: Collection[str], first: frozenset[str]) -> bool:
    return bool(products) and first.issuperset(products)


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Values as arrays.

    Attributes:
        program: the whole.
        names: what each value is called as an array.
    """

    program: Program
    names: Mapping[str, str]

    def stored(self, writer: Statement, fresh: Fresh) -> Pointwise:
        """The statement that stores a value."""
        sizes, write = dict(writer.domain), self._access(writer.write)
        domain = tuple((it, sizes[it]) for it in writer.write.iterators)
        if isinstance(writer, Pointwise) and writer.function == "cast":
            return replace(writer, name=fresh("P"), write=write)
        return Pointwise(fresh("P"), domain, write, "cast", (writer.write,), self._computed(writer))

    def _computed(self, writer: Statement) -> DType:
        """In what a value is computed: f32 is what the program computes in, unless it is cast."""
        cast = isinstance(writer, Pointwise) and writer.function == "cast"
        return writer.dtype if cast or writer.dtype != F32 else self.program.real

    def tensor(self, writer: Statement, readers: Collection[Statement]) -> Tensor:
        """The array, as its readers take it: f32 is multiplied as tf32 where its digits are not
        asked for.
        """
        sizes, access = dict(writer.domain), self._access(writer.write)
        dims: tuple[Dim, ...] = tuple(
            sizes.get(at.iterator if isinstance(at, Within) else str(at), 1) for at in access.index
        )
        products = [one for one in readers if isinstance(one, Contraction) and not one.exact]
        multiplied = {access.name for one in products for access in one.reads}
        dtype = self._computed(writer)
        dtype = TF32 if dtype == F32 and access.name in multiplied else dtype
        return Tensor(access.name, dtype, dims, tuple(range(len(dims))))

    def reading(self, one: Statement) -> Statement:
        """A statement that reads arrays for values."""
        if isinstance(one, Contraction):
            return replace(one, lhs=self._access(one.lhs), rhs=self._access(one.rhs))
        args = (self._access(arg) if isinstance(arg, Access) else arg for arg in one.args)
        return replace(one, args=tuple(args))

    def _access(self, access: Access) -> Access:
        """Where an element of a value is in its array: in groups a row is one of all groups'."""
        if access.name not in self.names:
            return access
        index, places = access.index or (0,), self.program.in_groups
        if places and index[0] == places[0].group and isinstance(index[1], str):
            index = (replace(places[0], iterator=index[1]), *index[2:])
        return Access(self.names[access.name], index)


def _as_result(tensor: Tensor) -> Tensor:
    """An array as the first part stores it: tf32 is how products read f32."""
    return replace(tensor, dtype=F32) if tensor.dtype == TF32 else tensor


def _part(
    program: Program,
    statements: Collection[Statement],
    given: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
) -> Program:
    made = Program(program.name, program.source, (), outputs, tuple(statements))
    read = {access.name for one in statements for access in one.reads} | {made.ends}
    inputs = tuple(tensor for tensor in (*program.inputs, *given) if tensor.name in read)
    return replace(made, inputs=inputs)
