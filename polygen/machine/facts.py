"""What a run needs to know about a kernel's text; computed once per kernel, not once per run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from polygen.machine.module import DTYPES, Kernel, type_bytes

_NAMES = re.compile(r"[%\w$]+")


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of a kernel's instructions.

    Attributes:
        granule: bytes of the smallest access to memory that may be shared memory.
        store_granule: bytes of the smallest plain store.
        orders_global: an instruction may order global memory between blocks.
        atomic: positions of atomic instructions, and of loads and stores with an order or
            ``relaxed``, which may meet them anywhere. What is only ``volatile`` may not meet in
            shared memory, where it stands for a barrier of the warp that is missing, but for
            kernels with fences of memory: these use it for flags.
        strong: positions of those, and of other loads and stores that may meet (`order`).
        acquires: positions of strong reads that take over at once what they find.
        releases: positions of strong writes that leave what their thread knows.
        narrow: positions of those of the scope of a block.
        mapped: addresses of other blocks' shared memory are made.
        proxy_fences: there are fences for the async proxy.
        mentioned: every name in an operand: registers, variables, labels.
        constant: positions of loads that take what they read for constant (``.nc``).
    """

    granule: int
    store_granule: int
    orders_global: bool
    atomic: frozenset[int]
    mapped: bool
    strong: frozenset[int] = frozenset()
    acquires: frozenset[int] = frozenset()
    releases: frozenset[int] = frozenset()
    narrow: frozenset[int] = frozenset()
    proxy_fences: bool = False
    mentioned: frozenset[str] = frozenset()
    constant: frozenset[int] = frozenset()


def facts(kernel: Kernel) -> Facts:
    """Look at every instruction once."""
    code = kernel.instructions
    names = {"relaxed", "acquire", "release", "acq_rel", "mmio"}
    fenced = any(one.parts[0] in ("membar", "fence") and _is_of_memory(one.parts) for one in code)
    stores = (_element_bytes(one.parts) for one in code if one.parts[0] in ("st", "sust"))
    return Facts(
        _granule(kernel),
        min(stores, default=8),
        any(_orders_global(one.parts) for one in code),
        _having(kernel, names | {"volatile"} if fenced else names, True),
        any(one.parts[0] == "mapa" for one in code),
        _having(kernel, names | {"volatile"}, True),
        _having(kernel, {"acquire", "acq_rel"}),
        _having(kernel, {"release", "acq_rel"}),
        _having(kernel, {"cta"}),
        any(one.parts[0] == "fence" and "proxy" in one.parts for one in code),
        frozenset(
            name
            for operand in {operand for one in code for operand in one.operands}
            for name in _NAMES.findall(operand)
        ),
        _having(kernel, {"nc"}),
    )


def _having(kernel: Kernel, words: set[str], atomics: bool = False) -> frozenset[int]:
    """Positions of accesses with one of some words in their opcodes."""
    return frozenset(
        at
        for at, one in enumerate(kernel.instructions)
        if (atomics and one.parts[0] in ("atom", "red"))
        or (one.parts[0] in ("ld", "st", "atom", "red") and words.intersection(one.parts))
    )


def _is_of_memory(parts: tuple[str, ...]) -> bool:
    """Whether a fence orders plain accesses, and not those of a proxy or an mbarrier's begin."""
    return parts[1] not in ("proxy", "mbarrier_init")


def _granule(kernel: Kernel) -> int:
    smallest = 16
    for one in kernel.instructions:
        if one.parts[0] in ("ld", "st", "atom", "red"):
            spaces = {part.split("::")[0] for part in one.parts}
            if not spaces & {"global", "local", "param", "const"} and one.parts[1] != "async":
                smallest = min(smallest, _element_bytes(one.parts))
        elif one.parts[0] == "wmma":
            smallest = min(smallest, _element_bytes(one.parts))
        elif one.parts[0] == "mbarrier":
            smallest = min(smallest, 8)
        elif one.parts[:2] == ("cp", "async") and len(one.parts) > 2 and one.parts[2] == "ca":
            smallest = min(smallest, int(one.operands[2], 0))
    return smallest


def _element_bytes(parts: tuple[str, ...]) -> int:
    """Bytes of the element type in an opcode, which is its last part but for some vectors."""
    if parts[-1] == "b128":  # of atomics, which go by pairs of registers: see `wide`
        return 16
    return type_bytes(next((part for part in reversed(parts) if part in DTYPES), "b8")) or 1


def _orders_global(parts: tuple[str, ...]) -> bool:
    if parts[0] in ("atom", "red"):
        return "shared" not in parts and "shared::cta" not in parts
    if parts[0] in ("membar", "fence"):
        return bool({"gl", "gpu", "sys"} & set(parts))
    spaces = {part.split("::")[0] for part in parts}
    return bool({"acquire", "release", "acq_rel"} & set(parts)) and "shared" not in spaces
