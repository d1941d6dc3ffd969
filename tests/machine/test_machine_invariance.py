"""Rows have the same bits for every M on the PTX machine: normal data, kernels of several tiles."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from invariant_samples import SAMPLES, arrays, bits, rows_of

from polygen.kernel import Kernel

SMALL = {"N": 48, "K": 80, "L": 48, "B": 2}
MOST = 72
WGMMA_ROWS = 64
# What kernels are optimised for is not what runs: small arrays then meet the tiles of large ones.
LARGE = {"N": 4096, "K": 4096, "L": 1024, "B": 2}

CASES = (
    ("bias, gelu", "sm_80"),
    ("bias, gelu", "sm_90a"),
    ("f16 sums", "sm_80"),
    ("tf32", "sm_90a"),
    ("polynomial, f32", "sm_90a"),
    ("e4m3", "sm_90a"),
    ("s8, scaled", "sm_80"),
    ("gated pair", "sm_90a"),
    ("batch", "sm_90a"),
    ("fused products and sums", "sm_80"),
    ("tt", "sm_90a"),
    ("unaligned rows", "sm_90a"),
)


@functools.cache
def kernel(name: str, arch: str, m: int) -> Kernel:
    sample = SAMPLES[name]
    dims = {dim: size for dim, size in (LARGE | {"M": m}).items() if dim in sample.program().sizes}
    return sample.kernel(arch, dims)


def outputs(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def product(a: Any, b: Any, *, backward: bool = False) -> Any:
    """Matrices multiplied element by element, one k after the other: as BLAS may do, or not."""
    steps = range(a.shape[-1])
    terms = [a[..., :, k, None] * b[..., None, k, :] for k in steps]
    return functools.reduce(lambda one, other: one + other, reversed(terms) if backward else terms)


@pytest.fixture
def in_order(monkeypatch):
    monkeypatch.setattr(np, "matmul", product)


@pytest.mark.sample(3)
@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize(("name", "arch"), CASES)
def test_rows_have_the_bits_that_they_have_among_others(name, arch):
    program = SAMPLES[name].program()
    given = arrays(program, SMALL | {"M": MOST}, seed=7)
    many = kernel(name, arch, 4096)
    whole = outputs(many.emulate(*given))
    assert all(np.isfinite(one.astype(np.float64)).any() for one in whole)
    schedules = {many.schedule}
    for rows, size in ((slice(5, 6), 1), (slice(17, 66), 256)):
        few = kernel(name, arch, size)
        assert few.sums == many.sums
        schedules.add(few.schedule)
        found = outputs(few.emulate(*rows_of(given, program, rows)))
        for one, every, tensor in zip(found, whole, program.outputs, strict=True):
            axis = tensor.dims.index("M")
            same = np.take(every, range(rows.start, rows.stop), axis)
            np.testing.assert_array_equal(bits(one), bits(same))
    assert len(schedules) > 1


def test_another_kind_of_instruction_gives_a_row_other_bits(monkeypatch):
    """That the comparison can fail: one kind adds up otherwise inside, as it may on a GPU."""

    def by_kind(a: Any, b: Any) -> Any:
        return product(a, b, backward=a.shape[-2] == WGMMA_ROWS)

    monkeypatch.setattr(np, "matmul", by_kind)
    sample = SAMPLES["to f32"]
    program = sample.program()
    given = arrays(program, SMALL | {"M": 40}, seed=7)
    few, many = (
        sample.fused.compile(
            *sample.operands, arch="sm_90a", sizes={"M": m, "N": 4096, "K": 4096}, out_dtype="f32"
        )
        for m in (1, 4096)
    )
    assert few.sums != many.sums
    row = few.emulate(*rows_of(given, program, slice(5, 6)))
    assert (bits(row) != bits(many.emulate(*given)[5:6])).any()
