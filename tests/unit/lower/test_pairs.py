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


REFUSED = {
    "a scale of f32": (steps(one("v", "mul", "q", "s")), {"s": F32}, BF16),
    "a scale of another type": (steps(one("v", "mul", "q", "s")), {"s": F16}, BF16),
    "a product that is not rounded": (
        steps(one("v", "mul", "q", "s"), one("w", "mul", "v", 2.0)),
        S,
        BF16,
    ),
    "a sum of any numbers": (steps(one("v", "add", "q", "s")), S, BF16),
    "two scales": (steps(one("v", "mul", "s", "s")), S, BF16),
    "whole numbers that the type does not have": (steps(one("v", "sub", "q", 200.0)), {}, BF16),
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
