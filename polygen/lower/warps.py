"""A block whose warps all do everything: one place, and the leaves of its loops.

Which copies are possible follows from the operands' alignment and the device. Every ring gets the
swizzle with the fewest bank conflicts, and so does the scratch area of the way out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polygen.hardware.swizzle import chunk_bytes
from polygen.lower import layout
from polygen.lower.buffers import Buffer
from polygen.lower.folds import around
from polygen.lower.given import Given
from polygen.lower.memory import memory
from polygen.lower.operands import copy, load
from polygen.lower.plan import Inside, Leaf, Place
from polygen.lower.promoting import promote
from polygen.lower.result_work import Epilogue
from polygen.lower.shares import copy_share, held_share
from polygen.lower.sync_work import Groups
from polygen.lower.synchronise import AGENTS, placed, sync_leaves
from polygen.lower.tallies import leaves as tallied
from polygen.lower.tallies import tallies
from polygen.lower.work import Clear, Copy, Load, Product
from polygen.poly.results import copies_in_background, copies_staged

_PLACE = "warps"


def inside(given: Given, out: Epilogue) -> Inside:
    """Buffers, leaves and the place of all warps.

    Raises:
        ScheduleError: a swizzle or a tile does not fit.
        UnsupportedProgram: no instruction loads an operand's storage order.
    """
    background, staged = (
        copies_in_background(given.match, given.device),
        copies_staged(given.device),
    )
    moved = [
        (copy(given, name, operand, background, staged=staged), load(given, name, operand))
        for name, operand in given.match.operands
    ]
    tree = given.tree
    bare = memory(given.schedule, given.match, given.work, given.tiles, ())
    syncs = placed(tree.synchronised, {})
    buffers = tuple(_with_layout(given, buffer, moved, out) for buffer in bare)
    named = {buffer.name: buffer for buffer in buffers}
    moved = [(shared(given, one, named[one.buffer]), loaded) for one, loaded in moved]
    leaves = _leaves(given, moved, out, tuple(sync_leaves(given, syncs, "")))
    folded = tallied(given, tallies(given, named), ())
    return Inside(
        buffers,
        tuple(replace(leaf, place=_PLACE) for leaf in (*folded, *leaves)),
        (place(given),),
        syncs,
    )


def place(given: Given) -> Place:
    """All warps of the block."""
    count = given.tiles.warp_count
    return Place(_PLACE, 0, count, count, False, AGENTS[_PLACE], 0, given.tree.loops())


def without_buffers(given: Given, leaves: Sequence[Leaf]) -> Inside:
    """Leaves of warps that read for themselves, and wait for nobody but the grids before."""
    own, syncs = place(given), placed(given.tree.synchronised, {})
    every = (*leaves, *sync_leaves(given, syncs, ""))
    return Inside((), tuple(replace(leaf, place=own.name) for leaf in every), (own,), syncs)


def _with_layout(
    given: Given, buffer: Buffer, moved: list[tuple[Copy, Load]], out: Epilogue
) -> Buffer:
    if buffer.kind in ("given", "norms"):
        return buffer
    if buffer.kind == "scratch":
        table, warp, columns = given.atom.c.table, given.tiles.warp, given.atom.n
        rows = layout.scratch(buffer.name, warp, out.vector, table, columns, "auto")
    else:
        one, loaded = next(pair for pair in moved if pair[0].buffer == buffer.name)
        row_bytes, wanted = one.columns * one.element_bytes, given.schedule.smem.swizzle
        width = chunk_bytes() if one.staging else one.width
        rows = layout.ring(buffer.name, one.rows, row_bytes, width, loaded.load, wanted)
    return replace(buffer, layout=rows)


def shared(given: Given, one: Copy, buffer: Buffer) -> Copy:
    """A copy with the pieces that every thread moves."""
    threads = given.tiles.warp_count * given.device.warp_size
    if one.staging:
        return replace(one, share=held_share(one.stored, one.moved, threads))
    # Where rows lie in runs, the address of each is computed.
    keeps = one.asynchronous and not one.in_runs[0]
    period = buffer.rows.swizzle.period if keeps else 0
    share = copy_share(one.stored, one.moved, threads, one.parts, period)
    return replace(one, share=share)


def _promotions(given: Given) -> Iterator[Leaf]:
    """What clears the inner sums of blocks, and promotes them."""
    if not given.match.block:
        return
    tiles = given.tiles
    parts = tuple(
        f" + w_{axis} * {own}" if count > 1 else ""
        for axis, own, count in zip("mn", tiles.warp, tiles.warps, strict=True)
    )
    for one, product in zip(given.tree.main.products, given.match.products, strict=True):
        inner, total, scales = (one.called(what) for what in ("inner", "sum", "scales"))
        extents = (given.match.m, given.match.n)
        work = promote(
            product, (inner, total, scales), tiles, given.atom, (parts[0], parts[1]), extents
        )
        yield Leaf(one.called("clear"), "zero", "threads", ("k",), Clear((inner,)))
        for op in ("read_scales", "promote") if one.scaled else ("promote",):
            yield Leaf(one.called(op), op, "threads", ("k",), work)


def _leaves(
    given: Given, moved: list[tuple[Copy, Load]], out: Epilogue, between: tuple[Leaf, ...]
) -> list[Leaf]:
    """The leaves of the block's loops, in the order in which they are declared."""
    asynchronous = any(one.asynchronous for one, _ in moved)
    products = given.tree.main.products
    found = []
    if not given.match.block:
        clear = Clear(tuple(one.called("sum") for one in products))
        found.append(Leaf("zero", "zero", "threads", (), clear))
    found += [
        Leaf(f"fetch_{c.operand}", "fetch_chunks", "threads", ("k", "p"), c)
        for c, _ in moved
        if c.staging
    ]
    found += [
        Leaf(
            f"copy_{c.operand}",
            "compute_copy" if c.computed else "write_chunks" if c.staging else "move",
            "cp.async" if c.asynchronous else "threads",
            ("k", "p"),
            c,
        )
        for c, _ in moved
    ]
    if asynchronous:
        note = "commit[t]: the copies of step t become one group"
        found.append(Leaf("commit", "commit", "cp.async", ("t",), Groups(note=note)))
    found += between
    found += [Leaf(f"load_{one.operand}", "load", "threads", ("k", "s"), one) for _, one in moved]
    for one in products:
        total = one.called("inner" if given.match.block else "sum")
        work = Product((one.left, one.right), total)
        found.append(Leaf(one.called("mma"), "multiply", "mma.sync", ("k", "s", "m", "n"), work))
    found += _promotions(given)
    found.append(Leaf("compute", "compute", "threads", (), out))
    found.append(Leaf("finish_element", "edge", "threads", (), out))
    if not out.staged:
        store = Leaf("store", "store_pairs", "threads", ("m",), out)
        return [*found, *around((store,), out, ())]
    return [
        *found,
        Leaf("prepare", "prepare", "threads", (), out),
        Leaf("stage", "stage", "threads", ("m",), out),
        Leaf("store", "store_rows", "threads", ("r",), out),
    ]
