"""Generation time against the number of operations: measured, as a table and as a plot.

``python docs/generation_time.py --measure`` times every pass up to the CUDA text on this machine
and writes docs/results/generation.json; no GPU. Without ``--measure`` (as in ``make docs``) only
the table in docs/pipeline.md and docs/plots/generation.svg are written, from that record; a test
compares them. Plots need matplotlib; without it only the text is written.

Times are CPU seconds of the process, medians of several generations, none of which finds anything
of another, in memory or on disk. One generation is made first and not counted: it proves the tables
of the instructions, reads the shipped schedules and compiles the templates. What that adds to the
first kernel of a process is measured too, in processes of their own: with nothing on disk, and with
what templates compile to, as after any other kernel (``--first TARGET --kept FOLDER``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polygen as pg
from polygen import knobs, pipeline
from polygen.bench import plots
from polygen.bench.host_work import calibration
from polygen.frontend.program import Program
from polygen.hardware.device import device
from polygen.poly.fusion import fuse
from polygen.poly.scop import scop
from polygen.poly.versions import forget
from polygen.runtime.files import write_text_atomic
from polygen.runtime.templates import FOLDER as TEMPLATES

FOLDER = Path(__file__).resolve().parent
RECORD, PLOT, PAGE = (
    FOLDER / "results" / "generation.json",
    FOLDER / "plots" / "generation.svg",
    FOLDER / "pipeline.md",
)
BEGIN, END = "<!-- made by docs/generation_time.py -->", "<!-- end -->"
SIGNATURE = ("bf16[M,K]", "bf16[N,K]", "bf16[N]", "bf16[M,N]")
SIZES = {"M": 4096, "N": 4096, "K": 1024}
TARGETS = ("sm_80", "sm_90a")
COUNTS = (2, 5, 10, 20, 50, 100, 150, 200, 256, 400, 512)
APART = (2, 5, 10, 20, 40, 60)  # operations, each a statement of its own to isl
REPEATS = 5
KEEPING = ("polygen.poly.", "polygen.rewrite.")  # modules whose passes keep what they made
STEPS: dict[str, tuple[str, Callable[[Any, Any, Any, int], Any]]] = {
    "arithmetic": ("v * 1.5, v + 0.25", lambda v, b, r, n: v * 1.5 if n % 2 else v + 0.25),
    "rows and matrices": ("v + b, v * r", lambda v, b, r, n: v + b if n % 2 else v * r),
    "nested functions": (
        "gelu(v), relu(v)",
        lambda v, b, r, n: pg.gelu(v) if n % 2 else pg.relu(v),
    ),
}


def program(kind: str, operations: int) -> Program:
    """A chain of pointwise operations behind a product; the operands are all read."""
    step = STEPS[kind][1]

    def function(x: Any, w: Any, b: Any, r: Any) -> Any:
        value = x @ w.T
        for number in range(operations - 2):
            value = step(value, b, r, number)
        return value + b + r

    made: Program = pg.fuse(function, name="chain").program(*SIGNATURE)
    return made


def forget_all() -> None:
    """Forget what passes keep in memory, so that no generation profits from the last one."""
    pipeline.synchronised.cache_clear()
    forget()
    for name, module in tuple(sys.modules.items()):
        if name.startswith(KEEPING):
            for kept in vars(module).values():
                if getattr(kept, "__module__", "") == name and hasattr(kept, "cache_clear"):
                    kept.cache_clear()


def timed(make: Callable[[], object], repeats: int) -> float:
    """Median CPU seconds, with nothing kept on disk."""
    found = []
    with knobs.scope(cache=False):
        for _ in range(repeats):
            forget_all()
            start = time.process_time()
            make()
            found.append(time.process_time() - start)
    return round(statistics.median(found), 4)


def first(target: str, repeats: int, *, templates: bool) -> float:
    """Median CPU seconds of the first kernel of a process, after its imports.

    Args:
        target: of the kernel.
        repeats: processes.
        templates: whether what templates compile to is on disk; nothing else is.
    """
    found = []
    words = [sys.executable, str(Path(__file__).resolve()), "--first", target]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats + templates):  # of which one compiles them
            for part in Path(folder).iterdir():
                if part.name != TEMPLATES:
                    shutil.rmtree(part)
            kept = ["--kept", folder] if templates else []
            made = subprocess.run([*words, *kept], capture_output=True, text=True, check=True)
            found.append(float(made.stdout))
    return round(statistics.median(found[templates:]), 4)


def generate(kind: str, operations: int, target: str) -> None:
    """A kernel of the chain, up to its CUDA text."""
    made = pipeline.with_sizes(program(kind, operations), SIZES)
    pipeline.generate(made, device(target), SIZES, "auto")


def time_first(target: str, kept: str | None = None) -> float:
    """CPU seconds of a kernel that nothing was generated before.

    Args:
        target: of the kernel.
        kept: a folder that is used as the cache; None: nothing is kept on disk.
    """
    program("arithmetic", COUNTS[0])  # whose modules are read at its first use
    with knobs.scope(cache=kept is not None, cache_dir=kept and Path(kept)):
        start = time.process_time()
        generate("arithmetic", COUNTS[0], target)
        return time.process_time() - start


def measure(repeats: int = REPEATS) -> dict[str, Any]:
    """The record: seconds per target, kind of operation and number of operations."""

    def schedule(operations: int, apart: bool) -> None:
        made = program("arithmetic", operations)
        fuse(made, scop(made, apart=apart))

    points, load, calibrations = [], os.getloadavg()[0], list[float]()
    for target in TARGETS:
        for kind in STEPS:
            for operations in COUNTS:
                functions = operations // 2 if kind == "nested functions" else 0
                if functions > pipeline.MOST_FUNCTIONS:
                    continue
                generate(kind, operations, target)
                calibrations.append(timed(calibration, 1))
                seconds = timed(lambda k=kind, o=operations, t=target: generate(k, o, t), repeats)
                points.append(
                    {"target": target, "kind": kind, "operations": operations, "seconds": seconds}
                )
    alone = [
        {"operations": n, "together": timed(lambda n=n: schedule(n, False), repeats),
         "apart": timed(lambda n=n: schedule(n, True), 1 if n > 20 else repeats)}
        for n in APART
    ]  # fmt: skip
    return {
        "provenance": {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "polygen": pg.__version__,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "protocol": f"CPU seconds of one process, medians of {repeats}",
            "load": [round(load, 1), round(os.getloadavg()[0], 1)],
            "calibration_seconds": round(statistics.median(calibrations), 4),
            "command": "python docs/generation_time.py --measure",
        },
        "points": points,
        "first": [
            {
                "target": one,
                "seconds": first(one, repeats, templates=False),
                "with_templates": first(one, repeats, templates=True),
            }
            for one in TARGETS
        ],
        "statements": alone,
    }


def table(record: dict[str, Any]) -> str:
    """The part of docs/pipeline.md."""
    made = record["provenance"]
    seconds = {(p["target"], p["kind"], p["operations"]): p["seconds"] for p in record["points"]}
    counts = [n for n in (2, 20, 100, 200, 512) if any(key[2] == n for key in seconds)]
    lines = [
        f"CPU seconds from the array code to the CUDA text ({made['machine']}, Python "
        f"{made['python']}, {made['date']}; {made['protocol']}; load average "
        f"{' to '.join(map(str, made['load']))} on {made['cores']} cores, where the loop that "
        f"`make bench-host` calibrates by took {made['calibration_seconds']:.3f} s):",
        "",
        f"| target | operations | {' | '.join(map(str, counts))} |",
        f"|---|---|{'---|' * len(counts)}",
    ]
    for target in TARGETS:
        for kind, (text, _) in STEPS.items():
            cells = [seconds.get((target, kind, n)) for n in counts]
            shown = ["" if value is None else f"{value:.2f}" for value in cells]
            lines.append(f"| {target} | {kind}: `{text}` | {' | '.join(shown)} |")
    last = record["statements"][-1]
    lines += [
        "",
        f"![Generation time against the number of operations](plots/{PLOT.name})",
        "",
        f"Dependences and scheduling alone take {last['together']:.3f} s for {last['operations']} "
        f"operations in groups, and {last['apart']:.1f} s with a statement for each.",
    ]
    alone, kept = (
        " and ".join(f"{one[field]:.2f} s for {one['target']}" for one in record["first"])
        for field in ("seconds", "with_templates")
    )
    lines += [
        "",
        f"The first kernel of a process takes {alone}: it also proves the tables of the "
        "instructions, and compiles the templates. Where another process has compiled them, "
        f"{kept}.",
    ]
    return "\n".join(lines)


def draw(pyplot: Any, data: dict[str, Any]) -> Any:
    """Generation left; dependences and scheduling, together and apart, right."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(7.5, 3.4))
    palette = pyplot.get_cmap("tab10").colors
    for number, kind in enumerate(STEPS):
        for target, style in zip(TARGETS, ("-", "--"), strict=True):
            mine = [p for p in data["points"] if (p["target"], p["kind"]) == (target, kind)]
            left.plot(
                [p["operations"] for p in mine], [p["seconds"] for p in mine], style, marker=".",
                color=palette[number], linewidth=1, label=f"{kind}, {target}",
            )  # fmt: skip
    left.axhline(0.5, color="black", linewidth=0.8)
    left.set_ylim(0, 1.6)
    left.set_xlabel("pointwise operations")
    left.set_ylabel("CPU seconds to the CUDA text")
    left.grid(alpha=0.3)
    left.legend(loc="upper left", ncols=2, frameon=False, fontsize=6)
    statements = data["statements"]
    for number, (name, label) in enumerate(
        (("apart", "a statement each"), ("together", "groups of statements"))
    ):
        right.plot(
            [p["operations"] for p in statements], [p[name] for p in statements], marker=".",
            color=palette[3 + number], linewidth=1, label=label,
        )  # fmt: skip
    right.set_yscale("log")
    right.set_xlabel("pointwise operations")
    right.set_ylabel("CPU seconds for dependences and band")
    right.grid(alpha=0.3)
    right.legend(frameon=False, fontsize=7)
    figure.tight_layout()
    return figure


def with_made(text: str, made: str) -> str:
    """A document with its generated part replaced."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"the document lacks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def load() -> dict[str, Any]:
    """The committed record."""
    record: dict[str, Any] = json.loads(RECORD.read_text())
    return record


def main() -> None:
    """Measure if asked to, and write table and plot."""
    parser = argparse.ArgumentParser(description="Generation time against operations.")
    parser.add_argument("--measure", action="store_true", help="time this machine first")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="generations of each")
    parser.add_argument("--first", metavar="TARGET", help="print what a first kernel takes")
    parser.add_argument("--kept", metavar="FOLDER", help="with what is kept there (else: nothing)")
    options = parser.parse_args()
    if options.first:
        print(time_first(options.first, options.kept))
        return
    if options.measure:
        write_text_atomic(RECORD, json.dumps(measure(options.repeats), indent=1) + "\n")
    record = load()
    PAGE.write_text(with_made(PAGE.read_text(), table(record)))
    try:
        write_text_atomic(PLOT, plots.svg(draw, record))
    except ModuleNotFoundError:
        print("no plot: matplotlib is not installed; pip install -e '.[bench]'")


if __name__ == "__main__":
    main()
