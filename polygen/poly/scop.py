"""`Scop`: the program as integer polyhedra, with its dependences.

1. Every statement gets a parametric domain, and every access a relation, straight from `Program`.
2. A contraction is two statements: `Z0[i,j]` clears the sum, `S0[i,j,k]` adds to it.
3. Program order is lexicographic: statement by statement, each over its own domain.
4. isl computes flow dependences (value flow) and the anti and output dependences (reuse of a cell).
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.errors import SignatureError
from polygen.frontend.program import Access, Contraction, Program, Statement

# Words of isl's language, which ignores their case, and the one parameter of our own.
# fmt: off
RESERVED = frozenset(
    [
        "mod", "floor", "ceil", "floord", "ceild", "and", "or", "not", "exists", "exist", "min",
        "max", "implies", "true", "false", "infty", "infinity", "nan", "rat", "domain",
        "k_tiles",
    ]
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Scop:
    """Domains, accesses and dependences; every set is parametric in the symbolic sizes."""

    parameters: tuple[str, ...]  # the symbolic sizes
    domain: isl.UnionSet
    reads: isl.UnionMap
    writes: isl.UnionMap
    order: isl.UnionMap  # program order: statement instance -> time
    flow: isl.UnionMap  # write -> the reads that see its value
    reuse: isl.UnionMap  # anti and output dependences

    @property
    def dependences(self) -> isl.UnionMap:
        """All dependences: what every schedule has to respect."""
        return self.flow.union(self.reuse)

    def __str__(self) -> str:
        rows: list[tuple[str, isl.UnionSet | isl.UnionMap]] = [
            ("domain", self.domain),
            ("reads", self.reads),
            ("writes", self.writes),
            ("flow dependences", self.flow),
            ("anti and output dependences", self.reuse),
        ]
        parts = []
        for title, value in rows:
            pieces = isl.pieces(value)
            parts.append(f"{title}:\n" + "\n".join(f"  {piece}" for piece in pieces))
        return "\n".join(parts)


def clear_name(statement: Contraction) -> str:
    """The statement that sets a contraction's sum to zero."""
    return "Z" + statement.name[1:]


def space(parameters: tuple[str, ...]) -> str:
    """The parameter prefix of isl text, ``[M,N,K] -> ``; nothing without parameters."""
    return f"[{','.join(parameters)}] -> " if parameters else ""


def scop(program: Program) -> Scop:
    """Model a program as polyhedra and compute its dependences.

    Raises:
        SignatureError: a size has a name that isl reserves.
    """
    parameters = program.sizes
    for name in parameters:
        if name.lower() in RESERVED:
            raise SignatureError(
                f"size name {name!r} is reserved", where="signature", nearest=f"Use {name.upper()}_"
            )
    prefix = space(parameters)
    domain: list[str] = []
    reads: list[str] = []
    writes: list[str] = []
    order: list[str] = []
    depth = max(len(statement.domain) for statement in program.statements)

    def at(step: int, iterators: list[str]) -> str:
        """The time of an instance; all have one length, so that isl can compare them."""
        return ",".join([str(step), *iterators, *["0"] * (depth - len(iterators))])

    for position, statement in enumerate(program.statements):
        instance = _instance(statement)
        domain.append(f"{instance} : {_bounds(statement.domain)}")
        writes.append(f"{instance} -> {_cell(statement.write)}")
        reads.extend(f"{instance} -> {_cell(access)}" for access in statement.reads)
        iterators = [iterator for iterator, _ in statement.domain]
        order.append(f"{instance} -> [{at(2 * position + 1, iterators)}]")
        if isinstance(statement, Contraction):
            reads.append(f"{instance} -> {_cell(statement.write)}")
            outer = tuple(item for item in statement.domain if item[0] in statement.write.iterators)
            clear = f"{clear_name(statement)}[{','.join(iterator for iterator, _ in outer)}]"
            domain.append(f"{clear} : {_bounds(outer)}")
            writes.append(f"{clear} -> {_cell(statement.write)}")
            order.append(f"{clear} -> [{at(2 * position, [it for it, _ in outer])}]")
    whole = isl.UnionSet(prefix + "{ " + "; ".join(domain) + " }")
    positive = " and ".join(f"{name} >= 1" for name in parameters) or "1 = 1"
    whole = whole.intersect_params(isl.Set(prefix + "{ : " + positive + " }"))

    def relation(items: list[str]) -> isl.UnionMap:
        return isl.UnionMap(prefix + "{ " + "; ".join(items) + " }").intersect_domain(whole)

    read, write, time = relation(reads), relation(writes), relation(order)
    flow = must_flow(read, write, time)
    reuse = reuse_dependences(read, write, time)
    return Scop(parameters, whole, read, write, time, flow, reuse)


def must_flow(read: isl.UnionMap, write: isl.UnionMap, time: isl.UnionMap) -> isl.UnionMap:
    """Which write every read sees, in the order `time`."""
    access = isl.UnionAccessInfo.from_sink(read).set_must_source(write).set_schedule_map(time)
    return access.compute_flow().get_must_dependence()


def reuse_dependences(read: isl.UnionMap, write: isl.UnionMap, time: isl.UnionMap) -> isl.UnionMap:
    """Anti and output dependences: a cell may be overwritten only after its last use."""
    access = isl.UnionAccessInfo.from_sink(write).set_kill(write)
    access = access.set_may_source(read.union(write)).set_schedule_map(time)
    return access.compute_flow().get_may_dependence()


def _instance(statement: Statement) -> str:
    return f"{statement.name}[{','.join(iterator for iterator, _ in statement.domain)}]"


def _bounds(domain: tuple[tuple[str, str | int], ...]) -> str:
    return " and ".join(f"0 <= {iterator} < {extent}" for iterator, extent in domain) or "1 = 1"


def _cell(access: Access) -> str:
    return f"{access.name}[{','.join(map(str, access.index))}]"
