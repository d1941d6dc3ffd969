"""Chooses the schedules that polygen ships from records of measured ones.

    python -m polygen.tune.ship RECORD.json... [--within 1.01] [--schedules FOLDER] [--keep]

1. Problems with few measured schedules say nothing, and neither do those that were measured before
   schedules with roles fitted them: the model chooses for both. Of each other problem, the
   schedules within a factor of its best time are as good as the best. Only those count that were
   launched nearly as often as any: of many brief trials the luckiest lead.
2. What is shipped already is preferred; then, one after the other, the schedule that is good for
   most of the problems that have none yet. So few files serve many problems.
3. New schedules get a TOML file each; `tuned/GPU.toml` names one for every problem, and its time;
   with --keep also what it named for problems that no record has.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from polygen.errors import PolygenError
from polygen.runtime.files import write_text_atomic
from polygen.schedule.load import dumps, schedules_folder, shipped
from polygen.schedule.model import Schedule
from polygen.schedule.tuned import Tuned, dump_tuned, read_tuned
from polygen.tune.measured import Measured, read_record
from polygen.tune.schedule_name import OTHER_WAYS

WITHIN = 1.01
FEWEST = 8  # measured schedules of a problem
_OFTEN = 0.3  # of the launches of the schedule launched most often


def cover(good: Sequence[Mapping[str, float]], preferred: Sequence[str]) -> list[str]:
    """A name for every problem, few names in all.

    Args:
        good: per problem, the schedules that are as good as its best, with their times.
        preferred: names that cost nothing.

    Returns:
        Per problem the fastest of the names taken.
    """
    taken = set(preferred)
    waiting = [names for names in good if not taken & names.keys()]
    while waiting:
        votes: dict[str, int] = {}
        for names in waiting:
            for name in names:
                votes[name] = votes.get(name, 0) + 1
        most = max(votes.values())
        # Of the schedules that serve most problems the fastest for the first of them.
        first = next(names for names in waiting if any(votes[n] == most for n in names))
        best = min((n for n in first if votes[n] == most), key=lambda n: (first[n], n))
        taken.add(best)
        waiting = [names for names in waiting if best not in names]
    return [min(taken & names.keys(), key=lambda n: (names[n], n)) for names in good]


def chosen(
    problems: Sequence[Measured], within: float
) -> tuple[list[tuple[Measured, str, float]], dict[str, Schedule]]:
    """Per problem the schedule to ship and its time; and the schedules that are new.

    Args:
        problems: measured on one kind of device.
        within: factor of the best time that is as good as it.
    """
    have = [schedule.name for schedule in shipped(problems[0].device)]
    known: dict[str, Schedule] = {}
    good = []
    for problem in problems:
        often = _OFTEN * max(problem.repeats, default=0)
        settled = {
            _called(fitted.schedule): (float(time), fitted.schedule)
            for fitted, time, repeats in zip(
                problem.schedules, problem.microseconds, problem.repeats, strict=True
            )
            if repeats >= often
        }
        limit = min(time for time, _ in settled.values()) * within
        names = {name: time for name, (time, _) in settled.items() if time <= limit}
        for name, (_, schedule) in settled.items():
            # The fit takes stages away where they do not fit, and leaves the name: the most ship.
            other = known.get(name)
            if other is None or other.pipeline.stages < schedule.pipeline.stages:
                known[name] = schedule
        good.append(names)
    picked = cover(good, have)
    rows = [(p, name, g[name]) for p, name, g in zip(problems, picked, good, strict=True)]
    return rows, {name: replace(known[name], name=name) for name in picked if name not in have}


def _called(schedule: Schedule) -> str:
    """Its name; a fit that finds another way out leaves that of the schedule."""
    through = schedule.epilogue.through
    other = schedule.specialised and through in OTHER_WAYS
    said = through in schedule.name.split("_")
    return f"{schedule.name}_{through}" if other and not said else schedule.name


def main(arguments: Sequence[str]) -> int:
    """Run the command; 0 when the files are written."""
    parser = argparse.ArgumentParser(prog="python -m polygen.tune.ship", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("records", nargs="+", type=Path, help="of measured schedules, one GPU")
    parser.add_argument("--within", type=float, default=WITHIN, help="factor as good as the best")
    parser.add_argument("--fewest", type=int, default=FEWEST, help="schedules of a problem")
    parser.add_argument("--schedules", type=Path, default=schedules_folder(), help="the folder")
    parser.add_argument("--keep", action="store_true", help="entries of other problems")
    options = parser.parse_args(arguments)
    try:
        return _ship(
            options.records, options.within, options.fewest, options.schedules, keep=options.keep
        )
    except PolygenError as error:
        print(f"ship: {error}", file=sys.stderr)
        return 2


def _ship(records: Sequence[Path], within: float, fewest: int, folder: Path, *, keep: bool) -> int:
    if not within >= 1:
        raise PolygenError(f"--within {within}", why="the best itself is at 1", nearest="1.01")
    measured = [one for path in records for one in read_record(path)]
    measured = [one for one in measured if len(one.schedules) >= fewest and not one.partial]
    if not measured:
        raise PolygenError(
            f"no problem has {fewest} measured schedules", nearest="Tune for longer, or --fewest 1"
        )
    by_problem = {one.problem: one for one in measured}  # a later record counts
    gpus = {one.gpu for one in measured}
    devices = {one.device.name for one in measured}
    if len(gpus) != 1 or len(devices) != 1:
        raise PolygenError(
            f"records of {', '.join(sorted(gpus))} for {', '.join(sorted(devices))}",
            why="a file of tuned schedules is of one GPU",
            nearest="Ship them one GPU at a time",
        )
    gpu, device = gpus.pop(), next(iter(by_problem.values())).device
    rows, new = chosen(list(by_problem.values()), within)
    family = folder / device.schedule_families[0]
    entries = {p.problem: Tuned(name, round(time, 2), gpu) for p, name, time in rows}
    for name, schedule in new.items():
        write_text_atomic(family / f"{name}.toml", dumps(schedule))
    file = family / "tuned" / (re.sub(r"\W+", "_", gpu).lower() + ".toml")
    if keep and file.exists():
        entries = read_tuned(file) | entries
    write_text_atomic(file, dump_tuned(gpu, entries))
    for problem, name, time in rows:
        mark = "  new" if name in new else ""
        print(f"{problem.name:44} {time:9.1f} us  {name}{mark}")
    print(f"{len(rows)} problems, {len(new)} new schedules in {family.name}/")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
