"""Findings of ``polygen check FILE`` for others to read: SARIF, annotations of GitHub, and stories.

1. SARIF 2.1.0 is what editors and code scanning take: one result per finding, at the line of the
   file that shows it, with the other line of the pair beside it and the story as a flow.
2. A workflow command ``::error file=…,line=…::…`` per finding is what GitHub puts at a line.
3. A story is the finding's own (`polygen.machine.story`), with the text of the lines it names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from polygen import __version__
from polygen.machine import Finding
from polygen.machine.report import CODES

FORMATS = ("text", "json", "sarif", "github")
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
WRONG_VALUE = "an array differs from what the launch file expects"
_LINE = re.compile(r"(?P<file>[^\s:()]+):(?P<line>\d+)")

Places = list[dict[str, Any]]


def meaning(code: str) -> str:
    """What a code means, in words."""
    return CODES.get(code, WRONG_VALUE)


def _location(path: Path, place: dict[str, Any] | None) -> dict[str, Any]:
    """Where a place is: a line of the file, or of the PTX when the file is that."""
    line = None
    if place is not None:
        line = place.get("line") if place.get("file") == path.name else None
        if line is None and path.suffix == ".ptx":
            line = place["ptx_line"]
    found: dict[str, Any] = {"artifactLocation": {"uri": path.as_posix()}}
    if line is not None:
        found["region"] = {"startLine": line}
    return {"physicalLocation": found}


def sarif(
    path: Path, findings: list[tuple[Finding, Places]], notes: tuple[str, ...]
) -> dict[str, Any]:
    """A SARIF log of one run.

    Args:
        path: the file that was checked.
        findings: each with the places that it names.
        notes: of the run.
    """
    codes = list(dict.fromkeys(one.code for one, _ in findings))
    results = []
    for one, places in findings:
        message = f"{one.sentence} ({one.count} times)"
        result: dict[str, Any] = {
            "ruleId": one.code,
            "ruleIndex": codes.index(one.code),
            "level": "error",
            "message": {"text": message},
            "locations": [_location(path, places[0] if places else None)],
        }
        if places[1:]:
            result["relatedLocations"] = [
                {**_location(path, place), "message": {"text": place["instruction"]}}
                for place in places[1:]
            ]
        if one.story:
            steps = [
                {"location": {**_location(path, _named(path, line)), "message": {"text": line}}}
                for line in one.story
            ]
            result["codeFlows"] = [{"threadFlows": [{"locations": steps}]}]
        results.append(result)
    for note in notes:
        where = [_location(path, None)]
        results.append({"level": "note", "message": {"text": note}, "locations": where})
    rules = [{"id": code, "shortDescription": {"text": meaning(code)}} for code in codes]
    driver = {"name": "polygen", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _named(path: Path, line: str) -> dict[str, Any] | None:
    """The place that a line of a story begins with."""
    found = _LINE.match(line)
    if found is None or found["file"] != path.name:
        return None
    return {"file": found["file"], "line": int(found["line"])}


def github(path: Path, findings: list[tuple[Finding, Places]], notes: tuple[str, ...]) -> list[str]:
    """Workflow commands, one per finding and note."""
    lines = []
    for one, places in findings:
        where = _location(path, places[0] if places else None)["physicalLocation"]
        line = where.get("region", {}).get("startLine")
        properties = f"file={_property(path.as_posix())}"
        properties += f",line={line}" if line else ""
        properties += f",title={_property(f'{one.code}: {meaning(one.code)}')}"
        text = "\n".join((f"{one.sentence} ({one.count} times)", *one.story))
        lines.append(f"::error {properties}::{_data(text)}")
    lines += [f"::notice file={_property(path.as_posix())}::{_data(note)}" for note in notes]
    return lines


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def story(path: Path, one: Finding, source: list[str]) -> list[str]:
    """The story of a finding, numbered, with the text of the lines it names.

    Args:
        path: the file that was checked.
        one: the finding.
        source: its lines; empty when it is PTX.
    """
    lines = []
    for number, line in enumerate(one.story, 1):
        lines.append(f"  {number}. {line}")
        place = _named(path, line)
        if place is not None and place["line"] <= len(source):
            lines.append(f"     > {source[place['line'] - 1].strip()}")
    return lines
