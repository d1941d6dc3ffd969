"""Which statements share one kernel, decided by isl's scheduler from the dependences.

1. isl's scheduler, asked to keep producers near consumers and to find parallel outer loops, returns
   a tree over the groups of statements that `scop` makes.
2. If its outermost band covers every group and has two coincident members, no dependence leaves
   an instance of that band: all statements fuse, and every intermediate lives and dies inside one
   (row, column) point, so it becomes a register.
3. The band says which iterators of each group, and so of its statements, are the contraction's row
   and column.
4. Otherwise fusion is illegal: the answer names the dependence that leaves the point, and one
   concrete pair.

isl makes no loop for an extent of 1, so the scheduler sees a symbolic size in its place: what is
legal for every size is legal for 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NoReturn

from polygen import isl
from polygen.errors import UnsupportedProgram
from polygen.frontend.program import Contraction, Dim, Program, Tensor
from polygen.poly.scop import Group, Scop, clear_name, listed, space
from polygen.poly.scop import scop as polyhedra
from polygen.poly.supported import require_supported


@dataclass(frozen=True, slots=True)
class Fusion:
    """The outer band that all statements share, in terms of the contraction's output iterators."""

    contraction: str
    band: tuple[tuple[str, tuple[str, str]], ...]  # group -> its iterators along (row, column)
    members: tuple[tuple[str, tuple[str, ...]], ...] = ()  # group -> its statements, if several

    def iterators(self, statement: str) -> tuple[str, str]:
        """The iterators of `statement` that run along the contraction's row and column."""
        group = next((name for name, own in self.members if statement in own), statement)
        return dict(self.band)[group]

    def __str__(self) -> str:
        members = dict(self.members)
        rows = [
            f"  {listed(members.get(name, (name,)))}: ({row}, {column})"
            for name, (row, column) in self.band
        ]
        return "\n".join(["outer coincident band (row, column):", *rows])


def fuse(program: Program, scop: Scop) -> Fusion:
    """Fuse all statements into one band, or say which dependence forbids it.

    Args:
        program: its statements.
        scop: their groups and dependences.

    Raises:
        UnsupportedProgram: no or several contractions, a dependence that crosses output points, or
            what is not generated yet.
    """
    require_supported(program)
    contraction = _only_contraction(program)
    row, column = (it for it in contraction.write.index if isinstance(it, str))
    general = _with_symbolic_ones(program)
    model = scop if general is program else polyhedra(general)
    dependences = model.dependences
    tree = (
        isl.ScheduleConstraints.on_domain(model.domain)
        .set_validity(dependences)
        .set_proximity(model.flow)
        .set_coincidence(dependences)
        .compute_schedule()
    )
    band = _outer_band(tree.get_root())
    found: list[tuple[str, tuple[str, str]]] = [
        (clear_name(contraction), (row, column)),
        (contraction.name, (row, column)),
    ]
    pairs = None if band is None else band.apply_range(band.reverse())
    for group in scop.groups:
        if contraction in group.statements:
            continue
        first, second = (iterator for iterator, _ in group.domain)
        candidates = ((first, second), (second, first))
        match = next(
            (c for c in candidates if pairs is not None and _aligned(pairs, contraction, group, c)),
            None,
        )
        if match is None:
            _refuse(program)
        found.append((group.name, match))
    several = tuple((g.name, g.members) for g in scop.groups if len(g.members) > 1)
    return Fusion(contraction.name, tuple(found), several)


def _with_symbolic_ones(program: Program) -> Program:
    """The program with one more size in place of every extent of 1; itself if there is none."""
    if not any(extent == 1 for s in program.statements for _, extent in s.domain):
        return program
    symbol = "one"
    while symbol in program.sizes:
        symbol += "_"

    def dim(extent: Dim) -> Dim:
        return symbol if extent == 1 else extent

    def tensor(given: Tensor) -> Tensor:
        return replace(given, dims=tuple(map(dim, given.dims)))

    return replace(
        program,
        inputs=tuple(map(tensor, program.inputs)),
        outputs=tuple(map(tensor, program.outputs)),
        statements=tuple(
            replace(s, domain=tuple((iterator, dim(extent)) for iterator, extent in s.domain))
            for s in program.statements
        ),
    )


def _only_contraction(program: Program) -> Contraction:
    contractions = program.contractions
    if len(contractions) != 1:
        names = "; ".join(f"{c.name}: {c}" for c in contractions)
        raise UnsupportedProgram(
            "a second contraction is not yet supported" if contractions else "nothing to contract",
            where=program.name,
            why=f"one kernel runs one matmul, this program has {len(contractions)}: "
            f"{names or 'none'}",
            nearest="Split the function: one matmul per fused function",
        )
    return contractions[0]


def _outer_band(root: isl.ScheduleNode) -> isl.UnionMap | None:
    """The first two members of the outermost band as a relation, if both are coincident."""
    node = root.child(0)
    if isl.kind(node) != "band" or node.band_n_member() < 2:
        return None
    if not (node.band_member_get_coincident(0) and node.band_member_get_coincident(1)):
        return None
    if node.band_n_member() > 2:
        node = node.band_split(2)
    return isl.UnionMap.from_multi_union_pw_aff(node.band_get_partial_schedule())


def _aligned(
    pairs: isl.UnionMap, contraction: Contraction, group: Group, candidate: tuple[str, str]
) -> bool:
    """Whether equal band coordinates mean: candidate = the contraction's (row, column).

    Args:
        pairs: instances at equal band coordinates.
        contraction: whose row and column are meant.
        group: the other of each pair.
        candidate: its iterators in the order to try.
    """
    own = f"{group.name}[{','.join(iterator for iterator, _ in group.domain)}]"
    others = [it for it, _ in contraction.domain]
    written = [it for it in contraction.write.index if isinstance(it, str)]
    names = {it: candidate[written.index(it)] if it in written else f"{it}_sum" for it in others}
    image = ",".join(names[it] for it in others)
    wanted = isl.UnionMap(f"{{ {own} -> {contraction.name}[{image}] }}")
    between = pairs.intersect_domain(isl.UnionSet(f"{{ {own} }}"))
    between = between.intersect_range(isl.UnionSet(f"{{ {contraction.name}[{','.join(others)}] }}"))
    return bool(not between.is_empty() and between.is_subset(wanted))


def _refuse(program: Program) -> NoReturn:
    """Raise with a dependence that leaves its output point when rows meet rows."""
    scop = polyhedra(program, apart=True)  # the message names statements
    points = [
        f"{s.name}[{','.join(it for it, _ in s.domain)}] -> "
        f"[{','.join([it for it, _ in s.domain][:2])}]"
        for s in program.statements
    ]
    point = isl.UnionMap(space(scop.parameters) + "{ " + "; ".join(points) + " }")
    same = isl.UnionMap("{ [i,j] -> [i,j] }")
    crossing = scop.flow.subtract(point.apply_range(same).apply_range(point.reverse()))
    witness = isl.sample_pair(crossing) or isl.sample_pair(scop.flow)
    raise UnsupportedProgram(
        f"{program.name} cannot be fused into one kernel",
        where=f"dependence {witness}",
        why="the value is computed at one output point and used at another, "
        "that is, in another thread block",
        nearest="Return the product from one function and combine it in a second",
    )
