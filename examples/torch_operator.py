"""A layer's product, bias and activation as one operator of PyTorch.

It replaces `torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))`: two kernels, with the
product's results written and read again between them. Needs PyTorch and a GPU; without a GPU it
shows the operator's meaning in float64.
"""

from __future__ import annotations

import torch

import polygen as pg
import polygen.adapters.torch as pgt


@pgt.op
def up(x, w, b):
    """One kernel: the sums never leave the registers before the activation."""
    return pg.gelu(x @ w.T + b)


def main() -> None:
    """Compares the operator with PyTorch's two, alone and inside a compiled function."""
    gpu = torch.cuda.is_available()
    kind = {"device": "cuda", "dtype": torch.bfloat16} if gpu else {"dtype": torch.float64}
    shapes = ((4096, 1024), (4096, 1024), (4096,)) if gpu else ((64, 32), (48, 32), (48,))
    x, w, b = (torch.randn(*shape).to(**kind) for shape in shapes)
    w = w / 32
    wanted = torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))
    found = up(x, w, b)
    print(up, tuple(found.shape), found.dtype, found.device)
    print("largest difference from PyTorch:", (found - wanted).abs().max().item())
    if gpu:
        compiled = torch.compile(lambda x: up(torch.sin(x), w, b).sum(-1), fullgraph=True)
        print("inside torch.compile:", tuple(compiled(x).shape))


if __name__ == "__main__":
    main()
