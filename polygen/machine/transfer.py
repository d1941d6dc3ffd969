"""Code for instructions that touch memory: ld, st, atom, red, cp.async, fences, prefetches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polygen.machine import hopper, map_code
from polygen.machine.atomics import PACKED
from polygen.machine.module import DTYPES, Instruction, address, items, type_bytes
from polygen.machine.writer import Writer, opcode

_SPACES = ("shared", "global", "local", "param", "const")
_HINTS = {
    "weak", "relaxed", "acquire", "release", "volatile", "cta", "cluster", "gpu", "sys", "nc", "ca",
    "cg", "cs", "lu", "cv", "wb", "wt", "unified", "noftz",
}  # fmt: skip


def _space(one: Instruction) -> str:
    """The state space named in the opcode; ``generic`` when there is none."""
    for part in one.parts[1:]:
        plain = part.split("::")[0]
        if plain in _SPACES:
            return "global" if plain == "const" else plain
    return "generic"


def _known(w: Writer, one: Instruction, extra: set[str]) -> None:
    for part in one.parts[1:-1]:
        plain = part.split("::")[0]
        if plain in _SPACES or plain in _HINTS or plain in extra:
            continue
        if plain in ("L1", "L2"):
            continue
        raise w.refuse(one, why=f"the modifier .{part} is not modelled")


@opcode("ld", "ldu")
def load(w: Writer, one: Instruction) -> None:
    """``ld`` in every state space, scalar and vector."""
    _known(w, one, {"v2", "v4", "v8"})
    dtype, space = DTYPES[one.parts[-1]], _space(one)
    targets = items(one.operands[0])
    if space == "param" and address(one.operands[1])[0] not in w.kernel.registers:
        base, offset = address(one.operands[1])
        if base not in w.program.symbols:
            raise w.unknown(base)
        size = int(dtype[1:])
        for place, target in enumerate(targets):
            text = f"M.parameter({base!r}, {offset + place * size}, D_{dtype})"
            w.write(target, dtype, text, True)
        return
    where = w.address(one.operands[1])
    if space == "param" and w.is_uniform(address(one.operands[1])[0]):
        for place, target in enumerate(targets):
            w.write(target, dtype, f"parameter_word(M, {where}, {dtype!r}, {place})", True)
    elif space == "generic":
        w.call(
            "load_generic", [where], f", {dtype!r}, {len(targets)}, {w.position}", targets, dtype
        )
    elif space == "param":
        w.call(
            "load_parameter", [where], f", {dtype!r}, {len(targets)}, {w.position}", targets, dtype
        )
    else:
        tail = f", {dtype!r}, {len(targets)}, {space!r}, {w.position}"
        w.call("load", [where], tail, targets, dtype)


@opcode("st")
def store(w: Writer, one: Instruction) -> None:
    """``st`` in every state space, scalar and vector."""
    if one.parts[1] == "async":
        _store_async(w, one)
        return
    if one.parts[1] == "bulk":
        raise w.refuse(one)
    _known(w, one, {"v2", "v4", "v8"})
    dtype, space = DTYPES[one.parts[-1]], _space(one)
    where = w.address(one.operands[0])
    values = [w.read(item, dtype) for item in items(one.operands[1])]
    if space == "generic":
        w.call("store_generic", [where, *values], f", {dtype!r}, {w.position}")
    else:
        w.call("store", [where, *values], f", {dtype!r}, {space!r}, {w.position}")


def _store_async(w: Writer, one: Instruction) -> None:
    """``st.async`` of whole words, one, two or four, to shared memory of the cluster."""
    _known(w, one, {"async", "v2", "v4", "mbarrier"})
    values = items(one.operands[1])
    if one.parts[-1] not in ("b32", "u32", "s32", "f32"):
        raise w.refuse(one, why="stores of other than words are not modelled", nearest=".v4.b32")
    dtype = DTYPES[one.parts[-1]]
    arrays = [w.address(one.operands[0]), w.address(one.operands[2])]
    arrays += [w.read(item, dtype) for item in values]
    w.call("remote.store_async", arrays, f", {w.position}")


_ATOMS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


@opcode("atom", "red")
def atomic(w: Writer, one: Instruction) -> None:
    """Atomic updates."""
    if one.parts[-1] == "b128":
        _exchange_pairs(w, one)
        return
    parts = [part for part in one.parts if part not in ("v2", "v4", "v8")]
    kinds = [part for part in parts[1:] if part in DTYPES]
    operation = next((part for part in parts[1:] if part in _ATOMS), "")
    if not operation or len(kinds) != 1 or kinds[0] == "pred":
        raise w.refuse(one)
    kind = kinds[0]
    plain = [part for part in parts if part != kind]
    _known(w, replace(one, parts=(*plain, kind)), {operation, "acq_rel"})
    dtype, space = DTYPES[kind], _space(one)
    returns = one.parts[0] == "atom"
    operands = one.operands[1:] if returns else one.operands
    where, values = w.address(operands[0]), items(operands[1])
    targets = items(one.operands[0]) if returns else ("_",) * len(values)
    if any("cache_hint" in part for part in parts):
        operands = operands[:-1]
    others = items(operands[2]) if len(operands) > 2 else values
    size = type_bytes(kind)
    name = f"{operation}.{kind}" if f"{operation}.{kind}" in PACKED else operation
    for place, (value, other) in enumerate(zip(values, others, strict=True)):
        at = w.fresh(f"{where} + {where}.dtype.type({place * size})") if place else where
        whole = size * (len(values) if not place else 1)
        tail = f", {name!r}, {dtype!r}, {space!r}, {whole}, {w.position}"
        arrays = [at, w.read(value, dtype), w.read(other, dtype)]
        w.call("atomic", arrays, tail, (targets[place],) if returns else (), dtype)


def _exchange_pairs(w: Writer, one: Instruction) -> None:
    """``atom.exch.b128`` and ``atom.cas.b128``, on pairs of registers: see `wide`."""
    operation = next((part for part in one.parts if part in ("exch", "cas")), "")
    _known(w, one, {operation, "acq_rel"})
    target, place, *values = one.operands
    if not operation or len(values) != (2 if operation == "cas" else 1):
        raise w.refuse(one)
    arrays = [w.address(place), *(w.read(half, "u8") for text in values for half in items(text))]
    arrays += arrays[1:] if operation == "exch" else []
    tail = f", {operation!r}, {_space(one)!r}, {w.position}"
    w.call("exchange_pairs", arrays, tail, items(target), "u8")


@opcode("fence", "membar")
def fence(w: Writer, one: Instruction) -> None:
    """Fences order what the machine runs in order anyway; proxy fences are what is tracked."""
    proxy = one.parts[1:3] == ("proxy", "async") and "global" not in one.parts
    if one.parts[1:3] == ("proxy", "tensormap::generic"):
        map_code.fence(w, one)
    elif proxy or one.parts[1] == "mbarrier_init":
        w.call("proxy_fence", [], "")
    elif one.parts[1] != "proxy":
        w.call("order.fence", [], f", {'cta' in one.parts}")
    if one.parts[1] != "proxy" and "cta" not in one.parts and _arrives_relaxed(w):
        w.call("cluster.hold", [], f", {one.parts[1] == 'mbarrier_init'}")


def _arrives_relaxed(w: Writer) -> bool:
    """Whether the kernel has arrivals at the cluster's barrier that fences are for."""
    return any(
        one.parts[:3] == ("barrier", "cluster", "arrive") and "relaxed" in one.parts
        for one in w.kernel.instructions
    )


@opcode("griddepcontrol")
def dependent(w: Writer, one: Instruction) -> None:
    """What the grids before have done is there behind the wait; the next one may begin any time."""
    if one.parts[1:] == ("wait",):
        w.call("grids.wait", [], "")
    elif one.parts[1:] != ("launch_dependents",):
        raise w.refuse(one)


@opcode("prefetch", "prefetchu", "nanosleep", "discard", "applypriority", "pmevent")
def nothing(w: Writer, one: Instruction) -> None:
    """Hints without an effect on values."""


@opcode("cp")
def copy(w: Writer, one: Instruction) -> None:
    """``cp.async`` and its groups; bulk copies go on to `hopper`."""
    if "bulk" in one.parts:
        hopper.bulk(w, one)
        return
    action = one.parts[2]
    if action == "mbarrier":
        tail = f", {'noinc' in one.parts}, {w.position}"
        w.call("arrive_after", [w.address(one.operands[0])], tail)
    elif action == "commit_group":
        w.call("commit", [], "")
    elif action == "wait_group":
        w.call("wait", [], f", {int(one.operands[0], 0)}, False")
    elif action == "wait_all":
        w.call("wait", [], ", 0, True")
    elif action in ("ca", "cg"):
        _copy(w, one)
    else:
        raise w.refuse(one)


def _copy(w: Writer, one: Instruction) -> None:
    for part in one.parts[3:]:
        if part.split("::")[0] not in ("shared", "global", "L2"):
            raise w.refuse(one, why=f"the modifier .{part} is not modelled")
    if any("cache_hint" in part for part in one.parts):
        one = Instruction(one.parts, one.operands[:-1], line=one.line)
    size = int(one.operands[2], 0)
    legal = (16,) if one.parts[2] == "cg" else (4, 8, 16)
    if size not in legal:
        raise w.refuse(one, why=f"it copies {size} bytes", nearest=f"Legal sizes: {legal}")
    target, source = w.address(one.operands[0]), w.address(one.operands[1])
    if len(one.operands) < 4:
        valid = w.constant(np.uint32(size))
    elif w.kernel.registers.get(one.operands[3]) == "pred":  # ignore-src
        valid = w.fresh(f"where({w.read(one.operands[3], '?')}, u4(0), u4({size}))")
    else:
        valid = w.read(one.operands[3], "u4")
    w.call("copy_async", [target, source, valid], f", {size}, {w.position}")
