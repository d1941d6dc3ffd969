"""A layer cut over two GPUs, and a model in stages under a schedule of one's own.

It replaces hand-written shards around `torch.nn.functional.linear`, and a schedule that is hoped to
be free of deadlock: polygen's operators say which placements they take and what has to wait for a
sum, and a schedule is proved for every number of microbatches before anything is launched. Needs
PyTorch; without GPUs two processes run it in float64, with Gloo.

    python examples/several_gpus.py                        # one host: it starts two processes
    torchrun --nproc-per-node 2 examples/several_gpus.py   # more hosts: --nnodes, --rdzv-endpoint
"""

from __future__ import annotations

import os
import socket
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor  # before operators are made, so that they take DTensors
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

import polygen as pg
import polygen.adapters.torch as pgt
from polygen.parallel import Timetable

up = pgt.op(lambda x, w, b: pg.gelu(x @ w.T + b), name="cut_up")
down = pgt.op(lambda x, w, b, r: x @ w.T + b + r, name="cut_down")

# All forward passes of two microbatches, then their backward passes: two activations at a time.
IN_PAIRS = Timetable(
    "in pairs",
    stages=2,
    ranks=2,
    relation="""[microbatches] -> {
        forward[s, m] -> [s, 6*floor(m/2) + s + m mod 2] : 0 <= s < 2 and 0 <= m < microbatches;
        backward[s, m] -> [s, 6*floor(m/2) + 4 - s + m mod 2]
            : 0 <= s < 2 and 0 <= m < microbatches }""",
    requires="microbatches mod 2 = 0",
)


class Up(torch.nn.Linear):
    """A linear layer and its activation, one kernel."""

    def forward(self, x: Any) -> Any:
        """Column-parallel: bias and activation stay in the kernel."""
        return up(x, self.weight, self.bias)


class Down(torch.nn.Linear):
    """A linear layer, its bias and a residual, one kernel on one GPU."""

    def forward(self, x: Any, residual: Any = None) -> Any:
        """Row-parallel: bias and residual are added once, behind the sum over ranks."""
        return down(x, self.weight, self.bias, residual)


class Block(torch.nn.Module):
    """Up, activation, down, residual."""

    def __init__(self, width: int, inner: int, **kind: Any) -> None:
        super().__init__()
        self.up, self.down = Up(width, inner, **kind), Down(inner, width, **kind)

    def forward(self, x: Any) -> Any:
        """One block."""
        return self.down(self.up(x), residual=x)


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def tensor_parallel(x: torch.Tensor, kind: dict[str, Any]) -> float:
    """A block over all ranks, beside the same block alone."""
    torch.manual_seed(0)
    block = Block(x.shape[1], 4 * x.shape[1], **kind)
    with torch.no_grad():
        wanted = block(x)
        mesh = init_device_mesh(x.device.type, (dist.get_world_size(),))
        whole = Replicate()
        entry = PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole)
        parallelize_module(block, mesh, entry)
        styles = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
        parallelize_module(block, mesh, styles)
        return difference(block(x), wanted)


def pipeline(x: torch.Tensor, kind: dict[str, Any]) -> tuple[Any, float]:
    """Two blocks on two ranks, beside one process that takes the microbatches in order."""
    torch.manual_seed(0)
    stages = [Block(x.shape[1], 2 * x.shape[1], **kind) for _ in range(2)]

    def loss(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return (made - wanted).square().sum()

    for part in x.chunk(4):
        loss(stages[1](stages[0](part)), part).backward()
    own = stages[dist.get_rank()]
    wanted = [p.grad for p in own.parameters()]
    for stage in stages:
        stage.zero_grad()
    made = pgt.pipeline(stages, 4, IN_PAIRS, loss=loss, buffers=2)
    made.step(x, x)
    both = zip(own.parameters(), wanted, strict=True)
    return made, max(difference(p.grad, gradient) for p, gradient in both)


def work() -> tuple[float, float]:
    """What every rank does; the differences from one process."""
    gpu = torch.cuda.is_available() and torch.cuda.device_count() >= dist.get_world_size()
    kind: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
    if gpu:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", dist.get_rank())))
        torch.cuda.set_device(device)
        kind = {"dtype": torch.bfloat16, "device": device}
    torch.manual_seed(1)
    x = torch.randn(*((4096, 4096) if gpu else (16, 16)), dtype=torch.float64).to(**kind)
    layers = tensor_parallel(x, kind)
    made, gradients = pipeline(x, kind)
    if dist.get_rank() == 0:
        print(made)
        print("tensor parallel, largest difference from one process:", layers)
        print("gradients of the pipeline, largest difference:", gradients)
    return layers, gradients


def _start(rank: int, ranks: int, port: int) -> None:
    """One of the processes that this program starts itself."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    main()


def main() -> None:
    """Joins the other ranks, or starts them."""
    if "RANK" not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(_start, (2, port), nprocs=2)
        return
    enough = torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl" if enough else "gloo")
    work()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
