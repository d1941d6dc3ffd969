"""Sets of statements that values join, and those of them that make a section of a kernel.

Products over one output domain run beside each other, product beside product at every point. Where
domains differ, every set that values join is a section, in which there are as many products as in
any: sets with fewer products over one domain are one section together, up to as many.
"""

from __future__ import annotations

from collections.abc import Sequence

from polygen.frontend.program import Contraction, Program, Statement


def section_sets(program: Program) -> list[tuple[Statement, ...]]:
    """The statements of every section, each in program order; all of them where there is one."""
    joined = joined_sets(program)
    domains = [domain_of(statements) for statements in joined]
    if not all(domains) or len({*domains}) == 1:
        return [program.statements]
    counts = [products_in(statements) for statements in joined]
    found: list[set[Statement]] = []
    last: dict[tuple[str, ...], tuple[int, int]] = {}  # per domain a section, and its products
    for statements, domain, count in zip(joined, domains, counts, strict=True):
        at, others = last.get(domain, (0, max(counts)))
        if count + others <= max(counts):
            found[at] |= {*statements}
            last[domain] = (at, count + others)
            continue
        last[domain] = (len(found), count)
        found.append({*statements})
    return [tuple(s for s in program.statements if s in own) for own in found]


def products_in(statements: Sequence[Statement]) -> int:
    """How many products there are in a set."""
    return sum(isinstance(one, Contraction) for one in statements)


def joined_sets(program: Program) -> list[tuple[Statement, ...]]:
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


def domain_of(statements: Sequence[Statement]) -> tuple[str, ...]:
    """The extents of the output points of a set's products, in no order; () without products."""
    first = next((s for s in statements if isinstance(s, Contraction)), None)
    if first is None:
        return ()
    sizes = dict(first.domain)
    return tuple(sorted(str(sizes[iterator]) for iterator in first.write.iterators)) or ("1",)
