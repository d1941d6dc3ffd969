"""Records of runs: JSON that is whole whenever the process is killed, and can be continued.

``runs`` holds the provenance of every run that added to the record, and each row says which run it
is from. Only what was measured is kept; ratios, limits and means are computed from it by
`polygen.bench.figures`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polygen.bench.rows import Row, suites_of
from polygen.errors import BenchError
from polygen.runtime.files import write_text_atomic

FORMAT = 1
KIND = "bench"
NO_TIME = "no time left"  # how the reasons begin that a longer run would not have

Record = dict[str, Any]
Line = dict[str, Any]


def empty() -> Record:
    """A record of nothing."""
    return {"format": FORMAT, "kind": KIND, "suites": {}, "runs": [], "unfinished": [], "rows": []}


def load(path: Path) -> Record:
    """Read a record.

    Raises:
        BenchError: there is none, it is no record of this kind, or of another format.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BenchError("no such record", where=str(path)) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BenchError("the record cannot be read", where=str(path), why=str(error)) from None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise BenchError(
            "this is no record of `polygen bench`",
            where=str(path),
            nearest="Choose another file; nothing was changed",
        )
    if found.get("format") != FORMAT:
        raise BenchError(
            f"the record has format {found.get('format')!r}, this version reads {FORMAT}",
            where=str(path),
        )
    lacking = [name for name in ("suites", "runs", "rows") if name not in found]
    if lacking or any("key" not in line for line in found["rows"]):
        raise BenchError(
            f"the record lacks {', '.join(lacking) or 'keys of rows'}", where=str(path)
        )
    return found


def save(path: Path, record: Record) -> None:
    """Write a record, whole or not at all.

    Raises:
        CacheError: it cannot be written; the old one is untouched.
    """
    write_text_atomic(path, text(record))


def text(record: Record) -> str:
    """A record as JSON, a row to a line."""
    head = json.dumps({k: v for k, v in record.items() if k != "rows"}, indent=1)
    rows = ",\n  ".join(json.dumps(line) for line in record["rows"])
    return f'{head.removesuffix("}").rstrip()},\n "rows": [\n  {rows}\n ]\n}}\n'


def heading(row: Row, suites: Sequence[str]) -> Line:
    """What names a row in a record."""
    return {
        "key": row.key,
        "op": row.op,
        "expression": row.operation.expression,
        "dtype": row.dtype,
        "acc": row.acc,
        "pad": row.pad,
        **row.sizes,
        "operations": row.operations,
        "bytes": row.bytes,
        "suites": suites_of(row, suites),
    }


def unfinished(
    rows: Sequence[Row], record: Record, peers: Sequence[str], refill: bool = False
) -> list[Row]:
    """The rows that a record lacks, or has as errors.

    Args:
        rows: what is wanted.
        record: what there is.
        peers: libraries wanted; a row that never met one of them is not finished.
        refill: rows too in which a library was left out for want of time.
    """
    done = set()
    for line in record["rows"]:
        skipped = line.get("skipped", {})
        met = all(peer in line.get("times", {}) or peer in skipped for peer in peers)
        late = any(why.startswith(NO_TIME) for why in skipped.values())
        if not line.get("error") and met and not (refill and late):
            done.add(line["key"])
    return [row for row in rows if row.key not in done]


def merge(record: Record, line: Line, order: Sequence[Row]) -> None:
    """Add or replace a line; lines keep the order of the rows, unknown ones come last.

    A line that only says why there is none does not replace what was measured.
    """
    known = {old["key"] for old in record["rows"] if not old.get("error")}
    if line.get("error") and line["key"] in known:
        return
    place = {row.key: at for at, row in enumerate(order)}
    found = {old["key"]: old for old in record["rows"]} | {line["key"]: line}
    kept = list(found.values())
    kept.sort(key=lambda old: place.get(old["key"], len(place)))
    record["rows"] = kept


def latest(records: Sequence[Record]) -> list[Record]:
    """The same records, each with the rows of those suites alone that it has measured last.

    Args:
        records: of any suites; a row is as old as the run that measured it.
    """
    owners: dict[str, tuple[str, int]] = {}
    for number, record in enumerate(records):
        for line in record["rows"]:
            when = record["runs"][line["run"]]["date"]
            owners |= {n: max((when, number), owners.get(n, ("", 0))) for n in line["suites"]}
    found = []
    for number, record in enumerate(records):
        own = {name for name, (_, owner) in owners.items() if owner == number}
        lines = (
            {**line, "suites": [name for name in line["suites"] if name in own]}
            for line in record["rows"]
        )
        suites = {name: of for name, of in record["suites"].items() if name in own}
        rows = [line for line in lines if line["suites"]]
        found.append({**record, "suites": suites, "rows": rows})
    return found


def newest(records: Sequence[Record]) -> Record:
    """One record of several: of each suite the rows that were measured last.

    Args:
        records: at least one.
    """
    rows: list[Line] = []
    runs: list[dict[str, Any]] = []
    for record in latest(records):
        rows += [{**line, "run": len(runs) + line["run"]} for line in record["rows"]]
        runs += record["runs"] if record["rows"] else []
    return {**sorted(records, key=_when)[-1], "rows": rows, "runs": runs}


def _when(record: Record) -> str:
    when: str = record["runs"][-1]["date"]
    return when
