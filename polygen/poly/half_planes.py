"""Half planes in rows and columns of a result: the hull of what is read of its products.

What `polygen.poly.needed` finds of each product is a set. The half planes of the hull of all of
them say which tiles of a kernel have products at all (`polygen.poly.tile_domain`). The products'
statements are restricted to them, and so are the reads of their sums (`restricted`): dependences,
tiles and proofs are those of this smaller program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polygen import isl
from polygen.errors import VerifyError
from polygen.frontend.program import Program
from polygen.poly.fusion import Fusion
from polygen.poly.match import Match, Multiplied
from polygen.poly.needed import needed
from polygen.poly.scop import Scop, must_flow, reuse_dependences

HalfPlane = tuple[int, int, int]  # (a, b, c): the points with a*m + b*n + c >= 0

_MOST_OPERATIONS = 5_000_000  # of isl: half a second


def read_domain(program: Program, match: Match, fusion: Fusion) -> tuple[HalfPlane, ...]:
    """The half planes in which any sum is read; () where that is everywhere, or takes too long.

    Args:
        program: products and pointwise statements.
        match: the products.
        fusion: of the statements.
    """
    try:
        with isl.operations_budget(_MOST_OPERATIONS, "what is read of sums"):
            return half_planes(match, fusion, needed(program))
    except VerifyError:
        return ()


def restricted(model: Scop, match: Match, fusion: Fusion) -> Scop:
    """The model with sums made, and read, only inside the half planes of a match.

    Args:
        model: of the program.
        match: the products.
        fusion: of the statements.
    """
    unread = isl.UnionSet("{ }")
    for one in match.products:
        axes = ",".join(_axes(match, fusion, one))
        inside = isl.Set(f"{{ [{axes}] : {said(match.domain)} }}")
        outside = inside.complement().set_tuple_name(one.contraction.write.name)
        unread = unread.union(isl.UnionSet.from_set(outside))
    domain = model.domain.subtract(model.writes.intersect_range(unread).domain())
    reads = model.reads.subtract(model.reads.intersect_range(unread)).intersect_domain(domain)
    writes, order = model.writes.intersect_domain(domain), model.order.intersect_domain(domain)
    return replace(
        model,
        domain=domain.coalesce(),
        reads=reads.coalesce(),
        writes=writes.coalesce(),
        order=order,
        flow=must_flow(reads, writes, order),
        reuse=reuse_dependences(reads, writes, order),
    )


def _axes(match: Match, fusion: Fusion, one: Multiplied) -> list[str]:
    """The dims of a product's axes."""
    dims = match.dims(fusion.iterators(one.contraction.name))
    return [dims[str(index)] for index in one.contraction.write.index]


def half_planes(match: Match, fusion: Fusion, read: Mapping[str, isl.Set]) -> tuple[HalfPlane, ...]:
    """Half planes whose intersection has all elements of any product that are read.

    Args:
        match: the products, which share tiles.
        fusion: of their statements.
        read: what `needed` found.

    Returns:
        () where that is every element of a result, or none: then nobody needs the product, and
        a statement without instances has no place in a tree.
    """
    whole: isl.Set | None = None
    for one in match.products:
        name = one.contraction.write.name
        if name not in read:
            return ()
        if any(not isinstance(index, str) for index in one.contraction.write.index):
            return ()
        place = isl.Map(f"{{ [{','.join(_axes(match, fusion, one))}] -> [m, n] }}")
        own = read[name].apply(place)
        whole = own if whole is None else whole.union(own)
    known = isl.BasicSet("{ [m, n] : m >= 0 and n >= 0 }")
    if whole is None or whole.intersect(_result(match, fusion)).is_empty():
        return ()
    hull = whole.coalesce().remove_divs().simple_hull().gist(known).remove_redundancies()
    found: list[HalfPlane] = []
    for constraint in hull.get_constraints():
        a, b = (
            int(constraint.get_coefficient_val(isl.dim_type.set, at).to_python()) for at in (0, 1)
        )
        plane = (a, b, int(constraint.get_constant_val().to_python()))
        found.append(plane)
        if constraint.is_equality():
            found.append((-a, -b, -plane[2]))
    return tuple(sorted(found))


def _result(match: Match, fusion: Fusion) -> isl.Set:
    """Rows and columns of the result: as many as are known, where sizes are numbers."""
    bounds = ["m >= 0", "n >= 0"]
    for one in match.products:
        extents = dict(one.contraction.domain)
        for index, dim in zip(one.contraction.write.index, _axes(match, fusion, one), strict=True):
            extent = extents[str(index)]
            if dim in ("m", "n") and isinstance(extent, int):
                bounds.append(f"{dim} < {extent}")
    return isl.Set(f"{{ [m, n] : {' and '.join(bounds)} }}")


def said(planes: tuple[HalfPlane, ...]) -> str:
    """Half planes for people: ``m - n >= 0 and -m + n + 63 >= 0``."""
    return " and ".join(f"{linear(a, 'm', b, 'n', c)} >= 0" for a, b, c in planes)


def linear(a: int, first: str, b: int, second: str, number: int) -> str:
    """A form of two names as text, of isl and of C: ``2 * m - n + 3``."""
    text = ""
    for factor, name in ((a, first), (b, second), (number, "")):
        if not factor:
            continue
        size = str(abs(factor))
        term = size if not name else name if size == "1" else f"{size} * {name}"
        sign = ("-" if factor < 0 else "") if not text else (" - " if factor < 0 else " + ")
        text += sign + term
    return text or "0"
