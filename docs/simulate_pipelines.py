"""docs/results/simulated_pipelines.json and its plot: schedules of pipelines on paper.

    python docs/simulate_pipelines.py

Nothing in the record is measured with several GPUs. What is measured are the times of two kernels
on one H200 (docs/results), from which a stage's time is added up; links are data sheets
(polygen/hardware/data/links.toml). The plot needs matplotlib.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from polygen.bench import figures
from polygen.bench.record import load
from polygen.hardware.links import link
from polygen.parallel import KNOWN, Plan, drawing, plan, prove, timetable
from polygen.parallel.simulate import Machine, simulate

FOLDER = Path(__file__).resolve().parent
RECORD = FOLDER / "results" / "simulated_pipelines.json"
PLOT = FOLDER / "plots" / "simulated_pipelines.svg"
TIMELINE = FOLDER / "plots" / "pipeline_zero_bubble.svg"
KIND = "simulated"
RANKS = tuple(8 << n for n in range(10))  # 8 to 4096
DEEPEST = 64  # ranks of one pipeline; more are copies of it
EACH = 2  # stages to a rank
HOST = 8  # ranks of a host
TOKENS, WIDTH, INNER, BYTES = 4096, 4096, 14336, 2
# A stage is one gated layer: silu(x @ u.T) * (x @ v.T), and the product that goes back.
MEASURED = (
    ("h200_products", f"gated bf16 {TOKENS}x{INNER}x{WIDTH}"),
    ("h200", f"mm bf16 {TOKENS}x{WIDTH}x{INNER}"),
)


def forward() -> float:
    """Seconds of a stage's forward pass, from what was measured."""
    total = 0.0
    for name, key in MEASURED:
        (line,) = [x for x in load(FOLDER / "results" / f"{name}.json")["rows"] if x["key"] == key]
        found = figures.microseconds(line)
        assert found is not None
        total += found / 1e6
    return total


@functools.cache
def planned(name: str, depth: int) -> Plan:
    """A schedule for twice as many microbatches as ranks."""
    return plan(prove(timetable(name, EACH * depth, depth)), 2 * depth)


def row(name: str, ranks: int, between: str, once: float) -> dict[str, Any]:
    """One line of the record.

    Args:
        name: of a known schedule.
        ranks: all of them, copies of the pipeline too.
        between: the link of hosts.
        once: seconds of a stage's forward pass.
    """
    depth = min(ranks, DEEPEST)
    made = planned(name, depth)
    apart = any(work.phase == "weights" for work in made.works[0])
    seconds = [("forward", once), ("backward", once if apart else 2 * once), ("weights", once)]
    machine = Machine(
        tuple(seconds[: 3 if apart else 2]),
        message=TOKENS * WIDTH * BYTES,
        kept=TOKENS * (WIDTH + INNER) * BYTES,
        parameters=3 * WIDTH * INNER * BYTES,
        host=HOST,
        inside=link("nvlink"),
        between=link(between),
        copies=ranks // depth,
    )
    found = simulate(made, machine)
    return {
        "schedule": name,
        "ranks": ranks,
        "depth": depth,
        "copies": ranks // depth,
        "microbatches": made.microbatches,
        "between": between,
        "milliseconds": round(found.seconds * 1e3, 2),
        "bubble": round(found.bubble, 4),
        "bubble_of_ticks": round(made.bubble, 4),
        "peak_gigabytes": round(found.peak / 1e9, 2),
        "bounds": found.bounds,
        "critical": {spent: round(part * 1e3, 2) for spent, part in found.critical},
        "busiest": [found.busiest[0], round(found.busiest[1], 4)],
    }


def record() -> dict[str, Any]:
    """All of it."""
    once = forward()
    rows = [
        row(name, ranks, between, once)
        for between in ("infiniband", "ethernet")
        for name in KNOWN
        for ranks in RANKS
    ]
    return {
        "format": 1,
        "kind": KIND,
        "measured": False,
        "assumed": {
            "stage": f"one gated layer, {TOKENS} tokens, {WIDTH} wide, {INNER} inside, bf16",
            "forward_seconds": once,
            "forward_from": [f"{name}: {key}" for name, key in MEASURED],
            "backward": "twice the forward pass: as many operations for inputs and for parameters",
            "links": "polygen/hardware/data/links.toml; sending takes no time of a rank's kernels",
            "ranks_of_a_host": HOST,
            "stages_to_a_rank": EACH,
            "microbatches": "two to a rank of the pipeline",
            "kept": "what the layer's two operators keep: their arguments",
        },
        "rows": rows,
    }


def text(found: dict[str, Any]) -> str:
    """A record as JSON, a row to a line."""
    head = json.dumps({k: v for k, v in found.items() if k != "rows"}, indent=1)
    rows = ",\n  ".join(json.dumps(line) for line in found["rows"])
    return f'{head.removesuffix("}").rstrip()},\n "rows": [\n  {rows}\n ]\n}}\n'


def draw(found: dict[str, Any]) -> None:
    """Bubble and memory against ranks."""
    import matplotlib  # noqa: PLC0415 (the record is made without it)

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "polygen"
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for number, name in enumerate(KNOWN):
        for between, style in (("infiniband", "-"), ("ethernet", ":")):
            lines = [x for x in found["rows"] if (x["schedule"], x["between"]) == (name, between)]
            at = [line["ranks"] for line in lines]
            label = name if between == "infiniband" else None
            left.plot(at, [100 * line["bubble"] for line in lines], style, color=f"C{number}",
                      marker=".", label=label)  # fmt: skip
            if between == "infiniband":
                right.plot(at, [line["peak_gigabytes"] for line in lines], style,
                           color=f"C{number}", marker=".", label=label)  # fmt: skip
    for axes, title in ((left, "ranks without work, % of the time"), (right, "peak, GB a rank")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(RANKS, [str(n) for n in RANKS], rotation=45)
        axes.set_xlabel(f"ranks; pipelines of at most {DEEPEST}, then copies")
        axes.set_title(f"{title} (simulated)", fontsize=10)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    left.text(0.02, 0.02, "between hosts: lines 400 Gb/s, dots 100 Gb/s", fontsize=7,
              transform=left.transAxes)  # fmt: skip
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Date": None})


def timeline() -> str:
    """The picture of a schedule in docs/parallel.md."""
    proved = prove(timetable("zero-bubble", 4, 4))
    return drawing.svg(proved, plan(proved, 8))


def main() -> None:
    """Writes the record, and its plot."""
    found = record()
    RECORD.write_text(text(found))
    draw(found)
    TIMELINE.write_text(timeline())
    for line in found["rows"]:
        if line["ranks"] in (8, 64, 4096):
            print({k: line[k] for k in line if k not in ("critical", "depth", "microbatches")})


if __name__ == "__main__":
    main()
