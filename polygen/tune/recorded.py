"""Records of measured schedules as JSON: what `polygen tune --export` writes, and readers get.

A file holds the problems of one kind of GPU: each with its program, sizes and target, the times of
its schedules as they were fitted, and why others have none. The schedules themselves stand once, in
a list that measurements refer to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from polygen.api import Fused
from polygen.errors import PolygenError
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Program
from polygen.frontend.signature import parse_signature
from polygen.pipeline import with_sizes
from polygen.schedule.load import FORMAT as SCHEDULE_FORMAT
from polygen.schedule.load import loads
from polygen.schedule.model import Schedule

FORMAT = 1
_BRIEF = 1  # repeats of schedules too slow to be timed like the others


@dataclass(frozen=True, slots=True)
class Recorded:
    """One problem of a record.

    Attributes:
        op: name of the operation, for people.
        expression: array code over the operands' names.
        signature: one description per operand.
        sizes: of the symbolic dims.
        arch: the target.
        gpu: where it was measured.
        out_dtype: as for `polygen.api.Fused.compile`.
        acc_dtype: likewise.
        times: schedules as fitted, each with its microseconds. Where they were timed in batches
            beside one schedule, these are ratios to it, in units of its last time: clocks drift.
        repeats: launches behind each time; 0 where that is not said.
        invariant: as for `polygen.api.Fused.compile`.
    """

    op: str
    expression: str
    signature: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...]
    arch: str
    gpu: str
    out_dtype: str | None
    acc_dtype: str
    times: tuple[tuple[Schedule, float], ...]
    repeats: tuple[int, ...]
    invariant: tuple[str, ...] = ()

    def program(self) -> Program:
        """The program, traced, with the alignments that the sizes leave.

        Raises:
            PolygenError: it is refused.
        """
        names = tuple(parse_signature(text).name for text in self.signature)
        fused = Fused(parse_expression(self.expression, names), self.op, self.expression, False)
        sizes = dict(self.sizes)
        program = fused.program(
            *self.signature, out_dtype=self.out_dtype, acc_dtype=self.acc_dtype, sizes=sizes,
            invariant=self.invariant,
        )  # fmt: skip
        return with_sizes(program, sizes)


def read(path: Path) -> tuple[Recorded, ...]:
    """The problems of a record.

    Args:
        path: the JSON file.

    Raises:
        PolygenError: it cannot be read, is no record, or a problem in it is malformed.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["format"] != FORMAT:
            raise ValueError(f"format {raw['format']}, known is {FORMAT}")
        gpu = str(raw["provenance"]["gpu"]["name"])
        schedules = [_schedule(table, str(path)) for table in raw["schedules"]]
        problems = list(raw["problems"])
        if not problems:
            raise ValueError("it has no problems")
    except (OSError, ValueError, KeyError, TypeError) as reason:
        raise PolygenError(
            "this is no record of measured schedules",
            where=str(path),
            why=f"{type(reason).__name__}: {reason}",
            nearest="`polygen tune --export` writes one",
        ) from None
    found = []
    for number, problem in enumerate(problems):
        try:
            found.append(_recorded(problem, schedules, gpu))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as reason:
            raise PolygenError(
                "a malformed problem",
                where=f"{path}, problems[{number}]",
                why=f"{type(reason).__name__}: {reason}",
            ) from None
    return tuple(found)


def _recorded(problem: Mapping[str, Any], schedules: Sequence[Schedule], gpu: str) -> Recorded:
    rows = [one for one in problem["measurements"] if one.get("repeats") != _BRIEF]
    unit = max(
        ((one.get("repeats", 0), one["microseconds"]) for one in rows if one.get("ratio") == 1.0),
        default=(0, None),
    )[1]
    times = tuple(
        (
            schedules[int(one["schedule"])],
            float(one["microseconds"] if unit is None else one["ratio"] * unit),
        )
        for one in rows
    )
    if not times or not all(0 < time < math.inf for _, time in times):
        raise ValueError("measurements: positive times in microseconds are needed")
    return Recorded(
        str(problem["op"]),
        str(problem["expression"]),
        tuple(map(str, problem["signature"])),
        tuple((str(name), int(size)) for name, size in problem["sizes"].items()),
        str(problem["arch"]),
        gpu,
        problem.get("out_dtype"),
        problem.get("acc_dtype") or "f32",
        times,
        tuple(int(one.get("repeats", 0)) for one in rows),
        tuple(map(str, problem.get("invariant", ()))),
    )


def _schedule(table: Mapping[str, Any], where: str) -> Schedule:
    return loads(tomli_w.dumps({"format": SCHEDULE_FORMAT, **table}), where)


def dump(provenance: Mapping[str, Any], problems: Sequence[Mapping[str, Any]]) -> str:
    """The text of a record; `read` gives the problems back.

    Args:
        provenance: where the times come from.
        problems: as in the file, but with whole tables for schedules.
    """
    schedules: dict[str, tuple[int, Any]] = {}

    def place(table: Any) -> int:
        key = json.dumps(table, sort_keys=True)
        return schedules.setdefault(key, (len(schedules), table))[0]

    rows = []
    for problem in problems:
        measured = [{**one, "schedule": place(one["schedule"])} for one in problem["measurements"]]
        rows.append({**problem, "measurements": measured})
    head = json.dumps({"format": FORMAT, "provenance": provenance}, indent=1).removesuffix("\n}")
    # One line for each schedule and each measurement: a difference between two records is readable.
    tables = ",\n".join("  " + json.dumps(table) for _, table in schedules.values())
    return f'{head},\n "schedules": [\n{tables}\n ],\n "problems": [\n{_lines(rows)}\n ]\n}}\n'


def _lines(problems: Sequence[Mapping[str, Any]]) -> str:
    made = []
    for problem in problems:
        rest = {name: value for name, value in problem.items() if name != "measurements"}
        times = ",\n".join("    " + json.dumps(one) for one in problem["measurements"])
        made.append(f'  {json.dumps(rest)[:-1]}, "measurements": [\n{times}\n  ]}}')
    return ",\n".join(made)
