"""Generated tf32 kernels on the machine: f32 data is rounded on its way to the matrix units."""

from __future__ import annotations

import numpy as np
import pytest
from matrix import roles

import polygen as pg
from polygen.machine import tensormap

SIZES = {"M": 256, "N": 256, "K": 256}
TRUNCATED = -6.5e-4  # mean relative error of products of uniform data whose operands are cut off


def mean_error(arch: str, uses_maps: bool) -> float:
    """Of ``x @ w.T`` with uniform data, every mantissa bit of it random, against float64."""
    generator = np.random.default_rng(0)
    x, w = (generator.random(shape, np.float32) for shape in ((256, 256), (256, 256)))
    kernel = pg.fuse(lambda x, w: x @ w.T, name="product").compile(
        "tf32[M,K]", "tf32[N,K]", arch=arch, sizes=SIZES,
        schedule=roles("two", 64, 32) if uses_maps else "auto",
    )  # fmt: skip
    # The copy engine rounds, or the threads do; never nobody.
    assert ("cp.async.bulk.tensor" in kernel.ptx) == uses_maps
    assert ("cvt.rna.tf32.f32" in kernel.ptx) != uses_maps
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    found = kernel.emulate(x, w).astype(np.float64)
    return float(np.mean((found - exact) / exact))


@pytest.mark.parametrize("arch, uses_maps", [("sm_80", False), ("sm_90a", True)])
def test_products_of_uniform_data_have_no_bias(arch, uses_maps):
    """131072 operands with errors of up to 2^-11 each: their mean has about 2^-12 / 2^8.5."""
    assert abs(mean_error(arch, uses_maps)) < 2.0**-17


def test_a_machine_that_cuts_off_is_noticed(monkeypatch):
    monkeypatch.setattr(tensormap, "TF32_ROUNDING", "rz")
    assert mean_error("sm_90a", True) == pytest.approx(TRUNCATED, rel=0.1)
