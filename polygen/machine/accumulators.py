"""Registers of ``wgmma``: who touches them while a product may use them, or without a fence.

1. From ``wgmma.mma_async`` until the ``wait_group`` that covers it, its accumulators belong to the
   matrix unit, and so do the registers that hold A, which may still be read.
2. Between any access of the threads and a product that names the same register there has to be a
   ``wgmma.fence``; products of the same shape may follow each other on one accumulator.
3. Compilers copy registers where they like: a ``mov`` renames, it is no access. What it copies
   from an accumulator is watched like it (`watched`).
4. Accesses between two wgmma instructions of a block are reported by one call before the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine.blocks import definitions, names_in, uses
from polygen.machine.lanes import Lanes
from polygen.machine.module import Instruction, Kernel, items

if TYPE_CHECKING:
    from polygen.machine.state import Machine
    from polygen.machine.writer import Writer

Unit = tuple[int, int]  # CTA, warpgroup


@dataclass(frozen=True, slots=True)
class Access:
    """One instruction touches one register."""

    register: str
    writes: bool
    position: int


@dataclass(frozen=True, slots=True)
class Operands:
    """The registers of one ``mma_async``.

    Attributes:
        sums: its accumulators.
        left: those that hold A; empty when A is in shared memory.
        shape: products of equal shape need no fence between them.
    """

    sums: frozenset[str]
    left: frozenset[str]
    shape: tuple[object, ...]


def watched(kernel: Kernel) -> frozenset[str]:
    """The registers of products, and those that such registers are copied to."""
    found: set[str] = set()
    copies: list[tuple[str, list[str]]] = []
    for one in kernel.instructions:
        if one.parts[:2] == ("wgmma", "mma_async"):
            found.update(items(one.operands[0]))
            if one.operands[1].startswith("{"):
                found.update(items(one.operands[1]))
        elif one.parts[0] == "mov" and one.operands[0] in kernel.registers:
            copies.append((one.operands[0], names_in(one.operands[1], kernel)))
    known = -1
    while found and known != len(found):
        known = len(found)
        found.update(target for target, sources in copies if found.intersection(sources))
    return frozenset(found)


def watch(w: Writer, one: Instruction, registers: frozenset[str]) -> None:
    """Emit what reports the accesses of an instruction to `registers`, in front of it."""
    if one.parts[0] == "wgmma":
        w.accesses = None
        return
    written = registers.intersection(definitions(one, w.kernel))
    if one.parts[0] == "mov" and one.operands[0] in w.kernel.registers:
        if written:
            source = one.operands[1]
            w.emit(
                f"if M.groups.under_way: accumulators.rename(M, L, {one.operands[0]!r}, "
                f"{source!r}, {w.position})"
            )
        return
    read = registers.intersection(uses(one, w.kernel))
    if not read and not written:
        return
    if w.accesses is None:
        w.accesses = {}
        w.emit(f"accumulators.touch(M, L, {w.constant(w.accesses)})")
    for name in sorted(read | written):
        key = name, name in written
        w.accesses.setdefault(key, Access(name, name in written, w.position))


def units_of(lanes: Lanes) -> set[Unit]:
    """The warpgroups that have some of the lanes."""
    geometry = lanes.geometry
    per_cta = -(-geometry.padded // 128)
    group, _ = geometry.units(128)
    return {divmod(one, per_cta) for one in np.unique(group[lanes.index]).tolist()}


def touch(machine: Machine, lanes: Lanes, accesses: dict[Any, Access]) -> None:
    """Threads access registers: products of their warpgroup must be over, and need a fence now."""
    groups, units = machine.groups, units_of(lanes)
    for unit in units:
        groups.touched.setdefault(unit, {})[id(accesses)] = accesses
    for flight in groups.flights_of(units):
        for one in accesses.values():
            if one.register in flight.sums or (one.writes and one.register in flight.left):
                verb = "writes" if one.writes else "reads"
                machine.findings.add(
                    "wgmma-order",
                    f"{lanes.name(0)} {verb} register {one.register} while wgmma may still use it",
                    one.position,
                    flight.position,
                )


def rename(machine: Machine, lanes: Lanes, target: str, source: str, position: int) -> None:
    """``mov`` to a watched register while products are under way."""
    units = units_of(lanes)
    mine = machine.groups.flights_of(units)
    for flight in mine:
        if source in flight.sums:
            flight.sums.add(target)
    if any(source in flight.sums for flight in mine):
        return
    for flight in mine:
        if target in flight.sums or target in flight.left:
            machine.findings.add(
                "wgmma-order",
                f"{lanes.name(0)} writes register {target} while wgmma may still use it",
                position,
                flight.position,
            )


def check(
    machine: Machine, lanes: Lanes, first: int, unit: Unit, operands: Operands, position: int
) -> None:
    """A product starts: its registers are fenced, and no other shape still adds to them.

    Args:
        machine: whose findings.
        lanes: those of the warpgroup, and others.
        first: place of the first of the warpgroup among them.
        unit: the warpgroup.
        operands: of the product.
        position: of the instruction.
    """
    for accesses in machine.groups.touched.get(unit, {}).values():
        for one in accesses.values():
            if one.register in operands.sums or one.register in operands.left:
                machine.findings.add(
                    "wgmma-order",
                    f"the warpgroup of {lanes.name(first)} starts wgmma on register "
                    f"{one.register}, accessed since the last wgmma.fence",
                    position,
                    one.position,
                )
    for flight in machine.groups.flights.get(unit, ()):
        shared = flight.sums & operands.left
        if flight.shape != operands.shape:
            shared |= flight.sums & operands.sums
        for name in sorted(shared):
            machine.findings.add(
                "wgmma-order",
                f"the warpgroup of {lanes.name(first)} starts wgmma on register {name} while one "
                "of another shape, or whose sums it reads as A, may still use it",
                position,
                flight.position,
            )
