"""Values of texts that are run: numbers that stand for elements, registers, addresses.

Numbers are whole, of 64 bits, one or one for each thread. Indices are what they are; a number that
is computed with floats, or that arrays hold, stands for what it is made of.
"""

from __future__ import annotations

import functools
import math
import operator
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.errors import UndecidedText
from polygen.frontend.dtypes import NAMED, S8, S32, DType

_INDICES = 1 << 44  # what is beyond stands for an element
_ODD = -7046029254386353131  # of 64 bits, as a signed number
NARROW = {"unsigned short": 16, "unsigned char": 8, "unsigned": 32, "unsigned int": 32}
_SIGNED = {"signed char": 8, "short": 16, "int": 32}
WIDTHS = {
    "unsigned char": 1,
    "unsigned short": 2,
    "unsigned": 4,
    "uint2": 8,
    "float2": 8,
    "uint4": 16,
}
ELEMENTS = {"unsigned short": 2, "unsigned char": 1, "float": 4, "double": 8}  # of a `WordOf`
LETTERS = {"uint2": "xy", "uint4": "xyzw"}  # of the words of a value
_WORD_BYTES = 4


def word_of(kind: str) -> tuple[str, int] | None:
    """The type and the number of a `WordOf`'s elements; None: it is none."""
    name, _, inside = kind.rstrip(">").partition("<")
    item, _, count = inside.partition(",")
    return (item.strip(), int(count)) if name == "WordOf" else None


def width_of(kind: str) -> int | None:
    """The bytes of what a pointer leads to; None: it is not known."""
    word = word_of(kind)
    return WIDTHS.get(kind) if word is None else ELEMENTS[word[0]] * word[1]


@dataclass(frozen=True, slots=True)
class Register:
    """Elements of an array in registers, from one on.

    Attributes:
        base: of all threads, elements by threads.
        at: of the first.
        dims: of the array that begins there; (): one element.
        kind: the type of its elements, where it says how many words they have, or bytes.
    """

    base: Any
    at: Any
    dims: tuple[int, ...]
    kind: str = ""


def parts_of(found: Any) -> Sequence[Any]:
    """What is in registers that are one value: letters, or the numbers of a word's elements."""
    if not isinstance(found, Register) or len(found.dims) != 1:
        return ()
    return range(found.dims[0]) if word_of(found.kind) else LETTERS.get(found.kind, ())


@dataclass(frozen=True, slots=True)
class Place:
    """Global memory: a pointer, and elements behind it."""

    address: Any
    index: Any


@dataclass(frozen=True, slots=True)
class SharedArray:
    """An array that all threads of a block have.

    Attributes:
        address: of its first element.
        dims: of the array that begins there.
        kind: the type of its elements.
    """

    address: Any
    dims: tuple[int, ...]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address that is read, or written, by so many bytes.

    Attributes:
        address: elements of an array from its first, as all addresses.
        bytes: of what it leads to.
        stepped: bytes of the elements by which it was moved; 0: it was not.
        real: whether it leads to floats.
    """

    address: Any
    bytes: int
    stepped: int = 0
    real: bool = False

    def moved(self, elements: Any) -> Pointer:
        """So many of what it leads to further on."""
        return Pointer(self.address + elements, self.bytes, self.bytes, self.real)


@dataclass(frozen=True, slots=True)
class Wide:
    """A number of 64 bits without a sign: where a byte of memory is."""

    bits: Any

    def __neg__(self) -> Wide:
        """What is missing to 2^64."""
        return Wide(-self.bits)


@dataclass(frozen=True, slots=True)
class Part:
    """A value with parts, as the words of a `uint4`."""

    parts: Mapping[Any, Any]


def its_own(value: Any) -> Any:
    """What a variable has stays, whatever becomes of the register that it was read from."""
    return value.copy() if isinstance(value, np.ndarray) and value.base is not None else value


@functools.lru_cache(maxsize=1024)
def token(text: str) -> int:
    """A number that stands for a text."""
    return (zlib.crc32(text.encode()) + 1) * 2654435761 & (1 << 62) - 1


_TRUTH = 17  # the bit of a number by which a truth is one
_FLOAT = token("the float of these bits")


def mixed(name: str, *values: Any) -> Any:
    """A function of which nothing is known but that equal arguments have equal results."""
    found: Any = token(name)
    for one in values:
        if isinstance(one, np.ndarray) or isinstance(found, np.ndarray):
            found = found ^ one
            found *= _ODD
        else:
            found = _signed((found ^ int(one)) * _ODD)
        found ^= found >> 29
    return found


def of_each(value: Any, threads: int) -> Any:
    """A number in every thread."""
    if isinstance(value, np.ndarray) and value.shape == (threads,):
        return value
    return np.broadcast_to(value, (threads,))


def _signed(number: int) -> int:
    """The lowest 64 bits of a number."""
    return (number + (1 << 63) & (1 << 64) - 1) - (1 << 63)


def as_float(bits: Any) -> Any:
    """The float that has some bits: another number, as a text may not take one for the other."""
    return bits ^ _FLOAT


def as_bits(value: Any) -> Any:
    """The bits of a float."""
    return value ^ _FLOAT


def _wrapped(number: Any) -> Any:
    """A number of 64 bits, as arrays have them."""
    return _signed(number) if isinstance(number, int) and number >> 63 not in (0, -1) else number


def held(dtype: DType, stored: Any) -> Any:
    """What C has where bits of an element are stored."""
    if dtype.kind == "float" and dtype.bytes >= _WORD_BYTES:
        return as_float(stored)
    return cast({S8: "signed char", S32: "int"}.get(dtype, ""), stored)


def number_of(kind: str, bits: Any) -> Any:
    """The number of some bits, as C's `from_...` makes it of an element."""
    if kind in ("f32", "f64"):
        return as_float(bits)
    return number_from(kind, bits)


def number_from(kind: str, element: Any) -> Any:
    """What `from_...` makes of an element as C has it; whole numbers of 32 bits are themselves.

    Of truths some are false: what is chosen by another one shows.
    """
    if kind in ("f32", "f64"):
        return element
    if kind == "s32":
        return cast("int", element)
    found = mixed(f"from_{kind}", element & (1 << NAMED[kind].bits) - 1)
    return found * (found >> _TRUTH & 1) if kind == "bool" else found


def pair_of(first: Any, second: Any) -> Any:
    """Two numbers in a word."""
    return cast("unsigned", mixed("pair", first, second))


def cast(kind: str, value: Any) -> Any:
    """A number, or a pointer, of another type."""
    if kind.endswith("*") and kind.rstrip("* ") in WIDTHS:
        width = WIDTHS[kind.rstrip("* ")]
        return Pointer(getattr(value, "address", value), width, getattr(value, "stepped", 0))
    if isinstance(value, Pointer):
        whole = kind == "unsigned long long"
        return Wide(value.address * value.bytes) if whole else value.address
    if isinstance(value, Wide):
        value = value.bits
    bits = NARROW.get(kind)
    if bits is not None:
        return value & ((1 << bits) - 1)
    bits = _SIGNED.get(kind)
    if bits is not None:
        half = 1 << bits - 1
        return (value + half & (1 << bits) - 1) - half
    return value


def negated(sign: str, value: Any) -> Any:
    """What a sign makes of a number."""
    if sign == "!":
        return np.logical_not(value)
    return _SIGNS[sign](value)


_SIGNS: dict[str, Callable[[Any], Any]] = {
    "-": operator.neg, "~": operator.invert, "+": operator.pos
}  # fmt: skip


def _quotient(a: Any, b: Any) -> Any:
    """As C has it: towards 0; of numbers that are no indices a function like any other."""
    ends = [(one, one) if isinstance(one, int) else (np.min(one), np.max(one)) for one in (a, b)]
    (low, high), (least, most) = ends
    if low >= 0 and least > 0 and high <= _INDICES and most <= _INDICES:
        return a // b
    if least <= 0 <= most or max(high, most, -low, -least) > _INDICES:
        return mixed("/", a, b)
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def _rest(a: Any, b: Any) -> Any:
    if isinstance(a, Wide):
        if b & (b - 1):
            raise UndecidedText(f"a place in memory is divided by {b}")
        return a.bits & (b - 1)
    return a - b * _quotient(a, b)


def _moved(place: Register | Pointer, by: Any) -> Register | Pointer:
    """So many elements further on."""
    if isinstance(place, Pointer):
        return place.moved(by)
    return Register(place.base, place.at + by * math.prod(place.dims[1:]), place.dims, place.kind)


_PLACES = (Register, Pointer)
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: _moved(a, b) if isinstance(a, _PLACES) else _wrapped(a + b),
    "-": lambda a, b: _moved(a, -b) if isinstance(a, Pointer) else _wrapped(a - b),
    "*": lambda a, b: _wrapped(a * b),
    "/": _quotient,
    "%": _rest,
    "<<": lambda a, b: _wrapped(a << b),
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
