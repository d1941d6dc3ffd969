"""`Scop`: the program as integer polyhedra, with its dependences.

1. Neighbouring pointwise statements over one domain that read each other's values at their own
   point only become one *group*, a single statement to isl: whatever runs an instance of it runs
   its members in program order. What lives inside a group needs no dependence, so that isl's work
   grows with the number of groups and not with the length of an expression.
2. Every group gets a parametric domain, and every access that leaves it a relation, straight from
   `Program`. Rows in groups are elements of their group: as many as there are rows in all, which is
   more than any group has (`polygen.poly.row_groups`).
3. A contraction is two statements: `Z0[i,j]` clears the sum, `S0[i,j,k]` adds to it. In blocks it
   is four: these have a sum for every block, which `A0[i,j,b]` adds to the whole (`in_blocks`).
4. Program order is lexicographic: group by group, each over its own domain.
5. isl computes flow dependences (value flow) and the anti and output dependences (reuse of a cell).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from polygen import isl
from polygen.brief import Brief
from polygen.errors import SignatureError
from polygen.frontend.indices import divided, named_in, times_in
from polygen.frontend.program import (
    Access,
    Affine,
    Contraction,
    Dim,
    Gathered,
    Program,
    Statement,
)

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

_LISTED = 8  # statements of a group that are printed


@dataclass(frozen=True, slots=True)
class Group:
    """Statements that isl sees as one, because one instance of it runs them all, in order."""

    statements: tuple[Statement, ...]

    @property
    def name(self) -> str:
        """The statement's name; of several, the first's and the last's."""
        first, last = self.statements[0].name, self.statements[-1].name
        return first if first == last else f"{first}_{last}"

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the statements, in program order."""
        return tuple(s.name for s in self.statements)

    @property
    def domain(self) -> tuple[tuple[str, Dim], ...]:
        """Iterators and extents, the same for every member."""
        return self.statements[0].domain

    @property
    def reads(self) -> tuple[Access, ...]:
        """What no earlier member has written, each access once."""
        written: set[str] = set()
        found: dict[Access, None] = {}
        for statement in self.statements:
            found.update((access, None) for access in statement.reads if access.name not in written)
            written.add(statement.write.name)
        return tuple(found)

    @property
    def writes(self) -> tuple[Access, ...]:
        """What the members write."""
        return tuple(s.write for s in self.statements)


@dataclass(frozen=True, slots=True, repr=False)
class Scop(Brief):
    """Domains, accesses and dependences; every set is parametric in the symbolic sizes."""

    parameters: tuple[str, ...]  # the symbolic sizes
    groups: tuple[Group, ...]  # what isl's statements stand for, in program order
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
        several = [g for g in self.groups if len(g.members) > 1]
        parts = [f"{g.name}: {listed(g.members)}, one after the other" for g in several]
        for title, value in rows:
            pieces = isl.pieces(value)
            parts.append(f"{title}:\n" + "\n".join(f"  {piece}" for piece in pieces))
        return "\n".join(parts)


def listed(names: tuple[str, ...]) -> str:
    """The statements of a group, for people; a long row of them shortened."""
    shown = names if len(names) <= _LISTED else (*names[:2], "…", names[-1])
    return ", ".join(shown)


def clear_name(statement: Contraction) -> str:
    """The statement that sets a contraction's sum to zero."""
    return "Z" + statement.name[1:]


def clears(name: str) -> str:
    """What a statement of such a name does, behind it; "" of the program's own statements."""
    return f"   the sums of S{name[1:]} begin at 0" if name.startswith("Z") else ""


@dataclass(frozen=True, slots=True)
class InBlocks:
    """One of the statements of a contraction in blocks.

    Attributes:
        name: the statement's.
        domain: its iterators and their extents.
        reads: cells, as isl text.
        write: a cell.
        step: when it runs: 0 before the products, 1 with them, 2 behind.
        k: the index of the sum that whoever runs it is at, as isl text.
    """

    name: str
    domain: tuple[tuple[str, Dim], ...]
    reads: tuple[str, ...]
    write: str
    step: int
    k: str

    @property
    def instance(self) -> str:
        """``A0[i,j,b]``."""
        return f"{self.name}[{','.join(iterator for iterator, _ in self.domain)}]"


def in_blocks(product: Contraction) -> tuple[InBlocks, ...]:
    """The statements of a contraction whose terms are added up in blocks.

        Z0[i,j,b]   inner[i,j,b] = 0
        S0[i,j,k]   inner[i,j,floor(k/128)] += x[i,k] * w[j,k]
        Y0[i,j]     v[i,j] = 0
        A0[i,j,b]   v[i,j] += s[i,b] * inner[i,j,b]

    The first one clears, in the order of the list, the products add, the last one promotes.
    """
    (k,), block, sizes = product.summed, product.block, dict(product.domain)
    length = sizes[k]
    assert (length if isinstance(length, int) else times_in(length)) % block == 0
    outer = tuple(item for item in product.domain if item[0] in product.write.iterators)
    b = f"{k}_block"
    blocks = (*outer, (b, divided(length, block)))
    kept = [str(one) for one in product.write.index]
    total = _cell(product.write)
    inner = f"{product.write.name}_inner"
    own, at = (f"{inner}[{','.join([*kept, one])}]" for one in (b, f"floor({k}/{block})"))
    factors = [_cell(_in_block(one, k, b, block)) for one in product.factors]
    first, last = f"({block}*{b})", f"({block}*{b} + {block - 1})"
    return (
        InBlocks(clear_name(product), blocks, (), own, 0, first),
        InBlocks(product.name, product.domain, (at, *map(_cell, product.reads)), at, 1, k),
        InBlocks(f"Y{product.name[1:]}", outer, (), total, 0, f"({block - 1})"),
        InBlocks(f"A{product.name[1:]}", blocks, (own, total, *factors), total, 2, last),
    )


def _in_block(factor: Access, k: str, b: str, block: int) -> Access:
    """A factor by the number of the block: ``floor(floor(k / block) / (per / block))``."""
    index = tuple(
        replace(one, iterator=b, per=one.per // block)
        if isinstance(one, Affine) and one.iterator == k
        else one
        for one in factor.index
    )
    return replace(factor, index=index)


def space(parameters: tuple[str, ...]) -> str:
    """The parameter prefix of isl text, ``[M,N,K] -> ``; nothing without parameters."""
    return f"[{','.join(parameters)}] -> " if parameters else ""


def groups(program: Program, passes: Mapping[str, int] | None = None) -> tuple[Group, ...]:
    """The program's statements as groups: neighbours, so that no other statement runs between.

    What a group reads of other statements it reads at one point: a square matrix and its transpose
    are two groups, as others are, whose shapes differ. So are statements that read at their own
    point, or nothing, and those that read with axes exchanged which are as long as each other.

    Args:
        program: its statements.
        passes: of statements that do not all run at once, which of them runs one.
    """
    times = passes or {}
    found: list[list[Statement]] = []
    written: set[str] = set()  # by the last group
    skewed: set[str] = set()  # what the last group accesses at another point than its own
    values = {statement.write.name for statement in program.statements}
    taken: dict[str, Access] = {}  # what the last group reads of others
    point: tuple[str, ...] = ()  # where it does
    for statement in program.statements:
        own = tuple(iterator for iterator, _ in statement.domain)
        long = tuple(iterator for iterator, extent in statement.domain if extent != 1)
        accesses = (statement.write, *statement.reads)
        here = {access.name for access in accesses if access.by_group not in (own, long)}
        if statement.write.by_place.index in (own, long):  # rows that are stored by index
            here.discard(statement.write.name)
        own_reads = {access.name: access for access in statement.reads if access.name in values}
        goes_on = not written.isdisjoint(own_reads)
        at = _exchanged(statement, own_reads.values())
        together = (
            bool(found)
            and not isinstance(statement, Contraction)
            and not isinstance(found[-1][0], Contraction)
            and found[-1][0].domain == statement.domain
            and times.get(found[-1][0].name) == times.get(statement.name)
            and not (written | {statement.write.name}) & (skewed | here)
            and all(taken.get(name, access) == access for name, access in own_reads.items())
            and (at == point or (goes_on and at == own))
        )
        if together:
            found[-1].append(statement)
            written.add(statement.write.name)
            skewed |= here
            taken |= own_reads
        else:
            found.append([statement])
            written, skewed, taken = {statement.write.name}, here, own_reads
            point = at
    return tuple(Group(tuple(members)) for members in found)


def _exchanged(statement: Statement, values: Iterable[Access]) -> tuple[str, ...]:
    """The iterators by which a statement reads values, of its own ones; those where it does not.

    They are others only where extents do not tell axes apart.
    """
    sizes = dict(statement.domain)
    own = tuple(sizes)
    for access in values:
        read = access.iterators
        exchanged = read != own and sorted(read) == sorted(own)
        if exchanged and [sizes[iterator] for iterator in read] == list(sizes.values()):
            return read
    return own


def scop(program: Program, apart: bool = False, passes: Mapping[str, int] | None = None) -> Scop:
    """Model a program as polyhedra and compute its dependences.

    Args:
        program: what to model.
        apart: every statement is a group of its own, for people to look at.
        passes: as for `groups`.

    Raises:
        SignatureError: a size has a name that isl reserves.
    """
    extents = (extent for s in program.statements for _, extent in s.domain)
    parameters = (*program.sizes, *(name for extent in extents for name in named_in(extent)))
    parameters = tuple(dict.fromkeys(parameters))
    for name in parameters:
        if name.lower() in RESERVED:
            raise SignatureError(
                f"size name {name!r} is reserved", where="signature", nearest=f"Use {name.upper()}_"
            )
    prefix = space(parameters)
    parts = tuple(Group((s,)) for s in program.statements) if apart else groups(program, passes)
    visible = {tensor.name for tensor in program.outputs}
    visible.update(access.name for group in parts for access in group.reads)
    domain: list[str] = []
    reads: list[str] = []
    writes: list[str] = []
    order: list[str] = []
    depth = max(len(group.domain) for group in parts)

    def at(step: int, iterators: list[str]) -> str:
        """The time of an instance; all have one length, so that isl can compare them."""
        return ",".join([str(step), *iterators, *["0"] * (depth - len(iterators))])

    for position, group in enumerate(parts):
        instance, statement = _instance(group), group.statements[0]
        if isinstance(statement, Contraction) and statement.block:
            for one in in_blocks(statement):
                domain.append(f"{one.instance} : {_bounds(one.domain)}")
                reads.extend(f"{one.instance} -> {cell}" for cell in one.reads)
                writes.append(f"{one.instance} -> {one.write}")
                own = [iterator for iterator, _ in one.domain]
                order.append(f"{one.instance} -> [{at(2 * position + one.step, own)}]")
            continue
        domain.append(f"{instance} : {_bounds(group.domain)}")
        reads.extend(f"{instance} -> {_cell(access)}" for access in group.reads)
        stored = (access.by_place for access in group.writes if access.name in visible)
        writes.extend(f"{instance} -> {_cell(access)}" for access in stored)
        iterators = [iterator for iterator, _ in group.domain]
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
    return Scop(parameters, parts, whole, read, write, time, flow, reuse)


def must_flow(read: isl.UnionMap, write: isl.UnionMap, time: isl.UnionMap) -> isl.UnionMap:
    """Which write every read sees, in the order `time`."""
    access = isl.UnionAccessInfo.from_sink(read).set_must_source(write).set_schedule_map(time)
    return access.compute_flow().get_must_dependence()


def reuse_dependences(read: isl.UnionMap, write: isl.UnionMap, time: isl.UnionMap) -> isl.UnionMap:
    """Anti and output dependences: a cell may be overwritten only after its last use."""
    access = isl.UnionAccessInfo.from_sink(write).set_kill(write)
    access = access.set_may_source(read.union(write)).set_schedule_map(time)
    return access.compute_flow().get_may_dependence()


def _instance(group: Group) -> str:
    return f"{group.name}[{','.join(iterator for iterator, _ in group.domain)}]"


def _bounds(domain: tuple[tuple[str, str | int], ...]) -> str:
    return " and ".join(f"0 <= {iterator} < {extent}" for iterator, extent in domain) or "1 = 1"


def _cell(access: Access) -> str:
    """An element; of rows in groups by group and row, which no two of them share.

    Where a vector says which element of an axis is meant, that may be any of them. Of what is
    written no two are the same, as is promised of rows that are stored by index, and nothing else
    accesses the array: there the place in the vector says which (`Access.by_place`).
    """
    found, anywhere = [], []
    for axis, index in enumerate(access.by_group):
        if isinstance(index, Gathered):
            found.append(f"any{axis}")
            anywhere.append(f"0 <= any{axis} < {index.extent}")
        else:
            found.append(str(index))
    cell = f"{access.name}[{','.join(found)}]"
    return f"{cell} : {' and '.join(anywhere)}" if anywhere else cell
