"""Times programs of several products, on this GPU: chains of two as one kernel and as two, and a
decoder block in one function beside PyTorch.

    python docs/measure_sequences.py --out docs/results/h200_sequences.json
    python docs/measure_sequences.py block --rows 2048 16 --autotune --out …

Contenders take turns in one process, in random order, normal data, L2 flushed, medians of
microseconds of CUDA graphs; of blocks also of calls. A record that is there keeps what is not
measured again.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import pickle
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from measured_record import header, write

import polygen as pg
from polygen.api import target
from polygen.decision import predicted
from polygen.fit_chain import predicted_time
from polygen.in_order import cut_into_kernels
from polygen.pipeline import with_sizes

ARCH = "sm_90a"
ROWS = (64, 1024, 8192, 65536)
WIDTHS = {
    "plain": ((64, 256), (64, 1024), (128, 256), (128, 512), (128, 2048), (256, 512), (256, 1024),
              (256, 4096)),
    "gated": ((64, 256), (128, 256), (256, 512), (256, 1024)),
}  # fmt: skip
PROTOCOL = (
    "Contenders in random order in one process, standard normal data, L2 flushed, medians in "
    "microseconds of CUDA graphs; bf16"
)
WIDTH, HEADS, GROUPS, INNER = 4096, 32, 8, 14336  # of the block: as Llama 3 8B
DIM, EPSILON = WIDTH // HEADS, 1e-5
Case = tuple[str, int, int, int]


def plain(x: Any, u: Any, d: Any) -> Any:
    """A perceptron."""
    return pg.gelu(x @ u) @ d


def gated(x: Any, g: Any, u: Any, d: Any) -> Any:
    """One with gates."""
    return (pg.silu(x @ g) * (x @ u)) @ d


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    first, second = x[..., : DIM // 2], x[..., DIM // 2 :]
    turned = pg.concatenate([-second, first], axis=-1)
    return (x.astype("f32") * cos + turned * sin).astype("bf16")


def block(x, cos, sin, g, wq, wk, wv, wo, h, wg, wu, wd):  # type: ignore[no-untyped-def]
    """A decoder block: norm, attention of turned heads, residual, norm, gated MLP, residual."""
    rows = x.shape[1]
    n = pg.rms_norm(x, g, eps=EPSILON)

    def heads(made: Any, count: int) -> Any:
        return made.reshape(1, rows, count, DIM).swapaxes(1, 2)

    q, k = _turned(heads(n @ wq.T, HEADS), cos, sin), _turned(heads(n @ wk.T, GROUPS), cos, sin)
    v = heads(n @ wv.T, GROUPS)
    s = q.reshape(1, GROUPS, HEADS // GROUPS, rows, DIM) @ k[:, :, None].mT * DIM**-0.5
    row, key = pg.indices(s)[-2:]
    a = (pg.softmax(pg.where(key <= row, s, -np.inf)) @ v[:, :, None]).reshape(1, HEADS, rows, DIM)
    r = (x + a.swapaxes(1, 2).reshape(1, rows, WIDTH) @ wo.T).astype("bf16")
    m = pg.rms_norm(r, h, eps=EPSILON)
    return r + (pg.silu(m @ wg.T) * (m @ wu.T)) @ wd.T


BLOCK = (
    f"bf16[1,S,{WIDTH}]", f"bf16[S,{DIM}]", f"bf16[S,{DIM}]", f"bf16[{WIDTH}]",
    f"bf16[{WIDTH},{WIDTH}]", *[f"bf16[{GROUPS * DIM},{WIDTH}]"] * 2, f"bf16[{WIDTH},{WIDTH}]",
    f"bf16[{WIDTH}]", *[f"bf16[{INNER},{WIDTH}]"] * 2, f"bf16[{WIDTH},{INNER}]",
)  # fmt: skip


def made(case: Case) -> tuple[dict[str, Any], bytes]:
    """One row without times, and its kernels."""
    name, width, inner, rows = case
    functions: dict[str, Callable[..., Any]] = {"plain": plain, "gated": gated}
    ways = 2 if name == "gated" else 1
    signature = (
        f"bf16[M,{width}]", *[f"bf16[{width},{inner}]"] * ways, f"bf16[{inner},{width}]"
    )  # fmt: skip
    fused, sizes, device = pg.fuse(functions[name]), {"M": rows}, target(ARCH)
    chain = fused.compile(*signature, arch=ARCH, sizes=sizes, single=True)
    chosen = fused.compile(*signature, arch=ARCH, sizes=sizes)

    def make(program: Any, known: dict[str, int]) -> Any:
        return pg.Kernel(with_sizes(program, known), device, known, "auto")

    program = fused.program(*signature)
    two = cut_into_kernels(program, sizes, device, make)
    assert two is not None
    row = {
        "schedule": chain.kernels[0].schedule.name,
        "schedules": [one.schedule.name for one in two.kernels],
        "predicted": {
            "one": predicted_time(with_sizes(program, sizes), device, sizes),
            "two": sum(predicted(one.program, device, sizes) or 0 for one in two.kernels),
        },
        "chosen": {1: "one", 2: "two"}[len(chosen.kernels)],
    }
    return row, pickle.dumps({"one": chain.compiled(), "two": two.compiled()})


def apart(processes: int) -> dict[str, Any]:
    """Chains as one kernel and as two."""
    import ml_dtypes  # noqa: PLC0415

    from polygen.runtime.measure import captured, interleaved, to_gpu  # noqa: PLC0415

    cases = [
        (name, *widths, rows) for name, each in WIDTHS.items() for widths in each for rows in ROWS
    ]
    with ProcessPoolExecutor(processes) as pool:
        every = list(pool.map(made, cases))
    generator, found = np.random.default_rng(0), {}
    for (name, width, inner, rows), (row, data) in zip(cases, every, strict=True):
        kernels = pickle.loads(data)
        operands = []
        for tensor in kernels["two"].program.operands:
            shape = [dim if isinstance(dim, int) else rows for dim in tensor.dims]
            scale = 1 if tensor.name == "x" else shape[0] ** -0.5
            values = generator.normal(size=shape) * scale
            operands.append(to_gpu(values.astype(ml_dtypes.bfloat16)))
        calls = {}
        for way, kernel in kernels.items():
            out = kernel(*operands)
            calls[way] = captured(functools.partial(_queued, kernel, operands, out))
        times = interleaved(calls, 15)
        row["us"] = {way: round(statistics.median(each), 2) for way, each in times.items()}
        text = f"{name}, {width} wide, {inner} inside, {rows} rows"
        found[text] = row
        print(text, row["us"], row["predicted"], row["chosen"], flush=True)
    return found


def _queued(kernel: Any, operands: list[Any], out: Any, queue: Any) -> None:
    kernel(*operands, out=out, stream=queue)


def blocks(rows: int, autotune: bool, repeats: int) -> dict[str, Any]:
    """A decoder block of so many rows in one function, beside PyTorch."""
    import torch  # noqa: PLC0415

    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import model_definitions as defined  # noqa: PLC0415

    from polygen.runtime.measure import interleaved  # noqa: PLC0415

    torch.manual_seed(0)
    torch._dynamo.reset()
    model = defined.LlamaBlock().eval().cuda().bfloat16()
    inputs = defined.blocks()[f"Llama block, {rows} tokens"].inputs
    x, cos, sin = (one.cuda().bfloat16() for one in inputs(False))
    start = time.perf_counter()
    kernels = pg.fuse(block).compile(*BLOCK, sizes={"S": rows})
    kernels.compiled()
    row: dict[str, Any] = {
        "date": _now(), "kernels": [str(one.schedule_origin) for one in kernels.kernels],
        "compile_s": {"polygen": round(time.perf_counter() - start, 2)},
    }  # fmt: skip
    weights = (
        model.first.weight, model.q.weight, model.k.weight, model.v.weight, model.o.weight,
        model.second.weight, model.gate.weight, model.up.weight, model.down.weight,
    )  # fmt: skip
    given = [x, cos, sin, *(one.detach() for one in weights)]
    with torch.no_grad():
        exact = model.float()(*(one.float() for one in (x, cos, sin)))
        model.bfloat16()
        calls: dict[str, Any] = {
            "polygen": lambda: kernels(*given), "eager": lambda: model(x, cos, sin)
        }  # fmt: skip
        modes = {"inductor": None} | ({"inductor max-autotune": "max-autotune-no-cudagraphs"}
                                      if autotune else {})  # fmt: skip
        for name, mode in modes.items():
            start = time.perf_counter()
            compiled = torch.compile(model, mode=mode, dynamic=False)
            compiled(x, cos, sin)
            torch.cuda.synchronize()
            row["compile_s"][name] = round(time.perf_counter() - start, 2)
            calls[name] = functools.partial(compiled, x, cos, sin)
        row["error"] = {n: float((c().float() - exact).abs().max()) for n, c in calls.items()}
        graphs = {name: _graph(torch, call) for name, call in calls.items()}
        known = dict(zip((one.name for one in kernels.program.operands), given, strict=True))
        for one in kernels.kernels:
            arrays = [known[tensor.name] for tensor in one.program.operands]
            results = one(*arrays)
            results = results if isinstance(results, tuple) else (results,)
            known |= dict(zip((t.name for t in one.program.outputs), results, strict=True))
            graphs[one.program.name] = _graph(torch, functools.partial(one, *arrays))
        for label, contenders in (("us", graphs), ("call_us", calls)):
            times = interleaved(contenders, repeats)
            row[label] = {name: round(statistics.median(each), 1) for name, each in times.items()}
    print(rows, row["us"], row["call_us"], row["error"], row["compile_s"], flush=True)
    return row


def _graph(torch: Any, call: Any) -> Any:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def main() -> None:
    """Measure, print, and write the record after every part."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=["apart", "block"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[2048, 16])
    parser.add_argument("--autotune", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--processes", type=int, default=15)
    words = parser.parse_args()
    record: dict[str, Any] = {"rows": {}, "blocks": {}}
    if words.out and words.out.exists():
        record = json.loads(words.out.read_text())
    record |= header("sequences", PROTOCOL)
    for part in words.parts:
        if part == "apart":
            record["rows"] = apart(words.processes)
        else:
            for rows in words.rows:
                text = f"decoder block as Llama 3 8B, {rows} rows"
                record["blocks"][text] = blocks(rows, words.autotune, words.repeats)
        write(record, words.out)


if __name__ == "__main__":
    main()
