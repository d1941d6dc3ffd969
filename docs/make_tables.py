"""Writes docs/performance.md, its plots, and tables of other pages from records in docs/results.

Run ``make docs``, or ``python docs/make_tables.py``; a test compares the files with what this
makes, so that no figure in them is typed. Plots need matplotlib; without it only the text is
written.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

from polygen.bench import figures, plots, report
from polygen.bench.record import KIND, latest, load, newest
from polygen.hardware.cost_parameters import cost_parameters
from polygen.hardware.device import device
from polygen.runtime.files import write_text_atomic
from polygen.tune.fit import judge
from polygen.tune.measured import read_record

FOLDER = Path(__file__).resolve().parent
README, TUNING, MODEL = FOLDER.parent / "README.md", FOLDER / "tuning.md", FOLDER / "cost-model.md"
GALLERY = "gallery"  # plots of docs/make_gallery.py
ATTENTION, ODD_ROWS = FOLDER / "attention.md", FOLDER / "odd_rows.md"
IN_ORDER, TORCH = FOLDER / "in_order.md", FOLDER / "torch.md"
BEGIN, END = "<!-- made by docs/make_tables.py -->", "<!-- end -->"
TITLE = """# Performance

Measured with `polygen bench` ([benchmarks.md](benchmarks.md) says how); made from the records in
`docs/results` by `docs/make_tables.py`. A ratio above 1 means that polygen is faster. Losses are in
the tables, and once more in a list of their own."""
EARLIER = """Measured with an earlier harness: one process on one card, contenders interleaved in
random order, standard normal data, the L2 cache flushed before every launch, CUDA events, medians.
These kernels use `mma.sync`, which on Hopper reaches about 0.65 of what `wgmma` does: plain
products lose to cuBLAS there, and fused kernels win where the passes they save weigh more than
that."""


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """The records of `polygen bench` by file name, each with the suites that it measured last:
    those of most suites first, then the newest.
    """
    every = {
        path.stem: load(path)
        for path in sorted(folder.glob("*.json"))
        if json.loads(path.read_text()).get("kind") == KIND
    }
    own = zip(every, latest(list(every.values())), strict=True)
    found = {name: record for name, record in own if record["rows"]}

    def rank(name: str) -> tuple[int, str]:
        return len(found[name]["suites"]), found[name]["runs"][-1]["date"]

    return {name: found[name] for name in sorted(found, key=rank, reverse=True)}


def plots_folder(name: str) -> Path:
    """Where the plots of a record lie."""
    return FOLDER / "plots" / name


def render(folder: Path = FOLDER / "results") -> str:
    """The page.

    Args:
        folder: of the records.
    """
    parts = [TITLE]
    for number, (name, record) in enumerate(records(folder).items()):
        shown = f"plots/{name}" if number == 0 else ""  # of the first only
        made = record["runs"][-1]
        body = re.sub("^##", "###", report.page(record, shown), flags=re.MULTILINE)
        parts.append(f"## {made.get('gpu', {}).get('name', 'GPU')}, {made['date'][:10]}\n\n{body}")
    parts += filter(None, [fused(folder), models(folder), programs(folder)])
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        if any("speedup" in row for row in record.get("rows", [])):  # of the earlier harness
            parts.append(f"{table(record)}\n\n{EARLIER}")
    return "\n\n".join(parts) + "\n"


def fused(folder: Path = FOLDER / "results") -> str:
    """Kernels that fuse more than pointwise work, as Markdown."""
    path = folder / "h200_fused.json"
    if not path.exists():
        return ""
    record = json.loads(path.read_text())
    versions = record["versions"]
    lines = [
        f"## Folds, norms, triangles, convolutions: {record['gpu']}, {record['date'][:10]}",
        "",
        f"By `docs/measure_fused.py`; driver {record['driver_version']}, CUDA {versions['cuda']}, "
        f"PyTorch {versions['torch']}.",
        f"{record['protocol']}. *eager* and *Inductor* are how many times as long as "
        "polygen PyTorch takes as the case is written, and by its compiler; of convolutions eager "
        "is cuDNN, channels last, with its fastest algorithm by measurement. *as fast* is the "
        "fastest of polygen's other ways to finish rows, where they were measured, beside the one "
        "that it chose.",
        "",
        "| case | µs | TFLOP/s | eager | Inductor | as fast | schedule |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in record["rows"].items():
        if "failed" in row:
            continue
        us = row["us"]
        own = us["polygen"]
        ratios = [f"{us[n] / own:.2f}" if n in us else "" for n in ("eager", "inductor")]
        ways = [time for n, time in us.items() if n not in ("polygen", "eager", "inductor")]
        ratios.append(f"{min(ways) / own:.2f}" if ways else "")
        cells = [f"`{name}`", f"{own:.1f}", f"{row['tflops']:.0f}", *ratios, row["schedule"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _of_kind(folder: Path, kind: str) -> dict[str, Any] | None:
    """The records of a kind as one, the rows of the newest; None: there is none."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found = sorted((one for one in found if one.get("kind") == kind), key=lambda one: one["date"])
    if not found:
        return None
    rows = {name: row for one in found for name, row in one["rows"].items()}
    calls = {key: one[key] for one in found for key in ("calls",) if key in one}
    return {**found[-1], **calls, "rows": rows}


def _ratio(row: dict[str, Any], other: str, own: str = "polygen", of: str = "us") -> str:
    us = {name: time for name, time in row.get(of, {}).items() if time}
    return f"{us[other] / us[own]:.3f}" if other in us and own in us else ""


def _mean_and_least(ratios: list[float]) -> str:
    return f"geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}"


def models(folder: Path = FOLDER / "results") -> str:
    """Models through `torch.compile` as Markdown, where they were measured."""
    record = _of_kind(folder, "models")
    if record is None:
        return ""
    versions = ", ".join(f"{name} {one}" for name, one in record["versions"].items())
    lines = [
        f"## Models through torch.compile: {record['gpu']}, {record['date'][:10]}",
        "",
        f"By `docs/measure_models.py`; driver {record['driver_version']}, {versions}.",
        f"{record['protocol'].strip()} *groups* are found and taken; *kernels* are launches of a "
        "call, Inductor's and polygen's; the other columns say how many times as long as polygen "
        "eager, Inductor, and Inductor's max-autotune take; *captured* is Inductor's where both "
        "are CUDA graphs, so that the host does not matter; *measured* is polygen with "
        '`take="measured"`, beside the better of Inductor\'s. *agrees*: whether errors are no '
        "larger than 1.25 times those of eager and Inductor.",
        "",
        "| model | µs | groups | kernels | eager | Inductor | captured | max-autotune | measured | "
        "compile, s | max-autotune, s | agrees | day |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios, captured, failed = [], [], []
    for name, row in record["rows"].items():
        if "polygen" not in row.get("us", {}):
            why = row.get("failed") or "; ".join(f"{n}: {w}" for n, w in row["left_out"].items())
            failed.append(f"- {name}: {why}")
            continue
        us, best = row["us"], "inductor max-autotune"
        if "inductor" in us:
            ratios.append(us["inductor"] / us["polygen"])
        alone = row.get("gpu_us", {})
        if alone.get("inductor") and alone.get("polygen"):
            captured.append(alone["inductor"] / alone["polygen"])
        theirs = min((us[n] for n in ("inductor", best) if n in us), default=None)
        tried = us.get("polygen measured")
        launches, seconds = row["launches"], row["compile_s"]
        cells = [
            name, f"{us['polygen']:.1f}",
            f"{row['groups']['polygen']}, {row['taken']['polygen']}",
            f"{launches.get('inductor') or ''}, {launches.get('polygen') or ''}",
            _ratio(row, "eager"), _ratio(row, "inductor"), _ratio(row, "inductor", of="gpu_us"),
            _ratio(row, best),
            f"{theirs / tried:.3f}" if theirs and tried else "",
            *(f"{seconds[n]:.1f}" if n in seconds else "" for n in ("polygen", best)),
            "yes" if row["agrees"] else "no", row.get("date", record["date"])[:10],
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    if ratios:
        said = f"Beside Inductor, {len(ratios)} rows: {_mean_and_least(ratios)}"
        said += f"; captured: {_mean_and_least(captured)}" if captured else ""
        lines += ["", f"{said}."]
    if failed:
        lines += ["", "Not run:", "", *failed]
    return "\n".join(lines)


def programs(folder: Path = FOLDER / "results") -> str:
    """NumPy programs beside CuPy as Markdown, where they were measured."""
    record = _of_kind(folder, "numpy programs")
    if record is None:
        return ""
    versions = ", ".join(f"{name} {one}" for name, one in record["versions"].items())
    lines = [
        f"## NumPy programs: {record['gpu']}, {record['date'][:10]}",
        "",
        f"By `docs/measure_numpy.py`; driver {record['driver_version']}, {versions}.",
        record["protocol"].strip(),
        *(
            ["First runs found what had been compiled before."]
            if record.get("caches") == "kept"
            else []
        ),
        "",
        "| script | polygen, ms | CuPy, ms | CuPy / polygen | first run, ms | CuPy's | agrees |",
        "|---|---|---|---|---|---|---|",
    ]
    ratios = []
    for name, row in record["rows"].items():
        if "failed" in row:
            lines.append(f"| {name} | {row['failed']} | | | | | |")
            continue
        ratios.append(row["ratio"])
        times = [f"{row['ms'][one]:.3f}" for one in ("polygen", "cupy")]
        cold = [f"{row['cold_ms'][one]:.0f}" for one in ("polygen", "cupy")]
        cells = [name, *times, f"{row['ratio']:.3f}", *cold, "yes" if row["agrees"] else "no"]
        lines.append(f"| {' | '.join(cells)} |")
    if ratios:
        lines += [
            "",
            f"{len(ratios)} scripts: geometric mean {statistics.geometric_mean(ratios):.3f}, least "
            f"{min(ratios):.3f}.",
        ]
    calls = record.get("calls", {})
    if "us" in calls:
        each = ", ".join(f"{name} {us:.1f}" for name, us in calls["us"].items())
        lines += ["", f"Microseconds of the host for a call: {each}."]
    return "\n".join(lines)


def table(record: dict[str, Any]) -> str:
    """A record of the earlier harness as Markdown."""
    made = record["provenance"]
    gpu = made["gpu"]
    lines = [
        f"## {gpu['name']}, {made['date']}: kernels with `mma.sync`",
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
        cells = [f"`{row['what']}`", *(str(row[dim]) for dim in "MNK")]
        cells += [f"{times['polygen']:.1f}", f"{row['tflops']:.0f}"]
        for name, ratio in row["speedup"].items():
            beside = [name, f"{times[name]:.1f}", f"{ratio:.3f}", row["schedule"]]
            lines.append(f"| {' | '.join([*cells, *beside])} |")
    return "\n".join(lines)


# The columns of the README's table.
PEERS = ("separate", "eager", "cublaslt", "inductor", "cudnn")
SPEED = FOLDER / "plots" / "speed.svg"


def speeds(folder: Path = FOLDER / "results") -> plots.Data:
    """The README's plot: of each suite what was measured last, every row."""
    record = newest(list(records(folder).values()))
    return plots.strips(record, report.suites_in(record))


def speed(folder: Path = FOLDER / "results") -> str:
    """The README's part: a plot and a table, of each suite what was measured last."""
    record = newest(list(records(folder).values()))
    good = [line for line in record["rows"] if figures.is_measured(line)]
    lost = len(figures.losses(good))
    (gpu,) = {made["gpu"]["name"] for made in record["runs"]}
    return f"""On one {gpu}, all contenders of a row in one process, random order, cold L2
cache; of each suite its last measurement. Geometric means of how many times as long a library
takes; above 1 polygen is faster. In brackets: rows that have the library, where not all do; a dash
where it took no part. *best of all* has the libraries without a column, too. Beside cuBLAS and
separate kernels only fused rows count. Some library is faster in {lost} of {len(good)} rows.

![Every row of every suite beside its fastest library]({SPEED.relative_to(README.parent)})

{report.overview(record, PEERS)}"""


def tuner(folder: Path = FOLDER / "results") -> str:
    """The table of docs/tuning.md: how close short tunings come to the best."""
    rows = json.loads((folder / "h200_tuner.json").read_text())["rows"]
    lines = [
        "| expression | M x N x K | in 30 s | in all | gain | of the best |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        size = " x ".join(str(row["sizes"][dim]) for dim in "MNK")
        counts = f"{row['covered_in_budget']} of {row['candidates']} | {row['covered']}"
        gains = f"{row['tuned_over_anchor']:.3f} | {row['reached']:.3f}"
        lines.append(f"| `{row['expression']}` | {size} | {counts} | {gains} |")
    return "\n".join(lines)


def model(folder: Path = FOLDER / "results") -> str:
    """The table of docs/cost-model.md: how well the model ranks what was measured."""
    lines = [
        "| record | what it holds | problems | schedules of each | median rank correlation | one "
        "within 5 % of the best among the first five | median regret of the first |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, what in (
        ("h200_schedules", "drawn from the whole space and from its better part"),
        ("h200_tuned", "what tunings of 3 to 5 s measured"),
        ("h200_tuned_later", "what tunings of 4 to 20 s measured, later"),
        (
            "h200_products_tuned",
            "what tunings of 7 to 9 s measured of batches and several products",
        ),
        ("h200_products_tuned_later", "the same, with blocks side by side"),
        ("h200_turns_tuned", "short sums and folds, with three consumers in turns"),
        ("h200_held_out", "nearly the whole space"),
    ):
        measured = read_record(folder / f"{name}.json")
        judged = judge(cost_parameters(device("sm_90a")), measured)
        enough = [one for one in judged if one.schedules >= 30]
        counts = [one.schedules for one in enough]
        lines.append(
            f"| `{name}.json` | {what} | {len(enough)} | {min(counts)} to {max(counts)} | "
            f"{statistics.median(one.spearman for one in enough):.2f} | "
            f"{sum(one.hit for one in enough)} | "
            f"{100 * statistics.median(one.regret for one in enough):.1f} % |"
        )
    return "\n".join(lines)


_PREFILL = 512  # queries of a matrix; fewer are decoded


def attention(folder: Path = FOLDER / "results") -> str:
    """The table of docs/attention.md: chains beside PyTorch's backends."""
    lines = [
        "| matrices, queries, keys, head dim | scores | polygen, us | TFLOP/s | cuDNN | "
        "FlashAttention-2 | Inductor | of cuDNN |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ratios = []
    for row in json.loads((folder / "h200_attention_suite.json").read_text())["rows"]:
        took = {name: found["us"] for name, found in row["times"].items()}
        shape = ", ".join(str(row[name]) for name in "BMNK")
        scores = row["op"].removeprefix("attention").strip("_").replace("_", " ") or "scale"
        cells = [f"{took['polygen']:.0f}", f"{row['operations'] / took['polygen'] / 1e6:.0f}"]
        names = ("cudnn", "flash", "inductor")
        cells += [f"{took[name]:.0f}" if name in took else "" for name in names]
        cells.append(f"{took['cudnn'] / took['polygen']:.3f}" if "cudnn" in took else "")
        if "cudnn" in took and row["M"] >= _PREFILL:
            ratios.append(took["cudnn"] / took["polygen"])
        lines.append(f"| {shape} | {scores} | {' | '.join(cells)} |")
    mean = statistics.geometric_mean(ratios)
    lines += [
        "",
        f"Geometric mean of the {len(ratios)} rows of {_PREFILL} queries and more beside cuDNN: "
        f"{mean:.3f}; least {min(ratios):.3f}.",
    ]
    return "\n".join(lines)


def odd_rows(folder: Path = FOLDER / "results") -> str:
    """The table of docs/odd_rows.md: what was measured of each way."""
    columns = {
        "as chosen": "polygen automatic", "threads fill rings": "polygen in place",
        "a copy first": "polygen copied", "weights aligned once": "polygen planned weights",
        "PyTorch, eager": "torch eager",
    }  # fmt: skip
    lines = [
        f"| M x N x K | {' | '.join(columns)} | eager / as chosen |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for row in json.loads((folder / "h200_odd_rows.json").read_text())["rows"]:
        alone = {name: row["contenders"][key]["alone"] for name, key in columns.items()}
        ratio = alone["PyTorch, eager"] / alone["as chosen"]
        cells = [row["row"], *(f"{us:.1f}" for us in alone.values()), f"{ratio:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def in_order(folder: Path = FOLDER / "results") -> str:
    """The table of docs/in_order.md: a decoder block in one function."""
    record = json.loads((folder / "h200_sequences.json").read_text())
    names = {
        "polygen": "polygen", "eager": "PyTorch", "inductor": "Inductor",
        "inductor max-autotune": "its max-autotune",
    }  # fmt: skip
    lines = [
        f"| rows | {' | '.join(names.values())} | best of the others / polygen | as calls |",
        "|---" * (len(names) + 3) + "|",
    ]
    for text, row in record["blocks"].items():
        us, calls = row["us"], row["call_us"]
        cells = [text.split()[-2]]
        cells += [f"{us[name]:.0f}" if name in us else "–" for name in names]
        for each in (us, calls):
            others = (each[name] for name in names if name in each and name != "polygen")
            cells.append(f"{min(others) / each['polygen']:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    chosen = [row["us"][row["chosen"]] / min(row["us"].values()) for row in record["rows"].values()]
    two = sum(row["chosen"] == "two" for row in record["rows"].values())
    lines += [
        "",
        f"Of {len(chosen)} chains of two products ({record['gpu']}) {two} are two kernels; what is "
        f"chosen takes {statistics.geometric_mean(chosen):.3f} times as long as the faster of both "
        f"in the geometric mean, {max(chosen):.2f} at most.",
    ]
    return "\n".join(lines)


def training(folder: Path = FOLDER / "results") -> str:
    """The table of docs/torch.md: steps of layers."""
    record = json.loads((folder / "h200_training.json").read_text())
    names = {
        "polygen": "polygen", "arguments": '`keep="arguments"`', "eager": "eager",
        "inductor": "Inductor",
    }  # fmt: skip
    lines = [
        f"| layers, rows x width x inner | {' | '.join(names.values())} | Inductor / polygen "
        "| kept, MB | Inductor keeps |",
        "|---" * (len(names) + 4) + "|",
    ]
    gains = []
    for label, row in record["rows"].items():
        us = [row["us"][name] for name in names]
        gains.append(us[-1] / us[0])
        cells = [label, *(f"{one:.0f}" for one in us), f"{gains[-1]:.2f}"]
        cells += [f"{row['kept'][who] / 1e6:.0f}" for who in ("polygen", "inductor")]
        lines.append(f"| {' | '.join(cells)} |")
    mean = statistics.geometric_mean(gains)
    lines += ["", f"{record['gpu']}, {record['date'][:10]}: {mean:.3f} of Inductor in the "
              f"geometric mean, {min(gains):.2f} at least."]  # fmt: skip
    return "\n".join(lines)


def with_made(text: str, made: str) -> str:
    """A document with its generated part replaced."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"the document lacks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


PAGES = {
    README: speed, TUNING: tuner, MODEL: model, ATTENTION: attention, ODD_ROWS: odd_rows,
    IN_ORDER: in_order, TORCH: training,
}  # fmt: skip


def main() -> None:
    """Write everything."""
    (FOLDER / "performance.md").write_text(render())
    for path, made in PAGES.items():
        path.write_text(with_made(path.read_text(), made()))
    name, record = next(iter(records(FOLDER / "results").items()))
    try:
        drawn = {path.name for path in plots.write(record, plots_folder(name))}
        write_text_atomic(SPEED, plots.svg(plots.draw_strips, speeds()))
    except ModuleNotFoundError:
        print("no plots: matplotlib is not installed; pip install -e '.[bench]'")
        return
    for path in (FOLDER / "plots").glob("*/*.svg"):
        if path.parent.name == GALLERY:
            continue
        if path.parent != plots_folder(name) or path.name not in drawn:
            path.unlink()


if __name__ == "__main__":
    main()
