"""``polygen check FOLDER``: every kernel of every ``.cu`` and ``.ptx`` below it.

1. A file with a launch file of its name beside it is launched as that says. Any other is compiled,
   and each of its kernels is launched as `check_draft` guesses from its PTX.
2. Compiling and running take place in processes with limits, `judge`'s own.
3. One line per kernel, then a count: *silent*, *found*, *refused* (and why),
   *stopped* by a limit, or *failed*, which is a mistake of the machine itself.

Sizes and numbers of a draft are guesses, and so its findings may be of the guess.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from polygen.cli import check_draft
from polygen.cli.check_arrays import arguments
from polygen.cli.check_launch import launched, load_launch, read_launch
from polygen.cli.output import print_json
from polygen.errors import CompileError, MachineFault, PolygenError, UsageError
from polygen.hardware.device import device
from polygen.machine.parse import parse
from polygen.runtime import sandbox, toolkit
from polygen.runtime.outside import by_nvcc, compile_text, read_text
from polygen.verdict import Verdict, judge

MEMORY = 4 << 30
OUTCOMES = ("silent", "found", "refused", "stopped", "failed")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What came of one kernel, or of a file that has none to run.

    Attributes:
        file: below the folder.
        kernel: "" when the whole file is meant.
        outcome: one of `OUTCOMES`.
        why: codes of findings, or one line.
        drafted: whether the launch is a guess.
    """

    file: str
    kernel: str
    outcome: str
    why: str
    drafted: bool


def check(folder: Path, options: argparse.Namespace) -> int:
    """Run all kernels below a folder and print a line each; 1 if anything is found or fails.

    Raises:
        UsageError: there is no file to check, or an option is about one file.
    """
    if options.format in ("sarif", "github") or options.explain:
        raise UsageError(
            f"{folder} is a folder, of which every kernel gets one line",
            where="polygen check",
            nearest="Check one file for its stories, SARIF or annotations",
        )
    files = sorted(one for one in folder.rglob("*") if one.suffix in (".cu", ".ptx"))
    if not files:
        raise UsageError(f"{folder} has no .cu and no .ptx", where="polygen check")
    plain = options.json or options.format == "json"
    with ThreadPoolExecutor(options.workers) as pool:
        rows: list[Row] = []
        for some in pool.map(lambda path: list(_of_file(folder, path, options)), files):
            rows += some
            for row in () if plain else some:
                print(_line(row), flush=True)
    counts = Counter(row.outcome for row in rows)
    if plain:
        print_json({"rows": [dataclasses.asdict(row) for row in rows], "counts": counts})
    else:
        total = ", ".join(f"{counts[one]} {one}" for one in OUTCOMES)
        print(f"{len(files)} file(s), {len(rows)} kernel(s): {total}")
    return 1 if counts["found"] or counts["failed"] else 0


def _line(row: Row) -> str:
    name = f"{row.file} {row.kernel}".strip()
    return f"{row.outcome:<8} {name}" + (f": {row.why}" if row.why else "")


def _of_file(folder: Path, path: Path, options: argparse.Namespace) -> Iterator[Row]:
    """One row per kernel of a file."""
    name, beside = path.relative_to(folder).as_posix(), path.with_suffix(".toml")

    def row(kernel: str, outcome: str, why: str, drafted: bool) -> Row:
        return Row(name, kernel, outcome, why.split("\n")[0], drafted)

    try:
        given = load_launch(beside) if beside.exists() else None
        arch = device(options.arch or (given.arch if given else "") or "sm_90a").compile_target
        said = _read(path, arch, given is None, options.seconds)
    except sandbox.Stopped as stopped:
        yield row("", "stopped" if stopped.limit else "failed", str(stopped), False)
        return
    except PolygenError as error:
        yield row("", "refused", str(error), False)
        return
    if "error" in said:
        yield row("", said["outcome"], said["error"], False)
        return
    launches = said["drafts"] if given is None else {given.entry: ""}
    for kernel, text in launches.items():
        try:
            launch = given or read_launch(text, beside)
            values, expected = arguments(launch, beside)
            if not launch.block:
                launch = dataclasses.replace(launch, block=tuple(said["blocks"][kernel]))
            verdict = judge(
                said["ptx"] if path.suffix == ".cu" else path,
                launched(launch, values),
                expected if any(one is not None for one in expected) else None,
                seed=launch.seed,
                seconds=options.seconds,
                memory=MEMORY,
            )
        except PolygenError as error:
            yield row(kernel, "refused", str(error), given is None)
            continue
        yield row(kernel, *_told(verdict), given is None)


def _read(path: Path, arch: str, drafted: bool, seconds: float) -> dict[str, Any]:
    """What `read` says of a file; a whole program is compiled by nvcc first, where there is one.

    Raises:
        PolygenError: nvcc rejects it.
        Stopped: a limit was met.
    """
    job = str(path), arch, drafted, ""
    said, _ = sandbox.ask(f"{__name__}:read", job, seconds=seconds, memory=MEMORY)
    nvcc = toolkit.nvcc()
    if "log" not in said or nvcc is None:
        return said
    refused = CompileError(said["error"])
    refused.log = said["log"]
    job = str(path), arch, drafted, by_nvcc(nvcc, path, arch, refused, max(seconds, 60.0))
    said, _ = sandbox.ask(f"{__name__}:read", job, seconds=seconds, memory=MEMORY)
    return said


def _told(verdict: Verdict) -> tuple[str, str]:
    """(outcome, why) of a verdict."""
    codes = list(dict.fromkeys(reason.code for reason in verdict.reasons))
    if verdict.outcome in ("right", "wrong"):
        return ("silent" if verdict.ok else "found"), ", ".join(codes)
    if codes[0] in ("died", MachineFault.__name__):
        return "failed", verdict.reasons[0].sentence
    return verdict.outcome, verdict.reasons[0].sentence


# --- in the process ------------------------------------------------------------------------------
def read(job: tuple[str, str, bool, str]) -> sandbox.Answer:
    """Compile and parse a file, and draft launches of its kernels; called in the sandbox.

    The last of the job is the PTX where there is some already.
    """
    path, arch, drafted, text = Path(job[0]), *job[1:]
    try:
        if path.suffix == ".cu":
            text = text or compile_text(read_text(path), path, arch)
        else:
            text = path.read_text("utf-8")
        module = parse(text)
        kernels = module.kernels.values()
        drafts = {one.name: check_draft.draft(module, one) for one in kernels if drafted}
        blocks = {one.name: check_draft.block(one) for one in kernels}
    except MachineFault as error:
        return {"error": str(error), "outcome": "failed"}, ()
    except CompileError as error:
        program = {"log": error.log} if error.host else {}
        return {"error": str(error), "outcome": "refused", **program}, ()
    except (PolygenError, OSError, UnicodeDecodeError) as error:
        return {"error": str(error), "outcome": "refused"}, ()
    blocks[""] = next(iter(blocks.values()))
    return {"ptx": text, "drafts": drafts, "blocks": blocks}, ()
