"""The derivative of a program whose forward pass stores more than its results.

    h = relu(x @ u); y = h @ d          forward: y, and z = x @ u
                                        dz, h = relu'(z) * (dy @ d.T), relu(z)      (one kernel)
                                        dd = h.T @ dy; du = x.T @ dz; dx = dz @ u.T

What is computed again has products, which take as long as in the forward pass. Kept in their place
are, in the type in which they would be multiplied,

1. the values of products that a derivative is taken behind, where a product's kernel gives what
   arrives there: its pointwise work has the derivative in it, and what is multiplied once more;
2. what is multiplied, where no derivative is taken;
3. the derivative itself, where what arrives comes from outside: the forward pass has in registers
   what it is made of, and the backward pass multiplies it by what arrives.

       y = relu(x @ u)                  forward: y, and p = relu'(x @ u)
                                        dz = dy * p; du = x.T @ dz; dx = dz @ u.T
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from polygen.adapters.backward_cuts import Gradient, Total, saved
from polygen.adapters.backward_factors import factors, products
from polygen.adapters.backward_products import Piece
from polygen.adapters.gradients import derive
from polygen.adapters.legality import refusal_in_order
from polygen.errors import ArgumentError, GradientError
from polygen.frontend.dtypes import F32, DType
from polygen.frontend.program import (
    Access,
    Contraction,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.rewrite.simplify import Fresh

KEEPS = ("products", "arguments")  # what a backward pass may read beside gradients


def require_known(kept: str, where: str) -> None:
    """Refuse what cannot be kept.

    Raises:
        ArgumentError: it is none of `KEEPS`.
    """
    if kept not in KEEPS:
        raise ArgumentError(
            f"keep={kept!r}",
            where=where,
            why="it says what a backward pass may read beside gradients",
            nearest=" or ".join(map(repr, KEEPS)),
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """How gradients are computed of what a forward pass keeps.

    Attributes:
        gradient: of arguments, and what is kept.
        forward: the program with what is kept behind its outputs.
        names: what pieces call these, in order.
    """

    gradient: Gradient
    forward: Program
    names: tuple[str, ...]


@functools.lru_cache(maxsize=1024)
def keep(program: Program, wanted: frozenset[str]) -> Kept | None:
    """The derivative of a program that keeps products' values; None: there are none to keep.

    Args:
        program: what is differentiated.
        wanted: names of the arrays whose gradients are asked for.

    Raises:
        GradientError: there is no derivative, or it is not derived.
    """
    gradient = derive(program, wanted, frozenset())
    keeping = _Keeping(program, gradient, list(gradient.pieces))
    for piece in gradient.pieces:
        if isinstance(piece, Piece) and piece.again:
            keeping.replace(piece)
    if not keeping.names:
        return None
    pieces = tuple(keeping.pieces)
    made = replace(gradient, saved=saved(program, pieces), pieces=pieces)
    return Kept(made, keeping.forward(), tuple(keeping.names))


@functools.lru_cache(maxsize=1024)
def keep_if_possible(program: Program) -> Kept | None:
    """How gradients of all arguments of float type are computed of what a forward pass keeps.

    None: nothing is to be kept, one of them has no derivative, or no kernels are made of the
    forward pass.
    """
    wanted = frozenset(t.name for t in program.inputs if t.dims and t.dtype.kind == "float")
    try:
        found = keep(program, wanted)
    except GradientError:
        return None
    return None if found is None or refusal_in_order(found.forward) else found


def of_some(kept: Kept, wanted: frozenset[str]) -> Kept:
    """The gradients of some of the arguments alone."""
    gradient, program = kept.gradient, kept.forward
    terms = tuple((name, found if name in wanted else ()) for name, found in gradient.terms)
    needed = {term.source for _, found in terms for term in found}
    pieces: list[Piece | Total] = []
    for piece in reversed(gradient.pieces):
        if needed.isdisjoint(piece.results if isinstance(piece, Piece) else (piece.name,)):
            continue
        needed |= set(_read(piece))
        pieces.append(piece)
    pieces.reverse()
    made = Gradient(gradient.cotangents, saved(program, pieces), tuple(pieces), terms)
    return replace(kept, gradient=made)


def _read(piece: Piece | Total) -> tuple[str, ...]:
    if isinstance(piece, Piece):
        return piece.operands
    return tuple(term.source for term in piece.terms)


@dataclass(slots=True)
class _Keeping:
    """A derivative under change.

    Attributes:
        program: what is differentiated.
        gradient: its derivative.
        pieces: of the derivative, as they are now.
        names: what is kept, as pieces call it.
        tensors: as outputs of the forward pass.
        stores: statements that write these.
    """

    program: Program
    gradient: Gradient
    pieces: list[Piece | Total]
    names: list[str] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    stores: list[Statement] = field(default_factory=list)
    fresh: Fresh = field(init=False)

    def __post_init__(self) -> None:
        taken = [*self.program.tensors, *self.program.sizes]
        self.fresh = Fresh(self.program.statements, taken)

    def forward(self) -> Program:
        """The program with what is kept behind its outputs."""
        return replace(
            self.program,
            outputs=(*self.program.outputs, *self.tensors),
            statements=(*self.program.statements, *self.stores),
        )

    def replace(self, piece: Piece) -> None:
        """Let a piece compute no product of the forward pass again, if that can be."""
        arrived = [t for t in self.pieces if isinstance(t, Total) and t.name in piece.operands]
        if not arrived:
            outside = [name for name in piece.operands if name in self.gradient.cotangents]
            if not outside:
                self._keep_results(piece)
            elif len(outside) == 1 and len(piece.results) <= len(piece.program.contractions):
                self._keep_factors(piece, outside[0])
            return
        if len(arrived) > 1:
            return
        host = self._host(arrived[0])
        fused = _fused(host, arrived[0], piece) if host is not None else None
        if host is None or fused is None:
            return
        for product in piece.program.contractions:
            self._keep(_called(product), product, _stored(piece.program, product))
        self.pieces.remove(host)
        self.pieces.remove(arrived[0])
        self.pieces[self.pieces.index(piece)] = fused

    def _keep_results(self, piece: Piece) -> None:
        """The results of a piece are kept, and it goes."""
        writers = {one.write.name: one for one in piece.program.statements}
        for tensor, name in zip(piece.program.outputs, piece.results, strict=True):
            writer = writers[tensor.name]
            assert isinstance(writer, Pointwise)
            self._store(name, replace(tensor, name=self.fresh("m")), writer)
        self.pieces.remove(piece)

    def _keep_factors(self, piece: Piece, outside: str) -> None:
        """What a piece multiplies what arrives by is kept, and it multiplies; or it stays.

        Args:
            piece: computes products of the forward pass again, and what reaches them.
            outside: what arrives.
        """
        found = factors(piece, outside, self.program, self.fresh)
        if found is None:
            return
        stores, given = found
        names = [f"{result}, for a gradient of 1" for result in piece.results]
        for name, (tensor, statements) in zip(names, stores, strict=True):
            self.stores += statements
            self.tensors.append(tensor)
            self.names.append(name)
        made = products(piece.program, given, [tensor for tensor, _ in stores])
        groups = tuple(tuple((axis,) for axis in range(len(t.dims))) for t in made.inputs)
        pairs = tuple((outside, name) for name in names)
        self.pieces[self.pieces.index(piece)] = Piece(
            made, (outside, *names), groups, piece.results, factors=pairs
        )

    def _keep(self, name: str, product: Contraction, dtype: DType) -> None:
        """What a product sums is kept."""
        if name in self.names:
            return
        extents, here = dict(product.domain), product.write.index
        domain = tuple((it, extents[it]) for it in product.write.iterators)
        dims = tuple(extent for _, extent in domain)
        tensor = Tensor(self.fresh("z"), dtype, dims, tuple(range(len(dims))))
        store = Pointwise("", domain, Access(tensor.name, here), "cast", (product.write,), dtype)
        self._store(name, tensor, store)

    def _store(self, name: str, tensor: Tensor, writer: Pointwise) -> None:
        write = replace(writer.write, name=tensor.name)
        self.stores.append(replace(writer, name=self.fresh("P"), write=write))
        self.tensors.append(tensor)
        self.names.append(name)

    def _host(self, total: Total) -> Piece | None:
        """The piece whose only result is what arrives, for nobody else; None: there is none."""
        if len(total.terms) != 1 or total.terms[0].summed or total.terms[0].order:
            return None
        source = total.terms[0].source
        readers = [one for one in self.pieces if source in _read(one)]
        later = [one for one in self.pieces if total.name in _read(one)]
        if readers != [total] or len(later) != 1 or self._is_term(source, total.name):
            return None
        made = (one for one in self.pieces if isinstance(one, Piece) and one.results == (source,))
        found = next(made, None)
        return None if found is None or found.again else found

    def _is_term(self, *names: str) -> bool:
        return any(term.source in names for _, found in self.gradient.terms for term in found)


def _called(product: Contraction) -> str:
    return f"{product.write.name} is kept"


def _stored(program: Program, product: Contraction) -> DType:
    """In what type sums are kept: in that of what is multiplied, or as they are."""
    tensor = program.tensors.get(product.lhs.name)
    if tensor is None or tensor.dtype.bits > 16:
        return product.dtype
    return tensor.dtype


def _fused(host: Piece, total: Total, piece: Piece) -> Piece | None:
    """One piece for a product and what is computed of it and of what is kept; None: it is none.

    Args:
        host: computes what arrives.
        total: names it.
        piece: computes products of the forward pass again, and reads what arrives.
    """
    local, (given,) = piece.program, host.program.outputs
    place = piece.operands.index(total.name)
    arrived, groups = local.inputs[place], piece.groups[place]
    if any(len(axes) != 1 for axes in groups) or len(groups) != len(arrived.dims):
        return None
    if (given.dims, given.dtype) != (arrived.dims, total.dtype):
        return None
    here = local.pointwise[0].domain
    iterators = tuple(iterator for iterator, _ in here)
    reads = {a.index for s in local.statements for a in s.reads if a.name == arrived.name}
    sums = {product.write.name for product in local.contractions}
    points = {product.write.index for product in local.contractions}
    if reads != {iterators} or points != {iterators}:
        return None
    kept = [statement for statement in local.statements if statement.write.name not in sums]
    fresh = Fresh(
        [*local.statements, *host.program.statements],
        [*local.tensors, *local.sizes, *host.program.tensors, *iterators],
    )
    inside = _Renamed.of(host, piece, iterators, fresh)
    value = inside.names[given.name]
    used = {a.name for s in kept for a in s.reads}
    inputs = dict(zip(local.inputs, zip(piece.operands, piece.groups, strict=True), strict=True))
    inputs = {tensor: one for tensor, one in inputs.items() if tensor.name in used}
    inputs.pop(arrived, None)
    for product in local.contractions:
        dims = tuple(extent for _, extent in here)
        dtype = _stored(local, product)
        tensor = Tensor(product.write.name, dtype, dims, tuple(range(len(dims))))
        inputs[tensor] = (_called(product), tuple((axis,) for axis in range(len(dims))))
    inputs |= inside.inputs
    program = Program(
        f"{local.name}_kept",
        local.source,
        tuple(inputs),
        local.outputs,
        (*inside.statements, *(_reading(one, arrived.name, value) for one in kept)),
    )
    operands = tuple(name for name, _ in inputs.values())
    return Piece(program, operands, tuple(axes for _, axes in inputs.values()), piece.results)


@dataclass(frozen=True, slots=True)
class _Renamed:
    """The statements of a piece under names that another one has not.

    Attributes:
        names: of values and inputs.
        inputs: with what they are in the call, and how its axes are taken.
        statements: in order.
    """

    names: Mapping[str, str]
    inputs: Mapping[Tensor, tuple[str, tuple[tuple[int, ...], ...]]]
    statements: tuple[Statement, ...]

    @classmethod
    def of(cls, host: Piece, beside: Piece, iterators: Sequence[str], fresh: Fresh) -> _Renamed:
        """What a piece computes, over the iterators of the one that reads it."""
        program = host.program
        own = [iterator for iterator, _ in program.pointwise[-1].domain]
        summed = {it for product in program.contractions for it in product.summed}
        places = dict(zip(own, iterators, strict=True))
        places |= {it: fresh(it) if it in iterators else it for it in sorted(summed)}
        known = {
            (name, axes, tensor.dims): tensor
            for tensor, name, axes in zip(
                beside.program.inputs, beside.operands, beside.groups, strict=True
            )
        }
        names, inputs = dict[str, str](), {}
        for tensor, name, axes in zip(program.inputs, host.operands, host.groups, strict=True):
            same = known.get((name, axes, tensor.dims))
            found = same or replace(tensor, name=fresh("g"))
            names[tensor.name] = found.name
            inputs[found] = (name, axes)
        for statement in program.statements:
            names[statement.write.name] = fresh("w")

        def access(one: Access) -> Access:
            index = tuple(places.get(i, i) if isinstance(i, str) else i for i in one.index)
            return Access(names.get(one.name, one.name), index)

        made: list[Statement] = []
        for one in program.statements:
            if isinstance(one, Pointwise) and one.function == "cast" and one.dtype == F32:
                (value,) = one.reads  # what is computed is f32
                names[one.write.name] = names[value.name]
                continue
            domain = tuple((places.get(it, it), extent) for it, extent in one.domain)
            if isinstance(one, Contraction):
                changed: Statement = replace(one, lhs=access(one.lhs), rhs=access(one.rhs))
            else:
                assert isinstance(one, Pointwise)
                args = tuple(access(a) if isinstance(a, Access) else a for a in one.args)
                changed = replace(one, args=args)
            write = access(one.write)
            made.append(replace(changed, name=fresh("S"), domain=domain, write=write))
        return cls(names, inputs, tuple(made))


def _reading(one: Statement, name: str, value: str) -> Statement:
    """A statement that reads a value for an array."""
    assert isinstance(one, Pointwise)
    args = (
        replace(arg, name=value) if isinstance(arg, Access) and arg.name == name else arg
        for arg in one.args
    )
    return replace(one, args=tuple(args))
