"""Kernels without 128-bit registers: each becomes two of 64 bits, and what uses it goes by pairs.

1. A register of ``.b128`` is its low and its high half.
2. ``mov`` is two of the halves; ``ld`` and ``st`` become vectors of 64-bit elements, of the same
   bytes and alignment; atomics keep their type and take pairs (`polygen.machine.atomics`).
3. No other instruction has operands of 128 bits.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.errors import PtxError
from polygen.machine.module import Instruction, Kernel, items

WIDE = "b128"


def narrowed(kernel: Kernel) -> Kernel:
    """The kernel with pairs of registers in the place of those of 128 bits.

    Raises:
        PtxError: an instruction that has no operands of 128 bits, or operands that do not fit it.
    """
    wide = {name for name, kind in kernel.registers.items() if kind == WIDE}
    if not wide and not any(one.parts[-1] == WIDE for one in kernel.instructions):
        return kernel
    code: list[Instruction] = []
    begins = []
    for one in kernel.instructions:
        begins.append(len(code))
        code += _narrow(one, wide)
    begins.append(len(code))
    registers = {name: kind for name, kind in kernel.registers.items() if kind != WIDE}
    for name in wide:
        registers |= dict.fromkeys(_halves(name), "b64")
    return replace(
        kernel,
        registers=registers,
        instructions=tuple(code),
        labels={label: begins[at] for label, at in kernel.labels.items()},
    )


def _halves(name: str) -> tuple[str, str]:
    return f"{name}$low", f"{name}$high"


def _narrow(one: Instruction, wide: set[str]) -> list[Instruction]:
    if one.parts[-1] != WIDE and not any(
        item in wide for operand in one.operands for item in items(operand)
    ):
        return [one]
    if one.parts[-1] != WIDE or one.parts[0] not in ("mov", "ld", "st", "atom"):
        raise _refused(one, "it has no operands of 128 bits")

    def pair(operand: str) -> tuple[str, str]:
        if operand in wide:
            return _halves(operand)
        parts = items(operand)
        if one.parts[0] != "mov" or not operand.startswith("{") or len(parts) != 2:
            raise _refused(one, f"`{operand}` is no register of 128 bits")
        return parts[0], parts[1]

    if one.parts[0] == "mov":
        targets, sources = map(pair, one.operands)
        moves = zip(targets, sources, strict=True)
        return [
            replace(one, parts=("mov", "b64"), operands=move) for move in moves if move[0] != "_"
        ]
    if one.parts[0] == "atom":
        names = [f"{{{', '.join(pair(name))}}}" for name in (one.operands[0], *one.operands[2:])]
        return [replace(one, operands=(names[0], one.operands[1], *names[1:]))]
    at = 0 if one.parts[0] == "ld" else 1
    halves = [half for name in items(one.operands[at]) for half in pair(name)]
    operands = list(one.operands)
    operands[at] = f"{{{', '.join(halves)}}}"
    parts = [part for part in one.parts[:-1] if part not in ("v2", "v4")]
    return [replace(one, parts=(*parts, f"v{len(halves)}", "b64"), operands=tuple(operands))]


def _refused(one: Instruction, why: str) -> PtxError:
    return PtxError(f"`{one.opcode}` is refused", line=one.line, why=why)
