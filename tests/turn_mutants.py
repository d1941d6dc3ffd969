"""Kernels whose consumers take turns, with one mistake each in turns or skips.

The mistakes of `tile_mutants` are those of all kernels; these are of the token that agents pass
round, and of what their counters pass over: whose turn it is, how many tiles and versions are
skipped, and where. Records are changed with the trees, so that they agree in the mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tile_mutants import emitted, moved_after

from polygen import isl
from polygen.poly.derive_syncs import Synchronised
from polygen.poly.emitted import Emitted
from polygen.poly.tile_program import Sync, SyncStatement
from polygen.poly.tile_tree import Leaf, Loop, Node, Steps, leaves

_SET, _IN, _OUT = isl.dim_type.set, isl.dim_type.in_, isl.dim_type.out
# Expressions for changes after which a kernel still does what its program says, and why.
EQUIVALENT = {
    "turn, at both ends:": "barriers by other names, given as they are taken",
    r"arrive_turn behind \w+": "the turn is passed on later, which is slower and no less ordered",
    "wait_turn in front of locate_consumer": "the tile is the thread's own; turns are for products",
    "wait_turn in front of prepare": "registers of one thread; turns are for products",
    "arrive_turn in front of (fence_)?multiply_rest": "the rest's operands have been waited for",
    r"skip_\w+_first: by all agents": "there are no tiles before those of agent 0",
    r"skip_ring\w*(?<!_first) in front of": "the tile has no more use of the ring's counters",
    r"skip_\w+ (behind|in front of) skip_": "counters of rings that are handed over apart",
}


def turn_mutants(of: Synchronised) -> Iterator[tuple[str, Emitted]]:
    """Every such mistake that applies to a kernel."""
    (turn,) = (sync for sync in of.syncs if sync.kind == "turn")
    yield from _records(of, turn)
    yield from _instances(of, turn)
    for leaf in of.leaves:
        if leaf.kind == "skip":
            yield from _skips(of, leaf)
        if leaf.kind == "skip" or leaf.name in _ends(turn):
            yield from _moved(of, leaf.name)


def _ends(turn: Sync) -> tuple[str, str]:
    return turn.wait, turn.signals[0][0]


def _with_turn(of: Synchronised, turn: Sync, **changes: object) -> tuple[Sync, ...]:
    new = replace(turn, **changes)  # type: ignore[arg-type]
    return tuple(new if sync is turn else sync for sync in of.syncs)


def _with_domain(of: Synchronised, domains: dict[str, isl.Set]) -> tuple[SyncStatement, ...]:
    return tuple(
        replace(leaf, domain=str(domains[leaf.name])) if leaf.name in domains else leaf
        for leaf in of.leaves
    )


def _read(of: Synchronised, text: str) -> isl.Map:
    return isl.Map(f"{of.program.prefix}{{ {text} }}")


def _text(relation: isl.Map) -> str:
    return str(relation).partition("{")[2].rpartition("}")[0].strip()


def _onward(cells: isl.Map, tiles: int) -> isl.Map:
    """Cells of so many tiles later."""
    name, count = cells.get_tuple_name(_OUT), cells.dim(_OUT)
    first, *rest = (f"o{n}" for n in range(count))
    here, there = (",".join((at, *rest)) for at in (first, f"{first} + {tiles}"))
    return cells.apply_range(isl.Map(f"{{ {name}[{here}] -> {name}[{there}] }}"))


# ---- the token -----------------------------------------------------------------------------------


def _records(of: Synchronised, turn: Sync) -> Iterator[tuple[str, Emitted]]:
    """A token of another turn, or one that arrives or is awaited elsewhere."""
    for phase, slots in ((-2, 1), (-3, 1), (0, 1), (1, 1), (-1, 2), (-2, 2), (-1, 0)):
        syncs = _with_turn(of, turn, phase=phase, slots=slots)
        yield f"turn: phase {phase} of {slots} slot(s)", emitted(of, syncs=syncs)
    ((signal, cells),) = turn.signals
    for tiles in (1, -1, of.program.statement("multiply").place.counts[-1]):
        gives, takes = (_text(_onward(_read(of, x), tiles)) for x in (cells, turn.waits_for))
        for what, changes in (
            ("given", {"signals": ((signal, gives),)}),
            ("taken", {"waits_for": takes}),
            ("at both ends", {"signals": ((signal, gives),), "waits_for": takes}),
        ):
            syncs = _with_turn(of, turn, **changes)
            yield f"turn, {what}: {tiles:+} tile(s)", emitted(of, syncs=syncs)


def _instances(of: Synchronised, turn: Sync) -> Iterator[tuple[str, Emitted]]:
    """Some agents, or all in some tiles, take no turn, or do not pass it on."""
    place = next(leaf for leaf in of.leaves if leaf.name == turn.wait).place
    tile, count = len(place.agents), place.counts[-1]
    some: dict[str, Callable[[isl.Set], isl.Set]] = {
        "not in the first tile": lambda d: d.lower_bound_val(_SET, tile, isl.Val(1)),
        "not the last time": lambda d: d.subtract(d.lexmax()),
        "not in the first round": lambda d: d.lower_bound_val(_SET, tile, isl.Val(count)),
        "in the first round alone": lambda d: d.upper_bound_val(_SET, tile, isl.Val(count - 1)),
    } | {
        f"not by agent {n}": lambda d, n=n: d.subtract(d.fix_val(_SET, tile - 1, isl.Val(n)))
        for n in range(count)
    }

    def fewer(which: Callable[[isl.Set], isl.Set], cells: str) -> str:
        read = _read(of, cells)
        return _text(read.intersect_domain(which(read.domain())))

    for what, which in some.items():
        for names in (_ends(turn)[:1], _ends(turn)[1:], _ends(turn)):
            own = {
                leaf.name: which(isl.Set(leaf.domain)) for leaf in of.leaves if leaf.name in names
            }
            kept = _with_domain(of, own)
            yield f"{' and '.join(names)} {what}", emitted(of, leaves=kept)
            ((signal, gives),) = turn.signals
            syncs = _with_turn(
                of, turn,
                signals=((signal, fewer(which, gives) if signal in names else gives),),
                waits_for=fewer(which, turn.waits_for) if turn.wait in names else turn.waits_for,
            )  # fmt: skip
            said = f"{' and '.join(names)} {what}, as the record says"
            yield said, emitted(of, leaves=kept, syncs=syncs)


# ---- skips ---------------------------------------------------------------------------------------


def _skips(of: Synchronised, leaf: SyncStatement) -> Iterator[tuple[str, Emitted]]:
    """More, fewer or other versions are passed over, or by other agents."""
    tile, count = len(leaf.place.agents), leaf.place.counts[-1]
    last = f"a{tile}" if leaf.loops else "-1"

    def those(condition: str) -> Callable[[isl.Map], isl.Map]:
        def kept(cells: isl.Map) -> isl.Map:
            here = ",".join(f"a{n}" for n in range(cells.dim(_IN)))
            there = ",".join(f"o{n}" for n in range(cells.dim(_OUT)))
            text = f"{leaf.name}[{here}] -> {cells.get_tuple_name(_OUT)}[{there}] : {condition}"
            return cells.intersect(_read(of, text))

        return kept

    changes = {
        "passes nothing": those("1 = 0"),
        "passes all but the first tile": those(f"o0 > {last} + 1"),
        "passes all but the last tile": those(f"o0 < {last} + {count - 1}"),
        "passes a tile more": lambda cells: cells.union(_onward(cells, 1)),
        "passes other tiles": lambda cells: _onward(cells, 1),
    }
    if of.program.buffer(_read(of, _passed(of, leaf)).get_tuple_name(_OUT)).versions > 1:
        changes["passes all but the first k tile"] = those("o1 > 0")
    for what, change in changes.items():
        yield f"{leaf.name}: {what}", _passing(of, leaf.name, change)
    domain = isl.Set(leaf.domain)
    fewer = {
        f"not by agent {n}": domain.subtract(domain.fix_val(_SET, tile - 1, isl.Val(n)))
        for n in range(count)
    }
    if leaf.loops:
        fewer["not behind the first tile"] = domain.lower_bound_val(_SET, tile, isl.Val(1))
    else:
        bounds = zip(leaf.place.agents, leaf.place.counts, strict=True)
        every = " and ".join(f"0 <= {agent} < {many}" for agent, many in bounds)
        text = f"{{ {leaf.name}[{','.join(leaf.place.agents)}] : {every} }}"
        fewer["by all agents"] = isl.Set(text).align_params(domain.get_space())
    for what, one in fewer.items():
        if not one.is_equal(domain):
            yield f"{leaf.name}: {what}", emitted(of, leaves=_with_domain(of, {leaf.name: one}))


def _passed(of: Synchronised, leaf: SyncStatement) -> str:
    return next(dict(c.skips)[leaf.name] for c in of.counters if leaf.name in dict(c.skips))


def _passing(of: Synchronised, name: str, change: Callable[[isl.Map], isl.Map]) -> Emitted:
    """What is emitted where barriers and counters are said to pass over something else."""

    def changed(skips: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        return tuple((x, _text(change(_read(of, c))) if x == name else c) for x, c in skips)

    syncs = tuple(replace(s, skips=changed(s.skips)) for s in of.syncs)
    counters = tuple(replace(c, skips=changed(c.skips)) for c in of.counters)
    return emitted(of, syncs=syncs, counters=counters)


# ---- where they stand ----------------------------------------------------------------------------


def _moved(of: Synchronised, name: str) -> Iterator[tuple[str, Emitted]]:
    """A leaf changes places with what its agent does before or behind it, near or far."""
    places = {s.name: s.place for s in (*of.program.statements, *of.leaves)}
    before, behind = _around(of.tree, name)
    for other in behind:
        if places[other] == places[name]:
            tree = moved_after(of.tree, name, other)
            yield f"{name} behind {other}", emitted(of, tree=tree)
    for other in before:
        if places[other] == places[name]:
            tree = moved_after(of.tree, name, other, behind=False)
            yield f"{name} in front of {other}", emitted(of, tree=tree)


def _around(tree: Node, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The leaves before and behind a leaf among its siblings, with those below them."""
    if isinstance(tree, Loop):
        return _around(tree.child, name)
    assert isinstance(tree, Steps)
    at = next(n for n, child in enumerate(tree.children) if name in leaves(child))
    if tree.children[at] != Leaf(name):
        return _around(tree.children[at], name)
    before, behind = tree.children[:at], tree.children[at + 1 :]
    return (
        tuple(x for child in before for x in leaves(child)),
        tuple(x for child in behind for x in leaves(child)),
    )
