"""Devices: limits and features of each target architecture, read from ``data/devices.toml``.

Code asks ``device.has("tma")``; it never compares architecture numbers.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from polygen.errors import HardwareDataError, UnknownTarget, echo
from polygen.hardware.data_file import read, take

FILE = "devices.toml"


@dataclass(frozen=True, slots=True)
class Device:
    """One target architecture. Sizes in bytes; ``sources`` says where each number comes from."""

    name: str  # "sm_90a"
    display: str
    examples: tuple[str, ...]  # marketing names
    features: tuple[str, ...]  # instruction groups: "cp_async", "ldmatrix", "tma", "wgmma" ...
    compile_target: str  # what the compiler's architecture option takes
    schedule_families: tuple[str, ...]  # folders of schedules/ that apply, best first
    shared_per_block_optin: int  # dynamic shared memory one block may ask for
    shared_per_multiprocessor: int
    shared_reserved_per_block: int  # taken by the system from each resident block
    shared_banks: int
    shared_bank_bytes: int
    registers_per_multiprocessor: int
    registers_per_block: int
    max_registers_per_thread: int
    register_allocation_unit: int  # registers are given to a warp in multiples of this
    max_threads_per_block: int
    warp_size: int
    warps_per_multiprocessor: int
    blocks_per_multiprocessor: int
    multiprocessors: int  # of the representative part
    wide_cluster_multiprocessors: int  # that clusters of more than two blocks can take
    asynchronous_copy_smallest: int  # bytes one copy in the background may move
    asynchronous_copy_largest: int  # this size alone can bypass the first-level cache
    cluster_blocks_most: int
    warpgroup_warps: int
    warpgroup_rows: int  # of one warpgroup instruction
    warpgroup_depth_bytes: int  # of one along k
    mbarrier_bytes: int
    role_registers_least: int  # that `setmaxnreg` gives a thread
    role_registers_most: int
    role_registers_step: int
    product_registers: int  # that the compiler wants beside the sums of a warpgroup instruction
    tensor_map_row_bytes: int
    tensor_map_axes_most: int
    tensor_map_box_most: int
    tensor_map_every_most: int
    tensor_map_step_most: int
    cache_line_bytes: int
    sector_bytes: int  # of a line, that memory moves at a time
    grid_x: int
    grid_y: int
    grid_z: int
    sources: tuple[tuple[str, str], ...]  # (fact, source)

    def has(self, feature: str) -> bool:
        """Whether the architecture has an instruction group.

        Args:
            feature: for example ``"tma"``.
        """
        return feature in self.features

    @property
    def group_threads(self) -> int:
        """Threads of a warpgroup."""
        return self.warpgroup_warps * self.warp_size

    def source(self, fact: str) -> str:
        """Where a number comes from."""
        return dict(self.sources)[fact]

    def __str__(self) -> str:
        return self.name


_HEAD = ("name", "display", "examples", "features", "compile_target", "schedule_families")
_FACTS = tuple(f.name for f in fields(Device) if f.name not in (*_HEAD, "sources"))
_MAY_BE_ZERO = ("shared_reserved_per_block",)
_ALIKE = 0.7  # of what is written otherwise: the share of a name that agrees


def devices() -> tuple[Device, ...]:
    """All targets, in the order of the data file."""
    return tuple(_load(name) for name in _names())


def device(name: str | Device) -> Device:
    """The target a user means.

    Args:
        name: ``sm_90a``; also ``90a``, ``sm90a``, ``compute_90a`` and ``9.0``.

    Raises:
        UnknownTarget: the architecture is not in the data; the message lists all and the nearest.
    """
    if isinstance(name, Device):
        return name
    normal = _normalise(name)
    if normal in _names():
        return _load(normal)
    near = _nearest(normal)
    hint = f"Nearest: {near}. " if near else ""
    raise UnknownTarget(
        f"unknown architecture {echo(name)}", nearest=f"{hint}Known: {', '.join(_names())}"
    )


@functools.cache
def common_facts() -> Mapping[str, int]:
    """The numbers that all targets share (warp size, banks, grid limits)."""
    found = _facts(read(FILE)["common"], "common")
    return MappingProxyType({fact: number for fact, (number, _) in found.items()})


def _normalise(name: str) -> str:
    text = name.strip().lower()
    found = re.fullmatch(r"(?:sm|compute)?[_-]?(\d+)(?:\.(\d))?([a-z]?)", text)
    return f"sm_{found[1]}{found[2] or ''}{found[3]}" if found else text


def _nearest(name: str) -> str:
    """What is written much like `name`, where that is no target's form; of one that is, the newest
    target that is not newer, else the oldest. "" without either.
    """
    if not re.fullmatch(r"sm_\d\d+[a-z]?", name):
        alike = {one: difflib.SequenceMatcher(None, name, one).ratio() for one in _names()}
        best = max(alike, key=alike.__getitem__)
        if alike[best] >= _ALIKE:
            return best
    digits = re.search(r"\d+", name)
    if not digits:
        return ""
    numbered = sorted((int(re.sub(r"\D", "", known)), known) for known in _names())
    older = [known for number, known in numbered if number <= int(digits[0])]
    return older[-1] if older else numbered[0][1]


def _names() -> tuple[str, ...]:
    return tuple(name for name in read(FILE) if name != "common")


@functools.cache
def _load(name: str) -> Device:
    data = read(FILE)
    return build(name, data[name], data["common"])


def build(name: str, table: dict[str, Any], common: dict[str, Any]) -> Device:
    """A device from its data table.

    Args:
        name: the architecture.
        table: its table.
        common: the table of facts shared by all; the device's own facts win.

    Raises:
        HardwareDataError: a fact is missing, unknown, or not a positive integer; what is reserved
            may be nothing.
    """
    where = f"hardware/data/{FILE}, {name}"
    found = _facts(common, where) | _facts(take(table, "facts", where), where)
    unknown = sorted(set(found) - set(_FACTS))
    missing = sorted(set(_FACTS) - set(found))
    if unknown or missing:
        what = f"unknown facts {unknown}" if unknown else f"missing facts {missing}"
        raise HardwareDataError(what, where=where)
    numbers: dict[str, Any] = {fact: number for fact, (number, _) in found.items()}
    return Device(
        name=name,
        display=take(table, "display", where),
        examples=tuple(take(table, "examples", where)),
        features=tuple(take(table, "features", where)),
        compile_target=table.get("compile_target", name),
        schedule_families=tuple(take(table, "families", where)),
        sources=tuple((fact, source) for fact, (_, source) in sorted(found.items())),
        **numbers,
    )


def _facts(by_source: dict[str, Any], where: str) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for source, numbers in by_source.items():
        for fact, number in numbers.items():
            if type(number) is not int or number < (fact not in _MAY_BE_ZERO):
                raise HardwareDataError(
                    f"{fact} = {number!r} is not a positive integer", where=where
                )
            found[fact] = (number, source)
    return found
