"""What leaves that synchronise work on: barriers with their places, and who waits or arrives there.

Texts in the records are index formulas over the names that the kernel defines.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.poly.tile_program import Sync


@dataclass(frozen=True, slots=True)
class Placed:
    """A barrier with its place in shared memory, if it takes any."""

    sync: Sync
    buffer: str  # its mbarriers; "" for a barrier of threads
    bytes: int  # that copies complete per phase of an mbarrier; 0: threads arrive
    threads: int  # of one agent that waits
    owners: int = 1  # agents of a block that have one each
    remote: bool = False  # whether threads arrive at the barriers of several blocks
    pending: int | None = None  # groups that a wait in front of a barrier of threads leaves

    @property
    def name(self) -> str:
        """Of the barrier."""
        return self.sync.name

    @property
    def reason(self) -> str:
        """The dependences that are unordered without it, as a sentence says them."""
        return "; ".join(self.sync.enforces)

    @property
    def signals(self) -> str:
        """What arrives at an mbarrier."""
        return ", ".join(dict(self.sync.signals))

    @property
    def title(self) -> str:
        """The name, with who meets there if it is a barrier of threads."""
        if self.sync.kind != "bar":
            return self.name
        return f"{self.name} ({'block' if self.sync.scope == 'place' else 'one agent'})"

    def __str__(self) -> str:
        sync = self.sync
        if sync.kind == "bar":
            kind = f"the {self.threads} threads of one agent"
            if sync.scope == "place":
                kind = "all warps of the block"
            waits = ""
            if self.pending is not None:
                left = f"all but the last {self.pending} group(s)" if self.pending else "all groups"
                waits = f", after waiting for {left}"
            return f"{sync.name}: {kind}, before each {sync.name.removeprefix('bar_')}{waits}"
        if sync.kind == "turn":
            return f"{sync.name}: consumers take their tiles in turns"
        brought = f"{self.bytes} bytes of {self.signals}"
        what = brought if self.bytes else f"{sync.arrivals} of {self.signals}"
        per = " for each warpgroup" if self.owners > 1 else ""
        where = ", from all blocks that share the slot" if self.remote else ""
        return f"{sync.name}: {sync.slots} mbarriers{per}; {sync.wait} waits for {what}{where}"


@dataclass(frozen=True, slots=True)
class Signal:
    """A wait at a barrier, or an arrival."""

    placed: Placed
    counter: str = ""  # which slot, and which parity
    agent: str = ""  # whose barrier, if every agent has its own
    threads: str = ""  # of an arrival, which arrive: "all", "warps" (one of each) or "one"
    everywhere: str = ""  # of an arrival in other blocks as well: which threads send it to one each
    across: bool = False  # of a wait: for what threads of other blocks have written


@dataclass(frozen=True, slots=True)
class Turn:
    """Waiting for the token that agents pass round, or passing it on."""

    placed: Placed


@dataclass(frozen=True, slots=True)
class Groups:
    """Asynchronous work in groups: one is closed, or all but the last `pending` are waited for."""

    pending: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Skip:
    """Counters pass what other agents take: each, and by how many versions."""

    counters: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Nothing:
    """No more than the name of the leaf says."""


@dataclass(frozen=True, slots=True)
class Grids:
    """A wait for the grids before.

    Attributes:
        pointers: variables from which addresses are made of what they may have written.
        arrays: whose addresses are parameters; of neither any: all of the kernel's parameters.
        follows: whether it is of the launch that follows, which reads the workspace too.
    """

    pointers: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()
    follows: bool = False
