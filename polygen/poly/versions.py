"""Sets and relations of a tile program: versions of buffers, and the dependences through them.

1. Domains and accesses are read from the program's texts.
2. Flow, anti and output dependences come from isl, in the sequential order. A read that nothing
   wrote before is refused.
3. A buffer has fewer slots than versions. `next` leads from a version to the next of the same
   owner: the smallest of the lexicographically larger ones. Whoever touches version v has to be
   done before version next^slots(v) is written: *reuse*.
4. A buffer that overlays others is written after their last use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from polygen import isl, remembered
from polygen.errors import IllegalSchedule
from polygen.hardware.units import FenceRule, fence_between
from polygen.poly.before import antis, flows, outputs, union_map
from polygen.poly.tile_program import Buffer, SyncStatement, TileProgram, TileStatement
from polygen.poly.tile_tree import Node, times
from polygen.poly.varying import numbered, numbered_context, numbered_set, positions

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out


@dataclass(frozen=True, slots=True)
class Dependence:
    """Pairs of instances that have to stay in order.

    Attributes:
        kind: "flow", "anti", "output", "reuse" or "overlay".
        buffer: through which.
        source: the statement that has to be done.
        target: the statement that comes after it.
        relation: source instance -> target instance.
        local: whether both are of one agent.
        fence: what the path between them has to contain.
    """

    kind: str
    buffer: Buffer
    source: TileStatement
    target: TileStatement
    relation: isl.Map
    local: bool = False
    fence: FenceRule | None = None

    def __str__(self) -> str:
        fence = f", {self.fence.name}" if self.fence else ""
        round_ = f", {self.buffer.slots} version(s) later" if self.kind == "reuse" else ""
        what = f"{self.kind} through {self.buffer.name}{round_}{fence}"
        return f"{self.source.name} -> {self.target.name} ({what})"


class TileModel:
    """A tile program as isl sets and relations."""

    def __init__(
        self,
        program: TileProgram,
        leaves: Iterable[SyncStatement] = (),
        *,
        printed: bool = False,
    ) -> None:
        """Args:
        program: the program.
        leaves: what synchronises it, as far as texts speak of it.
        printed: whether text is made of its sets. isl may rewrite a set in place when it computes
            with it, into one that is equal and reads differently: what is printed is therefore
            read for this model alone.
        """
        self.program, self._printed = program, printed
        self._read: dict[str, isl.Map] = {}  # texts that were parsed
        self._nameless: dict[str, isl.Set] = {}
        varying = program.varying
        self._positions = {} if varying is None else positions(varying, program.statements, leaves)
        self.context = isl.Set(f"{program.prefix}{{ : {program.context} }}")
        if varying is not None:
            self.context = numbered_context(varying, self.context)
        self.domains = {s.name: self.set(s.domain) for s in program.statements}
        self.reads: dict[str, dict[str, isl.Map]] = {b.name: {} for b in program.buffers}
        self.writes: dict[str, dict[str, isl.Map]] = {b.name: {} for b in program.buffers}
        for statement in program.statements:
            for table, cells in ((self.reads, statement.reads), (self.writes, statement.writes)):
                for cell in cells:
                    self._add(table, statement, cell)
        self.meaning = self.time_of(program.order)
        self.cells = {b.name: self._cells(b) for b in program.buffers if self.writes[b.name]}
        self.versions = {b.name: b.versions for b in program.buffers}

    def set(self, text: str) -> isl.Set:
        """A set of the program's parameters."""
        read = isl.Set if self._printed else remembered.read_set
        found = read(f"{self.program.prefix}{{ {text} }}")
        if self.program.varying is not None:
            at = self._positions.get(str(found.get_tuple_name()))
            found = numbered_set(self.program.varying, found, at)
        return found.intersect_params(self.context)

    def map(self, text: str) -> isl.Map:
        """A relation of the program's parameters."""
        if not self._printed:
            return self.read(text)
        known = self._read.get(text)
        if known is None:
            known = self._read[text] = isl.Map(f"{self.program.prefix}{{ {text} }}")
        return known

    def read(self, text: str) -> isl.Map:
        """The same, not to be printed."""
        return self.numbered(remembered.read_map(f"{self.program.prefix}{{ {text} }}"))

    def numbered(self, relation: isl.Map) -> isl.Map:
        """A relation from instances under the number that a parameter has where they are."""
        if self.program.varying is None:
            return relation
        at = self._positions.get(str(relation.get_tuple_name(_IN)))
        return numbered(self.program.varying, relation, at)

    def time_of(self, tree: Node) -> dict[str, isl.Map]:
        """When the program's statements run, by a tree."""
        found = {}
        for name, vector in times(tree).items():
            instance = self.program.statement(name).instance
            found[name] = self.map(f"{instance} -> [{','.join(vector)}]").intersect_domain(
                self.domains[name]
            )
        return found

    def _add(
        self, table: dict[str, dict[str, isl.Map]], statement: TileStatement, cell: str
    ) -> None:
        access = self.map(f"{statement.instance} -> {cell}")
        access = access.intersect_domain(self.domains[statement.name])
        of = table[str(access.get_tuple_name(_OUT))]
        known = of.get(statement.name)
        of[statement.name] = access if known is None else known.union(access).coalesce()

    def _cells(self, buffer: Buffer) -> isl.Set:
        """Versions and owners of a buffer that are ever written."""
        written = [
            self.whole(buffer, access).range() for access in self.writes[buffer.name].values()
        ]
        return union_of(written).coalesce()

    def whole(self, buffer: Buffer, access: isl.Map) -> isl.Map:
        """An access without the parts of its cells."""
        kept = buffer.versions + buffer.owner
        short = access.project_out(_OUT, kept, access.dim(_OUT) - kept)
        return short.set_tuple_name(_OUT, buffer.name)

    def next(self, buffer: str, count: int = 1) -> isl.Map:
        """Version and owner -> the version `count` later of the same owner."""
        found = later_version(self._counted(buffer), self.versions[buffer], count)
        return found.set_tuple_name(_IN, buffer).set_tuple_name(_OUT, buffer)

    def _counted(self, buffer: str) -> isl.Set:
        """The cells of a buffer without its name, of a set that is not printed."""
        known = self._nameless.get(buffer)
        if known is None:
            ours = any(b.name == buffer for b in self.program.buffers)
            cells = (_shared(self.program) if ours else self).cells[buffer]
            known = self._nameless[buffer] = cells.reset_tuple_id()
        return known

    def replaced(self, buffer: Buffer) -> isl.Map:
        """Version and owner -> the next version that takes the same slot."""
        if buffer.slot is None:
            return self.next(buffer.name, buffer.slots)
        cells, slot = self.cells[buffer.name], self.slot(buffer)
        later = later_cells(cells, buffer.versions).intersect(slot.apply_range(slot.reverse()))
        return later.lexmin().coalesce()

    def slot(self, buffer: Buffer) -> isl.Map:
        """Cell -> its slot, as the loops say it."""
        assert buffer.slot is not None
        names, formula = buffer.slot
        owner = [f"o{n}" for n in range(buffer.owner)]
        return self.map(f"{buffer.name}[{','.join((*names, *owner))}] -> [({formula})]")

    def add_token(self, name: str, cells: isl.Set, versions: int) -> None:
        """Cells of what no statement writes: a token that agents pass on."""
        self.cells[name], self.versions[name] = cells.coalesce(), versions
        self._nameless.pop(name, None)

    def dependences(self) -> tuple[Dependence, ...]:
        """All dependences, split into those inside one agent and those between agents.

        Raises:
            IllegalSchedule: a cell is read that nothing wrote.
        """
        return _dependences(self.program)

    def find_dependences(self) -> tuple[Dependence, ...]:
        """`dependences`, computed."""
        order = union_map(self.meaning.values())
        found: list[Dependence] = []
        for buffer in self.program.buffers:
            if self.writes[buffer.name]:
                found += self._through(buffer, order)
        return tuple(part for one in found for part in self._split(one))

    def _through(self, buffer: Buffer, order: isl.UnionMap) -> list[Dependence]:
        reads, writes = self.reads[buffer.name], self.writes[buffer.name]
        flow, lost = flows(reads, writes, self.meaning, order)
        if not lost.is_empty():
            raise IllegalSchedule(
                f"{buffer.name} is read before it is written: {isl.sample_pair(lost)}",
                where=buffer.name,
            )
        kinds = [("flow", flow)]
        (only, *others) = writes.values()
        if others or not only.is_injective():
            kinds.append(("anti", antis(reads, writes, self.meaning, order)))
            kinds.append(("output", outputs(writes, self.meaning, order)))
        found = [
            self._dependence(kind, buffer, one)
            for kind, relation in kinds
            for one in maps_of(relation)
        ]
        if buffer.versions:
            found += self._reuse(buffer)
        for overlaid in buffer.overlays:
            found += self._overlay(buffer, overlaid)
        return found

    def _reuse(self, buffer: Buffer) -> list[Dependence]:
        """Who touches a version -> who writes the one that takes its slot."""
        found: dict[tuple[str, str], Dependence] = {}
        for source, access in self._accesses(buffer):
            for target, write in self.writes[buffer.name].items():
                parts = access.dim(_OUT) - buffer.versions - buffer.owner
                step = with_parts(self.replaced(buffer), parts, buffer.name)
                relation = access.apply_range(step).apply_range(write.reverse())
                if relation.is_empty():
                    continue
                known = found.get((source, target))
                if known is not None:
                    relation = relation.union(known.relation)
                one = self._dependence("reuse", buffer, relation.coalesce())
                found[source, target] = one
        return list(found.values())

    def _accesses(self, buffer: Buffer) -> list[tuple[str, isl.Map]]:
        """Reads, and the writes that are no reads as well."""
        reads = self.reads[buffer.name]
        writes = self.writes[buffer.name].items()
        more = [(s, w) for s, w in writes if s not in reads or not w.is_subset(reads[s])]
        return [*reads.items(), *more]

    def _overlay(self, buffer: Buffer, overlaid: str) -> list[Dependence]:
        """Whoever uses the bytes under another name -> whoever writes them under this one."""
        found = []
        for source, _ in self._accesses(self.program.buffer(overlaid)):
            for target in self.writes[buffer.name]:
                before = isl.Map.lex_lt_map(self.meaning[source], self.meaning[target])
                for n in range(self.program.statement(source).place.blocks):
                    before = before.equate(_IN, n, _OUT, n)
                if not before.is_empty():
                    found.append(self._dependence("overlay", buffer, before))
        return found

    def _dependence(self, kind: str, buffer: Buffer, relation: isl.Map) -> Dependence:
        source = self.program.statement(str(relation.get_tuple_name(_IN)))
        target = self.program.statement(str(relation.get_tuple_name(_OUT)))
        writes = kind in ("flow", "output") or (
            kind in ("reuse", "overlay") and source.name in self.writes[buffer.name]
        )
        fence = fence_between(buffer.space, source.unit, target.unit, writes=writes)
        return Dependence(kind, buffer, source, target, relation, fence=fence)

    def _split(self, one: Dependence) -> list[Dependence]:
        if one.source.place != one.target.place:
            return [one]
        local = same_agent(one.relation, len(one.source.place.agents))
        between = one.relation.subtract(local)
        pairs = ((local, True), (between, False))
        return [replace(one, relation=r, local=is_) for r, is_ in pairs if not r.is_empty()]


@lru_cache(maxsize=16)
def _shared(program: TileProgram) -> TileModel:
    """A model for what follows from the program alone and is computed once."""
    return TileModel(program)


@lru_cache(maxsize=16)
def _dependences(program: TileProgram) -> tuple[Dependence, ...]:
    """They follow from the program alone: found once for who orders and for who proves them."""
    return _shared(program).find_dependences()


@lru_cache(maxsize=128)
def later_version(cells: isl.Set, versions: int, count: int) -> isl.Map:
    """Every cell without a name -> the version `count` later of the same owner."""
    if count == 0:
        return cells.identity()
    if count == 1:
        return successor(cells, versions)
    half = count // 2
    return remembered.composed(
        later_version(cells, versions, count - half), later_version(cells, versions, half)
    )


def forget() -> None:
    """Forget what was computed of programs: what comes next takes as long as in a new process."""
    for kept in (_shared, _dependences, later_version):
        kept.cache_clear()
    remembered.forget()


def successor(cells: isl.Set, versions: int) -> isl.Map:
    """Every cell -> the next version of the same owner."""
    return remembered.least(later_cells(cells, versions))


def later_cells(cells: isl.Set, versions: int) -> isl.Map:
    """Every cell -> all later versions of the same owner."""
    rest = cells.dim(isl.dim_type.set) - versions
    now, later = ([f"{letter}{i}" for i in range(versions)] for letter in "vu")
    owner = [f"o{i}" for i in range(rest)]
    cases = [
        " and ".join([*(f"{now[j]} = {later[j]}" for j in range(d)), f"{now[d]} < {later[d]}"])
        for d in range(versions)
    ]
    name = cells.get_tuple_name() if cells.has_tuple_name() else ""
    less = isl.Map(
        f"{{ {name}[{','.join(now + owner)}] -> {name}[{','.join(later + owner)}] : "
        f"{' or '.join(cases) or '1 = 0'} }}"
    )
    return less.intersect_domain(cells).intersect_range(cells)


def with_parts(step: isl.Map, parts: int, name: str) -> isl.Map:
    """A relation between cells, carried over to each of their parts."""
    if not parts:
        return step
    names = ",".join(f"p{i}" for i in range(parts))
    same = isl.Map(f"{{ [{names}] -> [{names}] }}")
    bare = step.reset_tuple_id(_IN).reset_tuple_id(_OUT).flat_product(same)
    return bare.set_tuple_name(_IN, name).set_tuple_name(_OUT, name)


def same_agent(relation: isl.Map, agents: int) -> isl.Map:
    """The pairs whose first coordinates are equal."""
    return remembered.same_first(relation, agents)


def of_each_agent(step: isl.Map, agents: int) -> isl.Map:
    """A relation between cells, of cells with their agents, as from `before.by_agent`."""
    found = step.reset_tuple_id(_IN).reset_tuple_id(_OUT)
    found = found.insert_dims(_IN, 0, agents).insert_dims(_OUT, 0, agents)
    for n in range(agents):
        found = found.equate(_IN, n, _OUT, n)
    return found


def union_of(sets: Iterable[isl.Set]) -> isl.Set:
    """The union of some sets of one space; there is at least one."""
    first, *rest = sets
    for one in rest:
        first = first.union(one)
    return first


def union_of_maps(maps: Iterable[isl.Map]) -> isl.Map:
    """The union of some relations of one space; there is at least one."""
    first, *rest = maps
    for one in rest:
        first = first.union(one)
    return first.coalesce()


def maps_of(relation: isl.UnionMap) -> list[isl.Map]:
    """A relation by spaces, without the empty ones."""
    each = relation.get_map_list()
    found = [each.get_at(position) for position in range(each.n_map())]
    return [one for one in found if not one.is_empty()]
