# ruff: noqa: E501 - tables
"""Integer and bit instructions, with what each gives: see `isa`."""

from __future__ import annotations

import numpy as np
from isa import THREADS, awkward, case, clamped, divided, nonzero, size, wrapped

INTS = ("u16", "s16", "u32", "s32", "u64", "s64")
for k in INTS:
    n = 8 * size(k)
    case(f"add.{k} %o, %a, %b", (k, k), k, lambda a, b: a + b)
    case(f"sub.{k} %o, %a, %b", (k, k), k, lambda a, b: a - b)
    case(f"mul.lo.{k} %o, %a, %b", (k, k), k, lambda a, b: a * b)
    case(f"mul.hi.{k} %o, %a, %b", (k, k), k, lambda a, b, n=n: a * b >> n)
    case(f"mad.lo.{k} %o, %a, %b, %c", (k, k, k), k, lambda a, b, c: a * b + c)
    case(f"mad.hi.{k} %o, %a, %b, %c", (k, k, k), k, lambda a, b, c, n=n: (a * b >> n) + c)
    case(f"div.{k} %o, %a, %b", (k, k), k, divided, values=(awkward(k, THREADS, 3), nonzero(k)))
    case(
        f"rem.{k} %o, %a, %b",
        (k, k),
        k,
        lambda a, b: a - b * divided(a, b),
        values=(awkward(k, THREADS, 3), nonzero(k)),
    )
    case(f"min.{k} %o, %a, %b", (k, k), k, min)
    case(f"max.{k} %o, %a, %b", (k, k), k, max)
    case(f"sad.{k} %o, %a, %b, %c", (k, k, k), k, lambda a, b, c: c + abs(a - b))
    if n < 64:
        w = f"{k[0]}{2 * n}"
        case(f"mul.wide.{k} %o, %a, %b", (k, k), w, lambda a, b: a * b)
        case(f"mad.wide.{k} %o, %a, %b, %c", (k, k, w), w, lambda a, b, c: a * b + c)
    if k[0] == "s":
        case(f"neg.{k} %o, %a", k, k, lambda a: -a)
        case(f"abs.{k} %o, %a", k, k, abs)
    for name, rule in (
        ("eq", "=="),
        ("ne", "!="),
        ("lt", "<"),
        ("le", "<="),
        ("gt", ">"),
        ("ge", ">="),
    ):
        test = eval(f"lambda a, b: a {rule} b")
        case(f"setp.{name}.{k} %o, %a, %b", (k, k), "pred", test)
    case(f"set.lt.u32.{k} %o, %a, %b", (k, k), "u32", lambda a, b: -1 if a < b else 0)
    case(f"set.ge.f32.{k} %o, %a, %b", (k, k), "f32", lambda a, b: 1.0 if a >= b else 0.0)
    case(f"setp.lt.and.{k} %o, %a, %b, %c", (k, k, "pred"), "pred", lambda a, b, c: a < b and c)
    case(f"setp.lt.or.{k} %o, %a, %b, !%c", (k, k, "pred"), "pred", lambda a, b, c: a < b or not c)
    case(
        f"setp.ne.xor.{k} %o, %a, %b, %c",
        (k, k, "pred"),
        "pred",
        lambda a, b, c: (a != b) != bool(c),
    )
    case(
        f"shr.{k} %o, %a, %b",
        (k, "u32"),
        k,
        lambda a, b: a >> min(b, 200),
        values=(awkward(k, THREADS, 1), np.arange(THREADS) % 70),
    )
    case(f"selp.{k} %o, %a, %b, %c", (k, k, "pred"), k, lambda a, b, c: a if c else b)
    case(f"slct.{k}.s32 %o, %a, %b, %c", (k, k, "s32"), k, lambda a, b, c: a if c >= 0 else b)
    case(f"slct.{k}.f32 %o, %a, %b, %c", (k, k, "f32"), k, lambda a, b, c: a if c >= 0 else b)
for k in ("u16", "u32", "u64"):
    for name, rule in (("lo", "<"), ("ls", "<="), ("hi", ">"), ("hs", ">=")):
        case(f"setp.{name}.{k} %o, %a, %b", (k, k), "pred", eval(f"lambda a, b: a {rule} b"))
for k in ("b16", "b32", "b64"):
    n = 8 * size(k)
    case(f"and.{k} %o, %a, %b", (k, k), k, lambda a, b: a & b)
    case(f"or.{k} %o, %a, %b", (k, k), k, lambda a, b: a | b)
    case(f"xor.{k} %o, %a, %b", (k, k), k, lambda a, b: a ^ b)
    case(f"not.{k} %o, %a", k, k, lambda a: ~a)
    case(f"cnot.{k} %o, %a", k, k, lambda a: int(a == 0))
    case(
        f"shl.{k} %o, %a, %b",
        (k, "u32"),
        k,
        lambda a, b: a << b,
        values=(awkward(k, THREADS, 1), np.arange(THREADS) % 70),
    )
    case(f"shl.{k} %o, %a, {n - 1}", k, k, lambda a, n=n: a << n - 1)
    case(f"shr.{k} %o, %a, {n + 3}", k, k, lambda a: 0)
    case(f"selp.{k} %o, %a, 5, %b", (k, "pred"), k, lambda a, c: a if c else 5)
for op, rule in (("and", "a and b"), ("or", "a or b"), ("xor", "a != b")):
    case(f"{op}.pred %o, %a, %b", "pred pred", "pred", eval(f"lambda a, b: {rule}"))
case("not.pred %o, %a", "pred", "pred", lambda a: not a)
for k in ("b32", "b64"):
    n = 8 * size(k)
    case(f"popc.{k} %o, %a", k, "u32", lambda a: a.bit_count())
    case(f"clz.{k} %o, %a", k, "u32", lambda a, n=n: n - a.bit_length())
    case(f"brev.{k} %o, %a", k, k, lambda a, n=n: int(f"{a:0{n}b}"[::-1], 2))


def found_top(a, n):
    return (a if a >= 0 else ~a).bit_length() - 1


def field(a, position, length, kind):
    bits = 8 * size(kind)
    position, length = position & 255, length & 255
    if not length:
        return 0
    inside = a >> position & (1 << length) - 1
    if position >= bits:
        inside = ((1 << length) - 1 if a < 0 else 0) & ((1 << bits) - 1)
    top = min(position + length - 1, bits - 1)
    if kind[0] == "s" and (a >> top & 1) and length < bits:
        inside |= -1 << length if position + length <= bits else 0
        if position + length > bits:
            inside = a >> min(position, bits - 1)
    return inside


def inserted(a, b, position, length, n):
    position, length = position & 255, length & 255
    mask = ((1 << length) - 1) << position & (1 << n) - 1
    return b & ~mask | a << position & mask


lengths = np.arange(THREADS) * 7 % 70
for k in ("u32", "s32", "u64", "s64"):
    n = 8 * size(k)
    case(f"bfind.{k} %o, %a", k, "u32", lambda a, n=n: found_top(a, n))
    case(
        f"bfind.shiftamt.{k} %o, %a",
        k,
        "u32",
        lambda a, n=n: -1 if found_top(a, n) < 0 else n - 1 - found_top(a, n),
    )
    case(
        f"bfe.{k} %o, %a, %b, %c",
        (k, "u32", "u32"),
        k,
        lambda a, p, c, k=k: field(a, p, c, k),
        values=(awkward(k, THREADS, 1), np.arange(THREADS) % 67, lengths),
    )
for k in ("b32", "b64"):
    n = 8 * size(k)
    case(
        f"bfi.{k} %o, %a, %b, %c, 9",
        (k, k, "u32"),
        k,
        lambda a, b, p, n=n: inserted(a, b, p, 9, n),
        values=(awkward(k, THREADS, 1), awkward(k, THREADS, 2), np.arange(THREADS) % 67),
    )
    case(
        f"bfi.{k} %o, %a, %b, 3, %c",
        (k, k, "u32"),
        k,
        lambda a, b, c, n=n: inserted(a, b, 3, c, n),
        values=(awkward(k, THREADS, 1), awkward(k, THREADS, 2), lengths),
    )
for k in ("u32", "s32"):
    case(
        "bmsk.clamp.b32 %o, %a, %b",
        "u32 u32",
        "u32",
        lambda a, b: ((1 << b) - 1) << a if a < 32 else 0,
        values=(np.arange(THREADS) % 40, lengths),
    ) if k == "u32" else None
    case(
        "bmsk.wrap.b32 %o, %a, %b",
        "u32 u32",
        "u32",
        lambda a, b: ((1 << (b & 31)) - 1) << (a & 31),
        values=(np.arange(THREADS) % 40, lengths),
    ) if k == "u32" else None
    for mode in ("wrap", "clamp"):

        def extended(a, b, mode=mode, k=k):
            b = b & 31 if mode == "wrap" else b
            if b >= 32:
                return a
            if b == 0:
                return 0
            low = a & (1 << b) - 1
            return low - (1 << b) if k[0] == "s" and low >> b - 1 else low

        case(
            f"szext.{mode}.{k} %o, %a, %b",
            (k, "u32"),
            k,
            extended,
            values=(awkward(k, THREADS, 1), np.arange(THREADS) % 40),
        )


def nth_set(mask, base, offset):
    if base > 31:
        return 0xFFFFFFFF
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    step, left, pos = (1, offset, base) if offset > 0 else (-1, -offset, base)
    while 0 <= pos < 32:
        if mask >> pos & 1:
            left -= 1
            if not left:
                return pos
        pos += step
    return 0xFFFFFFFF


case(
    "fns.b32 %o, %a, %b, %c",
    "u32 u32 s32",
    "u32",
    nth_set,
    values=(awkward("u32", THREADS, 1), np.arange(THREADS) % 32, np.arange(THREADS) % 9 - 4),
)
case("add.sat.s32 %o, %a, %b", "s32 s32", "s32", lambda a, b: clamped(a + b, "s32"))
case("sub.sat.s32 %o, %a, %b", "s32 s32", "s32", lambda a, b: clamped(a - b, "s32"))
case(
    "mad.hi.sat.s32 %o, %a, %b, %c",
    "s32 s32 s32",
    "s32",
    lambda a, b, c: clamped((a * b >> 32) + c, "s32"),
)


def low24(a, kind):
    a &= 0xFFFFFF
    return a - (1 << 24) if kind[0] == "s" and a >> 23 else a


for k in ("u32", "s32"):
    case(f"mul24.lo.{k} %o, %a, %b", (k, k), k, lambda a, b, k=k: low24(a, k) * low24(b, k))
    case(f"mul24.hi.{k} %o, %a, %b", (k, k), k, lambda a, b, k=k: low24(a, k) * low24(b, k) >> 16)
    case(
        f"mad24.lo.{k} %o, %a, %b, %c",
        (k, k, k),
        k,
        lambda a, b, c, k=k: low24(a, k) * low24(b, k) + c,
    )
    case(
        f"mad24.hi.{k} %o, %a, %b, %c",
        (k, k, k),
        k,
        lambda a, b, c, k=k: (low24(a, k) * low24(b, k) >> 16) + c,
    )
for side in "lr":
    for mode in ("wrap", "clamp"):

        def funnel(a, b, c, side=side, mode=mode):
            c = c & 31 if mode == "wrap" else min(c, 32)
            both = b << 32 | a
            return both << c >> 32 if side == "l" else both >> c

        case(
            f"shf.{side}.{mode}.b32 %o, %a, %b, %c",
            "b32 b32 u32",
            "b32",
            funnel,
            values=(
                awkward("b32", THREADS, 1),
                awkward("b32", THREADS, 2),
                np.arange(THREADS) % 70,
            ),
        )


def permuted(a, b, c, mode=""):
    bytes_ = [(b << 32 | a) >> 8 * i & 255 for i in range(8)]
    s = c & 3
    table = {
        "f4e": [s, s + 1, s + 2, s + 3], "b4e": [s, (s - 1) % 8, (s - 2) % 8, (s - 3) % 8], "rc8": [s] * 4,
        "ecl": [max(i, s) for i in range(4)], "ecr": [min(i, s) for i in range(4)],
        "rc16": [2 * (s & 1), 2 * (s & 1) + 1] * 2,
    }.get(mode)  # fmt: skip
    if table:
        return sum(bytes_[pick] << 8 * i for i, pick in enumerate(table))
    out = 0
    for i in range(4):
        pick = c >> 4 * i & 15
        byte = bytes_[pick & 7]
        out |= (255 if byte >> 7 else 0) << 8 * i if pick & 8 else byte << 8 * i
    return out


case("prmt.b32 %o, %a, %b, %c", "b32 b32 b32", "b32", permuted)
for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
    case(
        f"prmt.b32.{mode} %o, %a, %b, %c",
        "b32 b32 b32",
        "b32",
        lambda a, b, c, mode=mode: permuted(a, b, c, mode),
    )
for table in (0x96, 0xE8, 0x01, 0xC0, 0xB2):

    def by_table(a, b, c, table=table):
        return sum(
            (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i
            for i in range(32)
        )

    case(f"lop3.b32 %o, %a, %b, %c, {table}", "b32 b32 b32", "b32", by_table)


def dot(a, b, c, kinds, width, half=0):
    def parts(word, signed, n, bits):
        found = [word >> bits * i & (1 << bits) - 1 for i in range(n)]
        return [p - (1 << bits) if signed and p >> bits - 1 else p for p in found]

    if width == 4:
        x, y = parts(a, kinds[0] == "s", 4, 8), parts(b, kinds[1] == "s", 4, 8)
    else:
        x, y = (
            parts(a, kinds[0] == "s", 2, 16),
            parts(b, kinds[1] == "s", 4, 8)[2 * half : 2 * half + 2],
        )
    return c + sum(p * q for p, q in zip(x, y, strict=True))


for ka in ("u32", "s32"):
    for kb in ("u32", "s32"):
        kc = "s32" if "s" in ka + kb else "u32"
        case(
            f"dp4a.{ka}.{kb} %o, %a, %b, %c",
            ("b32", "b32", kc),
            kc,
            lambda a, b, c, ks=(ka[0], kb[0]): dot(a, b, c, ks, 4),
        )
        for half, word in enumerate(("lo", "hi")):
            case(
                f"dp2a.{word}.{ka}.{kb} %o, %a, %b, %c",
                ("b32", "b32", kc),
                kc,
                lambda a, b, c, ks=(ka[0], kb[0]), h=half: dot(a, b, c, ks, 2, h),
            )

# carries
for k, n in (("u32", 32), ("u64", 64)):
    case(
        f"add.cc.{k} %o, %a, %b; addc.{k} %o, %b, 0", (k, k), k, lambda a, b, n=n: b + (a + b >> n)
    )
    case(f"sub.cc.{k} %o, %a, %b; subc.{k} %o, %a, 0", (k, k), k, lambda a, b: a - (a < b))
    case(
        f"add.cc.{k} %o, %a, %b; addc.cc.{k} %o, %b, %c; addc.{k} %o, 0, 0",
        (k, k, k),
        k,
        lambda a, b, c, n=n: b + c + (a + b >> n) >> n,
    )
    case(
        f"mad.lo.cc.{k} %o, %a, %b, %c; madc.hi.{k} %o, %a, %b, 0",
        (k, k, k),
        k,
        lambda a, b, c, n=n: a * b + c >> n,
    )
    case(
        f"sub.cc.{k} %o, %a, %b; subc.cc.{k} %o, %b, %c; subc.{k} %o, 0, 0",
        (k, k, k),
        k,
        lambda a, b, c: -((b - c - (a < b)) < 0),
    )
    case(f"sub.cc.{k} %o, %a, %b; addc.{k} %o, 0, 0", (k, k), k, lambda a, b: a >= b)
    case(
        f"add.cc.{k} %o, %a, %b; subc.{k} %o, %c, 1",
        (k, k, k),
        k,
        lambda a, b, c, n=n: c - 1 - (1 - (a + b >> n)),
    )
# packed 16-bit integers
for k in ("u16x2", "s16x2"):

    def pairs(function, k=k):
        def rule(*words):
            halves = [[wrapped(w >> s & 0xFFFF, k[0] + "16") for w in words] for s in (0, 16)]
            return sum((function(*h) & 0xFFFF) << 16 * i for i, h in enumerate(halves))

        return rule

    for name, function in (("add", lambda a, b: a + b), ("min", min), ("max", max)):
        case(f"{name}.{k} %o, %a, %b", "b32 b32", "b32", pairs(function), "sm_90")
case("min.relu.s32 %o, %a, %b", "s32 s32", "s32", lambda a, b: max(min(a, b), 0), "sm_90")
case("max.relu.s32 %o, %a, %b", "s32 s32", "s32", lambda a, b: max(a, b, 0), "sm_90")
case("min.s32.relu %o, %a, %b", "s32 s32", "s32", lambda a, b: max(min(a, b), 0), "sm_90")
case(
    "max.relu.s16x2 %o, %a, %b",
    "b32 b32",
    "b32",
    pairs(lambda a, b: max(a, b, 0), "s16x2"),
    "sm_90",
)
