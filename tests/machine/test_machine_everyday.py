"""Programs as people write them: the automatic choice for large sizes, run on small ones."""

from __future__ import annotations

import numpy as np
import pytest
from everyday_programs import PROGRAMS, QUICK

import polygen as pg

CASES = [
    pytest.param(name, arch, marks=() if (name, arch) in QUICK else pytest.mark.slow)
    for name, one in PROGRAMS.items()
    for arch in one.archs
]


def arrays(program, sizes):
    """Numbers of both signs; whole ones where an operand has no others; lengths above 0."""
    generator = np.random.default_rng(1)
    found = []
    for tensor in program.inputs:
        shape = [dim if isinstance(dim, int) else sizes[dim] for dim in tensor.dims]
        kind = tensor.dtype.numpy
        if not shape:
            found.append(0.75)
        elif np.issubdtype(kind, np.integer):
            found.append(generator.integers(-4 if kind == np.int8 else 0, 5, shape).astype(kind))
        else:
            values = generator.standard_normal(shape) / 2
            found.append((abs(values) + 0.25 if len(shape) == 1 else values).astype(kind))
    return found


@pytest.mark.parametrize(("name", "arch"), CASES)
def test_what_people_write(name, arch):
    """Near the function in double precision: half a unit of 16-bit results, and of operands."""
    one = PROGRAMS[name]
    fused = pg.fuse(one.function, name="everyday")
    dims = fused.program(*one.signature).sizes
    sizes = {dim: one.sizes[dim] for dim in dims}
    kernel = fused.compile(*one.signature, arch=arch, sizes=sizes)
    given = arrays(kernel.program, one.small)
    found, wanted = kernel.emulate(*given), fused.reference(*given)
    for got, exact in zip(
        found if isinstance(found, tuple) else (found,),
        wanted if isinstance(wanted, tuple) else (wanted,),
        strict=True,
    ):
        assert got.shape == exact.shape
        wide = got.dtype.itemsize == 4 and kernel.program.inputs[0].dtype.bytes != 2
        bound = 2.0**-18 if wide else 2.0**-7
        assert (abs(got.astype(np.float64) - exact) <= bound * (1 + abs(exact))).all()
