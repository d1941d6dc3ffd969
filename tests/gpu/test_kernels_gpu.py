"""Kernels on a GPU: real layers against float64, direct calls, graphs, host overhead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polygen as pg
from polygen.cli.accuracy import expected

pytestmark = pytest.mark.gpu


@pg.fuse
def up(x: Any, w: Any, b: Any) -> Any:
    return pg.gelu(x @ w.T + b)


@pg.fuse
def mlp_up(x: Any, w: Any, b: Any, g: Any) -> Any:
    return pg.silu(x @ w.T + b) * g


@pytest.mark.parametrize("tokens", [512, 4096])
def test_transformer_mlp_layer_is_within_its_bound(tokens: int) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(tokens)
    width, hidden = 4096, 14336
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)  # noqa: E731
    x, w, b, g = make(tokens, width), make(hidden, width) * 0.02, make(hidden), make(tokens, hidden)
    kernel = mlp_up.compile(
        "bf16[M,K]", "bf16[N,K]", "bf16[N]", "bf16[M,N]",
        sizes={"M": tokens, "N": hidden, "K": width},
    )  # fmt: skip
    y = torch.full_like(g, float("nan"))
    kernel(x, w, b, g, out=y)
    # Every element against float64 on the GPU, and the derived bound on a sample of rows.
    sums = x.double() @ w.double().t() + b.double()
    wanted = torch.nn.functional.silu(sums) * g.double()
    assert torch.isfinite(y).all()
    error = (y.double() - wanted).norm() / wanted.norm()
    assert error < 2.0**-8  # half a unit in the last place of bf16
    rows = slice(0, 32)
    arrays = {
        "x": x[rows].double().cpu().numpy(),
        "w": w.double().cpu().numpy(),
        "b": b.double().cpu().numpy(),
        "g": g[rows].double().cpu().numpy(),
    }
    (bound,) = expected(
        kernel.program, arrays, {"M": 32, "N": hidden, "K": width}, kernel.passes.plan.atom.k
    )
    _, ratio, above = bound.compare(y[rows].float().cpu().numpy())
    print(f"\nmlp {tokens}: relative error {error:.2e}, largest share of the bound {ratio:.2f}")
    assert above == 0


def test_direct_calls_take_and_return_the_callers_arrays() -> None:
    torch = pytest.importorskip("torch")
    cupy = pytest.importorskip("cupy")
    generator = np.random.default_rng(0)
    x, w, b = (generator.integers(-2, 3, s).astype(np.float16) for s in ((70, 40), (50, 40), (50,)))
    relu = pg.fuse(lambda x, w, b: np.maximum(x @ w.T + b, 0), name="relu")
    wanted = np.maximum(x.astype(float) @ w.astype(float).T + b.astype(float), 0)
    ours = relu(cupy.asarray(x), cupy.asarray(w), cupy.asarray(b))
    assert isinstance(ours, cupy.ndarray)
    np.testing.assert_array_equal(ours.get().astype(float), wanted)
    theirs = relu(*(torch.from_numpy(a).cuda() for a in (x, w, b)))
    assert isinstance(theirs, torch.Tensor)
    np.testing.assert_array_equal(theirs.cpu().numpy().astype(float), wanted)
    odd = relu(cupy.asarray(x)[:, :37], cupy.asarray(w)[:, :37], cupy.asarray(b))
    np.testing.assert_array_equal(
        odd.get().astype(float),
        np.maximum(x[:, :37].astype(float) @ w[:, :37].astype(float).T + b, 0),
    )


def test_a_kernel_can_be_captured_in_a_graph() -> None:
    torch = pytest.importorskip("torch")
    make = lambda *shape: torch.randint(-2, 3, shape, device="cuda").to(torch.bfloat16)  # noqa: E731
    x, w, b = make(256, 128), make(384, 128), make(384)
    kernel = pg.fuse(lambda x, w, b: pg.relu(x @ w.T + b), name="graph").compile(
        "bf16[M,K]", "bf16[N,K]", "bf16[N]", sizes={"M": 256, "N": 384, "K": 128}
    )
    y = torch.empty(256, 384, device="cuda", dtype=torch.bfloat16)
    kernel(x, w, b, out=y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, w, b, out=y)
    x.copy_(make(256, 128))
    y.fill_(float("nan"))
    graph.replay()
    wanted = torch.relu(x.double() @ w.double().t() + b.double()).to(torch.bfloat16)
    assert torch.equal(y, wanted)
