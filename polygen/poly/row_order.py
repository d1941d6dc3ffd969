"""In which order blocks take tiles of rows that have different numbers of keys.

What is taken last decides when a kernel ends: a long tile that begins late keeps one block busy
when all others are done. So tiles of the last few matrices are taken together, those of most keys
first (where masks are triangles, the last rows). All matrices before these are gone through one
after another: blocks that run together read the same keys.

Blocks that have one tile each begin in the order of their numbers, when there is room: that is all.
A persistent block has to have as much to do as any other from the beginning. Of `stride` blocks

    pairs   the matrices before the last few are taken two by two: the tile at a place from the end
            of the one, and that at the place from the beginning of the other, are a pair; pairs
            have as many keys as each other. Block b has the pairs b, b + stride, ...
    rounds  places of `stride` each, every other round backwards, are those of the last pairs, where
            these do not fill a round, and of the tiles of the last few matrices in their order

How many are the last few is chosen for speed alone. The formulas are written here, as C has them,
for the code and for the proofs.
"""

from __future__ import annotations

from functools import lru_cache

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.legality import Proof
from polygen.poly.raster import rows_of_range

_WHERE = "order of rows"
_ROUNDS = 4  # of all blocks: that many tiles each are taken together at the end
# Names of the kernel.
ROWS, MATRICES, LEFT = "tiles_m", "matrices", "left"  # tiles of a matrix; the last few matrices
BLOCKS, OWN = "stride", "first"  # that run at once; which of them this one is
# Places that pairs have of the first round; whether this block's is one of them.
TAKEN, BEHIND = "taken", "behind"
WHOLE, REST = "whole", "rest"  # rounds that are full, and places of one more


def last_matrices(blocks: str) -> str:
    """How many matrices are taken together."""
    return f"min({MATRICES}, ({_ROUNDS} * {blocks} + {ROWS} - 1) / {ROWS})"


def of_last(number: str) -> tuple[str, str]:
    """A tile of the last few matrices: its rows, and of which of these matrices it is."""
    return rows_of_range(f"{number} / {LEFT}", ROWS), f"{number} % {LEFT}"


def of_pair(place: str) -> tuple[str, str]:
    """The rows of both tiles of a pair."""
    return rows_of_range(place, ROWS), place


def places() -> tuple[str, str]:
    """Where a block is in rounds that go forwards, and in those that go backwards."""
    return OWN, f"{BLOCKS} - 1 - {OWN}"


def number(round_: str, place: str) -> str:
    """Which of the tiles that are taken together is at a place of a round."""
    return f"{round_} * {BLOCKS} + {place} - {TAKEN}"


def end(place: str) -> str:
    """The round behind the last in which a block has a tile, of its place in that one."""
    return f"{WHOLE} + ({place} < {REST})"


@lru_cache(maxsize=1)
def prove_together() -> Proof:
    """Prove that tiles of the last few matrices are visited once each.

    Tile t of them is at quotient q and rest c of t by `left`, which is one to one for any divisor;
    what is left to prove is that these have a tile each, for any number of matrices.

    Raises:
        VerifyError: never for the formulas as they are; the check guards them.
    """
    own = [text.replace(f"t / {LEFT}", "q").replace(f"t % {LEFT}", "c") for text in of_last("t")]
    each = f"0 <= q < {ROWS} and 0 <= c < {LEFT}"
    made = isl.Map(f"[{ROWS}, {LEFT}] -> {{ [q,c] -> [{','.join(own)}] : {each} }}")
    if not (made.is_bijective() and made.range().is_equal(made.domain())):
        raise VerifyError("tiles of the last matrices are not visited once each", where=_WHERE)
    claim = "every tile of rows is computed by exactly one thread block"
    return Proof(claim, "the last rows first, of the last matrices together")


@lru_cache(maxsize=1)
def prove_pairs() -> tuple[Proof, ...]:
    """Prove that persistent blocks have every tile of rows once, each of one of them.

    Pair p of two matrices, and pair b + j*stride of all, are one to one in the same way.

    Raises:
        VerifyError: never for the formulas as they are; the check guards them.
    """
    both = enumerate(of_pair("p"))
    halves = (f"[p,{at}] -> [{rows},{at}] : 0 <= p < {ROWS}" for at, rows in both)
    made = isl.Map(f"[{ROWS}] -> {{ {'; '.join(halves)} }}")
    if not (made.is_bijective() and made.range().is_equal(made.domain())):
        raise VerifyError("pairs do not have every tile of two matrices once", where=_WHERE)
    sums = isl.Map(f"[{ROWS}] -> {{ [p] -> [{' + '.join(f'({one})' for one in of_pair('p'))}] }}")
    if not sums.range().is_singleton():
        raise VerifyError("pairs have different numbers of rows before them", where=_WHERE)
    prefix = f"[{BLOCKS},{TAKEN},{WHOLE},{REST}] -> "
    for place in places():
        own = isl.Map(f"{prefix}{{ [{OWN}] -> [{place}] : 0 <= {OWN} < {BLOCKS} }}")
        if not (own.is_bijective() and own.range().is_equal(own.domain())):
            raise VerifyError("a place of a round is not one block's", where=_WHERE)
    for last in (0, 1):
        _prove_rounds(prefix, last)
    _prove_numbers()
    claim = "every tile of rows is one persistent block's, in a pair or of the last matrices"
    return prove_together(), Proof(claim, "any number of tiles, matrices and blocks")


def _prove_rounds(prefix: str, last: int) -> None:
    """A block's rounds are those in which its place is one of the tiles'.

    Args:
        prefix: of isl texts.
        last: whether the round that is not full goes backwards.
    """
    known = f"0 <= {TAKEN} < {BLOCKS} and 0 <= {REST} < {BLOCKS} and {WHOLE} mod 2 = {last}"
    known += f" and ({WHOLE} > 0 or ({WHOLE} = 0 and {TAKEN} <= {REST}))"
    for odd in (0, 1):
        each = f"{known} and 0 <= {OWN} < {BLOCKS} and d >= 0 and d mod 2 = {odd}"
        place, ending = places()[odd], places()[last]
        there = isl.Set(
            f"{prefix}{{ [{OWN},d] : {each} and (d > 0 or {place} >= {TAKEN}) and "
            f"(d < {WHOLE} or (d = {WHOLE} and {place} < {REST})) }}"
        )
        cases = (
            f"({before} and {ends} and d >= {begin} and d < {WHOLE} + {more})"
            for begin, before in ((1, f"{OWN} < {TAKEN}"), (0, f"{OWN} >= {TAKEN}"))
            for more, ends in ((1, f"{ending} < {REST}"), (0, f"{ending} >= {REST}"))
        )
        said = isl.Set(f"{prefix}{{ [{OWN},d] : {each} and ({' or '.join(cases)}) }}")
        if not said.is_equal(there):
            raise VerifyError("a block has tiles that are no place's, or too few", where=_WHERE)


def _prove_numbers() -> None:
    """Places behind those that are taken have the numbers of the tiles, from 0 on.

    A round is `r` places that come before it, and place x of it.
    """
    text = number("d", "x").replace(f"d * {BLOCKS}", "r")
    known = f"{TAKEN} >= 0"
    behind = f"{known} and r >= 0 and x >= 0 and p = r + x and p >= {TAKEN}"
    made = isl.Map(f"[{TAKEN}] -> {{ [p] -> [t] : exists (r, x : {behind} and t = {text}) }}")
    every = isl.Set(f"[{TAKEN}] -> {{ [t] : t >= 0 and {known} }}")
    if not (made.is_bijective() and made.range().is_equal(every)):
        raise VerifyError("places do not have the numbers of tiles", where=_WHERE)
