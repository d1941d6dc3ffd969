"""Pairs of elements of fragments that consumers compute, in C: two numbers of 16 bits in a word.

Which statements go through instructions on pairs, `polygen.lower.pairs` says, and why these give
the bits that the program asks for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polygen.emit.leaf.fragment_words import spread, word_of_memory
from polygen.frontend.dtypes import DType
from polygen.hardware.pair_conversion import PairConversion, pair_conversions
from polygen.lower.fragments import Beside, Make

_BOTH = 0x10001  # times it, a number of 16 bits is in both halves
_ON_PAIRS = {"add": "add_pairs", "sub": "subtract_pairs", "mul": "multiply_pairs"}


def pair_reads(work: Make) -> list[str]:
    """The pairs that elements e and e + 1 are computed of."""
    assert work.pairs is not None
    used = {argument for one in work.pairs.statements for argument in one.args}
    kinds = work.whole_numbers
    (name, kind), *_ = kinds.items()
    found = [f"const unsigned {name} = pair_{kind}({spread(work)});"]
    for one in work.beside:
        if one.name in used:
            found.append(
                f"const unsigned {one.name} = pair_{one.tensor.dtype}({_two_of_memory(one, work)});"
            )
    return found


def pair_lines(work: Make) -> list[str]:
    """The statements on a pair."""
    assert work.pairs is not None
    found = []
    for one in work.pairs.statements:
        given = ", ".join(_pair_argument(argument, one.dtype) for argument in one.args)
        found.append(f"const unsigned {one.result} = {_ON_PAIRS[one.function]}({given});")
    return found


def _pair_argument(argument: str | float, dtype: DType) -> str:
    if isinstance(argument, str):
        return argument
    bits = int(np.array(argument, dtype.numpy).view(np.uint16))
    return f"{bits * _BOTH:#x}u"


def pair_records(made: Sequence[Make]) -> dict[str, object]:
    """The functions on pairs that fragments need, for the template."""
    of = [work for work in made if work.pairs is not None]
    kinds = {kind: work.dtype.name for work in of for kind in work.whole_numbers.values()}
    return {
        "dtype": of[0].dtype.name if of else "",
        "conversions": [
            {"name": kind, "value": _converted(pair_conversions()[kind, to])}
            for kind, to in sorted(kinds.items())
            if kind != to
        ],
    }


def _converted(one: PairConversion) -> str:
    """The pair that a word has numbers of, in C."""
    keep, flip, plus, again = (bits * _BOTH for bits in (one.keep, one.flip, one.plus, one.again))
    second = f"{plus:#x}u"
    if one.high:
        second = f"turn_bits(word, {one.high * _BOTH:#x}u, {second})"
    value = f"add_pairs(turn_bits(word, {keep:#x}u, {flip:#x}u), {second})"
    return f"add_pairs({value}, {again:#x}u)" if one.again else value


def _two_of_memory(one: Beside, work: Make) -> str:
    """The elements of an array that go with elements e and e + 1, in the halves of a word."""
    word, _ = word_of_memory(one, work)
    return word if one.run > 1 else f"(unsigned short)({word}) * {_BOTH:#x}u"
