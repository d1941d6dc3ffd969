"""wgmma: warpgroup matrix products with operands in shared memory.

1. A 64-bit descriptor gives start address, two byte offsets (LBO, SBO) and a swizzle span S:

   - K-major, swizzled: row r, byte j of K at ``r/8 SBO + r%8 S + j``;
   - K-major, plain: ``r/8 SBO + r%8 16 + j/16 LBO + j%16``;
   - MN-major, swizzled (S bytes of MN per k): ``m/E LBO + (m%E) 2 + k/8 SBO + k%8 S``, E = S / 2;
   - MN-major, plain: ``m/8 SBO + (m%8) 2 + k/8 LBO + k%8 16``;

   and the swizzle XORs chunk bits of the *absolute* address with its row bits, as the copy engine
   does: a matrix may begin in the middle of a pattern. The base offset is for patterns that
   themselves begin late: so many rows of 128 bytes are taken off the row bits.
2. Thread t of the warpgroup holds D rows ``16 (t/32) + t%32/4 + 8 (r/2%2)`` and columns
   ``8 (r/4) + 2 (t%4) + r%2`` for its accumulator r; A in registers follows mma.sync, 16 rows per
   warp.
3. The product is computed at issue; until the ``wait_group`` that covers it the shared bytes count
   as being read, by an actor of its own per warpgroup, and the registers as being in use
   (`accumulators`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine import accumulators
from polygen.machine.accumulators import Access, Operands
from polygen.machine.arithmetic import one_nan
from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.mma import BITS, operand_table, product_of, widen, words_of
from polygen.machine.report import Stop
from polygen.machine.special import RESERVED
from polygen.machine.tensormap import swizzled

if TYPE_CHECKING:
    from polygen.machine.state import Machine

SPANS = {0: 0, 1: 128, 2: 64, 3: 32}
ROWS = 64


@dataclass(slots=True)
class Flight:
    """One executed wgmma that is not known to be over."""

    unit: tuple[int, int]  # CTA, warpgroup
    group: int
    chunks: Vector  # of shared memory that it reads: numbers of 16 bytes
    position: int
    sums: set[str]  # registers that hold its accumulators, and copies of them
    left: frozenset[str]  # registers that hold A
    shape: tuple[object, ...]


class Groups:
    """wgmma bookkeeping of a wave, by (CTA, warpgroup)."""

    def __init__(self) -> None:
        self.flights: dict[tuple[int, int], list[Flight]] = {}
        self.committed: dict[tuple[int, int], int] = {}
        self.fenced: set[tuple[int, int]] = set()
        # accesses to registers of products since the last fence, by the identity of their tables
        self.touched: dict[tuple[int, int], dict[int, dict[Any, Access]]] = {}

    @property
    def under_way(self) -> bool:
        """Whether any product is not known to be over."""
        return any(self.flights.values())

    def flights_of(self, units: Iterable[tuple[int, int]]) -> list[Flight]:
        """The products of some warpgroups."""
        return [flight for unit in units for flight in self.flights.get(unit, ())]


def units(machine: Machine, lanes: Lanes, position: int) -> list[tuple[int, int]]:
    """The (CTA, warpgroup) of every 128 lanes; stops when a warpgroup is not complete."""
    index, geometry = lanes.index, machine.geometry
    if lanes.count % 128 == 0:
        first = index[::128]
        thread = geometry.thread[first]
        if (thread % 128 == 0).all() and (index[127::128] - first == 127).all():
            return list(zip(geometry.cta[first].tolist(), (thread // 128).tolist(), strict=True))
    machine.findings.add(
        "divergent-warp-operation",
        f"{lanes.name(0)} executes it without all 128 threads of its warpgroup",
        position,
    )
    raise Stop


@cache
def _pattern(rows: int, k_bytes: int, span: int, lbo: int, sbo: int, transposed: bool) -> Vector:
    """Byte offsets of an operand's 16-byte chunks: (rows, k chunks); MN-major (row chunks, k)."""
    if not transposed:
        r, j = np.arange(rows)[:, None], 16 * np.arange(k_bytes // 16)[None, :]
        if span:
            return r // 8 * sbo + r % 8 * span + j
        return r // 8 * sbo + r % 8 * 16 + j // 16 * lbo
    m, k = 8 * np.arange(rows // 8)[:, None], np.arange(k_bytes // 2)[None, :]
    if span:
        per = span // 2
        return m // per * lbo + m % per * 2 + k // 8 * sbo + k % 8 * span
    return m // 8 * sbo + k // 8 * lbo + k % 8 * 16


@lru_cache(4096)
def _addresses(
    start: int, rows: int, span: int, lbo: int, sbo: int, base: int, transposed: bool
) -> tuple[Vector, int, int]:
    """Shared bytes of an operand's chunks in its CTA, the first and the last of them."""
    at = start + _pattern(rows, 32, span, lbo, sbo, transposed)
    if span:
        late = base << 7
        at = swizzled(at - late, span) + late
    return at, int(at.min()), int(at.max())


def _described(
    machine: Machine,
    lanes: Lanes,
    number: int,
    word: int,
    rows: int,
    transposed: bool,
    position: int,
) -> Vector:
    """Shared bytes, in their CTA, of the chunks that warpgroup `number` of `lanes` describes."""
    start, span = (word & 0x3FFF) << 4, SPANS[word >> 62]
    lbo, sbo, base = (word >> 16 & 0x3FFF) << 4, (word >> 32 & 0x3FFF) << 4, word >> 49 & 7
    if span and base and start % (span * 8) == 0:
        machine.findings.add(
            "bad-descriptor",
            f"start address {start} is a multiple of {span * 8}, so the matrix begins with a "
            f"pattern, and the base offset is {base}",
            position,
        )
    at, first, last = _addresses(start, rows, span, lbo, sbo, base, transposed)
    if first < machine.shared_first or last + 16 > machine.shared_end:
        machine.findings.add(
            "out-of-bounds-shared",
            f"the descriptor of {lanes.name(128 * number)} reaches shared byte {last - RESERVED}",
            position,
        )
        raise Stop
    return at


def _operand(
    machine: Machine,
    lanes: Lanes,
    groups: list[tuple[int, int]],
    descriptors: Vector,
    rows: int,
    kind: str,
    transposed: bool,
    position: int,
) -> tuple[Vector, Vector]:
    """(warpgroups, rows, k) float32 from shared memory, and the absolute chunks read, by group."""
    words = descriptors.reshape(-1, 128)
    for number in np.flatnonzero((words != words[:, :1]).any(1)).tolist():
        machine.findings.add(
            "bad-descriptor",
            f"the threads around {lanes.name(128 * number)} give different descriptors",
            position,
        )
    chunks: dict[int, Vector] = {}
    for number, word in enumerate(words[:, 0].tolist()):
        if word not in chunks:
            chunks[word] = _described(machine, lanes, number, word, rows, transposed, position)
    own = np.array([cta for cta, _ in groups]) * machine.shared_bytes
    numbers = (np.stack([chunks[word] for word in words[:, 0].tolist()]) + own[:, None, None]) >> 4
    read = numbers.reshape(len(groups), -1)
    data = machine.shared.view("c16").take(numbers)[..., None].view("u4")
    if transposed:  # (groups, row chunks, k, 8 rows) -> (groups, rows, k)
        elements = widen(data.reshape(*data.shape[:-2], -1), kind)
        elements = elements.reshape(len(groups), rows // 8, 16, 8).transpose(0, 1, 3, 2)
        return elements.reshape(len(groups), rows, 16), read
    return widen(data.reshape(len(groups), rows, -1), kind), read


def register_operand(machine: Machine, lanes: Lanes, *rest: Any) -> Vector:
    """A from registers: (warpgroups, 64, k); rest: four registers, kind, position."""
    *registers, kind, position = rest
    groups = units(machine, lanes, position)
    elements = widen(words_of(lanes, registers), kind)
    k = 256 // BITS[kind]
    table = operand_table("a", 16, k, BITS[kind])
    return elements.take(table, axis=1).reshape(len(groups), ROWS, k)


def pack(machine: Machine, lanes: Lanes, *registers: Any) -> Vector:
    """Accumulator registers -> (warpgroups, 64, n): f32, s32, or pairs of f16 in u32."""
    rows = np.stack([full(lanes, register) for register in registers])
    if rows.dtype.kind == "u":
        rows = rows.view("f2").reshape(len(registers), -1, 2).transpose(0, 2, 1)
        rows = rows.reshape(2 * len(registers), -1).astype("f4")
    n = 2 * len(rows)
    # registers (column block, half, pair) × threads (group, warp, row, column pair)
    split = rows.reshape(n // 8, 2, 2, -1, 4, 8, 4)
    matrix = split.transpose(3, 4, 1, 5, 0, 6, 2)
    return matrix.reshape(-1, ROWS, n)


def unpack(matrix: Vector) -> Vector:
    """(warpgroups, 64, n) -> (n / 2, lanes); floats with their one NaN."""
    groups, _, n = matrix.shape
    split = one_nan(matrix).reshape(groups, 4, 2, 8, n // 8, 4, 2).transpose(4, 2, 6, 0, 1, 3, 5)
    return np.ascontiguousarray(split).reshape(n // 2, groups * 128)


def unpack_pairs(matrix: Vector) -> Vector:
    """(warpgroups, 64, n) -> (n / 4, lanes) of packed f16 pairs."""
    parts = unpack(matrix).astype("f2").view("u2").astype("u4")
    return parts[0::2] | (parts[1::2] << np.uint32(16))


def multiply(machine: Machine, lanes: Lanes, *rest: Any) -> Vector:
    """``wgmma.mma_async``.

    rest: D before (matrix or None), A (descriptors or matrix), B descriptors, scale-d, its
    registers (`accumulators.Operands`), whether A is in registers, n, kinds of A, B and D, signs of
    A and B, transposes, position.
    """
    (old, a, b, scale, registers, in_registers, n, a_kind, b_kind, d_kind, a_sign, b_sign,
     a_trans, b_trans, position) = rest  # fmt: skip
    groups = units(machine, lanes, position)
    for number, unit in enumerate(groups):
        if unit not in machine.groups.fenced:
            machine.findings.add(
                "wgmma-order",
                f"the warpgroup of {lanes.name(128 * number)} starts wgmma without wgmma.fence",
                position,
            )
        accumulators.check(machine, lanes, 128 * number, unit, registers, position)
    reads = []
    if not in_registers:
        a, chunks = _operand(
            machine, lanes, groups, full(lanes, a), ROWS, a_kind, a_trans, position
        )
        reads.append(chunks)
    second, chunks = _operand(machine, lanes, groups, full(lanes, b), n, b_kind, b_trans, position)
    reads.append(chunks)
    _track(machine, lanes, groups, np.concatenate(reads, 1), registers, position)
    product = product_of(a, second.transpose(0, 2, 1))
    if a_sign * b_sign < 0:
        product = -product
    if d_kind == "s32":
        product = product.astype("i4")
    if old is not None:
        keep = full(lanes, scale)[::128].astype(bool)
        if not keep.all():
            old = np.where(keep[:, None, None], old, old.dtype.type(0))
        product = old + product
    return product.astype("f2").astype("f4") if d_kind == "f16" else product


def _track(
    machine: Machine,
    lanes: Lanes,
    groups: list[tuple[int, int]],
    reads: Vector,
    registers: Operands,
    position: int,
) -> None:
    """Check the reads and keep the products in flight; `reads`: chunks by group."""
    shadow, known = machine.shadow, machine.groups
    for mine, unit in zip(reads, groups, strict=True):
        flight = Flight(
            unit,
            known.committed.get(unit, 0),
            mine,
            position,
            set(registers.sums),
            registers.left,
            registers.shape,
        )
        known.flights.setdefault(unit, []).append(flight)
    if shadow is not None:
        clocks = shadow.row_of[lanes.index[::32]].reshape(-1, 4)
        shadow.check_groups(lanes, reads, position, clocks)
        shadow.start_reading(reads, len(reads))


def fence(machine: Machine, lanes: Lanes, position: int) -> None:
    """``wgmma.fence``."""
    for unit in units(machine, lanes, position):
        machine.groups.fenced.add(unit)
        machine.groups.touched.pop(unit, None)


def commit(machine: Machine, lanes: Lanes, position: int) -> None:
    """``wgmma.commit_group``."""
    for unit in units(machine, lanes, position):
        machine.groups.committed[unit] = machine.groups.committed.get(unit, 0) + 1


def wait(machine: Machine, lanes: Lanes, pending: int, position: int) -> None:
    """``wgmma.wait_group``."""
    here, known, shadow = units(machine, lanes, position), machine.groups, machine.shadow
    over: list[Flight] = []
    for unit in here:
        limit, mine = known.committed.get(unit, 0) - pending, known.flights.get(unit, [])
        over += [flight for flight in mine if flight.group < limit]
        known.flights[unit] = [flight for flight in mine if flight.group >= limit]
    if shadow is not None:
        shadow.finish_reading(
            [(one.chunks, shadow.matrix_unit(*one.unit), one.position) for one in over]
        )
        for number, unit in enumerate(here):
            rows = shadow.row_of[lanes.index[128 * number : 128 * number + 128 : 32]]
            shadow.learn(rows, shadow.matrix_unit(*unit))


def unfinished(machine: Machine) -> None:
    """Kernel end: a wgmma nobody waited for leaves its registers undefined."""
    for flight in machine.groups.flights_of(machine.groups.flights):
        cta, group = flight.unit
        first = cta * machine.geometry.padded + 128 * group
        lanes = Lanes(machine.geometry, np.array([first]))
        machine.findings.add(
            "wgmma-order",
            f"the warpgroup of {lanes.name(0)} ends without waiting for its wgmma",
            flight.position,
        )
