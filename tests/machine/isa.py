# ruff: noqa: E501 - tables
"""Instructions one at a time: PTX texts of one instruction, with what each should give.

What an instruction should give is computed with Python's integers and fractions, from the PTX
manual, and shares nothing with the machine. A case's operands are columns of awkward values, one
row per thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

THREADS = 256
LETTER = {"16": "h", "32": "r", "64": "d"}


@dataclass(frozen=True)
class Case:
    """One instruction.

    Attributes:
        text: with ``%o`` for the result and ``%a``, ``%b``, ``%c`` for operands.
        types: PTX types of the operands.
        result: of the result.
        rule: of Python numbers (integers, floats; bits for b types); None: nothing is compared.
        needs: the architecture.
        values: operands for all rows; None: awkward ones.
    """

    text: str
    types: tuple[str, ...]
    result: str
    rule: Callable[..., Any] | None
    needs: str = "sm_80"
    values: tuple[Any, ...] | None = None

    @property
    def name(self) -> str:
        return self.text


def size(kind: str) -> int:
    return (
        8
        if kind == "pred"
        else int("".join(c for c in kind if c.isdigit()).replace("162", "32")) // 8
    )


def storage(kind: str) -> str:
    """The NumPy type that holds a PTX type's bits."""
    return {"f32": "f4", "f64": "f8", "f16": "f2"}.get(
        kind
    ) or f"{'i' if kind[0] == 's' else 'u'}{size(kind)}"


def awkward(kind: str, count: int, seed: int) -> np.ndarray:
    """Values at the ends of a type's range, small ones, and random bits."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(storage(kind))
    bits = random.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(
        f"u{dtype.itemsize}"
    )
    if dtype.kind == "f":
        special = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, math.inf, -math.inf, math.nan, 1e-3,
                   7.25, -7.75, 255.5, 65504.0]  # fmt: skip
        if dtype.itemsize >= 4:
            special += [
                1e-40,
                -1e-40,
                3.4028235e38,
                1.1754944e-38,
                2147483648.0,
                -2147483904.0,
                4294967296.0,
                1e10,
            ]
        if dtype.itemsize == 8:
            special += [1e300, 5e-324, 9.3e18, 1.8446744073709552e19, 1 + 2.0**-30]
        found = bits.view(dtype).copy()
        finite = random.standard_normal(count).astype(dtype) * 100
        found = np.where(random.random(count) < 0.6, finite, found)
        places = random.permutation(count)[: 3 * len(special)]
        with np.errstate(over="ignore"):
            found[places] = np.resize(np.array(special).astype(dtype), len(places))
        return found
    width = 8 * dtype.itemsize
    special = [0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 255, 256, -1, -2, -3, -128, 1 << width - 1,
               (1 << width - 1) - 1, (1 << width - 1) + 1, 0x80, 0xFF00, 0x7FFF, 0x8000]  # fmt: skip
    found = bits.copy()
    places = random.permutation(count)[: 5 * len(special)]
    found[places] = np.resize(
        np.array([one & ((1 << width) - 1) for one in special], f"u{dtype.itemsize}"), len(places)
    )
    return found.view(dtype)


def ptx(case: Case) -> str:
    """A kernel in which every thread executes the instruction once."""
    regs, body = [], []
    for at, kind in enumerate(case.types):
        letter = "abc d"[at]
        load = (
            "u8" if kind == "pred" else f"b{8 * size(kind)}" if kind not in ("f32", "f64") else kind
        )
        register = kind if kind in ("f32", "f64") else f"b{8 * max(size(kind), 2)}"
        if kind == "pred":
            regs += [f".reg .pred %{letter};", f".reg .b16 %{letter}w;"]
            body += place(at, 1)
            body += [f"ld.global.u8 %{letter}w, [%at];", f"setp.ne.b16 %{letter}, %{letter}w, 0;"]
        else:
            regs.append(f".reg .{register} %{letter};")
            body += place(at, size(kind))
            body.append(f"ld.global.{load} %{letter}, [%at];")
    out = case.result
    if out == "pred":
        regs += [".reg .pred %o;", ".reg .b32 %ow;"]
    else:
        regs.append(f".reg .{out if out in ('f32', 'f64') else f'b{8 * max(size(out), 2)}'} %o;")
    body.append(case.text if case.text.endswith(";") else case.text + ";")
    if out == "pred":
        body += [*place(len(case.types), 1), "selp.b32 %ow, 1, 0, %o;", "st.global.u8 [%at], %ow;"]
    else:
        store = out if out in ("f32", "f64") else f"b{8 * size(out)}"
        body += [*place(len(case.types), size(out)), f"st.global.{store} [%at], %o;"]
    count = len(case.types) + 1
    params = ",\n".join(f"  .param .u64 k_param_{at}" for at in range(count))
    lines = "\n  ".join(
        [*regs, ".reg .b32 %t;", ".reg .b64 %at, %step;", "mov.u32 %t, %tid.x;", *body, "ret;"]
    )
    return f".version 8.6\n.target {case.needs}\n.address_size 64\n.visible .entry k(\n{params}\n)\n{{\n  {lines}\n}}\n"


def place(argument: int, width: int) -> list[str]:
    return [
        f"ld.param.u64 %at, [k_param_{argument}];",
        f"mul.wide.u32 %step, %t, {width};",
        "add.s64 %at, %at, %step;",
    ]


def operands(case: Case) -> list[np.ndarray]:
    if case.values is not None:
        return [
            np.resize(np.asarray(v, "u1" if k == "pred" else storage(k)), THREADS)
            for v, k in zip(case.values, case.types, strict=True)
        ]
    found = []
    for at, kind in enumerate(case.types):
        if kind == "pred":
            found.append(np.random.default_rng(at).integers(0, 2, THREADS).astype("u1"))
        else:
            found.append(awkward(kind, THREADS, 7 * at + size(kind)))
    return found


def expected(case: Case, given: list[np.ndarray]) -> np.ndarray:
    """The result column by the rule."""
    dtype = "u1" if case.result == "pred" else storage(case.result)
    rows = []
    for row in zip(
        *(
            column.tolist() if column.dtype != np.float16 else column.astype("f8").tolist()
            for column in given
        ),
        strict=True,
    ):
        value = case.rule(*row)
        rows.append(value)
    if np.dtype(dtype).kind in "ui":
        mask = (1 << 8 * np.dtype(dtype).itemsize) - 1
        return np.array([int(v) & mask for v in rows], f"u{np.dtype(dtype).itemsize}").view(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(rows, "f8").astype(dtype)  # NaN and infinities, too


# --- what rules are made of ---------------------------------------------------------------------
def wrapped(value: int, kind: str) -> int:
    """A number as a type holds it."""
    bits = 8 * size(kind)
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> bits - 1 else value


def clamped(value: int, kind: str) -> int:
    bits = 8 * size(kind)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    return min(max(value, low), high)


def divided(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


CASES: list[Case] = []
NEAR: dict[str, tuple[float, float]] = {}  # approximations: how far off, relatively and absolutely


def case(text, types, result, rule, needs="sm_80", values=None):
    types = tuple(types.split()) if isinstance(types, str) else tuple(types)
    CASES.append(Case(text, types, result, rule, needs, values))


def nonzero(kind, seed=5):
    column = awkward(kind, THREADS, seed)
    return np.where(column == 0, 1, column)
