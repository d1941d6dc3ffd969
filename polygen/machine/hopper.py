"""Code for sm_90 instructions: mbarrier, bulk copies, wgmma, clusters, register counts."""

from __future__ import annotations

import re

import numpy as np

from polygen.machine.accumulators import Operands
from polygen.machine.mma import BITS
from polygen.machine.module import Instruction, items, split_operands
from polygen.machine.writer import Writer, opcode

_SCOPES = {
    "release",
    "acquire",
    "relaxed",
    "cta",
    "cluster",
    "b64",
    "noinc",
    "parity",
    "expect_tx",
    "noComplete",
}
# Element types of linear bulk reductions.
_REDUCED = {
    "f16": "f2", "bf16": "bfloat16", "f32": "f4", "f64": "f8", "u32": "u4", "s32": "i4",
    "u64": "u8", "s64": "i8", "b32": "u4", "b64": "u8",
}  # fmt: skip
_K_BITS = 256  # bits of K one wgmma consumes per row


def _word(w: Writer, operand: str) -> str:
    return w.read(operand, "u4")


def _known(w: Writer, one: Instruction, known: set[str]) -> None:
    for part in one.parts[1:]:
        if part.split("::")[0] not in known:
            raise w.refuse(one, why=f"the modifier .{part} is not modelled")


@opcode("mbarrier")
def mbarrier(w: Writer, one: Instruction) -> None:
    """Mbarrier operations that do not wait."""
    action = one.parts[1]
    _known(w, one, _SCOPES | {action, "shared"})
    if action == "init":
        arrays = [w.address(one.operands[0]), _word(w, one.operands[1])]
        w.call("mbarrier.initialise", arrays, f", {w.position}")
    elif action == "inval":
        w.call("mbarrier.invalidate", [w.address(one.operands[0])], f", {w.position}")
    elif action in ("arrive", "arrive_drop"):
        _arrive(w, one)
    elif action in ("expect_tx", "complete_tx"):
        sign = 1 if action == "expect_tx" else -1
        arrays = [w.address(one.operands[0]), _word(w, one.operands[1])]
        w.call("mbarrier.expect_bytes", arrays, f", {sign}, {w.position}")
    else:
        raise w.refuse(one)


def _arrive(w: Writer, one: Instruction) -> None:
    operands = list(one.operands)
    state = operands.pop(0) if not operands[0].startswith("[") else "_"
    place = w.address(operands[0])
    zero, single = w.constant(np.uint32(0)), w.constant(np.uint32(1))
    amount, expected = single, zero
    if "expect_tx" in one.parts:
        expected = _word(w, operands[1])
    elif len(operands) > 1:
        amount = _word(w, operands[1])
    drop, release = one.parts[1] == "arrive_drop", "relaxed" not in one.parts
    targets = (state,) if state != "_" else ()
    w.call(
        "mbarrier.arrive",
        [place, amount, expected],
        f", {drop}, {release}, {w.position}",
        targets,
        "u8",
    )


def wait_operands(w: Writer, one: Instruction) -> str:
    """Source of ``(address, parity or state)`` for a wait, which ends its block."""
    if one.parts[1] not in ("try_wait", "test_wait"):
        raise w.refuse(one)
    _known(w, one, _SCOPES | {one.parts[1], "shared"})
    which = one.operands[2]
    dtype = "u4" if "parity" in one.parts else "u8"
    return f"({w.address(one.operands[1])}, {w.read(which, dtype)})"


@opcode("mapa")
def map_address(w: Writer, one: Instruction) -> None:
    """``mapa``."""
    dtype = "u8" if one.parts[-1] == "u64" else "u4"
    target, source, rank = one.operands
    place = w.address(f"[{source}]") if source not in w.kernel.registers else w.read(source, dtype)
    if source not in w.kernel.registers:
        place = w.fresh(f"{dtype}({place})")
    w.call("mbarrier.map_address", [place, _word(w, rank)], "", (target,), dtype)


@opcode("getctarank")
def rank_of(w: Writer, one: Instruction) -> None:
    """``getctarank``."""
    place = w.read(one.operands[1], "u8" if one.parts[-1] == "u64" else "u4")
    w.call("mbarrier.rank_of", [place], "", (one.operands[0],), "u4")


@opcode("setmaxnreg")
def registers(w: Writer, one: Instruction) -> None:
    """``setmaxnreg``: registers are counted, though they do not exist here."""
    count = int(one.operands[0], 0)
    if one.parts[1] not in ("inc", "dec"):
        raise w.refuse(one)
    if count % 8 or not 24 <= count <= 256:
        raise w.refuse(one, why=f"{count} registers", nearest="A multiple of 8 from 24 to 256")
    w.call("registers.resize", [], f", {count}, {one.parts[1] == 'inc'}, {w.position}")


@opcode("createpolicy")
def policy(w: Writer, one: Instruction) -> None:
    """Cache policies have no effect on values."""
    w.write(one.operands[0], "u8", w.constant(np.uint64(0)), True)


# --- bulk copies -----------------------------------------------------------------------------
def bulk(w: Writer, one: Instruction) -> None:
    """``cp.async.bulk`` and ``cp.reduce.async.bulk`` in all forms."""
    parts = [part for part in one.parts if part not in ("cp", "async", "bulk")]
    if "commit_group" in parts:
        w.call("bulk_stores.commit", [], "")
    elif "wait_group" in parts:
        w.call("bulk_stores.wait", [], f", {int(one.operands[0], 0)}")
    elif "prefetch" in parts:
        return
    elif "tensor" in parts:
        _tensor(w, one, parts)
    else:
        _linear(w, one, parts)


def _operation(w: Writer, one: Instruction, parts: list[str]) -> str:
    if parts[0] != "reduce":
        return ""
    found = [part for part in parts if part in ("add", "min", "max", "and", "or", "xor")]
    if not found:
        raise w.refuse(one)
    return found[0]


def _tensor(w: Writer, one: Instruction, parts: list[str]) -> None:
    if any("im2col" in part or part.startswith(("cta_group", "tile::")) for part in parts):
        raise w.refuse(one)
    stores = parts.index("global") < max(
        (at for at, part in enumerate(parts) if part.startswith("shared")), default=-1
    )
    described = one.operands[0] if stores else one.operands[1]
    name, corner = split_operands(described.strip("[]"))
    coordinates = [_word(w, item) for item in items(corner)]
    if f"{len(coordinates)}d" not in parts:
        raise w.refuse(one, why=f"it has {len(coordinates)} coordinates")
    maps = w.read(name, "u8") if name in w.kernel.registers else w.address(f"[{name}]")
    if stores:
        arrays = [w.address(one.operands[1]), maps]
        operation = _operation(w, one, parts)
        text = w.constant(operation)
        w.call("bulk_stores.store_tensor", [*arrays, text, *coordinates], f", {w.position}")
        return
    arrays = [w.address(one.operands[0]), maps, w.address(one.operands[2])]
    multicast = any(part.startswith("multicast") for part in parts)
    arrays.append(w.read(one.operands[3], "u2") if multicast else w.constant(None))
    w.call("bulk.load_tensor", [*arrays, *coordinates], f", {w.position}")


def _linear(w: Writer, one: Instruction, parts: list[str]) -> None:
    operation, kind = _operation(w, one, parts), "u1"
    if operation:
        kind = _REDUCED.get(parts[-1], "")
        if not kind or operation in ("inc", "dec"):
            raise w.refuse(one)
    spaces = [part.split("::")[0] for part in parts if part.startswith(("shared", "global"))]
    target, source = w.address(one.operands[0]), w.address(one.operands[1])
    size = _word(w, one.operands[2])
    if spaces[0] == "global":
        tail = f", {operation!r}, {kind!r}, {w.position}"
        w.call("bulk_stores.store_linear", [target, source, size], tail)
        return
    if operation:
        raise w.refuse(one, why="linear bulk reductions into shared memory are not modelled")
    barrier = w.address(one.operands[3])
    multicast = any(part.startswith("multicast") for part in parts)
    mask = w.read(one.operands[4], "u2") if multicast else w.constant(None)
    w.call(
        "bulk.load_linear", [target, source, size, barrier, mask], f", {spaces[1]!r}, {w.position}"
    )


# --- wgmma -----------------------------------------------------------------------------------
@opcode("wgmma")
def wgmma(w: Writer, one: Instruction) -> None:
    """``wgmma.fence``, ``commit_group``, ``wait_group`` and ``mma_async``."""
    if w.guard:
        raise w.refuse(one, why="a predicated wgmma is not modelled")
    action = one.parts[1]
    if action in ("fence", "commit_group"):
        w.call(f"wgmma.{action.split('_')[0]}", [], f", {w.position}")
    elif action == "wait_group":
        w.call("wgmma.wait", [], f", {int(one.operands[0], 0)}, {w.position}")
    elif action == "mma_async" and "sp" not in one.parts:
        _multiply(w, one)
    else:
        raise w.refuse(one)


def _shape(w: Writer, one: Instruction) -> tuple[int, str, str, str]:
    """(n, D kind, A kind, B kind), checked against what exists."""
    shape = next(part for part in one.parts if part.startswith("m64n"))
    match = re.fullmatch(r"m64n(\d+)k(\d+)", shape)
    kinds = one.parts[one.parts.index(shape) + 1 :]
    if match is None or len(kinds) != 3 or any(kind not in BITS for kind in kinds[1:]):
        raise w.refuse(one)
    n, k = int(match[1]), int(match[2])
    d_kind, a_kind, b_kind = kinds
    coarse = d_kind == "s32" and n > 32 and n % 16
    if k * BITS[a_kind] != _K_BITS or n % 8 or not 8 <= n <= 256 or coarse:
        raise w.refuse(one, why="this shape does not exist for the type")
    if d_kind not in ("f32", "f16", "s32"):
        raise w.refuse(one)
    wanted, given = (n // 4 if d_kind == "f16" else n // 2), len(items(one.operands[0]))
    if given != wanted:
        raise w.refuse(one, why=f"n = {n} needs {wanted} accumulator registers, not {given}")
    return n, d_kind, a_kind, b_kind


def _multiply(w: Writer, one: Instruction) -> None:
    n, d_kind, a_kind, b_kind = _shape(w, one)
    registers = items(one.operands[0])
    in_registers = one.operands[1].startswith("{")
    a = _matrix_a(w, one, a_kind) if in_registers else w.full(one.operands[1], "u8")
    b = w.full(one.operands[2], "u8")
    signs, transposed = _immediates(w, one, in_registers, BITS[a_kind])
    scale = one.operands[3] if len(one.operands) > 3 else "1"
    old = "None" if scale == "0" else _accumulator(w, registers, d_kind)
    keep = "True" if scale.isdigit() else w.read(scale, "?")
    rest = (in_registers, n, a_kind, b_kind, d_kind, *signs, *transposed, w.position)
    constants = ", ".join(repr(value) for value in rest)
    left = items(one.operands[1]) if in_registers else ()
    shape = n, BITS[a_kind], d_kind
    operands = w.constant(Operands(frozenset(registers), frozenset(left), shape))
    product = w.fresh(f"wgmma.multiply(M, L, {old}, {a}, {b}, {keep}, {operands}, {constants})")
    _bind(w, registers, d_kind, product)


def _immediates(
    w: Writer, one: Instruction, in_registers: bool, bits: int
) -> tuple[list[int], list[bool]]:
    """imm-scale-a, -b and imm-trans-a, -b (16-bit types only; A in registers has no transpose)."""
    given = [int(text, 0) for text in one.operands[4:]]
    signs, rest = (given[:2] or [1, 1]), given[2:]
    wanted = (1 if in_registers else 2) if bits == 16 else 0
    if len(signs) != 2 or (given and len(rest) != wanted):
        raise w.refuse(one, why=f"{len(given)} immediates", nearest=f"Give {2 + wanted}")
    flags = [bool(value) for value in rest]
    if in_registers:
        flags = [False, *flags]
    return signs, [*flags, False, False][:2]


def _matrix_a(w: Writer, one: Instruction, kind: str) -> str:
    names = ", ".join(w.read(name, "u4") for name in items(one.operands[1]))
    return w.fresh(f"wgmma.register_operand(M, L, {names}, {kind!r}, {w.position})")


def _accumulator(w: Writer, registers: tuple[str, ...], kind: str) -> str:
    key = ("wgmma", kind, *(w.value(name) for name in registers))
    if key not in w.fragments:
        dtype = {"f32": "f4", "s32": "i4", "f16": "u4"}[kind]
        names = ", ".join(w.full(name, dtype) for name in registers)
        w.fragments[key] = w.fresh(f"wgmma.pack(M, L, {names})")
    return w.fragments[key]


def _bind(w: Writer, registers: tuple[str, ...], kind: str, product: str) -> None:
    """Result registers are unpacked only when somebody reads them."""
    dtype = {"f32": "f4", "s32": "i4", "f16": "u4"}[kind]
    function = "wgmma.unpack_pairs" if kind == "f16" else "wgmma.unpack"
    values = w.put_lazily(registers, dtype, f"{function}({product})")
    w.fragments[("wgmma", kind, *values)] = product
