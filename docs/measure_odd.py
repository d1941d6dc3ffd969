"""Odd sizes under many schedules: whether the automatic choice is the fastest, and what is if not.

    python docs/measure_odd.py list                        # problems and schedules; no GPU
    python docs/measure_odd.py build FOLDER [--rows small]  # compiles all, in parallel; no GPU
    python docs/measure_odd.py time FOLDER --out RECORD.json

`small` are products with few k tiles, under the tiles that threads can fill, behind a copy and by
warps. `drawn` are 20 problems whose M, N and K are odd, drawn between 63 and 5000 by a seed before
any of them was measured: the automatic choice beside the next best of other tiles, as the model
has them. The record is one of measured schedules, as `polygen tune --export` writes: the model is
judged by it, and schedules ship from it. It has PyTorch's times beside each problem.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import random
import statistics
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polygen.api import Fused
from polygen.bench.rows import Row
from polygen.bench.torch_code import torch_function
from polygen.decide import candidates
from polygen.errors import PolygenError
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Program
from polygen.hardware.device import device
from polygen.pipeline import generate, with_sizes
from polygen.runtime.cache import compile_cached
from polygen.runtime.files import write_text_atomic
from polygen.schedule.load import dumps
from polygen.schedule.model import Launches, Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.choose import _weighed
from polygen.tune.cost import predict_all
from polygen.tune.identity import generator_digest
from polygen.tune.recorded import dump
from polygen.tune.schedule_name import schedule_name
from polygen.tune.space import space

SEED, DRAWN, LEAST, MOST = 20261124, 20, 63, 5000
OPS = ("mm", "bias_gelu", "bias_residual_relu")
SMALL = (
    Row("bias_gelu", 1000, 1003, 77),
    Row("mm", 1000, 1003, 77),
    Row("mm", 513, 1027, 63),
    Row("bias_residual_relu", 777, 1023, 129),
    Row("bias_gelu", 1501, 1503, 151),
    Row("mm", 301, 2049, 211),
    Row("bias_residual_relu", 1023, 511, 299),
    Row("bias_gelu", 2047, 2045, 99),
)
TARGET = device("sm_90a")
EACH_SMALL = {"threads": 11, "copy": 4, "warps": 3, "engine": 4}
EACH_DRAWN = 5
BESIDE = 2.0  # times the prediction of the first, beyond which a schedule is not tried
REPEATS = 31
COMPILED = 4  # small rows that PyTorch compiles, which takes it long


def drawn(seed: int = SEED, count: int = DRAWN) -> tuple[Row, ...]:
    """Rows whose three sizes are odd, each drawn by its logarithm; the operation is drawn too."""
    chance = random.Random(seed)

    def odd() -> int:
        return int(math.exp(chance.uniform(math.log(LEAST), math.log(MOST)))) | 1

    return tuple(Row(chance.choice(OPS), odd(), odd(), odd()) for _ in range(count))


def rows(which: Sequence[str]) -> list[tuple[str, Row]]:
    """The rows of some sets, each with the name of its set."""
    sets = {"small": SMALL, "drawn": drawn()}
    return [(name, row) for name in which for row in sets[name]]


def fused(row: Row) -> Fused:
    """The operation of a row."""
    op = row.operation
    return Fused(parse_expression(op.expression, op.names), op.name, op.expression, False)


def program_of(row: Row) -> Program:
    """With the alignments that the sizes leave."""
    sizes = row.sizes | row.pitches
    found = fused(row).program(*row.signature, out_dtype=row.out_dtype, sizes=sizes)
    return with_sizes(found, sizes)


def filled(schedule: Schedule, problem: Problem) -> str:
    """Who fills shared memory with rows that the copy engine does not take."""
    if not schedule.specialised:
        return "warps"
    if schedule.launch.realign:
        return "copy"
    return "threads" if any(problem.under(schedule).threaded) else "engine"


@dataclass(frozen=True)
class Tried:
    """One schedule of a row, and what the model says of it."""

    schedule: Schedule
    fill: str
    predicted: float


def _tile(one: Schedule) -> tuple[object, ...]:
    return one.roles.form, one.tile.cta, one.min_blocks, one.exchange


def _weighed_all(
    kind: str, problem: Problem, fit: Callable[[Schedule], Fitted | str]
) -> list[Fitted]:
    """Schedules that ship; of small problems those of the search, and few stages, too."""
    shipped = _weighed(TARGET, problem)
    found = [one for one in map(fit, shipped) if isinstance(one, Fitted)]
    if kind == "small":
        found += space(TARGET, problem, fit)
    return found


def _brief(problem: Problem, fit: Callable[[Schedule], Fitted | str]) -> Iterator[Fitted]:
    """The tile of 64 x 64, two on a multiprocessor, with few slots and with longer k tiles."""
    named = {one.name: one for one in _weighed(TARGET, problem)}
    base = replace(named["cooperative_64x64x64_s6_b2"], launch=Launches())
    for stages, depth in ((2, 64), (3, 64), (2, 128), (3, 128)):
        tile = replace(base.tile, cta=replace(base.tile.cta, k=depth))
        pipeline = replace(base.pipeline, stages=stages)
        found = fit(replace(base, tile=tile, pipeline=pipeline))
        if isinstance(found, Fitted):
            name = schedule_name(found.schedule)
            yield Fitted(replace(found.schedule, name=name), found.resident)


def tried(kind: str, row: Row) -> list[Tried]:
    """The automatic choice first; then the best predicted, one of each tile and way to fill."""
    sizes = row.sizes | row.pitches
    auto = fused(row).compile(
        *row.signature, out_dtype=row.out_dtype, sizes=sizes, arch=TARGET.name
    )
    problem, fit = candidates(auto.program, TARGET, sizes)
    own = fit(auto.schedule)
    brief = list(_brief(problem, fit)) if kind == "small" and any(problem.threaded) else []
    found = _weighed_all(kind, problem, fit)
    if isinstance(own, Fitted):
        brief = [own, *brief]
    times = predict_all(TARGET, [*brief, *found], problem)
    every = [
        Tried(one.schedule, filled(one.schedule, problem), float(predicted))
        for one, predicted in zip([*brief, *found], times, strict=True)
    ]
    taken = every[: len(brief)]
    seen = {(one.fill, _tile(one.schedule)) for one in taken}
    left = dict(EACH_SMALL)
    ranked = sorted(every[len(brief) :], key=lambda one: one.predicted)
    for one in ranked:
        key = (one.fill, _tile(one.schedule))
        another = one.fill not in {other.fill for other in taken}
        enough = left[one.fill] <= 0 if kind == "small" else len(taken) > EACH_DRAWN
        if key in seen or one.predicted > BESIDE * ranked[0].predicted or (enough and not another):
            continue
        seen.add(key)
        taken.append(one)
        left[one.fill] -= 1
    return taken


# --- building ------------------------------------------------------------------------------------
def _tried_of(job: tuple[str, Row]) -> tuple[str, Row, list[Tried]]:
    return *job, tried(*job)


def _built(job: tuple[Row, Schedule]) -> tuple[Any, str]:
    """A launcher's text and machine code; or why there is none."""
    row, schedule = job
    try:
        source = generate(program_of(row), TARGET, row.sizes | row.pitches, schedule).source
        return (source, compile_cached(source)), ""
    except PolygenError as reason:
        return None, " ".join(str(reason).split())[:200]


def build(folder: Path, which: Sequence[str], processes: int, seconds: float) -> None:
    """Compile all, and leave them in the folder as they come."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        every = list(pool.map(_tried_of, rows(which)))
        plan = [(kind, row, [(one, (row.op, one.schedule)) for one in found])
                for kind, row, found in every]  # fmt: skip
        jobs = {key: (row, one.schedule) for _, row, found in plan for one, key in found}
        print(f"{len(plan)} problems, {len(jobs)} kernels, {time.monotonic() - began:.0f} s")
        pending = {pool.submit(_built, job): key for key, job in jobs.items()}
        built, refused = {}, {}
        try:
            for future in as_completed(pending, timeout=seconds - (time.monotonic() - began)):
                made, why = future.result()
                if made is None:
                    refused[pending[future]] = why
                    print("not", pending[future][0], pending[future][1].name, why, flush=True)
                else:
                    built[pending[future]] = made
        except TimeoutError:
            print(f"{len(pending) - len(built) - len(refused)} kernels not in time", flush=True)
            for future in pending:
                future.cancel()
        with (folder / "built.pickle").open("wb") as file:
            pickle.dump((plan, built, refused), file)
        print(f"{len(built)} built, {time.monotonic() - began:.0f} s", flush=True)


# --- PyTorch beside ------------------------------------------------------------------------------
def _compiled(row: Row, mode: str) -> Any:
    import torch  # noqa: PLC0415

    torch._dynamo.reset()
    return torch.compile(torch_function(row.operation), mode=mode, dynamic=False)


def _arrays(row: Row) -> list[Any]:
    import torch  # noqa: PLC0415

    made = []
    for _, dims in row.operation.operands:
        shape = [row.sizes[dim] for dim in dims]
        scale = row.k**-0.25 if "K" in dims else 1.0
        made.append((torch.randn(*shape, device="cuda") * scale).to(torch.bfloat16))
    return made


def warm(folder: Path, part: int, parts: int, mode: str) -> None:
    """Have PyTorch compile the small rows, so that its cache has them."""
    import torch  # noqa: PLC0415

    for at, row in enumerate(SMALL[:COMPILED]):
        if at % parts == part:
            with torch.inference_mode():
                _compiled(row, mode)(*_arrays(row))
            torch.cuda.synchronize()
            (folder / f"inductor_{at}").write_text("compiled")


# --- timing --------------------------------------------------------------------------------------
def _peers(folder: Path, row: Row, mode: str) -> Iterator[tuple[str, Any, Any]]:
    """PyTorch as it is, and compiled where that was done before; as calls and as graphs."""
    import torch  # noqa: PLC0415

    plain = torch_function(row.operation)
    ways = [("eager", plain)]
    if row in SMALL and (folder / f"inductor_{SMALL.index(row)}").exists():
        ways.append(("inductor", _compiled(row, mode)))
    data = _arrays(row)
    for name, function in ways:
        try:
            with torch.inference_mode():
                for _ in range(3):
                    kept = function(*data)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    kept = function(*data)
        except Exception as reason:  # a peer that fails is no reason to stop
            print("not", name, row.key, str(reason)[:120], flush=True)
            continue

        def call(function: Any = function) -> None:
            with torch.inference_mode():
                function(*data)

        def replay(graph: Any = graph, kept: Any = kept) -> None:
            graph.replay()

        yield name, call, replay


class Measured:
    """One row: its schedules checked against the choice, and their times.

    Args:
        row: what is computed.
        there: schedules by number, the choice as 0, each with what was built of it.
    """

    def __init__(self, row: Row, there: dict[str, tuple[Tried, Any]]) -> None:
        from polygen.tune.gpu import Timer, gpu_tools  # noqa: PLC0415
        from polygen.tune.trials import Contender  # noqa: PLC0415

        self.row, self.there = row, there
        self._contenders = {
            key: Contender(key, one.schedule.name, built) for key, (one, built) in there.items()
        }
        self._timer = Timer(gpu_tools(), program_of(row), row.sizes | row.pitches, 0)
        self._timer._begin(self._contenders["0"])
        self.wrong: dict[str, str] = {}
        for key, one in self._contenders.items():
            trial = None if key == "0" else self._timer._check(one, brief=False)
            if trial is not None:
                self.wrong[one.name] = f"{trial.state}: {trial.reason}"
        self.graph = self._timer._graphs

    def _on_a_stream(self, key: str) -> Callable[[], Any]:
        return lambda: self._timer._launch(self._contenders[key], self._timer._normal)

    def times(self, folder: Path, mode: str) -> dict[str, list[float]]:
        """Of all, with PyTorch's, in microseconds."""
        from polygen.runtime.measure import interleaved  # noqa: PLC0415

        calls = dict(self._timer._calls)
        if self.graph:
            calls |= {f"{key} on a stream": self._on_a_stream(key) for key in calls}
        for name, call, replay in _peers(folder, self.row, mode):
            calls[name] = replay if self.graph else call
        return interleaved(calls, REPEATS, warm=2)

    def problem(self, kind: str, times: dict[str, list[float]]) -> dict[str, Any]:
        """The row as a record has it."""
        median = {name: statistics.median(one) for name, one in times.items()}
        measured = []
        for key, (one, _) in self.there.items():
            if key in median:
                low, _, high = statistics.quantiles(times[key], n=4)
                table = tomllib.loads(dumps(one.schedule))
                table.pop("format")
                measured.append(
                    {
                        "schedule": table, "microseconds": median[key], "quartiles": [low, high],
                        "repeats": REPEATS, "ratio": median[key] / median["0"],
                        "graph": self.graph, "on_a_stream": median.get(f"{key} on a stream"),
                        "fill": one.fill, "predicted": one.predicted,
                    }
                )  # fmt: skip
        row, op = self.row, self.row.operation
        return {
            "op": row.op, "expression": op.expression, "signature": list(row.signature),
            "out_dtype": row.out_dtype, "acc_dtype": row.acc, "sizes": row.sizes | row.pitches,
            "arch": TARGET.name, "set": kind, "refused": self.wrong,
            "peers": {name: value for name, value in median.items() if not name[0].isdigit()},
            "measurements": measured,
        }  # fmt: skip


def measure(folder: Path, out: Path, which: Sequence[str], seconds: float, mode: str) -> None:
    """Check all against the choice, time them in random order, and write the record."""
    import torch  # noqa: PLC0415

    from polygen.runtime.measure import device_name  # noqa: PLC0415

    torch.zeros(1, device="cuda")
    with (folder / "built.pickle").open("rb") as file:
        plan, built, refused = pickle.load(file)
    began, problems, text = time.monotonic(), [], []
    for kind, row, found in plan:
        if kind not in which or time.monotonic() - began > seconds:
            continue
        there = {str(at): (one, built[key]) for at, (one, key) in enumerate(found) if key in built}
        try:
            one = Measured(row, there)
        except (PolygenError, KeyError) as reason:
            print("no choice to compare with:", row.key, reason, flush=True)
            continue
        one.wrong |= {t.schedule.name: refused[key] for t, key in found if key in refused}
        for name, why in one.wrong.items():
            print(row.key, name, why[:200], flush=True)
        problems.append(one.problem(kind, one.times(folder, mode)))
        text.append(line(row, problems[-1]["measurements"], problems[-1]["peers"]))
        print(text[-1], flush=True)
        write_text_atomic(out, dump(_provenance(device_name()), problems))
    (folder / "table.txt").write_text("\n".join(text) + "\n")


def line(row: Row, measured: Sequence[dict[str, Any]], rest: dict[str, float]) -> str:
    """The choice, PyTorch, and the others from the fastest on: measured, on a stream, predicted."""
    choice = measured[0]["microseconds"]
    best = min(one["microseconds"] for one in measured)
    others = "; ".join(
        f"{one['microseconds']:.1f}|{one['on_a_stream'] or 0:.1f}|{one['predicted']:.1f} "
        f"{one['fill'][:4]} {one['schedule']['name']}"
        for one in sorted(measured, key=lambda one: one["microseconds"])[:6]
    )
    beside = ", ".join(f"{name} {value:.1f}" for name, value in rest.items())
    mark = " LOST" if choice > 1.05 * best else ""
    return f"{row.key}: {choice:.1f} (best {best:.1f}){mark} [{beside}] {others}"


def _provenance(gpu: str) -> dict[str, Any]:
    from polygen import __version__  # noqa: PLC0415
    from polygen.runtime.environment import environment  # noqa: PLC0415
    from polygen.runtime.nvrtc import compiler_identity  # noqa: PLC0415

    here = environment()
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": "python docs/measure_odd.py",
        "seed": SEED,
        "gpu": {"name": gpu},
        "clocks": os.environ.get("GPU_CLOCKS", ""),
        "driver": here["driver"],
        "cuda": here["cuda_driver_api"],
        "torch": _torch_version(),
        "compiler": [compiler_identity()],
        "polygen": [__version__],
        "sources": [generator_digest()],
        "protocol": "all contenders of a problem in one process, in random order; the first is the "
        "automatic choice; normal random data; L2 cache flushed before every launch; CUDA events; "
        "CUDA graphs below 60 us, and launches on a stream besides; medians",
        "source": "gpu",
    }


def _torch_version() -> str:
    import torch  # noqa: PLC0415

    return str(torch.__version__)


def main() -> None:
    """Run the command."""
    words = argparse.ArgumentParser(description=__doc__)
    words.formatter_class = argparse.RawDescriptionHelpFormatter
    words.add_argument("what", choices=("list", "build", "warm", "time"))
    words.add_argument("folder", type=Path, nargs="?", default=Path())
    words.add_argument("--rows", nargs="+", default=["small", "drawn"], help="small, drawn")
    words.add_argument("--out", type=Path, default=Path("h200_odd_choices.json"))
    words.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    words.add_argument("--seconds", type=float, default=600.0)
    words.add_argument("--part", type=int, nargs=2, default=(0, 1), help="of PyTorch's rows")
    words.add_argument("--mode", default="max-autotune-no-cudagraphs", help="of torch.compile")
    given = words.parse_args()
    if given.what == "build":
        build(given.folder, given.rows, given.processes, given.seconds)
    elif given.what == "warm":
        warm(given.folder, *given.part, given.mode)
    elif given.what == "time":
        measure(given.folder, given.out, given.rows, given.seconds, given.mode)
    else:
        for kind, row in rows(given.rows):
            print(kind, row.key)
            for one in tried(kind, row):
                print(f"  {one.predicted:7.1f} {one.fill:8} {one.schedule.name}")


if __name__ == "__main__":
    main()
