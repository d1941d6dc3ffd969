"""That nothing waits for ever: one order of all leaves, in which signals come before waits.

The order is a certificate, given with the trees and not trusted: every pair that a place's tree
orders, and every signal that a wait is for, has to go forward in it. With agents in turns, where a
place has a loop that its agents run one after another, the agent is one coordinate more.
"""

from __future__ import annotations

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.before import earlier
from polygen.poly.emitted import Emitted
from polygen.poly.happens_before import Order, signals_of
from polygen.poly.tile_program import Sync
from polygen.poly.tile_tree import times

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out
_WHERE = "refinement"


def check_live(order: Order, emitted: Emitted) -> None:
    """Signals before waits in one order, which every tree follows.

    Raises:
        VerifyError: the certificate misses a leaf, has a wait before its signal, or contradicts a
            tree; with a pair of instances.
    """
    vectors, known = times(emitted.certificate), emitted.known
    missing = [name for name in order.times if name not in vectors]
    if missing:
        raise VerifyError(f"live: {missing[0]} has no time", where=_WHERE)
    plain = {}
    for name, domain in order.times.items():
        timed = order.model.map(f"{known[name].instance} -> [{','.join(vectors[name])}]")
        plain[name] = timed.intersect_domain(domain.domain())
    wrong = _backward(order, plain)
    turn = next((s for s in order.syncs if s.kind == "turn"), None)
    meets = any(s.kind == "bar" and s.scope == "place" for s in order.syncs)
    if wrong is not None and turn is not None and not meets:
        column = _column(vectors[turn.wait], len(known[turn.wait].loops))
        wrong = _backward(
            order, {name: _in_turns(order, turn, name, t, column) for name, t in plain.items()}
        )
    if wrong is not None:
        raise VerifyError(f"live: {wrong}", where=_WHERE)


def _column(vector: tuple[str, ...], loops: int) -> int:
    """How many coordinates of time come before what the loops around a leaf repeat."""
    around = [n for n, item in enumerate(vector) if not item.lstrip("-").isdigit()]
    return 1 + around[loops - 1]


def _in_turns(order: Order, turn: Sync, name: str, timed: isl.Map, column: int) -> isl.Map:
    """The agent as a coordinate of time, so that agents in turns follow each other."""
    agents = order.leaves[turn.wait].place.agents
    timed = timed.insert_dims(_OUT, column, 1)
    if order.leaves[name].place.agents[-1:] == agents[-1:]:
        return timed.equate(_IN, len(agents) - 1, _OUT, column)
    return timed.fix_val(_OUT, column, isl.Val(-1))


def _backward(order: Order, when: dict[str, isl.Map]) -> str | None:
    """What contradicts an order of all leaves, in words; None if nothing does."""
    return _late_signal(order, when) or _left_order(order, when)


def _late_signal(order: Order, when: dict[str, isl.Map]) -> str | None:
    for sync in order.links:
        for signal, _ in signals_of(sync) if sync.kind != "bar" else ():
            forward = earlier(when[signal], when[sync.wait])
            wrong = isl.beyond(order.relation(sync, signal), forward)
            if wrong is not None:
                pair = isl.sample_pair(wrong)
                return f"{sync.name} waits for ever: {pair} is a signal that comes later"
    return None


def _left_order(order: Order, when: dict[str, isl.Map]) -> str | None:
    """A pair of a wait and a later signal of one place that its tree has the other way round."""
    pairs = {
        (sync.wait, signal): None
        for sync in order.links
        for link in order.links
        for signal, _ in signals_of(link)
        if sync.wait != signal and order.leaves[sync.wait].place == order.leaves[signal].place
    }
    for wait, signal in pairs:
        forward = earlier(when[wait], when[signal])
        wrong = isl.beyond(order.before(wait, signal), forward)
        if wrong is not None:
            return f"a tree leaves the order of all: {isl.sample_pair(wrong)}"
    return None
