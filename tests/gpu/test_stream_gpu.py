"""Tiles of the last round whose sums blocks share, on the GPU: every tail, many launches, edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import polygen as pg
from polygen.decide import candidates
from polygen.hardware.device import device
from polygen.runtime.environment import current_arch
from polygen.schedule.load import load_schedule, schedules_folder, shipped
from polygen.schedule.model import Cluster, Schedule
from polygen.schedule.problem import Fitted

pytestmark = pytest.mark.gpu
SIGNATURE = ("bf16[M,K]", "bf16[N,K]", "bf16[N]", "bf16[M,N]")
SENTINEL = 77.0
LARGE = schedules_folder() / "sm_90a" / "cooperative_128x256x64.toml"


def forms() -> list[Schedule]:
    """What ships, four blocks of a cluster, results line by line, larger tiles."""
    (own,) = (one for one in shipped("sm_90a") if one.cluster.last)
    large = load_schedule(LARGE)
    return [
        own,
        replace(own, name="four", cluster=Cluster(k=4, share="last", columns=8)),
        replace(own, name="lines", epilogue=replace(own.epilogue, through="lines")),
        replace(large, name="large", cluster=Cluster(k=2, share="last", columns=16)),
    ]


@pytest.fixture(scope="module", autouse=True)
def hopper() -> None:
    if not device(current_arch() or "sm_80").has("wgmma"):
        pytest.skip("needs warpgroup instructions")


@pg.fuse
def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    return pg.relu(x @ w.T + b + r)


def operands(m: int, n: int, k: int) -> list[Any]:
    import torch

    torch.manual_seed(m + n + k)
    shapes = ((m, k), (n, k), (n,), (m, n))
    return [torch.randint(-2, 3, s, device="cuda").bfloat16() for s in shapes]


def expected(x: Any, w: Any, b: Any, r: Any) -> Any:
    import torch

    return torch.relu((x.double() @ w.double().T).float() + b.float() + r.float()).bfloat16()


def compiled(schedule: Schedule) -> pg.Kernel:
    """With as many stages as the matrix that comes in leaves room for."""
    _, fit = candidates(layer.program(*SIGNATURE), device("sm_90a"), {})
    fitted = fit(schedule)
    assert isinstance(fitted, Fitted), fitted
    assert fitted.schedule.cluster.last
    return layer.compile(*SIGNATURE, arch="sm_90a", schedule=fitted.schedule)


def tails(kernel: pg.Kernel) -> list[tuple[int, int]]:
    """Rows and columns of tiles: no tail, one tile, half a round and one more, nearly a round."""
    import torch

    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    half = blocks // 2
    counts = (1, half - 1, half + 1, blocks, blocks + 1, blocks + half, blocks + half + 1)
    return [(1, n) for n in (*counts, 2 * blocks - 1, 3 * blocks + 5)]


@pytest.mark.parametrize("schedule", forms(), ids=lambda one: one.name)
def test_every_tail_is_exact_and_nothing_beside_it_is_touched(schedule: Schedule) -> None:
    import torch

    kernel = compiled(schedule)
    rows, columns, _ = kernel.passes.plan.tiles.cta
    for down, beside in tails(kernel):
        for k in (64, 1032):
            m, n = down * rows - 3, beside * columns - 8
            given = operands(m, n, k)
            around = torch.full((m + 2, n + 16), SENTINEL, device="cuda").bfloat16()
            out = around[1 : m + 1, :n]
            kernel(*given, out=out)
            torch.cuda.synchronize()
            assert torch.equal(out, expected(*given)), (m, n, k)
            out.fill_(SENTINEL)
            assert (around == SENTINEL).all(), (m, n, k)


@pytest.mark.parametrize("schedule", forms(), ids=lambda one: one.name)
def test_a_hundred_thousand_launches_give_the_same_bits(schedule: Schedule) -> None:
    """On normal data: with one order of sums there is one result, whoever comes first."""
    import torch

    kernel = compiled(schedule)
    rows, columns, _ = kernel.passes.plan.tiles.cta
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    m, n, k = rows, columns * (blocks + blocks // 4), 1032
    torch.manual_seed(0)
    given = [torch.randn(s, device="cuda").bfloat16() for s in ((m, k), (n, k), (n,), (m, n))]
    out = torch.empty(m, n, device="cuda").bfloat16()
    first = kernel(*given).clone()
    for _ in range(100):
        for _ in range(1000):
            kernel(*given, out=out)
        torch.cuda.synchronize()
        assert torch.equal(out, first)


def test_it_is_captured_in_a_graph_and_right_for_other_operands_on_replay() -> None:
    import torch

    kernel = compiled(forms()[0])
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    given = operands(128, 128 * (blocks + 9), 520)
    out = torch.empty_like(given[3])
    kernel(*given, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(*given, out=out)
    for seed in range(20):
        torch.manual_seed(seed)
        for one in given:
            one.copy_(torch.randint(-2, 3, one.shape, device="cuda"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected(*given))


def test_the_choice_takes_it_for_a_long_sum_over_a_round_and_a_half() -> None:
    import torch

    plain = pg.fuse(lambda x, w: x @ w.T)
    sizes = {"M": 1792, "N": 1792, "K": 14336}
    kernel = plain.compile("bf16[M,K]", "bf16[N,K]", arch="sm_90a", sizes=sizes)
    x, w = (torch.randint(-1, 2, (1792, 14336), device="cuda").bfloat16() for _ in range(2))
    found = kernel(x, w)
    torch.cuda.synchronize()
    wanted = (x.double() @ w.double().T).float().bfloat16()
    assert torch.equal(found, wanted)
