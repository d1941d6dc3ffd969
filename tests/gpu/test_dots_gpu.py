"""Dot products by lanes, on the GPU: every schedule that ships, few rows, the same bits."""

from __future__ import annotations

from typing import Any

import pytest

import polygen as pg
from polygen.runtime.environment import current_arch
from polygen.schedule.load import shipped
from polygen.schedule.model import Schedule

pytestmark = pytest.mark.gpu
SCHEDULES = [one for one in shipped("sm_80") if one.by_lanes]
ROWS = (1, 2, 3, 4, 5, 6, 7, 13)


@pg.fuse
def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    return pg.relu(x @ w.T + b + r)


@pg.fuse
def product(x: Any, w: Any) -> Any:
    return x @ w.T


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: one.name)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_number_of_rows_is_exact_and_nothing_beside_it_is_touched(
    schedule: Schedule, dtype: str
) -> None:
    import torch

    kind = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    signature = (f"{dtype}[M,K]", f"{dtype}[N,K]", f"{dtype}[N]", f"{dtype}[M,N]")
    kernel = layer.compile(*signature, arch=str(current_arch()), schedule=schedule)
    for m in ROWS:
        for n, k in ((1001, 264), (4096, 4096), (64, 8)):
            torch.manual_seed(m + n + k)
            shapes = ((m, k), (n, k), (n,), (m, n))
            x, w, b, r = (torch.randint(-2, 3, s, device="cuda").to(kind) for s in shapes)
            around = torch.full((m + 2, n + 15), 77.0, device="cuda").to(kind)
            out = around[1 : m + 1, :n]
            kernel(x, w, b, r, out=out)
            torch.cuda.synchronize()
            wanted = torch.relu((x.double() @ w.double().T).float() + b.float() + r.float())
            assert torch.equal(out, wanted.to(kind)), (m, n, k)
            out.fill_(77.0)
            assert (around == 77.0).all(), (m, n, k)


def test_tiles_of_one_class_give_a_row_the_same_bits() -> None:
    import torch

    x = torch.randn(6, 4104, device="cuda").bfloat16()
    w = torch.randn(512, 4104, device="cuda").bfloat16()
    found: dict[str, list[Any]] = {}
    for schedule in SCHEDULES:
        kernel = product.compile(
            "bf16[M,K]", "bf16[N,K]", arch=str(current_arch()), schedule=schedule, out_dtype="f32"
        )
        rows = [torch.as_tensor(kernel(x[: m + 1], w), device="cuda")[m] for m in range(6)]
        found.setdefault(kernel.sums.text, []).append(torch.stack(rows))
    assert max(map(len, found.values())) >= 6
    for same in found.values():
        assert all(torch.equal(one, same[0]) for one in same)
