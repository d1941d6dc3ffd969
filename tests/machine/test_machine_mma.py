# ruff: noqa: E501 - CUDA and PTX text
"""mma.sync shapes and types against NumPy; fragments laid out by the PTX ISA's own formulas."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from float_samples import floats, nearest_tf32, patterns, sum_error
from gpu_twin import run_within

from polygen.errors import PtxError
from polygen.machine import Launch, run
from polygen.machine.mma import product_of

LANE = np.arange(32)[:, None]
G, T = LANE // 4, LANE % 4


def a16(e):
    return G + 8 * (e // 2 % 2), 2 * T + e % 2 + 8 * (e // 4)


def b16(e):
    return 2 * T + e % 2 + 8 * (e // 2), G + 0 * e


def a32(e):
    return G + 8 * (e % 2), T + 4 * (e // 2)


def b32(e):
    return T + 4 * e, G + 0 * e


def a8(e):
    return G + 8 * (e // 4 % 2), 4 * T + e % 4 + 16 * (e // 8)


def b8(e):
    return 4 * T + e % 4 + 16 * (e // 4), G + 0 * e


def c32(e):
    return G + 8 * (e // 2), 2 * T + e % 2


BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
CASES = [
    ("m16n8k16.row.col.f32.f16.f16.f32", 16, np.float16, np.float32, a16, b16, "sm_80"),
    ("m16n8k16.row.col.f32.bf16.bf16.f32", 16, BF16, np.float32, a16, b16, "sm_80"),
    ("m16n8k16.row.col.f16.f16.f16.f16", 16, np.float16, np.float16, a16, b16, "sm_80"),
    ("m16n8k8.row.col.f32.f16.f16.f32", 8, np.float16, np.float32, a16, b16, "sm_80"),
    ("m16n8k8.row.col.f32.bf16.bf16.f32", 8, BF16, np.float32, a16, b16, "sm_80"),
    ("m16n8k8.row.col.f32.tf32.tf32.f32", 8, np.float32, np.float32, a32, b32, "sm_80"),
    ("m16n8k4.row.col.f32.tf32.tf32.f32", 4, np.float32, np.float32, a32, b32, "sm_80"),
    ("m16n8k32.row.col.s32.s8.s8.s32", 32, np.int8, np.int32, a8, b8, "sm_80"),
    ("m16n8k32.row.col.s32.u8.u8.s32", 32, np.uint8, np.int32, a8, b8, "sm_80"),
    ("m16n8k16.row.col.s32.s8.s8.s32", 16, np.int8, np.int32, a8, b8, "sm_80"),
    ("m16n8k32.row.col.f32.e4m3.e4m3.f32", 32, E4M3, np.float32, a8, b8, "sm_90"),
    ("m16n8k32.row.col.f32.e5m2.e4m3.f32", 32, E5M2, np.float32, a8, b8, "sm_90"),
    ("m16n8k32.row.col.f32.e4m3.e5m2.f32", 32, E4M3, np.float32, a8, b8, "sm_90"),
    ("m16n8k32.row.col.f32.e5m2.e5m2.f32", 32, E5M2, np.float32, a8, b8, "sm_90"),
    ("m16n8k16.row.col.s32.u8.u8.s32", 16, np.uint8, np.int32, a8, b8, "sm_80"),
    ("m16n8k8.row.col.f16.f16.f16.f16", 8, np.float16, np.float16, a16, b16, "sm_80"),
]


def registers(matrix: np.ndarray, place, elements: int) -> np.ndarray:
    """(lanes, registers) u32 from a matrix and a fragment rule."""
    row, column = place(np.arange(elements)[None, :])
    return np.ascontiguousarray(matrix[row, column]).view(np.uint32)


def source(name: str, na: int, nb: int, nc: int, float_sum: bool) -> str:
    kind, letter = ("float", "f") if float_sum else ("unsigned", "r")
    numbers = iter(range(64))
    d = ",".join(f"%{next(numbers)}" for _ in range(nc))
    a = ",".join(f"%{next(numbers)}" for _ in range(na))
    b = ",".join(f"%{next(numbers)}" for _ in range(nb))
    outs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(nc))
    ins = ", ".join(
        [f'"r"(a[l*{na}+{i}])' for i in range(na)] + [f'"r"(b[l*{nb}+{i}])' for i in range(nb)]
    )
    return f"""
    extern "C" __global__ void k(const unsigned* a, const unsigned* b, {kind}* c) {{
      int l = threadIdx.x; {kind} d[{nc}];
      for (int i = 0; i < {nc}; i++) d[i] = c[l*{nc}+i];
      asm volatile("mma.sync.aligned.{name} {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};" : {outs} : {ins});
      asm volatile("mma.sync.aligned.{name} {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};" : {outs} : {ins});
      for (int i = 0; i < {nc}; i++) c[l*{nc}+i] = d[i];
    }}"""


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_exact(compile_ptx, case):
    name, k, kind, sum_kind, a_place, b_place, arch = case
    random = np.random.default_rng(k)
    low = 0 if kind == np.uint8 else -4
    a = random.integers(low, 5, (16, k)).astype(np.float32).astype(kind)
    b_kind = {"e4m3": E4M3, "e5m2": E5M2}.get(name.split(".")[5], kind)
    b = random.integers(low, 5, (k, 8)).astype(np.float32).astype(b_kind)
    c = random.integers(-9, 9, (16, 8)).astype(sum_kind)
    per = np.dtype(kind).itemsize
    ra = registers(a, a_place, 16 * k // 32)
    rb = registers(b, b_place, 8 * k // 32)
    rc = registers(c, c32, 4)
    text = source(
        name, 16 * k * per // 128, 8 * k * per // 128, rc.shape[1], sum_kind == np.float32
    )
    words = rc.view(np.float32) if sum_kind == np.float32 else rc
    report = run(compile_ptx(text, arch), Launch((1, 1, 1), (32, 1, 1), 0, (ra, rb, words.copy())))
    assert report.ok, str(report)
    got = np.ascontiguousarray(report.arrays[2]).view(sum_kind)
    wanted = c.astype(np.float64) + 2 * (a.astype(np.float64) @ b.astype(np.float64))
    row, column = c32(np.arange(4)[None, :])
    np.testing.assert_array_equal(got.astype(np.float64), wanted[row, column])


SUM_BITS = {np.float32: 23, np.float16: 10}


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_random_floats(compile_ptx, case):
    """Every mantissa bit takes part; sums are within what their type and length allow."""
    name, k, kind, sum_kind, a_place, b_place, arch = case
    b_kind = {"e4m3": E4M3, "e5m2": E5M2}.get(name.split(".")[5], kind)
    a, b = floats((16, k), kind, k), floats((k, 8), b_kind, k + 1)
    c = np.zeros((16, 8), sum_kind)
    if kind not in (E4M3, E5M2):
        c = floats((16, 8), sum_kind if sum_kind != np.int32 else np.int16, k + 2).astype(sum_kind)
    per = np.dtype(kind).itemsize
    ra, rb = registers(a, a_place, 16 * k // 32), registers(b, b_place, 8 * k // 32)
    rc = registers(c, c32, 4)
    text = source(
        name, 16 * k * per // 128, 8 * k * per // 128, rc.shape[1], sum_kind == np.float32
    )
    seen = [nearest_tf32(x, "truncated") if kind == np.float32 else x for x in (a, b)]
    twice = [np.concatenate([x, x], axis) for axis, x in zip((1, 0), seen, strict=True)]
    wanted = c.astype(np.float64) + twice[0].astype(np.float64) @ twice[1].astype(np.float64)
    exact = kind in (E4M3, E5M2) or sum_kind == np.int32
    error = np.zeros((16, 8)) if exact else sum_error(*twice, c, k, SUM_BITS[sum_kind])
    row, column = c32(np.arange(4)[None, :])
    limit = None if exact else error[row, column]
    launch = Launch((1, 1, 1), (32, 1, 1), 0, (ra, rb, rc.view(sum_kind).copy()))
    report = run_within(compile_ptx(text, arch), launch, (None, None, limit))
    assert report.ok, str(report)
    got = report.arrays[2].astype(np.float64)
    assert (np.abs(got - wanted[row, column]) <= error[row, column]).all()


def test_tf32_ignores_low_bits(compile_ptx):
    a = np.full((16, 8), 1 + 2.0**-12, np.float32)
    b = np.ones((8, 8), np.float32)
    text = source("m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2, 4, True)
    arguments = (registers(a, a32, 4), registers(b, b32, 2), np.zeros((32, 4), np.float32))
    report = run(compile_ptx(text), Launch((1, 1, 1), (32, 1, 1), 0, arguments))
    assert (report.arrays[2] == 16).all()


@pytest.mark.parametrize("side", ["a", "b"])
def test_tf32_operands(compile_ptx, side):
    """One times every pattern: low mantissa bits are cut off, and nothing else happens to it."""
    values = patterns().view(np.float32)
    text = source("m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2, 4, True)
    text = text.replace("l = threadIdx.x", "l = blockIdx.x * 32 + threadIdx.x")
    at = text.index("asm volatile")
    text = text[:at] + text[text.index("asm volatile", at + 1) :]  # one product is enough
    count = len(values) // (16 if side == "a" else 8)
    a, b = np.zeros((count, 16, 8), np.float32), np.zeros((count, 8, 8), np.float32)
    if side == "a":
        a[:, :, 3], b[:, 3, :] = values.reshape(count, 16), 1
    else:
        a[:, :, 3], b[:, 3, :] = 1, values.reshape(count, 8)
    ra = np.concatenate([registers(one, a32, 4) for one in a])
    rb = np.concatenate([registers(one, b32, 2) for one in b])
    arguments = (ra, rb, np.zeros((32 * count, 4), np.float32))
    launch = Launch((count, 1, 1), (32, 1, 1), 0, arguments)
    report = run(compile_ptx(text), launch)
    assert report.ok, str(report)
    row, column = c32(np.arange(4)[None, :])
    cut = nearest_tf32(values, "truncated").reshape(count, -1)
    got = report.arrays[2].reshape(count, 32, 4)
    wanted = cut[:, row + 0 * column] if side == "a" else cut[:, column + 0 * row]
    known = np.isfinite(wanted)  # NaN with a payload of low bits alone loses it
    np.testing.assert_array_equal(got[known], wanted[known])
    assert not np.isfinite(got[~known]).any()


FLOATS = [case for case in CASES if case[2] not in (np.int8, np.uint8)]


def without_number(kind: type, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Small integers; the second row has a NaN with a sign and a payload, others infinities."""
    values = np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32).astype(kind)
    with np.errstate(invalid="ignore"):
        values[1, 2] = -np.array(np.nan, kind)
    if kind in (np.float16, np.float32, BF16):
        width = f"u{values.itemsize}"
        values.view(width)[1, 2] ^= 1 << (13 if kind == np.float32 else 0)
    if kind != E4M3:
        values[3, 0], values[4, 1], values[4, 3] = np.inf, np.inf, -np.inf
    return values


@pytest.mark.parametrize("case", FLOATS, ids=[case[0] for case in FLOATS])
def test_matrix_instructions_give_one_nan(compile_ptx, case):
    """Of operands, of sums, of infinity times 0 and of what is left of infinities."""
    name, k, kind, sum_kind, a_place, b_place, arch = case
    b_kind = {"e4m3": E4M3, "e5m2": E5M2}.get(name.split(".")[5], kind)
    a, b = without_number(kind, (16, k), 1), without_number(b_kind, (8, k), 2).T.copy()
    c = np.random.default_rng(3).integers(-9, 9, (16, 8)).astype(sum_kind)
    c[6, 1:4] = np.nan, np.inf, -np.inf
    c.view(f"u{c.itemsize}")[6, 1] ^= 1 | 1 << 8 * c.itemsize - 1
    per = np.dtype(kind).itemsize
    text = source(
        name, 16 * k * per // 128, 8 * k * per // 128, 4 * c.itemsize // 4, sum_kind == np.float32
    )
    rc = registers(c, c32, 4).view(sum_kind if sum_kind == np.float32 else np.uint32)
    ra, rb = registers(a, a_place, 16 * k // 32), registers(b, b_place, 8 * k // 32)
    launch = Launch((1, 1, 1), (32, 1, 1), 0, (ra, rb, rc))
    report = run(compile_ptx(text, arch), launch)
    assert report.ok, str(report)
    with np.errstate(invalid="ignore"):
        wanted = c.astype(np.float64) + 2 * (a.astype(np.float64) @ b.astype(np.float64))
    wanted = wanted[c32(np.arange(4)[None, :])].astype(sum_kind)
    got = np.ascontiguousarray(report.arrays[2]).view(sum_kind)
    missing = np.isnan(wanted)
    assert 20 < missing.sum() < missing.size - 20
    np.testing.assert_array_equal(got[~missing], wanted[~missing])
    one = 0x7FFFFFFF if sum_kind == np.float32 else 0x7FFF
    assert (got.view(f"u{got.itemsize}")[missing] == one).all()


@pytest.mark.parametrize("mode, ties", [("rna", "away"), ("rn", "even"), ("rz", "truncated")])
def test_rounding_to_tf32(compile_ptx, mode, ties):
    values = patterns().view(np.float32)
    text = f"""extern "C" __global__ void k(const float* x, unsigned* y) {{
      asm("cvt.{mode}.tf32.f32 %0, %1;" : "=r"(y[threadIdx.x]) : "f"(x[threadIdx.x])); }}"""
    launch = Launch((1, 1, 1), (512, 1, 1), 0, (values, np.zeros(512, np.uint32)))
    report = run(compile_ptx(text, "sm_90"), launch)
    assert report.ok, str(report)
    got = report.arrays[1]
    no_number = np.isnan(values)
    np.testing.assert_array_equal(
        got.view(np.float32)[~no_number], nearest_tf32(values[~no_number], ties)
    )
    cut = patterns()[no_number] & 0xFFFFE000  # infinity, when the payload has low bits alone
    assert (got[no_number] == (cut if mode == "rna" else 0x7FFFE000)).all()
    assert np.isinf(got.view(np.float32)[no_number]).any() == (mode == "rna")


@pytest.mark.parametrize("a_layout", ["row", "col"])
@pytest.mark.parametrize("b_layout", ["row", "col"])
@pytest.mark.parametrize("sums", ["f32", "f16"])
def test_quad_pairs(compile_ptx, a_layout, b_layout, sums):
    random = np.random.default_rng(2)
    a = random.integers(-4, 5, (4, 8, 4)).astype(np.float16)
    b = random.integers(-4, 5, (4, 4, 8)).astype(np.float16)
    lane, e = np.arange(32)[:, None], np.arange(4)[None, :]
    q, u, h = lane // 4 % 4, lane % 4, lane // 16
    ra = a[q, u + 4 * h, e] if a_layout == "row" else a[q, e + 4 * h, u]
    rb = b[q, u, e + 4 * h] if b_layout == "row" else b[q, e, u + 4 * h]
    name = f"m8n8k4.{a_layout}.{b_layout}.{sums}.f16.f16.{sums}"
    text = source(name, 2, 2, 8 if sums == "f32" else 4, sums == "f32")
    start = np.zeros((32, 8), np.float32 if sums == "f32" else np.float16)
    words = start if sums == "f32" else start.view(np.uint32)
    pack = [np.ascontiguousarray(one).view(np.uint32) for one in (ra, rb)]
    report = run(compile_ptx(text), Launch((1, 1, 1), (32, 1, 1), 0, (*pack, words)))
    got = report.arrays[2].view(start.dtype).astype(np.float32)
    wanted = 2 * np.matmul(a.astype(np.float32), b.astype(np.float32))
    e = np.arange(8)[None, :]
    if sums == "f32":
        place = q, lane % 2 + e // 2 % 2 * 2 + 4 * h, e // 4 * 4 + lane // 2 % 2 * 2 + e % 2
    else:
        place = q, u + 4 * h, e
    np.testing.assert_array_equal(got, wanted[place])


@pytest.mark.parametrize("layouts", ["row.col", "row.row", "col.row", "col.col"])
def test_quad_pairs_of_floats(compile_ptx, layouts):
    """Every mantissa bit takes part; sums are within what their type and length allow."""
    a, b = floats((32, 4), np.float16, 5), floats((32, 4), np.float16, 6)
    text = source(f"m8n8k4.{layouts}.f32.f16.f16.f32", 2, 2, 8, True)
    lane, e = np.arange(32)[:, None], np.arange(4)[None, :]
    q, u, h = lane // 4 % 4, lane % 4, lane // 16
    left, right = layouts.split(".")
    each_a, each_b = np.zeros((4, 8, 4)), np.zeros((4, 4, 8))
    each_a[(q, u + 4 * h, e) if left == "row" else (q, e + 4 * h, u)] = a
    each_b[(q, u, e + 4 * h) if right == "row" else (q, e, u + 4 * h)] = b
    eight = np.arange(8)[None, :]
    place = (
        q,
        lane % 2 + eight // 2 % 2 * 2 + 4 * h,
        eight // 4 * 4 + lane // 2 % 2 * 2 + eight % 2,
    )
    start = floats((32, 8), np.float32, 7)
    wanted = start + 2 * (each_a @ each_b)[place]
    sums = np.abs(start) + 2 * (np.abs(each_a) @ np.abs(each_b))[place]
    limit = sums * (2 * 4 + 2) * 2.0**-23
    pack = [np.ascontiguousarray(one).view(np.uint32) for one in (a, b)]
    launch = Launch((1, 1, 1), (32, 1, 1), 0, (*pack, start.copy()))
    report = run_within(compile_ptx(text), launch, (None, None, limit))
    assert report.ok, str(report)
    assert (np.abs(report.arrays[2] - wanted) <= limit).all()


@pytest.mark.parametrize("sums", ["f32", "f16"])
def test_quad_pairs_give_one_nan(compile_ptx, sums):
    kind, count = (np.float32, 8) if sums == "f32" else (np.float16, 4)
    a, b = without_number(np.float16, (32, 4), 1), np.ones((32, 4), np.float16)
    start = np.zeros((32, 8), kind)
    start[9, 5] = -np.nan
    text = source(f"m8n8k4.row.col.{sums}.f16.f16.{sums}", 2, 2, count, sums == "f32")
    pack = [one.view(np.uint32) for one in (a, b)]
    words = start if sums == "f32" else start.view(np.uint32)
    report = run(compile_ptx(text), Launch((1, 1, 1), (32, 1, 1), 0, (*pack, words)))
    assert report.ok, str(report)
    bits = np.ascontiguousarray(report.arrays[2]).view(kind).view(f"u{start.itemsize}")
    missing = np.isnan(bits.view(kind))
    assert missing.sum() == 2 * 8 + 1  # a row of each of two quad pairs, and the sum
    assert (bits[missing] == (0x7FFFFFFF if sums == "f32" else 0x7FFF)).all()


@pytest.mark.parametrize("largest", [5, 128])
def test_narrow_integers(compile_ptx, largest):
    """m8n8k16: a register of each operand, two of the sums."""
    random = np.random.default_rng(9)
    a = random.integers(-largest, largest, (8, 16)).astype(np.int8)
    b = random.integers(-largest, largest, (16, 8)).astype(np.int8)
    c = random.integers(-9, 9, (8, 8)).astype(np.int32)
    four, two = np.arange(4)[None, :], np.arange(2)[None, :]
    ra, rb = a[G, 4 * T + four], b[4 * T + four, G]
    text = source("m8n8k16.row.col.s32.s8.s8.s32", 1, 1, 2, False)
    pack = [np.ascontiguousarray(one).view(np.uint32) for one in (ra, rb)]
    rc = np.ascontiguousarray(c[G, 2 * T + two])
    launch = Launch((1, 1, 1), (32, 1, 1), 0, (*pack, rc.view(np.uint32)))
    report = run(compile_ptx(text), launch)
    assert report.ok, str(report)
    wanted = c + 2 * (a.astype(np.int32) @ b.astype(np.int32))
    np.testing.assert_array_equal(report.arrays[2].view(np.int32), wanted[G, 2 * T + two])


def test_divergent_mma_is_a_finding(compile_ptx):
    text = source("m16n8k16.row.col.f32.f16.f16.f32", 4, 2, 4, True)
    text = text.replace("asm volatile", "if (l < 16) asm volatile", 1)
    zero = np.zeros((32, 4), np.uint32)
    arguments = (zero, zero[:, :2].copy(), np.zeros((32, 4), np.float32))
    report = run(compile_ptx(text), Launch((1, 1, 1), (32, 1, 1), 0, arguments))
    assert [one.code for one in report.findings] == ["divergent-warp-operation"]


def test_unknown_shape_names_its_line(compile_ptx):
    text = source("m16n8k256.row.col.s32.b1.b1.s32.xor.popc", 4, 2, 4, False)
    zero = np.zeros((32, 4), np.uint32)
    with pytest.raises(PtxError, match="mma") as caught:
        run(compile_ptx(text), Launch((1, 1, 1), (32, 1, 1), 0, (zero, zero, zero.copy())))
    assert caught.value.line > 0


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix_and_stmatrix(compile_ptx, count, trans):
    names = ",".join(f"%{i}" for i in range(count))
    outs = ", ".join(f'"=r"(r[{i}])' for i in range(count))
    ins = ", ".join(f'"r"(r[{i}])' for i in range(count))
    ptx = compile_ptx(
        f"""
    extern "C" __global__ void k(const unsigned* x, unsigned* d, unsigned* back) {{
      __shared__ __align__(16) unsigned s[256];
      int l = threadIdx.x; unsigned r[{count}], at;
      for (int i = 0; i < 8; i++) {{ s[i * 32 + l] = x[i * 32 + l]; }}
      asm("{{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }}" : "=r"(at) : "l"(s));
      __syncwarp();
      asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [%{count}];" : {outs} : "r"(at + l % 32 * 16) : "memory");
      for (int i = 0; i < {count}; i++) d[l * {count} + i] = r[i];
      asm volatile("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%{count}], {{{names}}};" :: {ins}, "r"(at + 512 + l % 32 * 16) : "memory");
      __syncwarp();
      for (int i = 0; i < {count}; i++) back[i * 32 + l] = s[128 + i * 32 + l];
    }}""",
        "sm_90",
    )
    x = np.arange(512, dtype=np.uint16).view(np.uint32)
    d, back = np.zeros((32, count), np.uint32), np.zeros(32 * count, np.uint32)
    report = run(ptx, Launch((1, 1, 1), (32, 1, 1), 0, (x, d, back)))
    assert report.ok, str(report)
    matrices = x.view(np.uint16).reshape(8, 8, 8)[:count]
    if trans:
        matrices = matrices.transpose(0, 2, 1)
    lane = np.arange(32)
    for q in range(count):
        pair = report.arrays[1][:, q].copy().view(np.uint16).reshape(32, 2)
        np.testing.assert_array_equal(pair[:, 0], matrices[q, lane // 4, 2 * (lane % 4)])
        np.testing.assert_array_equal(pair[:, 1], matrices[q, lane // 4, 2 * (lane % 4) + 1])
    np.testing.assert_array_equal(report.arrays[2], x[: 32 * count])


@pytest.mark.parametrize(
    "shape, arch",
    [((8, 4), "sm_80"), ((16, 4), "sm_90"), ((16, 8), "sm_90"), ((16, 16), "sm_90")],
)
def test_doubles(compile_ptx, shape, arch):
    """Whole numbers of 50 bits in sums: what f32 would round is found."""
    rows, k = shape
    random = np.random.default_rng(k)
    a, b = (random.integers(-(1 << 24), 1 << 24, s).astype(float) for s in ((rows, k), (k, 8)))
    c = random.integers(-9, 9, (rows, 8)).astype(float)
    halves, e = rows // 8, np.arange(8)[None, :]
    of_a = np.ascontiguousarray(a[(G + 8 * (e % halves), T + 4 * (e // halves))[0][:, : rows * k // 32],
                                  (T + 4 * (e // halves))[:, : rows * k // 32]])  # fmt: skip
    of_b = np.ascontiguousarray(b[(T + 4 * e)[:, : k // 4], (G + 0 * e)[:, : k // 4]])
    row, column = (one[:, : rows // 4] for one in (G + 8 * (e // 2), 2 * T + e % 2))
    of_c = np.ascontiguousarray(c[row, column])
    text = source(f"m{rows}n8k{k}.row.col.f64.f64.f64.f64", rows * k // 32, k // 4, rows // 4, True)
    text = text.replace("unsigned", "double").replace("float", "double")
    text = text.replace('"r"', '"d"').replace('"+f"', '"+d"')
    launch = Launch((1, 1, 1), (32, 1, 1), 0, (of_a, of_b, of_c))
    report = run(compile_ptx(text, arch), launch)
    assert report.ok, str(report)
    wanted = c + 2 * (a @ b)
    np.testing.assert_array_equal(report.arrays[2].reshape(row.shape), wanted[row, column])


MOVE = """
extern "C" __global__ void k(const unsigned* in, unsigned* out) {
  unsigned found = 77;
  GUARD asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(found) : "r"(in[threadIdx.x]));
  out[threadIdx.x] = found;
}"""


@pytest.mark.parametrize(
    "guard, found",
    [("", set()), ("if (threadIdx.x >= 32)", set()), ("if (threadIdx.x & 1)", {"divergent-warp-operation"})],
)  # fmt: skip
def test_movmatrix_transposes_what_the_lanes_of_a_warp_hold(compile_ptx, guard, found):
    matrices = np.arange(2 * 64, dtype=np.uint16).reshape(2, 8, 8)
    words, out = matrices.reshape(2, -1).view(np.uint32).ravel(), np.zeros(64, np.uint32)
    text = compile_ptx(MOVE.replace("GUARD", guard), "sm_80")
    report = run(text, Launch((1, 1, 1), (64, 1, 1), 0, (words, out)))
    assert {one.code for one in report.findings} == found
    if not found:
        moved = report.arrays[1].reshape(2, 32)
        np.testing.assert_array_equal(moved[1].view(np.uint16).reshape(8, 8), matrices[1].T)
        first = np.full(32, 77) if guard else moved[0]
        wanted = first if guard else matrices[0].T.ravel().copy().view(np.uint32)
        np.testing.assert_array_equal(moved[0], wanted)


def test_no_bit_of_a_product_depends_on_the_row_or_on_the_order_of_k():
    """NumPy's float32 products do on some processors; kernels that are invariant are compared."""
    random = np.random.default_rng(5)
    a, b = (random.normal(size=shape).astype("f4") for shape in ((1, 64, 16), (1, 16, 128)))
    rows, ks = random.permutation(64), random.permutation(16)
    product = product_of(a, b)
    np.testing.assert_array_equal(product_of(a[:, rows], b), product[:, rows])
    np.testing.assert_array_equal(product_of(a[:, :, ks], b[:, ks]), product)
