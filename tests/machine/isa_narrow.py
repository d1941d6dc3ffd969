# ruff: noqa: E501 - tables
"""Narrow floats, special operands of approximations, and more: see `isa`."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
from isa import THREADS, awkward, case, clamped
from isa_floats import RULES, arithmetic, as_halves, half_bits, nearest, smaller

# --- bfloat16 ------------------------------------------------------------------------------------
random = np.random.default_rng(12)


def rounded(value: Fraction | float, mode: str = "rn") -> int:
    """The bits of bfloat16 of an exact number."""
    if isinstance(value, float) and not math.isfinite(value):
        return 0x7FFF if math.isnan(value) else 0xFF80 if value < 0 else 0x7F80
    exact = nearest(Fraction(value), 8, -133, mode)
    sign = math.copysign(1.0, value) < 0 if isinstance(value, float) else value < 0
    if abs(exact) > Fraction(255 * 2.0**120):
        return 0xFF80 if exact < 0 else 0x7F80
    return int(np.float32(abs(float(exact))).view("u4")) >> 16 | sign << 15


def brain(word: int) -> float:
    return float(np.array([word << 16], "u4").view("f4")[0])


def brains(word: int) -> list[float]:
    return [brain(word >> shift & 0xFFFF) for shift in (0, 16)]


ENDS = [
    0,
    0x8000,
    1,
    0x8001,
    0x7F,
    0x80,
    0x3F80,
    0xBF80,
    0x7F80,
    0xFF80,
    0x7FC0,
    0x7F7F,
    0xFF7F,
    0x4049,
    0x3F00,
]
column = [random.permutation(np.r_[np.repeat(ENDS, 6), random.integers(0x3C00, 0x4400, 256) | random.integers(0, 2, 256) << 15, random.integers(0, 1 << 16, 166)])[:THREADS].astype("u2") for _ in range(3)]  # fmt: skip
pairs = [one.astype("u4") | np.roll(one, 7).astype("u4") << 16 for one in column]

WHOLE = ("u16", "s16", "u32", "s32", "u64", "s64")
for k in WHOLE:
    case(f"cvt.rn.bf16.{k} %o, %a", k, "b16", lambda a: rounded(Fraction(a)), "sm_90")
ties = [(1 << 25) + (1 << 17) + 1, (1 << 25) + (1 << 17), (1 << 30) - 1, (1 << 30) + (1 << 22) + 1, (1 << 31) - (1 << 22) - 1]  # fmt: skip
case(
    "cvt.rn.bf16.u32 %o, %a; add.u32 %t, %t, 0",
    "u32",
    "b16",
    lambda a: rounded(Fraction(a)),
    "sm_90",
    (ties,),
)
wide = [one << 30 | 1 for one in ties] + [(one << 30) - 1 for one in ties]
case(
    "cvt.rn.bf16.u64 %o, %a; add.u32 %t, %t, 0",
    "u64",
    "b16",
    lambda a: rounded(Fraction(a)),
    "sm_90",
    (wide,),
)
for mode, rule in {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}.items():
    for k in WHOLE:

        def integral(word, k=k, rule=rule):
            x = brain(word)
            if math.isnan(x):
                return 1 << 63 if k in ("u64", "s64") else 0
            return clamped(rule(x) if math.isfinite(x) else (1 << 70) * (1 if x > 0 else -1), k)

        case(f"cvt.{mode}.{k}.bf16 %o, %a", "b16", k, integral, "sm_90", (column[0],))
for name, count, rule in RULES:
    letters = ", ".join(("%a", "%b", "%c")[:count])

    def one(*words, rule=rule, name=name):
        row = [brain(word) for word in words]
        if not all(map(math.isfinite, row)):
            with np.errstate(all="ignore"):
                return rounded(float(rule(*map(np.float64, row))))
        exact = rule(*map(Fraction, row))
        with np.errstate(all="ignore"):
            return rounded(exact) if exact else rounded(float(rule(*map(np.float64, row))))

    case(
        f"{name}.rn.bf16 %o, {letters}",
        ("b16",) * count,
        "b16",
        one,
        "sm_90",
        tuple(column[:count]),
    )

    def two(*words, one=one):
        return sum(one(*(word >> shift & 0xFFFF for word in words)) << shift for shift in (0, 16))

    case(
        f"{name}.rn.bf16x2 %o, {letters}; add.u32 %t, %t, 0",
        ("b32",) * count,
        "b32",
        two,
        "sm_90",
        tuple(pairs[:count]),
    )
    if name == "fma":

        def positive(*words, one=one):
            found = one(*words)
            return 0 if found >> 15 and found != 0xFFFF else found

        case(
            f"fma.rn.relu.bf16 %o, {letters}", ("b16",) * 3, "b16", positive, "sm_90", tuple(column)
        )
for name in ("min", "max"):
    for nan in ("", ".NaN"):

        def lesser(a, b, nan=nan, name=name):
            found = smaller(brain(a), brain(b), bool(nan), name == "max")
            return rounded(found)

        case(f"{name}{nan}.bf16 %o, %a, %b", "b16 b16", "b16", lesser, "sm_80", tuple(column[:2]))

        def both(a, b, one=lesser):
            return sum(one(a >> s & 0xFFFF, b >> s & 0xFFFF) << s for s in (0, 16))

        case(
            f"{name}{nan}.bf16x2 %o, %a, %b; add.u32 %t, %t, 0",
            "b32 b32",
            "b32",
            both,
            "sm_80",
            tuple(pairs[:2]),
        )

# --- halves --------------------------------------------------------------------------------------
EDGES = np.array([0, -0.0, 1, -1, 0.5, 6e-8, -6e-8, 6.1e-5, 65504, -65504, np.inf, -np.inf, np.nan, 2048, 1 / 3, 3e-5], "f2").view("u2")  # fmt: skip
halves = [random.permutation(np.r_[np.repeat(EDGES, 6), (random.normal(size=256) * 4).astype("f2").view("u2")])[:THREADS].astype("u2") for _ in range(3)]  # fmt: skip
words = [one.astype("u4") | np.roll(one, 5).astype("u4") << 16 for one in halves]


def to_half(x: float) -> int:
    return 0x7FFF if math.isnan(x) else half_bits(x)


def of_halves(rule):
    def result(*given):
        rows = zip(*map(as_halves, given), strict=True)
        return sum(to_half(rule(*row)) << 16 * at for at, row in enumerate(rows))

    return result


def flushed(x: float) -> float:
    return math.copysign(0.0, x) if abs(x) < 2.0**-14 else x


def unit(x: float) -> float:
    return 0.0 if math.isnan(x) or x <= 0 else min(x, 1.0)


for name, count, rule in RULES:
    letters = ", ".join(("%a", "%b", "%c")[:count])
    exact = arithmetic(rule, "f16", "rn", name)
    case(
        f"{name}.rn.f16x2 %o, {letters}; add.u32 %t, %t, 0",
        ("b32",) * count,
        "b32",
        of_halves(exact),
        "sm_80",
        tuple(words[:count]),
    )
    case(
        f"{name}.rn.ftz.f16x2 %o, {letters}",
        ("b32",) * count,
        "b32",
        of_halves(lambda *row, e=exact: flushed(e(*map(flushed, row)))),
        "sm_80",
        tuple(words[:count]),
    )
    case(
        f"{name}.rn.sat.f16x2 %o, {letters}",
        ("b32",) * count,
        "b32",
        of_halves(lambda *row, e=exact: unit(e(*row))),
        "sm_80",
        tuple(words[:count]),
    )
for name in ("min", "max"):
    for nan in ("", ".NaN"):
        case(
            f"{name}{nan}.f16x2 %o, %a, %b; add.u32 %t, %t, 0", "b32 b32", "b32",
            of_halves(lambda a, b, n=nan, name=name: smaller(a, b, bool(n), name == "max")), "sm_80", tuple(words[:2]),
        )  # fmt: skip

# --- floats of eight bits ------------------------------------------------------------------------
KINDS = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0, 0x7F), "e5m2": (ml_dtypes.float8_e5m2, 57344.0, 0x7F)}  # fmt: skip


def eight(x: float, kind: str) -> int:
    dtype, most, nan = KINDS[kind]
    if math.isnan(x):
        return nan
    exact = nearest(
        Fraction(min(max(x, -1e6), 1e6)),
        4 if kind == "e4m3" else 3,
        -9 if kind == "e4m3" else -16,
        "rn",
    )
    size = min(abs(exact), Fraction(most))
    return int(np.array(float(size), dtype).view("u1")) | (math.copysign(1, x) < 0) << 7


floats = np.r_[awkward("f32", THREADS // 2, 3), (random.normal(size=THREADS // 2) * 2.0 ** random.integers(-12, 9, THREADS // 2)).astype("f4")]  # fmt: skip
every = (np.arange(THREADS) | np.arange(THREADS)[::-1] << 8).astype("u2")
for kind in KINDS:
    for relu in ("", ".relu"):
        case(
            f"cvt.rn.satfinite{relu}.{kind}x2.f32 %o, %a, %b", "f32 f32", "b16",
            lambda a, b, k=kind, relu=relu: eight(0.0 if relu and a <= 0 else a, k) << 8 | eight(0.0 if relu and b <= 0 else b, k),
            "sm_90", (floats, np.roll(floats, 3)),
        )  # fmt: skip
    case(
        f"cvt.rn.satfinite.{kind}x2.f16x2 %o, %a", "b32", "b16",
        lambda a, k=kind: sum(eight(x, k) << 8 * at for at, x in enumerate(as_halves(a))), "sm_90", (words[0],),
    )  # fmt: skip
    case(
        f"cvt.rn.f16x2.{kind}x2 %o, %a", "b16", "b32",
        lambda a, k=kind: sum(
            to_half(float(np.array([a >> s & 255], "u1").view(KINDS[k][0])[0])) << 2 * s for s in (0, 8)
        ),
        "sm_90", (every,),
    )  # fmt: skip

# --- approximations of what is special -----------------------------------------------------------
inf, nan = math.inf, math.nan
SPECIAL = {
    "ex2.approx.ftz.f32": {0.0: 1.0, inf: inf, -inf: 0.0, nan: nan, 1e-40: 1.0, 128.0: inf, -200.0: 0.0},
    "ex2.approx.f32": {0.0: 1.0, inf: inf, -inf: 0.0, nan: nan, 128.0: inf, -200.0: 0.0},
    "lg2.approx.ftz.f32": {0.0: -inf, 1.0: 0.0, inf: inf, -1.0: nan, nan: nan, 1e-40: -inf, 4.0: 2.0, -inf: nan},
    "lg2.approx.f32": {0.0: -inf, 1.0: 0.0, inf: inf, -1.0: nan, nan: nan, 4.0: 2.0, -inf: nan},
    "rcp.approx.ftz.f32": {0.0: inf, inf: 0.0, -inf: -0.0, nan: nan, 1e-40: inf, -1e-40: -inf, 1.0: 1.0, 3e38: 0.0, 2.0: 0.5},
    "rcp.approx.f32": {0.0: inf, inf: 0.0, -inf: -0.0, nan: nan, 1.0: 1.0, 2.0: 0.5, 1e-40: inf},
    "rsqrt.approx.ftz.f32": {0.0: inf, inf: 0.0, -inf: nan, nan: nan, 1e-40: inf, -1.0: nan, 1.0: 1.0, 4.0: 0.5},
    "rsqrt.approx.f32": {0.0: inf, inf: 0.0, -inf: nan, nan: nan, -1.0: nan, 1.0: 1.0, 4.0: 0.5},
    "sqrt.approx.ftz.f32": {0.0: 0.0, inf: inf, -inf: nan, nan: nan, 1e-40: 0.0, -1.0: nan, 1.0: 1.0, 4.0: 2.0},
    "sqrt.approx.f32": {0.0: 0.0, inf: inf, -inf: nan, nan: nan, -1.0: nan, 1.0: 1.0, 4.0: 2.0},
    "sin.approx.ftz.f32": {0.0: 0.0, inf: nan, -inf: nan, nan: nan, 1e-40: 0.0},
    "cos.approx.ftz.f32": {0.0: 1.0, inf: nan, -inf: nan, nan: nan, 1e-40: 1.0},
    "tanh.approx.f32": {0.0: 0.0, inf: 1.0, -inf: -1.0, nan: nan, 20.0: 1.0},
}  # fmt: skip
for text, table in SPECIAL.items():
    given = np.array(list(table), "f4")
    known = [(float(key), value) for key, value in zip(given, table.values(), strict=True)]

    def special(x, known=known):
        return next(v for key, v in known if key == x or (math.isnan(key) and math.isnan(x)))

    case(f"{text} %o, %a; add.u32 %t, %t, 0", "f32", "f32", special, "sm_90", (given,))

# --- the rest ------------------------------------------------------------------------------------
for name in ("min", "max"):

    def small(a, b, name=name):
        a, b = (math.copysign(0.0, x) if abs(x) < 2.0**-126 else x for x in (a, b))
        return smaller(a, b, False, name == "max")

    case(f"{name}.ftz.f32 %o, %a, %b", "f32 f32", "f32", small)
for table in random.permutation(256)[:40].tolist():

    def by_table(a, b, c, table=table):
        return sum(
            (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i
            for i in range(32)
        )

    case(f"lop3.b32 %o, %a, %b, %c, {table}; add.u32 %t, %t, 0", "b32 b32 b32", "b32", by_table)
# a product and a sum whose rest, far below, decides a tie between numbers that are not normal
low = np.float32(2.0**-127) + np.arange(THREADS).astype("f4") * np.float32(2.0**-149)
case(
    "fma.rn.f32 %o, %a, %b, %c; add.u32 %t, %t, 0", "f32 f32 f32", "f32",
    lambda a, b, c: arithmetic(RULES[3][2], "f32", "rn", "fma")(a, b, c),
    values=(np.float32(2.0**-75) * np.where(np.arange(THREADS) % 2, 1, -1), np.float32(2.0**-75) * (1 + np.where(np.arange(THREADS) % 3, 1, 0) * np.float32(2.0**-23)) * np.float32(1), low),
)  # fmt: skip


def differences(signs, adds):
    def result(a, b, c):
        parts = []
        for shift in (0, 8, 16, 24):
            x, y = a >> shift & 255, b >> shift & 255
            x, y = (
                v - 256 if s == "s" and v >> 7 else v for v, s in zip((x, y), signs, strict=True)
            )
            parts.append(abs(x - y))
        return c + sum(parts) if adds else sum(p << 8 * at for at, p in enumerate(parts))

    return result


for signs in ("uu", "ss"):
    for adds in ("", ".add"):
        kinds = f"{'s' if signs == 'ss' else 'u'}32"
        case(f"vabsdiff4.u32.{kinds}.{kinds}{adds} %o, %a, %b, %c", "b32 b32 b32", "b32", differences(signs, bool(adds)))  # fmt: skip
