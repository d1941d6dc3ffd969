"""Plots of a record as SVG: ratios per suite, the roofline, the gain of fusion against K.

What is plotted is computed first, as plain values, and its digest goes into the file, so that a
test can tell without matplotlib whether a plot is the record's. Matplotlib only draws.
"""

from __future__ import annotations

import hashlib
import io
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polygen.bench import figures
from polygen.bench.figures import NAMES
from polygen.bench.operations import chains, operation, value
from polygen.bench.record import Line, Record
from polygen.bench.source import EMPTY
from polygen.runtime.files import write_text_atomic

Data = dict[str, Any]

ROOFLINE, FUSION = "roofline.svg", "fusion.svg"
_COLOURS = {
    "separate": "#9aa5b1", "cupy": "#c9b18a", "cupy_once": "#8f7648", "eager": "#b5b5b5",
    "eager_joined": "#7d7d7d", "cublaslt": "#4c78a8", "inductor": "#e4873b",
    "inductor_joined": "#a8531a", "triton": "#5aa469", "cudnn": "#76b900", "flash": "#b07aa1",
}  # fmt: skip
_OURS, _LOST = "#2b2f36", "#b03a2e"


def bars_name(suite: str) -> str:
    """The file of a suite's plot."""
    return f"suite_{suite.replace('-', '_')}.svg"


def overview(record: Record) -> dict[str, str]:
    """Plots over all rows: file and what it shows."""
    found = {}
    if roofline(record)["points"]:
        found[ROOFLINE] = "Rate of the product against operations per byte, under the measured roof"
    if fusion(record)["points"]:
        found[FUSION] = "Ratio to cuBLAS and separate kernels against K, and the model"
    return found


# --- what is plotted ------------------------------------------------------------------------------
def bars(record: Record, suite: str) -> Data:
    """Ratios of a suite's rows to every library."""
    lines = [x for x in record["rows"] if suite in x["suites"] and figures.is_measured(x)]
    ratios = {
        name: [_short(figures.ratio(line, name)) for line in lines]
        for name in NAMES
        if any(figures.ratio(line, name) for line in lines)
    }
    found: Data = {"rows": [line["key"] for line in lines], "ratios": ratios}
    empty = [_short(_empty_share(line)) for line in lines]
    return found | ({"empty": empty} if any(empty) else {})


def _empty_share(line: Line) -> float | None:
    """The time of an empty kernel over polygen's."""
    nothing, ours = figures.empty_microseconds(line), figures.microseconds(line)
    return nothing / ours if nothing is not None and ours else None


def strips(record: Record, suites: Sequence[str]) -> Data:
    """Of each suite the ratios of its rows to the fastest library, least first, and their mean."""
    found = {}
    for suite in suites:
        lines = [x for x in record["rows"] if suite in x["suites"] and figures.is_measured(x)]
        ratios = [ratio for line in lines if (ratio := figures.best_ratio(line)) is not None]
        if ratios:
            ratios.sort()
            mean = statistics.geometric_mean(ratios)
            found[suite] = {"ratios": [_short(one) for one in ratios], "mean": round(mean, 6)}
    return {"suites": found}


def roofline(record: Record) -> Data:
    """Rates against intensity, and the roof of the last run that measured one."""
    roofs = [run["ceilings"] for run in record["runs"] if run.get("ceilings")]
    points = [
        {
            "key": line["key"],
            "intensity": round(line["operations"] / line["bytes"], 3),
            "tflops": round(figures.tflops(line), 2),
            "best": _short(_best_rate(line)),
        }
        for line in record["rows"]
        if figures.is_measured(line)
    ]
    return {"roof": roofs[-1] if roofs else None, "points": points if roofs else []}


def _best_rate(line: Line) -> float | None:
    name = figures.best(line)
    time = None if name is None else figures.microseconds(line, name)
    return None if time is None else line["operations"] / time / 1e6


def passes(op: str) -> int:
    """Arrays of the result's shape that the separate kernels of an operation read and write."""
    known = operation(op)
    if known.inner is not None:  # products of what is made of products have no separate kernels
        return 0
    found = chains(known)
    full = {name for name, dims in known.operands if dims == known.product(found[0])}
    full |= {value(number) for number in range(len(found))}
    steps = [step for one in found for step in one.steps]
    return sum(2 + sum(a in full for a in step.arguments) for step in steps)


def products(op: str) -> int:
    """How many products an operation has."""
    known = operation(op)
    return len(chains(known)) if known.inner is None else len(known.inner.products)


def fusion(record: Record) -> Data:
    """Ratios to separate kernels against K, and how far a pass weighs in the model.

    A product takes 2 M N K / P, a matrix of M x N and 2 bytes read or written 2 M N / B, so that
    p of them weigh p P / (B K): for two, 2 P / B is the constant, 357 with 750 TFLOP/s and
    4.2 TB/s. Of several products K is the sum of theirs.
    """
    roofs = [run["ceilings"] for run in record["runs"] if run.get("ceilings")]
    constant = None
    if roofs:
        constant = round(roofs[-1]["tflops"]["bf16"] * 1e3 / roofs[-1]["copy_gbytes_per_s"], 2)
    points = [
        {"op": x["op"], "k": x["K"] * products(x["op"]), "passes": passes(x["op"]),
         "ratio": _short(gain)}
        for x in record["rows"]
        if figures.is_measured(x) and passes(x["op"]) and min(x["M"], x["N"]) >= 1024
        and (gain := figures.ratio(x, "separate")) is not None
    ]  # fmt: skip
    return {"flops_per_byte": constant, "points": points if constant else []}


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def all_data(record: Record) -> dict[str, Data]:
    """What every plot of a record holds, by file."""
    suites = sorted({name for line in record["rows"] for name in line["suites"]})
    found = {bars_name(name): bars(record, name) for name in suites}
    found |= {ROOFLINE: roofline(record)} if ROOFLINE in overview(record) else {}
    return found | ({FUSION: fusion(record)} if FUSION in overview(record) else {})


def digest(data: Data) -> str:
    """What an SVG of these data names."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


# --- drawing --------------------------------------------------------------------------------------
def write(record: Record, folder: Path) -> list[Path]:
    """Draw all plots of a record.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        CacheError: a file cannot be written.
    """
    made = []
    for name, data in all_data(record).items():
        draw = {ROOFLINE: _draw_roofline, FUSION: _draw_fusion}.get(name, _draw_bars)
        write_text_atomic(folder / name, svg(draw, data))
        made.append(folder / name)
    return made


def svg(draw: Any, data: Data) -> str:
    """The same text for the same data, whenever it is drawn."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("svg")
    from matplotlib import pyplot  # noqa: PLC0415

    settings: Any = {"svg.hashsalt": "polygen", "svg.fonttype": "none", "font.size": 9}
    with mpl.rc_context(settings):
        figure = draw(pyplot, data)
        held = io.StringIO()
        about = {"Date": None, "Creator": "polygen bench", "Description": f"data {digest(data)}"}
        figure.savefig(held, format="svg", bbox_inches="tight", metadata=about)
        pyplot.close(figure)
    return "".join(f"{line.rstrip()}\n" for line in held.getvalue().splitlines())


def _draw_bars(pyplot: Any, data: Data) -> Any:
    """The ratio to the fastest library as a bar, every library as a mark."""
    rows, ratios = data["rows"], data["ratios"]
    figure, axes = pyplot.subplots(figsize=(7.5, 0.6 + 0.19 * len(rows)))
    places = range(len(rows))
    present = [[r[i] for r in ratios.values() if r[i] is not None] for i in places]
    least = [min(values, default=1.0) for values in present]
    colours = [_LOST if value < 1 else _OURS for value in least]
    axes.barh(places, [v - 1 for v in least], left=1, color=colours, height=0.55, alpha=0.8)
    for name, values in ratios.items():
        shown = [(v, i) for i, v in enumerate(values) if v is not None]
        axes.scatter(
            [v for v, _ in shown], [i for _, i in shown], s=16, color=_COLOURS[name],
            label=NAMES[name], zorder=3,
        )  # fmt: skip
    nothing = [(v, i) for i, v in enumerate(data.get("empty", ())) if v is not None]
    if nothing:
        axes.scatter(
            [v for v, _ in nothing], [i for _, i in nothing], s=16, color="black", marker="|",
            label=f"{EMPTY} kernel", zorder=3,
        )  # fmt: skip
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis, (0.5, 0.7, 1, 1.5, 2, 3, 5))
    axes.set_yticks(list(places), rows, fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("time of a library over polygen's; bar: the fastest library")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=6, frameon=False, fontsize=7)
    return figure


def draw_strips(pyplot: Any, data: Data) -> Any:
    """A line of dots for each suite, and its mean."""
    suites = data["suites"]
    figure, axes = pyplot.subplots(figsize=(7.5, 0.9 + 0.27 * len(suites)))
    for place, one in enumerate(suites.values()):
        ratios = one["ratios"]
        # Dots beside each other, so that as many as lie together are seen.
        heights = [place + 0.22 * (at % 3 - 1) for at in range(len(ratios))]
        colours = [_LOST if ratio < 1 else _COLOURS["cublaslt"] for ratio in ratios]
        axes.scatter(ratios, heights, s=11, color=colours, alpha=0.7, linewidths=0)
        axes.plot([one["mean"]] * 2, [place - 0.4, place + 0.4], color=_OURS, linewidth=2)
        axes.annotate(
            f"{one['mean']:.2f}", (1, place), xycoords=("axes fraction", "data"), xytext=(6, 0),
            textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis, (0.5, 0.7, 1, 1.5, 2, 3, 5, 10))
    labels = [f"{name} ({len(one['ratios'])})" for name, one in suites.items()]
    axes.set_yticks(range(len(suites)), labels, fontsize=8)
    axes.set_ylim(len(suites) - 0.4, -0.6)
    axes.set_xlabel(
        "time of the fastest library over polygen's, a dot per row; bar: geometric mean"
    )
    axes.grid(axis="x", alpha=0.3)
    return figure


def _draw_roofline(pyplot: Any, data: Data) -> Any:
    figure, axes = pyplot.subplots(figsize=(7.5, 4.2))
    points, roof = data["points"], data["roof"]
    rate, band = roof["tflops"]["bf16"], roof["copy_gbytes_per_s"] / 1e3
    low, high = min(p["intensity"] for p in points) / 1.5, max(p["intensity"] for p in points) * 1.5
    ridge = rate / band
    axes.plot([low, ridge, max(high, ridge)], [low * band, rate, rate], color="black", linewidth=1)
    others = [p for p in points if p["best"] is not None]
    axes.scatter(
        [p["intensity"] for p in others], [p["best"] for p in others], s=16, facecolors="none",
        edgecolors=_COLOURS["cublaslt"], label="fastest library",
    )  # fmt: skip
    axes.scatter(
        [p["intensity"] for p in points], [p["tflops"] for p in points], s=12, color=_OURS,
        label="polygen",
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte that has to be moved")
    axes.set_ylabel("TFLOP/s of the product")
    axes.set_title(f"Roof: {rate:.0f} TFLOP/s bf16, {band:.2f} TB/s, both measured", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _draw_fusion(pyplot: Any, data: Data) -> Any:
    figure, axes = pyplot.subplots(figsize=(7.5, 4.2))
    points, constant = data["points"], data["flops_per_byte"]
    lengths = sorted({p["k"] for p in points})
    palette = pyplot.get_cmap("tab10").colors
    for number, count in enumerate(sorted({p["passes"] for p in points})):
        colour = palette[number % len(palette)]
        mine = [p for p in points if p["passes"] == count]
        axes.scatter([p["k"] for p in mine], [p["ratio"] for p in mine], s=16, color=colour)
        axes.plot(
            lengths, [1 + count * constant / k for k in lengths], color=colour, linewidth=1,
            label=f"1 + {count * constant:.0f}/K: {count} matrices moved less",
        )  # fmt: skip
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _plain_ticks(axes.xaxis, lengths)
    _plain_ticks(axes.yaxis, (0.8, 1, 1.5, 2, 3, 5, 10, 20))
    axes.set_xlabel("K")
    axes.set_ylabel("cuBLAS and separate kernels over polygen")
    axes.set_title(f"Model: one read and one write weigh {2 * constant:.0f}/K", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=7)
    return figure


def _plain_ticks(axis: Any, values: Any) -> None:
    """Ticks at these values, written as numbers."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter  # noqa: PLC0415

    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
