"""Element types: their names in polygen, their size, and the NumPy type that stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from polygen.errors import DTypeError, echo


@dataclass(frozen=True, slots=True)
class DType:
    """One element type."""

    name: str  # polygen's name, as in signatures
    bits: int  # storage size
    storage: str  # NumPy or ml_dtypes name of the array that holds it
    mantissa: int  # explicit mantissa bits the tensor core keeps; 0 for integers and booleans
    kind: str  # "float", "int" or "bool"

    @property
    def bytes(self) -> int:
        """Storage size of one element."""
        return self.bits // 8

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype that stores it (bfloat16 and fp8 through ml_dtypes)."""
        return np.dtype(getattr(ml_dtypes, self.storage, None) or self.storage)

    def __str__(self) -> str:
        return self.name


F16 = DType("f16", 16, "float16", 10, "float")
BF16 = DType("bf16", 16, "bfloat16", 7, "float")
TF32 = DType("tf32", 32, "float32", 10, "float")
F32 = DType("f32", 32, "float32", 23, "float")
F64 = DType("f64", 64, "float64", 52, "float")
E4M3 = DType("e4m3", 8, "float8_e4m3fn", 3, "float")
E5M2 = DType("e5m2", 8, "float8_e5m2", 2, "float")
S8 = DType("s8", 8, "int8", 0, "int")
U8 = DType("u8", 8, "uint8", 0, "int")
S32 = DType("s32", 32, "int32", 0, "int")
BOOL = DType("bool", 8, "bool", 0, "bool")

I4 = DType("i4", 4, "uint8", 0, "int")  # in descriptions of arguments, which hold two in a byte
U4 = DType("u4", 4, "uint8", 0, "int")

STORED = (F16, BF16, F32, F64, E4M3, E5M2, S8, U8, S32, BOOL)  # what kernels write
# Of these, what every kernel writes; f64 is written beside sums of it alone.
ALWAYS_STORED = tuple(kind for kind in STORED if kind != F64)
REALS = (F16, BF16, F32)  # of these, what other libraries round to as polygen does

_ALL = (F16, BF16, TF32, F32, F64, E4M3, E5M2, S8, U8, I4, U4, S32, BOOL)
NAMED = {d.name: d for d in _ALL}
_ALIASES = {
    "float16": F16,
    "half": F16,
    "bfloat16": BF16,
    "float32": F32,
    "float": F32,
    "float64": F64,
    "double": F64,
    "float8_e4m3fn": E4M3,
    "float8_e5m2": E5M2,
    "int8": S8,
    "uint8": U8,
    "int32": S32,
}


def dtype(spec: object, known: Sequence[DType] = tuple(NAMED.values())) -> DType:
    """The `DType` a user means.

    Args:
        spec: a `DType`, a name (``bf16``, ``float16``), or anything NumPy takes as a dtype.
        known: what to name to whom it is not one.

    Raises:
        DTypeError: the name is unknown.
    """
    if isinstance(spec, DType):
        return spec
    name = spec if isinstance(spec, str) else None
    if name is None:
        try:
            name = np.dtype(spec).name  # type: ignore[call-overload]
        except TypeError:
            text = str(spec)  # torch.float16
            name = text.rpartition(".")[2] if text.replace(".", "_").isidentifier() else echo(spec)
    found = NAMED.get(name) or _ALIASES.get(name)
    if found is None:
        raise DTypeError(f"unknown dtype {name!r}", nearest=f"Known: {', '.join(map(str, known))}")
    return found
