"""Instructions of several products of their own, and the tile that a few of them multiply together.

``mma.m8n8k4`` multiplies four pairs of small matrices at once, one for each quad pair of lanes.
``data/quad_pairs.toml`` has its fragments, with the quad pair as a coordinate. An atom made of such
instructions says where the registers of each begin. `prove_parts` proves, element by element, that
they make one product of the atom's fragments:

1. what an instruction multiplies and where it adds the product are elements of the atom's operands
   and of its accumulator that belong together: of one row, one column and one k;
2. every product of the atom's tile is made once, by one instruction for one quad pair.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from polygen import isl
from polygen.errors import HardwareDataError
from polygen.hardware.data_file import read, take

if TYPE_CHECKING:
    from polygen.hardware.atom import Fragment

FILE = "quad_pairs.toml"
REGISTER_BITS = 32
Part = tuple[int, int, int]  # the first registers of c, a and b
_Places = dict[tuple[int, ...], tuple[int, int]]  # in an instruction -> in the atom


def part_registers(ptx: str) -> tuple[int, int, int]:
    """Registers of c, a and b that one instruction takes.

    Args:
        ptx: its mnemonic.
    """
    shape, storage, kind = _form(ptx, "parts")
    bits = 32 if kind == "f32" else 16
    sizes = [len(_points(shape, *one)) for one in (("c", kind), *storage)]
    lanes = 32
    return (
        sizes[0] * bits // (lanes * REGISTER_BITS),
        sizes[1] * 16 // (lanes * REGISTER_BITS),
        sizes[2] * 16 // (lanes * REGISTER_BITS),
    )


def prove_parts(
    ptx: str, parts: Sequence[Part], a: Fragment, b: Fragment, c: Fragment, where: str
) -> None:
    """Prove that instructions on parts of the registers multiply what the fragments hold.

    Args:
        ptx: the instructions' mnemonic.
        parts: where the registers of each begin.
        a: the left operand, m x k.
        b: the right one, k x n.
        c: the accumulator.
        where: for errors.

    Raises:
        HardwareDataError: a part meets elements that do not belong together, or a product is made
            twice or never.
    """
    shape, (left, right), kind = _form(ptx, where)
    sizes = take(read(FILE)[shape], "shape", where)
    made: set[tuple[int, int, int]] = set()
    for number, (own_c, own_a, own_b) in enumerate(parts):
        at = f"{where}, part {number}"
        rows = _placed(shape, left, a, own_a, at)
        columns = _placed(shape, right, b, own_b, at)
        sums = _placed(shape, ("c", kind), c, own_c, at)
        for q, i, j, k in np.ndindex(sizes["q"], sizes["m"], sizes["n"], sizes["k"]):
            (m, depth), (depth_of_b, n) = rows[q, i, k], columns[q, k, j]
            if depth != depth_of_b or sums[q, i, j] != (m, n):
                raise HardwareDataError(
                    f"quad pair {q} adds a[{m},{depth}] * b[{depth_of_b},{n}] to "
                    f"c[{sums[q, i, j][0]},{sums[q, i, j][1]}]",
                    where=at,
                )
            if (m, n, depth) in made:
                raise HardwareDataError(f"a[{m},{depth}] * b[{depth},{n}] is added twice", where=at)
            made.add((m, n, depth))
    (extent_m, extent_k), extent_n = a.shape, b.shape[1]
    missing = set(np.ndindex(extent_m, extent_n, extent_k)) - made
    if missing:
        m, n, depth = min(missing)
        raise HardwareDataError(f"nothing adds a[{m},{depth}] * b[{depth},{n}]", where=where)


def _form(ptx: str, where: str) -> tuple[str, tuple[tuple[str, str], tuple[str, str]], str]:
    """Shape, storage of both operands, and type of the sums, of ``mma...m8n8k4.row.col.f32``."""
    shape, left, right, kind = ptx.removeprefix("mma.sync.aligned.").split(".")[:4]
    if shape not in read(FILE):
        raise HardwareDataError(
            f"nothing is known of the parts of {ptx}",
            where=where,
            nearest=f"Known: {', '.join(read(FILE))}",
        )
    return shape, (("a", left), ("b", right)), kind


@functools.cache
def _points(shape: str, operand: str, form: str) -> tuple[tuple[int, ...], ...]:
    """(lane, element, position...) of an operand."""
    where = f"hardware/data/{FILE}, {shape}"
    text = take(take(read(FILE)[shape], operand, where), form, where)
    return tuple(tuple(point) for point in isl.points(isl.Map(text)))


def _placed(
    shape: str, operand: tuple[str, str], fragment: Fragment, register: int, where: str
) -> _Places:
    """Position in the instruction, which one lane holds, -> position in the atom."""
    first = register * fragment.elements_per_register
    found: _Places = {}
    for lane, element, *position in _points(shape, *operand):
        if first + element >= fragment.elements:
            raise HardwareDataError(
                f"register {register} of {fragment.operand} is outside of {fragment.registers}",
                where=where,
            )
        row, column = (int(x) for x in fragment.table[lane, first + element])
        found[tuple(position)] = (row, column)
    return found
