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
from polygen.poly.legality import Proof
from polygen.poly.row_operands import without_first
from polygen.poly.scop import clear_name, scop

_MOST = 256  # programs whose sections are kept


@lru_cache(maxsize=_MOST)
def sections(program: Program) -> tuple[Program, ...]:
    """The sections of a program, in the order of their first statements; one where it has none.

    Args:
        program: without chains: what is no section by itself is refused by later passes.
    """
    joined = _joined(program)
    if len(joined) == 1 or not all(map(_domain, joined)):
        return (program,)
    if len({_domain(statements) for statements in joined}) == 1:
        return (program,)
    return tuple(_section(program, statements) for statements in joined)


def _joined(program: Program) -> list[tuple[Statement, ...]]:
    """Statements that values join, each set in program order.

    What is computed from arguments alone joins nothing: every set has its own.
    """
    writers: dict[str, int] = {}
    root = list(range(len(program.statements)))
    early = _before_products(program)

    def find(at: int) -> int:
        while root[at] != at:
            at = root[at]
        return at

    for at, statement in enumerate(program.statements):
        for access in statement.reads:
            if access.name in writers and writers[access.name] not in early:
                one, other = sorted((find(at), find(writers[access.name])))
                root[other] = one
        writers[statement.write.name] = at
    found: dict[int, set[int]] = {}
    for at in range(len(program.statements)):
        if at not in early:
            found.setdefault(find(at), set()).add(at)
    for own in found.values():
        for at in sorted(early, reverse=True):  # behind those that read it
            name = program.statements[at].write.name
            if any(a.name == name for user in own for a in program.statements[user].reads):
                own.add(at)
    used = set().union(*found.values())
    if used != set(range(len(program.statements))):  # something is computed of arguments alone
        return [program.statements]
    return [tuple(program.statements[at] for at in sorted(own)) for own in found.values()]


def _before_products(program: Program) -> set[int]:
    """The statements whose values are computed from arguments alone, and are no results."""
    found: dict[str, int] = {}
    for at, statement in enumerate(program.statements):
        values = (access.name for access in statement.reads if access.name not in program.tensors)
        if (
            not isinstance(statement, Contraction)
            and statement.write.name not in program.tensors
            and all(name in found for name in values)
        ):
            found[statement.write.name] = at
    return set(found.values())


def _domain(statements: Sequence[Statement]) -> tuple[str, ...]:
    """The extents of the output points of a set's products, in no order; () without products."""
    first = next((s for s in statements if isinstance(s, Contraction)), None)
    if first is None:
        return ()
    sizes = dict(first.domain)
    return tuple(sorted(str(sizes[iterator]) for iterator in first.write.iterators)) or ("1",)


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
        domains_of = {_domain(one): one for one in _joined(program) if _domain(one)}
        found = tuple(_section(program, one) for one in domains_of.values())
        if len(found) < 2 or not without_first(program).folds:
            return
    domains = ", ".join(
        f"{_first(one).name} over [{', '.join(map(str, _extents(one)))}]" for one in found
    )
    nearest = "Split the function: one output domain per fused function"
    reasons = [
        (bool(without_first(program).folds), "folds of results"),
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


def _first(section: Program) -> Contraction:
    return section.contractions[0]


def _extents(section: Program) -> tuple[Dim, ...]:
    sizes = dict(_first(section).domain)
    return tuple(sizes[iterator] for iterator in _first(section).write.iterators)


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
