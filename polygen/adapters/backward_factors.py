"""What reaches products as a factor of what arrives, which nothing that arrives has a part in.

A derivative is linear in what arrives: what reaches a product is what would reach it if 1 arrived,
times what does. The former is made of products and arguments alone, so that the forward pass has
all of it.

    r5 = v0 > 0;  d0 = where(r5, g0, 0)            p0 = where(r5, 1, 0);  d0 = g0 * p0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polygen.adapters.backward_products import Piece
from polygen.frontend.closure import needed
from polygen.frontend.dtypes import F32
from polygen.frontend.program import (
    Access,
    Argument,
    Constant,
    Contraction,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.rewrite.simplify import Fresh

_ONE = Constant(1.0)
Store = tuple[Tensor, list[Statement]]  # a result of the forward pass, and what makes it


def factors(
    piece: Piece, outside: str, forward: Program, fresh: Fresh
) -> tuple[list[Store], Tensor] | None:
    """What a piece multiplies what arrives by, as results of the forward pass; None: nothing.

    Args:
        piece: gives what reaches products, which it computes again.
        outside: what arrives, as the call knows it.
        forward: the program that is differentiated.
        fresh: names that nothing in it has.

    Returns:
        Per result of the piece, and the array of the piece that what arrives is.
    """
    program, place = piece.program, piece.operands.index(outside)
    given = program.inputs[place]
    here = tuple(iterator for iterator, _ in program.pointwise[0].domain)
    whole = len(here) == len(given.dims) == len(piece.groups[place])
    if not whole or not _is_linear(program, given.name, here):
        return None
    local = {one.write.name for one in program.statements}
    known = {one.write.name for one in forward.statements}
    known |= {tensor.name for tensor in forward.inputs} - (local - known)
    stores = []
    for output in program.outputs:
        made = _for_one(program, output, given.name, known, fresh)
        if made is None:
            return None
        stores.append(made)
    return stores, given


def products(program: Program, given: Tensor, kept: Sequence[Tensor]) -> Program:
    """What arrives times each of what is kept, as the results of a piece.

    Args:
        program: of the piece.
        given: what arrives.
        kept: per result of the piece what it is multiplied by.
    """
    domain = program.pointwise[0].domain
    here = tuple(iterator for iterator, _ in domain)
    inputs = [replace(given, name="g")]
    statements: list[Statement] = []
    for n, (output, tensor) in enumerate(zip(program.outputs, kept, strict=True)):
        inputs.append(replace(tensor, name=f"p{n}"))
        value = Access(f"v{n}", here)
        both = (Access("g", here), Access(f"p{n}", here))
        statements += [
            Pointwise(f"P{2 * n}", domain, value, "mul", both, F32),
            Pointwise(f"P{2 * n + 1}", domain, Access(output.name, here), "cast", (value,),
                      output.dtype),
        ]  # fmt: skip
    return replace(
        program,
        name=f"{program.name}_times",
        inputs=tuple(inputs),
        statements=tuple(statements),
    )


def _is_linear(program: Program, given: str, here: tuple[str, ...]) -> bool:
    """Whether results are linear in an array, of which they read their own element."""
    linear = {given}
    for one in program.statements:
        if isinstance(one, Contraction):
            if given in {access.name for access in one.reads}:
                return False
            continue
        if not isinstance(one, Pointwise):
            return False
        if any(a.name == given and a.index != here for a in one.reads):
            return False
        has = [isinstance(arg, Access) and arg.name in linear for arg in one.args]
        if not any(has):
            continue
        if not _keeps_linear(one, has):
            return False
        linear.add(one.write.name)
    return all(tensor.name in linear for tensor in program.outputs)


def _keeps_linear(one: Pointwise, has: Sequence[bool]) -> bool:
    """Whether a statement is linear in those of its arguments that are."""
    if one.function in ("cast", "neg"):
        return True
    if one.function in ("add", "sub"):
        return all(has)
    if one.function == "mul":
        return sum(has) == 1
    if one.function == "div":
        return has == [True, False]
    if one.function == "where":
        zeros = [isinstance(arg, Constant) and arg.value == 0 for arg in one.args]
        return not has[0] and all(h or z for h, z in zip(has[1:], zeros[1:], strict=True))
    return False


def _for_one(
    program: Program, output: Tensor, given: str, known: set[str], fresh: Fresh
) -> Store | None:
    """What a result is where 1 arrives, of what the forward pass has; None: there is more in it."""
    names: dict[str, Argument] = {given: _ONE}
    tensor = replace(output, name=fresh("p"))
    statements: list[Statement] = []
    for one in needed(program.statements, [output.name]):
        if one.write.name in known and one.write.name != output.name:  # as the forward pass has it
            continue
        if not isinstance(one, Pointwise):
            return None
        here = tuple(iterator for iterator, _ in one.domain)
        if any(access.name in names and access.index != here for access in one.reads):
            return None
        args = tuple(_named(arg, names) for arg in one.args)
        if any(isinstance(arg, Access) and not _is_known(arg, known, statements) for arg in args):
            return None
        if one.function == "mul" and _ONE in args and one.write.name != output.name:
            names[one.write.name] = args[1 - args.index(_ONE)]
            continue
        if not any(isinstance(arg, Access) for arg in args):
            return None
        write = one.write
        write = replace(write, name=tensor.name if write.name == output.name else fresh("q"))
        names[one.write.name] = write
        statements.append(replace(one, name=fresh("P"), write=write, args=args))
    return tensor, statements


def _is_known(access: Access, known: set[str], statements: Sequence[Statement]) -> bool:
    return access.name in known or any(access.name == one.write.name for one in statements)


def _named(argument: Argument, names: dict[str, Argument]) -> Argument:
    """An argument as the forward pass has it."""
    if not isinstance(argument, Access) or argument.name not in names:
        return argument
    return names[argument.name]
