"""A layer, exported, compiled ahead of time, loaded and called: exact, or this process ends.

``python tests/exported_ahead.py polygen FOLDER`` with an operator of polygen; ``pytorch`` with one
that PyTorch's own decorator makes, in a process that has no polygen: what fails there, too, is
PyTorch's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch._inductor import aoti_compile_and_package, aoti_load_package


def operator(whose: str):
    """relu(x @ w.T + b) as an operator."""
    if whose == "polygen":
        import polygen as pg
        import polygen.adapters.torch as pgt

        return pgt.op(lambda x, w, b: pg.relu(x @ w.T + b), name="exported_ahead")

    @torch.library.custom_op("exported_ahead::layer", mutates_args=())
    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w.T + b)

    @layer.register_fake
    def _(x, w, b):
        return x.new_empty(x.shape[0], w.shape[0])

    return layer


def whole(*shape: int) -> torch.Tensor:
    """Integers, so that every order of summation gives the same."""
    return torch.randint(-2, 3, shape, device="cuda").to(torch.bfloat16)


class Layer(torch.nn.Module):
    """The operator between pointwise operations that Inductor compiles."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.layer, self.w, self.b = (
            layer,
            torch.nn.Buffer(whole(96, 64)),
            torch.nn.Buffer(whole(96)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.neg(self.layer(torch.abs(x), self.w, self.b))


def main() -> None:
    """Fails by an assertion where a result is wrong."""
    whose, folder = sys.argv[1:]
    made, batch = Layer(operator(whose)), torch.export.Dim("batch", min=2, max=4096)
    exported = torch.export.export(made, (whole(128, 64),), dynamic_shapes=({0: batch},))
    package = str(Path(folder) / f"{whose}.pt2")
    compiled = aoti_load_package(aoti_compile_and_package(exported, package_path=package))
    for rows in (128, 8, 1000):
        x = whole(rows, 64)
        product = x.abs().float() @ made.w.float().T + made.b.float()
        wanted = -torch.relu(product).to(x.dtype)
        torch.testing.assert_close(compiled(x), wanted, rtol=0, atol=0)
        torch.testing.assert_close(exported.module()(x), wanted, rtol=0, atol=0)


if __name__ == "__main__":
    main()
