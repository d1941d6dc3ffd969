"""Rows by index, on a GPU: exact on integers, whatever the index says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polygen as pg
from polygen.schedule.model import Launches, Schedule

pytestmark = pytest.mark.gpu

LAYERS: dict[str, tuple[Any, tuple[str, ...], dict[str, int]]] = {
    "rows": (
        lambda x, r, w: x[r] @ w.T, ("f16[S,K]", "s32[T]", "f16[N,K]"),
        {"S": 1000, "T": 777, "N": 1024, "K": 512},
    ),
    "rows of any pitch": (
        lambda x, r, w: x[r] @ w.T, ("f16[S,K]", "s32[T]", "f16[N,K]"),
        {"S": 37, "T": 4099, "N": 131, "K": 129},
    ),
    "columns": (
        lambda x, r, w, b: pg.relu(x @ w[r].T + b),
        ("f16[M,K]", "s32[N]", "f16[V,K]", "f32[N]"),
        {"M": 300, "N": 520, "V": 2000, "K": 256},
    ),
    "scaled rows": (
        lambda x, r, w, g, s: (x[r] * g * s[r][:, None]) @ w.T,
        ("f16[S,K]", "s32[T]", "f16[N,K]", "f16[K]", "f32[S]"),
        {"S": 100, "T": 1030, "N": 264, "K": 192},
    ),
    "a table behind the product": (
        lambda x, r, w, b: x @ w.T + b[r], ("f16[M,K]", "s32[M]", "f16[N,K]", "f32[E,N]"),
        {"M": 1030, "N": 520, "K": 256, "E": 17},
    ),
    "rows that are summed": (
        lambda x, r, w: x @ w[r], ("f16[M,T]", "s32[T]", "f16[V,N]"),
        {"M": 129, "T": 300, "N": 520, "V": 70},
    ),
}  # fmt: skip


def made_first(kernel: pg.Kernel) -> Schedule:
    """A schedule with roles whose operands a launch before it makes.

    Rows of the others that the copy engine does not take are copied there, too.
    """
    if not kernel.passes.plan.device.has("wgmma"):
        pytest.skip("launches before the kernel are for kernels with roles")
    before = pg.fuse(lambda x, w: x @ w.T, name="plain").compile(
        "f16[4096,4096]", "f16[4096,4096]", out_dtype="f32"
    )
    found = before.schedule
    return replace(
        found,
        roles=replace(found.roles, computes="before"),
        epilogue=replace(found.epilogue, through="lines"),
        launch=Launches(realign=True, dependent=True),
    )


@pytest.mark.parametrize("first", [False, True], ids=["auto", "made first"])
@pytest.mark.parametrize("name", LAYERS)
def test_rows_by_index_are_exact(name: str, first: bool) -> None:
    cupy = pytest.importorskip("cupy")
    function, signature, sizes = LAYERS[name]
    if first and "behind" in name:
        pytest.skip("no operand is computed")
    fused = pg.fuse(function, name="gathered")
    kernel = fused.compile(*signature, sizes=sizes, out_dtype="f32")
    if first:
        schedule = made_first(kernel)
        kernel = fused.compile(*signature, sizes=sizes, out_dtype="f32", schedule=schedule)
        assert kernel.workspace() > 0
    rng = np.random.default_rng(0)
    arrays: list[Any] = []
    for tensor in kernel.program.inputs:
        shape = [d if isinstance(d, int) else sizes[d] for d in tensor.dims]
        if tensor.name in kernel.program.gathered:
            count = sizes[str(kernel.program.gathered[tensor.name])]
            named = rng.integers(0, count, shape).astype(np.int32)
            named[:4] = (-1, count, -(2**31), 2**31 - 1)
            arrays.append(named)
        else:
            arrays.append(rng.integers(-1, 2, shape).astype(tensor.dtype.numpy))
    found = kernel(*map(cupy.asarray, arrays)).get()
    kept = [
        np.clip(array, 0, sizes[str(kernel.program.gathered[t.name])] - 1)
        if t.name in kernel.program.gathered
        else array
        for t, array in zip(kernel.program.inputs, arrays, strict=True)
    ]
    np.testing.assert_array_equal(found, pg.fuse(function).reference(*kept))


def test_many_rows_are_made_first_and_captured_in_a_graph() -> None:
    torch = pytest.importorskip("torch")
    sizes = {"S": 16384, "T": 8192, "K": 4096, "N": 4096}
    kernel = pg.fuse(lambda x, r, w: x[r] @ w.T, name="gathered").compile(
        "f16[S,K]", "s32[T]", "f16[N,K]", sizes=sizes
    )
    if kernel.passes.plan.device.has("wgmma"):
        assert kernel.schedule.makes_first and "are made first" in kernel.schedule_origin
        assert kernel.workspace() == sizes["T"] * sizes["K"] * 2
    x, w = (torch.randn(sizes[d], 4096, device="cuda", dtype=torch.half) for d in "SN")
    r = torch.randint(0, sizes["S"], (sizes["T"],), device="cuda", dtype=torch.int32)
    out = torch.empty(sizes["T"], sizes["N"], device="cuda", dtype=torch.half)
    kernel(x, r, w, out=out)
    wanted = (x[r.long()].float() @ w.float().T).half()
    torch.testing.assert_close(out, wanted, rtol=1e-2, atol=0.5)
    graph, first = torch.cuda.CUDAGraph(), out.clone()
    with torch.cuda.graph(graph):
        kernel(x, r, w, out=out)
    r.copy_(r.flip(0))
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, first.flip(0))


def test_rows_that_are_no_rows_are_named_on_request() -> None:
    cupy = pytest.importorskip("cupy")
    with pytest.raises(pg.PolygenError, match="row 1 is row 9"):
        pg.check_rows(cupy.asarray([0, 9], dtype=cupy.int32), 9)
