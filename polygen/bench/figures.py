"""What a record says: ratios to the libraries and to the card's limit, means, losses, changes.

A ratio is how many times as long something takes as polygen: above 1 polygen is faster. The limit
of a row is the larger of its operations over the measured rate of products and its bytes over the
measured bandwidth of copies; the share of the limit is limit over time, 1 at best.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from polygen.bench.operations import operation
from polygen.bench.record import Line, Record
from polygen.bench.source import EMPTY, POLYGEN
from polygen.bench.statistics import Summary, apart, from_json, geometric_mean

REGRESSION = 0.02  # a change of more than this part, with intervals apart, is one

# How tables call the libraries, in their order.
SEPARATE = "separate"
NAMES = {
    SEPARATE: "cuBLAS + separate",
    "cupy": "CuPy",
    "cupy_once": "CuPy, steps in one",
    "eager": "eager",
    "eager_joined": "eager, joined",
    "cublaslt": "cuBLASLt",
    "inductor": "Inductor",
    "inductor_joined": "Inductor, joined",
    "triton": "Triton",
    "cudnn": "cuDNN",
    "flash": "FlashAttention-2",
}


def called(line: Line, name: str) -> str:
    """What a library is called beside a row: a plain product has nothing separate."""
    return "cuBLAS" if name == SEPARATE and not is_fused(line) else NAMES[name]


def microseconds(line: Line, name: str = POLYGEN) -> float | None:
    """The median of a contender; None where it took no part."""
    found = line.get("times", {}).get(name)
    return None if found is None else float(found["us"])


def empty_microseconds(line: Line) -> float | None:
    """The median of the kernel that does nothing; None where none was launched."""
    found = line.get(EMPTY)
    return None if found is None else float(found["us"])


def is_measured(line: Line) -> bool:
    """Whether a row has polygen's time."""
    return not line.get("error") and microseconds(line) is not None


def ratio(line: Line, name: str) -> float | None:
    """To one library; None where there is none."""
    ours, theirs = microseconds(line), microseconds(line, name)
    return None if ours is None or theirs is None else theirs / ours


def best(line: Line, among: Sequence[str] = tuple(NAMES)) -> str | None:
    """The fastest library of a row; None where there is none."""
    present = [name for name in among if microseconds(line, name) is not None]
    return min(present, key=lambda name: microseconds(line, name) or 0.0) if present else None


def best_ratio(line: Line, among: Sequence[str] = tuple(NAMES)) -> float | None:
    """To the fastest library; None where there is none."""
    name = best(line, among)
    return None if name is None else ratio(line, name)


def tflops(line: Line) -> float:
    """Of the products, in the time of the whole."""
    return float(line["operations"]) / (microseconds(line) or 0.0) / 1e6


@dataclass(frozen=True, slots=True)
class Limit:
    """The least time a card could take.

    Attributes:
        microseconds: that time.
        bound: "product" or "copy".
    """

    microseconds: float
    bound: str


def limit(record: Record, line: Line) -> Limit | None:
    """The card's limit for a row; None where its run measured no ceilings.

    A replayed row has those of the run that measured it, not of the replay.
    """
    own = line.get("card", {}).get("ceilings")
    ceilings = own or record["runs"][line["run"]].get("ceilings")
    if not ceilings or line["dtype"] not in ceilings["tflops"]:
        return None
    product = line["operations"] / ceilings["tflops"][line["dtype"]] / 1e6
    copy = line["bytes"] / ceilings["copy_gbytes_per_s"] / 1e3
    return Limit(product, "product") if product >= copy else Limit(copy, "copy")


def share_of_limit(record: Record, line: Line) -> float | None:
    """Limit over time; None where there is no limit."""
    found, ours = limit(record, line), microseconds(line)
    return None if found is None or ours is None else found.microseconds / ours


# --- over many rows -------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Mean:
    """Ratios of several rows.

    Attributes:
        rows: how many have the ratio.
        geomean: their geometric mean; None without rows.
        least: the smallest ratio and its row.
        largest: the largest ratio and its row.
        lost: how many are below 1.
    """

    rows: int
    geomean: float | None
    least: tuple[float, str] | None
    largest: tuple[float, str] | None
    lost: int


def mean(lines: Sequence[Line], of: Callable[[Line], float | None]) -> Mean:
    """The ratios that rows have.

    Args:
        lines: of a record.
        of: gives the ratio of a line, or None.
    """
    found = [(value, line["key"]) for line in lines if (value := of(line)) is not None]
    return Mean(
        len(found),
        geometric_mean([value for value, _ in found]),
        min(found, default=None),
        max(found, default=None),
        sum(value < 1 for value, _ in found),
    )


def is_fused(line: Line) -> bool:
    """Whether it is more than one product that nothing follows."""
    return not operation(line["op"]).plain


def means(record: Record, lines: Sequence[Line]) -> dict[str, Mean]:
    """Over rows: beside the best library, each library, and the share of the limit.

    Beside separate kernels only fused rows count, for a plain product has none.
    """
    good = [line for line in lines if is_measured(line)]
    fused = [line for line in good if is_fused(line)]
    found = {"the best library": mean(good, best_ratio)}
    if 0 < len(fused) < len(good):
        plain = [line for line in good if not is_fused(line)]
        found["the best library, plain products"] = mean(plain, best_ratio)
        found["the best library, fused"] = mean(fused, best_ratio)
    for name, text in NAMES.items():
        of = functools.partial(ratio, name=name)
        found[text] = mean(fused if name == SEPARATE else good, of)
    found["the limit"] = mean(good, functools.partial(share_of_limit, record))
    return {text: value for text, value in found.items() if value.rows}


def losses(lines: Sequence[Line]) -> list[Line]:
    """Rows in which a library is faster, the worst first."""
    lost = [line for line in lines if (best_ratio(line) or 1.0) < 1 and is_measured(line)]
    return sorted(lost, key=lambda line: best_ratio(line) or 1.0)


# --- between records ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Change:
    """One row in two records.

    Attributes:
        key: of the row.
        old: polygen's launches then.
        new: polygen's launches now.
        change: new median over old, less 1.
        card: the same of the libraries in both, their geometric mean: what the card changed.
        verdict: "slower", "faster" or "same".
    """

    key: str
    old: Summary
    new: Summary
    change: float
    card: float | None
    verdict: str


def changes(old: Record, new: Record) -> list[Change]:
    """Rows that both records have, the largest slow-down first.

    "slower" and "faster": the intervals do not overlap, and the medians differ by more than
    `REGRESSION`.
    """
    before = {line["key"]: line for line in old["rows"] if is_measured(line)}
    found = []
    for line in new["rows"]:
        then = before.get(line["key"])
        if then is None or not is_measured(line):
            continue
        one, two = from_json(then["times"][POLYGEN]), from_json(line["times"][POLYGEN])
        change = two.median / one.median - 1
        verdict = "same"
        if apart(one, two) and abs(change) > REGRESSION:
            verdict = "slower" if change > 0 else "faster"
        found.append(Change(line["key"], one, two, change, _card(then, line), verdict))
    return sorted(found, key=lambda item: -item.change)


def _card(old: Line, new: Line) -> float | None:
    """What the libraries' times changed by; compiled ones may have other code: left out."""
    both = [
        b / a
        for name in ("separate", "eager", "cublaslt")
        if (a := microseconds(old, name)) and (b := microseconds(new, name))
    ]
    found = geometric_mean(both)
    return None if found is None else found - 1


def derived(record: Record) -> list[dict[str, Any]]:
    """Rows with the figures that follow from them, as plain values."""
    made = []
    for line in record["rows"]:
        extra: dict[str, Any] = {}
        if is_measured(line):
            bound = limit(record, line)
            extra = {
                "tflops": round(tflops(line), 1),
                "ratio": {n: round(r, 4) for n in NAMES if (r := ratio(line, n)) is not None},
                "best": best(line),
                "limit_us": None if bound is None else round(bound.microseconds, 2),
                "bound": None if bound is None else bound.bound,
            }
        made.append({**line, **extra})
    return made
