"""Generated kernels, the same PTX on a GPU and on the PTX machine: floats of all mantissa bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrix import roles

import polygen as pg
from polygen.cli.accuracy import expected
from polygen.errors import PolygenError
from polygen.frontend.dtypes import NAMED
from polygen.hardware.device import device
from polygen.runtime.environment import current_arch
from polygen.runtime.measure import to_gpu, to_host

pytestmark = pytest.mark.gpu
SIZES = {"M": 136, "N": 272, "K": 208}
SHORT = SIZES | {"K": 112}  # sums of 8-bit products stay below 2^7, exact in the 13 bits after it
KINDS = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8")
NARROW = {"e4m3": 8, "e5m2": 4}  # values of a mantissa


def data(kind: str, shape: tuple[int, ...], seed: int) -> Any:
    """Every mantissa bit varies; 8-bit floats from ±[1, 2), whose short sums are exact."""
    generator, numpy_kind = np.random.default_rng(seed), NAMED[kind].numpy
    if kind == "s8":
        return generator.integers(-128, 128, shape).astype(np.int8)
    if kind in NARROW:
        steps = generator.integers(0, NARROW[kind], shape) / NARROW[kind]
        return ((1 + steps) * generator.choice([-1.0, 1.0], shape)).astype(numpy_kind)
    return generator.standard_normal(shape).astype(np.float32).astype(numpy_kind)


@pytest.mark.parametrize("with_roles", [False, True])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_machine_agrees_with_the_gpu(kind: str, layout: str, with_roles: bool) -> None:
    arch = str(current_arch())
    if with_roles and not device(arch).has("wgmma"):
        pytest.skip("needs warpgroup instructions")
    text = {"nt": ("M,K", "N,K"), "nn": ("M,K", "K,N"), "tn": ("K,M", "K,N")}[layout]
    sizes = SHORT if kind in NARROW else SIZES
    shapes = [tuple(sizes[dim] for dim in dims.split(",")) for dims in text]
    x, w = (data(kind, shape, seed) for seed, shape in enumerate(shapes))
    product = {
        "nt": lambda x, w: x @ w.T, "nn": lambda x, w: x @ w, "tn": lambda x, w: x.T @ w,
    }[layout]  # fmt: skip
    schedule: Any = "auto"
    if with_roles:
        schedule = roles("two", 64, 128 // NAMED[kind].bytes)
    try:
        kernel = pg.fuse(product, name=f"{layout}_{kind}").compile(
            *(f"{kind}[{dims}]" for dims in text), arch=arch, schedule=schedule,
            out_dtype="f32",
        )  # fmt: skip
    except PolygenError as error:
        pytest.skip(f"polygen has no such kernel: {error}")
    (want,) = expected(kernel.program, {"x": x, "w": w}, sizes, kernel.passes.plan.atom.k)
    on_machine = kernel.emulation(x, w)
    assert on_machine.report.ok, str(on_machine.report)
    as_bytes = kind in NARROW  # CuPy has no 8-bit floats: their bytes
    on_gpu = to_host(kernel(*(to_gpu(a.view(np.uint8) if as_bytes else a) for a in (x, w))))
    for found in (on_machine.results, on_gpu):
        error, ratio, above = want.compare(found)
        assert above == 0, f"{above} elements above their bound, by {ratio:.2f} (error {error:.3g})"
    if kind == "s8" or kind in NARROW:
        np.testing.assert_array_equal(on_machine.results, want.value)
        np.testing.assert_array_equal(on_gpu, want.value)
    apart = np.abs(on_machine.results.astype(np.float64) - on_gpu.astype(np.float64))
    assert (apart <= 2 * want.allowed).all()


@pytest.mark.parametrize("with_roles", [False, True])
def test_uniform_tf32_products_have_no_bias(with_roles: bool) -> None:
    """Operands that were cut off would give -6.5e-4; the machine's test is in `tests/machine`."""
    if with_roles and not device(str(current_arch())).has("wgmma"):
        pytest.skip("needs warpgroup instructions")
    generator = np.random.default_rng(0)
    x, w = (generator.random((256, 256), np.float32) for _ in range(2))
    kernel = pg.fuse(lambda x, w: x @ w.T, name="uniform").compile(
        "tf32[M,K]", "tf32[N,K]", arch=str(current_arch()),
        schedule=roles("two", 64, 32) if with_roles else "auto",
    )  # fmt: skip
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    found = to_host(kernel(to_gpu(x), to_gpu(w))).astype(np.float64)
    relative = float(np.mean((found - exact) / exact))
    # Matrix units cut sums off: at most 2^-23 for each of the 256 products and 32 instructions.
    assert abs(relative) < 2.0**-17 + (256 + 32) * 2.0**-23
