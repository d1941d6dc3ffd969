"""Texts are run: what functions do that they all call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polygen.emit.run_text import Argument, Called, Handler, State
from polygen.emit.text_values import Part, Register, as_bits, as_float, number_from, pair_of
from polygen.errors import UndecidedText, VerifyError
from polygen.frontend.dtypes import NAMED

_WORD = 0xFFFFFFFF  # the bits of one
_BYTES = 8  # of two
# What Python raises where a text, or what is to be proved of it, is not what was thought of.
UNKNOWN = (
    TypeError, ValueError, AttributeError, LookupError, ArithmeticError, StopIteration,
)  # fmt: skip


def run(
    statements: tuple[Callable[[State], None], ...],
    names: Mapping[str, Any],
    threads: int,
    handlers: Mapping[str, Handler] | None = None,
) -> State:
    """Run a text that was read.

    Args:
        statements: of it.
        names: what it knows by name.
        threads: how many run it.
        handlers: what functions do that it calls.

    Returns:
        What it leaves.

    Raises:
        VerifyError: it does what is wrong whatever it is for.
        UndecidedText: it has a name that nothing is called by, or does what cannot be followed.
    """
    state = State(dict(names), {**FUNCTIONS, **(handlers or {})}, threads)
    try:
        with np.errstate(over="ignore"):
            for one in statements:
                if not state.nobody:
                    one(state)
    except UNKNOWN as error:  # as of addresses of numbers
        raise UndecidedText(f"what this does is not known: {error}") from None
    return state


def _number(called: Called) -> Any:
    """What `from_...` makes of stored bits, or of those of one of the numbers of a word."""
    kind, value = called.name.removeprefix("from_"), called.arguments[0].value
    if len(called.arguments) > 1:
        value = value >> called.arguments[1].value * NAMED[kind].bits
    return number_from(kind, value)


def _pair(called: Called) -> Any:
    """`pair_...`: the numbers that are stored in the low bits of a word's halves."""
    kind, word = called.name.removeprefix("pair_"), called.values[0]
    return pair_of(number_from(kind, word), number_from(kind, word >> 16))


def _permuted(called: Called) -> Any:
    """The bytes of two words that a number picks; none of them for its sign."""
    low, high, pick = called.values
    both, found = low & _WORD | high << 32, 0
    for place in range(4):
        byte = pick >> 4 * place & 15
        if np.any(byte > _BYTES - 1):
            raise UndecidedText("bytes are picked for their signs")
        found = found | (both >> 8 * byte & 255) << 8 * place
    return found


def _combine(called: Called) -> None:
    """Terms of a fold are added up, in whatever order; of some at once, there are arrays, and
    behind them what is added to each index.
    """
    half = len(called.arguments) // 2
    held, terms = called.arguments[:half], called.arguments[half : 2 * half]
    count = int(called.template[0]) if called.template else 1
    made = [a.value + _all_of(b, count) for a, b in zip(held, terms, strict=True)]
    for first in called.arguments[2 * half :]:
        made[-1] = made[-1] + first.value * count
    for place, value in zip(held, made, strict=True):
        place.store(value)


def _all_of(terms: Argument, count: int) -> Any:
    """The sum of an array's elements, or of a number that is the same for each of them."""
    found = terms.pointer
    if not isinstance(found, Register) or not found.dims:
        return np.asarray(terms.value, np.int64) * count
    if found.dims != (count,):
        raise VerifyError(f"{count} terms are combined, of arrays of {found.dims}")
    return sum(terms.held(count))


def _exchanged(called: Called) -> Any:
    """What the lane has whose number differs in the bits of a mask; all of its warp are there."""
    who, mask = called.state.who(), int(called.arguments[2].value)
    other = np.arange(called.state.threads) ^ mask
    if not (0 < mask < 32) or (who & ~who[other]).any():
        raise VerifyError(f"lanes exchange by {mask} what not all of them have")
    return called.of_all(1)[other]


def _words(called: Called) -> Part:
    """`make_uint2`, `make_uint4`."""
    return Part(dict(zip("xyzw", called.values, strict=False)))


def _turned(called: Called) -> Any:
    """The word that begins so many bits behind the first of two."""
    low, high, shift = called.values
    return (low | high << 32) >> (shift & 31) & _WORD


def _double(high: Any, low: Any) -> Any:
    """The number of 64 bits that two words are."""
    return as_float(low & _WORD | (high & _WORD) << 32)


FUNCTIONS: dict[str, Handler] = {
    "combine_": _combine,
    "from_": _number,
    "pair_": _pair,
    "__byte_perm": _permuted,
    "min": lambda called: np.minimum(*called.values),
    "max": lambda called: np.maximum(*called.values),
    "made": lambda called: None,  # sums are what they are
    "make_": _words,
    "__funnelshift_r": _turned,
    "__shfl_xor_sync": _exchanged,
    "__float_as_uint": lambda called: as_bits(called.arguments[0].value),
    "__float_as_int": lambda called: as_bits(called.arguments[0].value),
    "__double2loint": lambda called: as_bits(called.arguments[0].value) & _WORD,
    "__double2hiint": lambda called: as_bits(called.arguments[0].value) >> 32 & _WORD,
    "__hiloint2double": lambda called: _double(*called.values),
    "__uint_as_float": lambda called: as_float(called.arguments[0].value),
    "__int_as_float": lambda called: as_float(called.arguments[0].value),
}
