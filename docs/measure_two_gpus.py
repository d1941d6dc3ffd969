"""Layers and pipelines on two GPUs of one host, beside one GPU and beside PyTorch's own.

    torchrun --nproc-per-node 2 docs/measure_two_gpus.py --out docs/results/two_gpus.json
    torchrun --nproc-per-node 2 docs/measure_two_gpus.py --dry    # no GPU: Gloo, small, exact

What it finds out, and what is asked for: a gated MLP and an attention block, tensor parallel, give
what one GPU gives, and are 1.05 times as fast as PyTorch's tensor parallel with Inductor; 60 % of
the communication beside products is hidden; gradients of a four-stage MLP under 1F1B and a schedule
of its own are those of one GPU bit by bit, and its bubble is within 10 points of the timetable's.
Each is measured as it is and captured in a CUDA graph. The dry run checks all results and says
nothing about time. Results are checked first, on small blocks: what fails there is said, and the
rest runs all the same. ``--parts checks tensor_parallel overlap pipelines`` chooses.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from two_gpu_layers import (
    Attention,
    Kind,
    Mlp,
    Stage,
    activated,
    cut,
    joined,
    product,
)

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


def _whole(result: Any) -> torch.Tensor:
    return result.full_tensor() if hasattr(result, "full_tensor") else result


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def _within(kind: Kind, error: float) -> bool:
    return error <= (1e-9 if kind.dry else 2.0**-6)


# --- results --------------------------------------------------------------------------------------
def checks(kind: Kind) -> dict[str, Any]:
    """Every way of running blocks and sums, again and again with other data."""
    mesh = init_device_mesh(kind.device.type, (dist.get_world_size(),))
    found: dict[str, Any] = {}
    one, two = (kind.random(kind.tokens, kind.width, seed=seed) for seed in (99, 98))
    with torch.no_grad():
        for block in (Mlp, Attention):
            made, alone = cut(block(kind, ours=True), mesh), block(kind, ours=True)
            graph = kind.captured(made)
            runs = [(run, x) for run in (made, graph) for x in (one, two, one)]
            errors = [_error(_whole(run(x)), alone(x)) for run, x in runs]
            found[block.__name__] = {
                "errors": errors,
                "within": all(_within(kind, error) for error in errors),
                "graph": graph.why or "captured",
                "graph_equal": torch.equal(_whole(graph(two)), _whole(made(two))),
            }
        found |= _sums(kind)
    return found


def _sums(kind: Kind) -> dict[str, Any]:
    """All ways of gathering and scattering rows."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    w = kind.random(kind.inner // ranks, kind.width, seed=6)
    back = kind.random(kind.width, kind.inner, seed=8)
    own_back = back.chunk(ranks, 1)[rank].contiguous()
    errors: dict[str, list[float]] = {"gathered": [], "scattered": [], "joined": []}
    for seed, chunks in ((0, None), (1, None), (2, 1), (3, 2), (4, None)):
        x = kind.random(kind.tokens, kind.width, seed=seed)
        own = x.chunk(ranks)[rank].contiguous()
        hidden = kind.random(kind.tokens, kind.inner, seed=seed + 50)
        part = hidden.chunk(ranks, 1)[rank].contiguous()
        pairs = {
            "gathered": (pgt.gathered(activated, own, w, chunks=chunks), activated(x, w)),
            "scattered": (
                pgt.scattered(product, part, own_back, chunks=chunks),
                product(hidden, back).chunk(ranks)[rank],
            ),
            "joined": (
                pgt.scattered(joined, part, own_back, own, shards=("r",), chunks=chunks),
                joined(hidden, back, x).chunk(ranks)[rank],
            ),
        }
        for name, (found, wanted) in pairs.items():
            errors[name].append(_error(found, wanted))
    return {
        name: {"errors": some, "within": all(_within(kind, error) for error in some)}
        for name, some in errors.items()
    }


# --- layers ---------------------------------------------------------------------------------------
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
    for block in (Mlp, Attention):
        with torch.no_grad():
            wanted = block(kind, ours=True)(x)
            times, errors = {}, {}
            for ours in (True, False):
                made = cut(block(kind, ours), mesh)
                run, how = (made, "eager") if ours or kind.dry else _compiled(made, x)
                name = "polygen" if ours else "pytorch"
                errors[name] = _error(_whole(run(x)), wanted)
                times[name] = kind.milliseconds(functools.partial(run, x))
                graph = kind.captured(run)
                errors[f"{name}_graph"] = _error(_whole(graph(x)), wanted)
                given = x if graph.why else graph.operands(x)[0]
                times[f"{name}_graph"] = kind.milliseconds(functools.partial(graph, given))
                if ours:
                    kernels = _kernels(kind, functools.partial(run, x))
                    captured = graph.why or "captured"
        best = min(times["polygen"], times["polygen_graph"])
        found[block.__name__] = {
            "errors": errors,
            "within": all(_within(kind, e) for n, e in errors.items() if "polygen" in n),
            "milliseconds": times,
            "pytorch": how,
            "graph": captured,
            "ratio": times["pytorch"] / best,
            "ratio_both_graphs": times["pytorch_graph"] / times["polygen_graph"],
            "ratio_no_graph": times["pytorch"] / times["polygen"],
            "kernels": kernels,
        }
        kind.forget()
    return found


def _kernels(kind: Kind, run: Callable[[], Any]) -> dict[str, float]:
    """Microseconds that a call spends in each kernel, where the profiler works."""
    if kind.dry:
        return {}
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(5):
                run()
            torch.cuda.synchronize()
        rows = [(row.key, row.self_device_time_total / 5) for row in profile.key_averages()]
    except Exception as reason:
        return {f"not profiled: {reason}"[:200]: 0.0}
    rows = sorted((row for row in rows if row[1] > 1), key=lambda row: -row[1])
    return {name[:80]: round(spent, 1) for name, spent in rows[:12]}


# --- communication beside products ----------------------------------------------------------------
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

    found: dict[str, Any] = {}
    cases: dict[str, Any] = {
        "all-gather": (gather, activated, (x, w), pgt.gathered, (own, w)),
        "reduce-scatter": (scatter, product, (hidden, back), pgt.scattered, (hidden, back)),
    }
    with torch.no_grad():
        for name, (communicate, operator, operands, way, given) in cases.items():
            runs = {
                "communication": communicate,
                "product": functools.partial(operator, *operands),
            }
            for label, chunks in (("1", 1), ("2", 2), ("chosen", None)):
                both = functools.partial(way, operator, chunks=chunks)
                runs[label] = functools.partial(both, *given)
                graph = kind.captured(both)
                graph(*given)
                static = given if graph.why else graph.operands(*given)
                runs[f"{label}_graph"] = functools.partial(graph, *static)
            times = kind.in_turns(runs)
            alone, work = times.pop("communication"), times.pop("product")
            best, chosen = min(times.values()), min(times["chosen"], times["chosen_graph"])
            found[name] = {
                "communication": alone,
                "product": work,
                "milliseconds": times,
                "hidden": 1 - (best - work) / alone,
                "hidden_by_choice": 1 - (chosen - work) / alone,
            }
            kind.forget()
    gather()
    right = activated(whole, w)
    found["all-gather"] |= _beside(pgt.gathered(activated, own, w), right)
    scatter()
    found["reduce-scatter"] |= _beside(pgt.scattered(product, hidden, back), part)
    return found


def _beside(found: torch.Tensor, wanted: torch.Tensor) -> dict[str, Any]:
    """Whether bits are the same: pieces may get kernels of another class of sums."""
    return {"equal": torch.equal(found, wanted), "difference": _error(found, wanted)}


# --- pipelines ------------------------------------------------------------------------------------
def _loss(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (made * wanted).sum()


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
    once = _phases(kind, x.chunk(kind.microbatches)[0], y.chunk(kind.microbatches)[0])
    found: dict[str, Any] = {"seconds": once}
    phases = tuple((name, once[name]) for name in ("forward", "backward"))
    # Of all ranks on average; the loss is the last one's alone.
    busy = (sum(s for _, s in phases) * STAGES + once["loss"]) * kind.microbatches / ranks
    nothing = Link("none", float("inf"), 0.0)
    machine = Machine(phases, 0.0, 0.0, 0.0, ranks, nothing, nothing)
    for schedule in ("1f1b", mine, "gpipe"):
        rows = {}
        for graph in (False, True):
            stages = [Stage(kind, number) for number in range(STAGES)]
            pipe = pgt.pipeline(
                stages, kind.microbatches, schedule, loss=_loss, device=kind.device, graph=graph
            )
            home = pipe.proved.home
            equal = []
            for _ in range(3 if graph else 1):  # as it is, captured, and replayed again
                for stage in stages:
                    stage.zero_grad()
                pipe.step(x, y)
                equal += [
                    torch.equal(p.grad, q.grad)
                    for n, at in enumerate(home)
                    if at == rank
                    for p, q in zip(stages[n].parameters(), alone[n].parameters(), strict=True)
                ]
            repeats, kind.repeats = kind.repeats, min(kind.repeats, 5)
            spent = kind.milliseconds(functools.partial(pipe.step, x, y), calls=1) / 1e3
            kind.repeats = repeats
            pipe.forget()
            rows["graph" if graph else "plain"] = {
                "equal": all(equal), "milliseconds": spent * 1e3, "bubble": 1 - busy / spent,
            }  # fmt: skip
        best = min(row["bubble"] for row in rows.values())
        formula = simulate(pipe.plan, machine).bubble
        found[pipe.proved.timetable.name] = {
            **rows, "equal": all(row["equal"] for row in rows.values()), "bubble": best,
            "formula": formula, "within_10_points": abs(best - formula) <= 0.1,
        }  # fmt: skip
    return found


def _phases(kind: Kind, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """Seconds of a stage's passes, and of the loss's both, by themselves."""
    stage, x = Stage(kind, 0), x.detach().requires_grad_()
    forward = kind.milliseconds(lambda: stage(x))
    made, ones = y.detach().clone().requires_grad_(), torch.ones_like(x)

    def step(run: Callable[[], torch.Tensor], *gradient: torch.Tensor) -> None:
        x.grad = made.grad = None  # of a microbatch there is none before
        run().backward(*gradient)

    both = kind.milliseconds(lambda: step(lambda: stage(x), ones))
    loss = kind.milliseconds(lambda: step(lambda: _loss(made, y)))
    return {
        "forward": forward / 1e3, "backward": max(both - forward, 0.0) / 1e3, "loss": loss / 1e3
    }  # fmt: skip


PARTS: dict[str, Callable[[Kind], Any]] = {
    "checks": checks,
    "tensor_parallel": tensor_parallel,
    "overlap": overlap,
    "pipelines": pipelines,
}


def main() -> None:
    """Runs everything; rank 0 writes the record."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--dry", action="store_true", help="Gloo, small sizes, no times")
    options.add_argument("--out", type=Path, help="a JSON file; without: printed")
    options.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    given = options.parse_args()
    if given.dry:
        warnings.filterwarnings("ignore", message=".* captured: CUDA graphs need")
    kind = Kind(given.dry)
    if not kind.dry:
        torch.cuda.set_device(kind.device)
    patience = datetime.timedelta(seconds=90)
    dist.init_process_group("gloo" if kind.dry else "nccl", timeout=patience)
    found: dict[str, Any] = {
        "kind": "two GPUs",
        "measured": not kind.dry,
        "gpu": "none" if kind.dry else torch.cuda.get_device_name(kind.device),
        "ranks": dist.get_world_size(),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    for name in given.parts:
        begin = time.perf_counter()
        found[name] = PARTS[name](kind)
        kind.forget()
        if dist.get_rank() == 0:  # what was found is there, whatever becomes of the next part
            took = round(time.perf_counter() - begin, 1)
            print(json.dumps({name: found[name], "took_seconds": took}), flush=True)
            if given.out:
                given.out.write_text(json.dumps(found, indent=1) + "\n")
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found.get("pipelines", {}))
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
