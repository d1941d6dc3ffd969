"""What the texts of leaves have in common: types, sizes, places in shared memory, cursors."""

from __future__ import annotations

from polygen.emit.names import c_name
from polygen.frontend.dtypes import DType
from polygen.lower.plan import Buffer, KernelPlan
from polygen.lower.work import Read, Write

_C_TYPES = {"f16": "unsigned short", "bf16": "unsigned short", "f32": "float", "tf32": "float"}
_C_BYTES = {"e4m3": "unsigned char", "e5m2": "unsigned char", "s8": "signed char"}


def c_type(dtype: DType) -> str:
    """The C type that stores an element."""
    return _C_TYPES.get(dtype.name) or _C_BYTES[dtype.name]


def extent_names(plan: KernelPlan) -> dict[str, str]:
    """The size along each role, as C."""
    return {role: c_name(str(extent)) for role, extent in plan.extents}


def slot_address(buffer: Buffer, slot: str, agent: str = "") -> str:
    """The address of a slot; `agent`: whose, if every agent has its own."""
    own = f"{agent} * {buffer.owner_bytes} + " if agent else ""
    return f"shared + {buffer.offset} + {own}{slot} * {buffer.slot_bytes}"


def indexed_address(buffer: Buffer, slot: str, agent: str = "") -> str:
    """The same, with slots counted through all agents."""
    if agent:
        slot = f"({agent} * {buffer.slots} + {slot})"
    return f"shared + {buffer.offset} + {slot} * {buffer.slot_bytes}"


def position(access: Read | Write, row: str, column: str) -> str:
    """C text of an element's address."""
    parts = []
    for variable, stride in ((row, access.m_stride), (column, access.n_stride)):
        if stride == "1":
            parts.append(variable)
        elif stride != "0":
            parts.append(f"(long long){variable} * {stride}")
    return " + ".join([c_name(access.tensor.name), *parts])


def plus(text: str, offset: int) -> str:
    """A sum without a term of 0."""
    return f"{text} + {offset}" if offset else text
