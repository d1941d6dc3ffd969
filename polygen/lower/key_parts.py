"""Keys in parts: where the sums and states of a part lie, and the launch that combines them.

1. Every block has one part of the keys of one tile of rows, and writes its sums and states once, to
   places of their own: row r of all matrices of part q is row ``q * rows + r`` (`part_row`).
2. The launch that follows has a block for each row. It combines the references of all parts, in the
   order of their numbers; under that of the whole row it sums states and sums, each part's worth
   c(own, whole) of what it is; and it computes what the program makes of them, as the kernel itself
   would.
"""

from __future__ import annotations

from polygen import isl
from polygen.errors import VerifyError
from polygen.hardware.device import common_facts
from polygen.lower.launch import Count, Following, Parts, Results
from polygen.lower.plan import KernelPlan
from polygen.lower.scan_work import PartStore, RowStore, Scan
from polygen.poly.chain_match import ChainMatch
from polygen.poly.key_tiles import PART
from polygen.poly.legality import Proof

AFTER = "after"  # the place of leaves of the launch that follows
_THREADS = 128  # of a block that combines the parts of a row
_WHERE = "parts of keys"


def room(matched: ChainMatch, keys: int) -> tuple[Parts, ...]:
    """The parts of the sums, then those of each state.

    Args:
        matched: the chain.
        keys: of a part.
    """
    counts = (Count(matched.values.depths[0], keys),)
    rows = (*(extent for _, extent in matched.values.batches), matched.values.m)
    states = (Parts(state.value, 1, counts, rows) for state in matched.chain.states)
    total = matched.values.products[0].contraction.write.name
    return (Parts(total, 1, counts, (*rows, matched.values.n)), *states)


def combining_launch(entry: str, parts: tuple[Parts, ...]) -> Following:
    """The launch that combines parts.

    Args:
        entry: of the kernel.
        parts: as of `room`.
    """
    warp = common_facts()["warp_size"]
    rows = parts[0].results[:-1]
    group = Results(rows, warp, (), (), (), merged=True)
    return Following(f"{entry}_parts", _THREADS, warp, (group,), parts)


def part_row(part: str, rows: str, row: str) -> str:
    """Which row of the sums' parts, and which element of a state's: text of C and of isl."""
    return f"{part} * {rows} + {row}"


def check_parts(plan: KernelPlan) -> tuple[Proof, ...]:
    """Prove that parts are written once, and are those that are combined.

    Raises:
        VerifyError: two blocks write one part, a part is left out, or states are not those of the
            chain.
    """
    stores = plan.of(PartStore)
    if not stores:
        return ()
    after, visited = plan.following, plan.key_tiles
    (scan, *_) = plan.of(Scan)
    if after is None or visited is None or not visited.part or plan.of(RowStore):
        raise VerifyError("parts of keys are stored and not combined", where=plan.entry)
    each = visited.part * visited.keys
    for work in stores:
        held = tuple(state for state, _ in work.states)
        if held != scan.states or (work.total, *(p for _, p in work.states)) != after.parts:
            raise VerifyError(f"{', '.join(s.value for s in held)} are stored", where=plan.entry)
    counts = (Count(plan.match.depths[0], each),)
    rows = (*(extent for _, extent in plan.batches), plan.match.m)
    total = plan.match.products[0].contraction.write.name
    wanted = [Parts(total, 1, counts, (*rows, plan.match.n))]
    wanted += [Parts(state.value, 1, counts, rows) for state in scan.states]
    if after.parts != tuple(wanted):
        raise VerifyError(f"parts are {after.parts}, and not {wanted}", where=plan.entry)
    sums = dict(plan.epilogue.sums)[total]
    if any((work.sums, work.part) != (sums, PART) for work in stores):
        raise VerifyError(f"parts of other sums than {sums} are stored", where=plan.entry)
    launch = plan.launch
    if (launch.across, launch.tile_across, launch.group, launch.persistent) != (
        plan.match.depths[0], each, 1, 0,
    ):  # fmt: skip
        raise VerifyError(f"blocks along x are no parts of {each} keys", where=plan.entry)
    # A row of a part is one place, for any number of rows; digits of a number do not meet.
    place = part_row("q", "9", "r")
    made = isl.Map(f"[parts] -> {{ [q,r] -> [{place}] : 0 <= q < parts and 0 <= r < 9 }}")
    whole = isl.Set("[parts] -> { [p] : 0 <= p < 9 * parts }")
    if not (made.is_injective() and made.range().is_equal(whole)):
        raise VerifyError("two parts of rows lie in one place", where=_WHERE)
    claim = "every part of a row is written once, by the block that visits its keys"
    read = "every part is read once, by a launch that begins when all are written"
    return (Proof(claim, "parts"), Proof(read, "parts"))
