"""The derivative of a program whose products multiply what others sum: by parts, the last first.

    h = relu(x @ u); y = h @ d          h again, of x and u            (a piece of the first part)
                                        dh, dd of the second part, whose cotangent is that of y
                                        dx, du of the first part, whose cotangent is dh

1. The program is cut behind its products of the first level (`polygen.rewrite.cuts`), or behind
   those of one operand where these have no derivative together; what is left is cut again. Results
   over several domains are cut from each other, and need not have anything between.
2. What lies between is computed again, so that nothing but arguments has to be kept. What reaches
   it is a gradient of the second part, in its own type, and a cotangent of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from polygen.adapters.backward_products import Piece, whole
from polygen.errors import GradientError
from polygen.frontend.closure import multiplies_sums, needed
from polygen.frontend.dtypes import F32, TF32, DType
from polygen.frontend.program import Dim, Program, Tensor
from polygen.rewrite.cuts import Cut, cuts

_FLOAT = "float"
Length = int | tuple[str, int]  # a number, or an axis of an array


@dataclass(frozen=True, slots=True)
class Term:
    """A part of one argument's gradient: what one array gives after sums over some of its axes.

    Attributes:
        source: the array: of the call, or a result of a piece.
        summed: axes of the source to sum over.
        order: of those that remain, as the argument has them; axes of size 1 are left out. Empty:
            as they are.
    """

    source: str
    summed: tuple[int, ...] = ()
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Total:
    """What reaches an array that a piece makes, put together before pieces read it.

    Attributes:
        name: what it is called.
        terms: its parts.
        shape: numbers, or axes of arguments that are as long.
        dtype: of its elements.
    """

    name: str
    terms: tuple[Term, ...]
    shape: tuple[Length, ...]
    dtype: DType

    def extents(self, shapes: Callable[[str], Sequence[int]]) -> tuple[int, ...]:
        """The shape in numbers, where arguments have these."""
        return tuple(one if isinstance(one, int) else shapes(one[0])[one[1]] for one in self.shape)


@dataclass(frozen=True, slots=True)
class Gradient:
    """How the gradients of a program's arguments are computed.

    Attributes:
        cotangents: names of the gradients of the outputs, in order.
        saved: the arguments that are read.
        pieces: programs, and totals of what they give, in order; each reads arguments, cotangents
            and results of earlier ones.
        terms: per argument that was asked for the parts of its gradient; without any it is zero.
    """

    cotangents: tuple[str, ...]
    saved: tuple[str, ...]
    pieces: tuple[Piece | Total, ...]
    terms: tuple[tuple[str, tuple[Term, ...]], ...]


Derive = Callable[[Program, frozenset[str], frozenset[str] | None], Gradient]


def saved(program: Program, pieces: Iterable[Piece | Total]) -> tuple[str, ...]:
    """The arguments that pieces read."""
    read = {name for piece in pieces if isinstance(piece, Piece) for name in piece.operands}
    return tuple(tensor.name for tensor in program.inputs if tensor.name in read)


def derive_by_cuts(
    program: Program, wanted: frozenset[str], derive: Derive, apart: frozenset[str] | None
) -> Gradient:
    """The derivative of a program of several levels of products, or of several domains.

    Args:
        program: what is differentiated.
        wanted: names of the arrays whose gradients are asked for.
        derive: gives the derivative of a part.
        apart: as for that.

    Raises:
        GradientError: a part has none, however the program is cut.
    """
    reasons: list[GradientError] = []
    for cut in cuts(program, {}):
        if multiplies_sums(cut.before):
            continue
        try:
            return _Parts(program, cut, wanted, apart).derived(derive)
        except GradientError as reason:
            reasons.append(reason)
    raise reasons[0]


@dataclass(frozen=True, slots=True)
class _Parts:
    """A program as two, to be differentiated.

    Attributes:
        program: the whole.
        cut: its parts.
        wanted: arrays whose gradients are asked for.
        apart: arrays whose gradients keep all of their axes; None: axes may become one.
    """

    program: Program
    cut: Cut
    wanted: frozenset[str]
    apart: frozenset[str] | None

    def derived(self, derive: Derive) -> Gradient:
        """The derivative, of those of the parts."""
        before, after = self.cut.before, self.cut.after
        cotangents = {tensor.name: f"{tensor.name} arrives" for tensor in self.program.outputs}
        again = whole(_outputs(before, [tensor.name for tensor in self.cut.between]))
        again = replace(again, again=True)
        reached = self._reached()
        apart = None if self.apart is None else self.apart | reached
        read = frozenset(tensor.name for tensor in after.inputs)
        last = self._in_whole(
            _renamed(
                derive(after, read & (self.wanted | reached), apart),
                after,
                cotangents,
                "of the second part",
            )
        )
        terms = dict(last.terms)
        arrived = {name: terms[name] for name in sorted(reached) if terms.get(name)}
        totals = []
        for name, parts in arrived.items():
            cotangents[name] = f"{name} arrives"
            totals.append(self._total(cotangents[name], name, parts))
        own = [tensor.name for tensor in before.outputs if tensor.name in self.program.tensors]
        read_first = frozenset(tensor.name for tensor in before.inputs) & self.wanted
        first: tuple[Piece | Total, ...] = ()
        if read_first and (arrived or own):
            part = _outputs(before, [*arrived, *own])
            made = derive(part, read_first, self.apart)
            found = _renamed(made, part, cotangents, "of the first part")
            first = found.pieces
            for name, parts in found.terms:
                terms[name] = (*terms.get(name, ()), *parts)
        pieces = (
            _in_order(again, last.pieces, totals, first)
            if self.cut.between
            else (*last.pieces, *first)
        )
        order = tuple((name, terms.get(name, ())) for name in sorted(self.wanted))
        outputs = tuple(cotangents[tensor.name] for tensor in self.program.outputs)
        return Gradient(outputs, saved(self.program, pieces), pieces, order)

    def _in_whole(self, gradient: Gradient) -> Gradient:
        """The second part's derivative, with lengths that arguments have."""
        between = {tensor.name: tensor for tensor in self.cut.between}

        def length(one: Length) -> Length:
            if isinstance(one, int) or one[0] not in between:
                return one
            return self._length(between[one[0]].dims[one[1]])

        pieces = tuple(
            replace(piece, shape=tuple(map(length, piece.shape)))
            if isinstance(piece, Total)
            else piece
            for piece in gradient.pieces
        )
        return replace(gradient, pieces=pieces)

    def _total(self, called: str, name: str, parts: tuple[Term, ...]) -> Total:
        """What arrives at an array between."""
        (tensor,) = (one for one in self.cut.between if one.name == name)
        dtype = F32 if tensor.dtype == TF32 else tensor.dtype
        lengths = tuple(map(self._length, tensor.dims))
        return Total(called, parts, lengths, dtype)

    def _length(self, dim: Dim) -> Length:
        if isinstance(dim, int):
            return dim
        for tensor in self.program.inputs:
            if dim in tensor.dims:
                return tensor.name, tensor.dims.index(dim)
        raise GradientError(
            f"an axis of {dim} between products",
            where=self.program.name,
            why="what arrives there has the length of an argument's axis",
            nearest="Reshape outside the function",
        )

    def _reached(self) -> frozenset[str]:
        """The arrays between that are made of what gradients are asked for."""
        found = set()
        for tensor in self.cut.between:
            if tensor.dtype.kind != _FLOAT:
                continue
            own = needed(self.cut.before.statements, [tensor.name])
            if any(access.name in self.wanted for one in own for access in one.reads):
                found.add(tensor.name)
        return frozenset(found)


def _in_order(
    again: Piece,
    last: Sequence[Piece | Total],
    totals: Sequence[Total],
    first: Sequence[Piece | Total],
) -> tuple[Piece | Total, ...]:
    """All pieces, each behind those whose results it reads.

    The first part's products are computed again for what lies between and for the first part's own
    derivative. Where what arrives there needs nothing of what lies between, one program does both.

    Args:
        again: makes what lies between.
        last: of the second part's derivative.
        totals: what arrives at what lies between.
        first: of the first part's derivative.
    """
    wanted = {term.source for one in totals for term in one.terms}
    early = []
    for piece in reversed(last):
        if wanted.intersection(made_by(piece)):
            wanted |= set(read_by(piece))
            early.append(piece)
    early.reverse()
    local = first[0] if first else None
    free = not any({*again.results}.intersection(read_by(piece)) for piece in early)
    both = joined(local, again) if isinstance(local, Piece) and free else None
    if both is None:
        return (again, *last, *totals, *first)
    late = (piece for piece in last if piece not in early)
    return (*early, *totals, both, *late, *first[1:])


def made_by(piece: Piece | Total) -> tuple[str, ...]:
    """What a piece gives, as the call knows it."""
    return piece.results if isinstance(piece, Piece) else (piece.name,)


def read_by(piece: Piece | Total) -> tuple[str, ...]:
    """What a piece reads, as the call knows it."""
    if isinstance(piece, Piece):
        return piece.operands
    return tuple(term.source for term in piece.terms)


def joined(local: Piece, again: Piece) -> Piece | None:
    """One program for two that compute the same products; None: they do not."""
    one, other = local.program, again.program
    known = {statement.name: statement for statement in one.statements}
    writes = {statement.write.name for statement in one.statements}
    more = [statement for statement in other.statements if statement not in one.statements]
    apart = any(s.name in known or s.write.name in writes for s in more)
    if apart or not {*other.contractions} <= {*one.contractions}:
        return None
    given = dict(zip(one.inputs, zip(local.operands, local.groups, strict=True), strict=True))
    each = zip(other.inputs, zip(again.operands, again.groups, strict=True), strict=True)
    given |= {tensor: found for tensor, found in each if tensor not in given}
    if len({tensor.name for tensor in given}) < len(given):
        return None
    program = replace(
        one,
        inputs=tuple(given),
        outputs=(*one.outputs, *other.outputs),
        statements=(*one.statements, *more),
    )
    groups = tuple(found[1] for found in given.values())
    operands = tuple(found[0] for found in given.values())
    return Piece(program, operands, groups, (*local.results, *again.results), again=True)


def _outputs(program: Program, names: list[str]) -> Program:
    """A program with some of its outputs alone."""
    statements = tuple(needed(program.statements, names))
    read = {access.name for one in statements for access in one.reads}

    def some(tensors: tuple[Tensor, ...], wanted: Iterable[str]) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in tensors if tensor.name in wanted)

    return replace(
        program,
        inputs=some(program.inputs, read),
        outputs=some(program.outputs, names),
        statements=statements,
    )


def _renamed(
    gradient: Gradient, program: Program, cotangents: Mapping[str, str], whose: str
) -> Gradient:
    """A part's derivative in the names of the whole.

    Args:
        gradient: the derivative.
        program: the part.
        cotangents: what arrives at each output.
        whose: for what the part's own pieces give.
    """
    outputs = (cotangents[tensor.name] for tensor in program.outputs)
    names = dict(zip(gradient.cotangents, outputs, strict=True))
    for piece in gradient.pieces:
        names |= {name: f"{name} {whose}" for name in made_by(piece)}

    def called(name: str) -> str:
        return names.get(name, name)

    def parts(terms: tuple[Term, ...]) -> tuple[Term, ...]:
        return tuple(replace(term, source=called(term.source)) for term in terms)

    pieces = tuple(
        replace(
            piece,
            operands=tuple(map(called, piece.operands)),
            results=tuple(map(called, piece.results)),
        )
        if isinstance(piece, Piece)
        else replace(piece, name=called(piece.name), terms=parts(piece.terms))
        for piece in gradient.pieces
    )
    return replace(
        gradient,
        cotangents=tuple(map(called, gradient.cotangents)),
        pieces=pieces,
        terms=tuple((name, parts(found)) for name, found in gradient.terms),
    )
