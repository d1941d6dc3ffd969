"""f32 in two tf32, as fragments of warps are split, on the PTX machine."""

from __future__ import annotations

import numpy as np
from pointwise_kernels import BLOCK, TEMPLATES, ptx_of

from polygen.frontend.rounding import nearest_tf32
from polygen.machine import Launch, run

CUT = np.uint32(0xFFFFE000)  # the bits that instructions take
KERNEL = """
extern "C" __global__ void k(const unsigned* numbers, unsigned* first, unsigned* rest) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned own = numbers[i], left;
  split_to_tf32(own, left);
  first[i] = own, rest[i] = left;
}
"""


def split(numbers):
    given = np.concatenate([numbers, np.zeros(-len(numbers) % BLOCK, "f4")])
    names = ("round_to_tf32", "split_to_tf32")
    text = "".join((TEMPLATES / f"instructions/{name}.cu.j2").read_text() for name in names)
    bits = given.view("u4")
    arrays = (bits, np.zeros_like(bits), np.zeros_like(bits))
    grid = (len(given) // BLOCK, 1, 1)
    report = run(ptx_of(text + KERNEL), Launch(grid, (BLOCK, 1, 1), 0, arrays))
    assert report.ok, str(report)
    first, rest = (array[: len(numbers)] for array in report.arrays[1:])
    return first.view("f4"), (rest & CUT).view("f4")


def test_what_instructions_take_are_the_two_nearest():
    generator = np.random.default_rng(0)
    mantissas = (np.arange(2**13, dtype="u4") << 5 | 0x3F800000).view("f4")
    ties = ((np.arange(2**11, dtype="u4") << 12) | 0x3F800000).view("f4")
    normal = generator.standard_normal(4096).astype("f4")
    scaled = normal * np.float32(2) ** generator.integers(-90, 90, 4096)
    numbers = np.concatenate([mantissas, -mantissas, ties, normal, scaled, [0.0, -0.0]])
    numbers = numbers.astype("f4")
    first, rest = split(numbers)
    left = (numbers - first).astype("f4")
    assert np.array_equal(first, nearest_tf32(numbers).astype("f4"))
    assert np.array_equal(rest, nearest_tf32(left).astype("f4"))
    assert (abs(numbers - first - rest.astype("f8")) <= abs(numbers) * 2.0**-22).all()


def test_no_number_stays_none():
    first, _ = split(np.array([np.nan, np.inf, -np.inf], "f4"))
    assert np.array_equal(first, [np.nan, np.inf, -np.inf], equal_nan=True)
