"""What PyTorch does to an operator's calls: each beside the same in eager mode, on a device.

On "cuda" kernels run; on "cpu" a stand-in (`stand_in_gpu`) plays the driver.
"""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import polygen as pg
import polygen.adapters.torch as pgt

BF16 = torch.bfloat16


class Calls:
    """An operator, what it computes, and operands.

    Args:
        device: of the operands.
    """

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        self.up = pgt.op(lambda x, w, b: pg.gelu(x @ w.T + b), name="called")
        self.scaled = pgt.op(lambda x, w, a: a * (x @ w.T), name="scaled_call", scalars=("a",))
        self.x, self.w, self.b = self.random(6, 16), self.random(24, 16), self.random(24)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.device).to(BF16)

    @staticmethod
    def eager(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w.T + b)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Within some roundings to bf16 of the largest value."""
    assert found.shape == wanted.shape
    if found.numel():
        room = 0.03 * max(1.0, wanted.abs().max().item())
        torch.testing.assert_close(found.float(), wanted.float(), rtol=0, atol=room)


def gradient(call: Callable[..., torch.Tensor], w: torch.Tensor, *others: Any) -> torch.Tensor:
    """Of a weight, of the sum of the results."""
    w = w.detach().clone().requires_grad_()
    x, b = others
    (found,) = torch.autograd.grad(call(x, w, b).float().sum(), w)
    return found


def arrays_without_elements(on: Calls) -> None:
    x, w, b = on.x, on.w, on.b
    for _ in range(2):
        close(on.up(x[:0], w, b), on.eager(x[:0], w, b))
        close(on.up(x, w[:0], b[:0]), on.eager(x, w[:0], b[:0]))
        close(on.up(x[:, :0], w[:, :0], b), on.eager(x[:, :0], w[:, :0], b))
        close(on.up(x, w, b), on.eager(x, w, b))
    found = gradient(on.up, w, x[:0], b)
    assert found.dtype == BF16 and not found.any()


def views_with_the_other_sign(on: Calls) -> None:
    x, w, b = on.x, on.w, on.b
    for given in (torch._neg_view(x), x, torch._neg_view(x)):
        close(on.up(given, w, b), on.eager(given, w, b))
    kernel = pg.fuse(lambda x, w: x @ w.T, name="signs").compile(
        "bf16[M,K]", "bf16[N,K]", sizes={"M": 6, "N": 24, "K": 16}
    )
    close(kernel(x, w), x @ w.T)
    with pytest.raises(pg.PolygenError, match=r"x: .*the other sign.*x\.resolve_neg\(\)"):
        kernel(torch._neg_view(x), w)


def gradients_of_functions(on: Calls) -> None:
    x, w, b = on.x, on.w, on.b
    for call in (torch.func.grad, torch.func.jacrev):
        found = call(lambda w: on.up(x, w, b).float().sum())(w)
        close(found, call(lambda w: on.eager(x, w, b).float().sum())(w))
    found = torch.func.grad(lambda w: on.scaled(x, w, 3.0).float().sum())(w)
    close(found, torch.func.grad(lambda w: (3 * (x @ w.T)).float().sum())(w))


def gradients_of_samples(on: Calls) -> None:
    def each(call: Callable[..., torch.Tensor]) -> torch.Tensor:
        one = torch.func.grad(lambda w, row: call(row[None], w, on.b).float().sum())
        return torch.func.vmap(one, (None, 0))(on.w, on.x)

    close(each(on.up), each(on.eager))


def mapped(on: Calls) -> None:
    many = on.random(3, 6, 16)
    found = torch.func.vmap(on.up, (0, None, None))(many, on.w, on.b)
    close(found, on.eager(many, on.w, on.b))


def second_derivatives(on: Calls) -> None:
    w = on.w.clone().requires_grad_()
    (first,) = torch.autograd.grad(on.up(on.x, w, on.b).float().sum(), w, create_graph=True)
    with pytest.raises(pg.PolygenError, match="a second derivative"):
        first.float().sum().backward()

    def once(w: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda w: on.up(on.x, w, on.b).float().sum())(w).float().sum()

    with pytest.raises(pg.PolygenError, match="a second derivative"):
        torch.func.grad(once)(on.w)


def forward_mode(on: Calls) -> None:
    with (
        forward_ad.dual_level(),
        pytest.raises(pg.PolygenError, match="a derivative in forward mode"),
    ):
        on.up(on.x, forward_ad.make_dual(on.w, on.w), on.b)
    with forward_ad.dual_level():
        close(on.up(on.x, on.w, on.b), on.eager(on.x, on.w, on.b))
    with pytest.raises(pg.PolygenError, match="a derivative in forward mode"):
        torch.func.jvp(lambda w: on.up(on.x, w, on.b), (on.w,), (on.w,))


def graphs_kept(on: Calls) -> None:
    w = on.w.clone().requires_grad_()
    total = on.up(on.x, w, on.b).float().sum()
    total.backward(retain_graph=True)
    once = w.grad.clone()
    total.backward()
    close(w.grad, 2 * once)
    close(once, gradient(on.eager, on.w, on.x, on.b))


def written_after_the_call(on: Calls) -> None:
    x, w = on.x.clone(), on.w.clone().requires_grad_()
    total = on.up(x, w, on.b).float().sum()
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def hooks(on: Calls) -> None:
    seen, w = [], on.w.clone().requires_grad_()
    result = on.up(on.x, w, on.b)
    result.register_hook(lambda g: seen.append("result") or 2 * g)
    w.register_hook(lambda _: seen.append("weight"))
    result.float().sum().backward()
    assert seen == ["result", "weight"]
    close(w.grad, 2 * gradient(on.eager, on.w, on.x, on.b))


def checkpoints(on: Calls) -> None:
    def call(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return checkpoint(on.up, x, w, b, use_reentrant=False)

    close(gradient(call, on.w, on.x, on.b), gradient(on.eager, on.w, on.x, on.b))


def weights_that_are_views(on: Calls) -> None:
    row, packed = on.random(1, 16), on.random(60, 33)
    for view in (
        lambda: row.expand(24, 16),
        lambda: packed[3:27, 1:17],
        lambda: packed[:24, ::2][:, :16],
        lambda: packed.t()[:24, :16],
        lambda: packed.flatten()[5 : 5 + 24 * 16].view(24, 16),
    ):
        w = view()
        for x in (on.x, on.x[:5], on.x[1:2]):
            close(on.up(x, w, on.b), on.eager(x, w, on.b))
            close(gradient(on.up, w, x, on.b), gradient(on.eager, w, x, on.b))


def one_tensor_twice(on: Calls) -> None:
    square = pgt.op(lambda x, y: x @ y.T, name="square_call")
    x, y = (on.x.clone().requires_grad_() for _ in range(2))
    square(x, x).float().sum().backward()
    (y @ y.T).float().sum().backward()
    close(x.grad, y.grad)


def inference_tensors(on: Calls) -> None:
    with torch.inference_mode():
        x = on.x.clone()
        assert on.up(x, on.w, on.b).is_inference()
    close(on.up(x, on.w, on.b), on.eager(x, on.w, on.b))
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        on.up(x, on.w.clone().requires_grad_(), on.b)


def copies_and_pickles(on: Calls) -> None:
    assert pickle.loads(pickle.dumps(on.up)) is on.up and copy.deepcopy(on.up) is on.up
    name, source = on.up.__reduce__()[1]
    with pytest.raises(pg.PolygenError, match=r"no operator polygen::x here .*Import the module"):
        on.up.__reduce__()[0]("x", source)
    with pytest.raises(pg.PolygenError, match=r"polygen::called\w* is another function here"):
        on.up.__reduce__()[0](name, "x + y")


def numbers_of_operands(on: Calls) -> None:
    with pytest.raises(pg.PolygenError, match=r"2 operands given, 3 expected\. Expected: x, w, b"):
        on.up(on.x, on.w)


def nothing_is_kept(on: Calls) -> None:
    def once() -> list[Any]:
        x, w = on.random(5, 16), on.random(24, 16).requires_grad_()
        result = on.up(x, w, on.b)
        result.float().sum().backward()
        on.up(x, w.detach(), on.b)
        return [weakref.ref(one) for one in (x, w, result)]

    kept = [*once(), *once()]
    gc.collect()
    assert [one() for one in kept] == [None] * 6


def threads(on: Calls) -> None:
    wrong: list[BaseException] = []
    given = [[(on.random(1 + n, 16), on.random(24, 16)) for n in range(3)] for _ in range(4)]

    def run(pairs: list[Any]) -> None:
        try:
            for _ in range(10):
                for x, w in pairs:
                    close(on.up(x, w, on.b), on.eager(x, w, on.b))
        except BaseException as error:
            wrong.append(error)

    each = [threading.Thread(target=run, args=(pairs,)) for pairs in given]
    for one in each:
        one.start()
    for one in each:
        one.join()
    assert not wrong, wrong[0]


SCENARIOS = {
    call.__name__: call
    for call in (
        arrays_without_elements, views_with_the_other_sign, gradients_of_functions,
        gradients_of_samples, mapped, second_derivatives, forward_mode, graphs_kept,
        written_after_the_call, hooks, checkpoints, weights_that_are_views, one_tensor_twice,
        inference_tensors, copies_and_pickles, numbers_of_operands, nothing_is_kept, threads,
    )
}  # fmt: skip
