"""A product's kernel with the derivative of what its gradient arrives at in its epilogue.

In place of two pieces, of which one computes a product again, one that reads what is kept:

    dh = dy @ d.T;  d0 = dh where x @ u > 0, else 0
    d0 = (dy @ d.T) where z > 0, else 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polygen.adapters.backward_cuts import Total
from polygen.adapters.backward_products import Groups, Piece, each_apart
from polygen.frontend.dtypes import BF16, F32, DType
from polygen.frontend.program import (
    Access,
    Contraction,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.rewrite.simplify import Fresh


def called(product: Contraction) -> str:
    """What pieces call the values of a product that are kept."""
    return f"{product.write.name} is kept"


def stored(program: Program, product: Contraction) -> DType:
    """In what type sums are kept: bf16 where that is multiplied, or as they are.

    Whole numbers would wrap, and f16 ends where sums do not.
    """
    tensor = program.tensors.get(product.lhs.name)
    return BF16 if tensor is not None and tensor.dtype == BF16 else product.dtype


def fused(host: Piece, total: Total, piece: Piece) -> Piece | None:
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
    own = [iterator for one in host.program.statements for iterator, _ in one.domain]
    fresh = Fresh(
        [*local.statements, *host.program.statements],
        [*local.tensors, *local.sizes, *host.program.tensors, *iterators, *own],
    )
    inside = _Renamed.of(host, piece, iterators, fresh)
    value = inside.names[given.name]
    used = {a.name for s in kept for a in s.reads}
    inputs = dict(zip(local.inputs, zip(piece.operands, piece.groups, strict=True), strict=True))
    inputs = {tensor: one for tensor, one in inputs.items() if tensor.name in used}
    inputs.pop(arrived, None)
    for product in local.contractions:
        extents = dict(product.domain)
        dims = tuple(extents[iterator] for iterator in product.write.iterators)
        dtype = stored(local, product)
        tensor = Tensor(product.write.name, dtype, dims, tuple(range(len(dims))))
        inputs[tensor] = (called(product), each_apart(tensor))
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
    inputs: Mapping[Tensor, tuple[str, Groups]]
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
