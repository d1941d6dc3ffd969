"""Which statement promotes a block of a sum: one beside the next block's products, or one alone.

Blocks in a row are a run (`pipeline.overlap`), in which inner sums have registers in turns: each is
promoted while the next one is multiplied, but for the last, behind which nothing is on its way.
Blocks that are too few for a run are promoted one by one.
"""

from __future__ import annotations

SETS = 2  # of registers, which inner sums take in turns
MOST_OVERLAP = 8  # blocks of a run, whose code is one iteration's
PROMOTE_LAST = "promote_last"  # a block beside whose promotion nothing is multiplied


def promoted_by(run: int, k: str) -> tuple[tuple[str, str], ...]:
    """What promotes the block that k tile `k` ends, and of which blocks, as isl text.

    Args:
        run: blocks of a run; 1: there are none.
        k: the k tile, which is a whole block where there are runs.
    """
    if run == 1:
        return (("promote", "1 = 1"),)
    last, whole = f"(({k}) + 1) mod {run} = 0", f"{run}*floor(({k})/{run}) + {run} <= k_tiles"
    return (
        ("promote", f"(not ({last}) and {whole})"),
        (PROMOTE_LAST, f"({last} or not ({whole}))"),
    )
