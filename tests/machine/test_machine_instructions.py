# ruff: noqa: E501 - CUDA and PTX text
"""Single instructions against NumPy, through inline PTX compiled by NVRTC."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from polygen.machine import Launch, run

N = 128
RANDOM = np.random.default_rng(5)
BITS = RANDOM.integers(0, 2**32, (3, N), dtype=np.uint32)
BITS[:, :4] = [[0, 1, 0x80000000, 0xFFFFFFFF]] * 3
BITS[1, :4] = [0xFFFFFFFF, 0, 1, 0x80000000]
SMALL = RANDOM.integers(0, 40, (3, N)).astype(np.uint32)
FLOATS = RANDOM.standard_normal((3, N)).astype(np.float32) * 10
SPECIAL = FLOATS.copy()
SPECIAL[0, :8] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-41, 3e38, 2.5]
SPECIAL[1, :8] = [1.0, np.nan, np.inf, np.nan, 2.0, 1e-41, 3e38, -2.5]

KERNEL = """
extern "C" __global__ void k(const unsigned* a, const unsigned* b, const unsigned* c, unsigned* d) {
  int t = threadIdx.x; unsigned r = 0;
  unsigned x = a[t], y = b[t], z = c[t];
  asm volatile("%s" : "+r"(r) : "r"(x), "r"(y), "r"(z));
  d[t] = r;
}
"""


def execute(compile_ptx, text: str, a, b, c, arch: str = "sm_80") -> np.ndarray:
    arrays = [np.ascontiguousarray(one).view(np.uint32) for one in (a, b, c)]
    out = np.full(N, 0xDEADBEEF, np.uint32)
    ptx = compile_ptx(KERNEL % text.replace("\n", " "), arch)
    report = run(ptx, Launch((1, 1, 1), (N, 1, 1), 0, (*arrays, out)))
    assert report.ok, str(report)
    return report.arrays[3]


def u64(x):
    return x.astype(np.uint64)


def s64(x):
    return x.view(np.int32).astype(np.int64)


def low(x):
    return np.asarray(x).astype(np.int64).astype(np.uint64).astype(np.uint32)


def bfe_s32(a, pos, length):
    out = []
    for value, p, n in zip(a.view(np.int32).tolist(), pos.tolist(), length.tolist(), strict=True):
        p, n, bits = p & 255, n & 255, 0
        sign = 0 if n == 0 else (value >> min(p + n - 1, 31)) & 1
        for i in range(32):
            bit = (value >> (i + p)) & 1 if i < n and i + p <= 31 else sign
            bits |= bit << i
        out.append(bits)
    return np.array(out, np.uint32)


def prmt(a, b, c):
    out = []
    for x, y, s in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        data, value = x | y << 32, 0
        for i in range(4):
            pick = s >> 4 * i & 15
            byte = data >> 8 * (pick & 7) & 255
            if pick & 8:
                byte = 255 if byte & 128 else 0
            value |= byte << 8 * i
        out.append(value)
    return np.array(out, np.uint32)


def dp4a(a, b, c):
    total = c.view(np.int32).astype(np.int64)
    pairs = a.view(np.int8).reshape(-1, 4).astype(np.int64) * b.view(np.int8).reshape(-1, 4)
    return low(total + pairs.sum(1))


def bfind(a, b, c):
    return np.array([(int(x).bit_length() - 1) & 0xFFFFFFFF for x in a], np.uint32)


INTEGER = [
    ("dp4a.s32.s32 %0, %1, %2, %3;", dp4a),
    ("bfind.u32 %0, %1;", bfind),
    ("bfind.shiftamt.u32 %0, %1;", lambda a, b, c: np.where(a == 0, 0xFFFFFFFF, 31 - bfind(a, b, c).astype(np.int64))),
    ("sad.s32 %0, %1, %2, %3;", lambda a, b, c: low(s64(c) + np.abs(s64(a) - s64(b)))),
    ("mul24.lo.s32 %0, %1, %2;", lambda a, b, c: low((s64(a << np.uint32(8)) >> 8) * (s64(b << np.uint32(8)) >> 8))),
    ("add.u32 %0, %1, %2;", lambda a, b, c: a + b),
    ("sub.s32 %0, %1, %2;", lambda a, b, c: a - b),
    ("add.sat.s32 %0, %1, %2;", lambda a, b, c: low(np.clip(s64(a) + s64(b), -(2**31), 2**31 - 1))),
    ("mul.lo.s32 %0, %1, %2;", lambda a, b, c: a * b),
    ("mul.hi.u32 %0, %1, %2;", lambda a, b, c: low(u64(a) * u64(b) >> np.uint64(32))),
    ("mul.hi.s32 %0, %1, %2;", lambda a, b, c: low(s64(a) * s64(b) >> 32)),
    ("mad.lo.u32 %0, %1, %2, %3;", lambda a, b, c: a * b + c),
    ("{.reg .u64 w; mad.wide.u32 w, %1, %2, 5; shr.u64 w, w, 32; cvt.u32.u64 %0, w;}",
     lambda a, b, c: low(u64(a) * u64(b) + np.uint64(5) >> np.uint64(32))),
    ("{.reg .s64 w; mul.wide.s32 w, %1, %2; shr.s64 w, w, 32; cvt.u32.u64 %0, w;}",
     lambda a, b, c: low(s64(a) * s64(b) >> 32)),
    ("div.u32 %0, %1, %3;", lambda a, b, c: a // np.maximum(c, 1) if c.all() else None),
    ("min.s32 %0, %1, %2;", lambda a, b, c: low(np.minimum(s64(a), s64(b)))),
    ("max.u32 %0, %1, %2;", lambda a, b, c: np.maximum(a, b)),
    ("abs.s32 %0, %1;", lambda a, b, c: low(np.abs(s64(a)))),
    ("neg.s32 %0, %1;", lambda a, b, c: low(-s64(a))),
    ("and.b32 %0, %1, %2;", lambda a, b, c: a & b),
    ("not.b32 %0, %1;", lambda a, b, c: ~a),
    ("lop3.b32 %0, %1, %2, %3, 0x96;", lambda a, b, c: a ^ b ^ c),
    ("lop3.b32 %0, %1, %2, %3, 0xCA;", lambda a, b, c: (a & b) | (~a & c)),
    ("shl.b32 %0, %1, 7;", lambda a, b, c: a << np.uint32(7)),
    ("popc.b32 %0, %1;", lambda a, b, c: np.bitwise_count(a).astype(np.uint32)),
    ("clz.b32 %0, %1;", lambda a, b, c: np.array([32 - int(x).bit_length() for x in a], np.uint32)),
    ("brev.b32 %0, %1;", lambda a, b, c: np.array([int(f"{x:032b}"[::-1], 2) for x in a.tolist()], np.uint32)),
    ("prmt.b32 %0, %1, %2, %3;", prmt),
    ("prmt.b32 %0, %1, %2, 0x5410;", lambda a, b, c: (a & 0xFFFF) | (b << np.uint32(16))),
    ("{.reg .pred p; setp.lt.s32 p, %1, %2; selp.b32 %0, %1, %3, p;}",
     lambda a, b, c: np.where(s64(a) < s64(b), a, c)),
    ("{.reg .pred p, q; setp.ge.u32 q, %1, %3; setp.lo.and.u32 p, %1, %2, q; selp.u32 %0, 1, 2, p;}",
     lambda a, b, c: np.where((a < b) & (a >= c), 1, 2)),
    ("{.reg .pred p, q; setp.eq.u32 p|q, %1, %2; selp.u32 %0, 1, 2, q;}",
     lambda a, b, c: np.where(a == b, 2, 1)),
    ("slct.b32.s32 %0, %1, %2, %3;", lambda a, b, c: np.where(s64(c) >= 0, a, b)),
    ("set.lt.u32.s32 %0, %1, %2;", lambda a, b, c: np.where(s64(a) < s64(b), 0xFFFFFFFF, 0)),
    ("cvt.u32.u8 %0, %1;", lambda a, b, c: a & 255),
    ("cvt.s32.s8 %0, %1;", lambda a, b, c: low(a.astype(np.uint8).view(np.int8).astype(np.int64))),
    ("{.reg .s16 h; cvt.sat.s16.s32 h, %1; cvt.s32.s16 %0, h;}", lambda a, b, c: low(np.clip(s64(a), -32768, 32767))),
    ("{.reg .b16 h, l; mov.b32 {l, h}, %1; mov.b32 %0, {h, l};}", lambda a, b, c: a >> np.uint32(16) | a << np.uint32(16)),
    ("{.reg .b64 w; mov.b64 w, {%1, %2}; shr.u64 w, w, 8; mov.b64 {%0, _}, w;}",
     lambda a, b, c: a >> np.uint32(8) | b << np.uint32(24)),
    ("{.reg .pred p; setp.gt.u32 p, %1, %2; mov.b32 %0, %3; @p mov.b32 %0, %1; @!p add.u32 %0, %0, 1;}",
     lambda a, b, c: np.where(a > b, a, c + 1)),
    ("shf.l.wrap.b32 %0, %1, %2, %3;", lambda a, b, c: low((u64(b) << np.uint64(32) | u64(a)) << u64(c & 31) >> np.uint64(32))),
    ("shf.r.wrap.b32 %0, %1, %2, %3;", lambda a, b, c: low((u64(b) << np.uint64(32) | u64(a)) >> u64(c & 31))),
    ("shf.r.clamp.b32 %0, %1, %2, %3;", lambda a, b, c: low((u64(b) << np.uint64(32) | u64(a)) >> u64(np.minimum(c, 32)))),
]  # fmt: skip


@pytest.mark.parametrize("text, wanted", INTEGER, ids=[row[0][:40] for row in INTEGER])
def test_integer(compile_ptx, text, wanted):
    a, b, c = BITS
    if "div" in text:
        c = c | 1
    got = execute(compile_ptx, text, a, b, c)
    np.testing.assert_array_equal(got, np.asarray(wanted(a, b, c)).astype(np.uint32))


FIELDS = [
    ("bfe.u32 %0, %1, %2, %3;", lambda a, p, n: np.array(
        [(x >> q if q < 32 else 0) & ((1 << m) - 1) for x, q, m in zip(a.tolist(), p.tolist(), n.tolist(), strict=True)], np.uint64)),
    ("bfe.s32 %0, %1, %2, %3;", bfe_s32),
    ("bfi.b32 %0, %1, 0x12345678, %2, %3;", lambda a, p, n: np.array(
        [(0x12345678 & ~(((1 << m) - 1) << q) | (x & ((1 << m) - 1)) << q) & 0xFFFFFFFF
         for x, q, m in zip(a.tolist(), p.tolist(), n.tolist(), strict=True)], np.uint64)),
    ("shl.b32 %0, %1, %2;", lambda a, p, n: low(u64(a) << u64(p))),
    ("shr.u32 %0, %1, %2;", lambda a, p, n: low(u64(a) >> u64(p))),
    ("shr.s32 %0, %1, %2;", lambda a, p, n: low(s64(a) >> p.astype(np.int64))),
    ("{.reg .s32 d; sub.s32 d, %1, 20; add.s32 %0, %2, 1; rem.s32 %0, d, %0;}",
     lambda a, p, n: low(np.fmod(s64(a) - 20, p.astype(np.int64) + 1))),
    ("{.reg .s32 d; sub.s32 d, %1, 20; add.s32 %0, %2, 1; div.s32 %0, d, %0;}",
     lambda a, p, n: low(np.trunc((s64(a) - 20) / (p.astype(np.int64) + 1)))),
]  # fmt: skip


@pytest.mark.parametrize("text, wanted", FIELDS, ids=[row[0][:24] for row in FIELDS])
def test_fields_and_shifts(compile_ptx, text, wanted):
    a, p, n = SMALL if "div" in text or "rem" in text else (BITS[0], SMALL[1], SMALL[2])
    got = execute(compile_ptx, text, a, p, n)
    np.testing.assert_array_equal(got, wanted(a, p, n).astype(np.uint32))


def exact_fma(a, b, c):
    from fractions import Fraction

    out = []
    for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        value = Fraction(x) * Fraction(y) + Fraction(z)
        near = np.float32(float(value))
        best = min((near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))),
                   key=lambda v: (abs(Fraction(float(v)) - value), int(v.view(np.uint32)) & 1))  # fmt: skip
        out.append(best)
    return np.array(out, np.float32)


FLOATING = [
    ("add.f32 %0, %1, %2;", lambda a, b, c: a + b),
    ("mul.rn.f32 %0, %1, %2;", lambda a, b, c: a * b),
    ("fma.rn.f32 %0, %1, %2, %3;", exact_fma),
    ("div.rn.f32 %0, %1, %2;", lambda a, b, c: a / b),
    ("sqrt.rn.f32 %0, %1;", lambda a, b, c: np.sqrt(a)),
    ("rcp.rn.f32 %0, %1;", lambda a, b, c: np.float32(1) / a),
    ("neg.f32 %0, %1;", lambda a, b, c: -a),
    ("abs.f32 %0, %1;", lambda a, b, c: np.abs(a)),
    ("copysign.f32 %0, %1, %2;", lambda a, b, c: np.copysign(b, a)),
    ("add.sat.f32 %0, %1, %2;", lambda a, b, c: np.clip(a + b, 0, 1)),
    ("cvt.rni.f32.f32 %0, %1;", lambda a, b, c: np.rint(a)),
    ("cvt.rzi.f32.f32 %0, %1;", lambda a, b, c: np.trunc(a)),
    ("{.reg .s32 i; cvt.rzi.s32.f32 i, %1; cvt.rn.f32.s32 %0, i;}", lambda a, b, c: np.trunc(a)),
    ("{.reg .f64 w; cvt.f64.f32 w, %1; cvt.rn.f32.f64 %0, w;}", lambda a, b, c: a),
    ("{.reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.f32.f16 %0, h;}", lambda a, b, c: a.astype(np.float16).astype(np.float32)),
    ("{.reg .b16 h; cvt.rn.bf16.f32 h, %1; cvt.f32.bf16 %0, h;}",
     lambda a, b, c: a.astype(ml_dtypes.bfloat16).astype(np.float32)),
]  # fmt: skip


@pytest.mark.parametrize("text, wanted", FLOATING, ids=[row[0][:40] for row in FLOATING])
def test_floating(compile_ptx, text, wanted):
    a, b, c = FLOATS
    arch = "sm_90" if "cvt.f32.bf16" in text else "sm_80"
    if "sqrt" in text:
        a = np.abs(a)
    got = execute(compile_ptx, text, a, b, c, arch).view(np.float32)
    np.testing.assert_array_equal(got, wanted(a, b, c))


def test_fma_rounds_once_on_ties(compile_ptx):
    a = np.full(N, 1 + 2.0**-12, np.float32)
    c = (2.0 ** -np.arange(24, 24 + N)).clip(1e-30).astype(np.float32)
    c[1::2] *= -1
    got = execute(compile_ptx, "fma.rn.f32 %0, %1, %2, %3;", a, a, c).view(np.float32)
    np.testing.assert_array_equal(got, exact_fma(a, a, c))


def test_fma_rounds_once_on_ties_that_are_not_normal(compile_ptx):
    """A product just below half a step of the numbers it is added to, by less than float64 sees."""
    steps = np.r_[np.arange(1, 62), [2**23 - 1, 2**23 - 2, 2**22 + 1], -np.arange(1, 65)]
    c = (steps * 2.0**-149).astype(np.float32)
    a, b = (np.full(N, 2.0**-75 * (1 + sign * 2.0**-23), np.float32) for sign in (1, -1))
    got = execute(compile_ptx, "fma.rn.f32 %0, %1, %2, %3;", a, b, c).view(np.float32)
    np.testing.assert_array_equal(got, c)
    got = execute(compile_ptx, "fma.rn.f32 %0, %1, %2, %3;", -a, b, c).view(np.float32)
    np.testing.assert_array_equal(got, c)


@pytest.mark.parametrize("mode, toward", [("rm", -np.inf), ("rp", np.inf), ("rz", 0)])
def test_directed_rounding(compile_ptx, mode, toward):
    a, b, c = FLOATS
    got = execute(compile_ptx, f"mul.{mode}.f32 %0, %1, %2;", a, b, c).view(np.float32)
    exact = a.astype(np.float64) * b.astype(np.float64)
    if mode == "rm":
        assert (got <= exact).all()
    elif mode == "rp":
        assert (got >= exact).all()
    else:
        assert (np.abs(got) <= np.abs(exact)).all()
    assert (np.abs(got - exact) < np.spacing(np.abs(got)) * 1.0001).all()


COMPARE = [("eq", lambda a, b: a == b), ("ne", lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b)),
           ("lt", lambda a, b: a < b), ("ge", lambda a, b: a >= b),
           ("ltu", lambda a, b: ~(a >= b)), ("neu", lambda a, b: a != b),
           ("equ", lambda a, b: (a == b) | np.isnan(a) | np.isnan(b)),
           ("num", lambda a, b: ~np.isnan(a) & ~np.isnan(b)),
           ("nan", lambda a, b: np.isnan(a) | np.isnan(b))]  # fmt: skip


@pytest.mark.parametrize("name, wanted", COMPARE, ids=[row[0] for row in COMPARE])
def test_comparison_with_nan(compile_ptx, name, wanted):
    a, b, c = SPECIAL
    text = f"{{.reg .pred p; setp.{name}.f32 p, %1, %2; selp.u32 %0, 1, 0, p;}}"
    got = execute(compile_ptx, text, a, b, c)
    np.testing.assert_array_equal(got, wanted(a, b).astype(np.uint32))


def test_minimum_and_maximum_of_nan(compile_ptx):
    a, b, c = SPECIAL
    got = execute(compile_ptx, "max.f32 %0, %1, %2;", a, b, c).view(np.float32)
    np.testing.assert_array_equal(got, np.fmax(a, b))
    got = execute(compile_ptx, "min.NaN.f32 %0, %1, %2;", a, b, c).view(np.float32)
    np.testing.assert_array_equal(got, np.minimum(a, b))


@pytest.mark.parametrize("nan", ["", ".NaN"])
def test_zeros_have_an_order(compile_ptx, nan):
    """ "If values of both inputs are 0.0, then +0.0 > -0.0": the PTX manual on min and max."""
    a, b = (np.resize(np.array(signs, np.float32), N) for signs in ([0.0, -0.0], [-0.0] * 2))
    for first, second in ((a, b), (b, a)):
        got = execute(compile_ptx, f"max{nan}.f32 %0, %1, %2;", first, second, a).view(np.float32)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(a))
        got = execute(compile_ptx, f"min{nan}.f32 %0, %1, %2;", first, second, a).view(np.float32)
        assert np.signbit(got).all() and not got.any()


def test_subnormals_stay_unless_flushed(compile_ptx):
    a = np.full(N, 1e-41, np.float32)
    kept = execute(compile_ptx, "add.f32 %0, %1, %2;", a, a, a).view(np.float32)
    assert (kept == a + a).all() and kept[0] > 0
    flushed = execute(compile_ptx, "add.ftz.f32 %0, %1, %2;", a, a, a).view(np.float32)
    assert (flushed == 0).all()


APPROXIMATE = [("ex2.approx.ftz.f32", np.exp2), ("lg2.approx.f32", np.log2), ("rcp.approx.f32", lambda x: 1 / x),
               ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)), ("tanh.approx.f32", np.tanh),
               ("sin.approx.f32", np.sin), ("cos.approx.f32", np.cos), ("sqrt.approx.f32", np.sqrt)]  # fmt: skip


@pytest.mark.parametrize("name, function", APPROXIMATE, ids=[row[0] for row in APPROXIMATE])
def test_approximations(compile_ptx, name, function):
    a = np.linspace(0.1, 3, N).astype(np.float32)
    got = execute(compile_ptx, f"{name} %0, %1;", a, a, a).view(np.float32)
    np.testing.assert_allclose(got, function(a.astype(np.float64)), rtol=3e-6, atol=1e-6)


def test_packed_conversions(compile_ptx):
    a, b, c = SPECIAL
    half = execute(compile_ptx, "cvt.rn.f16x2.f32 %0, %1, %2;", a, b, c).view(np.float16)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(half[1::2], a.astype(np.float16))
        np.testing.assert_array_equal(half[0::2], b.astype(np.float16))
    brain = execute(compile_ptx, "cvt.rn.bf16x2.f32 %0, %1, %2;", a, b, c).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(
        brain[1::2].astype(np.float32), a.astype(ml_dtypes.bfloat16).astype(np.float32)
    )
    got = execute(compile_ptx, "cvt.rna.tf32.f32 %0, %1;", FLOATS[0], b, c).view(np.float32)
    assert (np.abs(got - FLOATS[0]) <= np.abs(FLOATS[0]) * 2.0**-11).all()
    assert ((got.view(np.uint32) & 0x1FFF) == 0).all()


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_eight_bit_conversions(compile_ptx, kind):
    a, b, c = FLOATS * 100
    text = f"{{.reg .b16 h; cvt.rn.satfinite.{kind}x2.f32 h, %1, %2; cvt.rn.f16x2.{kind}x2 %0, h;}}"
    got = execute(compile_ptx, text, a, b, c, "sm_90").view(np.float16).astype(np.float32)
    dtype = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[kind]
    top = {"e4m3": 448, "e5m2": 57344}[kind]
    np.testing.assert_array_equal(got[1::2], np.clip(a, -top, top).astype(dtype).astype(np.float32))
    np.testing.assert_array_equal(got[0::2], np.clip(b, -top, top).astype(dtype).astype(np.float32))


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_packed_arithmetic(compile_ptx, kind):
    dtype = np.float16 if kind == "f16x2" else ml_dtypes.bfloat16
    values = np.random.default_rng(6).integers(-20, 21, (3, 2 * N)).astype(np.float32).astype(dtype)
    a, b, c = (row.view(np.uint32) for row in values)
    got = execute(compile_ptx, f"fma.rn.{kind} %0, %1, %2, %3;", a, b, c).view(dtype)
    x, y, z = values.astype(np.float32)
    np.testing.assert_array_equal(
        got.astype(np.float32), (x * y + z).astype(dtype).astype(np.float32)
    )
    got = execute(compile_ptx, f"max.{kind} %0, %1, %2;", a, b, c).view(dtype)
    np.testing.assert_array_equal(got.astype(np.float32), np.maximum(x, y))


SHUFFLES = [("up", 3, 0, lambda v: np.where(np.arange(32) >= 3, np.roll(v, 3, 1), v)),
            ("down", 5, 31, lambda v: np.where(np.arange(32) < 27, np.roll(v, -5, 1), v)),
            ("bfly", 6, 31, lambda v: v[:, np.arange(32) ^ 6]),
            ("idx", 9, 31, lambda v: np.repeat(v[:, 9:10], 32, 1)),
            ("idx", 1, 0x181F, lambda v: v[:, np.arange(32) // 8 * 8 + 1])]  # fmt: skip


@pytest.mark.parametrize("mode, b, c, wanted", SHUFFLES)
def test_shuffle(compile_ptx, mode, b, c, wanted):
    text = f"shfl.sync.{mode}.b32 %0, %1, {b}, {c}, 0xffffffff;"
    got = execute(compile_ptx, text, *BITS)
    np.testing.assert_array_equal(got.reshape(-1, 32), wanted(BITS[0].reshape(-1, 32)))


@pytest.mark.parametrize("form", ["vote.sync.ballot", "vote.ballot.sync"])
def test_votes_and_reductions(compile_ptx, form):
    rows = SMALL[0].reshape(-1, 32)
    text = "{.reg .pred p; setp.gt.u32 p, %1, 20; vote.sync.ballot.b32 %0, p, 0xffffffff;}"
    text = text.replace("vote.sync.ballot", form)
    bits = ((rows > 20).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1)
    np.testing.assert_array_equal(
        execute(compile_ptx, text, *SMALL).reshape(-1, 32), np.repeat(bits[:, None], 32, 1)
    )
    text = "redux.sync.add.s32 %0, %1, 0xffffffff;"
    total = rows.sum(1)
    np.testing.assert_array_equal(
        execute(compile_ptx, text, *SMALL).reshape(-1, 32), np.repeat(total[:, None], 32, 1)
    )
    text = "activemask.b32 %0;"
    assert (execute(compile_ptx, text, *SMALL) == 0xFFFFFFFF).all()
    text = "{.reg .pred p; elect.sync %0|p, 0xffffffff; selp.u32 %0, 7, 0, p;}"
    got = execute(compile_ptx, text, *SMALL, "sm_90").reshape(-1, 32)
    assert (got[:, 0] == 7).all() and (got[:, 1:] == 0).all()


def test_divergence_loops_and_labels(compile_ptx):
    source = """
    extern "C" __global__ void k(int* d) {
      int t = threadIdx.x, s = 0;
      for (int i = 0; i < t % 7; i++) { if (i & 1) s += t * i; else s -= i; }
      asm volatile("{ .reg .pred p; AGAIN: setp.gt.s32 p, %0, 50; @!p bra DONE; sub.s32 %0, %0, 50; bra AGAIN; DONE: }" : "+r"(s));
      d[t] = s;
    }"""
    out = np.zeros(100, np.int32)
    report = run(compile_ptx(source), Launch((1, 1, 1), (100, 1, 1), 0, (out,)))
    wanted = []
    for t in range(100):
        s = 0
        for i in range(t % 7):
            s += t * i if i & 1 else -i
        while s > 50:
            s -= 50
        wanted.append(s)
    assert report.ok and report.arrays[0].tolist() == wanted


def test_accurate_library_functions(compile_ptx):
    source = """
    extern "C" __global__ void k(const float* x, float* d) {
      int t = threadIdx.x; float v = x[t];
      d[t] = expf(v) + erff(v) + tanhf(v) + log1pf(fabsf(v)) + sinf(v * 100.f) + powf(fabsf(v), 1.5f) + v / 3.f;
    }"""
    x = np.linspace(-3, 3, 96).astype(np.float32)
    report = run(
        compile_ptx(source), Launch((1, 1, 1), (96, 1, 1), 0, (x, np.zeros(96, np.float32)))
    )
    v = x.astype(np.float64)
    erf = np.array([math.erf(one) for one in v])
    wanted = (
        np.exp(v)
        + erf
        + np.tanh(v)
        + np.log1p(np.abs(v))
        + np.sin((x * np.float32(100)).astype(np.float64))
    )
    wanted += np.abs(v) ** 1.5 + v / 3
    assert report.ok
    np.testing.assert_allclose(report.arrays[1], wanted, rtol=1e-6, atol=1e-6)


def test_packed_comparisons(compile_ptx):
    values = np.random.default_rng(7).integers(-3, 4, (2, 2 * N)).astype(np.float16)
    a, b = (row.view(np.uint32) for row in values)
    less = values[0] < values[1]
    got = execute(compile_ptx, "set.lt.f16x2.f16x2 %0, %1, %2;", a, b, b).view(np.float16)
    np.testing.assert_array_equal(got, less.astype(np.float16))
    text = (
        "{.reg .pred p, q; setp.lt.f16x2 p|q, %1, %2; selp.u32 %0, 1, 0, p; @q add.u32 %0, %0, 2;}"
    )
    got = execute(compile_ptx, text, a, b, b)
    np.testing.assert_array_equal(got, less[0::2] + 2 * less[1::2])


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("mov.b32 %r2, %f3;", 0x7FFFFFFF),  # looked at as an integer
        ("mov.f32 %f4, %f3; mov.b32 %r2, %f4;", 0x7FFFFFFF),
        ("mov.f32 %f4, %f1; mov.b32 %r2, %f4;", 0xFFC12345),  # moved: the bits it had
        ("selp.f32 %f4, %f3, %f1, %p1; mov.b32 %r2, %f4;", 0x7FFFFFFF),
        ("selp.f32 %f4, %f1, %f3, %p1; mov.b32 %r2, %f4;", 0xFFC12345),
        ("@%p1 add.f32 %f1, %f1, %f1; mov.b32 %r2, %f1;", 0x7FFFFFFF),
        ("@!%p1 add.f32 %f1, %f1, %f1; mov.b32 %r2, %f1;", 0xFFC12345),
        ("@!%p1 add.f32 %f3, %f1, %f1; mov.b32 %r2, %f3;", 0x7FFFFFFF),
        ("neg.f32 %f4, %f3; mov.b32 %r2, %f4;", 0x7FFFFFFF),
        ("copysign.f32 %f4, %f1, %f3; mov.b32 %r2, %f4;", 0xFFFFFFFF),
        ("min.f32 %f4, %f1, %f3; mov.b32 %r2, %f4;", 0x7FFFFFFF),
        ("cvt.f64.f32 %d1, %f3; cvt.rn.f32.f64 %f4, %d1; mov.b32 %r2, %f4;", 0x7FFFFFFF),
    ],
)  # fmt: skip
def test_arithmetic_gives_one_nan(text, wanted):
    """Of float32, whatever NaN went in; what is only moved keeps its bits."""
    ptx = f"""
    .version 8.0
    .target sm_90
    .address_size 64
    .visible .entry k(.param .u64 out) {{
      .reg .b64 %rd<3>; .reg .b32 %r<4>; .reg .f32 %f<6>; .reg .f64 %d<3>; .reg .pred %p<3>;
      ld.param.u64 %rd1, [out];
      mov.b32 %r1, 0xFFC12345;
      mov.b32 %f1, %r1;
      setp.eq.s32 %p1, 0, 0;
      add.f32 %f3, %f1, 0f3F800000;
      {text}
      st.global.b32 [%rd1], %r2;
      ret;
    }}
    """
    report = run(ptx, Launch((1, 1, 1), (1, 1, 1), 0, (np.zeros(1, np.uint32),)))
    assert hex(report.arrays[0][0]) == hex(wanted)
