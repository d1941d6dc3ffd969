"""How something comes before something else: by what it is signalled, and by what waited for."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.poly.tile_program import Sync


@dataclass(frozen=True, slots=True)
class Hop:
    """One barrier on a path, with the leaf that signals it."""

    sync: Sync
    signal: str


@dataclass(frozen=True, slots=True)
class Path:
    """A fence on the source's side, where there is one, and barriers."""

    hops: tuple[Hop, ...]
    fence: Sync | None = None

    @property
    def last(self) -> Sync:
        """The barrier that it ends with."""
        return self.hops[-1].sync

    @property
    def names(self) -> frozenset[str]:
        """Of the syncs."""
        fence = (self.fence.name,) if self.fence is not None else ()
        return frozenset((*fence, *(hop.sync.name for hop in self.hops)))
