"""Layers in front of a chain: rows of its first product that products before it have made.

    v0[i,j] += x[i,k] * a[k,j]        h0[i,j] = cast(f(v0[i,j], ...))           a layer
    v1[i,j] += h0[i,k] * b[k,j]       h1[i,j] = cast(f(v1[i,j], ...))           another
    v2[i,j] += h1[i,k] * c[k,j]       ...  v3[i,e] += h2[i,j] * d[j,e]          the chain

1. A product whose left operand is made of another's sums, element by element, wants of a row that
   row's sums alone. So all layers of a row run one after another where the row is, and nothing of
   them is stored: an element of a layer is read by the next product, and by nothing else.
2. Between layers the program rounds to what the next product multiplies, and so does the kernel.
3. Several products of the same rows are one stage, as in f(x @ a) * (x @ b): what is made of all of
   their sums is what the next product multiplies.
4. What a layer has made may be read again, element by element, by what is made of later sums, as in
   h + f(h @ b): it stays in the registers of its sums.
5. What is made of a layer's sums alone may be a result: it is stored where it is made.
6. The last two stages are a chain, over rows that are an array nobody stores
   (`polygen.rewrite.chain`); what was in front of them are programs of one stage each.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import F16, F32
from polygen.frontend.program import (
    Contraction,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.rewrite.simplify import Fresh, sums_as_values
from polygen.rewrite.values import Values

_CHAIN = 2  # stages that one loop over keys runs


@dataclass(frozen=True, slots=True)
class Layer:
    """Products of the same rows, and what is made of their sums: the next one's left operand.

    Attributes:
        program: its first output is no array, and neither is its input that the layer before has
            made; the others are results of the whole program.
        made: what that output is called.
        kept: what takes the place of the first sums: that, or what it is rounded of.
    """

    program: Program
    made: str
    kept: str = ""

    @property
    def returned(self) -> tuple[Tensor, ...]:
        """The results that are made of its sums."""
        return self.program.outputs[1:]

    def __str__(self) -> str:
        return str(self.program)


@dataclass(frozen=True, slots=True)
class Stage:
    """Products of the same rows.

    Attributes:
        products: one, or several whose sums are all behind what the next stage multiplies.
        rows: what they multiply, by name: an argument, or what is made of the stage before.
    """

    products: tuple[Contraction, ...]
    rows: str


def layers_in_front(program: Program) -> tuple[tuple[Layer, ...], Program]:
    """The layers in front of a chain, and the program of the chain, which reads what they make.

    Args:
        program: of any products.

    Returns:
        No layers, and the program itself, where products are not one behind the other.

    Raises:
        UnsupportedProgram: they are, and more than the next product reads of a layer.
    """
    found = stages(program)
    if len(found) <= _CHAIN or program.ends:
        return (), program
    program = _with_values(program, found)
    found = stages(program)
    layers, rows, rest = list[Layer](), "", list(program.statements)
    returned = _returned(program, found)
    for stage, behind, results in zip(found, found[1:-1], returned, strict=False):
        own = _between(program, stage, behind, layers, results)
        inside = [*stage.products, *own]
        of = _program(program, inside, stage, rows, (behind.rows, results), layers)
        layers.append(Layer(of, behind.rows))
        names = {one.name for one in inside}
        rest = [one for one in rest if one.name not in names]
        rows = behind.rows
    layers = [replace(one, kept=_kept(program, one)) for one in layers]
    _require_unread(program, layers)
    made = [_stored(program, one) for one in (rows, *_again(layers, rest)) if one]
    inputs = tuple(t for t in program.inputs if any(t.name in _read(one) for one in rest))
    stored = {one.name: one for one in made}
    there = {one.name for layer in layers for one in layer.returned}
    outputs = tuple(one for one in program.outputs if one.name not in there)
    return (
        tuple(layers),
        replace(
            program, inputs=(*stored.values(), *inputs), outputs=outputs, statements=tuple(rest)
        ),
    )


def _with_values(program: Program, found: Sequence[Stage]) -> Program:
    """The program with a value for sums that are multiplied themselves, or are read again."""
    statements = list(program.statements)
    fresh = Fresh(statements, [*program.tensors, *program.sizes])
    for stage, behind in itertools.pairwise(found):
        product = stage.products[0]
        name = product.write.name
        readers = [one for one in program.statements if name in _read(one)]
        rounded = [one for one in readers if one.write.name == behind.rows]
        if name == behind.rows or (rounded and len(readers) > 1):
            statements = sums_as_values(statements, product, name, fresh)
    return replace(program, statements=tuple(statements))


def _returned(program: Program, found: Sequence[Stage]) -> list[list[Tensor]]:
    """Of every stage the results that are made of its sums, and of none behind it."""
    values, results = Values(program.statements), [list[Tensor]() for _ in found]
    for tensor in program.outputs:
        behind = values.behind(tensor.name)
        of = [at for at, one in enumerate(found) if behind & {p.write.name for p in one.products}]
        if of and values.written_once(tensor.name):
            results[of[-1]].append(tensor)
    return results


def read_again(program: Program) -> bool:
    """Whether what a layer has made is read behind a later product as well."""
    layers, rest = layers_in_front(program)
    every = [one.program.statements for one in layers] + [rest.statements]
    return any(_again(layers[:at], list(own)) for at, own in enumerate(every))


def _again(layers: Sequence[Layer], statements: Sequence[Statement]) -> list[str]:
    """What statements that map read of what layers before have made."""
    read = {a.name for one in statements if not isinstance(one, Contraction) for a in one.reads}
    return [name for one in layers for name in _left(one) if name in read]


def _left(layer: Layer) -> tuple[str, ...]:
    """What a layer may leave in its registers: what it makes, or what that is rounded of."""
    last = next(s for s in layer.program.statements if s.write.name == layer.made)
    plain = isinstance(last, Pointwise) and last.function == "cast"
    of = [access.name for access in last.reads] if plain else []
    sums = {one.write.name for one in layer.program.contractions}
    return (layer.made, *(name for name in of if name not in sums))


def _kept(program: Program, layer: Layer) -> str:
    """What a layer leaves in its registers.

    Raises:
        UnsupportedProgram: it would have to leave two values.
    """
    own = {one.name for one in layer.program.statements}
    others = [one for one in program.statements if one.name not in own]
    found = _again([layer], others)
    if len(found) > 1:
        raise _refusal(
            program,
            f"{' and '.join(found)} are read again, of one layer",
            "a layer leaves one value in the registers of its sums",
            f"Read {found[0]} in both places",
        )
    return found[0] if found else layer.made


def stages(program: Program) -> list[Stage]:
    """All products, those of the same rows together, each stage made of the sums before.

    Returns:
        None of them where products are not one behind the other, or the last are several.
    """
    values, before = Values(program.statements), set[str]()
    found: list[Stage] = []
    for product in program.contractions:
        sums = {one.write.name for stage in found for one in stage.products}
        behind = {
            access.name: sums & values.behind(access.name)
            for access in product.reads
            if sums & values.behind(access.name)
        }
        last = found[-1] if found else None
        if len(behind) > 1 or (not behind and len(found) > 1):
            return []
        if not behind and (last is None or last.rows == product.lhs.name):
            rows = product.lhs.name
        elif not behind:
            return []
        else:
            ((rows, of),) = behind.items()
            if last is not None and rows != last.rows:
                before = sums
            if of != before:
                return []
        if last is not None and rows == last.rows:
            found[-1] = replace(last, products=(*last.products, product))
        else:
            found.append(Stage((product,), rows))
    return found if found and len(found[-1].products) == 1 else []


def _read(one: Statement) -> set[str]:
    """The arrays that a statement reads, those that name rows among them."""
    names = {access.name for access in one.reads}
    return names | {table.name for access in one.reads for table in access.indexed_by}


def _between(
    program: Program,
    stage: Stage,
    behind: Stage,
    before: Sequence[Layer],
    results: Sequence[Tensor],
) -> list[Statement]:
    """The statements from a layer's sums to what the next product multiplies, and to results.

    Args:
        program: of all products.
        stage: whose sums.
        behind: what multiplies that.
        before: layers whose values may be read again.
        results: of the program, that are made of these sums.

    Raises:
        UnsupportedProgram: they are none that run element by element of these sums alone.
    """
    (first, *_), operand = stage.products, behind.rows
    product = behind.products[0]
    writers = Values(program.statements).writers
    there = {name for one in before for name in _left(one)}
    wanted, found = [operand, *(tensor.name for tensor in results)], set[str]()
    while wanted:
        name = wanted.pop()
        writer = writers.get(name)
        if writer is None or writer in stage.products or name in found or name in there:
            continue
        if isinstance(writer, Contraction):
            raise _refusal(
                program,
                f"{operand} is made of {name} as well, which a layer before has summed",
                f"beside the sums of {first.name} there is what that layer has made of them, in "
                "registers, and nothing between",
                f"Return {operand} from one function, and go on with it in a second",
            )
        if not isinstance(writer, Pointwise):
            raise _refusal(
                program,
                f"{writer.name}: {writer} lies between the layers {first.name} and {product.name}",
                "layers are fused element by element; folds of a row run between the last two "
                "products alone",
                f"Return {operand} from one function, and go on with it in a second",
            )
        found.add(name)
        wanted += [access.name for access in writer.reads]
    own = [one for one in program.statements if one.write.name in found]
    shape = tuple(dict(first.domain)[it] for it in first.write.iterators)
    for one in own:
        sizes = dict(one.domain)
        extents = tuple(sizes[it] for it in dict.fromkeys(one.write.iterators))
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
    """What layers make is read by the next product, and what stays in registers element by element.

    Raises:
        UnsupportedProgram: with what else reads it.
    """
    for layer in layers:
        own = {one.write.name for one in layer.program.statements}
        for one in program.statements:
            read = {access.name for access in one.reads} & own
            if isinstance(one, Contraction):
                read -= {layer.made}
            elif isinstance(one, Pointwise):
                read -= {layer.kept}
            if read and one.write.name not in own:
                raise _refusal(
                    program,
                    f"{one.name}: {one} reads {min(read)}, of a layer before",
                    "what a layer makes stays in registers, for the next product and what is made "
                    "element by element of later sums",
                    f"Return what is made of {layer.program.contractions[0].write.name} from one "
                    "function, and go on with it in a second",
                )


def _program(
    program: Program,
    inside: Sequence[Statement],
    stage: Stage,
    rows: str,
    leaves: tuple[str, Sequence[Tensor]],
    before: Sequence[Layer],
) -> Program:
    """A layer by itself.

    Args:
        program: of all products.
        inside: its statements.
        stage: its products.
        rows: what the layer before has made, "" in front of the first.
        leaves: what it makes, and the results of the program that are made of its sums.
        before: layers whose values it may read again.
    """
    made, results = leaves
    known = program.tensors
    for product in stage.products:
        for access in product.reads:
            if access.name not in known and access.name != rows:
                raise _refusal(
                    program,
                    f"{product.name} multiplies {access.name}, which is computed",
                    "operands of layers are arguments, or made of arguments alone, but for what "
                    "the layer before has made",
                    f"Compute {access.name} before, and pass it",
                )
        if product.dtype != F32:
            raise _refusal(
                program,
                f"{product.name} sums in {product.dtype}",
                "layers sum in f32",
                "Leave acc_dtype out"
                if product.dtype == F16
                else "Make a function of each product",
            )
        _require_rows(program, product, rows)
    read = set().union(*map(_read, inside))
    inputs = [tensor for tensor in program.inputs if tensor.name in read]
    named = dict.fromkeys([rows, *_again(before, inside)] if rows else [])
    inputs = [*(_stored(program, name) for name in named), *inputs]
    outputs = (_stored(program, made), *results)
    return Program(program.name, program.source, tuple(inputs), outputs, tuple(inside))


def _require_rows(program: Program, product: Contraction, rows: str) -> None:
    """A product keeps the rows of what it multiplies, and sums over all that a row has, one axis.

    Raises:
        UnsupportedProgram: with the product.
    """
    own = product.write.iterators
    summed = product.summed
    left = (one for one in product.reads if one.name == rows)
    same = not rows or any(one.iterators == (*own[:-1], *summed) for one in left)
    if len(summed) == 1 and same:
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
