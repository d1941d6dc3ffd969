"""Rows have the same bits for M = 1 .. 257 as among 512: normal data, automatic choices."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from invariant_samples import SAMPLES, arrays

from polygen.decision import decision
from polygen.errors import UnsupportedProgram
from polygen.hardware.device import device
from polygen.kernel import Kernel
from polygen.pipeline import with_sizes
from polygen.runtime.environment import current_arch
from polygen.runtime.measure import to_gpu
from polygen.schedule.model import Schedule

pytestmark = pytest.mark.gpu
MOST, LAST = 512, 257
LARGE = {"N": 4096, "K": 2048, "L": 512, "B": 2}  # the warpgroup's instruction, where there is one
UNEVEN = {"N": 328, "K": 264, "L": 72, "B": 3}
ODD = {"N": 331, "K": 267, "L": 77, "B": 3}
CASES = [
    *((name, LARGE) for name in SAMPLES),
    *((name, UNEVEN) for name in ("bias, residual, relu", "e4m3", "gated pair", "batch", "tt")),
    *((name, ODD) for name in ("bf16", "polynomial, f32", "gate", "s8", "unaligned rows")),
]


class Choices:
    """The kernels that automatic choices for M take, one for each schedule."""

    def __init__(self, name: str, others: dict[str, int]) -> None:
        self.program = SAMPLES[name].program()
        self.device = device(str(current_arch()))
        self.others = {dim: n for dim, n in others.items() if dim in self.program.sizes}
        self.made: dict[tuple[Any, Schedule], Kernel] = {}

    def kernel(self, m: int) -> Kernel:
        sizes = {name: (self.others | {"M": m})[name] for name in self.program.sizes}
        program = with_sizes(self.program, sizes)
        schedule, origin = decision(program, self.device, sizes)
        key = (program, schedule)
        if key not in self.made:
            self.made[key] = Kernel.decided(program, self.device, sizes, schedule, origin)
        return self.made[key]


def rows(program: Any, operands: tuple[Any, ...], first: int, count: int) -> tuple[Any, ...]:
    """Views of some rows of the operands."""

    def cut(tensor: Any, value: Any) -> Any:
        index = tuple(
            slice(first, first + count) if dim == "M" else slice(None) for dim in tensor.dims
        )
        return value[index] if "M" in tensor.dims else value

    return tuple(cut(t, v) for t, v in zip(program.inputs, operands, strict=True))


def words(array: Any) -> Any:
    """The bits of elements, on the GPU."""
    import cupy

    return cupy.ascontiguousarray(array).view(f"u{array.itemsize}")


def outputs(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize(
    ("name", "others"), CASES, ids=[f"{name}, {others['N']}" for name, others in CASES]
)
def test_every_number_of_rows_gives_the_bits_of_512(name: str, others: dict[str, int]) -> None:
    import cupy

    choices = Choices(name, others)
    try:
        many = choices.kernel(MOST)
    except UnsupportedProgram as reason:
        pytest.skip(str(reason))
    program = choices.program
    given = tuple(
        to_gpu(one) if isinstance(one, np.ndarray) else one
        for one in arrays(program, choices.others | {"M": MOST}, seed=5)
    )
    whole = [words(one) for one in outputs(many(*given))]
    generator, different = np.random.default_rng(11), cupy.zeros((), cupy.int64)
    for m in range(1, LAST + 1):
        kernel = choices.kernel(m)
        assert kernel.sums == many.sums
        first = int(generator.integers(0, MOST - m + 1))
        found = outputs(kernel(*rows(program, given, first, m)))
        for one, every, tensor in zip(found, whole, program.outputs, strict=True):
            same = cupy.take(every, cupy.arange(first, first + m), tensor.dims.index("M"))
            different += (words(one) != same).sum()
    assert int(different) == 0
    if (name, others) != ("e4m3", UNEVEN):  # of which tiles of 32 x 32 make every number of rows
        assert len({kernel.schedule for kernel in choices.made.values()}) > 1


def test_zeros_infinities_and_nans_have_the_same_bits() -> None:
    """Rows of zeros against negative numbers, rows that overflow, rows with NaN."""
    import cupy

    choices = Choices("to f32", ODD)
    x, w = arrays(choices.program, choices.others | {"M": MOST}, seed=6)
    x[0::8], x[1::8], x[2::8, 3], x[3::8, 5] = 0.0, -0.0, np.inf, np.nan
    x[4::8], x[5::8] = x[4::8] * 1e-38, -np.abs(x[5::8]) * 1e-38
    w[::3] = -np.abs(w[::3])
    w[1::9] = w[1::9] * 1e-5
    given = to_gpu(x), to_gpu(w)
    whole = words(choices.kernel(MOST)(*given))
    for m in (1, 2, 3, 16, 33, 64, 100, 128, 200, 257):
        for first in (0, 5, MOST - m):
            found = choices.kernel(m)(given[0][first : first + m], given[1])
            assert int(cupy.sum(words(found) != whole[first : first + m])) == 0


def test_direct_calls_of_every_size_give_a_row_the_same_bits() -> None:
    torch = pytest.importorskip("torch")
    import polygen as pg

    torch.manual_seed(3)
    layer = pg.fuse(
        lambda x, w, r: pg.gelu(x @ w.T) * 0.7 + r, name="layer",
        invariant={"M": {"x": 0, "r": 0}},
    )  # fmt: skip
    make = functools.partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    x, w, r = make(MOST, 2048), make(1024, 2048), make(MOST, 1024)
    whole = layer(x, w, r).view(torch.int16)
    for m in (1, 2, 3, 8, 16, 17, 64, 65, 100, 128, 129, 256, 257, 511):
        first = (m * 37) % (MOST - m + 1)
        found = layer(x[first : first + m], w, r[first : first + m]).view(torch.int16)
        assert torch.equal(found, whole[first : first + m])
