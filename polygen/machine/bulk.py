"""Bulk copies into shared memory: TMA loads of tensor boxes, and linear ``cp.async.bulk``.

1. A load is queued at issue and its target bytes are *in flight* until it lands; landing writes the
   data, tells the mbarrier its bytes, and publishes the copy engine's clock.
2. ``early`` lands at issue, ``late`` only when nobody else can run and then in random order,
   ``random`` at some scheduling step in between.
3. Out-of-bounds parts of a box read as fill; a load always delivers the bytes of the whole box. A
   map of tf32 rounds what it loads.

Stores are in `bulk_stores`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine import grids, map_changes, mbarrier, tensormap
from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.memory import BASE, SLOT, WINDOW_BYTES, WINDOW_PARAM, rank_in
from polygen.machine.report import Stop
from polygen.machine.special import RESERVED
from polygen.machine.tensormap import PlacedMap

if TYPE_CHECKING:
    from polygen.machine.state import Machine

ALIGNMENT = 128  # of a tensor box in shared memory
AREA = 128  # bytes that the shadow takes together where a copy covers all of them
# What a box holds outside its tensor when the map asks for NaN, as bits: read off an H200.
NAN_FILL = {"bfloat16": 0x7FF7, "float16": 0x7FF7, "float32": 0x7FF77FF7}
MASK = (1 << SLOT) - 1


@dataclass(slots=True)
class Load:
    """One load on its way to one CTA."""

    chunks: Vector  # absolute shared bytes of the chunks, of 16 bytes or, of stores, fewer
    data: Vector  # what lands there, (chunks, bytes of each)
    areas: Vector  # the same bytes for the shadow, in areas of `width` each
    width: int
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


def map_at(machine: Machine, lanes: Lanes, lane: int, address: int, position: int) -> PlacedMap:
    """The map at a generic address: a parameter, or in global memory."""
    found: PlacedMap | str = "that is not a TensorMap argument"
    for base, data, room in (
        (WINDOW_PARAM, machine.parameter_bytes, WINDOW_BYTES),
        (BASE, machine.memory.bytes, machine.memory.size),
    ):
        at = address - base
        if 0 <= at < room and at + tensormap.IMAGE_BYTES <= len(data):
            image = data[at : at + tensormap.IMAGE_BYTES].tobytes()
            found = map_changes.meaning(machine, image)
            if at % tensormap.MAP_ALIGNMENT and not isinstance(found, str):
                found = f"at byte {at} of {'its parameters' if base != BASE else 'global memory'}"
            if base == BASE and not isinstance(found, str):
                map_changes.use(machine, lanes, lane, at, image, position)
    if isinstance(found, str):
        sentence = f"{lanes.name(lane)} uses a tensor map {found}"
        machine.findings.add("bad-descriptor", sentence, position)
        raise Stop
    return found


def corner_of(
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


def shared_place(machine: Machine, lanes: Lanes, lane: int, address: Any) -> tuple[int, int]:
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


def check_target(
    machine: Machine, lanes: Lanes, lane: int, offset: int, size: int, align: int, position: int
) -> None:
    """Report a place of a copy in shared memory that is not aligned; stop outside of it."""
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
    fill = NAN_FILL.get(np.dtype(placed.dtype).name, 0) if placed.nan_fill else 0
    return tensormap.box(placed, corner, machine.memory.bytes, fill).view("u1").reshape(-1, 16)


def load_tensor(machine: Machine, lanes: Lanes, *rest: Any) -> None:
    """TMA load; rest: target, map, barrier, CTA mask (or None), coordinates..., position."""
    target, maps, barrier, mask, *coordinates, position = rest
    addresses = full(lanes, maps)
    for lane in range(lanes.count):
        placed = map_at(machine, lanes, lane, int(addresses[lane]), position)
        corner = corner_of(machine, lanes, lane, placed, tuple(coordinates), position)
        if placed.changed or machine.grids is not None or machine.footprint is not None:
            at, inside = tensormap.elements(placed, corner)
            if placed.changed:
                map_changes.check_box(machine, lanes, lane, placed, at[inside], position)
            grids.check_box(
                machine, lanes, lane, at[inside], placed.element, position, writes=False
            )
        data = _fetch(machine, placed, corner)
        cta, offset = shared_place(machine, lanes, lane, target)
        check_target(machine, lanes, lane, offset, placed.box_bytes, ALIGNMENT, position)
        machine.alignment.need(offset, placed.swizzle * 8, position)
        chunks = tensormap.shared_chunks(placed, offset)
        _send(machine, lanes, lane, (cta, offset), chunks, data, barrier, mask, position)


def load_linear(machine: Machine, lanes: Lanes, *rest: Any) -> None:
    """``cp.async.bulk`` into shared memory.

    rest: target, source, size, barrier, mask, source space, position.
    """
    target, source, size, barrier, mask, space, position = rest
    sources, sizes = full(lanes, source), full(lanes, size)
    for lane in range(lanes.count):
        amount = int(sizes[lane])
        cta, offset = shared_place(machine, lanes, lane, target)
        check_target(machine, lanes, lane, offset, amount, 16, position)
        data = linear_source(machine, lanes, lane, int(sources[lane]), amount, space, position)
        chunks = offset + 16 * np.arange(amount // 16)
        _send(machine, lanes, lane, (cta, offset), chunks, data, barrier, mask, position)


def linear_source(
    machine: Machine, lanes: Lanes, lane: int, address: int, amount: int, space: str, position: int
) -> Vector:
    """The (chunks, 16) bytes at an address; stops where they leave their buffer."""
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
    target: tuple[int, int],
    chunks: Vector,
    data: Vector,
    barrier: Any,
    mask: Any,
    position: int,
) -> None:
    """Queue a load to one CTA, or to every CTA of a multicast mask.

    `target` is the CTA and the shared byte where the bytes begin; swizzles only exchange them.
    """
    cta, begin = target
    width = AREA if (begin | data.size) % AREA == 0 else 16
    areas = begin + width * np.arange(data.size // width)
    home, offset = shared_place(machine, lanes, lane, barrier)
    targets = [(cta, home)]
    if mask is not None:
        rank_0 = cta // machine.geometry.cluster * machine.geometry.cluster
        bits = int(full(lanes, mask)[lane])
        ranks = range(rank_0, rank_0 + machine.geometry.cluster)
        targets = [(rank, rank) for rank in ranks if bits >> rank - rank_0 & 1]
    one = lanes.pick(np.array([lane]))
    for to, owner in targets:
        first = to * machine.shared_bytes
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
            many = lanes.pick(np.full(len(areas), lane))
            shadow.write(many, first + areas, width, position, flight=True, rows=row, actor=engine)
        load = Load(first + chunks, data, first + areas, width, place, engine, position)
        queue(machine, load)


def queue(machine: Machine, load: Load) -> None:
    """A load is on its way; it may have landed already."""
    machine.bulk.loads.append(load)
    early = machine.completion == "early"
    if early or (machine.completion == "random" and machine.random.random() < 0.3):
        _land(machine, load)
        machine.bulk.loads.pop()


def _land(machine: Machine, load: Load) -> None:
    size = load.data.shape[1]
    machine.shared.reshape(-1, size)[load.chunks // size] = load.data
    if machine.shadow is not None:
        shadow = machine.shadow
        shadow.tick(np.array([load.engine]))
        shadow.land(np.array([load.engine]), load.areas, load.width, load.position)
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


def land_next(machine: Machine) -> bool:
    """Land a queued load in every cluster that has some; False when none is queued.

    Which, is random, and the same in clusters that have as many: blocks that do the same go on
    together, and share the work of the machine.
    """
    if not machine.bulk.loads:
        return False
    queued: dict[int, list[Load]] = {}
    for load in machine.bulk.loads:
        queued.setdefault(machine.cluster_of(load.barrier), []).append(load)
    chance = machine.random.random()
    chosen = [loads[int(chance * len(loads))] for loads in queued.values()]
    left = {id(load) for load in chosen}
    machine.bulk.loads = [load for load in machine.bulk.loads if id(load) not in left]
    for load in chosen:
        _land(machine, load)
    return True
