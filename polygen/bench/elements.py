"""What a row's type means: of the matrices that are multiplied, of everything else, of the result.

Narrow operands have results that can hold their sums, as libraries have them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Elements:
    """Types, as polygen names them.

    Attributes:
        multiplied: of the product's operands.
        others: of the other operands.
        result: of the output.
        default: whether polygen gives that result without being asked.
    """

    multiplied: str
    others: str
    result: str
    default: bool = True


ELEMENTS = {
    "bf16": Elements("bf16", "bf16", "bf16"),
    "f16": Elements("f16", "f16", "f16"),
    "tf32": Elements("tf32", "f32", "f32"),
    "e4m3": Elements("e4m3", "bf16", "bf16", default=False),
    "s8": Elements("s8", "f32", "f32", default=False),
}
