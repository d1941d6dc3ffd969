"""The derivative of a program whose products multiply what others sum: by parts, the last first.

    h = relu(x @ u); y = h @ d          h again, of x and u            (a piece of the first part)
                                        dh, dd of the second part, whose cotangent is that of y
                                        dx, du of the first part, whose cotangent is dh

1. The program is cut behind its products of the first level (`polygen.rewrite.cuts`), or behind
   those of one operand where these have no derivative together; what is left is cut again.
2. What lies between is computed again, so that nothing but arguments has to be kept. What reaches
   it is a gradient of the second part, in its own type, and a cotangent of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from polygen.adapters.backward_products import Piece, whole
from polygen.errors import GradientError
from polygen.frontend.closure import multiplies_sums, needed
from polygen.frontend.program import Program, Tensor
from polygen.rewrite.cuts import Cut, cuts

_FLOAT = "float"


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
    """What reaches an array that a piece has made, put together before pieces read it.

    Attributes:
        name: what it is called.
        terms: its parts.
        like: an array of its shape and type.
    """

    name: str
    terms: tuple[Term, ...]
    like: str


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


Derive = Callable[[Program, frozenset[str]], Gradient]


def saved(program: Program, pieces: Iterable[Piece | Total]) -> tuple[str, ...]:
    """The arguments that pieces read."""
    read = {name for piece in pieces if isinstance(piece, Piece) for name in piece.operands}
    return tuple(tensor.name for tensor in program.inputs if tensor.name in read)


def derive_by_cuts(program: Program, wanted: frozenset[str], derive: Derive) -> Gradient:
    """The derivative of a program of several levels of products.

    Args:
        program: what is differentiated.
        wanted: names of the arrays whose gradients are asked for.
        derive: gives the derivative of a part.

    Raises:
        GradientError: a part has none, however the program is cut.
    """
    reasons: list[GradientError] = []
    for cut in cuts(program, {}):
        if multiplies_sums(cut.before):
            continue
        try:
            return _Parts(program, cut, wanted).derived(derive)
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
    """

    program: Program
    cut: Cut
    wanted: frozenset[str]

    def derived(self, derive: Derive) -> Gradient:
        """The derivative, of those of the parts."""
        before, after = self.cut.before, self.cut.after
        cotangents = {tensor.name: f"{tensor.name} arrives" for tensor in self.program.outputs}
        again = _outputs(before, [tensor.name for tensor in self.cut.between])
        pieces: list[Piece | Total] = [whole(again)]
        reached = self._reached()
        read = frozenset(tensor.name for tensor in after.inputs)
        last = _renamed(
            derive(after, read & (self.wanted | reached)), after, cotangents, "of the second part"
        )
        pieces += last.pieces
        terms = dict(last.terms)
        arrived = {name: terms[name] for name in sorted(reached) if terms.get(name)}
        for name, parts in arrived.items():
            cotangents[name] = f"{name} arrives"
            pieces.append(Total(cotangents[name], parts, name))
        own = [tensor.name for tensor in before.outputs if tensor.name in self.program.tensors]
        parts_read = frozenset(tensor.name for tensor in before.inputs) & self.wanted
        if parts_read and (arrived or own):
            part = _outputs(before, [*arrived, *own])
            first = _renamed(derive(part, parts_read), part, cotangents, "of the first part")
            pieces += first.pieces
            for name, parts in first.terms:
                terms[name] = (*terms.get(name, ()), *parts)
        order = tuple((name, terms.get(name, ())) for name in sorted(self.wanted))
        outputs = tuple(cotangents[tensor.name] for tensor in self.program.outputs)
        return Gradient(outputs, saved(self.program, pieces), tuple(pieces), order)

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
        made = piece.results if isinstance(piece, Piece) else (piece.name,)
        names |= {name: f"{name} {whose}" for name in made}

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
        else Total(called(piece.name), parts(piece.terms), called(piece.like))
        for piece in gradient.pieces
    )
    return replace(
        gradient,
        cotangents=tuple(map(called, gradient.cotangents)),
        pieces=pieces,
        terms=tuple((name, parts(found)) for name, found in gradient.terms),
    )
