"""Writes the tables of docs/performance.md from the records in docs/results.

Run ``python docs/make_tables.py``; a test compares the file with what this makes, so that no figure
in it is typed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
HEAD = """# Performance

Measured with `tests/gpu/speed.py`: one process on one card, contenders interleaved in random order,
standard normal data, the L2 cache flushed before every launch, CUDA events, medians. A ratio above
1 means that polygen is faster. These kernels use `mma.sync`, which on Hopper reaches about 0.65 of
what `wgmma` does: plain products lose to cuBLAS there, and fused kernels win where the passes they
save weigh more than that.
"""


def table(record: dict[str, Any]) -> str:
    """One record as Markdown."""
    made = record["provenance"]
    gpu = made["gpu"]
    lines = [
        f"## {gpu['name']}, {made['date']}",
        "",
        f"Driver {gpu['driver_version']}, SM clock {gpu['clocks.sm']} at the end of the run,",
        f"CUDA {made['cuda']}, PyTorch {made['torch']}, polygen {made['polygen']};",
        f"{made['protocol']}.",
        "",
        "| expression | M | N | K | polygen, µs | TFLOP/s | beside | µs | ratio | schedule |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        times = row["microseconds"]
        what = f"`{row['what']}`"
        sizes = [str(row[dim]) for dim in "MNK"]
        ours = [f"{times['polygen']:.1f}", f"{row['tflops']:.0f}"]
        for name, ratio in row["speedup"].items():
            beside = [name, f"{times[name]:.1f}", f"{ratio:.3f}", row["schedule"]]
            lines.append(f"| {' | '.join([what, *sizes, *ours, *beside])} |")
    return "\n".join(lines)


def render() -> str:
    """The whole page."""
    records = [json.loads(path.read_text()) for path in sorted((FOLDER / "results").glob("*.json"))]
    return "\n".join([HEAD, *(table(record) + "\n" for record in records)])


if __name__ == "__main__":
    (FOLDER / "performance.md").write_text(render())
