"""Records as text: Markdown pages, and lines for a terminal. Losses are told as plainly as wins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polygen.bench import figures, plots
from polygen.bench.figures import NAMES, Change, Mean
from polygen.bench.operations import DIMS
from polygen.bench.peers import ABOUT
from polygen.bench.record import Line, Record
from polygen.bench.rows import suite, suite_names
from polygen.bench.source import POLYGEN
from polygen.bench.statistics import from_json
from polygen.runtime.files import write_text_atomic

NONE = "–"
LEGEND = """Above 1 polygen is faster: a ratio is how many times as long a library takes. *± %* is
half of the 95 % interval of polygen's median. *of limit* is the share of what the card allows, 1 at
best: operations at the measured rate of products, or bytes at the measured bandwidth of copies,
whichever takes longer (*c* where it is the copy). Every result was compared with float64 before the
measurement, polygen's after it too. For many of these sizes polygen ships a schedule that was tuned
on such a card; the origin of the schedule, in the record, says for which. A time with a star comes
from replays of CUDA graphs, for all contenders of that row, because the host would take longer than
the kernel."""


def page(record: Record, plots_folder: str = "") -> str:
    """A record as Markdown, without a title.

    Args:
        record: what.
        plots_folder: where links to plots lead; empty: no plots.
    """
    sections = [_made(record), *_suites(record, plots_folder), _means(record), _losses(record)]
    sections += [_absent(record)]
    return "\n\n".join(section for section in sections if section)


def write(record: Record, folder: Path) -> list[Path]:
    """Write ``report.md`` and, where matplotlib is installed, the plots it shows.

    Raises:
        CacheError: a file cannot be written.
    """
    try:
        drawn = plots.write(record, folder)
    except ModuleNotFoundError:
        drawn = []
    path = folder / "report.md"
    write_text_atomic(path, f"# Measurements\n\n{page(record, '.' if drawn else '')}\n")
    return [path, *drawn]


# --- pieces ---------------------------------------------------------------------------------------
def _made(record: Record) -> str:
    """What the record was made with."""
    last = record["runs"][-1]
    versions = last.get("versions", {})
    parts = [
        f"{last.get('gpu', {}).get('name', 'GPU')}, {last['date'][:10]}, driver "
        f"{last.get('driver') or 'unknown'}, SM clock {_clock(last, 'before')} before and "
        f"{_clock(last, 'after')} after the run, power limit "
        f"{last.get('before', {}).get('power.limit', 'unknown')}; "
        + ", ".join(f"{text} {versions[name]}" for name, text in _VERSIONS if versions.get(name))
        + f"; polygen {last['polygen']}, sources {last['sources']}.",
        f"Protocol: {last['protocol']}; data: {last['data']}.",
    ]
    ceilings = last.get("ceilings")
    if ceilings:
        rates = ", ".join(
            f"{rate:.0f} TFLOP/s {name} ({ceilings['tflops_of'][name]})"
            for name, rate in ceilings["tflops"].items()
        )
        parts.append(
            f"Ceilings, measured in the same process: {rates}; copy "
            f"{ceilings['copy_gbytes_per_s']:.0f} GB/s ({ceilings['copy_of']})."
        )
    runs = {line["run"] for line in record["rows"]}
    if len(runs) > 1:
        first = min(record["runs"][number]["date"] for number in runs)[:10]
        parts.append(
            f"The rows come from {len(runs)} runs, the first of {first}; these figures are those "
            "of the last."
        )
    present = [name for name in NAMES if any(name in r.get("times", {}) for r in record["rows"])]
    lines = [" ".join(parts), "", LEGEND, ""]
    for name in present:
        about = ABOUT[name]
        if name == "cublaslt" and versions.get("cublaslt.via") == "torch":
            about = "cuBLASLt's epilogue as far as PyTorch's functions reach it, the rest in place"
        lines.append(f"- *{NAMES[name]}*: {about}")
    for name, why in last.get("missing", {}).items():
        lines.append(f"- *{NAMES[name]}* is missing: {_cut(why)}")
    return "\n".join(lines)


_VERSIONS = (
    ("cuda", "CUDA"), ("nvidia-cublas", "cuBLAS"), ("torch", "PyTorch"), ("triton", "Triton"),
    ("cupy-cuda13x", "CuPy"), ("nvmath-python", "nvmath-python"),
)  # fmt: skip


def _clock(made: dict[str, Any], when: str) -> str:
    return str(made.get(when, {}).get("clocks.sm", "unknown"))


def suites_in(record: Record) -> list[str]:
    """The suites that rows belong to."""
    found = {name for line in record["rows"] for name in line["suites"]}
    return [name for name in _ORDER if name in found] + sorted(found - set(_ORDER))


_ORDER = (
    "hopper", "llm", "small-k", "paper", "ragged", "decode", "types", "batched", "gated",
    "grouped", "products",
)  # fmt: skip


def _groups(record: Record) -> list[str]:
    """The suites; then, where there are several, all rows as ""."""
    names = suites_in(record)
    return names if len(names) == 1 else [*names, ""]


def lines_of(record: Record, name: str) -> list[Line]:
    """The rows of a suite."""
    return [line for line in record["rows"] if name in line["suites"]]


def _suites(record: Record, plots_folder: str) -> list[str]:
    made = []
    for name in suites_in(record):
        lines = lines_of(record, name)
        title = suite(name).title if name in suite_names() else name
        text = [f"## {title} (`{name}`)", ""]
        if plots_folder:
            text += [f"![{title}]({plots_folder}/{plots.bars_name(name)})", ""]
        text += _table(record, lines)
        made.append("\n".join(text))
    if plots_folder:
        shown = [f"![{alt}]({plots_folder}/{file})" for file, alt in plots.overview(record).items()]
        if shown:
            made.append("## Over all rows\n\n" + "\n\n".join(shown))
    return made


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _heads(cells: Sequence[str]) -> list[str]:
    return [_cells(cells), "|" + "---|" * len(cells)]


def _number(value: float | None, digits: int = 3) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _dims(lines: Sequence[Line]) -> list[str]:
    """The dims that any of the rows has."""
    return [dim for dim in DIMS if any(dim in line for line in lines)]


def _sizes(line: Line, dims: Sequence[str]) -> list[str]:
    return [str(line.get(dim, NONE)) for dim in dims]


def _kind(line: Line) -> str:
    """The type, with what is unusual."""
    text = str(line["dtype"])
    text += "" if line["acc"] == "f32" else f", sums {line['acc']}"
    return text + (f", pad {line['pad']}" if line["pad"] else "")


def _table(record: Record, lines: Sequence[Line]) -> list[str]:
    good = [line for line in lines if figures.is_measured(line)]
    peers = [n for n in NAMES if any(figures.microseconds(line, n) for line in good)]
    dims = _dims(good)
    empty = any(figures.empty_microseconds(line) is not None for line in good)
    head = ["expression", *dims, "type", "µs", "± %", *(["empty µs"] if empty else []), "TFLOP/s"]
    head += [*(NAMES[n] for n in peers), "best", "of limit", "schedule"]
    made = _heads(head)
    for line in good:
        ours = from_json(line["times"][POLYGEN])
        cells = [f"`{line['expression']}`", *_sizes(line, dims), _kind(line)]
        cells += [f"{ours.median:.1f}{'*' if line['graph'] else ''}", _spread(line)]
        if empty:
            cells.append(_number(figures.empty_microseconds(line), 1))
        cells += [f"{figures.tflops(line):.0f}"]
        cells += [_number(figures.ratio(line, name)) for name in peers]
        bound = figures.limit(record, line)
        share = _number(figures.share_of_limit(record, line), 2)
        share += "c" if bound is not None and bound.bound == "copy" else ""
        cells += [_number(figures.best_ratio(line)), share]
        made.append(_cells([*cells, line["polygen"].get("schedule", NONE)]))
    return made


def _spread(line: Line) -> str:
    """Half of the interval of polygen's median, as a part of it."""
    found = from_json(line["times"][POLYGEN])
    if found.interval is None:
        return NONE
    return f"{(found.interval[1] - found.interval[0]) / 2 / found.median * 100:.1f}"


def _means(record: Record) -> str:
    head = ["suite", "beside", "rows", "geometric mean", "least", "largest", "below 1"]
    text = ["## Geometric means", "", *_heads(head)]
    for name in _groups(record):
        lines = lines_of(record, name) if name else record["rows"]
        for beside, found in figures.means(record, lines).items():
            text.append(_cells([name or "all", beside, *mean_cells(found)]))
    return "\n".join(text)


def mean_cells(found: Mean) -> list[str]:
    """Count, mean, extremes with their rows, and losses of a mean, as table cells."""
    assert found.geomean is not None and found.least and found.largest
    ends = [f"{value:.3f} ({key})" for value, key in (found.least, found.largest)]
    return [str(found.rows), f"{found.geomean:.3f}", *ends, str(found.lost)]


def _losses(record: Record) -> str:
    good = [line for line in record["rows"] if figures.is_measured(line)]
    lost = figures.losses(good)
    text = ["## Where polygen loses", ""]
    text.append(f"A library is faster in {len(lost)} of {len(good)} rows{':' if lost else '.'}")
    dims = _dims(lost)
    if lost:
        text += ["", *_heads(["expression", *dims, "type", "ratio", "beside", "of limit"])]
    for line in lost:
        cells = [f"`{line['expression']}`", *_sizes(line, dims), _kind(line)]
        name = figures.best(line) or ""
        share = _number(figures.share_of_limit(record, line), 2)
        cells += [_number(figures.best_ratio(line)), figures.called(line, name), share]
        text.append(_cells(cells))
    bad = [line for line in record["rows"] if line.get("error")]
    if bad:
        text += ["", f"Rows without a figure, because polygen failed there: {len(bad)}.", ""]
        text += [f"- {line['key']}: {_cut(line['error'])}" for line in bad]
    return "\n".join(text)


_NAMED = 10  # rows that were not reached


def _absent(record: Record) -> str:
    """Which libraries lack in which rows, by reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for line in record["rows"]:
        for name, why in line.get("skipped", {}).items():
            reasons.setdefault((name, _cut(why)), []).append(line["key"])
    text = ["## Libraries that took no part", ""]
    for (name, why), keys in sorted(reasons.items()):
        where = keys[0] if len(keys) == 1 else f"{len(keys)} rows"
        text.append(f"- {NAMES.get(name, name)}, {where}: {why}")
    if record.get("unfinished"):
        keys = record["unfinished"]
        named = ", ".join(keys[:_NAMED]) + (", ..." if len(keys) > _NAMED else "")
        text.append(f"- {len(keys)} rows were not reached in the time given: {named}")
    return "\n".join(text) if len(text) > 2 else ""


def _cut(text: str, most: int = 160) -> str:
    return " ".join(text.split())[:most].replace("|", "/").replace("<", "(").replace(">", ")")


# --- for the README -------------------------------------------------------------------------------
def overview(record: Record, peers: Sequence[str] | None = None) -> str:
    """A short table: per suite, the mean beside the best library and beside each.

    Args:
        record: with the day of each suite, where there are several.
        peers: that have a column; all that were measured unless said.
    """
    met = [n for n in NAMES if any(n in line.get("times", {}) for line in record["rows"])]
    peers = met if peers is None else [name for name in peers if name in met]
    has_limit = any(figures.limit(record, line) for line in record["rows"])
    several = len({made["date"][:10] for made in record["runs"]}) > 1
    head = ["suite", "rows", "best of all", *(NAMES[n] for n in peers), "lost rows"]
    head += ["of limit"] * has_limit + ["measured"] * several
    text = _heads(head)
    for name in _groups(record):
        lines = lines_of(record, name) if name else record["rows"]
        found = figures.means(record, lines)
        if "the best library" not in found:
            continue
        best = found["the best library"]
        cells = [f"`{name}`" if name else "all", str(best.rows), _number(best.geomean, 2)]
        for peer in peers:
            mean = found.get(NAMES[peer])
            wanted = (
                sum(figures.is_measured(x) and figures.is_fused(x) for x in lines)
                if peer == figures.SEPARATE
                else best.rows
            )
            few = mean is not None and mean.rows < wanted
            cells.append(
                NONE
                if mean is None
                else _number(mean.geomean, 2) + (f" ({mean.rows})" if few else "")
            )
        cells.append(str(best.lost))
        if has_limit:
            cells.append(_number(found["the limit"].geomean, 2) if "the limit" in found else NONE)
        if several:
            days = sorted({record["runs"][line["run"]]["date"][:10] for line in lines})
            cells.append(" to ".join(dict.fromkeys((days[0], days[-1]))) if name else "")
        text.append(_cells(cells))
    return "\n".join(text)


# --- for a terminal -------------------------------------------------------------------------------
def told(line: Line) -> str:
    """A row in few words."""
    if line.get("error"):
        return f"{line['key']}: {line['error'][:100]}"
    name = figures.best(line)
    beside = f", {figures.best_ratio(line):.3f} {figures.called(line, name)}" if name else ""
    return f"{line['key']}: {line['times'][POLYGEN]['us']:.1f} us{beside}"


def terminal(record: Record, lines: Sequence[Line]) -> str:
    """Rows and means; ratios above 1 mean that polygen is faster."""
    empty = any(figures.empty_microseconds(line) is not None for line in lines)
    head = f"{'empty':>6} " if empty else ""
    text = [f"{'row':44} {'us':>8} {head}{'ratio':>6} {'limit':>6}  fastest library"]
    for line in lines:
        if line.get("error"):
            text.append(f"{line['key']:44} {'error':>8}  {line['error'][:60]}")
            continue
        name = figures.best(line)
        share = _number(figures.share_of_limit(record, line), 2)
        mark = "*" if line["graph"] else ""
        best = f"{_number(figures.empty_microseconds(line), 1):>6} " if empty else ""
        best += f"{_number(figures.best_ratio(line)):>6} {share:>6}"
        best += f"  {figures.called(line, name)}" if name else "  none"
        text.append(f"{line['key']:44} {line['times'][POLYGEN]['us']:8.1f} {best}{mark}")
    text.append("* from CUDA graphs")
    for beside, found in figures.means(record, lines).items():
        assert found.least and found.largest
        text.append(
            f"beside {beside}: geometric mean {found.geomean:.3f}, least {found.least[0]:.3f} "
            f"({found.least[1]}), largest {found.largest[0]:.3f} ({found.largest[1]}), "
            f"{found.lost} of {found.rows} below 1"
        )
    wrong = sum(bool(line.get("error")) for line in lines)
    text.append(f"{wrong} errors, {len(record['unfinished'])} rows not done")
    return "\n".join(text)


def changes_text(changes: Sequence[Change]) -> str:
    """What changed since a baseline, row by row where it did."""
    text = []
    for change in changes:
        if change.verdict != "same":
            card = "" if change.card is None else f", libraries {change.card:+.1%}"
            text.append(
                f"{change.verdict} {change.change:+.1%}{card}: {change.key}, "
                f"{change.old.median:.1f} -> {change.new.median:.1f} us"
            )
    counts = {v: sum(c.verdict == v for c in changes) for v in ("slower", "same", "faster")}
    text.append(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return "\n".join(text)


def change_json(change: Change) -> dict[str, Any]:
    """A change as plain values."""
    return {
        "key": change.key,
        "old_us": change.old.median,
        "new_us": change.new.median,
        "change": round(change.change, 4),
        "libraries": None if change.card is None else round(change.card, 4),
        "verdict": change.verdict,
    }
