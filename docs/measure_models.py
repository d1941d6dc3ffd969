"""Times models through `torch.compile(backend="polygen")` beside Inductor and eager, on this GPU.

    python docs/measure_models.py --list
    python docs/measure_models.py --only block --seconds 420 --out docs/results/h200_models.json
    python docs/measure_models.py --only models --part 1/2 --out docs/results/h200_models_1.json
    python docs/measure_models.py --predict          # no GPU: groups of the blocks, their kernels
    python docs/measure_models.py --dry              # no GPU: everything runs, small and unmeasured

Contenders take turns in one process, in random order, bf16, inference. *us* is the wall-clock time
of a call among calls in a row, host and GPU together; *gpu_us* is that of a captured graph, and
*host_us* what the host alone takes to issue a call. A compilation is cold: caches on disk are empty
folders, and compilers have compiled something small before. Errors are root mean squares beside the
same model in float32, as parts of the largest element. Rows that fail stand in the record with
their message; a record that is there keeps the rows that are not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import functools
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

import polygen.adapters.torch as pgt
from polygen.adapters.torch.settled import Record
from polygen.bench.card import smi
from polygen.knobs import scope

sys.path.insert(0, str(Path(__file__).resolve().parent))
import model_definitions as defined

AUTOTUNE = "max-autotune-no-cudagraphs"
BLOCKS = ("eager", "inductor max-autotune", "polygen", "inductor", "polygen measured")
MODELS = ("eager", "inductor", "polygen")
TURN, LONGEST = 4e-3, 20  # seconds of calls in a row, and how many at most
AGREES = 1.25  # times the larger error of eager and Inductor
Call = Callable[..., torch.Tensor]


class Contenders:
    """Makes a model's contenders, and notes what became of polygen's groups.

    Args:
        dry: whether nothing is compiled but groups looked for, on the CPU.
    """

    def __init__(self, dry: bool) -> None:
        self.dry, self.heard = dry, dict[str, list[Record]]()

    def made(self, name: str, model: nn.Module) -> Call:
        """One contender, before its first call."""
        if name == "eager":
            return model
        if name.startswith("inductor"):
            if self.dry:
                return torch.compile(model, backend="aot_eager", dynamic=False)
            mode = AUTOTUNE if name.endswith("autotune") else None
            return torch.compile(model, mode=mode, dynamic=False)
        records = self.heard.setdefault(name, [])
        options = {"take": "measured"} if name.endswith("measured") else {}
        if self.dry:
            options = {"rest": "eager"}
        backend = functools.partial(pgt.polygen, options=options, heard=records.append)
        return torch.compile(model, backend=backend, dynamic=False)


@contextlib.contextmanager
def cold() -> Iterator[None]:
    """Empty folders for what compilers keep."""
    from torch._inductor import utils  # noqa: PLC0415

    empty = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache
    with tempfile.TemporaryDirectory() as folder, empty(), scope(cache_dir=Path(folder)):
        yield


def measured(
    given: defined.Model, names: tuple[str, ...], seconds: float, dry: bool
) -> dict[str, Any]:
    """One row of the record."""
    torch.manual_seed(0)
    device = "cpu" if dry else "cuda"
    began = time.monotonic()
    exact = given.make().eval()
    for parameter in exact.parameters():
        if parameter.dim() > 1 and not parameter.any():  # as of heads: all would be zero
            nn.init.normal_(parameter, std=0.02)
    inputs = given.inputs(dry)
    exact = exact.to(device)
    inputs = tuple(one.to(device) for one in inputs)
    model = copy.deepcopy(exact).to(torch.bfloat16)
    narrow = tuple(one.bfloat16() if one.is_floating_point() else one for one in inputs)
    wanted = exact(*(one.float() if one.is_floating_point() else one for one in narrow))
    del exact
    row: dict[str, Any] = {"date": _now(), "source": given.source, "compile_s": {}, "error": {}}
    row["left_out"] = {}
    torch._dynamo.reset()  # before all of them: it would throw away what was compiled
    makers, calls = Contenders(dry), dict[str, Call]()
    for name in names:
        if calls and time.monotonic() - began > seconds:
            row["left_out"][name] = "no time"
            continue
        try:
            with cold():
                start = time.perf_counter()
                call = makers.made(name, model)
                found = call(*narrow)
                _wait(dry)
                row["compile_s"][name] = round(time.perf_counter() - start, 2)
            far = (found.float() - wanted).pow(2).mean().sqrt() / wanted.abs().max()
            row["error"][name] = float(far)
            calls[name] = functools.partial(call, *narrow)
            del found
        except Exception as error:
            row["left_out"][name] = f"{type(error).__name__}: {error}"[:400]
    row["compile_s"].pop("eager", None)
    del wanted
    row |= _groups(makers.heard)
    row["agrees"] = _agrees(row["error"])
    stats = torch._dynamo.utils.counters["stats"]
    graphs = stats["unique_graphs"]
    try:
        row |= rehearsed(calls) if dry else times(calls)
    except Exception as error:
        row["left_out"]["times"] = f"{type(error).__name__}: {error}"[:400]
    row["compiled_again"] = stats["unique_graphs"] - graphs
    return row


def rehearsed(calls: dict[str, Call]) -> dict[str, Any]:
    """What `times` does, without a GPU and a clock."""
    for call in calls.values():
        call()
    return {}


def _wait(dry: bool) -> None:
    if not dry:
        torch.cuda.synchronize()


def _groups(heard: dict[str, list[Record]]) -> dict[str, Any]:
    found: dict[str, Any] = {"groups": {}, "taken": {}, "kernels": {}, "records": {}}
    for name, records in heard.items():
        taken = [record for record in records if record.taken]
        found["groups"][name], found["taken"][name] = len(records), len(taken)
        found["kernels"][name] = len({(one.computes, one.why) for one in taken})
        found["records"][name] = list(dict.fromkeys(map(str, records)))
    return found


def _agrees(errors: dict[str, float]) -> bool:
    own = [error for name, error in errors.items() if name.startswith("polygen")]
    others = [error for name, error in errors.items() if not name.startswith("polygen")]
    return bool(own and others) and max(own) <= AGREES * max(others)


# --- times ----------------------------------------------------------------------------------------
def times(calls: dict[str, Call], rounds: int = 21) -> dict[str, Any]:
    """Medians of microseconds of a call: end to end, of the host alone, of the GPU alone."""
    row: dict[str, Any] = {"us": {}, "host_us": {}, "gpu_us": {}, "launches": {}}
    each: dict[str, list[float]] = {name: [] for name in calls}
    host: dict[str, list[float]] = {name: [] for name in calls}
    counts = {}
    for name, call in calls.items():
        one = _in_a_row(call, 3)
        counts[name] = max(2, min(LONGEST, int(TURN / one)))
    order, names = random.Random(0), list(calls)
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            each[name].append(_in_a_row(calls[name], counts[name]))
            host[name].append(_of_the_host(calls[name], 4))
    for name, call in calls.items():
        row["us"][name] = round(1e6 * statistics.median(each[name]), 2)
        row["host_us"][name] = round(1e6 * statistics.median(host[name]), 2)
        row["launches"][name] = _launches(call)
        row["gpu_us"][name] = _captured(call)
    return row


def _in_a_row(call: Call, count: int) -> float:
    """Seconds of a call among some in a row, until the GPU is done."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def _of_the_host(call: Call, count: int) -> float:
    """Seconds that the host takes for a call while the GPU has other work."""
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _captured(call: Call) -> float | None:
    """Microseconds of a call as a captured graph; None: it cannot be captured."""
    try:
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=side):
            call()
        found = [_in_a_row(graph.replay, 8) for _ in range(7)]
        return round(1e6 * statistics.median(found), 2)
    except Exception:
        with contextlib.suppress(Exception):
            torch.cuda.synchronize()
        return None


def _launches(call: Call) -> int | None:
    """Kernels that a call launches; None: the profiler does not say."""
    try:
        kinds = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            call()
            torch.cuda.synchronize()
        kept = [one for one in profile.events() if "mem" not in one.name.lower()[:4]]
        return sum(one.device_type.name == "CUDA" for one in kept) or None
    except Exception:
        return None


# --- without a GPU --------------------------------------------------------------------------------
def predict(names: list[str]) -> int:
    """Find, decide and compile the groups of the blocks for Hopper, on fake tensors.

    Returns:
        How many groups were refused by the compiler.
    """
    from torch._inductor.decomposition import select_decomp_table  # noqa: PLC0415
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415
    from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415

    from polygen.adapters.torch import rewriting  # noqa: PLC0415

    bad = 0
    for name in names:
        given = defined.blocks()[name]
        with torch.device("meta"):
            model = given.make().to(torch.bfloat16).eval()
        shapes = [one.shape for one in given.inputs(False)]
        with FakeTensorMode(), torch.no_grad():
            for module in model.modules():
                for key, value in list(module._parameters.items()):
                    if value is not None:
                        made = torch.empty(value.shape, dtype=torch.bfloat16, device="cuda")
                        module._parameters[key] = nn.Parameter(made, requires_grad=False)
            inputs = [torch.empty(s, dtype=torch.bfloat16, device="cuda") for s in shapes]
            flash = torch.nn.functional.scaled_dot_product_attention
            torch.nn.functional.scaled_dot_product_attention = _flash
            try:
                graph = make_fx(
                    lambda *args, model=model: model(*args),
                    decomposition_table=select_decomp_table(),
                    _allow_non_fake_inputs=True,
                )(*inputs)
            finally:
                torch.nn.functional.scaled_dot_product_attention = flash
        graph.graph.eliminate_dead_code()
        start = time.perf_counter()
        with scope(arch="sm_90a"):
            records = rewriting.rewrite(graph.graph, rewriting.Settings())
        print(f"{name}: {time.perf_counter() - start:.1f} s")
        print("\n".join(f"  {record}" for record in records), flush=True)
        bad += sum("CompileError" in one.why or "spill" in one.why for one in records)
    return bad


def _flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False, **_: Any
) -> torch.Tensor:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    found: torch.Tensor = kernel(q, k, v, 0.0, is_causal)[0]
    return found


# --- the record -----------------------------------------------------------------------------------
def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _record(out: Path | None, dry: bool) -> dict[str, Any]:
    if out and out.exists():
        found: dict[str, Any] = json.loads(out.read_text())
        return found
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    for name in ("triton", "transformers", "torchvision"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "format": 1,
        "kind": "models",
        "date": _now(),
        "gpu": "none" if dry else torch.cuda.get_device_name(),
        **({} if dry else smi("driver_version")),
        "versions": versions,
        "protocol": __doc__.partition("\n\n")[2].partition("\n\n")[2],
        "rows": {},
    }


def _warm() -> None:
    """Start the compilers: their imports and helpers are nobody's compile time."""
    layer = nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)

    def small(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(layer(x)) + x.sum(-1, keepdim=True)

    for name in ("inductor", "inductor max-autotune", "polygen measured"):
        torch._dynamo.reset()
        call = Contenders(False).made(name, small)  # type: ignore[arg-type]
        call(x)
    torch.cuda.synchronize()


def main() -> None:
    """Measure, print, and write the record after every row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", help="block, models, or parts of names")
    parser.add_argument("--part", default="1/1", help="of the rows: I/N is every N-th from I on")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing after that")
    parser.add_argument("--out", type=Path, help="the record")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--predict", action="store_true")
    words = parser.parse_args()
    blocks, models = defined.blocks(), defined.models()
    only = words.only or ["block", "models"]
    wanted = [
        name
        for name in (*blocks, *models)
        if any(p in name or (p == "models" and name in models) for p in only)
    ]
    which, count = map(int, words.part.split("/"))
    wanted = wanted[which - 1 :: count]
    if words.list:
        print("\n".join(wanted))
        return
    if words.predict:
        sys.exit(bool(predict([name for name in wanted if name in blocks])))
    began, record = time.monotonic(), _record(words.out, words.dry)
    if not words.dry:
        _warm()
    for name in wanted:
        left = words.seconds - (time.monotonic() - began)
        if left < 0:
            print(f"no time for: {name}")
            continue
        given = (blocks | models)[name]
        contenders = BLOCKS if name in blocks else MODELS
        start = time.monotonic()
        try:
            with torch.no_grad():
                row = measured(given, contenders, left, words.dry)
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {error}"[:500]}
        row["seconds"] = round(time.monotonic() - start, 1)
        record["rows"][name] = row
        said = {k: row[k] for k in ("us", "compile_s", "taken", "agrees", "left_out") if row.get(k)}
        print(f"{name}: {row.get('failed') or said} in {row['seconds']} s", flush=True)
        torch._dynamo.reset()
        gc.collect()
        if words.out:
            made = words.out.with_suffix(".new")
            made.write_text(json.dumps(record, indent=1) + "\n")
            made.replace(words.out)
        if not words.dry:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
