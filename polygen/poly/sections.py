"""Sections: products over output domains of their own that share one kernel.

A program may be several, between which no value flows: each a set of statements that values join.
Where they have one output domain they run as one, product beside product at every point. Where
their domains differ, each is a *section* of the kernel: its tiles are
work items like those of all others, and a block goes from one to the next. A section is a program
of its own, so that everything that is proved of a program is proved of it.

1. Work items are numbered through: those of section s begin where those of the section before end.
   That each is one tile of one section is decided by isl, whatever the numbers of tiles.
2. No dependence leads from one section to another, so that tiles run in any order: isl computes
   those of the whole program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from polygen import isl
from polygen.errors import UnsupportedProgram, VerifyError
from polygen.frontend.program import Contraction, Dim, Program, Statement
from polygen.poly.folds import split_folds
from polygen.poly.legality import Proof
from polygen.poly.row_operands import without_first
from polygen.poly.row_passes import split_for
from polygen.poly.scop import clear_name, scop
from polygen.poly.whole_rows import Alike
from polygen.rewrite.joined_sets import domain_of, joined_sets, section_sets

_MOST = 256  # programs whose sections are kept


@lru_cache(maxsize=_MOST)
def sections(program: Program) -> tuple[Program, ...]:
    """The sections of a program, in the order of their first statements; one where it has none.

    Args:
        program: without chains: what is no section by itself is refused by later passes.
    """
    found = section_sets(program)
    return tuple(_section(program, one) for one in found) if len(found) > 1 else (program,)


def _section(program: Program, statements: tuple[Statement, ...]) -> Program:
    accesses = [access for s in statements for access in (s.write, *s.reads)]
    named = {access.name for access in accesses}
    return replace(
        program,
        inputs=tuple(tensor for tensor in program.inputs if tensor.name in named),
        outputs=tuple(tensor for tensor in program.outputs if tensor.name in named),
        statements=statements,
    )


def require_alike(program: Program) -> None:
    """Refuse sections with what the kernels of several do not have yet.

    Raises:
        UnsupportedProgram: with the statements, and what to do instead.
    """
    found = sections(program)
    if len(found) == 1:
        domains_of = {domain_of(one): one for one in joined_sets(program) if domain_of(one)}
        found = tuple(_section(program, one) for one in domains_of.values())
        if len(found) < 2 or not without_first(program).folds:
            return
    domains = ", ".join(
        f"{_first(one).name} over [{', '.join(map(str, _extents(one)))}]" for one in found
    )
    nearest = "Split the function: one output domain per fused function"
    reasons = [
        *_folds(program, sections(program)),
        (bool(program.ends), "rows in groups"),
        (bool(program.gathered), "rows by index"),
        (bool(program.invariant), "invariant dims"),
        (any(one.block for one in program.contractions), "sums in blocks"),
    ]
    for present, what in reasons:
        if present:
            raise UnsupportedProgram(
                f"products over different output domains, and {what}",
                where=program.name,
                why=f"{domains}: their tiles share one kernel, which has no {what} then",
                nearest=nearest,
            )
    counts = [len(one.contractions) for one in found]
    if len(set(counts)) > 1:
        raise UnsupportedProgram(
            f"products over different output domains, {' and '.join(map(str, counts))} of them in "
            "one",
            where=program.name,
            why=f"{domains}: a tile of one kernel has as many sums, whatever it is a tile of",
            nearest=nearest,
        )


def _folds(program: Program, found: Sequence[Program]) -> list[tuple[bool, str]]:
    """The folds that kernels of several sections do not have, and whether there are some."""
    if len(found) == 1:
        return [(bool(without_first(program).folds), "folds of results")]
    return [(any(split_folds(one).operands.folds for one in found), "folds of operands")]


def _first(section: Program) -> Contraction:
    return section.contractions[0]


def _extents(section: Program) -> tuple[Dim, ...]:
    sizes = dict(_first(section).domain)
    return tuple(sizes[iterator] for iterator in _first(section).write.iterators)


def alike(programs: Sequence[Program], *, in_tile: bool) -> Alike:
    """What sections do, some of them without rows or folds.

    Args:
        programs: of the sections.
        in_tile: whether their rows are in tiles.
    """
    every = [split_for(one, in_tile=in_tile) for one in programs]
    found = [one.passes for one in every]
    holds = {tuple(map(bool, one.held)) if one is not None else () for one in found}
    most = max(map(len, holds))
    passes = holds.pop() if len(holds) == 1 else (False,) * most
    return Alike(passes, any(one.folds for one in every))


def prove_apart(program: Program, found: Sequence[Program]) -> Proof:
    """Prove that no dependence connects two sections, and that they write different elements.

    Raises:
        VerifyError: with a pair of instances.
    """
    model = scop(program, apart=True)
    whose: dict[str, set[int]] = {}  # what is computed from arguments alone every section has
    for at, section in enumerate(found):
        for statement in section.statements:
            whose.setdefault(statement.name, set()).add(at)
            if isinstance(statement, Contraction):
                whose.setdefault(clear_name(statement), set()).add(at)
    pieces = model.dependences.get_map_list()
    for at in range(pieces.n_map()):
        one = pieces.get_at(at)
        names = (one.get_tuple_name(isl.dim_type.in_), one.get_tuple_name(isl.dim_type.out))
        source, target = (whose[str(name)] for name in names)
        if not target <= source and not one.is_empty():
            pair = isl.sample_pair(one)
            raise VerifyError(f"a dependence connects two sections: {pair}", where=program.name)
    return Proof("no dependence connects two sections", f"{len(found)} sections")


@lru_cache(maxsize=_MOST)
def prove_items(count: int) -> Proof:
    """Prove that every tile of every section is one work item, whatever the numbers of tiles.

    Item t is of the last section whose first item is not behind it. With n[s] tiles in section s,
    and all sections before it together in front of it, that numbers them through. One section after
    another: those up to some, which have `before` items, and the next.

    Raises:
        VerifyError: never; the check guards the decoding.
    """
    prefix = "[before, n] -> "
    known = "before >= 0 and n >= 0"
    rule = "(s = 0 and u = t and t < before) or (s = 1 and u = t - before and t >= before)"
    item = isl.Map(f"{prefix}{{ [t] -> [s, u] : 0 <= t < before + n and ({rule}) and {known} }}")
    numbered = "(s = 0 and 0 <= u < before) or (s = 1 and 0 <= u < n)"
    tiles = isl.Set(f"{prefix}{{ [s, u] : ({numbered}) and {known} }}")
    if not (item.is_bijective() and item.range().is_equal(tiles)):
        raise VerifyError("the work items are not the tiles of all sections", where="sections")
    return Proof("every tile of every section is exactly one work item", f"{count} sections")
