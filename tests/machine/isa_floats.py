"""Conversions and float instructions, with what each gives: see `isa`."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from isa import NEAR, THREADS, case, clamped, size, storage, wrapped

# --- conversions ---------------------------------------------------------------------------------
ALL = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")


def fits(a: str, b: str) -> bool:
    """Whether every number of an integer type is one of another."""
    return size(b) > size(a) and (a[0] == "u" or b[0] == "s")


for a in ALL:
    for b in ALL:
        if a != b:
            case(
                f"cvt.{b}.{a} %o, %a",
                a,
                b if size(b) > 1 else b[0] + "16",
                lambda x, b=b: wrapped(x, b),
            )
            if not fits(a, b):  # else assemblers refuse .sat
                case(
                    f"cvt.sat.{b}.{a} %o, %a",
                    a,
                    b if size(b) > 1 else b[0] + "16",
                    lambda x, b=b: clamped(x, b),
                )
ROUND = {"rni": lambda x: round(x), "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


def integral(x, mode, kind, wide=False):
    if math.isnan(x):  # an H200 says so
        return 1 << 8 * size(kind) - 1 if wide or size(kind) == 8 else 0
    if math.isinf(x):
        return clamped((1 << 70) if x > 0 else -(1 << 70), kind)
    return clamped(ROUND[mode](Fraction(x)), kind)


for f in ("f32", "f64", "f16"):
    for mode in ROUND:
        for k in ("u16", "s16", "u32", "s32", "u64", "s64"):
            case(
                f"cvt.{mode}.{k}.{f} %o, %a",
                f,
                k,
                lambda x, m=mode, k=k, w=f == "f64": integral(x, m, k, w),
            )


def nearest(value: Fraction, precision: int, least: int, mode: str) -> Fraction:
    """A number rounded to `precision` bits, none of them below 2^least."""
    if value == 0:
        return value
    top = abs(value.numerator).bit_length() - value.denominator.bit_length()
    while abs(value) >= Fraction(2) ** (top + 1):
        top += 1
    while abs(value) < Fraction(2) ** top:
        top -= 1
    unit = Fraction(2) ** max(top - precision + 1, least)
    steps = value / unit
    whole = {"rn": round, "rz": math.trunc, "rm": math.floor, "rp": math.ceil}[mode](steps)
    return whole * unit


FORMATS = {
    "f16": (11, -24, 65504),
    "f32": (24, -149, (2 - 2.0**-23) * 2.0**127),
    "f64": (53, -1074, 1.7976931348623157e308),
}


def to_float(value, kind, mode="rn") -> float:
    """An exact number in a float type."""
    precision, least, largest = FORMATS[kind]
    if isinstance(value, float) and not math.isfinite(value):
        return value
    sign = math.copysign(1.0, value) if isinstance(value, float) else 1.0
    exact = nearest(Fraction(value), precision, least, mode)
    if exact == 0:
        return math.copysign(0.0, value if value else sign)
    if abs(exact) > Fraction(largest):
        down = mode == "rz" or (mode == "rm" and exact > 0) or (mode == "rp" and exact < 0)
        return (largest if down else math.inf) * (1 if exact > 0 else -1)
    return float(exact)


for f in ("f32", "f64", "f16"):
    for k in ("u16", "s16", "u32", "s32", "u64", "s64", "u8", "s8"):
        for mode in ("rn", "rz", "rm", "rp"):
            case(f"cvt.{mode}.{f}.{k} %o, %a", k, f, lambda x, f=f, m=mode: to_float(x, f, m))
for a, b in (("f64", "f32"), ("f32", "f16"), ("f64", "f16")):
    for mode in ("rn", "rz", "rm", "rp"):
        case(f"cvt.{mode}.{b}.{a} %o, %a", a, b, lambda x, b=b, m=mode: to_float(x, b, m))
for a, b in (("f32", "f64"), ("f16", "f32"), ("f16", "f64")):
    case(f"cvt.{b}.{a} %o, %a", a, b, lambda x: x)
for f in ("f32", "f64", "f16"):
    for mode, rule in ROUND.items():
        case(
            f"cvt.{mode}.{f}.{f} %o, %a",
            f,
            f,
            lambda x, r=rule: math.copysign(r(Fraction(x)), x) if math.isfinite(x) else x,
        )
    case(f"cvt.sat.{f}.{f} %o, %a", f, f, lambda x: 0.0 if math.isnan(x) or x <= 0 else min(x, 1.0))


# --- floats --------------------------------------------------------------------------------------
def arithmetic(rule, kind, mode, name=""):
    def result(*row):
        if not all(map(math.isfinite, row)):
            with np.errstate(all="ignore"):
                return float(rule(*map(np.float64, row)))
        exact = rule(*map(Fraction, row))
        if exact == 0:  # its sign
            sign = [math.copysign(1, value) for value in row]
            if name == "mul":
                return math.copysign(0.0, sign[0] * sign[1])
            first = sign[0] * sign[1] if name == "fma" else sign[0]
            last = -sign[-1] if name == "sub" else sign[-1]
            zeros = not any(map(bool, row[:1])) or (name == "fma" and not row[1])
            agree = zeros and not row[-1] and first == last
            return math.copysign(0.0, first if agree else -1 if mode == "rm" else 1)
        return to_float(exact, kind, mode)

    return result


def quotient(kind, mode):
    def result(a, b):
        if not (math.isfinite(a) and math.isfinite(b)) or b == 0:
            with np.errstate(all="ignore"):
                return float(np.float64(a) / np.float64(b))
        exact = Fraction(a) / Fraction(b)
        if exact == 0:
            return math.copysign(0.0, a) * math.copysign(1.0, b)
        return to_float(exact, kind, mode)

    return result


def root(a, kind, mode):
    if a < 0 or a == 0 or not math.isfinite(a):
        return math.nan if a < 0 else a
    whole = Fraction(a) * 4**1200  # a whole number: no float64 is below 2^-1074
    lower = math.isqrt(whole.numerator)
    between = Fraction(1, 2) if lower * lower != whole.numerator else 0
    return to_float((lower + between) / 2**1200, kind, mode)


RULES = (
    ("add", 2, lambda a, b: a + b),
    ("sub", 2, lambda a, b: a - b),
    ("mul", 2, lambda a, b: a * b),
    ("fma", 3, lambda a, b, c: a * b + c),
)
for f in ("f32", "f64"):
    for mode in ("rn", "rz", "rm", "rp"):
        for name, count, rule in RULES:
            letters = ", ".join(("%a", "%b", "%c")[:count])
            case(
                f"{name}.{mode}.{f} %o, {letters}", (f,) * count, f, arithmetic(rule, f, mode, name)
            )
        case(f"div.{mode}.{f} %o, %a, %b", (f, f), f, quotient(f, mode))
        case(f"rcp.{mode}.{f} %o, %a", f, f, lambda a, f=f, m=mode: quotient(f, m)(1.0, a))
        case(f"sqrt.{mode}.{f} %o, %a", f, f, lambda a, f=f, m=mode: root(a, f, m))
for f in ("f16",):
    for name, count, rule in RULES:
        letters = ", ".join(("%a", "%b", "%c")[:count])
        case(f"{name}.rn.{f} %o, {letters}", (f,) * count, f, arithmetic(rule, f, "rn", name))


ties = np.float32(1) + np.arange(THREADS, dtype="f4") * np.float32(2.0**-23)
halves = np.where(np.arange(THREADS) % 2, 2.0**-24, -(2.0**-24)).astype("f4")
tiny = np.where(np.arange(THREADS) % 3, 2.0**-80, -(2.0**-80)).astype("f4") * (
    np.arange(THREADS) % 5 != 0
)
for number in (1.0, 3.0):  # sums on a tie, that what is far below decides
    case(
        f"fma.rn.f32 %o, %a, 0f{np.float32(number).view('u4'):08X}, %b",
        "f32 f32",
        "f32",
        lambda a, b, n=number: arithmetic(RULES[3][2], "f32", "rn", "fma")(a, n, b),
        values=(ties, halves),
    )
case(
    "fma.rn.f32 %o, %a, %b, %c",
    "f32 f32 f32",
    "f32",
    arithmetic(RULES[3][2], "f32", "rn", "fma"),
    values=(ties, np.float32(1) + halves, tiny),
)


# --- more floats ---------------------------------------------------------------------------------
def bits_of(x, kind):
    return int(np.array(x, storage(kind)).view(f"u{size(kind)}"))


def smaller(a, b, nan, largest=False):
    if math.isnan(a) or math.isnan(b):
        return math.nan if nan else b if math.isnan(a) else a
    if a == b == 0:
        negative = math.copysign(1, a) < 0 if largest else False
        both = (math.copysign(1, a) < 0, math.copysign(1, b) < 0)
        return (
            -0.0
            if (all(both) if largest else any(both))
            else 0.0
            if not negative or not all(both)
            else -0.0
        )
    return max(a, b) if largest else min(a, b)


def flushed(x):
    return math.copysign(0.0, x) if abs(x) < 2.0**-126 else x


for f in ("f32", "f64", "f16"):
    case(f"neg.{f} %o, %a", f, f, lambda a: -a)
    case(f"abs.{f} %o, %a", f, f, abs)
    for name in ("min", "max"):
        case(
            f"{name}.{f} %o, %a, %b",
            (f, f),
            f,
            lambda a, b, n=name: smaller(a, b, False, n == "max"),
        )
        if f != "f64":
            case(
                f"{name}.NaN.{f} %o, %a, %b",
                (f, f),
                f,
                lambda a, b, n=name: smaller(a, b, True, n == "max"),
            )

    if f != "f16":
        case(f"copysign.{f} %o, %a, %b", (f, f), f, lambda a, b: math.copysign(b, a))
        for word, test in (
            ("finite", math.isfinite),
            ("infinite", math.isinf),
            ("number", lambda x: not math.isnan(x)),
            ("notanumber", math.isnan),
        ):
            case(f"testp.{word}.{f} %o, %a", f, "pred", test)
        least = 2.0**-126 if f == "f32" else 2.0**-1022
        case(
            f"testp.normal.{f} %o, %a",
            f,
            "pred",
            lambda x, m=least: x == 0 or (math.isfinite(x) and abs(x) >= m),
        )
        case(f"testp.subnormal.{f} %o, %a", f, "pred", lambda x, m=least: 0 < abs(x) < m)
    for name, rule in (
        ("eq", "a == b"),
        ("ne", "a < b or a > b"),
        ("lt", "a < b"),
        ("le", "a <= b"),
        ("gt", "a > b"),
        ("ge", "a >= b"),
    ):
        ordered = eval(f"lambda a, b: {rule}")
        case(f"setp.{name}.{f} %o, %a, %b", (f, f), "pred", ordered)
        case(
            f"setp.{name}u.{f} %o, %a, %b",
            (f, f),
            "pred",
            lambda a, b, r=ordered: r(a, b) or a != a or b != b,
        )
    case(f"setp.num.{f} %o, %a, %b", (f, f), "pred", lambda a, b: a == a and b == b)
    case(f"setp.nan.{f} %o, %a, %b", (f, f), "pred", lambda a, b: a != a or b != b)
for name, count, rule in RULES:
    letters = ", ".join(("%a", "%b", "%c")[:count])

    def with_flush(*row, r=rule, n=name):
        return flushed(arithmetic(r, "f32", "rn", n)(*map(flushed, row)))

    case(f"{name}.rn.ftz.f32 %o, {letters}", ("f32",) * count, "f32", with_flush)

    def with_sat(*row, r=rule, n=name):
        x = arithmetic(r, "f32", "rn", n)(*row)
        return 0.0 if math.isnan(x) or x <= 0 else min(x, 1.0)

    case(f"{name}.rn.sat.f32 %o, {letters}", ("f32",) * count, "f32", with_sat)
case(
    "min.xorsign.abs.f32 %o, %a, %b",
    "f32 f32",
    "f32",
    lambda a, b: (
        smaller(abs(a), abs(b), False)
        * (-1 if (math.copysign(1, a) < 0) != (math.copysign(1, b) < 0) else 1)
    ),
    "sm_90",
)
case(
    "max.xorsign.abs.f32 %o, %a, %b",
    "f32 f32",
    "f32",
    lambda a, b: (
        smaller(abs(a), abs(b), False, True)
        * (-1 if (math.copysign(1, a) < 0) != (math.copysign(1, b) < 0) else 1)
    ),
    "sm_90",
)


def as_halves(word):
    return [float(x) for x in np.array([word], "u4").view("f2")]


def half_bits(x):
    with np.errstate(over="ignore"):
        return int(np.array(x, "f8").astype("f2").view("u2"))


def brain(x):
    """bf16 bits of a float, to the nearest."""
    if math.isnan(x):
        return 0x7FFF
    bits = int(np.float32(x).view("u4"))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def as_brains(word):
    return [
        float(np.array(word >> s & 0xFFFF, "u4").view("u4").astype("u4") * 0)
        + float((np.array([(word >> s & 0xFFFF) << 16], "u4")).view("f4")[0])
        for s in (0, 16)
    ]


def packed(rule, unpack, pack):
    def result(*words):
        return sum(
            pack(rule(*row)) << 16 * at
            for at, row in enumerate(zip(*map(unpack, words), strict=True))
        )

    return result


finite_pairs = (np.random.default_rng(3).normal(size=(4, 2 * THREADS)) * 8).astype("f2").view("u4")
brain_pairs = [
    np.array(
        [brain(x) for x in np.random.default_rng(9 + k).normal(size=2 * THREADS) * 8], "u2"
    ).view("u4")
    for k in range(3)
]
for name, count, rule in RULES:
    letters = ", ".join(("%a", "%b", "%c")[:count])
    case(
        f"{name}.rn.f16x2 %o, {letters}",
        ("b32",) * count,
        "b32",
        packed(arithmetic(rule, "f16", "rn", name), as_halves, half_bits),
        "sm_90",
        tuple(finite_pairs[:count]),
    )
    case(
        f"{name}.rn.bf16x2 %o, {letters}",
        ("b32",) * count,
        "b32",
        packed(
            lambda *row, r=rule: brain(
                to_float(nearest(r(*map(Fraction, row)), 8, -133, "rn"), "f64")
            ),
            as_brains,
            lambda x: x,
        ),
        "sm_90",
        tuple(brain_pairs[:count]),
    )
for name, pick in (("min", min), ("max", max)):
    case(
        f"{name}.f16x2 %o, %a, %b",
        "b32 b32",
        "b32",
        packed(pick, as_halves, half_bits),
        "sm_80",
        tuple(finite_pairs[:2]),
    )
    case(
        f"{name}.bf16x2 %o, %a, %b",
        "b32 b32",
        "b32",
        packed(lambda a, b, p=pick: brain(p(a, b)), as_brains, lambda x: x),
        "sm_80",
        tuple(brain_pairs[:2]),
    )
case("neg.f16x2 %o, %a", "b32", "b32", lambda a: a ^ 0x80008000, values=(finite_pairs[0],))
case("abs.f16x2 %o, %a", "b32", "b32", lambda a: a & 0x7FFF7FFF, values=(finite_pairs[0],))
case("neg.bf16x2 %o, %a", "b32", "b32", lambda a: a ^ 0x80008000, values=(brain_pairs[0],))
case("abs.bf16x2 %o, %a", "b32", "b32", lambda a: a & 0x7FFF7FFF, values=(brain_pairs[0],))
case(
    "fma.rn.relu.f16x2 %o, %a, %b, %c",
    "b32 b32 b32",
    "b32",
    packed(lambda *r: max(arithmetic(RULES[3][2], "f16", "rn")(*r), 0.0), as_halves, half_bits),
    "sm_80",
    tuple(finite_pairs[:3]),
)
case(
    "set.lt.u32.f16x2 %o, %a, %b",
    "b32 b32",
    "b32",
    packed(lambda a, b: 0xFFFF if a < b else 0, as_halves, lambda x: x),
    "sm_80",
    tuple(finite_pairs[:2]),
)
case(
    "set.ge.f16x2.f16x2 %o, %a, %b",
    "b32 b32",
    "b32",
    packed(lambda a, b: 0x3C00 if a >= b else 0, as_halves, lambda x: x),
    "sm_80",
    tuple(finite_pairs[:2]),
)
usual = (np.random.default_rng(8).normal(size=(2, THREADS)) * 30).astype("f4")
case(
    "cvt.rn.f16x2.f32 %o, %a, %b",
    "f32 f32",
    "b32",
    lambda a, b: half_bits(a) << 16 | half_bits(b),
    values=tuple(usual),
)
case(
    "cvt.rz.f16x2.f32 %o, %a, %b",
    "f32 f32",
    "b32",
    lambda a, b: half_bits(to_float(a, "f16", "rz")) << 16 | half_bits(to_float(b, "f16", "rz")),
    values=tuple(usual),
)
case(
    "cvt.rn.relu.f16x2.f32 %o, %a, %b",
    "f32 f32",
    "b32",
    lambda a, b: half_bits(max(a, 0.0)) << 16 | half_bits(max(b, 0.0)),
    values=tuple(usual),
)
case("cvt.rn.bf16x2.f32 %o, %a, %b", "f32 f32", "b32", lambda a, b: brain(a) << 16 | brain(b))
case(
    "cvt.rz.bf16x2.f32 %o, %a, %b",
    "f32 f32",
    "b32",
    lambda a, b: bits_of(a, "f32") >> 16 << 16 | bits_of(b, "f32") >> 16,
    values=tuple(usual),
)
case("cvt.rn.bf16.f32 %o, %a", "f32", "b16", brain)
case("cvt.rz.bf16.f32 %o, %a", "f32", "b16", lambda a: bits_of(a, "f32") >> 16, values=(usual[0],))
case("cvt.f32.bf16 %o, %a", "b16", "f32", lambda a: float(np.array([a << 16], "u4").view("f4")[0]))
case(
    "cvt.rna.tf32.f32 %o, %a",
    "f32",
    "b32",
    lambda a: bits_of(a, "f32") + 0x1000 & ~0x1FFF,
    values=(usual[0],),
)
case(
    "cvt.pack.sat.s16.s32 %o, %a, %b",
    "s32 s32",
    "b32",
    lambda a, b: (clamped(a, "s16") & 0xFFFF) << 16 | clamped(b, "s16") & 0xFFFF,
)
case(
    "cvt.pack.sat.u16.s32 %o, %a, %b",
    "s32 s32",
    "b32",
    lambda a, b: clamped(a, "u16") << 16 | clamped(b, "u16"),
)
for k in ("u8", "s8"):
    case(
        f"cvt.pack.sat.{k}.s32.b32 %o, %a, %b, %c",
        "s32 s32 b32",
        "b32",
        lambda a, b, c, k=k: (c & 0xFFFF) << 16 | (clamped(a, k) & 255) << 8 | clamped(b, k) & 255,
    )

# --- approximations: near, by the manual's bounds ------------------------------------------------


def near(text, rule, column, relative, absolute=0.0, kind="f32"):
    NEAR[text] = relative, absolute
    case(text, kind, kind, rule, "sm_90", (column,))


some = np.linspace(-20, 20, THREADS).astype("f4")
positive = np.geomspace(1e-30, 1e30, THREADS).astype("f4")
for ftz in ("", ".ftz"):
    near(f"ex2.approx{ftz}.f32 %o, %a", lambda x: 2.0**x, some, 2.0**-22)
    near(f"lg2.approx{ftz}.f32 %o, %a", math.log2, positive, 2.0**-21, 2.0**-20)
    near(f"sin.approx{ftz}.f32 %o, %a", math.sin, some / 7, 0, 2.0**-20)
    near(f"cos.approx{ftz}.f32 %o, %a", math.cos, some / 7, 0, 2.0**-20)
    near(f"rcp.approx{ftz}.f32 %o, %a", lambda x: 1 / x, positive, 2.0**-23)
    near(f"rsqrt.approx{ftz}.f32 %o, %a", lambda x: x**-0.5, positive, 2.0**-22)
    near(f"sqrt.approx{ftz}.f32 %o, %a", math.sqrt, positive, 2.0**-22)
near("tanh.approx.f32 %o, %a", math.tanh, some, 2.0**-10)
near("rcp.approx.ftz.f64 %o, %a", lambda x: 1 / x, positive.astype("f8"), 2.0**-19, 0.0, "f64")
near("rsqrt.approx.f64 %o, %a", lambda x: x**-0.5, positive.astype("f8"), 2.0**-19, 0.0, "f64")
near("rsqrt.approx.ftz.f64 %o, %a", lambda x: x**-0.5, positive.astype("f8"), 2.0**-19, 0.0, "f64")
near(
    "ex2.approx.f16 %o, %a",
    lambda x: 2.0**x,
    np.linspace(-6, 6, THREADS).astype("f2"),
    2.0**-9,
    0.0,
    "f16",
)
near(
    "tanh.approx.f16 %o, %a",
    math.tanh,
    np.linspace(-6, 6, THREADS).astype("f2"),
    2.0**-9,
    0.0,
    "f16",
)
for text in (
    "div.approx.f32 %o, %a, %b",
    "div.full.f32 %o, %a, %b",
    "div.full.ftz.f32 %o, %a, %b",
    "div.approx.ftz.f32 %o, %a, %b",
):
    NEAR[text] = 2.0**-21, 0.0
    case(
        text,
        "f32 f32",
        "f32",
        lambda a, b: a / b,
        "sm_80",
        (some, np.linspace(1, 9, THREADS).astype("f4")),
    )
