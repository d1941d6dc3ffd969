"""How the blocks of a cluster that cover rows together tell each other what they have folded.

An agent's landing area has a part for each block, in the order of the blocks along the row. A part
has a number for each row of an agent and each component of a fold: the same layout that agents of
one block use.
"""

from __future__ import annotations

from polygen import isl
from polygen.errors import VerifyError
from polygen.lower.given import Given
from polygen.lower.memory import SUM_BYTES
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Epilogue, Exchange, FoldPart
from polygen.lower.sync_work import Placed
from polygen.lower.synchronise import counter_of
from polygen.poly.fold_parts import SHARED
from polygen.poly.legality import Proof
from polygen.poly.partial_sums import LANDING_SLOTS
from polygen.poly.pointwise import Pointwork
from polygen.poly.tile_program import TileStatement
from polygen.poly.tiling import Tiling, in_pass


def sent_bytes(work: Pointwork, tiles: Tiling) -> dict[str, int]:
    """Bytes that land at an agent in each pass, by the statement that sends them; {}: none do."""
    if tiles.beside == 1:
        return {}
    return {
        in_pass("give", number): tiles.beside * _part(tiles, sum(len(f.terms) for f in one.folds))
        for number, one in enumerate(work.before)
    }


def _part(tiles: Tiling, components: int) -> int:
    """Bytes that one block sends to an agent."""
    return SUM_BYTES * components * tiles.warp[0]


def exchanged(
    given: Given, syncs: tuple[Placed, ...], one: Epilogue, loops: tuple[str, ...]
) -> tuple[Leaf, ...]:
    """The leaves that end a pass over the sums: what a block has is sent, and that of all combined.

    Args:
        given: the kernel.
        syncs: its barriers.
        one: the pass.
        loops: over output tiles.
    """
    tree, landed = given.tree.synchronised, SHARED + one.suffix
    give, take = (what + one.suffix for what in ("give", "take"))
    full = next(placed for placed in syncs if give in dict(placed.sync.signals))
    part = _part(given.tiles, sum(len(fold.terms) for fold in one.folds))
    cluster = (given.schedule.cluster.m, given.tiles.beside)

    def work(statement: str) -> Exchange:
        return Exchange(one, landed, full, counter_of(tree, statement, landed), cluster, part)

    return (
        Leaf(give, "give", "st.async", loops, work(give)),
        Leaf(take, "take_sent", "threads", loops, work(take)),
    )


def check_exchange(plan: KernelPlan, one: FoldPart) -> tuple[Proof, ...]:
    """Blocks that share rows have room for the parts of all of them, and combine each once.

    Lanes that have a row together each send it to some blocks: to which follows from their lowest
    bits, so that those are the bits in which the lanes differ.

    Returns:
        The claim, if blocks share rows.

    Raises:
        VerifyError: they do not.
    """
    tiles = plan.tiles
    found = [
        (leaf.statement, leaf.work)
        for leaf in plan.leaves
        if isinstance(leaf.work, Exchange) and one in leaf.work.epilogue.folds
    ]
    if len(found) != (2 if tiles.beside > 1 else 0):
        raise VerifyError(f"{one.value}: no block has whole rows", where=plan.entry)
    if not found:
        return ()
    for _, work in found:
        buffer, agents = plan.buffer(work.given), plan.places[-1].agents
        part = _part(tiles, sum(len(fold.terms) for fold in work.epilogue.folds))
        room = (part, tiles.beside * part, agents, LANDING_SLOTS)
        if (work.part_bytes, buffer.slot_bytes, buffer.owners, buffer.slots) != room:
            raise VerifyError(
                f"{one.value}: {tiles.beside} parts of {part} bytes in {buffer}", where=plan.entry
            )
        if work.cluster != (plan.schedule.cluster.m, tiles.beside) or tiles.warps[1] > 1:
            raise VerifyError(f"{one.value}: no block has whole rows", where=plan.entry)
        if one.masks != tuple(1 << bit for bit in range(len(one.masks))):
            raise VerifyError(f"{one.value}: lanes {one.masks} send a row", where=plan.entry)
    give, take = (statement for statement, _ in found)
    _check_parts(plan, give, take)
    return (Proof("every block of a row combines one part of each of them", one.value),)


def _check_parts(plan: KernelPlan, give: str, take: str) -> None:
    """Who combines gets one part of every block that has columns of its rows, and of no other.

    Raises:
        VerifyError: with a pair of instances.
    """
    program = plan.tile_program
    source, target = program.statement(give), program.statement(take)

    def cells(statement: TileStatement, texts: tuple[str, ...]) -> isl.Map:
        """From instances of a statement to cells of the landing area."""
        (cell,) = (one for one in texts if one.startswith(SHARED))
        access, _, condition = cell.partition(" : ")
        inside = " and ".join(part for part in (statement.place.bounds, condition) if part)
        text = f"{{ {statement.instance} -> {access} : {inside} and {statement.bounds} }}"
        return isl.Map(f"{program.prefix}{text}")

    sent, read = cells(source, source.writes), cells(target, target.reads)
    block, *others = source.place.agents
    there = ",".join(("d", *others, *source.loops))
    below = plan.schedule.cluster.m
    row = f"(d - {block}) mod {below} = 0 and 0 <= d < {source.place.counts[0]}"
    text = f"{{ {source.instance} -> {take}[{there}] : {row} and {source.place.bounds}"
    wanted = isl.Map(f"{program.prefix}{text} and {source.bounds} }}")
    made = sent.apply_range(read.reverse())
    for claim, rest in (
        ("is not combined", wanted.subtract(made)),
        ("is combined with other rows", made.subtract(wanted)),
    ):
        if not rest.is_empty():
            raise VerifyError(f"a part {claim}: {isl.sample_pair(rest)}", where=plan.entry)
    if not sent.is_injective():
        raise VerifyError(f"{give}: parts of several blocks at one place", where=plan.entry)
