"""A gated layer through `torch.compile`, with its products, gate and residual in two kernels.

It replaces Inductor's products and pointwise kernels where polygen is predicted to be faster, and
says which groups of operations those are. Needs PyTorch; without a GPU every legal group is taken,
and runs as the program's meaning in float64.
"""

from __future__ import annotations

import functools

import torch

import polygen.adapters.torch as pgt


class Gated(torch.nn.Module):
    """x + down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(width, hidden, bias=False)
        self.up = torch.nn.Linear(width, hidden, bias=False)
        self.down = torch.nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        """Of x[rows, width], the same shape."""
        return x + self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


def main() -> None:
    """Explains the groups of the layer, and compares its results with those it had."""
    gpu = torch.cuda.is_available()
    kind = {"device": "cuda", "dtype": torch.bfloat16} if gpu else {"dtype": torch.float64}
    options = {} if gpu else {"take": "legal", "rest": "eager"}
    rows, width, hidden = (512, 2048, 8192) if gpu else (8, 16, 32)
    model, x = Gated(width, hidden).to(**kind), torch.randn(rows, width).to(**kind)
    with torch.no_grad():
        print(pgt.explain(model, x, options=options))
        # With polygen installed: torch.compile(model, backend="polygen", options=options)
        fast = torch.compile(model, backend=functools.partial(pgt.polygen, options=options))
        print("largest difference:", (fast(x) - model(x)).abs().max().item())


if __name__ == "__main__":
    main()
