"""What the compiler makes of consumers' registers: compiled kernels beside the estimate.

    python -m polygen.tune.registers OUT.json [--seconds 600] [--seed 0] [--fewest]

1. Programs whose epilogues hold much, with the shipped schedules with roles, in random order; of
   schedules that differ in nothing that registers depend on, one.
2. Each is compiled as an automatic choice would take it: the bytes that it spills, or what the
   compiler says instead. With ``--fewest`` also with fewer and fewer registers for consumers, or
   more and more, which gives what `polygen.lower.registers` estimates.
3. The record holds all of it beside the estimate. It is written after each pair, so that a run that
   is ended keeps what it has; a test compares it with the estimate as it is.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polygen.analysis import prospect
from polygen.api import Fused
from polygen.emit.source import KernelSource
from polygen.errors import CompileError, PolygenError, PressureError
from polygen.fit import fitting, instruction_for
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Program
from polygen.hardware.device import Device, device
from polygen.lower.registers import panel_words, registers_needed, sums_held
from polygen.pipeline import generate, with_sizes
from polygen.poly.results import panel_columns
from polygen.poly.tiling import tiling
from polygen.runtime.files import write_text_atomic
from polygen.runtime.nvrtc import compile_source, compiler_identity
from polygen.schedule.load import shipped
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted

FORMAT = 1
SIZES = {"M": 4096, "N": 4096, "K": 4096}
OPERANDS = {
    "x": "bf16[M,K]", "w": "bf16[N,K]", "u": "bf16[N,K]", "v": "bf16[N,K]",
    "b": "bf16[N]", "g": "bf16[N]", "h": "f32[N]", "f": "f32[N]",
    "r": "bf16[M,N]", "q": "bf16[M,N]", "p": "bf16[M,N]", "c": "f32[M,N]", "d": "f32[M,N]",
    "s": "f32[M,1]", "t": "bf16[M,1]", "a": "f32", "z": "f32",
}  # fmt: skip
# Expressions over these, and the type of the result where it is not the operands'.
PROGRAMS = (
    ("x @ w.T", None), ("x @ w.T", "f32"), ("x @ w.T + b", None), ("relu(x @ w.T + b)", None),
    ('gelu(x @ w.T + b, approximate="tanh")', None), ("gelu(x @ w.T + b)", None),
    ("x @ w.T + r", None), ("relu(x @ w.T + b + r)", None), ("silu(x @ w.T) * r", None),
    ("silu(x @ w.T + b) * r", None), ("r + g * (x @ w.T + b)", None), ("r + q + x @ w.T", None),
    ("r * q + p * (x @ w.T)", None), ("(x @ w.T) * h + f", None), ("c + x @ w.T", "f32"),
    ("c * d + x @ w.T", None), ("c + g * (x @ w.T + b)", "f32"), ("(x @ w.T) * s + b", None),
    ("(x @ w.T) * s + t * r", None), ("a * (x @ w.T) + z * r", None),
    ("30 * tanh((x @ w.T) / 30)", None), ("silu(x @ u.T) * (x @ v.T)", None),
    ("silu(x @ u.T + b) * (x @ v.T + g)", None), ("(x @ w.T, relu(x @ w.T + b))", None),
    ("(x @ w.T + r, gelu(x @ w.T + r))", None), ("(x @ u.T, x @ v.T)", None),
    ("g * r + h * q + f * (x @ w.T + b)", None),
    ("where(x @ w.T > 0, x @ w.T, b * (x @ w.T)) + r", None),
    ("erf(x @ w.T + b) * r + sqrt(maximum(q, 0))", None), ("sin(x @ w.T) * g + h", None),
)  # fmt: skip

_GIVEN = re.compile(r"(?<=setmaxnreg\.inc\.sync\.aligned\.u32 )\d+")
_NAME = re.compile(r"\bC7[56]\d\d\b")
_CLOSE = 48  # registers to spare with which nothing spills


def program_of(expression: str, out_dtype: str | None) -> Program:
    """A program over `OPERANDS`, with the alignments of `SIZES`."""
    names = tuple(name for name in OPERANDS if re.search(rf"\b{name}\b", expression))
    fused = Fused(parse_expression(expression, names), "probe", expression, False)
    signature = (OPERANDS[name] for name in names)
    return with_sizes(fused.program(*signature, out_dtype=out_dtype, sizes=SIZES), SIZES)


def classes(target: Device) -> list[Schedule]:
    """The shipped schedules with roles, one of each kind that registers tell apart."""
    found: dict[object, Schedule] = {}
    for one in shipped(target):
        if one.specialised:
            way = one.epilogue.through, one.epilogue.columns, one.epilogue.prefetch
            found.setdefault((one.roles, one.tile, one.min_blocks, way), one)
    return list(found.values())


def parts(program: Program, schedule: Schedule, target: Device) -> dict[str, int]:
    """What the estimate of a schedule is made of, and the estimate."""
    given = prospect(program)
    as_run = given.under(schedule)
    matched, work = as_run.matched, as_run.work
    atom = instruction_for(matched, target, schedule)
    tiles = tiling(schedule, atom)
    return {
        "sums": sums_held(matched, tiles, atom),
        "words": panel_words(schedule, work, atom),
        "estimate": registers_needed(schedule, matched, tiles, atom, work),
    }


def outcome(source: KernelSource) -> dict[str, Any]:
    """What the compiler makes of a kernel: bytes spilled, or the name of its complaint.

    Raises:
        CompileError: it finds a mistake.
    """
    try:
        found = compile_source(source, allow_spills=True).resources
    except PressureError as error:
        named = _NAME.search(error.log or str(error))
        return {"complaint": named[0] if named else type(error).__name__}
    return {"spilled": found.spill_store_bytes + found.spill_load_bytes}


def is_clean(found: dict[str, Any]) -> bool:
    """Whether a kernel with this outcome is taken."""
    return found.get("spilled") == 0


def with_registers(source: KernelSource, count: int) -> KernelSource:
    """The kernel with so many registers for each thread of its consumers."""
    return replace(source, text=_GIVEN.sub(str(count), source.text))


def fewest(source: KernelSource, given: int, target: Device) -> int | None:
    """The fewest registers with which a kernel compiles without spilling; None: more than any."""
    step, most = target.role_registers_step, target.role_registers_most
    count = given
    if is_clean(outcome(with_registers(source, count))):
        while count > step and is_clean(outcome(with_registers(source, count - step))):
            count -= step
        return count
    while count < most:
        count += step
        if is_clean(outcome(with_registers(source, count))):
            return count
    return None


def measured(seed: int, target: Device, down: bool) -> Iterator[dict[str, Any]]:
    """Pairs of a program and a schedule, compiled."""
    pairs = [(one, schedule) for one in PROGRAMS for schedule in classes(target)]
    random.Random(seed).shuffle(pairs)
    for (expression, out_dtype), schedule in pairs:
        program = program_of(expression, out_dtype)
        known = prospect(program)
        fitted = fitting(known.matched, target, known.work, careful=True)(schedule)
        if not isinstance(fitted, Fitted) or (fitted.spare or 0) > _CLOSE:
            continue
        taken = fitted.schedule
        source = generate(program, target, SIZES, taken).source
        given = taken.roles.consumer_registers
        row = {
            "expression": expression, "out_dtype": out_dtype, "schedule": taken.name,
            "columns": panel_columns(taken) if taken.epilogue.through == "tma" else 0,
            "given": given, "producer": taken.roles.producer_registers,
            **parts(program, taken, target), **outcome(source),
        }  # fmt: skip
        if down:
            row["fewest"] = fewest(source, given, target)
        yield row


def main(arguments: Sequence[str]) -> int:
    """Run the command; 0 when the record is written."""
    parser = argparse.ArgumentParser(prog="python -m polygen.tune.registers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path, help="the record")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which no pair is begun")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--arch", default="sm_90a", help="the target")
    parser.add_argument("--fewest", action="store_true", help="also search the fewest registers")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + options.seconds
    try:
        for row in measured(options.seed, device(options.arch), options.fewest):
            rows.append(row)
            _write(options.out, options.arch, rows)
            print(json.dumps(row), flush=True)
            if time.monotonic() > end:
                break
    except (CompileError, PolygenError) as error:
        print(f"registers: {error}", file=sys.stderr)
        return 2
    clean = sum(map(is_clean, rows))
    print(f"{len(rows)} kernels, {clean} compile without spilling")
    return 0


def _write(path: Path, arch: str, rows: Sequence[dict[str, Any]]) -> None:
    head = {"format": FORMAT, "arch": arch, "compiler": compiler_identity()}
    body = ",\n".join("  " + json.dumps(row) for row in rows)
    text = json.dumps(head, indent=1).removesuffix("\n}")
    write_text_atomic(path, f'{text},\n "kernels": [\n{body}\n ]\n}}\n')


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
