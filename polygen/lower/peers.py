"""To which blocks of a cluster a block sends what they add up: formulas, proved as they are made.

Blocks of a cluster are numbered along m first (`rank`). Those that share a row, or a tile's sums,
each get one part from each of them. Who sends begins with itself, so that at no time all send to
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from polygen.errors import VerifyError
from polygen.hardware import formula


@dataclass(frozen=True, slots=True)
class Peers:
    """The blocks that a block sends to.

    Attributes:
        steps: how many times a thread sends, or leaves it.
        number: what `target` follows from, besides `rank`: of `step`, and of `lane` where lanes
            that hold the same send to different blocks.
        target: the block, of `there`, which `number` gives.
        sends: whether a thread sends at a step, of `there`.
        leaves: the opposite.
        own: which of the parts that others receive is the sender's.
    """

    steps: int
    number: str
    target: str
    sends: str
    leaves: str
    own: str


@lru_cache(maxsize=32)
def all_blocks(blocks: int) -> Peers:
    """All blocks of a cluster share sums, and every thread sends to all: unrolled, with constants.

    Args:
        blocks: of the cluster.
    """
    found = Peers(
        steps=2 * blocks - 1,
        number="step",
        target=f"there % {blocks}",
        sends=f"there >= rank && there < rank + {blocks}",
        leaves=f"there < rank || there >= rank + {blocks}",
        own="rank",
    )
    check_peers(found, (1, blocks), 1)
    return found


@lru_cache(maxsize=32)
def blocks_of_row(cluster: tuple[int, int], lanes: int) -> Peers:
    """Blocks beside each other share rows, and lanes that hold a row's sums send to some each.

    Args:
        cluster: blocks along m, and along the row.
        lanes: that hold the same.
    """
    below, beside = cluster
    target, own = f"(rank + there) % {beside}", "rank"
    if below > 1:
        target = f"(rank / {below} + there) % {beside} * {below} + rank % {below}"
        own = f"rank / {below}"
    number = f"step * {lanes} + lane % {lanes}"
    sends, leaves = f"there < {beside}", f"there >= {beside}"
    found = Peers(-(-beside // lanes), number, target, sends, leaves, own)
    check_peers(found, cluster, lanes)
    return found


def check_peers(of: Peers, cluster: tuple[int, int], lanes: int) -> None:
    """Every block sends to each of its row once, first to itself; all have parts of their own.

    Args:
        of: to whom.
        cluster: blocks along m, and along the row.
        lanes: that hold the same, beside each other.

    Raises:
        VerifyError: a block gets no part, or two, or is in another row.
    """
    below, beside = cluster
    for rank in range(below * beside):
        row = list(range(rank % below, below * beside, below))
        for first in (0, lanes):  # the lanes of two rows
            step, lane = (one.ravel() for one in np.indices((of.steps, lanes)))
            names = {"rank": rank, "step": step, "lane": lane + first}
            names["there"] = formula.value(of.number, names)
            sent = np.broadcast_to(formula.value(of.target, names), step.shape)
            sends, leaves = (
                np.broadcast_to(formula.value(text, names), step.shape).astype(bool)
                for text in (of.sends, of.leaves)
            )
            found = sent[sends].tolist()
            if sorted(found) != row or found[0] != rank or (sends == leaves).any():
                raise VerifyError(f"block {rank} sends to {found}, of {row}", where=of.target)
        parts = [int(formula.value(of.own, {"rank": other})) for other in row]
        if parts != list(range(beside)):
            raise VerifyError(f"blocks {row} have the parts {parts}", where=of.own)
