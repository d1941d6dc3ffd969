"""What docs/measure_two_gpus.py measures: blocks by polygen's operators or by PyTorch's, and
how both are cut over ranks.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.tensor  # before operators are made, so that they take DTensors
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

import polygen as pg
import polygen.adapters.torch as pgt

gated = pgt.op(lambda x, u, v: pg.silu(x @ u.T) * (x @ v.T), name="tp_gated")
product = pgt.op(lambda x, w: x @ w.T, name="tp_product")
joined = pgt.op(lambda x, w, r: x @ w.T + r, name="tp_joined")
activated = pgt.op(lambda x, w: pg.relu(x @ w.T), name="tp_activated")


def causal(q: Any, k: Any, v: Any) -> Any:
    """Causal attention of ``[S, H, D]``, position by position of all heads."""
    q, k, v = (one.swapaxes(0, 1) for one in (q, k, v))
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    i, j = pg.indices(scores)[-2:]
    return (pg.softmax(pg.where(i >= j, scores, -np.inf)) @ v).swapaxes(0, 1)


attended = pgt.op(causal, name="tp_attended")


class Kind:
    """Sizes, types and clock of a run."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry
        self.dtype = torch.float64 if dry else torch.bfloat16
        rank = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cpu") if dry else torch.device("cuda", rank)
        self.tokens, self.width, self.inner = (16, 16, 32) if dry else (4096, 4096, 14336)
        self.heads, self.repeats, self.microbatches = (4, 2, 4) if dry else (32, 20, 16)
        self.calls = 1 if dry else 10
        self.graphs: list[Any] = []  # to be given up before the process group

    def random(self, *shape: int, seed: int = 0) -> torch.Tensor:
        """The same on all ranks."""
        made = torch.Generator(self.device).manual_seed(seed)
        if self.dry:
            return torch.randint(-2, 3, shape, generator=made).to(self.dtype)
        return torch.randn(shape, generator=made, device=self.device, dtype=self.dtype)

    def captured(self, run: Callable[..., Any]) -> Any:
        """A function as a graph, which keeps its results in place."""
        self.graphs.append(pgt.captured(run, keep=True))
        return self.graphs[-1]

    def forget(self) -> None:
        """Give all graphs up."""
        for graph in self.graphs:
            graph.forget()
        self.graphs.clear()

    def milliseconds(self, run: Callable[[], Any], *, calls: int | None = None) -> float:
        """The median of repeats, of the slower rank."""
        return self.in_turns({"": run}, calls=calls)[""]

    def in_turns(
        self, runs: dict[str, Callable[[], Any]], *, calls: int | None = None
    ) -> dict[str, float]:
        """The medians of several, which take turns: clocks change while a GPU gets warm."""
        found: dict[str, list[float]] = {name: [] for name in runs}
        calls = calls or self.calls
        for repeat in range(self.repeats + 5):
            for name, run in runs.items():
                dist.barrier()
                if not self.dry:
                    torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(calls):  # so that the host is ahead of the GPU
                    run()
                if not self.dry:
                    torch.cuda.synchronize()
                if repeat >= 5:
                    found[name].append((time.perf_counter() - begin) * 1e3 / calls)
        slowest = torch.tensor([statistics.median(one) for one in found.values()])
        slowest = slowest.to(self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return dict(zip(found, slowest.tolist(), strict=True))


# --- layers ---------------------------------------------------------------------------------------
class Mlp(torch.nn.Module):
    """``x + (silu(x @ u.T) * (x @ v.T)) @ w.T``; `ours`: by polygen's operators."""

    def __init__(self, kind: Kind, ours: bool) -> None:
        super().__init__()
        self.ours = ours
        for number, (name, rows, columns) in enumerate(
            [("u", kind.inner, kind.width), ("v", kind.inner, kind.width),
             ("w", kind.width, kind.inner)]
        ):  # fmt: skip
            setattr(self, name, linear(kind, rows, columns, number))

    def forward(self, x: Any) -> Any:
        """One block."""
        if self.ours:
            hidden = gated(x, self.u.weight, self.v.weight)
            return joined(hidden, self.w.weight, x)
        return x + self.w(torch.nn.functional.silu(self.u(x)) * self.v(x))


class Attention(torch.nn.Module):
    """Projections, attention of heads, and the projection back onto x."""

    def __init__(self, kind: Kind, ours: bool) -> None:
        super().__init__()
        self.ours, self.size = ours, kind.width // kind.heads
        for number, name in enumerate(("q", "k", "v", "o")):
            setattr(self, name, linear(kind, kind.width, kind.width, 10 + number))

    def forward(self, x: Any) -> Any:
        """One block."""

        def heads(layer: Any) -> Any:
            found = product(x, layer.weight) if self.ours else layer(x)
            if isinstance(found, DTensor):
                found = found.to_local()
            return found.unflatten(1, (-1, self.size))

        if self.ours:
            mixed = attended(*(heads(layer) for layer in (self.q, self.k, self.v))).flatten(1)
            if isinstance(self.o.weight, DTensor):
                mixed = DTensor.from_local(mixed, self.o.weight.device_mesh, [Shard(1)])
            return joined(mixed, self.o.weight, x)
        # With a leading axis: PyTorch takes its slowest way for three.
        q, k, v = (heads(layer).transpose(0, 1)[None] for layer in (self.q, self.k, self.v))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o(mixed[0].transpose(0, 1).flatten(1))


def linear(kind: Kind, rows: int, columns: int, seed: int) -> torch.nn.Linear:
    """A layer whose weights are the same on all ranks."""
    layer = torch.nn.Linear(columns, rows, bias=False, dtype=kind.dtype, device=kind.device)
    scale = 1.0 if kind.dry else columns**-0.5
    layer.weight.data = kind.random(rows, columns, seed=seed) * scale
    return layer


def cut(made: torch.nn.Module, mesh: Any) -> torch.nn.Module:
    """A block over the ranks of a mesh: polygen's on DTensors, PyTorch's by its own recipe."""
    columns, rows = (("u", "v"), "w") if isinstance(made, Mlp) else (("q", "k", "v"), "o")
    if made.ours:
        entry = PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Replicate(), use_local_output=False
        )
        parallelize_module(made, mesh, entry)
    styles: dict[str, Any] = {
        name: ColwiseParallel(use_local_output=not made.ours) for name in columns
    }
    styles[rows] = RowwiseParallel(use_local_output=not made.ours)
    return parallelize_module(made, mesh, styles)


class Stage(torch.nn.Module):
    """Two layers, the first with its activation in the kernel."""

    def __init__(self, kind: Kind, number: int) -> None:
        super().__init__()
        self.first = linear(kind, kind.width, kind.width, 100 + number)
        self.second = linear(kind, kind.width, kind.width, 200 + number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both."""
        return product(activated(x, self.first.weight), self.second.weight) / 8
