"""Copies before kernels and dependent launches on the GPU: values, streams, graphs, memory, C."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polygen as pg
from polygen.hardware.device import device
from polygen.runtime.environment import current_arch
from polygen.schedule.load import shipped
from polygen.schedule.model import Launches

pytestmark = pytest.mark.gpu
BOTH = Launches(realign=True, dependent=True)


@pytest.fixture(scope="module", autouse=True)
def hopper() -> None:
    if not device(current_arch() or "sm_80").has("wgmma"):
        pytest.skip("needs warpgroup instructions")


@pg.fuse
def layer(x: Any, w: Any, b: Any) -> Any:
    return pg.relu(x @ w.T + b)


@pg.fuse
def product(x: Any, w: Any) -> Any:
    return x @ w.T


def compiled(function: Any, *signature: str, launch: Launches = BOTH) -> pg.Kernel:
    schedule = next(s for s in shipped("sm_90a") if s.name == "pingpong_128x128x64")
    epilogue = replace(schedule.epilogue, through="lines")
    schedule = replace(schedule, launch=launch, epilogue=epilogue)
    return function.compile(*signature, arch=str(current_arch()), schedule=schedule)


def odd_layer(launch: Launches = BOTH) -> pg.Kernel:
    return compiled(layer, "bf16[M,K]@2", "bf16[N,K]@2", "bf16[N]@2", launch=launch)


def operands(m: int, n: int, k: int, seed: int = 0) -> list[Any]:
    import torch

    torch.manual_seed(seed)
    return [torch.randint(-2, 3, s, device="cuda").bfloat16() for s in ((m, k), (n, k), (n,))]


def expected(x: Any, w: Any, b: Any) -> Any:
    import torch

    return torch.relu(x.float() @ w.float().T + b.float()).bfloat16()


SIZES = [(1, 1, 1), (67, 45, 131), (129, 257, 63), (1031, 515, 1023), (64, 4099, 4101)]


@pytest.mark.parametrize("launch", [Launches(True, False), BOTH], ids=["plain", "dependent"])
@pytest.mark.parametrize("sizes", SIZES)
def test_values(launch: Launches, sizes: tuple[int, int, int]) -> None:
    import torch

    kernel, arrays = odd_layer(launch), operands(*sizes)
    assert torch.equal(kernel(*arrays), expected(*arrays))


def test_an_automatic_call_of_a_large_odd_product_is_copied_first() -> None:
    import torch

    own = pg.fuse(lambda x, w, b: pg.relu(x @ w.T + b), name="own")
    x, w, b = operands(2049, 2047, 1031)
    assert torch.equal(own(x, w, b), expected(x, w, b))
    (kernel,) = own._variants._young.values()
    assert kernel.schedule.launch == BOTH and kernel.workspace() > 0


def test_the_bits_are_those_of_the_aligned_kernel() -> None:
    import torch

    torch.manual_seed(1)
    m, n, k = 1000, 777, 1031
    x, w, b = (torch.randn(s, device="cuda").bfloat16() for s in ((m, k), (n, k), (n,)))
    wide = [torch.zeros(rows, 1032, device="cuda").bfloat16() for rows in (m, n)]
    for target, source in zip(wide, (x, w), strict=True):
        target[:, :k] = source
    aligned = compiled(
        layer, "bf16[M,K]", "bf16[N,K]", "bf16[N]@2", launch=Launches(dependent=True)
    )
    ours, theirs = odd_layer()(x, w, b), aligned(wide[0][:, :k], wide[1][:, :k], b)
    assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16))


def test_many_calls_in_a_row_each_read_what_the_one_before_wrote() -> None:
    """A chain of dependent launches: h = relu(h @ w.T + b), 200 times, odd rows throughout."""
    import torch

    kernel = odd_layer()
    n = 515
    _, w, b = operands(1, n, n, seed=3)
    h = torch.randint(0, 3, (301, n), device="cuda").bfloat16()
    w = (w * (torch.rand(n, n, device="cuda") < 0.004)).contiguous()
    ours, theirs = h, h
    for _ in range(200):
        ours = kernel(ours, w, b)
        theirs = expected(theirs, w, b).clamp(max=64)
        ours = ours.clamp(max=64)
    assert torch.equal(ours, theirs)
    for _ in range(20):
        chain, wanted = h, h
        for _ in range(5):
            chain = kernel(chain, w, b)  # nothing but dependent launches in between
        for _ in range(5):
            wanted = expected(wanted, w, b)
        assert torch.equal(chain, wanted)


def test_two_streams_do_not_share_a_workspace() -> None:
    import torch

    kernel = odd_layer()
    streams = [torch.cuda.Stream() for _ in range(4)]
    arrays = [operands(515, 517, 1031, seed=seed) for seed in range(4)]
    torch.cuda.synchronize()
    results: list[Any] = []
    for _ in range(20):
        results = []
        for stream, mine in zip(streams, arrays, strict=True):
            with torch.cuda.stream(stream):
                results.append(kernel(*mine))
    torch.cuda.synchronize()
    for mine, found in zip(arrays, results, strict=True):
        assert torch.equal(found, expected(*mine))


def test_a_graph_of_pytorch_replays_with_other_values() -> None:
    import torch

    kernel, (x, w, b) = odd_layer(), operands(259, 261, 1031)
    out = torch.empty(259, 261, device="cuda", dtype=torch.bfloat16)
    kernel(x, w, b, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, w, b, out=out)
        kernel(x, w, b, out=out)
    others = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(8)]  # takes freed memory
    for seed in (5, 6):
        for target, source in zip((x, w, b), operands(259, 261, 1031, seed), strict=True):
            target.copy_(source)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected(x, w, b))
    assert all(bool((one == 7).all()) for one in others)


def test_a_graph_of_cupy_has_memory_of_its_own() -> None:
    cupy = pytest.importorskip("cupy")
    kernel, rng = compiled(product, "f16[M,K]@2", "f16[N,K]@2"), np.random.default_rng(0)
    x, w = (cupy.asarray(rng.integers(-2, 3, s).astype("f2")) for s in ((131, 515), (67, 515)))
    y = cupy.empty((131, 67), "f2")
    kernel(x, w, out=y)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        kernel(x, w, out=y)
        graph = stream.end_capture()
        others = [cupy.full(1 << 20, 7.0) for _ in range(8)]
        for _ in range(3):
            x += 1
            y[...] = 0
            graph.launch()
        stream.synchronize()
    wanted = x.get().astype("f4") @ w.get().astype("f4").T
    assert np.array_equal(y.get().astype("f4"), wanted)
    assert all(bool((one == 7).all()) for one in others)


def test_pytorch_keeps_memory_to_graphs_that_it_captures() -> None:
    import torch

    from polygen.runtime.graph_memory import graph_memory

    kernel, (x, w, b) = odd_layer(), operands(259, 261, 1031)
    out = torch.empty(259, 261, device="cuda", dtype=torch.bfloat16)
    kernel(x, w, b, out=out)
    torch.cuda.synchronize()
    for pool, own in (((), 0), ((torch.cuda.graph_pool_handle(),), 1)):
        graph, before = torch.cuda.CUDAGraph(), list(graph_memory.rooms)
        with torch.cuda.graph(graph, *pool):
            kernel(x, w, b, out=out)
            kernel(x, w, b, out=out)
        made = [room for room in graph_memory.rooms if room not in before]
        assert len(made) == own  # of a pool that the program made
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected(x, w, b))


def test_memory_of_a_graph_goes_with_the_graph() -> None:
    """Of one that CuPy captures, on a stream that PyTorch uses."""
    import time

    import torch

    from polygen.runtime.graph_memory import graph_memory

    cupy = pytest.importorskip("cupy")
    kernel, (x, w, b) = odd_layer(), operands(259, 261, 1031)
    out = torch.empty(259, 261, device="cuda", dtype=torch.bfloat16)
    kernel(x, w, b, out=out)
    torch.cuda.synchronize()
    wanted, own = expected(x, w, b), None
    for _ in range(3):
        before, stream = len(graph_memory.rooms), cupy.cuda.Stream(non_blocking=True)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            stream.begin_capture()
            kernel(x, w, b, out=out)
            kernel(x, w, b, out=out)
            graph = stream.end_capture()
        assert own not in graph_memory.rooms and len(graph_memory.rooms) <= before + 1
        own = graph_memory.rooms[-1]
        others = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(8)]
        out.zero_()
        torch.cuda.synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert torch.equal(out, wanted) and not own.gone()
        assert all(bool((one == 7).all()) for one in others)
        del graph
        for _ in range(60_000):  # the driver says so from a thread of its own
            if own.gone():
                break
            time.sleep(0.01)
        assert own.gone()


def test_no_memory_is_kept_by_a_call() -> None:
    import torch

    kernel, arrays = odd_layer(), operands(1031, 1033, 1035)
    out = torch.empty(1031, 1033, device="cuda", dtype=torch.bfloat16)
    kernel(*arrays, out=out)
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        kernel(*arrays, out=out)
    assert torch.cuda.memory_allocated() == before
    torch.cuda.reset_peak_memory_stats()
    kernel(*arrays, out=out)
    sizes = {"M": 1031, "N": 1033, "K": 1035}
    assert 0 <= torch.cuda.max_memory_allocated() - before - kernel.workspace(sizes) < 1 << 12


def test_what_stays_is_aligned_once() -> None:
    import torch

    kernel, (x, w, b) = odd_layer(), operands(515, 777, 1031)
    plan = kernel.plan(w=w, b=b)
    wanted = expected(x, w, b)
    w.zero_()
    for _ in range(3):
        assert torch.equal(plan.run(x), wanted)
    sizes = {"M": 515, "N": 777, "K": 1031}
    assert 0 < plan.workspace(sizes) < kernel.workspace(sizes)


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_aligned_copies_of_every_library_and_order(library: str) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, s).astype("f2") for s in ((131, 515), (515, 67)))
    if library == "cupy":
        cupy = pytest.importorskip("cupy")
        first, second = cupy.asarray(x), cupy.asarray(w)
    else:
        import torch

        first, second = torch.from_numpy(x).cuda(), torch.from_numpy(w).cuda()
    kernel = compiled(product, "f16[M,K]@2", "f16[N,K]:col@2")
    found = kernel.plan(w=second.T).run(first)
    found = found.get() if library == "cupy" else found.cpu().numpy()
    assert np.array_equal(found.astype("f4"), x.astype("f4") @ w.astype("f4"))


def test_dependent_kernels_without_copies_follow_each_other() -> None:
    import torch

    first = compiled(layer, "bf16[M,K]", "bf16[N,K]", "bf16[N]", launch=Launches(dependent=True))
    x, w, b = operands(512, 512, 512, seed=9)
    w = (w * (torch.rand(512, 512, device="cuda") < 0.004)).contiguous()
    for _ in range(20):
        chain, wanted = x, x
        for _ in range(5):
            chain = first(chain, w, b)
        for _ in range(5):
            wanted = expected(wanted, w, b)
        assert torch.equal(chain, wanted)
