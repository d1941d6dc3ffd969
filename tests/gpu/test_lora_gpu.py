"""Products of low rank beside large ones, on a GPU, at the sizes of layers."""

from __future__ import annotations

import pytest

import polygen as pg

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")


def low_rank(x, w, a, b):
    return x @ w.T + (x @ a.T) @ b.T


@pytest.mark.parametrize("rank", [8, 16, 64, 128])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(8192, 4096, 4096), (1000, 264, 520), (64, 11008, 4096)]
)
def test_exact_numbers(rank: int, rows: int, columns: int, depth: int) -> None:
    generator = torch.Generator(device="cuda").manual_seed(rank)

    def numbers(*shape: int) -> torch.Tensor:
        found = torch.randint(-1, 2, shape, generator=generator, device="cuda")
        return found.to(torch.bfloat16)

    x, w, b = numbers(rows, depth), numbers(columns, depth), numbers(columns, rank)
    a = numbers(rank, depth)
    a[:, torch.randperm(depth, generator=generator, device="cuda")[depth // 8 :]] = 0
    kernel = pg.fuse(low_rank)
    found = kernel(x, w, a, b)
    between = (x.double() @ a.double().T).to(torch.bfloat16).double()
    wanted = x.double() @ w.double().T + between @ b.double().T
    torch.testing.assert_close(found, wanted.to(torch.bfloat16), rtol=0, atol=0)
    for _ in range(50):  # the same bits every time
        torch.testing.assert_close(kernel(x, w, a, b), found, rtol=0, atol=0)


def test_a_compiled_layer_is_one_kernel() -> None:
    pgt = pytest.importorskip("polygen.adapters.torch")
    functional = torch.nn.functional

    def layer(x, w, c, a, b):
        return functional.linear(x, w, c) + functional.linear(functional.linear(x, a), b) * 2.0

    shapes = ((4, 512, 1024), (2048, 1024), (2048,), (16, 1024), (2048, 16))
    operands = [torch.randn(s, device="cuda", dtype=torch.bfloat16) / 8 for s in shapes]
    with torch.no_grad():
        explanation = pgt.explain(layer, *operands, options={"take": "legal"})
        assert len(explanation.taken) == 1
        found = torch.compile(layer, backend=pgt.polygen, options={"take": "legal"})(*operands)
        wanted = layer(*(one.double() for one in operands))
    torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2)
