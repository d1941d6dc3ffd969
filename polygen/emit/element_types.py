"""Element types of arrays in C: how they are stored, read into floats, and rounded.

1. Floats of 16 and 32 bits are always there. What others need is emitted where a kernel reads,
   writes or rounds to them: `from_T` by the proved sequences of `polygen.hardware.conversion`,
   `to_T` and, for bytes, `two_to_T`, by the files of ``templates/rounding``.
2. Vectors are words; a type says how element e is taken from them and how words are made.
3. Whole numbers of 32 bits travel between `round_s32` and `to_s32` as the floats that their bits
   are, so that sums of integers are stored as they are; in kernels that compute in double, which
   has all of them, as themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from polygen.emit.leaves import c_type, double_of_words
from polygen.frontend.dtypes import NAMED, S32, TF32, DType
from polygen.hardware.conversion import Conversion, conversions
from polygen.hardware.device import Device

_ALWAYS = ("f16", "bf16", "f32", "f64")  # the last in kernels that compute in it
_EIGHT_BIT_FLOATS = ("e4m3", "e5m2")
# Element e of the words of a vector, by the size of an element, and the words of a vector v.
_EXTRACT = {
    1: "({c})(words[e / 4] >> e % 4 * 8)",
    2: "({c})(words[e / 2] >> e % 2 * 16)",
    4: "__uint_as_float(words[e])",
    8: double_of_words("words", "2 * e", "2 * e + 1"),
}
_PACK = {
    1: "two_to_{0}(v[4 * i], v[4 * i + 1]) | "
    "(unsigned)two_to_{0}(v[4 * i + 2], v[4 * i + 3]) << 16",
    2: "to_{0}(v[2 * i]) | (unsigned)to_{0}(v[2 * i + 1]) << 16",
    4: "__float_as_uint(v[i])",
    8: "(unsigned)(i % 2 ? __double2hiint(v[i / 2]) : __double2loint(v[i / 2]))",
}


@dataclass(frozen=True, slots=True)
class ElementType:
    """A dtype in C.

    Attributes:
        dtype: which one.
        value: of a stored element `b`, as f32; "": defined in any case.
        nan: condition under which it is no number; "": as `value` says.
        rounding: the files that define how it is rounded to.
        shared: the files that these need, which several types may.
    """

    dtype: DType
    value: str = ""
    nan: str = ""
    rounding: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    def record(self, real: str) -> dict[str, Any]:
        """For the template; `real`: the C type in which values are computed."""
        size, c = self.dtype.bytes, c_type(self.dtype)
        wide = real == "double" and c == "int"
        extract = _EXTRACT[size].format(c=c)
        return {
            "name": name_of(self.dtype),
            "c": c,
            "bytes": size,
            "extract": "(int)words[e]" if c == "int" else extract,
            "pack": "(unsigned)to_s32(v[i])" if wide else _PACK[size].format(name_of(self.dtype)),
            "value": self.value,
            "nan": self.nan,
            "rounding": self.rounding,
        }


def name_of(dtype: DType) -> str:
    """Under which elements are read and written; tf32 is stored as f32."""
    return "f32" if dtype == TF32 else dtype.name


def element_type(dtype: DType, device: Device, real: str = "float") -> ElementType:
    """How a kernel for a device reads and writes a dtype; `real`: in which C type it computes."""
    name = name_of(dtype)
    if name in _ALWAYS:
        return ElementType(NAMED[name])
    if name == "s32":
        file = "s32_double" if real == "double" else "s32"
        return ElementType(dtype, f"({real})b", rounding=(file,))
    one = conversions()[name]
    if name not in _EIGHT_BIT_FLOATS:
        return ElementType(dtype, converted(one), one.nan, (name, "two"))
    if device.has("cvt_fp8"):
        return ElementType(dtype, converted(one), one.nan, (f"{name}_converted",))
    return ElementType(dtype, converted(one), one.nan, (name, "two"), ("fp8",))


def of_word(dtype: DType, word: str) -> str:
    """An element of four bytes, held as a word, as a float."""
    return f"(float)(int){word}" if dtype == S32 else f"__uint_as_float({word})"


def byte_of_word(one: Conversion) -> str:
    """Byte `at` of a word as f32: below the bytes that its conversion has above it."""
    assert one.above is not None
    word = f"word ^ {one.flip * 0x1010101:#x}u" if one.flip else "word"
    return _finished(one, f"__byte_perm({word}, {one.above << 8:#x}u, 0x7650u + at)")


def converted(one: Conversion) -> str:
    """A stored number `b` as f32."""
    return _finished(one, one.pattern)


def _finished(one: Conversion, pattern: str) -> str:
    """A pattern as the number that it stands for."""
    value = f"__uint_as_float({pattern})"
    if one.kind == "f16":
        value = f"from_f16((unsigned short)({pattern}))"
    value += f" - {one.less}f" if one.less else ""
    return value + (f" * {one.times}f" if one.times != 1.0 else "")


def type_records(
    moved: Iterable[DType], rounded: Iterable[DType], device: Device, real: str = "float"
) -> dict[str, Any]:
    """What the template defines of element types.

    Args:
        moved: dtypes of the epilogue's operands and outputs.
        rounded: dtypes that values are rounded to.
        device: what the kernel is for.
        real: the C type in which it computes.
    """
    vectors = {name_of(dtype): element_type(dtype, device, real) for dtype in moved}
    defined = {name_of(dtype): element_type(dtype, device, real) for dtype in rounded} | vectors
    narrow = [defined[name] for name in sorted(defined) if name not in _ALWAYS]
    return {
        "types": [vectors[name].record(real) for name in sorted(vectors)],
        "narrow": [kind.record(real) for kind in narrow],
        "rounding": list(dict.fromkeys(file for kind in narrow for file in kind.shared)),
        "real": real,
    }
