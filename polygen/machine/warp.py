"""Code for warp-wide instructions: mma, moves of matrices, shuffles, votes, reductions."""

from __future__ import annotations

import re

from polygen.errors import PtxError
from polygen.machine.mma import BITS
from polygen.machine.module import DTYPES, Instruction, items
from polygen.machine.writer import Writer, opcode

_LEGAL_K = {"f16": (8, 16), "bf16": (8, 16), "tf32": (4, 8), "e4m3": (16, 32), "e5m2": (16, 32),
            "s8": (16, 32), "u8": (16, 32)}  # fmt: skip


@opcode("mma")
def multiply(w: Writer, one: Instruction) -> None:
    """``mma.sync.aligned``; packed operands are shared between instructions of the block."""
    shape = next((part for part in one.parts if re.fullmatch(r"m\d+n\d+k\d+", part)), "")
    kinds = one.parts[-4:]
    if shape == "m8n8k4" and kinds[1:3] == ("f16", "f16"):
        _quad_pair(w, one, kinds)
        return
    if kinds[0] == "f64":
        _doubles(w, one, shape)
        return
    match = re.fullmatch(r"m(8|16)n8k(\d+)", shape)
    d_kind, a_kind, b_kind, c_kind = kinds
    if match is None or int(match[2]) not in _LEGAL_K.get(a_kind, ()) or b_kind not in BITS:
        raise w.refuse(one)
    rows = int(match[1])
    if rows == 8 and (shape != "m8n8k16" or d_kind != "s32"):
        raise w.refuse(one)
    if "row" not in one.parts or "col" not in one.parts or d_kind != c_kind:
        raise w.refuse(one, why="only .row.col with equal accumulator types is modelled")
    known = {"sync", "aligned", shape, "row", "col", "satfinite", "kind::f8f6f4"}
    if set(one.parts[1:-4]) - known or (d_kind == "s32" and "satfinite" in one.parts):
        raise w.refuse(one, why="a modifier is not modelled")
    k = int(match[2])
    d, a, b, c = one.operands
    first = _operand(w, items(a), "a", rows, k, a_kind)
    second = _operand(w, items(b), "b", k, 8, b_kind)
    third = _accumulator(w, items(c), c_kind)
    product = w.fresh(f"multiply({first}, {second}, {third})")
    if d_kind == "f16":
        product = w.fresh(f"round_halves({product})")
    _bind(w, items(d), d_kind, product)


def _doubles(w: Writer, one: Instruction, shape: str) -> None:
    """``mma`` of f64, whose registers hold an element each."""
    d, a, b, c = map(items, one.operands)
    known = {"sync", "aligned", shape, "row", "col", "f64", "rn"}
    size = {"m8n8k4": (8, 4), "m16n8k4": (16, 4), "m16n8k8": (16, 8), "m16n8k16": (16, 16)}
    if shape not in size or set(one.parts[1:]) - known or one.parts.count("f64") != 4:
        raise w.refuse(one)
    rows, k = size[shape]
    if (len(d), len(a), len(b), len(c)) != (rows // 4, rows * k // 32, k // 4, rows // 4):
        raise w.refuse(one, why="the shape needs other numbers of registers")
    values = [w.read(name, "f8") for name in (*a, *b, *c)]
    w.call("doubles", values, f", {len(a)}, {len(b)}, {w.position}", d, "f8")


def _operand(
    w: Writer, registers: tuple[str, ...], side: str, rows: int, columns: int, kind: str
) -> str:
    """The packed matrix of an operand, reused while its registers keep their values."""
    wanted = rows * columns * BITS[kind] // 1024
    if len(registers) != wanted:
        raise PtxError(
            f"operand {side} has {len(registers)} registers, the shape needs {wanted}",
            line=w.kernel.instructions[w.position].line,
        )
    values = tuple(w.value(name) if name in w.kernel.registers else name for name in registers)
    key = (side, rows, columns, kind, *values)
    if key not in w.fragments:
        names = ", ".join(w.read(name, "u4") for name in registers)
        text = f"pack_operand(M, L, {names}, {side!r}, {rows}, {columns}, {kind!r}, {w.position})"
        w.fragments[key] = w.fresh(text)
    return w.fragments[key]


def _accumulator(w: Writer, registers: tuple[str, ...], kind: str) -> str:
    values = tuple(w.value(name) if name in w.kernel.registers else name for name in registers)
    key = ("c", kind, *values)
    if key not in w.fragments:
        dtype = {"f32": "f4", "s32": "i4", "f16": "u4"}[kind]
        names = ", ".join(w.read(name, dtype) for name in registers)
        w.fragments[key] = w.fresh(f"pack_accumulator(M, L, {names})")
    return w.fragments[key]


def _bind(w: Writer, registers: tuple[str, ...], kind: str, product: str) -> None:
    """Give the result registers values that are unpacked only when somebody reads them."""
    dtype = {"f32": "f4", "s32": "i4", "f16": "u4"}[kind]
    unpack = "unpack_halves" if kind == "f16" else "unpack_accumulator"
    if w.guard:
        result = w.fresh(f"{unpack}({product})")
        for place, register in enumerate(registers):
            w.write(register, dtype, f"{result}[{place}]")
        return
    values = w.put_lazily(registers, dtype, f"{unpack}({product})")
    w.fragments[("c", kind, *values)] = product


def _quad_pair(w: Writer, one: Instruction, kinds: tuple[str, ...]) -> None:
    d, a, b, c = one.operands
    layouts = [part for part in one.parts if part in ("row", "col")]
    dtype = "f4" if kinds[3] == "f32" else "u4"
    if kinds[0] != kinds[3] or kinds[0] not in ("f16", "f32"):
        raise w.refuse(one, why="only equal accumulator types are modelled")
    arrays = [w.read(name, "u4") for name in (*items(a), *items(b))]
    arrays += [w.read(name, dtype) for name in items(c)]
    w.call("quad_pair", arrays, f", {layouts[0]!r}, {layouts[1]!r}, {w.position}", items(d), dtype)


@opcode("ldmatrix")
def load_matrix(w: Writer, one: Instruction) -> None:
    """``ldmatrix.sync.aligned.m8n8.xN[.trans].shared.b16``."""
    if "m8n8" not in one.parts or one.parts[-1] != "b16":
        raise w.refuse(one)
    targets = items(one.operands[0])
    tail = f", {len(targets)}, {'trans' in one.parts}, {w.position}"
    w.call("load_matrix", [w.address(one.operands[1])], tail, targets, "u4")


@opcode("stmatrix")
def store_matrix(w: Writer, one: Instruction) -> None:
    """``stmatrix.sync.aligned.m8n8.xN[.trans].shared.b16``."""
    if "m8n8" not in one.parts or one.parts[-1] != "b16":
        raise w.refuse(one)
    values = [w.read(name, "u4") for name in items(one.operands[1])]
    tail = f", {'trans' in one.parts}, {w.position}"
    w.call("store_matrix", [w.address(one.operands[0]), *values], tail)


@opcode("movmatrix")
def move_matrix(w: Writer, one: Instruction) -> None:
    """``movmatrix.sync.aligned.m8n8.trans.b16``."""
    if one.parts[1:] != ("sync", "aligned", "m8n8", "trans", "b16") or len(one.operands) != 2:
        raise w.refuse(one)
    target, source = one.operands
    w.call("move_matrix", [w.read(source, "u4")], f", {w.position}", (target,), "u4")


def _pair(operand: str) -> tuple[str, str]:
    first, _, second = operand.partition("|")
    return first.strip(), second.strip() or "_"


@opcode("shfl")
def shuffle(w: Writer, one: Instruction) -> None:
    """``shfl.sync``."""
    if one.parts[1] != "sync":
        raise w.refuse(one, why="shuffles without .sync are gone since sm_70")
    target, inside = _pair(one.operands[0])
    arrays = [w.read(operand, "u4") for operand in one.operands[1:5]]
    tail = f", {one.parts[2]!r}, {w.position}"
    _two(w, "shuffle", arrays, tail, target, inside)


def _two(
    w: Writer, function: str, arrays: list[str], tail: str, target: str, predicate: str
) -> None:
    """Call a function with a u32 and a predicate result."""
    if w.guard:
        raise PtxError(
            f"a predicated `{w.kernel.instructions[w.position].opcode}` is not modelled",
            line=w.kernel.instructions[w.position].line,
        )
    result = w.fresh(f"{function}(M, L{''.join(f', {name}' for name in arrays)}{tail})")
    if target != "_":
        w.write(target, "u4", f"{result}[0]")
    if predicate != "_":
        w.write(predicate, "?", f"{result}[1]")


@opcode("vote")
def vote(w: Writer, one: Instruction) -> None:
    """``vote.sync``; assemblers take the mode in front of ``.sync`` too, as CUB has it."""
    mode, sync = sorted(one.parts[1:3], key="sync".__eq__) if len(one.parts) == 4 else ("", "")
    if sync != "sync" or mode not in ("all", "any", "uni", "ballot"):
        raise w.refuse(one)
    dtype = "u4" if mode == "ballot" else "?"
    arrays = [w.read(one.operands[1], "?"), w.read(one.operands[2], "u4")]
    w.call("vote", arrays, f", {mode!r}, {w.position}", (one.operands[0],), dtype)


@opcode("activemask")
def active_mask(w: Writer, one: Instruction) -> None:
    """``activemask``."""
    w.call("active_mask", [], "", (one.operands[0],), "u4")


@opcode("redux")
def reduce(w: Writer, one: Instruction) -> None:
    """``redux.sync`` on integers."""
    if one.parts[-1] not in ("u32", "s32", "b32"):
        raise w.refuse(one)
    dtype = DTYPES[one.parts[-1]]
    arrays = [w.read(one.operands[1], dtype), w.read(one.operands[2], "u4")]
    w.call("reduce", arrays, f", {one.parts[2]!r}, {w.position}", (one.operands[0],), dtype)


@opcode("match")
def match(w: Writer, one: Instruction) -> None:
    """``match.any.sync`` and ``match.all.sync``."""
    dtype = DTYPES[one.parts[-1]]
    if one.parts[1] == "all":
        target, same = _pair(one.operands[0])
        arrays = [w.read(one.operands[1], dtype), w.read(one.operands[2], "u4")]
        _two(w, "match_all", arrays, f", {w.position}", target, same)
        return
    arrays = [w.read(one.operands[1], DTYPES[one.parts[-1]]), w.read(one.operands[2], "u4")]
    w.call("match_any", arrays, f", {w.position}", (one.operands[0],), "u4")


@opcode("elect")
def elect(w: Writer, one: Instruction) -> None:
    """``elect.sync``."""
    target, predicate = _pair(one.operands[0])
    _two(w, "elect", [w.read(one.operands[1], "u4")], f", {w.position}", target, predicate)


@opcode("bar")
def barrier(w: Writer, one: Instruction) -> None:
    """``bar.warp.sync``; other barriers end their block and never get here."""
    w.call("warp_barrier", [w.read(one.operands[0], "u4")], f", {w.position}")
