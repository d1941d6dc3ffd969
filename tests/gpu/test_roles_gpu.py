"""Specialised kernels on the GPU: many launches, every size, graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polygen as pg
from polygen.hardware.device import device
from polygen.runtime.environment import current_arch
from polygen.schedule.load import shipped
from polygen.schedule.model import Cluster

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def hopper() -> None:
    if not device(current_arch() or "sm_80").has("wgmma"):
        pytest.skip("needs warpgroup instructions")


@pg.fuse
def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    return pg.relu(x @ w.T + b + r)


def compiled(name: str, **changes: Any) -> pg.Kernel:
    schedule = next(s for s in shipped("sm_90a") if s.name == name)
    stages = max(3, schedule.pipeline.stages - 2)  # there are operand panels too
    changes = {"pipeline": replace(schedule.pipeline, stages=stages)} | changes
    return layer.compile(
        "bf16[M,K]", "bf16[N,K]", "bf16[N]", "bf16[M,N]",
        arch=str(current_arch()), schedule=replace(schedule, **changes),
    )  # fmt: skip


def operands(m: int, n: int, k: int) -> list[Any]:
    import torch

    torch.manual_seed(m + n + k)
    shapes = ((m, k), (n, k), (n,), (m, n))
    return [torch.randint(-2, 3, s, device="cuda").bfloat16() for s in shapes]


def expected(x: Any, w: Any, b: Any, r: Any) -> Any:
    import torch

    return torch.relu(x.float() @ w.float().T + b.float() + r.float()).bfloat16()


@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        ("cooperative_128x256x64", (2, 1)),
        ("pingpong_128x128x64", (2, 1)),
        ("pingpong_128x128x64", (1, 1)),
        ("pingpong_64x192x64_t3_s5", (2, 1)),
        ("pingpong_64x192x64_t3_s5", (1, 1)),
        ("cooperative_256x128x64", (2, 2)),
        ("cooperative_64x64x64_s11_k2", (1, 1, 2)),
        ("cooperative_64x64x64_s11_k4", (1, 1, 4)),
        ("cooperative_64x128x64_s6_k8", (1, 1, 8)),
    ],
)
def test_ten_thousand_launches(name: str, cluster: tuple[int, ...]) -> None:
    """A race that is rare, or a barrier that is one phase off, hangs or differs sooner or later."""
    import torch

    kernel = compiled(name, cluster=Cluster(*cluster))
    for size, count in (
        ((1000, 1544, 520), 5000),
        ((256, 512, 64), 4000),
        ((3000, 3000, 200), 1000),
    ):
        given = operands(*size)
        wanted = expected(*given)
        out = torch.full_like(wanted, float("nan"))
        different = torch.zeros((), dtype=torch.int64, device="cuda")
        for number in range(count):
            kernel(*given, out=out)
            if number % 50 == 0:
                different += (out != wanted).sum()
                out.fill_(float("nan"))
        kernel(*given, out=out)
        different += (out != wanted).sum()
        assert int(different) == 0


def test_every_remainder_of_a_tile() -> None:
    """Sizes around the multiples of the tile, with row pitches that tensor maps take."""
    import torch

    for name in (
        "cooperative_128x64x64", "pingpong_64x128x64", "pingpong_128x160x64",
        "cooperative_64x64x64_s11_k4", "cooperative_64x64x64_s5_k8_registers_b2",
    ):  # fmt: skip
        kernel = compiled(name)
        for m, n, k in [(1, 8, 1), (127, 136, 63), (129, 160, 65), (131, 152, 509), (521, 1016, 7)]:
            x, w, b, r = operands(m, n, -(-k // 8) * 8)
            x, w = x[:, :k], w[:, :k]
            out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
            kernel(x, w, b, r, out=out)
            assert torch.equal(out, expected(x, w, b, r)), (name, m, n, k)


def test_a_captured_graph_replays() -> None:
    import torch

    kernel = compiled("pingpong_128x128x64", cluster=Cluster(1, 1))
    given = operands(512, 512, 256)
    out = torch.zeros(512, 512, device="cuda", dtype=torch.bfloat16)
    kernel(*given, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(*given, out=out)
    given[0].neg_()
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected(*given))


@pytest.mark.parametrize("name", ["pingpong_128x128x64", "cooperative_64x64x64_s11_k4"])
def test_results_are_the_same_every_time(name: str) -> None:
    """Sums are added in one order, whatever block takes which tile, or sends its part first."""
    import torch

    kernel = compiled(name)
    x, w = (torch.randn(1000, 1000, device="cuda").bfloat16() for _ in range(2))
    b, r = torch.randn(1000, device="cuda").bfloat16(), torch.randn(1000, 1000, device="cuda")
    results = [kernel(x, w, b, r.bfloat16()).cpu().view(torch.int16).numpy() for _ in range(5)]
    assert all(np.array_equal(results[0], other) for other in results[1:])
