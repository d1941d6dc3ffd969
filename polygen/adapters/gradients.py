"""A program's derivative, as programs: what reaches its arguments of gradients of its outputs.

1. The pointwise statements are gone through backwards (`polygen.adapters.backward_statements`). New
   statements say what reaches each product and each argument that is read element by element.
2. Those that need the products' values become one program, *local*, with the products computed
   again: nothing but arguments has to be kept. Those that do not need them become another one,
   *plain*, without products; a gradient that arrives as it is becomes neither.
3. What reaches an operand of products is a sum of products itself: one program per argument
   (`polygen.adapters.backward_products`). What reaches an argument that is read element by element
   is summed along the axes that it does not have.
4. Where products multiply what others sum, that is done for each part of a cut, the last first
   (`polygen.adapters.backward_cuts`).

    y[i,j] = relu(x[i,k] * w[j,k] + b[j])      d0 = g0 where x @ w.T + b > 0, else 0      (local)
                                               dx = d0 @ w,  dw = d0.T @ x,  db = d0 summed over i
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from polygen.adapters.backward_cuts import Gradient, Term, Total, derive_by_cuts, saved
from polygen.adapters.backward_products import Contribution, Piece, product_piece, whole
from polygen.adapters.backward_statements import Value, Writer, backwards, free_prefix
from polygen.errors import GradientError
from polygen.frontend.closure import multiplies_sums, needed
from polygen.frontend.dtypes import F32, TF32, DType
from polygen.frontend.program import (
    Access,
    Pointwise,
    Program,
    Tensor,
)
from polygen.poly.sections import sections


@functools.lru_cache(maxsize=1024)
def derive(
    program: Program, wanted: frozenset[str], apart: frozenset[str] | None = None
) -> Gradient:
    """The derivative of a program.

    Args:
        program: what is differentiated.
        wanted: names of the arrays whose gradients are asked for.
        apart: arrays whose gradients keep all of their axes, and with them what lies between
            parts; None: axes side by side are one wherever that can be.

    Raises:
        GradientError: there is none, or it is not derived.
    """
    if multiplies_sums(program) or len(sections(program)) > 1:
        return derive_by_cuts(program, wanted, derive, apart)
    _require_known(program, wanted)
    writer = Writer.of(program)
    reached = backwards(program, wanted, writer)
    locals_ = _Locals(program, writer)
    terms: dict[str, list[Term]] = {name: [] for name in sorted(wanted)}
    contributions: dict[str, list[Contribution]] = {name: [] for name in terms}
    for product in program.contractions:
        if product.write.name not in reached:
            continue
        index, value = reached[product.write.name]
        kind = program.tensors[product.lhs.name].dtype
        array = locals_.array(value, F32 if kind == TF32 else kind)
        own = dict(zip(index, product.write.iterators, strict=True))
        access = Access(array, tuple(own[iterator] for iterator, _ in writer.domain))
        for operand, other in (product.reads, product.reads[::-1]):
            if operand.name in wanted:
                contributions[operand.name].append(Contribution(product, access, operand, other))
    for name, target, value in writer.elementwise(reached, wanted):
        tensor = program.tensors[name]
        full = len(set(target)) == len(writer.domain) and all(isinstance(i, str) for i in target)
        stored = F32 if tensor.dtype == TF32 else tensor.dtype
        array = locals_.array(value, stored if full else None)
        along = [iterator for iterator, _ in writer.domain]
        kept = [iterator for iterator in along if iterator in target]
        terms[name].append(
            Term(
                array,
                tuple(n for n, iterator in enumerate(along) if iterator not in target),
                tuple(kept.index(i) for i in target if isinstance(i, str)),
            )
        )
    pieces: list[Piece | Total] = list(locals_.pieces())
    arrays = program.tensors | {tensor.name: tensor for tensor in locals_.tensors()}
    for name, parts in contributions.items():
        if parts:
            result = f"{locals_.letter}_{name}"
            merge = name not in (apart or ())
            pieces.append(product_piece(program, arrays, parts, result, merge=merge))
            terms[name].append(Term(result))
    order = tuple((name, tuple(found)) for name, found in terms.items())
    return Gradient(writer.cotangents, saved(program, pieces), tuple(pieces), order)


def _require_known(program: Program, wanted: frozenset[str]) -> None:
    """Refuse what is not derived.

    Raises:
        GradientError: with what to do.
    """
    if program.folds:
        raise GradientError(
            f"{program.folds[0].write.name}, a fold: {program.folds[0]}",
            where=program.name,
            why="what comes back to a row's result goes to all of the row",
            nearest="Fold outside, or let none come back: torch.no_grad(), jax.lax.stop_gradient",
        )
    if program.in_parts:
        raise GradientError(
            "results in parts",
            where=program.name,
            why="a derivative is computed at every point of one domain",
            nearest="Make an operator of each part, or call it under torch.no_grad()",
        )
    if program.ends:
        raise GradientError(
            "a product by groups",
            where=program.name,
            why="the gradient of its matrices sums over the rows of each group",
            nearest="Compute it outside, or call it under torch.no_grad()",
        )
    if program.by_digits:
        raise GradientError(
            f"{program.by_digits[0]}, which a reshape or a window makes of several axes",
            where=program.name,
            why="what comes back is taken of one axis for every axis",
            nearest="Reshape outside, or call it under torch.no_grad()",
        )
    if program.gathered:
        raise GradientError(
            f"rows by index, which {', '.join(program.gathered)} names",
            where=program.name,
            why="what comes back to a row is a sum over all places that name it",
            nearest="Index outside, or call it under torch.no_grad()",
        )
    for product in program.contractions:
        for access in product.reads:
            if access.name not in program.tensors:
                raise GradientError(
                    f"{product.name} multiplies {access.name}, which is computed",
                    where=program.name,
                    why="gradients go through what follows products, and not yet through what "
                    "comes before them",
                    nearest=f"Compute {access.name} outside the function, and pass it",
                )
    domains = {statement.domain for statement in program.pointwise}
    if len(domains) > 1:
        raise GradientError(
            "results over different axes",
            where=program.name,
            why="their gradients meet at one point of the output",
            nearest="Return them with their axes in one order, and transpose outside",
        )
    for statement in program.statements:
        for access in statement.reads:
            if access.name in wanted:
                _require_whole(program, access)
    for product in program.contractions:
        for access in product.reads:
            kind = program.tensors[access.name].dtype if access.name in program.tensors else F32
            if access.name in wanted and kind.bits < 16:
                raise GradientError(
                    f"{access.name} is {kind}",
                    where=program.name,
                    why="a gradient is no 8-bit number",
                    nearest=f"Pass {access.name}.detach(), or multiply in bfloat16",
                )


def _require_whole(program: Program, access: Access) -> None:
    for index, dim in zip(access.index, program.tensors[access.name].dims, strict=True):
        if not isinstance(index, str) and not (index == 0 and dim == 1):
            raise GradientError(
                f"the gradient of {access.name}, of which {access} is read",
                where=program.name,
                why="the rest of it would have to be filled with zeros",
                nearest=f"Slice {access.name} outside the function",
            )


@dataclass(slots=True)
class _Locals:
    """What reaches products and arguments, as arrays: outputs of the programs local and plain."""

    program: Program
    writer: Writer
    outputs: dict[tuple[Access, DType], str] = field(default_factory=dict)

    @property
    def letter(self) -> str:
        """What the names of its arrays begin with."""
        return free_prefix("d", self.program)

    def array(self, value: Value, dtype: DType | None) -> str:
        """The array that holds a value, in a type; None: in any of float type."""
        access = value.access
        if access.name in self.writer.cotangents and access.index == self.writer.here:
            own = self.program.outputs[self.writer.cotangents.index(access.name)].dtype
            if dtype is None or own == dtype:
                return access.name
        for (known, stored), name in self.outputs.items():
            if known == access and dtype in (None, stored):
                return name
        stored = dtype or self.program.outputs[0].dtype
        return self.outputs.setdefault((access, stored), f"{self.letter}{len(self.outputs)}")

    def tensors(self) -> Iterator[Tensor]:
        """The arrays, and the gradients of the program's outputs."""
        dims = tuple(extent for _, extent in self.writer.domain)
        order = tuple(range(len(dims)))
        for name, tensor in zip(self.writer.cotangents, self.program.outputs, strict=True):
            yield Tensor(name, tensor.dtype, dims, order)
        for (_, dtype), name in self.outputs.items():
            yield Tensor(name, dtype, dims, order)

    def pieces(self) -> Iterator[Piece]:
        """The program that computes the products again, and the one that does not."""
        products = {product.write.name for product in self.program.contractions}
        groups: dict[bool, dict[str, tuple[Access, DType]]] = {True: {}, False: {}}
        for (access, dtype), name in self.outputs.items():
            own = {s.write.name for s in needed(self.writer.statements, [access.name])}
            groups[bool(own & products)][name] = (access, dtype)
        for again, outputs in groups.items():
            if outputs:
                piece = self._piece("local" if again else "plain", outputs)
                yield replace(piece, again=again)

    def _piece(self, kind: str, outputs: dict[str, tuple[Access, DType]]) -> Piece:
        known = self.program.tensors | {tensor.name: tensor for tensor in self.tensors()}
        statements = needed(self.writer.statements, [access.name for access, _ in outputs.values()])
        casts = [
            Pointwise(f"P{self.writer.first + len(self.writer.statements) + n}", self.writer.domain,
                      Access(name, self.writer.here), "cast", (access,), dtype)
            for n, (name, (access, dtype)) in enumerate(outputs.items())
        ]  # fmt: skip
        read = [access.name for s in (*statements, *casts) for access in s.reads]
        names = [*self.program.tensors, *self.writer.cotangents]
        inputs = tuple(known[name] for name in dict.fromkeys(names) if name in read)
        program = Program(
            f"{self.program.name}_{kind}",
            f"the derivative of {self.program.source}",
            inputs,
            tuple(known[name] for name in outputs),
            (*statements, *casts),
        )
        return whole(program)
