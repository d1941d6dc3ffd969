"""Registers that warpgroups give back and ask for: ``setmaxnreg``.

1. A block starts with as many for each thread as its launch bounds leave, and never has more.
2. What ``dec`` gives back, ``inc`` can take. On hardware it waits until there is enough; here its
   warpgroup goes on, and owes.
3. Who still owes when the wave is over would have waited for ever: a deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from polygen.hardware.device import common_facts
from polygen.machine.lanes import Lanes
from polygen.machine.module import Kernel

if TYPE_CHECKING:
    from polygen.machine.state import Machine

_FACTS = common_facts()
_GROUP = _FACTS["warpgroup_warps"] * _FACTS["warp_size"]


def at_launch(kernel: Kernel) -> int:
    """Registers of a thread at launch; 0: the launch bounds do not say."""
    if not kernel.threads_most:
        return 0
    each = _FACTS["registers_per_block"] // (kernel.threads_most * kernel.blocks_least)
    step = _FACTS["role_registers_step"]
    return min(each, _FACTS["role_registers_most"]) // step * step


@dataclass(slots=True)
class Registers:
    """The pools of a wave, by CTA; warpgroups by their number in the wave."""

    launched: int  # per thread
    free: dict[int, int] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)  # per thread
    owed: list[tuple[int, int, int]] = field(default_factory=list)  # warpgroup, count, position


def resize(machine: Machine, lanes: Lanes, count: int, grow: bool, position: int) -> None:
    """``setmaxnreg``: every warpgroup of the lanes is to have `count` registers per thread."""
    mine = machine.register_pools
    unit, sizes = machine.geometry.units(_GROUP)
    here = np.bincount(unit[lanes.index], minlength=len(sizes))
    for group in np.unique(unit[lanes.index]).tolist():
        if here[group] < sizes[group]:
            machine.findings.add(
                "divergent-warp-operation",
                f"{int(here[group])} of the {int(sizes[group])} threads of a warpgroup execute it",
                position,
                count=int(here[group]),
            )
        if not mine.launched:
            continue
        held = mine.held.get(group, mine.launched)
        if grow and count > held:
            mine.owed.append((group, count, position))
        elif not grow and count < held:
            cta = _cta(machine, group)
            mine.free[cta] = mine.free.get(cta, 0) + (held - count) * _GROUP
            mine.held[group] = count
    _settle(machine)


def _cta(machine: Machine, group: int) -> int:
    return group // -(-machine.geometry.padded // _GROUP)


def _settle(machine: Machine) -> None:
    """Give what is free to those who wait for it, the first first."""
    mine, waiting = machine.register_pools, []
    for group, count, position in mine.owed:
        cta = _cta(machine, group)
        needed = (count - mine.held.get(group, mine.launched)) * _GROUP
        if mine.free.get(cta, 0) >= needed:
            mine.free[cta] -= needed
            mine.held[group] = count
        else:
            waiting.append((group, count, position))
    mine.owed = waiting


def unfinished(machine: Machine) -> None:
    """Report warpgroups that wait for registers which nobody has given back."""
    unit, _ = machine.geometry.units(_GROUP)
    for group, count, position in machine.register_pools.owed:
        lane = Lanes(machine.geometry, np.flatnonzero(unit == group)[:1])
        free = machine.register_pools.free.get(_cta(machine, group), 0)
        machine.findings.add(
            "deadlock",
            f"the warpgroup of {lane.name(0)} waits for {count} registers per thread; "
            f"{free} are free in its block",
            position,
            count=_GROUP,
        )
