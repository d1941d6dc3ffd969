"""`ChainMatch` x `ScheduleTree` -> `KernelPlan`: the plan of two products in one loop over keys.

1. Shared memory holds a ring for the rows, one for the keys and one for the values, each in the
   layout that matrix descriptors tell, or in rows, as for any product.
2. The second product's operand stays where the first one left its sums: the fragment of the one
   composed with the fragment of the other is the identity of every thread, or one order of k that
   all share, in which the right operand is then loaded (`carried`). Nothing moves.
3. What is computed at (row, key) is split at the reference: what makes its terms, and what is made
   with it (`chain_scan`).
4. Folds of results are made of parts, as behind any product (`folds`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polygen.frontend.program import Program
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.lower.build import one_tile_each, plan_of
from polygen.lower.carried import carried_proof, in_pairs
from polygen.lower.chain_leaves import ChainLeaves
from polygen.lower.chain_memory import chain_memory, chain_resources, layouts
from polygen.lower.chain_scan import KeyScan
from polygen.lower.epilogue import epilogue
from polygen.lower.folds import fold_orders, following
from polygen.lower.given import Given
from polygen.lower.key_parts import combining_launch, room
from polygen.lower.launch import layers
from polygen.lower.memory import needed
from polygen.lower.plan import Inside, KernelPlan, Launch
from polygen.lower.registers import fold_registers
from polygen.lower.result_work import Epilogue
from polygen.lower.synchronise import counting, placed
from polygen.lower.warpgroups import barriers, places
from polygen.lower.warps import place
from polygen.poly.chain_layers import left_by
from polygen.poly.chain_match import ChainMatch
from polygen.poly.chain_shape import ChainShape
from polygen.poly.key_pages import KeyPages, prove_key_pages
from polygen.poly.key_tiles import prove_key_tiles
from polygen.poly.legality import Proof
from polygen.poly.mapping import ScheduleTree
from polygen.poly.prologue_proofs import prove_inside
from polygen.poly.raster import prove_linear_raster, prove_ranges
from polygen.poly.row_order import prove_pairs, prove_together
from polygen.rewrite.parts import parts_combine
from polygen.schedule.model import LONGEST, MATRIX, PAIRS, Schedule

_ROW_ORDERS: dict[str, Callable[[], tuple[Proof, ...]]] = {
    MATRIX: lambda: (prove_ranges(),),
    LONGEST: lambda: (prove_ranges(), prove_together()),
    PAIRS: prove_pairs,
}


def lower_chain(
    program: Program,
    matched: ChainMatch,
    tree: ScheduleTree,
    shape: ChainShape,
    schedule: Schedule,
    atom: Atom,
    device: Device,
) -> KernelPlan:
    """Decide everything that the emitter needs.

    Raises:
        ResourceError: the plan does not fit the device.
        ScheduleError: a tile has no layout.
        VerifyError: the second product's operand is not where the first one's sums are.
    """
    sync = tree.synchronised
    if shape.roles:
        in_pairs(atom)
    made = layouts(matched, shape, atom, schedule)
    buffers = chain_memory(matched, shape, made, barriers(sync))
    copied = {f"fill_{name}": one.bytes for name, one in made.items() if shape.roles}
    syncs = placed(sync, copied)
    given = Given(matched.chain.values, tree, schedule, atom, device, matched.after)
    out = _results(given, matched)
    between = KeyScan(given, matched, shape, out)
    found = ChainLeaves(given, matched, shape, buffers, syncs, out, between).all()
    leaves = tuple(counting(tuple(found), sync.counters))
    folded = fold_registers(matched.after, shape.tiles, atom)
    taken = chain_resources(shape, atom, schedule, device, needed(buffers), folded, matched.before)
    along = matched.values.m
    resident = device.multiprocessors * schedule.min_blocks if shape.roles else 0
    launch = Launch(
        along, matched.values.n, shape.tiles.cta[0], shape.tiles.cta[1], schedule.raster.group,
        taken.threads, taken.shared_bytes, persistent=resident,
        per_multiprocessor=schedule.min_blocks if shape.roles else 1,
        batches=tuple(extent for _, extent in matched.values.batches),
    )  # fmt: skip
    visited = between.visited
    more = _pages(matched, shape)
    entry, split = f"pg_{program.name}", matched.split
    after = following(split, entry, out.folds, schedule.epilogue.row_warps)
    folds = fold_orders(matched.chain.values, split, out, {}, after)
    order = schedule.raster.order
    if visited is None and not launch.persistent:
        launch = replace(launch, layers=layers(launch.batches))
    if visited is not None:  # each tile of rows has as many tiles of keys as it wants
        if not shape.varying:
            launch = replace(launch, persistent=0)
        more = (*more, *prove_key_tiles(visited, matched.values.depths[0], atom.m))
    if schedule.tile.part:
        each = schedule.tile.part
        launch = replace(launch, across=matched.values.depths[0], tile_across=each)
        after = combining_launch(entry, room(matched, each))
        claims = parts_combine(matched.chain)
        more = (*more, *(Proof(claim, "rewrite") for claim in claims))
    rows, columns, keys = shape.tiles.cta
    own = places(given) if shape.roles else (place(given),)
    who = "consumer warpgroup(s)" if shape.roles else "warps"
    inside = Inside(buffers, leaves, own, syncs)
    return replace(
        plan_of(given, program, inside, taken, launch, after),
        mapping=f"{rows} rows by {keys} keys by {columns} columns, {shape.consumers} {who} of "
        f"{shape.tiles.warp[0]} rows, {atom.name} on {device.name}",
        proofs=(
            *tree.proofs, carried_proof(atom), *more,
            *(_raster(launch) if visited is None else _ROW_ORDERS[order]()),
        ),
        sums=replace(tree.sums, folds=folds),
        chained=matched,
        scores=matched.scores,
        scored=matched.before,
        key_tiles=visited,
        key_bounds=between.bounds(),
    )  # fmt: skip


def _raster(launch: Launch) -> tuple[Proof, ...]:
    return prove_linear_raster(1) if launch.persistent else one_tile_each(launch)


def _pages(matched: ChainMatch, shape: ChainShape) -> tuple[Proof, ...]:
    """Of keys and values in pages: each comes from its row of the page that is named."""
    operands, found = dict(matched.operands), []
    reads = {
        access.name: (product.name, access)
        for product in (*matched.chain.scores.contractions, *matched.chain.values.contractions)
        for access in product.reads
    }
    for name, one in matched.paged.items():
        array, pages = operands[name].tensor.name, KeyPages(one.page, shape.tiles.cta[2])
        found.append(prove_key_pages(array, one, pages, matched.values.depths[0]))
        found.append(prove_inside(*reads[array]))
    return tuple(found)


def _results(given: Given, matched: ChainMatch) -> Epilogue:
    """The statements behind the second product; what layers have left, and states, are passed
    beside its sums.
    """
    found, before = epilogue(given), list[Epilogue]()
    for one in (*found.before, found):
        used = {arg for s in one.statements for arg in s.args}
        states = tuple((name, name) for name, _ in matched.states if name in used)
        left = tuple((name, left_by(layer)) for name, layer in matched.behind if name in used)
        before.append(replace(one, sums=(*one.sums, *left, *states), before=tuple(before)))
    return before[-1]
