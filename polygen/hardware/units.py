"""Units of execution, and the fences between them, read from ``data/units.toml`` and
``syncs.toml``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from polygen.errors import HardwareDataError
from polygen.hardware.data_file import read, take

UNITS, SYNCS = "units.toml", "syncs.toml"


@dataclass(frozen=True, slots=True)
class Unit:
    """What executes a tile statement, and when its effects are complete."""

    name: str  # "cp.async"
    completion: str  # "now", "groups" or "bytes"
    proxy: str  # "generic" or "async"
    in_order: bool = False  # one agent's instances see each other's results in issue order
    collective: bool = False  # one thread's wait for completion speaks for its whole agent
    takes_registers: bool = False  # registers that it reads are free once the thread goes on

    def __str__(self) -> str:
        return self.name


@functools.cache
def unit(name: str) -> Unit:
    """The unit of that name.

    Raises:
        HardwareDataError: the data has no such unit, or the entry is incomplete.
    """
    table = take(read(UNITS), name, f"hardware/data/{UNITS}")
    where = f"hardware/data/{UNITS}, {name}"
    take(table, "source", where)
    completion, proxy = take(table, "completion", where), take(table, "proxy", where)
    if completion not in ("now", "groups", "bytes") or proxy not in ("generic", "async"):
        raise HardwareDataError(f"completion {completion!r}, proxy {proxy!r}", where=where)
    claims = ("in_order", "collective", "takes_registers")
    return Unit(name, completion, proxy, *(table.get(claim, False) for claim in claims))


@dataclass(frozen=True, slots=True)
class FenceRule:
    """Between which accesses a fence has to stand."""

    name: str  # "fence.proxy.async"
    memory: str  # "shared" or "register"
    source_does: str  # "write" or "any"
    by: str  # whose threads execute it: "source" or "target"
    source_proxy: str = ""
    target_proxy: str = ""
    target_unit: str = ""

    def applies(self, memory: str, source: Unit, target: Unit, *, writes: bool) -> bool:
        """Whether a dependence needs it.

        Args:
            memory: what the dependence goes through.
            source: the unit of its source.
            target: the unit of its target.
            writes: whether the source writes.
        """
        return (
            memory == self.memory
            and (writes or self.source_does == "any")
            and self.source_proxy in ("", source.proxy)
            and self.target_proxy in ("", target.proxy)
            and self.target_unit in ("", target.name)
            and source.name != self.target_unit
        )


@functools.cache
def fence_rules() -> tuple[FenceRule, ...]:
    """All rules of the data.

    Raises:
        HardwareDataError: an entry is incomplete.
    """
    where = f"hardware/data/{SYNCS}"
    found = []
    for table in take(read(SYNCS), "fence", where):
        given = {key: value for key, value in table.items() if key != "source"}
        take(table, "source", where)
        try:
            found.append(FenceRule(**given))
        except TypeError as error:
            raise HardwareDataError(f"a fence rule: {error}", where=where) from None
    return tuple(found)


@functools.cache
def grid_wait() -> str:
    """What a dependent launch waits with for the grids before it.

    Raises:
        HardwareDataError: the entry is incomplete.
    """
    where = f"hardware/data/{SYNCS}, grid"
    table = take(read(SYNCS), "grid", f"hardware/data/{SYNCS}")
    take(table, "source", where)
    return str(take(table, "wait", where))


def fence_between(memory: str, source: Unit, target: Unit, *, writes: bool) -> FenceRule | None:
    """The fence that a dependence needs besides order; None if it needs none."""
    rules = (r for r in fence_rules() if r.applies(memory, source, target, writes=writes))
    return next(rules, None)
