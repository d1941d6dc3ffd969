"""Bulk copies: TMA loads, stores and reductions of tensor boxes, and linear ``cp.async.bulk``.

1. A load is queued at issue and its target bytes are *in flight* until it lands; landing writes the
   data, tells the mbarrier its bytes, and publishes the copy engine's clock.
2. ``early`` lands at issue, ``late`` only when nobody else can run and then in random order,
   ``random`` at some scheduling step in between.
3. A store belongs to its thread's bulk group; shared memory is *being read* until the wait that
   covers the group; ``late`` moves the data only then.
4. Out-of-bounds parts of a box read as fill and are dropped by stores; a load always delivers the
   bytes of the whole box. A map of tf32 rounds what it loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine import grids, mbarrier, tensormap
from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.memory import BASE, SLOT, WINDOW_BYTES, WINDOW_PARAM, rank_in
from polygen.machine.report import Stop
from polygen.machine.special import RESERVED
from polygen.machine.tensormap import PlacedMap

if TYPE_CHECKING:
    from polygen.machine.state import Machine

ALIGNMENT = 128  # of a tensor box in shared memory
MAP_ALIGNMENT = 64  # of a tensor map
# What a box holds outside its tensor when the map asks for NaN, as bits: read off an H200.
NAN_FILL = {"bfloat16": 0x7FF7, "float16": 0x7FF7, "float32": 0x7FF77FF7}
MASK = (1 << SLOT) - 1


@dataclass(slots=True)
class Load:
    """One load on its way to one CTA."""

    chunks: Vector  # absolute shared bytes of the 16-byte chunks
    data: Vector  # what lands there, (chunks, 16) bytes
    barrier: int  # absolute shared byte
    engine: int  # clock row of its loader
    position: int
    released: tuple[Vector, Vector] | None = None  # what its thread lets others know with it


@dataclass(slots=True)
class Store:
    """One store (or reduction) of one thread."""

    thread: int
    group: int
    chunks: Vector
    target: Vector  # global bytes of the elements
    inside: Vector
    dtype: Any
    operation: str
    engine: int
    position: int
    moved: bool = False


class Bulk:
    """All bulk copies of a wave."""

    def __init__(self, threads: int) -> None:
        self.loads: list[Load] = []
        self.stores: list[Store] = []
        self.group = np.zeros(threads, np.int64)


def _map(machine: Machine, lanes: Lanes, lane: int, address: int, position: int) -> PlacedMap:
    """The map at a generic address: a parameter, or in global memory."""
    number, wrong = -1, "that is not a TensorMap argument"
    for base, data, room in (
        (WINDOW_PARAM, machine.parameter_bytes, WINDOW_BYTES),
        (BASE, machine.memory.bytes, machine.memory.size),
    ):
        at = address - base
        if 0 <= at < room:
            number = tensormap.number_in(data[at : at + tensormap.IMAGE_BYTES].tobytes())
            if number >= 0 and at % MAP_ALIGNMENT:
                wrong = f"at byte {at} of {'its parameters' if base != BASE else 'global memory'}"
                number = -1
    if not 0 <= number < len(machine.tensor_maps):
        sentence = f"{lanes.name(lane)} uses a tensor map {wrong}"
        machine.findings.add("bad-descriptor", sentence, position)
        raise Stop
    return machine.tensor_maps[number]


def _corner(
    machine: Machine,
    lanes: Lanes,
    lane: int,
    placed: PlacedMap,
    coordinates: tuple[Any, ...],
    position: int,
) -> tuple[int, ...]:
    """A box's coordinates, innermost first; an H200 traps unless the first is whole 16 bytes."""
    if len(coordinates) != len(placed.dims):
        machine.findings.add(
            "bad-descriptor",
            f"{len(coordinates)} coordinates for the {len(placed.dims)} dims of {placed.name}",
            position,
        )
        raise Stop
    corner = tuple(int(full(lanes, one).view("i4")[lane]) for one in coordinates)
    if corner and corner[0] * placed.element % 16:
        machine.findings.add(
            "misaligned",
            f"{lanes.name(lane)} asks for a box of {placed.name} that starts "
            f"{corner[0] * placed.element} bytes into a row, not a multiple of 16",
            position,
        )
        raise Stop
    return corner


def _offset(machine: Machine, lanes: Lanes, lane: int, address: Any) -> tuple[int, int]:
    """(CTA in the wave, shared offset) of a possibly mapped address."""
    wide = int(
        mbarrier.plain_address(
            machine, lanes.pick(np.array([lane])), full(lanes, address)[lane : lane + 1]
        )[0]
    )
    own = int(lanes.cta[lane])
    rank = int(rank_in(wide))
    first = own // machine.geometry.cluster * machine.geometry.cluster
    return (first + rank if rank >= 0 else own), wide & MASK


def _check_target(
    machine: Machine, lanes: Lanes, lane: int, offset: int, size: int, align: int, position: int
) -> None:
    machine.alignment.need(offset, align, position)
    if offset % align:
        machine.findings.add(
            "misaligned",
            f"{lanes.name(lane)} copies a box at shared byte {offset - RESERVED}, "
            f"not a multiple of {align}",
            position,
        )
    if offset < machine.shared_first or offset + size > machine.shared_end:
        machine.findings.add(
            "out-of-bounds-shared",
            f"{lanes.name(lane)} copies {size} bytes at shared byte "
            f"{offset - machine.shared_first} of {machine.shared_end - machine.shared_first}",
            position,
        )
        raise Stop


def _fetch(machine: Machine, placed: PlacedMap, corner: tuple[int, ...]) -> Vector:
    """The (chunks, 16) bytes of a box of global memory."""
    at, inside = tensormap.elements(placed, corner)
    width = placed.element
    kind = f"u{width}"
    values = tensormap.loaded(placed, machine.memory.bytes.view(kind)[at // width])
    fill = NAN_FILL.get(np.dtype(placed.dtype).name, 0) if placed.nan_fill else 0
    return np.where(inside, values, np.array(fill, kind)).view("u1").reshape(-1, 16)


def load_tensor(machine: Machine, lanes: Lanes, *rest: Any) -> None:
    """TMA load; rest: target, map, barrier, CTA mask (or None), coordinates..., position."""
    target, maps, barrier, mask, *coordinates, position = rest
    addresses = full(lanes, maps)
    for lane in range(lanes.count):
        placed = _map(machine, lanes, lane, int(addresses[lane]), position)
        corner = _corner(machine, lanes, lane, placed, tuple(coordinates), position)
        if machine.grids is not None:
            at, inside = tensormap.elements(placed, corner)
            grids.check_box(
                machine, lanes, lane, at[inside], placed.element, position, writes=False
            )
        data = _fetch(machine, placed, corner)
        cta, offset = _offset(machine, lanes, lane, target)
        _check_target(machine, lanes, lane, offset, placed.box_bytes, ALIGNMENT, position)
        machine.alignment.need(offset, placed.swizzle * 8, position)
        chunks = tensormap.shared_chunks(placed, offset)
        _send(machine, lanes, lane, cta, chunks, data, barrier, mask, position)


def load_linear(machine: Machine, lanes: Lanes, *rest: Any) -> None:
    """``cp.async.bulk`` into shared memory.

    rest: target, source, size, barrier, mask, source space, position.
    """
    target, source, size, barrier, mask, space, position = rest
    sources, sizes = full(lanes, source), full(lanes, size)
    for lane in range(lanes.count):
        amount = int(sizes[lane])
        cta, offset = _offset(machine, lanes, lane, target)
        _check_target(machine, lanes, lane, offset, amount, 16, position)
        data = _linear_source(machine, lanes, lane, int(sources[lane]), amount, space, position)
        chunks = offset + 16 * np.arange(amount // 16)
        _send(machine, lanes, lane, cta, chunks, data, barrier, mask, position)


def _linear_source(
    machine: Machine, lanes: Lanes, lane: int, address: int, amount: int, space: str, position: int
) -> Vector:
    if space == "shared":
        begin = int(lanes.cta[lane]) * machine.shared_bytes + (address & MASK)
        at = begin + 16 * np.arange(amount // 16)
        if machine.shadow is not None:
            row = machine.shadow.row_of[lanes.index[lane : lane + 1]]
            machine.shadow.check_async(
                lanes.pick(np.full(len(at), lane)), at, position, np.repeat(row, len(at))
            )
        return machine.shared.reshape(-1, 16)[at // 16].copy()
    at = address - BASE + 16 * np.arange(amount // 16)
    wrong = (at < 0) | (at >= machine.memory.size) | (address % 16 != 0) | (amount % 16 != 0)
    wrong |= machine.memory.room.take(at, mode="clip") < 16
    if wrong.any():
        where = machine.memory.describe(int(at[wrong.argmax()]))
        machine.findings.add(
            "out-of-bounds-global",
            f"{lanes.name(lane)} copies {amount} bytes at {where}",
            position,
        )
        raise Stop
    grids.check_box(machine, lanes, lane, at, 16, position, writes=False)
    return machine.memory.bytes.reshape(-1, 16)[at // 16].copy()


def _send(
    machine: Machine,
    lanes: Lanes,
    lane: int,
    cta: int,
    chunks: Vector,
    data: Vector,
    barrier: Any,
    mask: Any,
    position: int,
) -> None:
    """Queue a load to one CTA, or to every CTA of a multicast mask."""
    home, offset = _offset(machine, lanes, lane, barrier)
    targets = [(cta, home)]
    if mask is not None:
        first = cta // machine.geometry.cluster * machine.geometry.cluster
        bits = int(full(lanes, mask)[lane])
        targets = [(first + r, first + r) for r in range(machine.geometry.cluster) if bits >> r & 1]
    one = lanes.pick(np.array([lane]))
    for to, owner in targets:
        at = to * machine.shared_bytes + chunks
        place = owner * machine.shared_bytes + offset
        if place not in machine.mbarriers.objects:
            machine.findings.add(
                "uninitialised-shared-read",
                f"{lanes.name(lane)} names the mbarrier at shared byte {offset - RESERVED}, "
                "never initialised",
                position,
            )
            raise Stop
        engine = 0
        shadow = machine.shadow
        if shadow is not None:
            row = shadow.row_of[one.index]
            engine = shadow.loader(to, place)
            shadow.check_initialised_barrier(one, place, row, position)
            many = lanes.pick(np.full(len(at), lane))
            shadow.write(
                many, at, 16, position, flight=True, rows=np.repeat(row, len(at)), actor=engine
            )
        queue(machine, Load(at, data, place, engine, position))


def queue(machine: Machine, load: Load) -> None:
    """A load is on its way; it may have landed already."""
    machine.bulk.loads.append(load)
    early = machine.completion == "early"
    if early or (machine.completion == "random" and machine.random.random() < 0.3):
        _land(machine, load)
        machine.bulk.loads.pop()


def _land(machine: Machine, load: Load) -> None:
    machine.shared.reshape(-1, 16)[load.chunks // 16] = load.data
    if machine.shadow is not None:
        shadow = machine.shadow
        shadow.tick(np.array([load.engine]))
        rows = np.full(len(load.chunks), load.engine)
        shadow.land(rows, load.chunks, 16, load.position)
    mbarrier.complete_bytes(
        machine, load.barrier, load.data.size, load.engine, load.position, load.released
    )


def land_one(machine: Machine) -> bool:
    """Land one queued load, picked at random; False when none is queued."""
    loads = machine.bulk.loads
    if not loads:
        return False
    _land(machine, loads.pop(machine.random.randrange(len(loads))))
    return True


# --- stores --------------------------------------------------------------------------------------
def store_tensor(machine: Machine, lanes: Lanes, *rest: Any) -> None:
    """TMA store or reduction; rest: source, map, operation, coordinates..., position."""
    source, maps, operation, *coordinates, position = rest
    addresses = full(lanes, maps)
    for lane in range(lanes.count):
        placed = _map(machine, lanes, lane, int(addresses[lane]), position)
        cta, offset = _offset(machine, lanes, lane, source)
        _check_target(machine, lanes, lane, offset, placed.box_bytes, ALIGNMENT, position)
        machine.alignment.need(offset, placed.swizzle * 8, position)
        chunks = cta * machine.shared_bytes + tensormap.shared_chunks(placed, offset)
        corner = _corner(machine, lanes, lane, placed, tuple(coordinates), position)
        if min(corner, default=0) < 0:  # an H200 stops there: "an illegal instruction"
            machine.findings.add(
                "out-of-bounds-global",
                f"{lanes.name(lane)} stores a box that begins at {list(corner)}, before "
                f"{placed.name}: loads may, stores are clipped at the far ends alone",
                position,
            )
            raise Stop
        at, inside = tensormap.elements(placed, corner)
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
        cta, offset = _offset(machine, lanes, lane, source)
        _check_target(machine, lanes, lane, offset, amount, 16, position)
        _linear_source(machine, lanes, lane, int(targets[lane]), amount, "global", position)
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
        shadow.start_reading(chunks)
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
            machine.shadow.finish_reading(store.chunks, store.engine, store.position)
            rows = machine.shadow.row_of[[store.thread]]
            machine.shadow.learn(rows, store.engine)
    machine.bulk.stores = left


def drain(machine: Machine) -> None:
    """Kernel end: what is still under way finishes; loads and reads nobody waited for are found."""
    while land_one(machine):
        pass
    mbarrier.check_awaited(machine)
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
