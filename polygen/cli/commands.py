"""What each subcommand does, except `run`, which is in `trial`. Each returns the exit code."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from polygen.check import CheckReport
from polygen.cli import check_files, check_folder, load, pipelines
from polygen.cli.output import fancy, print_code, print_json, print_pairs, print_table
from polygen.errors import ToolchainMissing, UsageError
from polygen.hardware.device import devices
from polygen.kernel import Kernel
from polygen.kernel_sequence import AnyKernel, KernelSequence
from polygen.runtime import cache as artifacts
from polygen.runtime.environment import environment
from polygen.schedule.load import shipped
from polygen.schedule.sums import Sums, reproducible

# What is written; cubin and PTX only where there is a compiler.
FILES = {
    "code": ".cu",
    "header": ".h",
    "cubin": ".cubin",
    "ptx": ".ptx",
    "manifest": ".json",
    "tree": ".tree.yaml",
}
LANGUAGES = {"cuda": "cuda", "tree": "yaml"}  # stages that a terminal shows in colour


def generate(options: argparse.Namespace) -> int:
    """Write the ``.cu`` with header, binary, manifest and tree beside it, or print the ``.cu``."""
    made = load.kernel(options)
    if options.out == "-":
        if options.json:
            print_json(_described(made) | {"source": made.source})
        else:
            print_code(made.source, "cuda")
        return 0
    path = made.save(options.out, force=options.force)
    each = [(one, path.with_name(f"{one.entry}.cu")) for one in made.kernels]
    several = isinstance(made, KernelSequence)
    if options.json:
        described = [_json_of(*one) for one in each]
        whole = {"manifest": str(path), **_described(made), "kernels": described}
        print_json(whole if several else described[0])
        return 0
    if several:
        print_pairs([("manifest", str(path))])
    for one, code in each:
        if several:
            print()
        files = [(name, str(file)) for name, file in _files(code).items()]
        bits = ("bits", reproducible(one.sums))
        print_pairs([*files, *_named(one).items(), bits, ("compiled", _compiled(one))])
    return 0


def _files(code: Path) -> dict[str, Path]:
    """The files of a kernel that are there, by what they hold."""
    found = {name: code.with_suffix(suffix) for name, suffix in FILES.items()}
    return {name: file for name, file in found.items() if file.exists()}


def _compiled(made: Kernel) -> str:
    try:
        return f"{made.resources}, by {made.artifact.compiler}"
    except ToolchainMissing as reason:
        return f"not compiled: {reason}"


def _json_of(made: Kernel, code: Path) -> dict[str, object]:
    """A kernel that was written, as plain values."""
    resources, compiler, why = None, None, None
    try:
        resources, compiler = dataclasses.asdict(made.resources), made.artifact.compiler
    except ToolchainMissing as reason:
        why = str(reason)
    built = {"resources": resources, "compiler": compiler, "not_compiled": why}
    return {name: str(file) for name, file in _files(code).items()} | _described(made) | built


def _named(made: AnyKernel) -> dict[str, str]:
    return {"target": made.target.name, "schedule": made.schedule_origin}


def _described(made: AnyKernel) -> dict[str, object]:
    return {**_named(made), **sums_json(made.sums)}


def sums_json(sums: Sums) -> dict[str, object]:
    """What is proved of the bits of a kernel, as plain values."""
    return {
        "deterministic": sums.deterministic,
        "bits": reproducible(sums),
        "invariant": list(sums.invariant),
        "sums": list(sums.said),
        "sums_class": sums.digest,
    }


def show(options: argparse.Namespace) -> int:
    """Print one stage of the pipeline, or write the page that has all of them."""
    if options.stage == pipelines.STAGE:
        return pipelines.show(options)
    if not options.signature:
        raise UsageError(
            "the following arguments are required: OPERAND",
            where="show",
            nearest="See `polygen show --help`",
        )
    if options.html is not None and options.stage is not None:
        raise UsageError(
            "--html and --stage", where="show", why="the page has all stages", nearest="Give one"
        )
    made = load.kernel(options)
    if options.html is not None:
        made.page(options.html)
        if options.json:
            print_json({"page": options.html, **_described(made)})
        else:
            print_pairs([("page", options.html), *_named(made).items()])
        return 0
    stage = options.stage or "plan"
    text = made.show(stage)
    if options.json:  # described afterwards: compiling may replace an automatic choice
        print_json({"stage": stage, **_described(made), "text": text})
        return 0
    language = LANGUAGES.get(stage)
    if language and fancy():
        print_code(text, language)
    else:
        print(text, end="" if text.endswith("\n") else "\n")
    return 0


def check(options: argparse.Namespace) -> int:
    """Prove the kernel and run its PTX on NumPy, or run a kernel file; 1 if anything is found."""
    if check_files.is_file(options.program):
        return check_files.check(options)
    if not options.signature and (folder := Path(options.program)).is_dir():
        return check_folder.check(folder, options)
    if not options.signature:
        raise UsageError(
            "the following arguments are required: OPERAND",
            where="check",
            nearest="See `polygen check --help`",
        )
    for value, flag in ((options.format != "text", "--format"), (options.explain, "--explain")):
        if value:
            raise UsageError(f"{flag} is about kernel files", where="check", nearest="Try --json")
    kernel = load.kernel(options)
    report = kernel.check(workers=options.workers)
    if options.json:
        print_json(check_json(report) | sums_json(kernel.sums))
    else:
        print(report)
    return 0 if report.ok else 1


def check_json(report: CheckReport) -> dict[str, object]:
    """A report as plain values; each finding has code, sentence, where, count and story."""
    return {
        "ok": report.ok,
        "proofs": [dataclasses.asdict(proof) for proof in report.proofs],
        "sizes": dict(report.sizes),
        "comparison": report.comparison,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "notes": list(report.notes),
        "profile": [dataclasses.asdict(row) for row in report.profile],
    }


def targets(options: argparse.Namespace) -> int:
    """List the devices of the hardware data."""
    known = devices()
    if options.json:
        print_json([dataclasses.asdict(device) for device in known])
        return 0
    rows = [
        (
            device.name,
            device.display,
            ", ".join(device.examples),
            ", ".join(device.features),
            f"{', '.join(device.schedule_families)} ({len(shipped(device))} shipped)",
        )
        for device in known
    ]
    print_table(("name", "device", "for example", "features", "schedule families"), rows)
    return 0


def env(options: argparse.Namespace) -> int:
    """Describe this machine."""
    found = environment()
    if options.json:
        print_json(found)
        return 0
    pairs = []
    for name, value in found.items():
        if isinstance(value, list):
            text = "; ".join(", ".join(f"{k} {v}" for k, v in item.items()) for item in value)
        elif isinstance(value, dict):
            text = ", ".join(f"{k} {v}" for k, v in value.items())
        else:
            text = "" if value is None else str(value)
        pairs.append((name, text or "none"))
    print_pairs(pairs)
    return 0


def cache(options: argparse.Namespace) -> int:
    """Describe or empty the cache of compiled kernels."""
    if options.action == "clear":
        removed, path = artifacts.clear(), artifacts.directory()
        if options.json:
            print_json({"path": str(path), "removed": removed})
        else:
            print(f"{removed} kernels removed from {path}")
        return 0
    held = artifacts.info()
    if options.json:
        print_json({"path": str(held.path), "entries": held.entries, "bytes": held.bytes})
    else:
        print(held)
    return 0
