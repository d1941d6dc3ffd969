"""What the passes after `Program` do not generate yet, refused by name before they start.

1. Products: no operand is computed (least of all by another product), all have one output domain.
2. Shapes: two axes and one sum per product, two axes per output, at most two per array.
3. Indices: an axis is read whole, or has size 1.

A capability that arrives takes its refusal out of here.
"""

from __future__ import annotations

from collections.abc import Mapping

from polygen.errors import UnsupportedProgram
from polygen.frontend.program import Access, Contraction, Dim, Program, Statement


def require_supported(program: Program) -> None:
    """Refuse a program that no later pass can generate.

    Raises:
        UnsupportedProgram: with the statement, and the nearest program that can be generated.
    """
    if not program.contractions:
        return  # there is nothing to fuse, which is the next pass's to say
    for product in program.contractions:
        for access in product.reads:
            _require_argument(program, product, access)
    _require_one_domain(program)
    dims = _dims(program)
    for product in program.contractions:
        _require_matrices(program, product)
        _require_whole(program, product, dims)
    for tensor in (*program.inputs, *program.outputs):
        if len(tensor.dims) > 2:
            raise UnsupportedProgram(
                f"{tensor} has {len(tensor.dims)} axes",
                where=program.name,
                why="batches are not generated yet",
                nearest="Describe it with two axes, without those of size 1",
            )
    for product in program.contractions:
        _require_no_vector(program, product)
    for tensor in program.outputs:
        if len(tensor.dims) < 2:
            raise UnsupportedProgram(
                f"the output {tensor} has {len(tensor.dims)} axes",
                where=program.name,
                why="a kernel stores matrices",
                nearest="Return it with two axes, as in v[None, :]",
            )
    for statement in program.pointwise:
        _require_whole(program, statement, dims)


def _require_argument(program: Program, product: Contraction, access: Access) -> None:
    """A product's operand is in memory when the kernel starts."""
    if access.name in program.tensors:
        return
    source = _product_behind(program, access.name)
    if source is not None:
        raise UnsupportedProgram(
            f"{product.name} multiplies what {source.name} sums: chains of products are not "
            "generated yet",
            where=program.name,
            why=f"{source.name}: {source}; {product.name}: {product}",
            nearest=f"Make two functions, the first one returning {source.write.name}",
        )
    raise UnsupportedProgram(
        f"{product.name} multiplies {access.name}, which is computed",
        where=program.name,
        why=f"{product.name}: {product} reads its operands from memory; a prologue is not "
        "generated yet",
        nearest="Pass the computed matrix as an argument",
    )


def _product_behind(program: Program, value: str) -> Contraction | None:
    """A contraction whose sums a value is computed from."""
    writers = {statement.write.name: statement for statement in program.statements}
    stack, seen = [value], {value}
    while stack:
        statement = writers[stack.pop()]
        if isinstance(statement, Contraction):
            return statement
        further = {access.name for access in statement.reads if access.name in writers} - seen
        seen |= further
        stack.extend(sorted(further))
    return None


def _require_one_domain(program: Program) -> None:
    """All products run over the same output points."""
    domains = {}
    for product in program.contractions:
        extents = dict(product.domain)
        dims = ", ".join(str(extents[iterator]) for iterator in product.write.iterators)
        domains[product.name] = f"[{dims}]"
    if len(set(domains.values())) > 1:
        raise UnsupportedProgram(
            "products over different output domains",
            where=program.name,
            why=", ".join(f"{name} over {dims}" for name, dims in domains.items()),
            nearest="Split the function: one matmul per fused function",
        )


def _require_matrices(program: Program, product: Contraction) -> None:
    """A product is of one matrix and another, over one sum."""
    rows = product.write.iterators
    if len(rows) > 2:
        leading = set(rows[:-2])
        shared = [a.name for a in product.reads if not leading & set(a.iterators)]
        raise UnsupportedProgram(
            f"{product.name}: {product}: batched products are not generated yet",
            where=program.name,
            why=f"a kernel multiplies two matrices, and {', '.join(rows[:-2])} counts further ones",
            nearest=f"{shared[0]} is the same for all: give the other operand two axes, with the "
            "leading ones in its rows"
            if shared
            else "Call it once for each, on operands of two axes",
        )
    summed = [iterator for iterator, _ in product.domain if iterator not in rows]
    if len(summed) > 1:
        raise UnsupportedProgram(
            f"{product.name}: {product} sums over {len(summed)} axes",
            where=program.name,
            why="a tensor-core instruction sums over one",
            nearest="Pass the operands with these axes made one",
        )


def _require_no_vector(program: Program, product: Contraction) -> None:
    """Both operands and the product have two axes."""
    extents, rows = dict(product.domain), product.write.iterators
    vectors = [(access, side) for side, access in enumerate(product.reads) if len(access.index) < 2]
    if vectors:
        access, side = vectors[0]
        (iterator,) = access.iterators
        # The left operand's last axis is summed, and the right one's first.
        first = (iterator in rows) == (side == 0)
        shape = f"[{extents[iterator]}, 1]" if first else f"[1, {extents[iterator]}]"
        nearest = f"Make {access.name} a matrix: describe it with the dims {shape}"
    else:
        nearest = "Multiply two matrices, each with an axis of its own in the product"
    if vectors or len(rows) < 2:
        raise UnsupportedProgram(
            f"{product.name}: {product}: products with a vector are not generated yet",
            where=program.name,
            why=f"{vectors[0][0] if vectors else product.write} has one axis",
            nearest=nearest,
        )


def _dims(program: Program) -> dict[str, tuple[Dim, ...]]:
    """The dims of every tensor and value."""
    dims = {name: tensor.dims for name, tensor in program.tensors.items()}
    for writer in program.statements:
        extents = dict(writer.domain)
        dims[writer.write.name] = tuple(extents[iterator] for iterator in writer.write.iterators)
    return dims


def _require_whole(
    program: Program, statement: Statement, dims: Mapping[str, tuple[Dim, ...]]
) -> None:
    """No access takes a part of an axis."""
    extents = dict(statement.domain)
    for access in statement.reads:
        for index, dim in zip(access.index, dims[access.name], strict=True):
            whole = isinstance(index, str) and extents[index] == dim
            if whole or (index == 0 and dim == 1):
                continue
            raise UnsupportedProgram(
                f"{statement.name} reads {access}: slices are not generated yet",
                where=program.name,
                why="a kernel reads whole axes",
                nearest="Pass the slice as an argument"
                if access.name in program.tensors
                else "Return the whole value, and take the slice outside",
            )
