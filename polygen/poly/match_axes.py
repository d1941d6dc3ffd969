"""Which axes of the output are m, n and batch dims, of the products' accesses alone."""

from __future__ import annotations

from collections.abc import Sequence

from polygen.errors import UnsupportedProgram
from polygen.frontend.forms import Form
from polygen.frontend.program import Affine, Contraction, Dim, Fold, Program
from polygen.poly.fusion import Fusion


def axes_of(program: Program, fusion: Fusion, folds: Sequence[Fold] = ()) -> tuple[str, ...]:
    """Per axis of the output the dim: "n", "m", or a batch dim.

    Args:
        program: its products.
        fusion: the band of its statements.
        folds: of results, whose parts are made of tiles: of axes that could be m, one that they
            fold is.
    """
    first = program.contractions[0]
    written = fusion.iterators(first.name)
    free = _free(first)
    for other in program.contractions[1:]:
        mapped = dict(zip(fusion.iterators(other.name), written, strict=True))
        free = {mapped[it]: side for it, side in _free(other).items() if mapped[it] in free}
    candidates = [it for it in written if it in free]
    unread = [it for it in written if not any(it in a.iterators for a in first.reads)]
    candidates = candidates or unread[1:]
    if not candidates:
        raise _no_product(program, first)
    contiguous = _contiguous(program, fusion, written)
    n = contiguous if contiguous in candidates else candidates[-1]
    left = [it for it in candidates if it != n and it in free and _opposite(program, fusion, it, n)]
    left = left or unread[:1]
    if not left:
        raise _no_product(program, first)
    sizes = dict(first.domain)
    several = [it for it in reversed(left) if sizes[it] != 1] or left[-1:]
    folded = [_folded(fold, fusion, written) for fold in folds]
    m = next((it for it in several if all({it, n} & own for own in folded)), several[0])
    dims, batch = [], 0
    for iterator in written:
        if iterator == n:
            dims.append("n")
        elif iterator == m:
            dims.append("m")
        else:
            dims.append(f"z{batch}")
            batch += 1
    return tuple(dims)


def _folded(fold: Fold, fusion: Fusion, written: tuple[str, ...]) -> set[str]:
    """The output's iterators that a fold has no axis along."""
    own = fusion.iterators(f"{fold.name}_0")  # of its terms
    kept = set(fold.write.iterators)
    return {it for it, at in zip(written, own, strict=True) if at not in kept}


def _free(product: Contraction) -> dict[str, int]:
    """The output's iterators that one operand reads and the other does not; which one does."""
    reads = [set(access.iterators) for access in product.reads]
    found = {}
    for iterator in product.write.iterators:
        owners = [side for side, own in enumerate(reads) if iterator in own]
        if len(owners) == 1:
            found[iterator] = owners[0]
    return found


def _opposite(program: Program, fusion: Fusion, one: str, other: str) -> bool:
    """Whether in every product two axes of the output belong to different operands."""
    written = fusion.iterators(program.contractions[0].name)
    for product in program.contractions:
        mapped = dict(zip(written, fusion.iterators(product.name), strict=True))
        sides = _free(product)
        if sides[mapped[one]] == sides[mapped[other]]:
            return False
    return True


def sides_of(product: Contraction, dims: dict[str, str]) -> tuple[str, str]:
    """The roles of both operands: the one that reads n has it."""
    first = any(dims[it] == "n" for it in product.lhs.iterators)
    return ("n", "m") if first else ("m", "n")


def _contiguous(program: Program, fusion: Fusion, written: tuple[str, ...]) -> str:
    """The output's axis along which the first output is contiguous."""
    first = next(iter(program.outputs), None)
    if first is None:  # folds alone leave
        return ""
    store = next(s for s in program.pointwise if s.write.name == first.name)
    if first.contiguous_axis is None:
        return ""
    own = fusion.iterators(store.name)
    inner = store.write.index[first.contiguous_axis]
    if isinstance(inner, Affine):
        inner = inner.iterator
    if isinstance(inner, Form):  # the number whose last digit neighbours differ in
        inner = next((str(t.of) for t in inner.terms if (t.scale, t.per) == (1, 1)), "")
    return written[own.index(inner)] if inner in own else ""


def extents_of(program: Program, fusion: Fusion, axes: tuple[str, ...]) -> dict[str, Dim]:
    """The extents along the output's axes, the same for all statements.

    Raises:
        UnsupportedProgram: products have different ones.
    """
    found: dict[str, Dim] = {}
    for statement in program.statements:
        sizes = dict(statement.domain)
        own = {d: sizes[it] for d, it in zip(axes, fusion.iterators(statement.name), strict=True)}
        if found and own != found:
            raise UnsupportedProgram(
                f"{statement.name} runs over {_listed(own)}, {program.statements[0].name} over "
                f"{_listed(found)}",
                where=program.name,
                why="a kernel has one output domain",
                nearest="Split the function: one output domain per fused function",
            )
        found = own
    return found


def _listed(extents: dict[str, Dim]) -> str:
    return f"[{', '.join(map(str, extents.values()))}]"


def _no_product(program: Program, product: Contraction) -> UnsupportedProgram:
    return UnsupportedProgram(
        f"{product.name}: {product} is not a matrix product",
        where=program.name,
        why="a tensor-core instruction multiplies what rows and columns of the result have of "
        "their own; here one operand has no axis of the result that the other has not",
        nearest="Compute it outside of the kernel, as a sum of products of elements: a product of "
        "tensor cores would compute one element a row",
    )
