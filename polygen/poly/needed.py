"""Which elements of a product anybody reads: masks that are affine conditions are domains.

    v1[i,j] = ge(i, j)
    v2[i,j] = where(v1[i,j], v0[i,j], 0.0)          v0 is read at { v0[i,j] : i >= j } alone

1. Backwards through the pointwise statements, isl keeps for every value the set of elements that
   are read: all of what leaves the kernel, and of what a statement reads the elements that go with
   those of its result. ``where`` reads its second argument only where its condition may be true,
   and its third only where that may be false.
2. When a condition may hold is a pair of sets, of where it may be true and where it may be false:
   comparisons of quasi-affine forms of coordinates and whole numbers, joined by and, or, not.
   Anything else may be both, everywhere. So what is found is never less than what is read.
3. Its hull in rows and columns of the result are half planes (`half_planes`), which say which tiles
   of a kernel have a product at all (`polygen.poly.tile_domain`).
4. The products' statements are restricted to these, and so are the reads of their sums
   (`restricted`): dependences, tiles and proofs are those of this smaller program.

Coordinates are f32 numbers in the kernel, exact up to 2^24. Forms have small factors and numbers
here, so that one that could be rounded to the other side of zero has two coordinates beyond 2^20,
and no memory holds such a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polygen import isl
from polygen.errors import VerifyError
from polygen.frontend.program import (
    Access,
    Affine,
    Argument,
    Constant,
    Coordinate,
    Index,
    Pointwise,
    Program,
)
from polygen.poly.fusion import Fusion
from polygen.poly.match import Match, Multiplied
from polygen.poly.scop import Scop, must_flow, reuse_dependences

HalfPlane = tuple[int, int, int]  # (a, b, c): the points with a*m + b*n + c >= 0

_LARGEST_FACTOR, _LARGEST_NUMBER = 16, 2**20
_MOST_OPERATIONS = 5_000_000  # of isl: half a second
_ALWAYS = "1 = 1"
_COMPARED = {
    "ge": (">=", "<"), "gt": (">", "<="), "le": ("<=", ">"), "lt": ("<", ">="),
    "eq": ("=", "!="), "ne": ("!=", "="),
}  # fmt: skip
_SUMS = {"add": "({0}) + ({1})", "sub": "({0}) - ({1})", "neg": "-({0})"}
_CHOICES = {
    "maximum": "max({0}, {1})", "minimum": "min({0}, {1})", "abs": "max({0}, -({0}))",
}  # fmt: skip
_KEEPS_WHOLE_NUMBERS = ("f32", "s32", "f64")


def needed(program: Program) -> dict[str, isl.Set]:
    """The elements of its sums that a program reads, as sets over their axes.

    Args:
        program: products and pointwise statements.

    Returns:
        A set for each product of which not all elements are read.
    """
    if not any(isinstance(arg, Coordinate) for s in program.pointwise for arg in s.args):
        return {}
    read = _Reading(program).all()
    sums = {one.write.name: one for one in program.contractions}
    found = {name: read[name] for name in sums if name in read}
    return {name: one for name, one in found.items() if not _everything(one).is_subset(one)}


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
        () where that is every element of a result, or none: then nobody needs the product.
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
    if whole is None or whole.intersect(isl.Set.from_basic_set(known)).is_empty():
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


def _everything(one: isl.Set) -> isl.Set:
    return isl.Set.universe(one.get_space())


class _Reading:
    """One walk backwards over the statements of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.writers = {s.write.name: s for s in program.pointwise}
        self.read: dict[str, isl.Set] = {}

    def all(self) -> dict[str, isl.Set]:
        """Of every value the elements that are read; those that leave the kernel are."""
        leaves = {tensor.name for tensor in self.program.outputs}
        for statement in reversed(self.program.statements):
            if not isinstance(statement, Pointwise):
                for access in statement.reads:
                    self._add(access, _instances(statement.domain))
                continue
            own = _instances(statement.domain)
            name = statement.write.name
            if name in self.read and name not in leaves:
                written = _access(statement.write, statement.domain)
                if written is not None:
                    own = self.read[name].apply(written.reverse())
            for arg, there in zip(statement.args, self._where(statement, own), strict=True):
                if isinstance(arg, Access):
                    self._add(arg, there, statement.domain)
        return self.read

    def _where(self, statement: Pointwise, own: isl.Set) -> list[isl.Set]:
        """The instances of a statement that read each of its arguments."""
        if statement.function != "where":
            return [own for _ in statement.args]
        iterators = [iterator for iterator, _ in statement.domain]
        names = {iterator: iterator for iterator in iterators}
        tuple_of = f"[{','.join(iterators)}]"
        sides = (
            own.intersect(isl.Set(f"{{ {tuple_of} : {text} }}"))
            for text in self._holds(statement.args[0], names)
        )
        return [own, *sides]

    def _add(
        self, access: Access, instances: isl.Set, domain: tuple[tuple[str, object], ...] = ()
    ) -> None:
        place = _access(access, domain)
        if place is None:
            axes = ",".join(f"a{n}" for n in range(len(access.index)))
            elements = isl.Set(f"{{ [{axes}] }}")
        else:
            elements = instances.apply(place)
        known = self.read.get(access.name)
        self.read[access.name] = elements if known is None else known.union(elements).coalesce()

    # --- conditions ---------------------------------------------------------------------------
    def _holds(self, arg: Argument, names: Mapping[str, str]) -> tuple[str, str]:
        """When a condition may be true, and when it may be false, as isl text.

        Args:
            arg: the condition.
            names: of the iterators of the statement that reads it, what they are at.
        """
        found = self._behind(arg, names)
        if found is None:
            return _ALWAYS, _ALWAYS
        writer, names = found
        args, function = writer.args, writer.function
        if function in ("logical_and", "logical_or"):
            (true, false), (true_2, false_2) = (self._holds(one, names) for one in args)
            both, any_of = (true, true_2), (false, false_2)
            if function == "logical_or":
                return _either(both), _both(any_of)
            return _both(both), _either(any_of)
        if function == "logical_not":
            return self._holds(args[0], names)[::-1]
        if function not in _COMPARED:
            return _ALWAYS, _ALWAYS
        forms = [self._form(one, names) for one in args]
        if None in forms:
            return _ALWAYS, _ALWAYS
        holds, fails = (f"({forms[0]}) {sign} ({forms[1]})" for sign in _COMPARED[function])
        return holds, fails

    def _form(self, arg: Argument, names: Mapping[str, str]) -> str | None:
        """An argument as a quasi-affine form, as isl text; None if it is none that is known."""
        if isinstance(arg, Constant):
            whole = float(arg.value).is_integer() and abs(arg.value) <= _LARGEST_NUMBER
            return str(int(arg.value)) if whole else None
        if isinstance(arg, Coordinate):
            return _placed(arg.index, names)
        found = self._behind(arg, names)
        if found is None:
            return None
        writer, names = found
        if writer.function == "mul":
            return self._multiple(writer, names)
        forms = [self._form(one, names) for one in writer.args]
        if None in forms:
            return None
        if writer.function == "cast":
            return forms[0] if writer.dtype.name in _KEEPS_WHOLE_NUMBERS else None
        text = (_SUMS | _CHOICES).get(writer.function)
        return f"({text.format(*forms)})" if text else None

    def _multiple(self, writer: Pointwise, names: Mapping[str, str]) -> str | None:
        """A form times a small whole number."""
        for factor, other in (writer.args, writer.args[::-1]):
            if isinstance(factor, Constant) and abs(factor.value) <= _LARGEST_FACTOR:
                form = self._form(other, names)
                if form is not None and float(factor.value).is_integer():
                    return f"({int(factor.value)}*({form}))"
        return None

    def _behind(
        self, arg: Argument, names: Mapping[str, str]
    ) -> tuple[Pointwise, dict[str, str]] | None:
        """The statement behind a value that is read, and where its iterators are then."""
        writer = self.writers.get(arg.name) if isinstance(arg, Access) else None
        if writer is None or not isinstance(arg, Access) or arg.name in self.program.in_parts:
            return None
        found: dict[str, str] = {}
        for own, index in zip(writer.write.index, arg.index, strict=True):
            place = _placed(index, names)
            if place is None or not isinstance(own, str):
                return None
            found[own] = place
        return (writer, found) if set(found) == {it for it, _ in writer.domain} else None


def _both(texts: tuple[str, str]) -> str:
    return f"({texts[0]}) and ({texts[1]})"


def _either(texts: tuple[str, str]) -> str:
    return f"({texts[0]}) or ({texts[1]})"


def _placed(index: Index, names: Mapping[str, str]) -> str | None:
    """An index as isl text; None of one that is no form of a single iterator."""
    if isinstance(index, int):
        return str(index)
    if isinstance(index, str):
        return names.get(index)
    if not isinstance(index, Affine) or index.iterator not in names:
        return None
    if abs(index.scale) > _LARGEST_FACTOR or abs(index.offset) > _LARGEST_NUMBER:
        return None
    place = names[index.iterator]
    quotient = f"floor(({place})/{index.per})" if index.per != 1 else f"({place})"
    return f"({index.scale}*{quotient} + {index.offset})"


def _instances(domain: tuple[tuple[str, object], ...]) -> isl.Set:
    """All points, whatever the sizes."""
    return isl.Set(f"{{ [{','.join(iterator for iterator, _ in domain)}] }}")


def _access(access: Access, domain: tuple[tuple[str, object], ...]) -> isl.Map | None:
    """Instance -> element; None where only data, or digits, say which."""
    iterators = [iterator for iterator, _ in domain]
    names = {iterator: iterator for iterator in iterators}
    cell = [_placed(index, names) for index in access.index]
    if None in cell:
        return None
    return isl.Map(f"{{ [{','.join(iterators)}] -> [{','.join(map(str, cell))}] }}")
