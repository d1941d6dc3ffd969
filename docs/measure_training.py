"""Times training steps of layers through `pgt.op` beside PyTorch, on this GPU.

    python docs/measure_training.py --out docs/results/h200_training.json

A step is a forward pass and the gradients of all arguments, as one CUDA graph. Contenders take
turns in one process, in random order, normal data, L2 flushed, medians of microseconds; bf16.
*arguments* is polygen with `keep="arguments"`. Bytes are those that a forward pass keeps beside
arguments and results.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from measured_record import header, write

import polygen as pg
import polygen.adapters.torch as pgt
from polygen.runtime.measure import interleaved

PROTOCOL = (
    "Forward pass and gradients of all arguments as one CUDA graph; contenders in random order in "
    "one process, standard normal data, L2 flushed, medians in microseconds; bf16"
)
SIZES = ((8192, 1024, 4096), (4096, 4096, 11008), (2048, 4096, 14336), (16384, 768, 3072),
         (1024, 2048, 8192))  # fmt: skip
F = torch.nn.functional
Layer = Callable[..., Any]


def layer(x: Any, u: Any, b: Any) -> Any:
    """One layer."""
    return pg.gelu(x @ u.T + b)


def gate(x: Any, g: Any, u: Any) -> Any:
    """One layer with gates."""
    return pg.silu(x @ g.T) * (x @ u.T)


def perceptron(x: Any, u: Any, b: Any, d: Any) -> Any:
    """Two layers."""
    return pg.gelu(x @ u.T + b) @ d.T


def gated(x: Any, g: Any, u: Any, d: Any) -> Any:
    """Two layers, the first with gates."""
    return (pg.silu(x @ g.T) * (x @ u.T)) @ d.T


def deep(x: Any, u: Any, v: Any, d: Any) -> Any:
    """Three layers."""
    return pg.relu(pg.relu(x @ u.T) @ v.T) @ d.T


IN_TORCH: dict[str, Layer] = {
    "layer": lambda x, u, b: F.gelu(F.linear(x, u, b)),
    "gate": lambda x, g, u: F.silu(x @ g.T) * (x @ u.T),
    "perceptron": lambda x, u, b, d: F.gelu(F.linear(x, u, b)) @ d.T,
    "gated": lambda x, g, u, d: (F.silu(x @ g.T) * (x @ u.T)) @ d.T,
    "deep": lambda x, u, v, d: F.relu(F.relu(x @ u.T) @ v.T) @ d.T,
}
FUNCTIONS: dict[str, Layer] = {
    "layer": layer, "gate": gate, "perceptron": perceptron, "gated": gated, "deep": deep,
}  # fmt: skip


def shapes(name: str, rows: int, width: int, inner: int) -> list[tuple[int, ...]]:
    """Of a layer's arguments."""
    first, last = (inner, width), (width, inner)
    others: dict[str, list[tuple[int, ...]]] = {
        "layer": [(inner,)], "gate": [first], "perceptron": [(inner,), last],
        "gated": [first, last], "deep": [(inner, inner), last],
    }  # fmt: skip
    return [(rows, width), first, *others[name]]


def arguments(name: str, rows: int, width: int, inner: int) -> list[torch.Tensor]:
    """Of a layer, of which all need gradients."""
    found = []
    for shape in shapes(name, rows, width, inner):
        scale = shape[-1] ** -0.5 if shape[0] != rows else 1.0
        one = torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * scale
        found.append(one.requires_grad_())
    return found


def step(layer: Layer, given: Sequence[torch.Tensor], arrives: torch.Tensor) -> Any:
    """A forward pass and what reaches the arguments."""
    return torch.autograd.grad(layer(*given), given, arrives)


def graph_of(layer: Layer, given: Sequence[torch.Tensor], arrives: torch.Tensor) -> Any:
    """A step as a graph, and its results."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(layer, given, arrives)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(layer, given, arrives)
    return graph, results


def kept(layer: Layer, given: Sequence[torch.Tensor]) -> int:
    """Bytes that a forward pass keeps beside arguments."""
    own = {one.untyped_storage().data_ptr() for one in given}
    found: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a result that is kept would keep its own graph

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = layer(*given)
    del result
    return sum(found.values())


def measured(name: str, sizes: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    """One row of the record."""
    given = arguments(name, *sizes)
    columns = sizes[2] if name in ("layer", "gate") else sizes[1]
    arrives = torch.randn(sizes[0], columns, device="cuda", dtype=torch.bfloat16)
    torch._dynamo.reset()
    function = FUNCTIONS[name]
    layers: dict[str, Layer] = {
        "polygen": pgt.op(function, name=f"{name}_step"),
        "arguments": pgt.op(function, name=f"{name}_sparing", keep="arguments"),
        "eager": IN_TORCH[name],
        "inductor": torch.compile(IN_TORCH[name], dynamic=False),
    }
    with torch.no_grad():
        wide = [one.detach().double().requires_grad_() for one in given]
    exact = step(IN_TORCH[name], wide, arrives.double())
    row: dict[str, Any] = {"sizes": sizes, "us": {}, "kept": {}, "error": {}}
    graphs = {}
    for who, call in layers.items():
        graphs[who], results = graph_of(call, given, arrives)
        row["kept"][who] = kept(call, given)
        graphs[who].replay()
        row["error"][who] = max(
            float(((one.double() - e).pow(2).mean() / e.pow(2).mean()).sqrt())
            for one, e in zip(results, exact, strict=True)
        )
    times = interleaved({who: graph.replay for who, graph in graphs.items()}, rounds)
    row["us"] = {who: round(statistics.median(one), 1) for who, one in times.items()}
    return row


def main() -> None:
    """Measure, print, and write the record after every row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(FUNCTIONS))
    parser.add_argument("--sizes", nargs="*", type=int, default=range(len(SIZES)), help="numbers")
    parser.add_argument("--out", type=Path, help="the record")
    parser.add_argument("--rounds", type=int, default=15)
    words = parser.parse_args()
    record = header("training", PROTOCOL) | {"rows": {}}
    for name in words.only:
        for sizes in (SIZES[number] for number in words.sizes):
            label = f"{name} {'x'.join(map(str, sizes))}"
            torch.cuda.empty_cache()
            record["rows"][label] = row = measured(name, sizes, words.rounds)
            print(label, row["us"], {k: f"{e:.1e}" for k, e in row["error"].items()}, flush=True)
            write(record, words.out)


if __name__ == "__main__":
    main()
