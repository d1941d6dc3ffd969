"""What a kernel takes for granted about where its dynamic shared memory begins.

1. A driver puts the dynamic array behind the reserved bytes and the static variables, and so gives
   it 1024 bytes of alignment where there are none. The machine does the same.
2. Boxes, swizzle patterns and descriptors need more than many kernels declare. What is needed of
   addresses in the array is kept (`need`); when the run is over and more was needed than is
   declared, a note says so (`notes`).
3. A kernel that aligns the address itself, with a mask, relies on nothing: what is computed from
   the array's name is followed through the text (`_follows`).
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.machine.module import Instruction, Kernel, Variable

_COMPUTES = frozenset(["mov", "cvta", "cvt", "add", "sub", "and", "or", "mad", "lop3"])


@dataclass(slots=True)
class Alignment:
    """Of the dynamic array of a launch.

    Attributes:
        start: its first byte; -1 without such an array.
        declared: bytes it is declared to be aligned to.
        name: what it is called.
        needed: bytes that instructions needed of addresses in it.
        position: of the instruction that needed most.
    """

    start: int
    declared: int
    name: str = ""
    needed: int = 1
    position: int = -1

    def need(self, address: int, count: int, position: int) -> None:
        """An instruction needs an address to be a multiple of `count`."""
        if 0 <= self.start <= address and count > self.needed:
            self.needed, self.position = count, position


def dynamic_array(
    kernel: Kernel, variables: tuple[Variable, ...], symbols: dict[str, int]
) -> Alignment:
    """The dynamic array of a kernel whose shared variables lie at `symbols`."""
    extern = [
        one for one in (*variables, *kernel.variables) if one.space == "shared" and not one.size
    ]
    if not extern:
        return Alignment(-1, 1)
    name = extern[0].name
    return Alignment(symbols[name], max(one.align for one in extern), name)


def notes(kernel: Kernel, found: Alignment) -> tuple[str, ...]:
    """What to say about a run whose needs were `found`: one sentence, or none."""
    if found.needed <= found.declared:
        return ()
    reached = _follows(kernel, found.name)
    if any(
        _aligns(one, found.needed) and reached.intersection(one.operands[1:])
        for one in kernel.instructions
    ):
        return ()
    one = kernel.instructions[found.position]
    source = f", {one.source}" if one.source else ""
    return (
        f"dynamic shared memory is declared with an alignment of {found.declared} bytes, and "
        f"`{one.opcode}` (PTX line {one.line}{source}) needs {found.needed}: drivers give as much "
        f"here, but promise it only for __align__({found.needed})",
    )


def _follows(kernel: Kernel, name: str) -> set[str]:
    """The array's name, and the registers that addresses in it are computed in."""
    reached, size = {name}, 0
    while len(reached) != size:
        size = len(reached)
        for one in kernel.instructions:
            if one.parts[0] in _COMPUTES and reached.intersection(one.operands[1:]):
                reached.add(one.operands[0])
    return reached


def _aligns(one: Instruction, count: int) -> bool:
    """Whether an instruction clears the low bits of an address."""
    if one.parts[0] not in ("and", "lop3"):
        return False
    for operand in one.operands[1:]:
        try:
            value = int(operand.rstrip("U"), 0)
        except ValueError:
            continue
        low = value & 0xFFFFFFFF
        mask = (~low & 0xFFFFFFFF) + 1
        if value and mask & (mask - 1) == 0 and mask >= count and low >> 31:
            return True
    return False
