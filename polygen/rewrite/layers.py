"""Layers in front of a chain: rows of its first product that products before it have made.

    v0[i,j] += x[i,k] * a[k,j]        h0[i,j] = cast(f(v0[i,j], ...))           a layer
    v1[i,j] += h0[i,k] * b[k,j]       h1[i,j] = cast(f(v1[i,j], ...))           another
    v2[i,j] += h1[i,k] * c[k,j]       ...  v3[i,e] += h2[i,j] * d[j,e]          the chain

1. A product whose left operand is made of another's sums, element by element, wants of a row that
   row's sums alone. So all layers of a row run one after another where the row is, and nothing of
   them is stored: an element of a layer is read by the next product, and by nothing else.
2. Between layers the program rounds to what the next product multiplies, and so does the kernel.
3. The last two products are a chain, over rows that are an array nobody stores
   (`polygen.rewrite.chain`); what was in front of them are programs of one product each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import F16, F32
from polygen.frontend.program import (
    Access,
    Contraction,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.rewrite.values import Values

_CHAIN = 2  # products that one loop over keys runs


@dataclass(frozen=True, slots=True)
class Layer:
    """One product, and what is made of its sums: the left operand of the next one.

    Attributes:
        program: its output is no array, and neither is its input that the layer before has made.
        made: what the output is called.
    """

    program: Program
    made: str

    def __str__(self) -> str:
        return str(self.program)


def layers_in_front(program: Program) -> tuple[tuple[Layer, ...], Program]:
    """The layers in front of a chain, and the program of the chain, which reads what they make.

    Args:
        program: of any products.

    Returns:
        No layers, and the program itself, where products are not one behind the other.

    Raises:
        UnsupportedProgram: they are, and more than the next product reads of a layer.
    """
    path = _one_behind_the_other(program)
    if len(path) <= _CHAIN:
        return (), program
    layers, rows, rest = [], "", list(program.statements)
    for at, (product, operand) in enumerate(path[1:-1]):
        own = _between(program, path[at][0], product, operand)
        inside = [path[at][0], *own]
        layers.append(Layer(_program(program, inside, rows, operand), operand))
        names = {one.name for one in inside}
        rest = [one for one in rest if one.name not in names]
        rows = operand
    _require_unread(program, layers)
    made = _stored(program, rows)
    inputs = tuple(t for t in program.inputs if any(t.name in _read(one) for one in rest))
    return tuple(layers), replace(program, inputs=(made, *inputs), statements=tuple(rest))


def _one_behind_the_other(program: Program) -> list[tuple[Contraction, str]]:
    """All products, each with its operand that is made of the one before; none where they differ.

    The first one's is "".
    """
    values, found = Values(program.statements), []
    sums = [one.write.name for one in program.contractions]
    for at, product in enumerate(program.contractions):
        behind = {
            access.name: {name for name in sums if name in values.behind(access.name)}
            for access in product.reads
        }
        made = [name for name, products in behind.items() if products]
        if (at == 0 and made) or (at > 0 and len(made) != 1):
            return []
        if at > 0 and behind[made[0]] != set(sums[:at]):
            return []
        found.append((product, made[0] if made else ""))
    return found


def _read(one: Statement) -> set[str]:
    """The arrays that a statement reads, those that name rows among them."""
    names = {access.name for access in one.reads}
    return names | {table.name for access in one.reads for table in access.indexed_by}


def _between(
    program: Program, first: Contraction, product: Contraction, operand: str
) -> list[Statement]:
    """The statements from a layer's sums to what the next product multiplies.

    Raises:
        UnsupportedProgram: they are none that run element by element of these sums alone.
    """
    writers = Values(program.statements).writers
    wanted, found = [operand], set()
    while wanted:
        name = wanted.pop()
        writer = writers.get(name)
        if writer is None or writer is first or name in found:
            continue
        if isinstance(writer, Contraction):
            raise _refusal(
                program,
                f"{operand} is made of {name} as well, which a layer before has summed",
                f"rows of a layer are made of the sums of {first.name} alone, and stay in the "
                f"registers that {product.name} reads",
                f"Return {operand} from one function, and go on with it in a second",
            )
        if not isinstance(writer, Pointwise):
            raise _refusal(
                program,
                f"{writer.name}: {writer} lies between the layers {first.name} and {product.name}",
                "layers are fused element by element; folds of a row run between the last two "
                "products alone",
                f"Return {writer.args[0]} from one function, and go on with it in a second",
            )
        found.add(name)
        wanted += [access.name for access in writer.reads]
    own = [one for one in program.statements if one.write.name in found]
    shape = tuple(dict(first.domain)[it] for it in first.write.iterators)
    for one in own:
        sizes = dict(one.domain)
        extents = tuple(sizes[it] for it in one.write.iterators)
        if extents != shape:
            raise _refusal(
                program,
                f"{one.name} over [{', '.join(map(str, extents))}]",
                f"between layers everything has a row and a column of {first.write.name}, "
                f"[{', '.join(map(str, shape))}]",
                f"Compute {one.write.name} before, and pass it",
            )
    return own


def _require_unread(program: Program, layers: Sequence[Layer]) -> None:
    """What layers make is read by the next product, and by nothing else.

    Raises:
        UnsupportedProgram: with what reads it.
    """
    outputs = {tensor.name for tensor in program.outputs}
    for layer in layers:
        own = {one.write.name for one in layer.program.statements}
        if own & outputs:
            raise _refusal(
                program,
                f"{min(own & outputs)} is returned, of a layer",
                "what is between products stays on chip",
                "Return it from a function of its own",
            )
        for one in program.statements:
            read = {access.name for access in one.reads} & own
            if isinstance(one, Contraction):
                read -= {layer.made}
            if read and one.write.name not in own:
                raise _refusal(
                    program,
                    f"{one.name}: {one} reads {min(read)}, of a layer before",
                    "what a layer makes stays in the registers that the next product reads",
                    f"Return {layer.made} from one function, and go on with it in a second",
                )


def _program(program: Program, inside: Sequence[Statement], rows: str, made: str) -> Program:
    """A layer by itself."""
    product = inside[0]
    assert isinstance(product, Contraction)
    known = program.tensors
    for access in product.reads:
        if access.name not in known and access.name != rows:
            raise _refusal(
                program,
                f"{product.name} multiplies {access.name}, which is computed",
                "operands of layers are arguments, but for what the layer before has made",
                f"Compute {access.name} before, and pass it",
            )
    if product.dtype != F32:
        raise _refusal(
            program,
            f"{product.name} sums in {product.dtype}",
            "layers sum in f32",
            "Leave acc_dtype out" if product.dtype == F16 else "Make a function of each product",
        )
    _require_rows(program, product, rows)
    read = set().union(*map(_read, inside))
    inputs = [tensor for tensor in program.inputs if tensor.name in read]
    if rows:
        inputs.insert(0, _stored(program, rows))
    output = _stored(program, made)
    return Program(program.name, program.source, tuple(inputs), (output,), tuple(inside))


def _require_rows(program: Program, product: Contraction, rows: str) -> None:
    """A product keeps the rows of what it multiplies, and sums over all that a row has.

    Raises:
        UnsupportedProgram: with the product.
    """
    own = product.write.iterators
    summed = [it for it, _ in product.domain if it not in own]
    left: tuple[Access, ...] = tuple(one for one in product.reads if not rows or one.name == rows)
    if len(summed) == 1 and any(one.iterators == (*own[:-1], summed[0]) for one in left):
        return
    raise _refusal(
        program,
        f"{product.name}: {product} does not multiply the rows of {rows or 'an argument'}",
        "a layer keeps rows where they are, in the registers of their threads",
        "Write it as f(x @ a) @ b",
    )


def _stored(program: Program, name: str) -> Tensor:
    """A value as an array that nobody stores."""
    one = next(one for one in program.statements if one.write.name == name)
    assert isinstance(one, Pointwise)
    sizes = dict(one.domain)
    dims = tuple(sizes[it] for it in one.write.iterators)
    return Tensor(name, one.dtype, dims, tuple(range(len(dims))))


def _refusal(program: Program, what: str, why: str, nearest: str) -> UnsupportedProgram:
    return UnsupportedProgram(what, where=program.name, why=why, nearest=nearest)
