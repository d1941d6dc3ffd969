"""Which statements share one kernel, decided by isl's scheduler from the dependences.

1. isl's scheduler, asked to keep producers near consumers and to find parallel outer loops, returns
   a tree over the groups of statements that `scop` makes. Those that no value joins are tied at
   equal output points, so that they are scheduled as one.
2. If its outermost band covers every group, with a coincident member for every axis of the output,
   no dependence leaves an instance of that band: all statements fuse, and every intermediate lives
   and dies inside one point of the output, so it becomes a register.
3. The band says which iterators of each group, and so of its statements, run along the axes of the
   output: those of the first product.
4. Otherwise fusion is illegal: the answer names the dependence that leaves the point, and one
   concrete pair.

isl makes no loop for an extent of 1, so the scheduler sees a symbolic size in its place: what is
legal for every size is legal for 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import NoReturn

from polygen import isl
from polygen.errors import UnsupportedProgram
from polygen.frontend.program import Access, Contraction, Dim, Program, Statement, Tensor
from polygen.poly.scop import Group, Scop, clear_name, clears, listed, space
from polygen.poly.scop import scop as polyhedra
from polygen.poly.supported import require_supported


@dataclass(frozen=True, slots=True)
class Fusion:
    """The outer band that all statements share, in terms of the first product's output axes."""

    axes: tuple[str, ...]  # the first product's output iterators: leading ones, row, column
    band: tuple[tuple[str, tuple[str, ...]], ...]  # group -> its iterators along the axes
    members: tuple[tuple[str, tuple[str, ...]], ...] = ()  # group -> its statements, if several

    def iterators(self, statement: str) -> tuple[str, ...]:
        """The iterators of `statement` that run along the axes."""
        group = next((name for name, own in self.members if statement in own), statement)
        return dict(self.band)[group]

    def __str__(self) -> str:
        members = dict(self.members)
        rows = [
            f"  {listed(members.get(name, (name,)))}: ({', '.join(own)}){clears(name)}"
            for name, own in self.band
        ]
        axes = ("row", "column")[-len(self.axes) :] if len(self.axes) < 3 else self.axes
        return "\n".join([f"outer coincident band ({', '.join(axes)}):", *rows])


def fuse(program: Program, scop: Scop, passes: Mapping[str, int] | None = None) -> Fusion:
    """Fuse all statements into one band, or say which dependence forbids it.

    Args:
        program: its statements.
        scop: their groups and dependences.
        passes: as for `scop`.

    Raises:
        UnsupportedProgram: no contraction, a dependence that crosses output points, or what is not
            generated yet.
    """
    require_supported(program)
    first = _products(program)[0]
    axes = first.write.iterators
    general = _with_symbolic_ones(program)
    model = scop if general is program else polyhedra(general, passes=passes)
    ties = _ties(general, model)
    tied = model.dependences.union(ties)
    near = len(program.contractions) > 1 or not ties.is_empty()
    constraints = (
        isl.ScheduleConstraints.on_domain(model.domain)
        .set_validity(tied)
        .set_proximity(tied if near else model.flow)
        .set_coincidence(tied)
    )
    # Products count k and promotions blocks: what isl schedules apart first it would not join.
    in_blocks = any(product.block for product in program.contractions)
    with isl.scheduler_options(**({"whole_component": 1} if in_blocks else {})):
        tree = constraints.compute_schedule()
    band = _outer_band(tree.get_root(), len(axes))
    found: list[tuple[str, tuple[str, ...]]] = []
    pairs = None if band is None else band.apply_range(band.reverse())
    for group in scop.groups:
        statement = group.statements[0]
        if statement is first:
            match: tuple[str, ...] | None = axes
        else:
            written = tuple(iterator for iterator, _ in group.domain)
            if isinstance(statement, Contraction):
                written = statement.write.iterators
            match = next(
                (c for c in permutations(written) if pairs and _aligned(pairs, first, group, c)),
                None,
            )
        if match is None:
            _refuse(program, len(axes))
        if isinstance(statement, Contraction):
            found.append((clear_name(statement), match))
        found.append((group.name, match))
    several = tuple((g.name, g.members) for g in scop.groups if len(g.members) > 1)
    return Fusion(axes, tuple(found), several)


def _ties(program: Program, model: Scop) -> isl.UnionMap:
    """Between sets of statements that no value joins: equal output points, in program order.

    Of a set with a product that is its first product's, else its first statement's: rows of a chain
    that leave beside its results have no value in common with these.
    """
    first, *others = _apart(program)
    assert isinstance(first, Contraction)
    extents = dict(first.domain)
    wanted = [extents[it] for it in first.write.iterators]
    names = [f"o{axis}" for axis in range(len(wanted))]
    texts = []
    for other in others:
        sizes, name = dict(other.domain), _instance(other, model)
        along = other.write.iterators if isinstance(other, Contraction) else tuple(sizes)
        order = next(
            (p for p in permutations(range(len(along))) if [sizes[along[a]] for a in p] == wanted),
            None,
        )
        if order is None:
            if not isinstance(other, Contraction):  # nothing of its own runs along all axes
                continue
            order = tuple(range(len(along)))
        point = [names[order.index(axis)] for axis in range(len(along))]
        texts.append(f"{clear_name(first)}[{','.join(names)}] -> {name}[{','.join(point)}]")
    ties = isl.UnionMap(space(model.parameters) + "{ " + "; ".join(texts) + " }")
    return ties.intersect_domain(model.domain).intersect_range(model.domain)


def _instance(statement: Statement, model: Scop) -> str:
    """What instances of a statement are called that run along the axes of the output."""
    if isinstance(statement, Contraction):
        return clear_name(statement)
    return next(group.name for group in model.groups if statement in group.statements)


def _apart(program: Program) -> list[Statement]:
    """Of every set of statements that values join the first product, or the first of all.

    Sets with products come first. An array that several store parts of joins none of them.
    """
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            name = root[name]
        return name

    def made(statement: Statement) -> str:
        stored = statement.write.name in in_parts
        return f"{statement.name} of {statement.write.name}" if stored else statement.write.name

    in_parts = {*program.in_parts}
    values = {statement.write.name for statement in program.statements}
    for statement in program.statements:
        for access in statement.reads:
            if access.name in values:
                root[find(access.name)] = find(made(statement))
    found: dict[str, Statement] = {}
    for one in (*program.contractions, *program.statements):
        found.setdefault(find(made(one)), one)
    return list(found.values())


def _with_symbolic_ones(program: Program) -> Program:
    """The program with one more size in place of every extent of 1; itself if there is none."""
    if not any(extent == 1 for s in program.statements for _, extent in s.domain):
        return program
    symbol = "one"
    while symbol in program.sizes:
        symbol += "_"

    def dim(extent: Dim) -> Dim:
        return symbol if extent == 1 else extent

    def written(statement: Statement) -> Access:
        """Where it writes, with an axis for each such iterator that the array does not have."""
        own, index = statement.write.iterators, statement.write.index
        every = tuple(iterator for iterator, _ in statement.domain)
        ones = tuple(it for it, extent in statement.domain if extent == 1 and it not in own)
        at_own_point = tuple(it for it in every if it not in ones) == index
        return Access(statement.write.name, every if at_own_point else (*ones, *index))

    def tensor(given: Tensor) -> Tensor:
        return replace(given, dims=tuple(map(dim, given.dims)))

    return replace(
        program,
        inputs=tuple(map(tensor, program.inputs)),
        outputs=tuple(map(tensor, program.outputs)),
        statements=tuple(
            replace(
                s,
                domain=tuple((iterator, dim(extent)) for iterator, extent in s.domain),
                write=s.write if isinstance(s, Contraction) else written(s),
            )
            for s in program.statements
        ),
    )


def _products(program: Program) -> tuple[Contraction, ...]:
    if not program.contractions:
        raise UnsupportedProgram(
            "nothing to contract",
            where=program.name,
            why="one kernel runs the products of tensor cores, this program has none: "
            f"{'; '.join(map(str, program.statements))}",
            nearest="Multiply two arrays in it, as in x @ w",
        )
    return program.contractions


def _outer_band(root: isl.ScheduleNode, depth: int) -> isl.UnionMap | None:
    """The first members of the outermost band as a relation, if `depth` of them are coincident."""
    node = root.child(0)
    if isl.kind(node) != "band" or node.band_n_member() < depth:
        return None
    if not all(node.band_member_get_coincident(member) for member in range(depth)):
        return None
    if node.band_n_member() > depth:
        node = node.band_split(depth)
    return isl.UnionMap.from_multi_union_pw_aff(node.band_get_partial_schedule())


def _aligned(
    pairs: isl.UnionMap, product: Contraction, group: Group, candidate: tuple[str, ...]
) -> bool:
    """Whether equal band coordinates mean: candidate = the product's output iterators.

    Args:
        pairs: instances at equal band coordinates.
        product: whose axes are meant.
        group: the other of each pair.
        candidate: its iterators in the order to try.
    """
    own = f"{group.name}[{','.join(iterator for iterator, _ in group.domain)}]"
    others = [it for it, _ in product.domain]
    along = dict(zip(product.write.iterators, candidate, strict=False))
    image = ",".join(along.get(it, f"{it}_sum") for it in others)
    wanted = isl.UnionMap(f"{{ {own} -> {product.name}[{image}] }}")
    between = pairs.intersect_domain(isl.UnionSet(f"{{ {own} }}"))
    between = between.intersect_range(isl.UnionSet(f"{{ {product.name}[{','.join(others)}] }}"))
    return bool(not between.is_empty() and between.is_subset(wanted))


def _refuse(program: Program, depth: int) -> NoReturn:
    """Raise with a dependence that leaves its output point when axes meet axes."""
    scop = polyhedra(program, apart=True)  # the message names statements
    points = []
    for s in program.statements:
        own = [it for it, _ in s.domain]
        along = s.write.iterators if isinstance(s, Contraction) else own
        points.append(f"{s.name}[{','.join(own)}] -> [{','.join(along[:depth])}]")
    point = isl.UnionMap(space(scop.parameters) + "{ " + "; ".join(points) + " }")
    crossing = scop.flow.subtract(point.apply_range(point.reverse()))
    witness = isl.sample_pair(crossing) or isl.sample_pair(scop.flow)
    raise UnsupportedProgram(
        f"{program.name} cannot be fused into one kernel",
        where=f"dependence {witness}",
        why="the value is computed for one element of the result and used for another; a kernel "
        "has a value where it is computed, and nowhere else",
        nearest="Write what is used elsewhere as a product of its own, as w.T @ x.T for (x @ w).T; "
        "or return the product, and combine its elements outside of the kernel",
    )
