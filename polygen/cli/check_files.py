"""``polygen check FILE.cu|FILE.ptx [LAUNCH.toml]``: a kernel from outside, on the PTX machine.

1. read the launch file; compile a ``.cu`` with line information, take a ``.ptx`` as it is;
2. run it, and compare the arrays that the launch file has expectations for;
3. report every finding with the lines of the file that it names, and the access profile if asked.

Without a launch file one is drafted from what the PTX says of itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

from polygen.cli import check_draft, check_formats
from polygen.cli.check_arrays import arguments, wrong_values
from polygen.cli.check_launch import LaunchFile, launched, load_launch, sides
from polygen.cli.output import print_json
from polygen.errors import LaunchFileError, PolygenError
from polygen.hardware.device import device
from polygen.machine import AccessProfile, Finding, Report, run
from polygen.machine.parse import parse
from polygen.runtime.outside import compile_ptx

SUFFIXES = (".cu", ".ptx")
_PLACE = re.compile(r"PTX line (?P<ptx>\d+)(?:, (?P<source>[^`]*?))? `(?P<text>[^`]*)`")
_LINE = re.compile(r"(?P<file>[^\s:()]+):(?P<line>\d+)")
# What a command about an expression takes, and a file does not.
_FOREIGN = (("size", "--size"), ("static", "--static"), ("out_dtype", "--out-dtype"))


def is_file(program: str) -> bool:
    """Whether the first argument of ``polygen check`` names a kernel file."""
    return program.strip().endswith(SUFFIXES)


def check(options: argparse.Namespace) -> int:
    """Run the file and report; 1 if anything is found.

    Raises:
        PolygenError: wrong usage, a file that cannot be read or compiled, a launch that does not
            fit, malformed PTX.
    """
    path = Path(options.program.strip())
    if not options.signature:
        return _draft(path, options)
    if len(options.signature) != 1 or not options.signature[0].endswith(".toml"):
        raise PolygenError(
            f"{path.name} needs one launch file",
            where="polygen check",
            nearest=f"Write polygen check {path.name} LAUNCH.toml",
        )
    for name, flag in _FOREIGN:
        if getattr(options, name, None):
            raise PolygenError(f"{flag} is about an expression, not about {path.name}")
    launch_path = Path(options.signature[0])
    launch = load_launch(launch_path)
    values, expected = arguments(launch, launch_path)
    ptx = _ptx(path, options.arch or launch.arch)
    entry = options.name or launch.entry
    if not launch.block:
        launch = dataclasses.replace(launch, block=_own_block(ptx, entry, launch_path))
    report = run(
        ptx,
        launched(launch, values, entry),
        completion=launch.completion,
        seed=launch.seed,
        profile=launch.profile,
        progress=_progress if sys.stderr.isatty() else None,
        workers=options.workers,
    )
    findings = (*report.findings, *wrong_values(report.arrays, expected))
    compared = sum(one is not None for one in expected)
    groups = _grouped(path, findings).values()
    counted = (dataclasses.replace(g[0], count=sum(one.count for one in g)) for g in groups)
    placed = [(one, places(path, one.where)) for one in counted]
    report = dataclasses.replace(report, findings=findings)
    form = "json" if options.json else options.format
    if form == "json":
        print_json(_json(path, launch, report))
    elif form == "sarif":
        print_json(check_formats.sarif(path, placed, report.notes))
    elif form == "github":
        print("\n".join((*check_formats.github(path, placed, report.notes), _total(findings))))
    else:
        print(_text(path, launch, report, compared, options.explain))
    return 1 if findings else 0


def _draft(path: Path, options: argparse.Namespace) -> int:
    """Without a launch file: print one to begin with."""
    module = parse(_ptx(path, options.arch))
    print(check_draft.draft(module, check_draft.chosen(module, options.name or "")), end="")
    return 0


def _own_block(ptx: str, entry: str, path: Path) -> tuple[int, ...]:
    """The block that a kernel's launch bounds name."""
    kernel = check_draft.chosen(parse(ptx), entry)
    if not kernel.threads_most:
        raise LaunchFileError(
            str(path), [f"block: missing, and {kernel.name} has no launch bounds to take it from"]
        )
    return kernel.block or (kernel.threads_most,)


def _total(findings: tuple[Finding, ...]) -> str:
    return f"{len(findings)} finding(s)" if findings else "no findings"


def _progress(done: int, total: int) -> None:
    """One line on the terminal that is written over, and gone at the end."""
    text = f"{done} of {total} blocks" if done < total else ""
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()


def _ptx(path: Path, arch: str) -> str:
    if not path.exists():
        raise PolygenError("cannot be read: there is none", where=str(path), nearest="Name a file")
    if path.suffix == ".cu":
        if not arch:
            raise PolygenError(
                "no target to compile for",
                where=str(path),
                nearest='Write arch = "sm_80" in the launch file, or --arch sm_80',
            )
        return compile_ptx(path, device(arch).compile_target)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolygenError(f"cannot be read: {error}", where=str(path)) from None


# --- reports -------------------------------------------------------------------------------------
def places(path: Path, where: str) -> list[dict[str, Any]]:
    """The instructions that a finding or a profile row names, with the CUDA lines behind them."""
    lines = _source_lines(path)
    found = []
    for match in _PLACE.finditer(where):
        place: dict[str, Any] = {"ptx_line": int(match["ptx"]), "instruction": match["text"]}
        source = _LINE.search(match["source"] or "")
        if source:
            place["file"], place["line"] = source["file"], int(source["line"])
            if source["file"] == path.name and 1 <= place["line"] <= len(lines):
                place["text"] = lines[place["line"] - 1].strip()
        found.append(place)
    return found


def _source_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.suffix == ".cu" else []


def _json(path: Path, launch: LaunchFile, report: Report) -> dict[str, object]:
    return {
        "ok": report.ok,
        "file": str(path),
        "grid": sides(launch.grid),
        "block": sides(launch.block),
        "completion": launch.completion,
        "seed": launch.seed,
        "instructions": report.instructions,
        "findings": [
            {**dataclasses.asdict(one), "places": places(path, one.where)}
            for one in report.findings
        ],
        "notes": list(report.notes),
        "profile": [
            {**dataclasses.asdict(one), "places": places(path, one.where)} for one in report.profile
        ],
    }


def _text(path: Path, launch: LaunchFile, report: Report, compared: int, explain: bool) -> str:
    findings, profile, instructions = report.findings, report.profile, report.instructions
    grid, block = ("x".join(map(str, sides(s))) for s in (launch.grid, launch.block))
    lines = [
        f"ran {path.name}: grid {grid}, block {block}, asynchronous copies land "
        f"{_LANDING[launch.completion]}, {instructions} warp instructions"
    ]
    for group in _grouped(path, findings).values():
        one, count = group[0], sum(one.count for one in group)
        meaning = check_formats.meaning(one.code)
        lines += [f"FOUND {one.code}: {meaning} ({count} times)", f"  {one.sentence}"]
        shown = [_shown(place) for place in places(path, one.where)] or [one.where]
        lines += [f"  at   {shown[0]}", *(f"  and  {place}" for place in shown[1:])]
        if len(group) > 1:
            lines.append(f"  and at {len(group) - 1} more copies of these lines in the PTX")
        if explain:
            lines += check_formats.story(path, one, _source_lines(path))
    lines += [f"note: {note}" for note in report.notes]
    lines += _profile_lines(path, profile)
    if compared and not any(one.code == "wrong-value" for one in findings):
        lines.append(f"{compared} array(s) equal what the launch file expects")
    lines.append(_total(findings))
    return "\n".join(lines)


def _lines_of(path: Path, where: str) -> tuple[Any, ...]:
    """What makes two findings one to a reader: their lines of the file, or of the PTX."""
    return tuple(
        (place["file"], place["line"]) if "line" in place else place["ptx_line"]
        for place in places(path, where)
    )


def _grouped(path: Path, findings: tuple[Finding, ...]) -> dict[Any, list[Finding]]:
    """Findings by code and lines: an unrolled loop has many instructions per line."""
    groups: dict[Any, list[Finding]] = {}
    for one in findings:
        groups.setdefault((one.code, _lines_of(path, one.where) or one.where), []).append(one)
    return groups


def _profile_lines(path: Path, profile: tuple[AccessProfile, ...]) -> list[str]:
    """One line per memory space and line of the file, in program order."""
    groups: dict[Any, list[AccessProfile]] = {}
    for row in profile:
        groups.setdefault((row.space, _lines_of(path, row.where) or row.where), []).append(row)
    lines = []
    for rows in groups.values():
        actual, ideal = sum(row.actual for row in rows), sum(row.ideal for row in rows)
        unit = "wavefronts" if rows[0].space == "shared" else "sectors"
        more = f" ({actual / ideal:.3g} times the ideal)" if actual > ideal else ""
        first = places(path, rows[0].where)
        where = _shown(first[0], short=True) if first else rows[0].where
        lines.append(f"{rows[0].space:<6}  {actual} {unit}, ideal {ideal}{more}: {where}")
    return lines


_LANDING = {
    "late": "as late as allowed",
    "early": "at issue",
    "random": "at random",
}


def _shown(place: dict[str, Any], *, short: bool = False) -> str:
    ptx = f"PTX line {place['ptx_line']} `{place['instruction']}`"
    if "line" not in place:
        return ptx
    text = f" `{place['text']}`" if "text" in place else ""
    return f"{place['file']}:{place['line']}{text}" + ("" if short else f", {ptx}")
