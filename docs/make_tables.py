"""Writes the tables of docs/performance.md from the records in docs/results.

Run ``python docs/make_tables.py``; a test compares the file with what this makes, so that no figure
in it is typed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
PROTOCOL = """# Performance

Measured with `tests/gpu/speed.py`: one process on one card, contenders interleaved in random order,
standard normal data, the L2 cache flushed before every launch, CUDA events, medians. A ratio above
1 means that polygen is faster."""
MMA_SYNC = """These kernels use `mma.sync`, which on Hopper reaches about 0.65 of
what `wgmma` does: plain products lose to cuBLAS there, and fused kernels win where the passes they
save weigh more than that."""

PEERS = "peers"  # the kind of the records that tests/gpu/hopper_speed.py makes
SEPARATE, LIBRARIES = "cuBLAS + separate", ("cuBLASLt", "Inductor")
NONE = "–"
LEGEND = """Every result was compared with float64 before and after the measurement. *separate*:
cuBLAS, then one PyTorch kernel per step, in place. *cuBLASLt*: its epilogue where it has one for
the expression or a part of it, the rest as separate kernels. *Inductor*: `torch.compile` in the
mode `max-autotune-no-cudagraphs`. A time with a star comes from replays of a CUDA graph, for all
contenders of that row, because the host would take longer than the kernel."""


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


def peers_section(record: dict[str, Any]) -> str:
    """A record of polygen beside cuBLAS, cuBLASLt and Inductor as Markdown."""
    made, rows = record["provenance"], record["rows"]
    good = [row for row in rows if not row.get("error")]
    clocks = " and ".join(
        f"{made[when].get('clocks.sm', 'unknown')} {when}" for when in ("before", "after")
    )
    parts = [
        f"## {made['gpu'].get('name', 'GPU')}, {made['date'][:10]}: beside the libraries",
        "",
        f"Measured with `tests/gpu/hopper_speed.py`: {made['protocol']}.",
        f"Driver {made['gpu'].get('driver_version', 'unknown')}, SM clock {clocks} the run, "
        f"CUDA {made['cuda']},",
        f"PyTorch {made['torch']}, Triton {made['triton']}, polygen {made['polygen']}, "
        f"sources {made['sources']}.",
        *_more_runs(record),
        "",
        *LEGEND.splitlines(),
        "",
        *_products([row for row in good if row["op"] == "mm"]),
        *_fused([row for row in good if row["op"] != "mm"]),
        *_means(record["summary"]),
        *_losses(good, [row for row in rows if row.get("error")]),
    ]
    return "\n".join(parts).rstrip()


def _more_runs(record: dict[str, Any]) -> list[str]:
    runs = {row["run"] for row in record["rows"]}
    if len(runs) < 2:
        return []
    return [f"The rows come from {len(runs)} runs; the figures above are those of the last."]


def _time(row: dict[str, Any], name: str) -> str:
    """Microseconds of a contender, with the star of a graph."""
    time = row["microseconds"].get(name)
    return NONE if time is None else f"{time:.1f}{'*' if row['graph'] else ''}"


def _ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def _cells(row: dict[str, Any]) -> list[str]:
    sizes = [str(row[dim]) for dim in "MNK"]
    return [*sizes, row["dtype"], _time(row, "polygen"), f"{row['tflops']:.0f}"]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _heads(cells: list[str]) -> list[str]:
    return [_line(cells), "|" + "---|" * len(cells)]


def _products(rows: list[dict[str, Any]]) -> list[str]:
    """The table of plain products."""
    if not rows:
        return []
    head = ["M", "N", "K", "type", "polygen, µs", "TFLOP/s", "cuBLAS", *LIBRARIES]
    lines = ["### Plain products `x @ w.T`", "", *_heads([*head, "ratio to the best", "schedule"])]
    for row in rows:
        beside = [_time(row, name) for name in ("cuBLAS", *LIBRARIES)]
        ratio = _ratio(row["ratio"].get(row["best"]))
        lines.append(_line([*_cells(row), *beside, ratio, row["schedule"]]))
    return [*lines, ""]


def _fused(rows: list[dict[str, Any]]) -> list[str]:
    """The table of fused kernels."""
    if not rows:
        return []
    head = ["expression", "M", "N", "K", "type", "polygen, µs", "TFLOP/s", "separate", *LIBRARIES]
    more = ["ratio to separate", "ratio to the best", "schedule"]
    lines = ["### Fused kernels", "", *_heads([*head, *more])]
    for row in rows:
        beside = [_time(row, name) for name in (SEPARATE, *LIBRARIES)]
        ratios = [_ratio(row["ratio"].get(name)) for name in (SEPARATE, row["best"])]
        cells = [f"`{row['what']}`", *_cells(row), *beside, *ratios, row["schedule"]]
        lines.append(_line(cells))
    return [*lines, ""]


def _means(summary: dict[str, dict[str, Any]]) -> list[str]:
    """The table of geometric means."""
    head = ["ratio of", "rows", "without Inductor", "geometric mean", "least", "largest"]
    lines = ["### Geometric means", "", *_heads(head)]
    for found in summary.values():
        if found["rows"]:
            counts = [str(found["rows"]), str(found["without_inductor"])]
            extremes = [f"{found[end]:.3f} ({found[f'{end}_row']})" for end in ("min", "max")]
            lines.append(_line([found["text"], *counts, f"{found['geomean']:.3f}", *extremes]))
    return [*lines, ""]


def _losses(good: list[dict[str, Any]], bad: list[dict[str, Any]]) -> list[str]:
    """Where a library is faster, and what has no figure."""
    lost = [row for row in good if row["best"] and row["ratio"][row["best"]] < 1]
    lost.sort(key=lambda row: row["ratio"][row["best"]])
    lines = ["### Where polygen loses", ""]
    lines.append(f"A library is faster in {len(lost)} of {len(good)} rows{':' if lost else '.'}")
    if lost:
        lines += ["", *_heads(["expression", "M", "N", "K", "type", "ratio", "beside"])]
    for row in lost:
        sizes = [str(row[dim]) for dim in "MNK"]
        ratio = _ratio(row["ratio"][row["best"]])
        lines.append(_line([f"`{row['what']}`", *sizes, row["dtype"], ratio, row["best"]]))
    if bad:
        lines += ["", f"Rows without a figure, because polygen failed there: {len(bad)}.", ""]
        lines += [f"- {row['key']}: {row['error']}" for row in bad]
    return lines


def render(folder: Path = FOLDER / "results") -> str:
    """The whole page.

    Args:
        folder: of the records.
    """
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    beside = [record for record in records if record.get("kind") == PEERS]
    plain = [record for record in records if "kind" not in record]
    if not beside:
        return "\n".join([f"{PROTOCOL} {MMA_SYNC}\n", *(table(record) + "\n" for record in plain)])
    sections = [*map(peers_section, beside), *(f"{table(r)}\n\n{MMA_SYNC}" for r in plain)]
    head = PROTOCOL.replace("`tests/gpu/speed.py`", "scripts of `tests/gpu`")
    return "\n".join([f"{head}\n", *(section + "\n" for section in sections)])


if __name__ == "__main__":
    (FOLDER / "performance.md").write_text(render())
