"""Prints the largest errors found of every form of every function: the tables of docs/accuracy.md.

    python tests/function_errors.py STEP [name ...]     every STEP-th float, on the PTX machine

Of the fast forms with every approximate instruction off by what NVIDIA documents.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from pointwise_kernels import SIGNS, apply, arguments, every, off_by, reference

from polygen.emit.function_errors import recorded_error
from polygen.frontend.functions import INTERNAL, TABLE

LARGEST, SMALLEST = float(np.finfo(np.float32).max), 2.0**-126


def log2(value: float) -> str:
    """A power of two with two digits."""
    return f"2^{math.log2(value):.2f}" if value > 0 else "0"


def largest(
    name: str, constants: tuple[float, ...], fast: bool, step: int, note: str
) -> tuple[float, str]:
    """The largest relative error, and a row with it in every unit."""
    x = every(step)
    args = arguments(name, x)[: 1 if constants else None]
    found = apply(name, *args, constants=constants, fast=fast, note=note).astype(np.float64)
    wanted = reference(name, *args, *map(np.float32, constants))
    absolute = recorded_error(name, (*constants, None)[0], fast)[0]
    tiny = max(SMALLEST, absolute * 2**24 if absolute > 2.0**-140 else 0.0)
    with np.errstate(all="ignore"):
        normal = (np.abs(wanted) < 0.999 * LARGEST) & (np.abs(wanted) >= tiny)
        small = (np.abs(wanted) < tiny) & ~np.isnan(found)
        error = np.abs(found - wanted)
        ulp = np.where(normal, error / 2.0 ** (np.floor(np.log2(np.abs(wanted))) - 23), 0)
        relative = np.where(normal, error / np.abs(wanted), 0).max()
        near_zero = np.where(small, error, 0).max()
    where = ", ".join(f"{arg[ulp.argmax()]:.6g}" for arg in args)
    row = f"{ulp.max():6.2f} ulp at {where:24} relative {log2(relative):8}"
    return relative, f"{row} below {log2(tiny)}: absolute {log2(near_zero)}"


def main() -> None:
    """Prints a row per form."""
    step, names = int(sys.argv[1]), sys.argv[2:]
    calls = [(name, TABLE[name].defaults) for name in sorted(TABLE)]
    calls += [("pow", (exponent,)) for exponent in (3.0, 8.0, -0.5, 2.5, -3.0, 64.0)]
    for name, constants in calls:
        skipped = name in INTERNAL | {"clip", "where"} or TABLE[name].result.kind != "float"
        if skipped or (names and name not in names):
            continue
        title = f"{name}{constants or ''}"
        print(f"{title:20} accurate {largest(name, constants, False, step, '')[1]}", flush=True)
        rows = []
        for signs in SIGNS:
            with off_by(signs) as note:
                rows.append(largest(name, constants, True, step, note))
            if rows[0] == rows[-1] and len(rows) > 1:
                break  # no approximate instruction in it
        print(f"{title:20} fast     {rows[0][1]}; worst {log2(max(rows)[0])}", flush=True)


if __name__ == "__main__":
    main()
