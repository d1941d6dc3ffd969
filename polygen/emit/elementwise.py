"""CUDA of a kernel whose threads compute one element each, by a text that CuPy's fusion has made.

Operands are read in one of three ways, or are numbers:

    n    a number
    w    an array without gaps, of the results' shape: element i
    o    a single element
    s    row ``i // inner``, column ``i % inner``, with a stride for either
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NAME = "polygen_numpy"
_HEADERS = ("complex.cuh", "carray.cuh", "atomics.cuh", "math_constants.h")  # CuPy's own


@dataclass(frozen=True, slots=True)
class Value:
    """What the text reads or writes.

    Attributes:
        name: in the text.
        kind: C++ type.
        is_const: whether the text only reads it.
    """

    name: str
    kind: str
    is_const: bool


def elementwise(
    operands: Sequence[Value], results: Sequence[Value], ways: str, before: str, text: str
) -> str:
    """The source of the kernel `NAME`.

    It takes the operands, the results, the number of elements, and where an operand is strided,
    the inner extent and two strides of each that is, all of them 64 bits.

    Args:
        operands: in order.
        results: in order; without gaps.
        ways: one letter for each operand.
        before: what the text needs defined.
        text: statements for one element.
    """
    parameters, inside, after = _read(operands, ways)
    for number, one in enumerate(results):
        parameters.append(f"{one.kind}* q{number}")
        inside.append(f"{one.kind}& {one.name} = q{number}[i];")
    body = [
        "const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;",
        "if (i >= (unsigned)size) return;",
        *inside,
        text,
    ]
    return _whole(before, [*parameters, *after], body)


def _whole(before: str, parameters: Sequence[str], body: Sequence[str]) -> str:
    lines = [
        *(f'#include "cupy/{header}"' for header in _HEADERS),
        before,
        f'extern "C" __global__ void {NAME}({", ".join(parameters)}) {{',
        *body,
        "}",
    ]
    return "\n".join(lines)


def _read(operands: Sequence[Value], ways: str) -> tuple[list[str], list[str], list[str]]:
    """Parameters of operands, statements that read element i of them, and what tells where."""
    parameters, inside, after = [], [], ["const long long size"]
    if "s" in ways:
        after.append("const long long inner")
        inside.append("const int r = i / (unsigned)inner, c = i - (unsigned)r * (unsigned)inner;")
    for number, (one, way) in enumerate(zip(operands, ways, strict=True)):
        const = "const " if one.is_const else ""
        if way == "n":
            parameters.append(f"const {one.kind} p{number}")
            inside.append(f"const {one.kind} {one.name} = p{number};")
            continue
        if way == "s":
            after += [f"const long long a{number}", f"const long long b{number}"]
        at = {"w": "i", "o": "0", "s": f"r * (int)a{number} + c * (int)b{number}"}[way]
        parameters.append(f"{const}{one.kind}* p{number}")
        kept = "" if one.is_const else "&"
        inside.append(f"{const}{one.kind}{kept} {one.name} = p{number}[{at}];")
    return parameters, inside, after
