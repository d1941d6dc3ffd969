"""Operands that are copied first with their axes in another order, on a GPU: exact on integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polygen as pg
from polygen.hardware.device import device
from polygen.runtime.environment import current_arch

pytestmark = pytest.mark.gpu


def product(x: Any, w: Any) -> Any:
    return x @ w


def most(x: Any, w: Any) -> Any:
    """Copies before the kernel, and a launch for folds behind it."""
    return pg.max((x @ w).astype("f32"), axis=1)


def most_of_heads(x: Any, w: Any) -> Any:
    return pg.max((x @ w).astype("f32").reshape(-1, 4, 16), axis=-1)


def images(x: Any, w: Any) -> Any:
    around = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    found = np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(2, 3))
    return pg.relu(pg.einsum("nchwrs,ocrs->nohw", found, w))


def lines(x: Any, w: Any) -> Any:
    found = np.lib.stride_tricks.sliding_window_view(x, 3, axis=2)
    return pg.einsum("nclk,ock->nol", found, w)


PROGRAMS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "s8": (product, ("s8[M,K]", "s8[K,N]")),
    "e4m3": (product, ("e4m3[M,K]", "e4m3[K,N]")),
    "both of s8": (lambda x, w: x.T @ w, ("s8[K,M]", "s8[K,N]")),
    "matrices": (product, ("s8[B,M,K]", "s8[B,K,N]")),
    "most": (most, ("s8[M,K]", "s8[K,N]")),
    "most of heads": (most_of_heads, ("s8[M,K]", "s8[K,64]")),
    "images": (images, ("bf16[B,C,14,15]", "bf16[O,C,3,3]")),
    "images of s8": (images, ("s8[B,C,14,15]", "s8[O,C,3,3]")),
    "lines": (lines, ("f16[B,C,50]", "f16[O,C,3]")),
}
SIZES = {"B": 3, "M": 301, "N": 259, "K": 515, "C": 48, "O": 72}


@pytest.mark.parametrize("roles", [True, False], ids=["chosen", "by warps"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_operands_in_another_order_are_exact(name: str, roles: bool) -> None:
    torch = pytest.importorskip("torch")
    own = device(current_arch() or "sm_80")
    if name == "e4m3" and not own.has("mma_sync_fp8"):
        pytest.skip("needs instructions on 8-bit floats")
    function, signature = PROGRAMS[name]
    fused = pg.fuse(function, name="turned")
    program = fused.program(*signature)
    sizes = {dim: SIZES[dim] for dim in program.sizes}
    arch = own.name if roles else own.name.rstrip("a")
    kernel = fused.compile(*signature, arch=arch, sizes=sizes)
    assert kernel.workspace(sizes) > 0
    rng, given = np.random.default_rng(0), []
    for tensor in program.inputs:
        shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in tensor.dims)
        given.append(rng.integers(-1, 2, shape).astype(tensor.dtype.numpy))
    types = {"s8": torch.int8, "e4m3": torch.float8_e4m3fn, "f16": torch.float16}
    on_gpu = [
        torch.from_numpy(one.astype(np.float32)).cuda().to(
            types.get(tensor.dtype.name, torch.bfloat16)
        )
        for one, tensor in zip(given, program.inputs, strict=True)
    ]  # fmt: skip
    wanted = np.asarray(fused.reference(*given), np.float64)
    np.testing.assert_array_equal(kernel(*on_gpu).double().cpu().numpy(), wanted)
