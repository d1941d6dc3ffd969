"""Random PTX programs, and what they should leave: instructions of `isa` one after another.

A program is a list of instructions on a few registers, some guarded by predicates, with branches
that skip some and loops whose number of turns differs by thread. `followed` executes it thread by
thread on Python numbers with the rules of `isa`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import isa
import isa_floats
import isa_integers
import isa_narrow
import numpy as np

assert isa_floats and isa_integers and isa_narrow  # they fill the table
THREADS = 64
LETTERS = {"pred": "p", "f32": "f", "f64": "e", "16": "h", "32": "r", "64": "d"}
COUNTS = {"p": 3, "f": 4, "e": 2, "h": 3, "r": 6, "d": 4}
WIDTHS = {"f": 4, "e": 8, "h": 2, "r": 4, "d": 8}
SIGNS = ("copysign", "xorsign", "testp")  # whose NaN has a sign


def letter(kind: str) -> str:
    """The register file of a type."""
    if kind in ("pred", "f32", "f64"):
        return LETTERS[kind]
    return LETTERS[str(8 * isa.size(kind))]


def usable(case: isa.Case) -> bool:
    """Whether an instruction is one alone, for any operands, with a rule for each."""
    kinds = (*case.types, case.result)
    return (
        case.values is None
        and case.rule is not None
        and case.text not in isa.NEAR
        and ";" not in case.text
        and "f16" not in kinds
        and all(kind == "pred" or isa.size(kind) > 1 for kind in kinds)
        and not any(word in case.text for word in SIGNS)
    )


CASES = [case for case in isa.CASES if usable(case)]


@dataclass(frozen=True)
class Step:
    """One instruction: a case on registers, or a branch.

    Attributes:
        case: None for a branch.
        target: the register of the result; of a branch, the place it goes to.
        sources: registers.
        guard: a predicate register and whether it has to hold; None without.
    """

    case: isa.Case | None
    target: Any
    sources: tuple[str, ...] = ()
    guard: tuple[str, bool] | None = None


def program(seed: int, length: int = 30) -> list[Step]:
    """Random steps; branches go forward, but for those of one loop."""
    pick = random.Random(seed)

    def register(kind: str) -> str:
        name = letter(kind)
        return f"%{name}{pick.randrange(COUNTS[name])}"

    def guard() -> tuple[str, bool]:
        return f"%p{pick.randrange(COUNTS['p'])}", pick.random() < 0.5

    steps: list[Step] = []
    for at in range(length):
        if at + 2 < length and pick.random() < 0.12:
            ahead = pick.randrange(at + 2, min(at + 8, length) + 1)
            steps.append(Step(None, ahead, (), guard() if pick.random() < 0.9 else None))
            continue
        case = pick.choice(CASES)
        sources = tuple(register(kind) for kind in case.types)
        steps.append(
            Step(case, register(case.result), sources, guard() if pick.random() < 0.25 else None)
        )
    return steps


def text(step: Step) -> str:
    """A step as PTX."""
    front = f"@{'' if step.guard[1] else '!'}{step.guard[0]} " if step.guard else ""
    if step.case is None:
        return f"{front}bra L{step.target};"
    line = step.case.text.replace("%o", step.target)
    for name, source in zip(("%a", "%b", "%c"), step.sources, strict=False):
        line = line.replace(name, source)
    return f"{front}{line};"


def ptx(steps: list[Step], first: dict[str, np.ndarray], turns: bool) -> str:
    """A kernel: loads registers, runs the steps (for `turns`, %q turns), stores all registers."""
    lines = [".reg .b32 %t, %q;", ".reg .b64 %at, %step;", ".reg .pred %again;", ".reg .b16 %w;"]
    for name, count in COUNTS.items():
        kind = {"p": "pred", "f": "f32", "e": "f64"}.get(name) or f"b{8 * WIDTHS[name]}"
        lines.append(f".reg .{kind} %{name}<{count}>;")
    lines.append("mov.u32 %t, %tid.x;")
    names = list(first)

    def place(number: int, width: int) -> list[str]:
        return [
            f"ld.param.u64 %at, [k_param_{number}];",
            f"mul.wide.u32 %step, %t, {width};",
            "add.s64 %at, %at, %step;",
        ]

    for number, name in enumerate(names):
        if name[1] == "p":
            lines += [*place(number, 1), "ld.global.u8 %w, [%at];", f"setp.ne.b16 {name}, %w, 0;"]
        elif len(np.unique(first[name])) == 1 and name[1] in "rd":  # the same in every thread
            lines.append(f"mov.b{8 * WIDTHS[name[1]]} {name}, {int(first[name][0])};")
        else:
            kind = {"f": "f32", "e": "f64"}.get(name[1]) or f"b{8 * WIDTHS[name[1]]}"
            lines += [*place(number, WIDTHS[name[1]]), f"ld.global.{kind} {name}, [%at];"]
    if turns:
        lines += ["and.b32 %q, %t, 3;", "AGAIN:"]
    for number, step in enumerate(steps):
        lines += [f"L{number}:", text(step)]
    lines.append(f"L{len(steps)}:")
    if turns:
        lines += ["sub.u32 %q, %q, 1;", "setp.ge.s32 %again, %q, 0;", "@%again bra AGAIN;"]
    for number, name in enumerate(names):
        number += len(names)
        if name[1] == "p":
            lines += [*place(number, 1), f"selp.b16 %w, 1, 0, {name};", "st.global.u8 [%at], %w;"]
            continue
        kind = {"f": "f32", "e": "f64"}.get(name[1]) or f"b{8 * WIDTHS[name[1]]}"
        lines += [*place(number, WIDTHS[name[1]]), f"st.global.{kind} [%at], {name};"]
    params = ",\n".join(f".param .u64 k_param_{number}" for number in range(2 * len(names)))
    body = "\n  ".join([*lines, "ret;"])
    head = ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k(\n"
    return f"{head}{params}\n)\n{{\n  {body}\n}}\n"


def start(seed: int) -> dict[str, np.ndarray]:
    """What the registers hold at first: one in four integers is the same in all threads."""
    pick, found = random.Random(seed), {}
    kinds = {"f": "f32", "e": "f64", "h": "b16", "r": "b32", "d": "b64"}
    for name, count in COUNTS.items():
        for number in range(count):
            if name == "p":
                column = np.random.default_rng(seed + number).integers(0, 2, THREADS).astype("u1")
            else:
                column = isa.awkward(kinds[name], THREADS, pick.randrange(1 << 30))
                if name in "rd" and pick.random() < 0.25:
                    column = np.full_like(column, column[pick.randrange(THREADS)])
            found[f"%{name}{number}"] = column
    return found


# --- the reference -------------------------------------------------------------------------------
def _read(value: Any, kind: str) -> Any:
    """A register as a number of a type; files of integers hold bits."""
    if kind in ("pred", "f32", "f64"):
        return value
    return isa.wrapped(value, kind)


def _result(value: Any, kind: str) -> Any:
    if kind == "pred":
        return int(bool(value))
    if kind in ("f32", "f64"):
        with np.errstate(over="ignore"):
            return float(np.float32(value)) if kind == "f32" else float(value)
    return int(value) & (1 << 8 * isa.size(kind)) - 1


def followed(steps: list[Step], first: dict[str, np.ndarray], turns: bool) -> dict[str, np.ndarray]:
    """What the registers hold at the end, thread by thread."""
    rows = []
    for thread in range(THREADS):
        held = {name: column[thread].item() for name, column in first.items()}
        for _ in range((thread & 3) + 1 if turns else 1):
            _once(steps, held)
        rows.append(held)
    return {
        name: np.array([row[name] for row in rows], column.dtype) for name, column in first.items()
    }


def _once(steps: list[Step], held: dict[str, Any]) -> None:
    at = 0
    while at < len(steps):
        step = steps[at]
        at += 1
        if step.guard and bool(held[step.guard[0]]) != step.guard[1]:
            continue
        if step.case is None:
            at = step.target
            continue
        given = [_read(held[n], k) for n, k in zip(step.sources, step.case.types, strict=True)]
        held[step.target] = _result(step.case.rule(*given), step.case.result)
