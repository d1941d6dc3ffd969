"""Tiles that blocks have for themselves, and those of the last round, whose sums they share.

Work items are of clusters of S blocks. The first `own_items` of them are S tiles each, one for each
block, with all of its k tiles; every item after them is one tile, of whose k tiles each block adds
up a range. With T tiles in all, item j is

    j < own_items     block r has tile S*j + r
    else              all blocks have tile j + (S - 1)*own_items, block r the r-th range of k

and there are T - (S - 1)*own_items items. Whatever `own_items` is, as long as S*own_items <= T,
each tile is in one item, which is proved here; so how many it is may be chosen for speed alone: as
many as fill whole rounds of all blocks. Where what is left keeps more than S - 1 of S blocks busy,
a round of shared tiles would take as long as one of whole ones: then only tiles that fill no item
are shared.

A cluster takes every `stride`-th item, in ascending order: those that it has for itself come first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.legality import Proof
from polygen.poly.tile_walk import in_isl

Quotient = Callable[[str, int], str]


@dataclass(frozen=True, slots=True)
class LastRound:
    """The numbers of tiles and items, as formulas for isl and for C.

    Attributes:
        split: blocks of a cluster.
    """

    split: int

    def own(self, item: str, rank: str) -> str:
        """The tile that block `rank` has for itself of an item."""
        return f"{item} * {self.split} + {rank}"

    def shared(self, item: str, own_items: str) -> str:
        """The tile whose sums all blocks share."""
        return f"{item} + {self._further}{own_items}"

    def items(self, tiles: str, own_items: str) -> str:
        """How many items there are."""
        return f"{tiles} - {self._further}{own_items}"

    def whole(self, tiles: str, quotient: Quotient) -> str:
        """The most items that are tiles of a block's own."""
        return quotient(tiles, self.split)

    @property
    def _further(self) -> str:
        """How many tiles more an item of whole tiles has, as a factor."""
        return f"{self.split - 1} * " if self.split > 2 else ""

    def choose(self, tiles: int, clusters: int) -> int:
        """How many items are tiles of a block's own; what the kernel computes.

        Args:
            tiles: in all.
            clusters: that run at once.
        """
        rounds = tiles // (self.split * clusters)
        own = rounds * clusters
        left, whole = tiles - self.split * own, tiles // self.split
        unshared = left > (self.split - 1) * clusters
        fits = whole + tiles % self.split <= own + clusters
        return whole if unshared and fits else own

    def rounds(self, tiles: int, clusters: int) -> tuple[int, int]:
        """Of the cluster with the most to do: tiles of a block's own, and parts of shared ones."""
        own = self.choose(tiles, clusters)
        alone, more = divmod(own, clusters)
        if more:  # the few that are shared are of clusters that have one tile less
            return alone + 1, 0
        return alone, -(-(tiles - self.split * own) // clusters)


@lru_cache(maxsize=16)
def prove_last_round(split: int) -> tuple[Proof, ...]:
    """Prove that every tile is in one item, for any numbers of tiles and of whole rounds.

    Args:
        split: blocks of a cluster.

    Raises:
        VerifyError: never for the formulas as they are; the check guards them.
    """
    of = LastRound(split)
    known = f"0 <= own and {split}*own <= tiles"
    prefix = "[tiles, own] -> "
    each = f"0 <= j < own and 0 <= r < {split} and {known}"
    own = isl.Map(f"{prefix}{{ [j, r] -> [{of.own('j', 'r')}] : {each} }}")
    last = f"own <= j < {of.items('tiles', 'own')}"
    shared = isl.Map(f"{prefix}{{ [j] -> [{of.shared('j', 'own')}] : {last} and {known} }}")
    every = isl.Set(f"{prefix}{{ [t] : 0 <= t < tiles and {known} }}")
    apart = own.range().intersect(shared.range()).is_empty()
    whole = own.range().union(shared.range()).is_equal(every)
    if not (own.is_bijective() and shared.is_bijective() and apart and whole):
        raise VerifyError("tiles of the last round are not numbered through", where="last round")
    _prove_choices(of)
    subject = f"{split} tiles an item, or one for {split} blocks, of any number of tiles"
    claim = "every output tile is in one work item: a block's own, or one that a cluster shares"
    return (Proof(claim, subject),)


def _prove_choices(of: LastRound) -> None:
    """Both numbers of own items that a kernel may choose are within the tiles.

    Rounds times clusters times blocks is what a quotient that is rounded down leaves a rest of.
    """
    prefix = "[tiles, own, left] -> "
    known = "tiles >= 0 and own >= 0"
    rounds = f"{of.split}*own = tiles - left and left >= 0"
    chosen = f"own = {of.whole('tiles', in_isl)}"
    either = isl.Set(f"{prefix}{{ : {known} and (({rounds}) or ({chosen})) }}")
    if not either.is_subset(isl.Set(f"{prefix}{{ : 0 <= {of.split}*own <= tiles }}")):
        raise VerifyError("blocks have more tiles than there are", where="last round")
