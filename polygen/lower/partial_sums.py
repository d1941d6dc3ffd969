"""Where the sums meet that the blocks of a cluster share.

Part q of a landing area is what block q has sent, as its threads held it: for every instruction
along m and every group of columns the elements of all threads, thread by thread. Whoever adds them
up holds the same elements of its own sums, so that no layout is needed but this one.
"""

from __future__ import annotations

from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.given import Given
from polygen.lower.work import Landing
from polygen.poly.tiling import completed

_SUM_BYTES = 4


def landings(given: Given) -> tuple[Landing, ...]:
    """A landing area for the sums of each product; () if no blocks share any."""
    tiles, atom = given.tiles, given.atom
    if tiles.split == 1:
        return ()
    access = atom.c.registers * _SUM_BYTES
    assert access == chunk_bytes()
    return tuple(
        Landing(
            total=product.called("sum"),
            completed=product.called(completed(tiles)),
            buffer=product.called("part"),
            rows=tiles.atoms[0],
            groups=tiles.share // atom.n,
            sent=tiles.share // tiles.chunks // atom.n,
            access_bytes=access,
            threads=given.device.group_threads,
        )
        for product in given.tree.main.products
    )
