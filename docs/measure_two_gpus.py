"""Layers and pipelines on two GPUs of one host, beside one GPU and beside PyTorch's own.

    torchrun --nproc-per-node 2 docs/measure_two_gpus.py --out docs/results/two_gpus.json
    torchrun --nproc-per-node 2 docs/measure_two_gpus.py --dry    # no GPU: Gloo, small, exact

What it finds out, and what is asked for: a gated MLP and an attention block, tensor parallel, give
what one GPU gives, and are 1.05 times as fast as PyTorch's tensor parallel with Inductor; chunks
hide 60 % of the communication beside them; gradients of a four-stage MLP under 1F1B and a schedule
of its own are those of one GPU bit by bit, and its bubble is within 10 points of the timetable's.
The dry run checks all results and says nothing about time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
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
from polygen.hardware.links import Link
from polygen.parallel import Timetable
from polygen.parallel.simulate import Machine, simulate

STAGES = 4
# Two microbatches forward, then both back.
IN_PAIRS = """[microbatches] -> {
    forward[s, m] -> [floor(s/2), 12*floor(m/2) + 2*(floor(s/2) + m mod 2) + s mod 2]
        : 0 <= s < 4 and 0 <= m < microbatches;
    backward[s, m] -> [floor(s/2), 12*floor(m/2) + 9 + 2*((m mod 2) - floor(s/2)) - s mod 2]
        : 0 <= s < 4 and 0 <= m < microbatches }"""

gated = pgt.op(lambda x, u, v: pg.silu(x @ u.T) * (x @ v.T), name="tp_gated")
product = pgt.op(lambda x, w: x @ w.T, name="tp_product")
joined = pgt.op(lambda x, w, r: x @ w.T + r, name="tp_joined")
activated = pgt.op(lambda x, w: pg.relu(x @ w.T), name="tp_activated")


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

    def random(self, *shape: int, seed: int = 0) -> torch.Tensor:
        """The same on all ranks."""
        made = torch.Generator().manual_seed(seed)
        if self.dry:
            return torch.randint(-2, 3, shape, generator=made).to(self.dtype)
        return torch.randn(shape, generator=made).to(self.device, self.dtype)

    def milliseconds(self, run: Callable[[], Any]) -> float:
        """The median of repeats, of the slower rank."""
        found = []
        for repeat in range(self.repeats + 5):
            dist.barrier()
            if not self.dry:
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(self.calls):  # so that the host is ahead of the GPU
                run()
            if not self.dry:
                torch.cuda.synchronize()
            if repeat >= 5:
                found.append((time.perf_counter() - begin) * 1e3 / self.calls)
        slowest = torch.tensor(statistics.median(found), device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return slowest.item()


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
            setattr(self, name, _linear(kind, rows, columns, number))

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
            setattr(self, name, _linear(kind, kind.width, kind.width, 10 + number))

    def forward(self, x: Any) -> Any:
        """One block."""

        def heads(layer: Any) -> Any:
            found = product(x, layer.weight) if self.ours else layer(x)
            found = found.to_local() if hasattr(found, "to_local") else found
            return found.unflatten(1, (-1, self.size)).transpose(0, 1)

        q, k, v = (heads(layer) for layer in (self.q, self.k, self.v))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = mixed.transpose(0, 1).flatten(1)
        if isinstance(self.o.weight, torch.distributed.tensor.DTensor):
            mesh = self.o.weight.device_mesh
            shard = [torch.distributed.tensor.Shard(1)]
            mixed = torch.distributed.tensor.DTensor.from_local(mixed, mesh, shard)
        return joined(mixed, self.o.weight, x) if self.ours else x + self.o(mixed)


def _linear(kind: Kind, rows: int, columns: int, seed: int) -> torch.nn.Linear:
    layer = torch.nn.Linear(columns, rows, bias=False, dtype=kind.dtype, device=kind.device)
    scale = 1.0 if kind.dry else columns**-0.5
    layer.weight.data = kind.random(rows, columns, seed=seed) * scale
    return layer


def _compiled(made: torch.nn.Module, x: torch.Tensor) -> tuple[Any, str]:
    """A module by Inductor, or as it is where that fails."""
    run = torch.compile(made)
    try:
        run(x)
    except Exception as reason:
        return made, f"eager, for Inductor fails: {type(reason).__name__}: {reason}"[:400]
    return run, "Inductor"


def tensor_parallel(kind: Kind) -> dict[str, Any]:
    """Both blocks: against one GPU, and against PyTorch's tensor parallel."""
    mesh = init_device_mesh(kind.device.type, (dist.get_world_size(),))
    x = kind.random(kind.tokens, kind.width, seed=99)
    found: dict[str, Any] = {}
    for block, columns, rows in ((Mlp, ("u", "v"), "w"), (Attention, ("q", "k", "v"), "o")):
        with torch.no_grad():
            wanted = block(kind, ours=True)(x)
            times = {}
            for ours in (True, False):
                made = block(kind, ours)
                entry = PrepareModuleInput(
                    input_layouts=Replicate(),
                    desired_input_layouts=Replicate(),
                    use_local_output=False,
                )
                parallelize_module(made, mesh, entry)
                styles = {name: ColwiseParallel(use_local_output=False) for name in columns}
                styles[rows] = RowwiseParallel(use_local_output=False)
                parallelize_module(made, mesh, styles)
                run, how = (made, "eager") if ours or kind.dry else _compiled(made, x)
                result = run(x)
                if ours:
                    result = result.full_tensor()
                    error = (result - wanted).abs().max().item()
                    scale = wanted.abs().max().item()
                times["polygen" if ours else "pytorch"] = kind.milliseconds(lambda run=run: run(x))
        found[block.__name__] = {
            "error": error,
            "of": scale,
            "within": error <= (1e-9 if kind.dry else 2.0**-6) * scale,
            "milliseconds": times,
            "pytorch": how,
            "ratio": times["pytorch"] / times["polygen"],
        }
    return found


# --- chunks ---------------------------------------------------------------------------------------
def overlap(kind: Kind) -> dict[str, Any]:
    """How much of the communication products hide."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    x = kind.random(kind.tokens, kind.width, seed=5)
    w = kind.random(kind.inner // ranks, kind.width, seed=6)
    own = x.chunk(ranks)[rank].contiguous()
    hidden = kind.random(kind.tokens, kind.inner // ranks, seed=7)
    back = kind.random(kind.width, kind.inner // ranks, seed=8)
    partial = product(hidden, back)
    whole, part = torch.empty_like(x), torch.empty_like(partial.chunk(ranks)[0])

    def gather() -> None:
        dist.all_gather_into_tensor(whole, own)

    def scatter() -> None:
        dist.reduce_scatter_tensor(part, partial)

    found = {}
    cases = {
        "all-gather": (gather, lambda: activated(x, w),
                       lambda chunks: pgt.gathered(activated, own, w, chunks=chunks)),
        "reduce-scatter": (scatter, lambda: product(hidden, back),
                           lambda chunks: pgt.scattered(product, hidden, back, chunks=chunks)),
    }  # fmt: skip
    with torch.no_grad():
        for name, (communicate, compute, both) in cases.items():
            alone = kind.milliseconds(communicate)
            work = kind.milliseconds(compute)
            times = {
                chunks: kind.milliseconds(lambda c=chunks, b=both: b(c)) for chunks in (1, 2, 4)
            }
            best = min(times.values())
            found[name] = {
                "communication": alone, "product": work, "chunks": times,
                "hidden": 1 - (best - work) / alone,
            }  # fmt: skip
    gather()
    right = activated(whole, w)
    found["all-gather"] |= _beside(pgt.gathered(activated, own, w), right)
    scatter()
    found["reduce-scatter"] |= _beside(pgt.scattered(product, hidden, back), part)
    return found


def _beside(found: torch.Tensor, wanted: torch.Tensor) -> dict[str, Any]:
    """Whether bits are the same: chunks may get kernels of another class of sums."""
    difference = (found - wanted).abs().max() / wanted.abs().max()
    return {"equal": torch.equal(found, wanted), "difference": difference.item()}


# --- pipelines ------------------------------------------------------------------------------------
class Stage(torch.nn.Module):
    """Two layers, the first with its activation in the kernel."""

    def __init__(self, kind: Kind, number: int) -> None:
        super().__init__()
        self.first = _linear(kind, kind.width, kind.width, 100 + number)
        self.second = _linear(kind, kind.width, kind.width, 200 + number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both."""
        return product(activated(x, self.first.weight), self.second.weight) / 8


def _loss(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (made.double() * wanted.double()).sum()


def pipelines(kind: Kind) -> dict[str, Any]:
    """Gradients against one GPU, and bubbles against the timetable's."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = kind.random(kind.microbatches * kind.tokens, kind.width, seed=3)
    y = kind.random(kind.microbatches * kind.tokens, kind.width, seed=4)
    alone = [Stage(kind, number) for number in range(STAGES)]
    for part, wanted in zip(x.chunk(kind.microbatches), y.chunk(kind.microbatches), strict=True):
        made = part
        for stage in alone:
            made = stage(made)
        _loss(made, wanted).backward()
    mine = Timetable("in pairs", STAGES, ranks, IN_PAIRS, "microbatches mod 2 = 0")
    once = _phases(kind, x.chunk(kind.microbatches)[0])
    found: dict[str, Any] = {"seconds": once}
    for schedule in ("1f1b", mine):
        stages = [Stage(kind, number) for number in range(STAGES)]
        pipe = pgt.pipeline(stages, kind.microbatches, schedule, loss=_loss, device=kind.device)
        pipe.step(x, y)
        same = all(
            torch.equal(p.grad, q.grad)
            for n, home in enumerate(pipe.proved.home)
            if home == rank
            for p, q in zip(stages[n].parameters(), alone[n].parameters(), strict=True)
        )
        spent = kind.milliseconds(lambda pipe=pipe: pipe.step(x, y)) / 1e3
        nothing = Link("none", float("inf"), 0.0)
        machine = Machine(tuple(once.items()), 0.0, 0.0, 0.0, ranks, nothing, nothing)
        busy = sum(once.values()) * kind.microbatches * STAGES / ranks
        found[pipe.proved.timetable.name] = {
            "equal": same,
            "milliseconds": spent * 1e3,
            "bubble": 1 - busy / spent,
            "formula": simulate(pipe.plan, machine).bubble,
        }
    return found


def _phases(kind: Kind, x: torch.Tensor) -> dict[str, float]:
    """Seconds of a stage's passes, by themselves."""
    stage, x = Stage(kind, 0), x.detach().requires_grad_()
    forward = kind.milliseconds(lambda: stage(x))
    both = kind.milliseconds(lambda: stage(x).backward(torch.ones_like(x)))
    return {"forward": forward / 1e3, "backward": max(both - forward, 0.0) / 1e3}


PARTS: dict[str, Callable[[Kind], Any]] = {
    "tensor_parallel": tensor_parallel,
    "overlap": overlap,
    "pipelines": pipelines,
}


def main() -> None:
    """Runs everything; rank 0 writes the record."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--dry", action="store_true", help="Gloo, small sizes, no times")
    options.add_argument("--out", type=Path, help="a JSON file; without: printed")
    given = options.parse_args()
    kind = Kind(given.dry)
    if not kind.dry:
        torch.cuda.set_device(kind.device)
    dist.init_process_group("gloo" if kind.dry else "nccl")
    found: dict[str, Any] = {
        "kind": "two GPUs",
        "measured": not kind.dry,
        "gpu": "none" if kind.dry else torch.cuda.get_device_name(kind.device),
        "ranks": dist.get_world_size(),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    for name, part in PARTS.items():
        found[name] = part(kind)
        if dist.get_rank() == 0:  # what was found is there, whatever becomes of the next part
            print(json.dumps({name: found[name]}), flush=True)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found["pipelines"])
    found["pipelines_equal_on_all"] = all(
        value["equal"] for one in every for value in one.values() if "equal" in value
    )
    if dist.get_rank() == 0:
        text = json.dumps(found, indent=1) + "\n"
        if given.out:
            given.out.write_text(text)
        else:
            print(text, end="")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
