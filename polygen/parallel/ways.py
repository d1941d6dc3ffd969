"""How a product and the communication beside it are run: at once, in chunks, or peer by peer.

Each way is played through with the times of its parts: products of so many rows, as the cost model
predicts them; transfers, from a link's bandwidth and latency; and what every further chunk costs
the ranks. The quickest is taken, so that chunks are made only where they are predicted to gain.

What is gathered is there before the product of it begins; a rank's own rows need nothing. What is
summed leaves behind the product of it; a rank's own rows go nowhere. A total is a sum that all
ranks get: by collectives in one all-reduce, which sends as much as scattering and gathering do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polygen.hardware.links import Link

GATHER, SUM, TOTAL = "gather", "sum", "total"
COPIES, CHUNKS = "copies", "chunks"
_NUMBERS = (1, 2, 4)  # of chunks; each asks for predictions of its own


@dataclass(frozen=True, slots=True)
class Problem:
    """A product of rows, and what ranks exchange of it.

    Attributes:
        kind: "gather": rows come before their product; "sum": they leave behind it; "total": and
            come back.
        rows: of all ranks together.
        ranks: how many there are.
        row: bytes of a row that ranks exchange.
        product: seconds that the product of so many rows takes.
    """

    kind: str
    rows: int
    ranks: int
    row: float
    product: Callable[[int], float]

    @property
    def own(self) -> int:
        """Rows of one rank."""
        return self.rows // self.ranks


@dataclass(frozen=True, slots=True)
class Way:
    """One way of running a problem.

    Attributes:
        by: "copies" into peers' memory, or "chunks" by collectives.
        chunks: of a rank's rows.
        seconds: predicted.
    """

    by: str
    chunks: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.by}, {self.chunks} of a rank's rows: {self.seconds * 1e6:.0f} us"


def in_chunks(problem: Problem, link: Link, chunks: int) -> Way:
    """By collectives, of a part of every rank's rows each.

    A rank's other rows are one product to a chunk; with one chunk what is summed is one product.
    """
    others = problem.own * (problem.ranks - 1)
    each = link.seconds(problem.row * others / chunks)
    lost = (1 - link.beside) * each  # by the product beside which it goes on
    now = 0.0
    if problem.kind == GATHER:
        now = problem.product(problem.own)  # beside the first chunk
        for number in range(1, chunks + 1):
            now = max(now + lost, number * each) + problem.product(others // chunks)
    else:
        leaves = 0.0
        for number in range(chunks):
            now += problem.product(problem.rows // chunks) + (lost if number else 0.0)
            leaves = max(leaves, now) + each * (2 if problem.kind == TOTAL else 1)
        now = leaves
    return Way(CHUNKS, chunks, now + (chunks - 1) * link.chunk)


def peer_by_peer(problem: Problem, link: Link) -> Way:
    """By copies into peers' memory, beside products, with a signal for each."""
    copy = link.seconds(problem.row * problem.own)
    product = problem.product(problem.own)
    now, sent = (product, 0.0) if problem.kind == GATHER else (0.0, 0.0)
    for _ in range(problem.ranks - 1):
        if problem.kind == GATHER:
            sent += copy
            now = max(now, sent) + product + link.latency
        else:
            now += product
            sent = max(sent, now) + copy
    if problem.kind != GATHER:
        now = max(now + product, sent) + link.latency
    if problem.kind == TOTAL:
        now += copy * (problem.ranks - 1) + link.latency
    return Way(COPIES, 1, now)


def quickest(problem: Problem, collectives: Link, copies: Link | None) -> Way:
    """The way that is predicted to be the quickest.

    Args:
        problem: what is run.
        collectives: how the engine's collectives go, with what a chunk costs.
        copies: how copies into peers' memory go; None: there are none.
    """
    most = 1 if problem.kind == TOTAL else problem.own
    numbers = (number for number in _NUMBERS if number <= most and problem.own % number == 0)
    ways = [in_chunks(problem, collectives, number) for number in numbers]
    if copies is not None:
        ways.append(peer_by_peer(problem, copies))
    return min(ways, key=lambda way: way.seconds)
