"""Axes that kernels split and merge, on a GPU: exact on integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reshape_samples import PROGRAMS, QUICK, SIZES, SLOW, WAYS, schedule_of

import polygen as pg
from polygen.hardware.device import device
from polygen.runtime.environment import current_arch

pytestmark = pytest.mark.gpu


def _array(tensor: Any, sizes: dict[str, int], rng: np.random.Generator) -> Any:
    shape = tuple(d if isinstance(d, int) else sizes[d] for d in tensor.dims)
    return rng.integers(-1, 2, shape).astype(tensor.dtype.numpy)


@pytest.mark.parametrize(("name", "way"), [*QUICK, *SLOW])
def test_reshapes_are_exact(name: str, way: str) -> None:
    torch = pytest.importorskip("torch")
    function, signature = PROGRAMS[name]
    arch, _ = WAYS[way]
    if arch == "sm_90a" and not device(current_arch() or "sm_80").has("wgmma"):
        pytest.skip("needs warpgroup instructions")
    fused = pg.fuse(function, name="reshaped")
    program = fused.program(*signature)
    sizes = {dim: SIZES[dim] for dim in program.sizes}
    own = str(current_arch())
    kernel = fused.compile(*signature, arch=own, sizes=sizes, schedule=schedule_of(way))
    rng = np.random.default_rng(0)
    given = [_array(tensor, sizes, rng) for tensor in program.inputs]
    wanted = fused.reference(*given)
    on_gpu = [
        torch.from_numpy(one.astype(np.float32)).to(
            "cuda", torch.bfloat16 if tensor.dtype.name == "bf16" else torch.float32
        )
        for one, tensor in zip(given, program.inputs, strict=True)
    ]
    got = kernel(*on_gpu)
    several = isinstance(wanted, tuple)
    for one, exact in zip(*((got, wanted) if several else ((got,), (wanted,))), strict=True):
        assert tuple(one.shape) == np.shape(exact)
        np.testing.assert_array_equal(one.float().cpu().numpy(), np.asarray(exact, np.float32))
