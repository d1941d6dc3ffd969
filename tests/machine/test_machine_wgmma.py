# ruff: noqa: E501 - CUDA and PTX text
"""wgmma against NumPy: types, widths, majors, swizzles, A from registers, signs, scale-d."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from float_samples import NARROW, floats, nearest_tf32, patterns, sum_error
from gpu_twin import run_within
from test_machine_mma import without_number
from wgmma_text import wgmma_function

from polygen.errors import PtxError
from polygen.machine import Launch, run

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
TYPES = {
    "f16": np.float16,
    "bf16": BF16,
    "tf32": np.float32,
    "e4m3": E4M3,
    "e5m2": E5M2,
    "s8": np.int8,
    "u8": np.uint8,
}
SWIZZLE_CODE = {0: 0, 128: 1, 64: 2, 32: 3}
A_AT, B_AT, TOTAL = 1024, 1024 + 32768, 1024 + 2 * 32768

KERNEL = """
extern "C" __global__ void __launch_bounds__(128, 1)
k(const uint4* image, C_TYPE* out, unsigned long long da, unsigned long long db, const word* ra, int keep) {
  extern __shared__ __align__(1024) unsigned char memory[];
  word base; asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(base) : "l"(memory));
  for (int i = threadIdx.x; i < BYTES / 16; i += 128) ((uint4*)memory)[i] = image[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  C_TYPE acc[COUNT];
  for (int i = 0; i < COUNT; i++) acc[i] = START;
  da += base >> 4; db += base >> 4;
  word a[4]; for (int i = 0; i < 4; i++) a[i] = ra[threadIdx.x * 4 + i];
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  product(acc, A_OPERAND, db, keep);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < COUNT; i++) out[threadIdx.x * COUNT + i] = acc[i];
}
"""


def swizzle(address: int, span: int) -> int:
    """16-byte chunk number XOR row number, written out per mode."""
    if span == 128:
        return address ^ ((address >> 7) % 8) << 4
    if span == 64:
        return address ^ ((address >> 7) % 4) << 4
    if span == 32:
        return address ^ ((address >> 7) % 2) << 4
    return address


def place(
    image: np.ndarray, at: int, matrix: np.ndarray, major: str, span: int, base: int = 0
) -> tuple[int, int]:
    """Write a (rows, k) operand, patterns begin `base` x 128 bytes late; (LBO, SBO) in bytes."""
    rows, k = matrix.shape
    size = matrix.itemsize
    if major == "k":
        lbo, sbo = (16, 8 * span) if span else (rows * 16, 128)
    else:
        panel = span // size
        lbo, sbo = (k * span, 8 * span) if span else (rows * 16, 128)
        if span:
            assert rows % panel == 0
    for r in range(rows):
        for j in range(k):
            if major == "k" and span:
                byte = r // 8 * sbo + r % 8 * span + j * size
            elif major == "k":
                byte = j * size // 16 * lbo + r // 8 * sbo + r % 8 * 16 + j * size % 16
            elif span:
                byte = r // panel * lbo + j // 8 * sbo + j % 8 * span + r % panel * size
            else:
                byte = j // 8 * lbo + r // 8 * sbo + j % 8 * 16 + r % 8 * size
            byte = swizzle(at + byte - 128 * base, span) + 128 * base
            image[byte : byte + size] = np.frombuffer(matrix[r, j].tobytes(), np.uint8)
    return lbo, sbo


def descriptor(at: int, lbo: int, sbo: int, span: int) -> int:
    return at >> 4 | lbo >> 4 << 16 | sbo >> 4 << 32 | SWIZZLE_CODE[span] << 62


def execute(compile_ptx, n, kinds, *, a_major="k", b_major="k", a_span=128, b_span=128, registers_a=False,
            signs=(1, 1), keep=1, start=0, data=None, begins=0, base=0):  # fmt: skip
    """Run one product of small integers, or of `data`: a, b, and what its elements may be off by.

    The operands begin `begins` x 128 bytes behind a pattern's start, and have a base offset.
    """
    d_kind, a_kind, b_kind = kinds.split(".")
    size = np.dtype(TYPES[a_kind]).itemsize
    k = 32 // size
    random = np.random.default_rng(n + k)
    low = 0 if a_kind == "u8" else -3
    a = random.integers(low, 4, (64, k)).astype(np.float32).astype(TYPES[a_kind])
    b = random.integers(low, 4, (n, k)).astype(np.float32).astype(TYPES[b_kind])
    if data is not None:
        a, b, error = data
    image = np.zeros(TOTAL, np.uint8)
    a_at, b_at = A_AT + 128 * begins, B_AT + 128 * begins
    da = descriptor(a_at, *place(image, a_at, a, a_major, a_span, base), a_span) | base << 49
    db = descriptor(b_at, *place(image, b_at, b, b_major, b_span, base), b_span) | base << 49
    per = 4 // size
    t, v, w = (
        np.arange(128)[:, None, None],
        np.arange(4)[None, :, None],
        np.arange(per)[None, None, :],
    )
    row, column = 16 * (t // 32) + t % 32 // 4 + 8 * (v % 2), per * (t % 4) + w + 4 * per * (v // 2)
    ra = np.ascontiguousarray(a[row, column]).view(np.uint32).reshape(128, 4)
    immediates = f"{signs[0]}, {signs[1]}" if a_kind not in ("s8", "u8") else ""
    if size == 2:
        if not registers_a:
            immediates += f", {int(a_major == 'm')}"
        immediates += f", {int(b_major == 'm')}"
    count = n // 4 if d_kind == "f16" else n // 2
    c_type = {"f32": "float", "s32": "int", "f16": "unsigned"}[d_kind]
    text = wgmma_function("product", n, k, kinds, registers_a=registers_a, immediates=immediates)
    kernel = (
        KERNEL.replace("C_TYPE", c_type).replace("COUNT", str(count)).replace("BYTES", str(TOTAL))
    )
    kernel = kernel.replace("A_OPERAND", "a" if registers_a else "da").replace("START", str(start))
    out = np.zeros((128, count), {"f32": np.float32, "s32": np.int32, "f16": np.uint32}[d_kind])
    launch = Launch((1, 1, 1), (128, 1, 1), TOTAL, (image, out, da, db, ra, keep))
    ptx = compile_ptx(text + kernel, "sm_90a")
    if data is None:
        report = run(ptx, launch)
    else:
        limit = error if error is None else error[accumulator_places(n)]
        report = run_within(ptx, launch, (None, limit, None))
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float64) @ b.astype(np.float64).T * (signs[0] * signs[1])
    if keep:
        wanted += start
    return report, out.dtype.type, wanted, d_kind


def accumulator_places(n):
    """Row and column of every thread's accumulators."""
    t, r = np.arange(128)[:, None], np.arange(n // 2)[None, :]
    row = 16 * (t // 32) + t % 32 // 4 + 8 * (r // 2 % 2)
    return row, 8 * (r // 4) + 2 * (t % 4) + r % 2


def check(report, _, wanted, d_kind):
    assert report.ok, str(report)
    got = report.arrays[1]
    if d_kind == "f16":
        got = got.view(np.float16)
    places = accumulator_places(wanted.shape[1])
    np.testing.assert_array_equal(got.astype(np.float64), wanted[places])


@pytest.mark.parametrize("n", [8, 16, 24, 64, 96, 128, 256])
def test_widths(compile_ptx, n):
    check(*execute(compile_ptx, n, "f32.bf16.bf16"))


@pytest.mark.parametrize(
    "kinds", ["f32.f16.f16", "f16.f16.f16", "f32.bf16.bf16", "f32.tf32.tf32", "f32.e4m3.e4m3", "f32.e5m2.e4m3",
              "f16.e4m3.e5m2", "s32.s8.s8", "s32.u8.u8"],
)  # fmt: skip
@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_types_and_swizzles(compile_ptx, kinds, span):
    check(*execute(compile_ptx, 64, kinds, a_span=span, b_span=span))


@pytest.mark.parametrize(
    "kinds", ["f32.f16.f16", "f32.bf16.bf16", "f32.tf32.tf32", "f32.e4m3.e4m3", "f32.e5m2.e4m3", "s32.s8.s8", "s32.u8.u8"],
)  # fmt: skip
@pytest.mark.parametrize("registers_a", [False, True])
def test_random_floats(compile_ptx, kinds, registers_a):
    """Every mantissa bit takes part; sums are within what their type and length allow."""
    a_kind, b_kind = (TYPES[kind] for kind in kinds.split(".")[1:])
    k = 32 // np.dtype(a_kind).itemsize
    a, b = floats((64, k), a_kind, k), floats((64, k), b_kind, k + 1)
    exact = a_kind in NARROW or kinds.startswith("s32")
    seen = [nearest_tf32(x, "truncated") if a_kind == np.float32 else x for x in (a, b)]
    error = None if exact else sum_error(seen[0], seen[1].T, np.zeros((64, 64)), k, 23)
    report, *_ = execute(compile_ptx, 64, kinds, registers_a=registers_a, data=(a, b, error))
    assert report.ok, str(report)
    wanted = seen[0].astype(np.float64) @ seen[1].astype(np.float64).T
    places = accumulator_places(64)
    got = report.arrays[1].astype(np.float64)
    limit = np.zeros((64, 64)) if exact else error
    assert (np.abs(got - wanted[places]) <= limit[places]).all()


@pytest.mark.parametrize("side", ["a", "b", "registers"])
def test_tf32_operands(compile_ptx, side):
    """One times every pattern: low mantissa bits are cut off, and nothing else happens to it."""
    for values in patterns().view(np.float32).reshape(8, 64):
        a, b = np.zeros((64, 8), np.float32), np.zeros((64, 8), np.float32)
        one, many = (a, b) if side == "b" else (b, a)
        one[:, 3], many[:, 3] = 1, values
        report, *_ = execute(
            compile_ptx, 64, "f32.tf32.tf32", registers_a=side == "registers",
            data=(a, b, None),
        )  # fmt: skip
        assert report.ok, str(report)
        cut = nearest_tf32(values, "truncated")
        row, column = accumulator_places(64)
        wanted, got = cut[(column if side == "b" else row) + 0 * row + 0 * column], report.arrays[1]
        known = np.isfinite(wanted)  # NaN with a payload of low bits alone loses it
        np.testing.assert_array_equal(got[known], wanted[known])
        assert not np.isfinite(got[~known]).any()


@pytest.mark.parametrize(
    "kinds", ["f32.f16.f16", "f16.f16.f16", "f32.bf16.bf16", "f32.tf32.tf32", "f32.e4m3.e4m3", "f32.e5m2.e4m3", "f16.e5m2.e5m2"],
)  # fmt: skip
@pytest.mark.parametrize("registers_a", [False, True])
def test_products_of_warpgroups_give_one_nan(compile_ptx, kinds, registers_a):
    a_kind, b_kind = (TYPES[kind] for kind in kinds.split(".")[1:])
    k = 32 // np.dtype(a_kind).itemsize
    a, b = without_number(a_kind, (64, k), 1), without_number(b_kind, (64, k), 2)
    report, _, wanted, d_kind = execute(
        compile_ptx, 64, kinds, registers_a=registers_a, data=(a, b, None)
    )
    assert report.ok, str(report)
    got = report.arrays[1] if d_kind == "f32" else report.arrays[1].view(np.float16)
    wanted = wanted[accumulator_places(64)].astype(got.dtype)
    missing = np.isnan(wanted)
    assert 100 < missing.sum() < missing.size // 2
    np.testing.assert_array_equal(got[~missing], wanted[~missing])
    one = 0x7FFFFFFF if d_kind == "f32" else 0x7FFF
    assert (got.view(f"u{got.itemsize}")[missing] == one).all()


@pytest.mark.parametrize("a_major, b_major", [("m", "k"), ("k", "m"), ("m", "m")])
@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_majors(compile_ptx, a_major, b_major, span):
    check(
        *execute(
            compile_ptx,
            128,
            "f32.f16.f16",
            a_major=a_major,
            b_major=b_major,
            a_span=span,
            b_span=span,
        )
    )


@pytest.mark.parametrize("span, begins", [(128, 1), (128, 4), (128, 7), (64, 1), (64, 3), (32, 1)])
@pytest.mark.parametrize("major", ["k", "m"])
def test_starts_within_a_pattern(compile_ptx, span, begins, major):
    """Chunks are exchanged by absolute addresses, as the copy engine does it: the base offset is 0.

    Only where the patterns themselves begin late does it say so.
    """
    form = {"a_major": major, "b_major": major, "a_span": span, "b_span": span, "begins": begins}
    check(*execute(compile_ptx, 128, "f32.f16.f16", **form))
    check(*execute(compile_ptx, 128, "f32.f16.f16", **form, base=begins))


def test_a_base_offset_of_patterns_that_begin_in_time(compile_ptx):
    report, *_ = execute(compile_ptx, 16, "f32.f16.f16", base=3)
    assert {one.code for one in report.findings} == {"bad-descriptor"}
    assert "begins with a pattern, and the base offset is 3" in report.findings[0].sentence


@pytest.mark.parametrize("kinds", ["f32.bf16.bf16", "f32.tf32.tf32", "f32.e4m3.e4m3", "s32.s8.s8"])
def test_a_from_registers(compile_ptx, kinds):
    check(*execute(compile_ptx, 64, kinds, registers_a=True))
    if "bf16" in kinds:
        check(*execute(compile_ptx, 64, kinds, registers_a=True, b_major="m"))


def test_signs_and_scale(compile_ptx):
    check(*execute(compile_ptx, 32, "f32.f16.f16", signs=(-1, 1), start=5))
    check(*execute(compile_ptx, 32, "f32.f16.f16", signs=(-1, -1), keep=0, start=5))


def test_missing_proxy_fence_and_barrier(compile_ptx):
    saved = KERNEL
    try:
        globals()["KERNEL"] = saved.replace(
            'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', ""
        )
        report, *_ = execute(compile_ptx, 16, "f32.f16.f16")
        assert {one.code for one in report.findings} == {"missing-proxy-fence"}
        fence = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
        early = saved.replace(fence, "").replace(
            "  for (int i = threadIdx.x", f"  {fence} for (int i = threadIdx.x"
        )
        assert early.count(fence) == 1
        globals()["KERNEL"] = early
        report, *_ = execute(compile_ptx, 16, "f32.f16.f16")
        assert {one.code for one in report.findings} == {"missing-proxy-fence"}
        globals()["KERNEL"] = saved.replace("__syncthreads();", "")
        report, *_ = execute(compile_ptx, 16, "f32.f16.f16")
        assert {one.code for one in report.findings} == {"race-write-read"}
        globals()["KERNEL"] = saved.replace(
            'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");', ""
        )
        report, *_ = execute(compile_ptx, 16, "f32.f16.f16")
        assert {one.code for one in report.findings} == {"wgmma-order"}
    finally:
        globals()["KERNEL"] = saved


def test_shape_that_does_not_exist(compile_ptx):
    ptx = compile_ptx(
        wgmma_function("product", 16, 16, "f32.f16.f16")
        + KERNEL.replace("C_TYPE", "float").replace("COUNT", "8").replace("BYTES", "1024")
        .replace("A_OPERAND", "da").replace("START", "0"), "sm_90a")  # fmt: skip
    image, out = np.zeros(1024, np.uint8), np.zeros((128, 8), np.float32)
    launch = Launch((1, 1, 1), (128, 1, 1), 1024, (image, out, 0, 0, np.zeros(512, np.uint32), 1))
    with pytest.raises(PtxError, match="wgmma"):
        run(ptx.replace("m64n16k16", "m64n16k8"), launch)
