"""Pairs of elements are computed by instructions on pairs only where the bits are the program's."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from polygen.frontend.dtypes import BF16, E4M3, F16, F32, S8
from polygen.hardware.conversion import meaning
from polygen.lower.pairs import in_pairs
from polygen.poly.elements import Compute

Q, S = {"q": "s8"}, {"s": BF16}


def one(result, function, *args, to=F32):
    return Compute(result, function, args, to)


def steps(*made, to=BF16):
    """Statements, the last of which rounds to what is multiplied."""
    return (*made, one("last", "cast", made[-1].result if made else "q", to=to))


def functions(found):
    return [(made.function, *made.args) for made in found.statements]


def test_a_scaled_number_is_one_product():
    found = in_pairs(steps(one("c", "cast", "q", to=BF16), one("v", "mul", "c", "s")), Q, S, BF16)
    assert functions(found) == [("mul", "q", "s")] and found.result == "v"


def test_a_number_alone_is_what_is_stored():
    found = in_pairs(steps(), Q, {}, BF16)
    assert found.statements == () and found.result == "q"


def test_a_zero_point_is_taken_before():
    found = in_pairs(steps(one("d", "sub", "q", 3.0), one("v", "mul", "s", "d")), Q, S, BF16)
    assert functions(found) == [("sub", "q", 3.0), ("mul", "s", "d")]


def test_a_product_that_the_program_rounds_may_be_scaled_again():
    twice = steps(
        one("v", "mul", "q", "s"), one("r", "cast", "v", to=BF16), one("w", "mul", "r", 2.0)
    )
    assert functions(in_pairs(twice, Q, S, BF16)) == [("mul", "q", "s"), ("mul", "v", 2.0)]


def test_numbers_of_the_type_go_in_pairs_as_they_are_stored():
    x, g = {"x": "bf16"}, {"g": BF16}
    found = in_pairs(steps(one("v", "mul", "x", "g")), x, g, BF16)
    assert functions(found) == [("mul", "x", "g")] and found.result == "v"
    rounded = steps(
        one("v", "mul", "x", 0.25), one("r", "cast", "v", to=BF16), one("w", "sub", "g", "r")
    )
    assert functions(in_pairs(rounded, x, g, BF16)) == [("mul", "x", 0.25), ("sub", "g", "v")]
    assert in_pairs(steps(one("v", "mul", "x", "g"), to=F16), x, g, F16) is None


def rounded(numbers, digits):
    """Whole numbers as their nearest ones of so many digits, even ones of two."""
    size = np.maximum(np.frexp(np.abs(numbers).astype(np.float64))[1] - digits, 0).astype(np.int64)
    unit = np.int64(1) << size
    low, rest = np.divmod(numbers, unit)
    return (low + ((2 * rest > unit) | ((2 * rest == unit) & (low % 2 == 1)))) * unit


@pytest.mark.parametrize("digits", [8, 11])
def test_rounding_to_f32_before_changes_no_sum_difference_or_product(digits):
    """All of bf16's pairs of digits, one in seventeen of f16's, all distances that matter."""
    every = np.arange(1 << digits - 1, 1 << digits, dtype=np.int64)
    a, b = every[:, None], every[None, :: 1 if digits == 8 else 17]
    np.testing.assert_array_equal(rounded(rounded(a * b, 24), digits), rounded(a * b, digits))
    for apart in range(28):
        for found in ((a << apart) + b, (a << apart) - b, b - (a << apart)):
            np.testing.assert_array_equal(
                rounded(rounded(found, 24), digits), rounded(found, digits)
            )


REFUSED = {
    "a scale of f32": (steps(one("v", "mul", "q", "s")), {"s": F32}, BF16),
    "a scale of another type": (steps(one("v", "mul", "q", "s")), {"s": F16}, BF16),
    "a product that is not rounded": (
        steps(one("v", "mul", "q", "s"), one("w", "mul", "v", 2.0)),
        S,
        BF16,
    ),
    "a sum that is not rounded": (
        steps(one("v", "add", "q", "s"), one("w", "add", "v", "s")),
        S,
        BF16,
    ),
    "whole numbers that the type does not have": (
        steps(one("v", "sub", "q", 200.0), one("w", "mul", "v", "s")),
        S,
        BF16,
    ),
    "a number that the type does not have": (steps(one("v", "mul", "q", 257.0)), {}, BF16),
    "a fraction": (steps(one("v", "mul", "q", 0.1)), {}, BF16),
    "a function": (steps(one("v", "exp", "q")), {}, BF16),
    "numbers of 8 bits": (
        steps(one("c", "cast", "q", to=E4M3), one("v", "mul", "c", "s")),
        S,
        BF16,
    ),
    "whole numbers of 8 bits": (
        steps(one("c", "cast", "q", to=S8), one("v", "mul", "c", "s")),
        S,
        BF16,
    ),
    "another type in between": (
        steps(one("c", "cast", "q", to=F16), one("v", "mul", "c", "s")),
        S,
        BF16,
    ),
    "a coordinate": (steps(one("v", "mul", "q", "row")), {}, BF16),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_elements_are_computed_one_by_one(name):
    statements, others, dtype = REFUSED[name]
    assert in_pairs(statements, Q, others, dtype) is None


def test_types_without_a_sequence_are_computed_one_by_one():
    assert in_pairs(steps(one("v", "mul", "q", "s")), {"q": "e4m3"}, S, BF16) is None
    assert in_pairs(steps(one("v", "mul", "q", "s"), to=F32), Q, {"s": F32}, F32) is None


@pytest.mark.parametrize(
    "kind, to", [*itertools.product(["s8", "u8", "i4", "u4"], [ml_dtypes.bfloat16, np.float16])]
)
def test_f32_has_every_product_of_a_whole_number_and_a_number_of_the_type(kind, to):
    """So that rounding it is rounding the exact product, which is what an instruction does."""
    scales = np.arange(1 << 16, dtype=np.uint16).view(to).astype(np.float32)
    scales = scales[np.isfinite(scales)]
    for whole in np.unique([*meaning(kind), 256.0, -256.0]):
        exact = scales.astype(np.float64) * whole
        with np.errstate(over="ignore"):
            found = scales * np.float32(whole)
        inside = np.abs(exact) <= np.finfo(np.float32).max
        np.testing.assert_array_equal(found[inside].astype(np.float64), exact[inside])
        assert np.isinf(found[~inside]).all(), "as the type's own products are"
