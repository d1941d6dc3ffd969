"""Sets of barriers between roles with one mistake each, as data that several tests share.

Each function takes a derived set and breaks it. It finds barriers by name, so that it also breaks
the sets of whole kernels whose roles do the same: `Broken.operands` says which matrices their
epilogue has to read (the tensors `r` and `g`), `Broken.cluster` and `Broken.pingpong` the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from polygen.poly.roles import RoleProgram, panel_program, ring_program
from polygen.poly.synchronise import GroupBarrier, Mbarrier, Sync, Turn

Syncs = tuple[Sync, ...]
Break = Callable[[Syncs], Syncs]

STAGES, CONSUMERS, IN_FLIGHT = 4, 2, 1


@dataclass(frozen=True, slots=True)
class Broken:
    """One mistake.

    Attributes:
        program: the roles whose derived barriers are broken.
        break_: makes the mistake.
        words: that the refusal has to have: what is wrong, and a witness.
        in_flight: products that may still run when the next are issued.
        operands: matrices that the epilogue reads through panels.
        cluster: blocks along m and n.
        pingpong: whether consumers take turns.
    """

    program: RoleProgram
    break_: Break
    words: tuple[str, ...]
    in_flight: int = IN_FLIGHT
    operands: tuple[str, ...] = ()
    cluster: tuple[int, int] = (1, 1)
    pingpong: bool = False


def changing(name: str, **changes: Any) -> Break:
    """Other values in the barrier of that name."""

    def break_(syncs: Syncs) -> Syncs:
        assert name in [s.name for s in syncs]
        return tuple(replace(s, **changes) if s.name == name else s for s in syncs)

    return break_


def adding(name: str, field: str, value: int) -> Break:
    """A number of the barrier of that name, more or less."""

    def break_(syncs: Syncs) -> Syncs:
        (found,) = (s for s in syncs if s.name == name)
        return changing(name, **{field: getattr(found, field) + value})(syncs)

    return break_


def without(name: str) -> Break:
    """No barrier of that name."""

    def break_(syncs: Syncs) -> Syncs:
        rest = tuple(s for s in syncs if s.name != name)
        assert len(rest) == len(syncs) - 1
        return rest

    return break_


def local_only(syncs: Syncs) -> Syncs:
    """Consumers release the slot of their own block alone, and each block counts on its own."""
    return changing("empty_ring", remote=False, arrivals=CONSUMERS)(syncs)


def one_more(syncs: Syncs) -> Syncs:
    """A barrier that is not needed: the other matrix's release implies it."""
    first = next(s for s in syncs if isinstance(s, Mbarrier) and s.name.startswith("empty_r"))
    again = replace(first, name="empty_g", memory="panel_g", wait="fetch_g")
    return (*syncs, again)


def _ring(*, cluster: tuple[int, int] = (1, 1), pingpong: bool = False) -> RoleProgram:
    return ring_program(STAGES, CONSUMERS, cluster, pingpong=pingpong)


RING, CLUSTER, PINGPONG = _ring(), _ring(cluster=(2, 1)), _ring(pingpong=True)
PANELS = panel_program(("r",), ("y0",), 3, 2, CONSUMERS)
TWO_PANELS = panel_program(("r", "g"), ("y0",), 2, 2, CONSUMERS)

_UNORDERED = "a dependence between roles is not ordered by any barrier"
_OVERWRITTEN = (_UNORDERED, "] -> fill[")
_OVERTAKEN = "full_ring: a wait may be overtaken by a phase"
_PANEL_OVERWRITTEN = (_UNORDERED, "] -> fetch_r[")
_IN_ROLES_OF_PANELS: dict[str, Any] = {"in_flight": 0, "operands": ("r",)}

BROKEN: dict[str, Broken] = {
    # the main loop
    "a release as soon as products are issued": Broken(
        RING, changing("empty_ring", lag=0), _OVERWRITTEN
    ),
    "products in flight that nobody counted": Broken(
        RING, changing("empty_ring", pending=1), _OVERWRITTEN, in_flight=0
    ),
    "a release when the ring has come round": Broken(
        RING,
        changing("empty_ring", lag=STAGES, pending=STAGES),
        ("empty_ring waits for ever: fill[", "multiply[", "which can only run after it"),
    ),
    "one consumer's arrival is missing": Broken(
        RING, adding("empty_ring", "arrivals", -1), _OVERWRITTEN
    ),
    "one arrival too many": Broken(
        RING,
        adding("empty_ring", "arrivals", 1),
        ("empty_ring never completes a phase: it expects 3 arrivals and multiply makes 2",),
    ),
    "two arrivals where one thread expects bytes": Broken(
        RING,
        adding("full_ring", "arrivals", 1),
        ("full_ring never completes a phase: it expects 2 arrivals and fill makes 1",),
    ),
    "the empty barrier's ring is deeper": Broken(
        RING, adding("empty_ring", "slots", 1), _OVERWRITTEN
    ),
    "the full barrier's ring is shallower": Broken(
        RING, adding("full_ring", "slots", -1), (_OVERTAKEN, "multiply[", "] -> fill[")
    ),
    "parity of empty: the producer waits for its own round": Broken(
        RING,
        changing("empty_ring", phase=0),
        ("empty_ring waits for ever: fill[", "multiply[", "which can only run after it"),
    ),
    "parity of empty: the producer waits for the round before the last": Broken(
        RING, changing("empty_ring", phase=-2), _OVERWRITTEN
    ),
    "parity of full: consumers wait for the round before": Broken(
        RING, changing("full_ring", phase=-1), (_UNORDERED, "fill[")
    ),
    "consumers wait one round ahead": Broken(
        RING,
        changing("full_ring", phase=1),
        ("full_ring waits for ever: multiply[", "fill[", "which can only run after it"),
    ),
    "no empty barrier": Broken(RING, without("empty_ring"), _OVERWRITTEN),
    "no full barrier": Broken(RING, without("full_ring"), (_UNORDERED, "fill[")),
    # clusters
    "no arrivals at the other block of the cluster": Broken(
        CLUSTER, local_only, (_UNORDERED, "multiply[0,0,0,0] -> fill[1,0,0,4]"), cluster=(2, 1)
    ),
    "a block counts on arrivals that stay at home": Broken(
        CLUSTER,
        changing("empty_ring", remote=False),
        ("empty_ring never completes a phase: it expects 4 arrivals and multiply makes 2",),
        cluster=(2, 1),
    ),
    "one consumer of the cluster is missing": Broken(
        CLUSTER, adding("empty_ring", "arrivals", -1), _OVERWRITTEN, cluster=(2, 1)
    ),
    # turns
    "no turn": Broken(
        PINGPONG,
        without("turn"),
        ("a wait may begin before the phase before its own has completed", "fill[", "multiply["),
        pingpong=True,
    ),
    # the epilogue
    "one panel too many on its way out": Broken(
        PANELS,
        adding("staged", "pending", 1),
        (_UNORDERED, "store[", "] -> finish["),
        **_IN_ROLES_OF_PANELS,
    ),
    "no barrier of the warpgroup": Broken(
        PANELS, without("staged"), (_UNORDERED, "finish[", "] -> store["), **_IN_ROLES_OF_PANELS
    ),
    "one warp's arrival at a panel is missing": Broken(
        PANELS, adding("empty_r", "arrivals", -1), _PANEL_OVERWRITTEN, **_IN_ROLES_OF_PANELS
    ),
    "one warp too many at a panel": Broken(
        PANELS,
        adding("empty_r", "arrivals", 1),
        ("empty_r never completes a phase: it expects 5 arrivals and finish makes 4",),
        **_IN_ROLES_OF_PANELS,
    ),
    "the panels' empty barrier is of another depth": Broken(
        PANELS, adding("empty_r", "slots", 1), _PANEL_OVERWRITTEN, **_IN_ROLES_OF_PANELS
    ),
    "parity of empty panels": Broken(
        PANELS,
        changing("empty_r", phase=0),
        ("empty_r waits for ever: fetch_r[", "finish["),
        **_IN_ROLES_OF_PANELS,
    ),
    "no empty barrier of panels": Broken(
        PANELS, without("empty_r"), _PANEL_OVERWRITTEN, **_IN_ROLES_OF_PANELS
    ),
    "no full barrier of panels": Broken(
        PANELS, without("full_r"), (_UNORDERED, "fetch_r["), **_IN_ROLES_OF_PANELS
    ),
    "no full barrier of the second matrix": Broken(
        TWO_PANELS,
        without("full_g"),
        (_UNORDERED, "fetch_g["),
        in_flight=0,
        operands=("r", "g"),
    ),
    "a barrier that others imply": Broken(
        TWO_PANELS, one_more, ("enforces no dependence",), in_flight=0, operands=("r", "g")
    ),
}

__all__ = ["BROKEN", "Broken", "GroupBarrier", "Mbarrier", "Turn"]
