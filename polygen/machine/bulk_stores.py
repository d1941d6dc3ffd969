"""Bulk copies out of shared memory: TMA stores and reductions, and linear ``cp.async.bulk``.

1. A store belongs to its thread's bulk group; shared memory is *being read* until the wait that
   covers the group; ``late`` moves the data only then.
2. Out-of-bounds parts of a box are dropped, and not read. Rows end with their last 16 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine import bulk, grids, map_changes, mbarrier_waits, tensormap
from polygen.machine.bulk import ALIGNMENT, Store
from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.memory import BASE
from polygen.machine.report import Stop
from polygen.machine.tensormap import PlacedMap

if TYPE_CHECKING:
    from polygen.machine.state import Machine


def store_tensor(machine: Machine, lanes: Lanes, *rest: Any) -> None:
    """TMA store or reduction; rest: source, map, operation, coordinates..., position."""
    source, maps, operation, *coordinates, position = rest
    addresses = full(lanes, maps)
    for lane in range(lanes.count):
        placed = bulk.map_at(machine, lanes, lane, int(addresses[lane]), position)
        cta, offset = bulk.shared_place(machine, lanes, lane, source)
        bulk.check_target(machine, lanes, lane, offset, placed.box_bytes, ALIGNMENT, position)
        machine.alignment.need(offset, placed.swizzle * 8, position)
        chunks = cta * machine.shared_bytes + tensormap.shared_chunks(placed, offset)
        corner = bulk.corner_of(machine, lanes, lane, placed, tuple(coordinates), position)
        if min(corner, default=0) < 0:  # an H200 stops there: "an illegal instruction"
            machine.findings.add(
                "out-of-bounds-global",
                f"{lanes.name(lane)} stores a box that begins at {list(corner)}, before "
                f"{placed.name}: loads may, stores are clipped at the far ends alone",
                position,
            )
            raise Stop
        at, inside = tensormap.elements(placed, corner)
        if placed.changed:
            map_changes.check_box(machine, lanes, lane, placed, at[inside], position)
        written = inside
        if placed.dims[0] * placed.element % 16 and not operation:
            at, written = tensormap.elements(placed, corner, whole_chunks=True)
            _check_ends(machine, lanes, lane, placed, at[written & ~inside], position)
        grids.check_box(machine, lanes, lane, at[written], placed.element, position, writes=True)
        _take(
            machine, lanes, lane, chunks, at, (inside, written), placed.dtype, operation, position
        )


def _check_ends(
    machine: Machine, lanes: Lanes, lane: int, placed: PlacedMap, past: Vector, position: int
) -> None:
    """Report a store that writes past its rows, where there is nothing it may write."""
    lost = past[machine.memory.room[past] < placed.element]
    if len(lost):
        machine.findings.add(
            "out-of-bounds-global",
            f"{lanes.name(lane)} stores a box of {placed.name}, whose rows of "
            f"{placed.dims[0] * placed.element} bytes are no multiple of 16: stores write whole "
            f"16 bytes, here {machine.memory.describe(int(lost[0]))}",
            position,
            count=len(lost),
        )


def store_linear(machine: Machine, lanes: Lanes, *rest: Any) -> None:
    """``cp.async.bulk`` and its reductions to global memory.

    rest: target, source, size, operation, element type, position.
    """
    target, source, size, operation, kind, position = rest
    dtype = np.dtype(kind)
    targets, sizes = full(lanes, target), full(lanes, size)
    for lane in range(lanes.count):
        amount = int(sizes[lane])
        cta, offset = bulk.shared_place(machine, lanes, lane, source)
        bulk.check_target(machine, lanes, lane, offset, amount, 16, position)
        bulk.linear_source(machine, lanes, lane, int(targets[lane]), amount, "global", position)
        chunks = cta * machine.shared_bytes + offset + 16 * np.arange(amount // 16)
        at = int(targets[lane]) - BASE + np.arange(0, amount, dtype.itemsize)
        grids.check_box(machine, lanes, lane, at, dtype.itemsize, position, writes=True)
        all_of_it = np.ones(len(at), bool)
        _take(machine, lanes, lane, chunks, at, (all_of_it, all_of_it), dtype, operation, position)


def _take(
    machine: Machine,
    lanes: Lanes,
    lane: int,
    chunks: Vector,
    target: Vector,
    parts: tuple[Vector, Vector],
    dtype: Any,
    operation: str,
    position: int,
) -> None:
    """Queue a store; its shared bytes are being read until its group is waited for.

    `parts`: the elements that it is to store, and those that it does store. What is clipped is not
    read.
    """
    thread = int(lanes.index[lane])
    shadow, engine = machine.shadow, 0
    wanted, inside = parts
    per = 16 // np.dtype(dtype).itemsize
    used = inside.reshape(-1, per).any(1)
    chunks, target = chunks[used], target.reshape(-1, per)[used].ravel()
    inside, wanted = (one.reshape(-1, per)[used] for one in (inside, wanted))
    if shadow is not None:
        engine = shadow.engine(int(lanes.cta[lane]))
        row, all_of_it = shadow.row_of[thread], wanted.all(1)
        size = np.dtype(dtype).itemsize
        rest = (chunks[~all_of_it, None] + size * np.arange(per))[wanted[~all_of_it]]
        for at, width in ((chunks[all_of_it], 16), (rest, size)):
            many = lanes.pick(np.full(len(at), lane))
            shadow.check_async(many, at, position, np.full(len(at), row), width)
        shadow.start_reading(chunks >> 4)
    inside = inside.ravel()
    store = Store(
        thread,
        int(machine.bulk.group[thread]),
        chunks,
        target,
        inside,
        dtype,
        operation,
        engine,
        position,
    )
    if machine.completion == "early" or (
        machine.completion == "random" and machine.random.random() < 0.5
    ):
        _move(machine, store)
    machine.bulk.stores.append(store)


def _move(machine: Machine, store: Store) -> None:
    """Copy (or combine) the elements into global memory."""
    raw = machine.shared.reshape(-1, 16)[store.chunks // 16].ravel()
    values = raw.view(store.dtype)[store.inside]
    width = np.dtype(store.dtype).itemsize
    index = store.target[store.inside] // width
    memory = machine.memory.bytes.view(store.dtype)
    if not store.operation:
        memory[index] = values
    else:
        update = {"add": np.add, "min": np.minimum, "max": np.maximum,
                  "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}  # fmt: skip
        memory[index] = update[store.operation](memory[index], values)
    store.moved = True


def commit(machine: Machine, lanes: Lanes) -> None:
    """``cp.async.bulk.commit_group``."""
    machine.bulk.group[lanes.index] += 1


def wait(machine: Machine, lanes: Lanes, pending: int) -> None:
    """``cp.async.bulk.wait_group[.read]``."""
    member = set(lanes.index.tolist())
    left = []
    for store in machine.bulk.stores:
        covered = (
            store.thread in member and store.group < machine.bulk.group[store.thread] - pending
        )
        if not covered:
            left.append(store)
            continue
        if not store.moved:
            _move(machine, store)
        if machine.shadow is not None:
            machine.shadow.finish_reading([(store.chunks >> 4, store.engine, store.position)])
            rows = machine.shadow.row_of[[store.thread]]
            machine.shadow.learn(rows, store.engine)
    machine.bulk.stores = left


def drain(machine: Machine) -> None:
    """Kernel end: what is still under way finishes; loads and reads nobody waited for are found."""
    while bulk.land_one(machine):
        pass
    mbarrier_waits.check_awaited(machine)
    for store in machine.bulk.stores:
        lanes = Lanes(machine.geometry, np.array([store.thread]))
        machine.findings.add(
            "in-flight-access",
            f"{lanes.name(0)} ends without waiting for its bulk store to read shared memory",
            store.position,
        )
        if not store.moved:
            _move(machine, store)
    machine.bulk.stores = []
