"""The barriers between roles, as the plan holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Mbarrier:
    """One mbarrier per slot of a ring.

    Attributes:
        name: "full_ring", "empty_ring".
        memory: the ring.
        signal: the statement whose completion arrives.
        wait: the statement that waits before it starts.
        slots: barriers, used in turn.
        phase: a wait at step g is for the signals of step g + phase * slots.
        arrivals: that complete a phase.
        lag: steps between a signal's statement and its arrival.
        pending: products issued later that may still run at the arrival.
        remote: whether signals arrive at the barriers of the other blocks that share the ring.
        per_group: whether every consumer warpgroup has its own.
        dependences: what is unordered without it.
    """

    name: str
    memory: str
    signal: str
    wait: str
    slots: int
    phase: int
    arrivals: int
    lag: int = 0
    pending: int = 0
    remote: bool = False
    per_group: bool = False
    dependences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupBarrier:
    """A barrier of one warpgroup between its threads' panel and the copy engine's turn at it.

    Attributes:
        name: "staged".
        before: the statement of all threads.
        after: the statement of one thread that hands its work to the copy engine.
        pending: how many of the latter may still be reading when the barrier opens.
        dependences: what is unordered without it.
    """

    name: str
    before: str
    after: str
    pending: int
    dependences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """Consumers of alternate tiles start their main loops one after the other.

    A parity bit tells a phase from the one before it, no more: a wait for a phase may begin only
    when the one before has completed. A consumer that skips tiles cannot know that by itself.

    Attributes:
        name: "turn".
        statement: what the consumers do in turns.
        dependences: what is unordered without it.
    """

    name: str
    statement: str
    dependences: tuple[str, ...] = ()


Sync: TypeAlias = Mbarrier | GroupBarrier | Turn
