"""Rows that the blocks of a cluster cover together, on a GPU: exact, and the same every time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import row_samples

import polygen as pg
from polygen.frontend.evaluate import evaluate
from polygen.hardware.device import device
from polygen.lower.cover import covering
from polygen.schedule.load import shipped

pytestmark = pytest.mark.gpu
SIGNATURE = ("bf16[M,K]", "bf16[N,K]")
two_levels = pg.fuse(row_samples.two_levels)


@pg.fuse
def hits(x: Any, w: Any) -> Any:
    v = pg.clip(x @ w.T, -3, 3)
    best = np.argmax(v, axis=1)
    return pg.where(pg.indices(v)[1] == best[:, None], 1.0, 0.0), best


@pg.fuse
def norm(x: Any, w: Any, b: Any) -> Any:
    return pg.layer_norm(x @ w.T + b).astype("bf16")


@pg.fuse
def softmax(x: Any, w: Any) -> Any:
    return pg.softmax(x @ w.T).astype("bf16")


@pg.fuse
def scaled(x: Any, w: Any) -> Any:
    v = x @ w.T
    return (v / np.max(abs(v), axis=1, keepdims=True)).astype("bf16")


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    if found.cuda.get_device_capability() != (9, 0):
        pytest.skip("clusters that cover rows are of sm_90a")
    return found


def beside(name: str, blocks: int, through: str = "registers") -> Any:
    """A shipped schedule, with a cluster of so many blocks beside each other that cover rows."""
    own = next(one for one in shipped(device("sm_90a")) if one.name == name)
    own = covering(own, blocks * own.tile.cta.n)
    return replace(own, epilogue=replace(own.epilogue, through=through, columns=0))


@pytest.mark.parametrize("blocks", [2, 4, 8])
@pytest.mark.parametrize("name", ["cooperative_128x128x64_w64_s5_e3p2", "pingpong_64x96x64_s10"])
@pytest.mark.parametrize("function", [two_levels, hits], ids=["two levels", "hits"])
def test_integers_are_exact(torch, function, name, blocks):
    """Rows that end inside a block's tile, and in front of it; rows outside; many rounds."""
    kernel = function.compile(*SIGNATURE, schedule=beside(name, blocks))
    generator = np.random.default_rng(0)
    most = blocks * (128 if "128x128" in name else 96)
    for m, n, k in ((1, 8, 64), (333, most - 8, 72), (20000, most, 64), (130, most // 2, 512)):
        x, w = generator.integers(-2, 3, (m, k)), generator.integers(-2, 3, (n, k))
        given = [torch.tensor(one, device="cuda", dtype=torch.bfloat16) for one in (x, w)]
        wanted = evaluate(kernel.program, {"x": x, "w": w}, {"M": m, "N": n, "K": k})
        for one, other in zip(kernel(*given), wanted, strict=True):
            np.testing.assert_array_equal(one.float().cpu().numpy(), other.astype(np.float32))


@pytest.mark.parametrize("n", [1024, 2048])
def test_norms_are_within_what_bf16_and_f32_allow(torch, n):
    """The automatic choice: sums of 2048 products and n terms in f32, one rounding to bf16."""
    torch.manual_seed(1)
    m, k = 8192, 2048
    x, w = (torch.randn(s, k, device="cuda", dtype=torch.bfloat16) for s in (m, n))
    b = torch.randn(n, device="cuda", dtype=torch.bfloat16)
    kernel = norm.compile(*SIGNATURE, "bf16[N]", sizes={"M": m, "N": n, "K": k})
    assert kernel.schedule.epilogue.rows == "tile" and kernel.schedule.cluster.n > 1
    v = x.double() @ w.double().T + b.double()
    wanted = torch.nn.functional.layer_norm(v, (n,), eps=1e-5)
    error = (kernel(x, w, b).double() - wanted).abs()
    assert (error <= 2.0**-8 * wanted.abs() + 2.0**-12).all()


@pytest.mark.parametrize("function", [softmax, scaled], ids=["softmax", "scaled"])
def test_rows_of_2048_elements(torch, function):
    torch.manual_seed(2)
    m, n, k = 4096, 2048, 512
    x, w = (torch.randn(s, k, device="cuda", dtype=torch.bfloat16) for s in (m, n))
    schedule = beside("pingpong_64x256x64", 8, "tma")
    found = function.compile(*SIGNATURE, schedule=schedule)(x, w).double()
    v = x.double() @ w.double().T
    wanted = v.softmax(1) if function is softmax else v / v.abs().amax(1, keepdim=True)
    # A softmax's exponents are up to some hundreds, in f32: less than what bf16 rounds.
    assert ((found - wanted).abs() <= 2.0**-8 * wanted.abs() + 2.0**-20).all()


def test_the_same_bits_a_thousand_times(torch):
    """Blocks combine parts in the order of their columns, whoever comes first."""
    torch.manual_seed(3)
    x, w = (torch.randn(s, 512, device="cuda", dtype=torch.bfloat16) for s in (3001, 2048))
    b = torch.randn(2048, device="cuda", dtype=torch.bfloat16)
    schedule = beside("pingpong_64x256x64", 8, "tma")
    kernel = norm.compile(*SIGNATURE, "bf16[N]", schedule=schedule)
    assert kernel.deterministic
    first = kernel(x, w, b)
    for _ in range(1000):
        assert torch.equal(first, kernel(x, w, b))


def test_captured_in_a_graph(torch):
    torch.manual_seed(4)
    x, w = (torch.randn(s, 256, device="cuda", dtype=torch.bfloat16) for s in (1000, 1024))
    kernel = scaled.compile(*SIGNATURE, schedule=beside("pingpong_64x256x64", 4, "tma"))
    wanted, out = kernel(x, w), torch.empty(1000, 1024, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, w, out=out)
    graph.replay()
    assert torch.equal(out, wanted)
