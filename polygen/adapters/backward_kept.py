"""The derivative of a program whose forward pass stores more than its results.

    h = relu(x @ u); y = h @ d          forward: y, and z = x @ u
                                        dz, h = relu'(z) * (dy @ d.T), relu(z)      (one kernel)
                                        dd = h.T @ dy; du = x.T @ dz; dx = dz @ u.T

What is computed again has products, which take as long as in the forward pass. Kept in their place
are

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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from polygen.adapters.backward_cuts import Gradient, Total, joined, made_by, read_by, saved
from polygen.adapters.backward_factors import factors, products
from polygen.adapters.backward_fused import called, fused, stored
from polygen.adapters.backward_products import Piece, each_apart
from polygen.adapters.gradients import derive
from polygen.adapters.legality import refusal_in_order
from polygen.errors import ArgumentError, GradientError
from polygen.frontend.dtypes import DType
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
    keeping.make_from_products()
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
        if needed.isdisjoint(made_by(piece)):
            continue
        needed |= set(read_by(piece))
        pieces.append(piece)
    pieces.reverse()
    made = Gradient(gradient.cotangents, saved(program, pieces), tuple(pieces), terms)
    return replace(kept, gradient=made)


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
        multiplied: pieces whose results are kept.
        fused: what fused pieces are made of: a piece that gave what arrives, that, and the one that
            computed products again; and the fused one.
    """

    program: Program
    gradient: Gradient
    pieces: list[Piece | Total]
    names: list[str] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    stores: list[Statement] = field(default_factory=list)
    multiplied: list[Piece] = field(default_factory=list)
    fused: list[tuple[Piece, Total, Piece, Piece]] = field(default_factory=list)
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
        made = fused(host, arrived[0], piece) if host is not None else None
        if host is None or made is None:
            return
        for product in piece.program.contractions:
            self._keep(called(product), product, stored(piece.program, product))
        self.pieces.remove(host)
        self.pieces.remove(arrived[0])
        self.pieces[self.pieces.index(piece)] = made
        self.fused.append((host, arrived[0], piece, made))

    def make_from_products(self) -> None:
        """What is multiplied is not kept where the products that it is made of are: the piece that
        has their derivative gives it, if all that read it can wait for that.
        """
        for piece in self.multiplied:
            for place, (host, total, local, before) in enumerate(self.fused):
                both = joined(local, piece)
                made = None if both is None else fused(host, total, both)
                if both is None or made is None or len(both.results) == len(local.results):
                    continue
                given = [one if one is not before else made for one in self.pieces]
                found = self._in_order(given, [n for n in self.names if n not in piece.results])
                if found is not None:
                    self.pieces, self.fused[place] = found, (host, total, both, made)
                    self._forget(piece.results)
                    break

    def _in_order(
        self, pieces: list[Piece | Total], names: Sequence[str]
    ) -> list[Piece | Total] | None:
        """Pieces behind those whose results they read; None: there is no such order."""
        known = {*self.gradient.cotangents, *names, *(t.name for t in self.program.inputs)}
        left, found = list(pieces), list[Piece | Total]()
        while left:
            ready = next((one for one in left if known.issuperset(read_by(one))), None)
            if ready is None:
                return None
            left.remove(ready)
            found.append(ready)
            known |= set(made_by(ready))
        return found

    def _forget(self, names: Sequence[str]) -> None:
        """Results of the forward pass that are not kept after all."""
        for name in names:
            place = self.names.index(name)
            self.names.pop(place)
            tensor = self.tensors.pop(place)
            self.stores = [one for one in self.stores if one.write.name != tensor.name]

    def _keep_results(self, piece: Piece) -> None:
        """The results of a piece are kept, and it goes."""
        writers = {one.write.name: one for one in piece.program.statements}
        for tensor, name in zip(piece.program.outputs, piece.results, strict=True):
            writer = writers[tensor.name]
            assert isinstance(writer, Pointwise)
            self._store(name, replace(tensor, name=self.fresh("m")), writer)
        self.pieces.remove(piece)
        self.multiplied.append(piece)

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
        groups = tuple(map(each_apart, made.inputs))
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
        readers = [one for one in self.pieces if source in read_by(one)]
        later = [one for one in self.pieces if total.name in read_by(one)]
        if readers != [total] or len(later) != 1 or self._is_term(source, total.name):
            return None
        made = (one for one in self.pieces if isinstance(one, Piece) and one.results == (source,))
        found = next(made, None)
        return None if found is None or found.again else found

    def _is_term(self, *names: str) -> bool:
        return any(term.source in names for _, found in self.gradient.terms for term in found)
