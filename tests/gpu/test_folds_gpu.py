"""Folds on a GPU: exact, the same bits every time, captured in a graph, on any stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polygen as pg
from polygen.frontend.evaluate import evaluate

pytestmark = pytest.mark.gpu
SIGNATURE = ("bf16[M,K]", "bf16[N,K]")


@pg.fuse
def statistics(x: Any, w: Any) -> Any:
    v = x @ w.T
    return v, np.sum(v, axis=1), np.max(v, axis=0), np.max(abs(v))


@pg.fuse
def nearest(x: Any, w: Any) -> Any:
    return np.argmax(x @ w.T, axis=1)


@pg.fuse
def exponentials(x: Any, w: Any) -> Any:
    return pg.logsumexp(x @ w.T, axis=1)


def operands(m: int, n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.integers(-2, 3, (m, k)), generator.integers(-2, 3, (n, k))


@pytest.fixture
def bf16():
    torch = pytest.importorskip("torch")
    return lambda array: torch.tensor(array, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("size", [(1, 1, 8), (33, 130, 64), (1000, 1000, 256), (4096, 4096, 512)])
def test_integers_are_exact(bf16, size):
    m, n, k = size
    x, w = operands(m, n, k)
    kernel = statistics.compile(*SIGNATURE, sizes=dict(zip("MNK", size, strict=True)))
    found = kernel(bf16(x), bf16(w))
    wanted = evaluate(kernel.program, {"x": x, "w": w}, dict(zip("MNK", size, strict=True)))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.float().cpu().numpy(), other.astype(np.float32))


def test_the_nearest_centre_is_numpys(bf16):
    x, w = operands(2000, 333, 128)
    found = nearest.compile(*SIGNATURE)(bf16(x), bf16(w))
    np.testing.assert_array_equal(found.cpu().numpy(), (x @ w.T).argmax(1))


def test_exponentials_are_within_their_bound(bf16):
    import torch

    torch.manual_seed(1)
    x, w = (torch.randn(s, 256, device="cuda", dtype=torch.bfloat16) for s in (512, 5000))
    found = exponentials.compile(*SIGNATURE)(x, w)
    wanted = torch.logsumexp(x.double() @ w.double().T, 1)
    # Sums of 256 products in f32 and 5000 exponentials, each within some units in the last place.
    assert ((found.double() - wanted).abs() / wanted.abs()).max() < 2.0**-17


def test_the_same_bits_a_thousand_times(bf16):
    import torch

    torch.manual_seed(2)
    x, w = (torch.randn(s, 512, device="cuda", dtype=torch.bfloat16) for s in (1111, 2048))
    kernel = statistics.compile(*SIGNATURE)
    first = kernel(x, w)
    for _ in range(1000):
        assert all(torch.equal(a, b) for a, b in zip(first, kernel(x, w), strict=True))


def test_a_graph_with_its_own_workspace(bf16):
    import torch

    size = {"M": 640, "N": 512, "K": 128}
    kernel = statistics.compile(*SIGNATURE, sizes=size)
    (x, w), (other, _) = operands(640, 512, 128), operands(640, 512, 128, seed=7)
    given, weights = bf16(x), bf16(w)
    room = torch.empty(kernel.workspace(size), device="cuda", dtype=torch.uint8)
    out = kernel(given, weights)  # loads both functions
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(given, weights, out=out, workspace=room)
    given.copy_(bf16(other))
    graph.replay()
    wanted = evaluate(kernel.program, {"x": other, "w": w}, size)
    for one, exact in zip(out, wanted, strict=True):
        np.testing.assert_array_equal(one.float().cpu().numpy(), exact.astype(np.float32))


@pytest.mark.parametrize("captured_by", ["torch", "cupy"])
def test_graphs_keep_their_workspaces(bf16, captured_by):
    """Whoever captures them: what is freed meanwhile is used by others."""
    import torch

    size = {"M": 640, "N": 512, "K": 128}
    kernel = statistics.compile(*SIGNATURE, sizes=size)
    (x, w), (other, _) = operands(640, 512, 128), operands(640, 512, 128, seed=7)
    given, weights = bf16(x), bf16(w)
    out = kernel(given, weights)  # loads both functions
    torch.cuda.synchronize()
    if captured_by == "torch":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel(given, weights, out=out)
        replay = graph.replay
    else:
        cupy = pytest.importorskip("cupy")
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            kernel(given, weights, out=out, stream=stream.ptr)
            graph = stream.end_capture()

        def replay():
            graph.launch(stream)
            stream.synchronize()

    count = kernel.workspace(size)
    others = [torch.full((count,), 7, device="cuda", dtype=torch.uint8) for _ in range(64)]
    given.copy_(bf16(other))
    torch.cuda.synchronize()
    for _ in range(3):
        replay()
    torch.cuda.synchronize()
    wanted = evaluate(kernel.program, {"x": other, "w": w}, size)
    for one, exact in zip(out, wanted, strict=True):
        np.testing.assert_array_equal(one.float().cpu().numpy(), exact.astype(np.float32))
    assert all(bool((one == 7).all()) for one in others)


def test_calls_on_two_streams_do_not_meet(bf16):
    import torch

    x, w = operands(2048, 1024, 64)
    y, _ = operands(2048, 1024, 64, seed=3)
    kernel = statistics.compile(*SIGNATURE)
    given = [bf16(x), bf16(y)]
    weights = bf16(w)
    wanted = [kernel(one, weights) for one in given]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in given]
    for _ in range(50):
        found = []
        for stream, one in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                found.append(kernel(one, weights))
        torch.cuda.synchronize()
        for a, b in zip(found, wanted, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


# --- results used in their own row ---------------------------------------------------------------
@pg.fuse
def centred(x: Any, w: Any) -> Any:
    v = x @ w.T
    u = v - np.max(v, axis=1, keepdims=True)
    return u + np.min(abs(u), axis=1, keepdims=True), np.max(v, axis=1), np.sum(v, axis=0)


@pg.fuse
def normed(x: Any, w: Any, r: Any, g: Any) -> Any:
    return pg.rms_norm(x @ w.T + r, g).astype("bf16")


@pg.fuse
def attended(x: Any, w: Any) -> Any:
    return pg.softmax(x @ w.T)


@pytest.mark.parametrize(
    "size", [(1, 1, 8), (33, 130, 64), (1000, 256, 256), (1000, 257, 64), (4096, 4096, 512)]
)
def test_rows_of_integers_are_exact(bf16, size):
    """In tiles up to 256 columns, behind the kernel from there on."""
    sizes = dict(zip("MNK", size, strict=True))
    x, w = operands(*size)
    kernel = centred.compile(*SIGNATURE, sizes=sizes)
    found = kernel(bf16(x), bf16(w))
    wanted = evaluate(kernel.program, {"x": x, "w": w}, sizes)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.float().cpu().numpy(), other.astype(np.float32))


@pytest.mark.parametrize("n", [64, 250, 256, 1000, 5000])
def test_norms_of_rows_are_within_their_bound(bf16, n):
    import torch

    torch.manual_seed(2)
    x, w = (torch.randn(s, 512, device="cuda").bfloat16() for s in (777, n))
    r, g = torch.randn(777, n, device="cuda").bfloat16(), torch.randn(n, device="cuda").bfloat16()
    found = normed(x, w, r, g).double()
    v = x.double() @ w.double().T + r.double()
    wanted = v * torch.rsqrt((v * v).mean(1, keepdim=True) + 1e-6) * g.double()
    # Sums of 512 products lose (512 / 16 + 16) units of 2^-23 of some 330, their terms together:
    # 0.002 of values of 22 or so, times g up to 5; then they are rounded to bf16.
    assert ((found - wanted).abs() <= wanted.abs() * 2.0**-8 + 1e-3).all()
    soft = attended(x * 0.1, w).double()
    exact = torch.softmax((x * 0.1).double() @ w.double().T, 1)
    # A tenth of that in exponents, once in the element's and once in the largest.
    assert ((soft - exact).abs() <= exact * 2.0**-11 + 1e-12).all()


@pytest.mark.parametrize("n", [200, 3000])
def test_rows_are_the_same_bits_every_time(bf16, n):
    import torch

    torch.manual_seed(3)
    x, w = (torch.randn(s, 256, device="cuda").bfloat16() for s in (3000, n))
    kernel = attended.compile(*SIGNATURE, sizes={"M": 3000, "N": n, "K": 256})
    first = kernel(x, w)
    assert all(torch.equal(kernel(x, w), first) for _ in range(1000))


def test_longer_rows_get_another_kernel(bf16):
    """One function, rows that tiles cover and rows that they do not."""
    import torch

    for n in (100, 4000):
        x, w = operands(50, n, 64)
        found = attended(bf16(x), bf16(w)).double()
        exact = torch.softmax(torch.tensor(x @ w.T, device="cuda").double(), 1)
        assert ((found - exact).abs() <= exact * 2.0**-15 + 1e-12).all()


@pg.fuse
def distances(x: Any, w: Any) -> Any:
    return np.sum(x * x, axis=-1)[:, None] + np.sum(w * w, axis=-1) - 2 * (x @ w.T)


@pytest.mark.parametrize("size", [(1, 1, 8), (33, 130, 64), (1000, 1000, 256), (8192, 1024, 64)])
def test_folds_of_operands_are_exact(bf16, size):
    m, n, k = size
    x, w = operands(m, n, k)
    kernel = distances.compile(*SIGNATURE, sizes=dict(zip("MNK", size, strict=True)))
    found = kernel(bf16(x), bf16(w)).float().cpu().numpy()
    wanted = (x * x).sum(1)[:, None] + (w * w).sum(1) - 2 * (x @ w.T)
    np.testing.assert_array_equal(found, wanted.astype(np.float32))


@pytest.mark.parametrize("rows", [100, 4096])
def test_norms_in_front_of_products(bf16, rows):
    """Near the norm in double precision: elements are rounded to bf16 once."""
    generator = np.random.default_rng(1)
    x, w = generator.standard_normal((rows, 512)), generator.standard_normal((384, 512))
    gain = generator.standard_normal(512)
    normed = pg.fuse(lambda x, w, g: pg.rms_norm(x, g) @ w.T, name="normed")
    kernel = normed.compile(*SIGNATURE, "bf16[K]", out_dtype="f32", sizes={"M": rows})
    given = [bf16(array) for array in (x, w, gain)]
    x, w, gain = (one.double().cpu().numpy() for one in given)
    root = np.sqrt((x * x).mean(1, keepdims=True) + 1e-6)
    error = abs(kernel(*given).double().cpu().numpy() - (x / root * gain) @ w.T)
    assert (error <= (2.0**-8 + 2.0**-14) * (abs(x / root * gain) @ abs(w).T)).all()
