"""Fits the cost model's parameters to measured schedules, and says how well it then ranks.

    python -m polygen.tune.fit RECORD.json... [--held-out PATTERN] [--write]

1. Read the records; count every schedule once. The counts do not change, so that a set of
   parameters is judged by one pass over columns.
2. Loss of a problem: the spread of log(predicted / measured) about its own level, most of all among
   the fast schedules; a little of the level itself, for clocks differ from run to run; and what is
   lost by taking the schedules that are predicted fastest.
3. Search one parameter at a time, up and down by a factor that shrinks; then, from there, along the
   direction that the sweep took. Every start and range is in the data file.
4. Validate: leave out all problems of one size, fit to the others from the nominal values, rank
   what was left out. Those are the figures to believe.
5. With --write the data file gets the numbers, rounded, and keeps its comments.
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polygen.errors import HardwareDataError, PolygenError
from polygen.hardware.cost_parameters import FILE, CostParameters, cost_parameters, search_ranges
from polygen.hardware.data_file import DATA
from polygen.runtime.files import write_text_atomic
from polygen.schedule.load import shipped
from polygen.tune.cost import counts
from polygen.tune.cost.model import Columns, times
from polygen.tune.measured import Measured, read_record
from polygen.tune.quality import FIRST, Column, Quality, quality

Indices = npt.NDArray[np.int64]

_SLOW = 0.25  # excess over the best time at which a schedule counts half
_HUBER = 0.15  # log ratio beyond which a deviation counts linearly
_LEVEL = 0.05  # weight of a problem's level
_TAKEN = 0.3  # weight of what is lost by the schedules predicted fastest
_NARROW = 0.02  # log ratio by which those are told from others
_FAR = 100.0  # of these ratios, beyond which a schedule is not taken at all
_FACTOR, _LAST_FACTOR = 1.6, 1.01  # of the search: first and last step
_DIGITS = 4
_MAKER = "polygen.tune.fit"


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured schedules as columns, problem by problem.

    Attributes:
        columns: what they do.
        measured: logarithm of microseconds.
        excess: measured over the problem's best, less one.
        weights: of the rows; 1 in all for each problem.
        shipped: 1 for the schedules that come with polygen, among which it chooses by default.
        starts: first row of each problem.
        sizes: rows of each problem.
    """

    columns: Columns
    measured: Column
    excess: Column
    weights: Column
    shipped: Column
    starts: Indices
    sizes: Indices

    def per_problem(self, values: Column) -> Column:
        """Sums over the rows of each problem."""
        return np.asarray(np.add.reduceat(values, self.starts))

    def spread(self, values: Column) -> Column:
        """One value per problem to all of its rows."""
        return np.repeat(values, self.sizes)


def samples(problems: Sequence[Measured]) -> Samples:
    """The problems as columns."""
    rows = [counts(p.device, one, p.problem) for p in problems for one in p.schedules]
    sizes = np.array([len(p.schedules) for p in problems])
    excess = np.concatenate([p.microseconds / p.microseconds.min() - 1 for p in problems])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    weights = 1 / (1 + excess / _SLOW)
    weights = weights / np.repeat(np.add.reduceat(weights, starts), sizes)
    measured = np.log(np.concatenate([p.microseconds for p in problems]))
    return Samples(Columns(rows), measured, excess, weights, _shipped(problems), starts, sizes)


def _shipped(problems: Sequence[Measured]) -> Column:
    found = []
    for one in problems:
        names = {schedule.name for schedule in shipped(one.device)}
        found += [s.schedule.name in names for s in one.schedules]
    return np.array(found, np.float64)


def loss(parameters: CostParameters, data: Samples) -> float:
    """How badly a set of parameters explains the samples; see the module."""
    predicted = np.log(times(parameters, data.columns)["total"])
    ratio = predicted - data.measured
    level = data.per_problem(ratio * data.weights)
    off = np.abs(ratio - data.spread(level))
    bent = np.where(off < _HUBER, off * off / (2 * _HUBER), off - _HUBER / 2)
    lost = _lost(predicted, data, np.ones_like(predicted)) + _lost(predicted, data, data.shipped)
    each = data.per_problem(bent * data.weights) + _TAKEN * lost + _LEVEL * np.abs(level)
    return float(each.mean())


def _lost(predicted: Column, data: Samples, among: Column) -> Column:
    """Per problem, the excess of the schedules predicted fastest, over the best `among` them."""
    some = data.spread(data.per_problem(among))
    among = np.where(some > 0, among, 1.0)
    hidden = np.where(among > 0, 0.0, np.inf)
    fastest = np.minimum.reduceat(predicted + hidden, data.starts)
    best = np.minimum.reduceat(data.excess + hidden, data.starts)
    taken = among * np.exp(-np.minimum((predicted - data.spread(fastest)) / _NARROW, _FAR) * among)
    lost = data.per_problem(taken * data.excess) / data.per_problem(taken)
    return np.asarray(lost - best)


def fit(
    data: Samples, start: CostParameters, note: Callable[[str], None] = lambda _: None
) -> CostParameters:
    """The parameters that explain the samples best, from `start`.

    Args:
        data: the samples.
        start: where to begin; parameters that are not searched stay.
        note: takes a line of progress.
    """
    ranges = search_ranges()
    best, least, factor = start, loss(start, data), _FACTOR
    while factor > _LAST_FACTOR:
        before, at = best, least
        for name, (low, _, high) in ranges.items():
            for step in (factor, 1 / factor):
                moved = min(max(getattr(best, name) * step, low), high)
                tried = replace(best, **{name: moved})
                if moved != getattr(best, name) and (found := loss(tried, data)) < least:
                    best, least = tried, found
                    break
        further = _beyond(before, best)
        if (found := loss(further, data)) < least:
            best, least = further, found
        note(f"step {factor:.3f}: loss {least:.5f}")
        if at - least < 1e-3 * at:
            factor = factor**0.6
    return best


def staged_fit(
    problems: Sequence[Measured],
    start: CostParameters,
    note: Callable[[str], None] = lambda _: None,
) -> CostParameters:
    """Fit schedules with roles, those without, and then all together.

    Each kind has parameters of its own. Beginning with both at once ends in places where one kind
    is right only because the other is wrong.
    """
    for kind in (True, False):
        some = [part for one in problems if (part := _of_kind(one, kind)) is not None]
        if some:
            start = fit(samples(some), start, note)
    return fit(samples(problems), start, note)


def _of_kind(one: Measured, specialised: bool) -> Measured | None:
    """The problem with the schedules of one kind; None if there are fewer than two."""
    kept = [n for n, s in enumerate(one.schedules) if s.schedule.specialised == specialised]
    if len(kept) < 2:
        return None
    schedules = tuple(one.schedules[n] for n in kept)
    return replace(one, schedules=schedules, microseconds=one.microseconds[kept])


def _beyond(before: CostParameters, now: CostParameters) -> CostParameters:
    """As far again in the direction of the last sweep, inside the ranges."""
    moved = {
        name: min(max(getattr(now, name) ** 2 / getattr(before, name), low), high)
        for name, (low, _, high) in search_ranges().items()
    }
    return replace(now, **moved)


def nominal(parameters: CostParameters) -> CostParameters:
    """Parameters with those that are fitted at their nominal values: nothing learnt from a fit."""
    return replace(parameters, **{n: middle for n, (_, middle, _) in search_ranges().items()})


def judge(parameters: CostParameters, problems: Sequence[Measured]) -> list[Quality]:
    """How the model ranks the schedules of each problem."""
    found = []
    for one in problems:
        rows = Columns([counts(one.device, schedule, one.problem) for schedule in one.schedules])
        found.append(quality(times(parameters, rows)["total"], one.microseconds))
    return found


def cross_validated(
    problems: Sequence[Measured], start: CostParameters, note: Callable[[str], None]
) -> list[Quality]:
    """How the model ranks each problem when fitted without any of its size."""
    found: dict[int, Quality] = {}  # by place: records may have problems of one name
    for sizes in dict.fromkeys(one.sizes for one in problems):
        places = [at for at, one in enumerate(problems) if one.sizes == sizes]
        others = [one for one in problems if one.sizes != sizes]
        if not others:
            continue
        fitted = staged_fit(others, start)
        judged = judge(fitted, [problems[at] for at in places])
        found |= dict(zip(places, judged, strict=True))
        note(f"without {sizes}: {len(others)} problems")
    return [found[at] for at in sorted(found)]


def summary(title: str, judged: Sequence[Quality]) -> str:
    """One line over many problems."""
    hits = sum(one.hit for one in judged)
    return (
        f"{title}: {len(judged)} problems, "
        f"median Spearman {np.median([q.spearman for q in judged]):.3f}, "
        f"good one among the first {FIRST} in {hits} ({hits / len(judged):.0%}), "
        f"median regret {np.median([q.regret for q in judged]):.1%}, "
        f"worst {max(q.regret for q in judged):.1%}"
    )


def table(problems: Sequence[Measured], judged: Sequence[Quality]) -> str:
    """A line for each problem."""
    head = f"{'problem':<44} {'n':>4} {'Spearman':>9} {'first 5':>8} {'regret':>7} {'level':>6}"
    lines = [head]
    for one, q in zip(problems, judged, strict=True):
        lines.append(
            f"{one.name:<44} {q.schedules:>4} {q.spearman:>9.3f} {q.among_first:>8.3f} "
            f"{q.regret:>7.1%} {q.level:>6.2f}"
        )
    return "\n".join(lines)


def rewritten(text: str, parameters: CostParameters) -> str:
    """The data file's text with the fitted numbers in place, comments kept.

    Raises:
        HardwareDataError: a fitted parameter stands in no table, or in several.
    """
    table = re.search(rf"^\[common\..*{re.escape(_MAKER)}.*\]\n((?:(?!\[).*\n)*)", text, re.M)
    if table is None:
        raise HardwareDataError(f"no table of common is {_MAKER}'s", where=FILE)
    body = table[1]
    for name in search_ranges():
        number = _written(getattr(parameters, name))
        pattern = re.compile(rf"^{name} = (\S+)( *)", re.M)
        found = pattern.search(body)
        if found is None:
            raise HardwareDataError(f"{name} is not in the table of {_MAKER}", where=FILE)
        room = len(found[1] + found[2]) - len(number) if found[2] else 0
        padding = " " * max(1, room) if found[2] else ""
        body = f"{body[: found.start()]}{name} = {number}{padding}{body[found.end() :]}"
    return text[: table.start(1)] + body + text[table.end(1) :]


def _written(number: float) -> str:
    """A number to four digits, without an exponent."""
    return np.format_float_positional(number, _DIGITS, unique=False, fractional=False, trim="0")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m polygen.tune.fit", description=__doc__)
    parser.add_argument("records", nargs="+", type=Path, help="JSON records of measured schedules")
    parser.add_argument("--held-out", default="", help="names of problems not to fit, as a pattern")
    parser.add_argument("--no-validation", action="store_true", help="skip the cross-validation")
    parser.add_argument("--no-fit", action="store_true", help="judge the parameters as they are")
    parser.add_argument("--write", action="store_true", help=f"write the numbers to {FILE}")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except PolygenError as error:
        print(f"polygen: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    problems = [one for path in options.records for one in read_record(path)]
    if len({one.device.name for one in problems}) > 1:
        raise PolygenError("records of several devices", where="fit", nearest="Fit one at a time")
    present = cost_parameters(problems[0].device)
    held = [p for p in problems if options.held_out and fnmatch.fnmatch(p.name, options.held_out)]
    used = [p for p in problems if p not in held]
    if not used:
        raise PolygenError("no problem is left to fit", where="--held-out")
    print(summary("as it is", judge(present, problems)))
    if options.no_fit:
        print(table(problems, judge(present, problems)))
        return 0
    fitted = staged_fit(used, nominal(present))
    print(table(used, judge(fitted, used)))
    print(summary("fitted", judge(fitted, used)))
    if held:
        print(table(held, judge(fitted, held)))
        print(summary("held out", judge(fitted, held)))
    if not options.no_validation:
        validated = cross_validated(used, nominal(present), print)
        if validated:
            print(summary("cross-validated by size", validated))
    for name in search_ranges():
        print(f"{name} = {_written(getattr(fitted, name))}")
    if options.write:
        path = DATA / FILE
        write_text_atomic(path, rewritten(path.read_text(encoding="utf-8"), fitted))
        print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
