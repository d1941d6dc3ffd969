"""Measures fused products beside cuBLAS, cuBLASLt and Inductor on one GPU.

Run from ``tests``::

    python -m gpu.hopper_speed OUT.json [--budget SECONDS] [--rows PATTERN] [--resume]
    python -m gpu.hopper_speed OUT.json --schedules DIR_OR_GLOB [--rows PATTERN]

1. The kernels are compiled by as many processes as there are cores, into the shared cache.
2. A child process then takes one row at a time: it checks the kernel against float64, makes the
   libraries' contenders, and times all of them interleaved. The parent kills it when a stage takes
   too long, records why, and goes on with a new one.
3. The record is written after every row, so that a run that is cut short keeps what it has.

With ``--schedules`` the contenders of a row are schedule files, for tuning.
"""

from __future__ import annotations

import argparse
import datetime
import glob
import json
import multiprocessing
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.contenders import (
    CUBLAS,
    EXPRESSIONS,
    FUNCTIONS,
    INDUCTOR,
    LT,
    REPEATS,
    SEPARATE,
    TUNING_REPEATS,
    Bench,
    Row,
    all_rows,
    compiled,
    selected,
)
from gpu.measuring import geometric_mean, smi, sources_digest, write_record

import polygen as pg
from polygen.runtime.child import Lost, Watched, one_line
from polygen.runtime.environment import current_arch

BATCH = 12  # schedules that are timed together
COMPILE_SHARE = 0.4  # part of the budget in which polygen's kernels have to be there
CLOCKS = "clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu"
NOT_TIMED = "no time left"
NO_TIME = "its share of the time"  # how the reasons of `Clock.no_inductor` begin


# --- compiling ------------------------------------------------------------------------------------
class Compiler:
    """Compiles rows in the background, each by a process of its own."""

    def __init__(self, arch: str, processes: int) -> None:
        self._arch = arch
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_give_way)
        self._futures: dict[tuple[Row, str], Future[dict[str, Any]]] = {}
        self._processes: list[Any] = []

    def submit(self, row: Row, schedule: str = "auto") -> None:
        """Start with a kernel."""
        before = set(multiprocessing.active_children())
        self._futures[row, schedule] = self._pool.submit(compiled, row, self._arch, schedule)
        self._processes += [p for p in multiprocessing.active_children() if p not in before]

    def result(self, row: Row, schedule: str = "auto", limit: float = 120) -> dict[str, Any]:
        """Wait for a kernel."""
        try:
            return self._futures[row, schedule].result(limit)
        except TimeoutError:
            return {"error": f"not compiled after {limit:.0f} s more"}
        except Exception as error:  # the pool broke
            return {"error": f"compiling failed: {one_line(error)}"}

    def close(self) -> None:
        """End the pool's processes, whatever they do."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            if process.is_alive():
                process.kill()


def _give_way() -> None:
    """Leave the cores to the process that measures."""
    os.nice(10)


# --- lines of the record --------------------------------------------------------------------------
def heading(row: Row) -> dict[str, Any]:
    """What names a row in the record."""
    what = {"key": row.key, "op": row.op, "what": EXPRESSIONS[row.op], "dtype": row.dtype}
    return {**what, **row.sizes}


BEST_FUSED = (LT, INDUCTOR)
# name -> (what it says, ops, the libraries of whose ratios the least counts)
SUMMARIES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "mm_best": (
        "plain products, beside the best library", ("mm",), (CUBLAS, LT, INDUCTOR),
    ),
    "activation_best": (
        "bias + relu or gelu, beside the best of cuBLASLt's epilogue and Inductor",
        ("bias_relu", "bias_gelu"), BEST_FUSED,
    ),
    "others_best": (
        "bias + residual + relu, bias + silu + product, beside the best of cuBLASLt and Inductor",
        ("bias_residual_relu", "bias_silu_mul"), BEST_FUSED,
    ),
    "fused_separate": (
        "all fused rows, beside cuBLAS and separate kernels",
        tuple(op for op in FUNCTIONS if op != "mm"), (SEPARATE,),
    ),
}  # fmt: skip


def least_ratio(line: dict[str, Any], peers: Sequence[str]) -> float | None:
    """The ratio to the fastest of these libraries; None without a correct result or a library."""
    if line.get("error"):
        return None
    found = [ratio for name, ratio in line["ratio"].items() if name in peers]
    return min(found) if found else None


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Geometric means of ratios, with their extremes and how many rows stand behind them."""
    made = {}
    for name, (text, ops, peers) in SUMMARIES.items():
        found = {
            line["key"]: ratio
            for line in lines
            if line["op"] in ops and (ratio := least_ratio(line, peers)) is not None
        }
        without = sum(
            INDUCTOR in peers and INDUCTOR not in line["ratio"]
            for line in lines
            if line["key"] in found
        )
        mean = geometric_mean(list(found.values()))
        least, most = (choose(found, key=found.__getitem__, default=None) for choose in (min, max))
        made[name] = {
            "text": text,
            "rows": len(found),
            "without_inductor": without,
            "geomean": mean and round(mean, 4),
            "min": least and found[least],
            "min_row": least,
            "max": most and found[most],
            "max_row": most,
        }
    return made


def table(record: dict[str, Any]) -> str:
    """The record as text for a terminal: ratios above 1 mean that polygen is faster."""
    lines = [f"{'row':42} {'us':>8} {'ratio':>6}  best library"]
    for line in record["rows"]:
        if line.get("error"):
            lines.append(f"{line['key']:42} {'error':>8}  {line['error'][:60]}")
            continue
        best, marks = line["best"], "*" if line["graph"] else ""
        marks += "" if INDUCTOR in line["ratio"] else " (no Inductor)"
        ratio = f"{line['ratio'][best]:6.3f}  {best}" if best else f"{'none':>6}"
        lines.append(f"{line['key']:42} {line['microseconds']['polygen']:8.1f} {ratio}{marks}")
    lines.append("* from CUDA graphs")
    for found in summary(record["rows"]).values():
        if found["rows"]:
            lines.append(
                f"geomean {found['geomean']:.3f} (min {found['min']:.3f} {found['min_row']}, "
                f"max {found['max']:.3f} {found['max_row']}; {found['rows']} rows, "
                f"{found['without_inductor']} without Inductor): {found['text']}"
            )
    return "\n".join(lines)


# --- the parent -----------------------------------------------------------------------------------
@dataclass
class Clock:
    """The time that a run may take, in seconds."""

    budget: float
    inductor_share: float
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._start = self.now()

    @property
    def elapsed(self) -> float:
        return self.now() - self._start

    @property
    def over(self) -> bool:
        return self.elapsed >= self.budget

    def no_inductor(self) -> str | None:
        """Why Inductor is not compiled for another row; None: it is."""
        most = self.budget * self.inductor_share
        return f"{NO_TIME}, {most:g} s, was over" if self.elapsed >= most else None


def unfinished(
    rows: Sequence[Row], lines: Sequence[dict[str, Any]], refill: bool = False
) -> list[Row]:
    """The rows that a record lacks, or has as errors or in part.

    Args:
        rows: what is wanted.
        lines: the record's.
        refill: those too that only had no time for Inductor.
    """
    done = {
        line["key"]
        for line in lines
        if not line.get("error")
        and not line.get("partial")
        and not (refill and line["skipped"].get(INDUCTOR, "").startswith(NO_TIME))
    }
    return [row for row in rows if row.key not in done]


def merged(
    lines: Sequence[dict[str, Any]], line: dict[str, Any], order: Sequence[Row]
) -> list[dict[str, Any]]:
    """The lines with one added or replaced, shape by shape in the order of the rows."""
    place = {row.key: at for at, row in enumerate(order)}
    shapes: dict[str, int] = {}
    for row in order:
        shapes.setdefault(row.key.partition(" ")[2], len(shapes))
    found = {old["key"]: old for old in lines} | {line["key"]: line}
    return sorted(
        found.values(),
        key=lambda old: (
            shapes.get(old["key"].partition(" ")[2], len(shapes)),
            place.get(old["key"], len(place)),
        ),
    )


def measured(
    row: Row,
    kernel: dict[str, Any],
    ask: Callable[[dict[str, Any]], dict[str, Any]],
    no_inductor: str | None,
    repeats: int = REPEATS,
) -> dict[str, Any]:
    """One line of the record, whatever happens to the child.

    Args:
        row: what.
        kernel: what `compiled` gave.
        ask: has the child do a job.
        no_inductor: why Inductor is left out; None: it is not.
        repeats: launches of every contender.

    Raises:
        Lost: the child does not start.
    """
    if "error" in kernel:
        return heading(row) | {"error": kernel["error"]}
    job = {"do": "row", "row": row, "kernel": kernel["kernel"], "repeats": repeats}
    try:
        found = ask({**job, "no_inductor": no_inductor})
    except Lost as lost:
        if lost.stage == "start":  # the next row would meet the same
            raise
        if lost.stage != "inductor":
            return heading(row) | kernel["about"] | {"error": f"{lost.stage}: {lost.why}"}
        try:
            found = ask({**job, "no_inductor": f"compiling: {lost.why}"})
        except Lost as again:
            return heading(row) | kernel["about"] | {"error": f"{again.stage}: {again.why}"}
    return heading(row) | kernel["about"] | found


def measure(
    rows: Sequence[Row],
    kernel_of: Callable[[Row], dict[str, Any]],
    ask: Callable[[dict[str, Any]], dict[str, Any]],
    clock: Clock,
    record: dict[str, Any],
    save: Callable[[], None],
    repeats: int = REPEATS,
) -> None:
    """Measure rows into a record until the time is over.

    Args:
        rows: in order.
        kernel_of: gives what `compiled` gave for a row.
        ask: has the child do a job.
        clock: the time there is.
        record: its rows and summary are kept up to date.
        save: called after every row.
        repeats: launches of every contender.
    """
    for row in rows:
        if clock.over:
            break
        line = measured(row, kernel_of(row), ask, clock.no_inductor(), repeats)
        line["run"] = len(record["earlier_runs"])
        record["rows"] = merged(record["rows"], line, all_rows())
        record["summary"] = summary(record["rows"])
        save()
        print(f"[{clock.elapsed:4.0f} s] {told(line)}", flush=True)
    record["unfinished"] = [row.key for row in unfinished(rows, record["rows"])]


def told(line: dict[str, Any]) -> str:
    """A line in few words."""
    if line.get("error"):
        return f"{line['key']}: {line['error'][:80]}"
    best = line["best"]
    beside = f"{line['ratio'][best]:.3f} {best}" if best else ""
    return f"{line['key']}: {line['microseconds']['polygen']:.1f} us, {beside}"


def without_folder(argument: str) -> str:
    """An argument; of a path its last part, for folders are the machine's."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def provenance(arguments: Sequence[str], repeats: int) -> dict[str, Any]:
    """What a run is made with; the child adds the versions it sees."""
    root = Path(__file__).resolve().parents[2]
    settings = ("TORCHINDUCTOR_", "POLYGEN_", "CUBLAS", "ENABLE_PERSISTENT", "CUDA_")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(
            ["python", "-m", "gpu.hopper_speed", *map(without_folder, arguments)]
        ),
        "gpu": smi("name,driver_version"),
        "before": {},
        "after": {},
        "target": current_arch(),
        "polygen": pg.__version__,
        "sources": sources_digest(root),
        "python": platform.python_version(),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(settings)},
        "protocol": "the contenders of a row in one process, random order, L2 flushed before "
        f"every launch, medians of {repeats} launches",
        "data": "standard normal",
    }


def loaded(path: Path, kind: str, resume: bool) -> dict[str, Any]:
    """The record to go on with, or an empty one."""
    if resume and path.exists():
        record: dict[str, Any] = json.loads(path.read_text())
        if record.get("kind") != kind:
            raise SystemExit(f"{path} is no record of this kind")
        record["earlier_runs"].append(record["provenance"])
        return record
    return {
        "kind": kind,
        "provenance": {},
        "earlier_runs": [],
        "summary": {},
        "unfinished": [],
        "rows": [],
    }


# --- tuning ---------------------------------------------------------------------------------------
def schedule_files(patterns: Sequence[str]) -> list[Path]:
    """The schedule files of folders and patterns."""
    found: set[Path] = set()
    for pattern in patterns:
        for path in map(Path, glob.glob(pattern)):  # noqa: PTH207  (Path refuses absolute ones)
            found |= set(path.rglob("*.toml")) if path.is_dir() else {path}
    return sorted(path.resolve() for path in found)


def batches(names: Sequence[str], size: int = BATCH) -> Iterator[list[str]]:
    """The names in groups."""
    for start in range(0, len(names), size):
        yield list(names[start : start + size])


def tuned(
    row: Row,
    kernels: dict[str, dict[str, Any]],
    ask: Callable[[dict[str, Any]], dict[str, Any]],
    over: Callable[[], bool],
    repeats: int = TUNING_REPEATS,
) -> dict[str, Any]:
    """Times of all schedules of a row, the fastest first; those that hang are named.

    A schedule that hangs while it is checked is known; when a batch hangs later, its schedules are
    timed one by one.

    Args:
        row: what.
        kernels: what `compiled` gave, by schedule.
        ask: has the child do a job.
        over: whether the time is over; what is left is then refused, saying so.
        repeats: launches of every schedule.
    """
    refused = {name: made["error"] for name, made in kernels.items() if "error" in made}
    waiting = list(batches([name for name in kernels if name not in refused]))
    timed: list[dict[str, Any]] = []
    while waiting:
        names = waiting.pop(0)
        if over():
            refused |= dict.fromkeys(names, NOT_TIMED)
            continue
        job = {"do": "tune", "row": row, "repeats": repeats}
        try:
            found = ask({**job, "kernels": {name: kernels[name]["kernel"] for name in names}})
        except Lost as lost:
            guilty = lost.stage.removeprefix("check ")
            if guilty not in names and len(names) > 1:
                waiting[:0] = [[name] for name in names]
                continue
            guilty = guilty if guilty in names else names[0]
            refused[guilty] = f"{lost.stage}: {lost.why}"
            rest = [name for name in names if name != guilty]
            waiting[:0] = [rest] if rest else []
            continue
        refused |= found["refused"]
        reference = found["reference"]
        for name, (low, middle, high) in found["times"].items():
            timed.append(
                {
                    "name": name,
                    "microseconds": middle,
                    "p25_p75": [low, high],
                    "ratio": round(reference["microseconds"] / middle, 4),
                    "reference": reference["name"],
                    "reference_us": reference["microseconds"],
                    "graph": found["graph"],
                    "errors": found["errors"][name],
                    **kernels[name]["about"],
                }
            )
    timed.sort(key=lambda candidate: -candidate["ratio"])  # clocks differ from batch to batch
    partial = NOT_TIMED in refused.values()
    return heading(row) | {"candidates": timed, "refused": refused, "partial": partial}


def tune(
    rows: Sequence[Row],
    files: Sequence[Path],
    compiler: Any,
    ask: Callable[[dict[str, Any]], dict[str, Any]],
    clock: Clock,
    record: dict[str, Any],
    save: Callable[[], None],
    repeats: int = TUNING_REPEATS,
) -> None:
    """Time schedule files, and what is shipped, row by row until the time is over."""
    schedules = ["auto", *map(str, files)]
    for row in rows:
        for schedule in schedules:
            compiler.submit(row, schedule)
    for row in rows:
        if clock.over:
            break
        kernels = {}
        for schedule in schedules:
            left = max(1.0, clock.budget - clock.elapsed)
            kernels[schedule] = compiler.result(row, schedule, min(120.0, left))
        line = tuned(row, kernels, ask, lambda: clock.over, repeats)
        line["run"] = len(record["earlier_runs"])
        record["rows"] = merged(record["rows"], line, all_rows())
        save()
        print(f"[{clock.elapsed:4.0f} s]\n{tuning_table(line)}", flush=True)


def tuning_table(line: dict[str, Any], most: int = 8) -> str:
    """The fastest schedules of a row, and what was refused."""
    lines = [f"{line['key']}: {len(line['candidates'])} timed, {len(line['refused'])} refused"]
    for found in line["candidates"][:most]:
        name = Path(found["name"]).stem
        name = f"auto: {found['schedule']}" if name == "auto" else name
        lines.append(f"  {found['microseconds']:8.1f} us {found['ratio']:6.3f}  {name}")
    reasons: dict[str, int] = {}
    for why in line["refused"].values():
        reasons[why[:90]] = reasons.get(why[:90], 0) + 1
    lines += [f"  refused {count}x: {why}" for why, count in list(reasons.items())[:4]]
    return "\n".join(lines)


# --- the command ----------------------------------------------------------------------------------
def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m gpu.hopper_speed", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("out", type=Path, help="the record, JSON")
    made.add_argument("--budget", type=float, default=540, help="seconds in all (540)")
    made.add_argument(
        "--inductor-share", type=float, default=0.75,
        help="part of the budget after which Inductor compiles nothing more (0.75; 0: without)",
    )  # fmt: skip
    made.add_argument("--rows", default="", help="regular expression on keys, as --list shows them")
    made.add_argument("--resume", action="store_true", help="keep and skip rows that are there")
    made.add_argument(
        "--refill", action="store_true",
        help="with --resume: measure again rows that had no time for Inductor",
    )  # fmt: skip
    made.add_argument("--schedules", nargs="+", help="tune: folders or patterns of schedule files")
    made.add_argument("--repeats", type=int, help=f"launches ({REPEATS}; {TUNING_REPEATS} to tune)")
    made.add_argument("--processes", type=int, default=os.cpu_count(), help="for compiling")
    made.add_argument("--list", action="store_true", help="print the keys of the rows, and end")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; 0 when every row was measured and right."""
    options = parser().parse_args(arguments)
    rows = selected(options.rows)
    if options.list:
        print("\n".join(row.key for row in rows))
        return 0
    clock = Clock(options.budget, options.inductor_share)
    kind = "tuning" if options.schedules else "peers"
    record = loaded(options.out, kind, options.resume)
    files = schedule_files(options.schedules or [])
    if options.resume:
        refill = options.refill and kind == "peers"
        rows = unfinished(rows, record["rows"], refill)
    if not rows or (options.schedules and not files):
        raise SystemExit("no row or no schedule file is left to measure")
    arch = current_arch()
    if arch is None:
        raise SystemExit("no GPU")
    repeats = options.repeats or (TUNING_REPEATS if options.schedules else REPEATS)
    record["provenance"] = provenance(arguments, repeats)

    def save() -> None:
        write_record(options.out, record)

    options.out.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(os.cpu_count()))
    worker = Watched(Bench, log=options.out.with_suffix(".log"))
    compiler = Compiler(arch, options.processes)
    try:
        worker.start()  # imports PyTorch meanwhile
        if not options.schedules:
            for row in rows:
                compiler.submit(row)
            most = clock.budget * COMPILE_SHARE
            kernels = {
                row: compiler.result(row, limit=max(1.0, most - clock.elapsed)) for row in rows
            }
            compiler.close()  # nothing runs beside the measurements
            print(f"[{clock.elapsed:4.0f} s] {len(kernels)} kernels compiled", flush=True)
        record["provenance"] |= worker.ask({"do": "about"})
        record["provenance"]["before"] = smi(CLOCKS)
        if options.schedules:
            tune(rows, files, compiler, worker.ask, clock, record, save, repeats)
        else:
            measure(rows, kernels.__getitem__, worker.ask, clock, record, save, repeats)
        record["provenance"]["after"] = smi(CLOCKS)
        save()
    except Lost as lost:
        print(f"The measuring process does not start: {lost}. See its log", flush=True)
        return 2
    finally:
        worker.stop()
        compiler.close()
    if options.schedules:
        return 0
    print(table(record), flush=True)
    wrong_rows = [line["key"] for line in record["rows"] if line.get("error")]
    print(f"{len(wrong_rows)} errors, {len(record['unfinished'])} rows not done", flush=True)
    return 1 if wrong_rows else 0


if __name__ == "__main__":
    # By its own name, so that the child process finds the classes of the jobs.
    from gpu.hopper_speed import main as run

    sys.exit(run(sys.argv[1:]))
