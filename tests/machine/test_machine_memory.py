# ruff: noqa: E501 - CUDA and PTX text
"""Memory accesses, arguments, atomics and launches."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest

from polygen.errors import LaunchError, PtxError, StepLimit
from polygen.machine import Launch, run


def once(ptx, *arguments, block=(32, 1, 1), grid=(1, 1, 1), shared=0, **options):
    return run(ptx, Launch(grid, block, shared, arguments), **options)


COPY = """
extern "C" __global__ void k(const %(type)s* a, %(type)s* d, int n) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t < n) d[t] = a[t];
}
"""


@pytest.mark.parametrize(
    "kind",
    [
        "unsigned char",
        "short",
        "int",
        "long long",
        "float",
        "double",
        "float2",
        "float4",
        "uchar4",
        "short4",
        "longlong2",
    ],
)
def test_copies_of_every_width(compile_ptx, kind):
    ptx = compile_ptx(COPY % {"type": kind})
    raw = np.random.default_rng(0).integers(0, 256, 16 * 100, dtype=np.uint8)
    report = once(ptx, raw, np.zeros_like(raw), 100, grid=(2, 1, 1), block=(64, 1, 1))
    assert report.ok, str(report)
    width = {"unsigned char": 1, "short": 2, "int": 4, "float": 4, "uchar4": 4, "double": 8, "long long": 8,
             "float2": 8, "short4": 8}.get(kind, 16)  # fmt: skip
    np.testing.assert_array_equal(report.arrays[1][: 100 * width], raw[: 100 * width])


def test_one_past_the_end_is_out_of_bounds(compile_ptx):
    ptx = compile_ptx(COPY % {"type": "int"})
    report = once(ptx, np.arange(32, dtype=np.int32), np.zeros(31, np.int32), 32)
    (finding,) = report.findings
    assert finding.code == "out-of-bounds-global" and finding.count == 1
    assert (
        "thread 31" in finding.sentence
        and "argument 1" in finding.sentence
        and "st.global" in finding.where
    )


def test_padding_between_rows_is_out_of_bounds(compile_ptx):
    source = """extern "C" __global__ void k(const float* a, float* d, int ld, int n) {
      for (int i = 0; i < n; i++) d[i * ld + threadIdx.x] = a[i * ld + threadIdx.x] + 1.f; }"""
    whole = np.zeros((4, 40), np.float32)
    a, d = whole[:, :32] + 0, np.full((4, 40), 5, np.float32)[:, :32]
    a = np.arange(160, dtype=np.float32).reshape(4, 40)[:, :32]
    ptx = compile_ptx(source)
    report = once(ptx, a, d, 40, 4)
    assert report.ok and report.arrays[1].shape == (4, 32)
    np.testing.assert_array_equal(report.arrays[1], a + 1)
    report = once(ptx, a[:, :31], d, 40, 4)
    assert {one.code for one in report.findings} == {"out-of-bounds-global"}
    assert "gap between its rows" in report.findings[0].sentence


def test_transposed_and_exotic_arrays(compile_ptx):
    source = """extern "C" __global__ void k(const unsigned short* a, unsigned short* d) {
      int i = threadIdx.x, j = threadIdx.y; d[j * 8 + i] = a[i * 4 + j]; }"""
    a = np.arange(32).reshape(4, 8).T.astype(ml_dtypes.bfloat16, order="K")
    d = np.zeros((4, 8), ml_dtypes.bfloat16)
    report = once(compile_ptx(source), np.ascontiguousarray(a), d, block=(8, 4, 1))
    assert report.ok and report.arrays[1].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(report.arrays[1].astype(np.float32), a.T.astype(np.float32))


def test_misaligned_view(compile_ptx):
    ptx = compile_ptx(COPY % {"type": "float4"})
    base = np.zeros(200, np.float32)
    report = once(ptx, base[1:], np.zeros(200, np.float32), 32)
    assert [one.code for one in report.findings] == ["misaligned"]


def test_scalars_and_structs(compile_ptx):
    source = """struct P { int a; float b; long long c; };
    extern "C" __global__ void k(double* d, P p, short s, unsigned char u, float f, double g, long long l) {
      d[0] = p.a; d[1] = p.b; d[2] = p.c; d[3] = s; d[4] = u; d[5] = f; d[6] = g; d[7] = l; }"""
    report = once(compile_ptx(source), np.zeros(8), struct.pack("<ifq", -5, 2.5, 1 << 40), np.int16(-3),
                  np.uint8(200), 1.5, np.float64(0.1), -(1 << 50), block=(1, 1, 1))  # fmt: skip
    assert report.arrays[0].tolist() == [-5, 2.5, 1 << 40, -3, 200, 1.5, 0.1, -(1 << 50)]


def test_atomics(compile_ptx):
    source = """extern "C" __global__ void k(int* d, float* f, int* order) {
      __shared__ int s; int t = threadIdx.x;
      if (t == 0) s = 0;
      __syncthreads();
      atomicAdd(&s, t); atomicMax(&d[1], t * 7 % 50); atomicMin(&d[2], -t); atomicOr(&d[3], 1 << t % 8);
      atomicAdd(&f[t % 2], 0.5f); order[t] = atomicAdd(&d[4], 1); atomicCAS(&d[5], 0, t + 1); atomicExch(&d[6], 9);
      __syncthreads();
      if (t == 0) d[0] = s;
    }"""
    report = once(
        compile_ptx(source),
        np.zeros(8, np.int32),
        np.zeros(2, np.float32),
        np.zeros(64, np.int32),
        block=(64, 1, 1),
    )
    assert report.ok, str(report)
    assert report.arrays[0].tolist() == [2016, 49, -63, 255, 64, 1, 9, 0]
    assert report.arrays[1].tolist() == [16, 16]
    assert sorted(report.arrays[2].tolist()) == list(range(64))


def test_local_arrays_and_generic_addresses(compile_ptx):
    source = """__constant__ int table[4] = {5, 6, 7, 8};
    __device__ int twice(const int* p) { return *p * 2; }
    extern "C" __global__ void k(const int* x, int* d) {
      __shared__ int s[32]; int local[8]; int t = threadIdx.x;
      for (int i = 0; i < 8; i++) local[(i + x[t]) & 7] = i * t;
      s[t] = t;
      __syncwarp();
      const int* p = t & 1 ? &s[t] : t & 2 ? &local[x[t] & 7] : &x[t];
      d[t] = twice(p) + table[t & 3];
    }"""
    x = np.arange(3, 35, dtype=np.int32)
    report = once(compile_ptx(source), x, np.zeros(32, np.int32))
    assert report.ok, str(report)
    wanted = [2 * (t if t & 1 else (0 if t & 2 else x[t])) + 5 + (t & 3) for t in range(32)]
    assert report.arrays[1].tolist() == wanted


@pytest.mark.parametrize("size", [4, 8, 16])
def test_cp_async_partial_fill(compile_ptx, size):
    source = """extern "C" __global__ void k(const char* a, unsigned* d) {
      __shared__ __align__(16) unsigned s[128]; int t = threadIdx.x; unsigned at;
      asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(s));
      asm volatile("cp.async.ca.shared.global [%0], [%1], SIZE, %2;" :: "r"(at + t * SIZE), "l"(a + t * SIZE), "r"(t % (SIZE + 1)));
      asm volatile("cp.async.wait_all;" ::: "memory");
      __syncthreads();
      for (int i = 0; i < SIZE / 4; i++) d[t * (SIZE / 4) + i] = s[t * (SIZE / 4) + i];
    }"""
    raw = np.random.default_rng(1).integers(1, 255, 32 * size, dtype=np.uint8)
    ptx = compile_ptx(source.replace("SIZE", str(size)))
    for completion in ("late", "early"):
        report = once(ptx, raw, np.zeros(8 * size, np.uint32), completion=completion)
        assert report.ok, str(report)
        rows = raw.reshape(32, size).copy()
        for t in range(32):
            rows[t, t % (size + 1) :] = 0
        np.testing.assert_array_equal(report.arrays[1].view(np.uint8).reshape(32, size), rows)


def test_shared_races_between_warps(compile_ptx):
    source = """extern "C" __global__ void k(int* d) {
      __shared__ int s[64]; int t = threadIdx.x;
      s[t] = t; SYNC; d[t] = s[63 - t]; }"""
    good = once(
        compile_ptx(source.replace("SYNC", "__syncthreads()")),
        np.zeros(64, np.int32),
        block=(64, 1, 1),
    )
    assert good.ok and good.arrays[0].tolist() == list(range(63, -1, -1))
    bad = once(compile_ptx(source.replace("SYNC", "")), np.zeros(64, np.int32), block=(64, 1, 1))
    assert [one.code for one in bad.findings] == ["race-write-read"]
    source = """extern "C" __global__ void k(int* d) {
      __shared__ int s[1]; s[0] = threadIdx.x; __syncthreads(); d[0] = s[0]; }"""
    both = once(compile_ptx(source), np.zeros(64, np.int32), block=(64, 1, 1))
    assert [one.code for one in both.findings] == ["race-write-write"]


def test_named_barriers_between_producer_and_consumer(compile_ptx):
    source = """extern "C" __global__ void k(int* d) {
      __shared__ int s[32]; int t = threadIdx.x;
      if (t < 32) { s[t] = t + 1; asm volatile("bar.arrive 1, 64;" ::: "memory"); }
      else { asm volatile("bar.sync 1, 64;" ::: "memory"); d[t - 32] = s[t - 32]; } }"""
    report = once(compile_ptx(source), np.zeros(32, np.int32), block=(64, 1, 1))
    assert report.ok, str(report)
    assert report.arrays[0].tolist() == list(range(1, 33))
    wrong = source.replace("bar.arrive 1, 64", "bar.arrive 2, 64")
    report = once(compile_ptx(wrong), np.zeros(32, np.int32), block=(64, 1, 1))
    assert "deadlock" in {one.code for one in report.findings}


@pytest.mark.parametrize("writer", [0, 1])
def test_who_arrives_publishes_what_it_did_before(compile_ptx, writer):
    """`bar.arrive` goes on: what follows it is not ordered, whichever warp the machine runs first."""
    source = """extern "C" __global__ void k(int* d) {
      __shared__ int s[32]; int t = threadIdx.x % 32;
      if (threadIdx.x < 32) s[t] = 0;
      __syncthreads();
      if (threadIdx.x / 32 == WRITER) { WRITES }
      else { asm volatile("bar.sync 1, 64;" ::: "memory"); d[t] = s[t]; } }"""
    arrive = 'asm volatile("bar.arrive 1, 64;" ::: "memory");'
    source = source.replace("WRITER", str(writer))
    right = source.replace("WRITES", f"s[t] = t + 1; {arrive}")
    report = once(compile_ptx(right), np.zeros(32, np.int32), block=(64, 1, 1))
    assert report.ok and report.arrays[0].tolist() == list(range(1, 33)), str(report)
    for wrong in (f"{arrive} s[t] = t + 1;", f"s[t] = t; {arrive} s[t] = t + 1;"):
        text = source.replace("WRITES", wrong)
        report = once(compile_ptx(text), np.zeros(32, np.int32), block=(64, 1, 1))
        codes = {one.code for one in report.findings}
        assert codes and codes <= {"race-write-read", "race-read-write"}, str(report)


def test_launches_stay_within_the_bounds_of_the_kernel_and_of_its_target(compile_ptx):
    source = """extern "C" __global__ void BOUNDS k(int* d) { d[threadIdx.x] = 1; }"""
    bounded = compile_ptx(source.replace("BOUNDS", "__launch_bounds__(64)"))
    assert once(bounded, np.zeros(96, np.int32), block=(64, 1, 1)).ok
    with pytest.raises(LaunchError, match=r"96 threads.*\.maxntid.*At most 64"):
        once(bounded, np.zeros(96, np.int32), block=(96, 1, 1))
    exact = bounded.replace(".maxntid 64", ".reqntid 64")
    assert exact != bounded and once(exact, np.zeros(96, np.int32), block=(64, 1, 1)).ok
    with pytest.raises(LaunchError, match=r"a block of \(32, 1, 1\).*reqntid is \(64, 1, 1\)"):
        once(exact, np.zeros(96, np.int32), block=(32, 1, 1))
    free = source.replace("BOUNDS", "")
    for arch, most in (("sm_80", 166912), ("sm_90", 232448)):
        ptx = compile_ptx(free, arch)
        arguments = (np.zeros(32, np.int32),)
        assert run(ptx, Launch((1, 1, 1), (32, 1, 1), most, arguments)).ok
        with pytest.raises(LaunchError, match=f"A block has at most {most}"):
            run(ptx, Launch((1, 1, 1), (32, 1, 1), most + 1, arguments))


def test_barrier_reduction(compile_ptx):
    source = """extern "C" __global__ void k(int* d) {
      int t = threadIdx.x; d[t] = __syncthreads_count(t % 3 == 0) + 100 * __syncthreads_or(t == 5) + 1000 * __syncthreads_and(t < 64); }"""
    report = once(compile_ptx(source), np.zeros(64, np.int32), block=(64, 1, 1))
    assert report.ok, str(report)
    assert set(report.arrays[0].tolist()) == {22 + 100 + 1000}


def test_many_blocks_and_odd_block_sizes(compile_ptx):
    source = """extern "C" __global__ void k(int* d) {
      int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      __syncthreads();
      d[b * 45 + t] = b * 1000 + t; }"""
    report = once(
        compile_ptx(source), np.zeros(45 * 1000, np.int32), grid=(10, 10, 10), block=(5, 3, 3)
    )
    assert report.ok
    wanted = (np.arange(1000)[:, None] * 1000 + np.arange(45)).ravel()
    np.testing.assert_array_equal(report.arrays[0], wanted)


# --- errors --------------------------------------------------------------------------------------
def test_endless_loop(compile_ptx):
    source = 'extern "C" __global__ void k(volatile int* d) { while (d[0] == 0) d[1] = 1; }'
    with pytest.raises(StepLimit, match="PTX line"):
        once(compile_ptx(source), np.zeros(2, np.int32), max_steps=500)


def test_launches_that_do_not_fit(compile_ptx):
    ptx = compile_ptx(COPY % {"type": "int"})
    a = np.zeros(4, np.int32)
    with pytest.raises(LaunchError, match="2 arguments for 3 parameters"):
        once(ptx, a, a)
    with pytest.raises(LaunchError, match="shared memory"):
        once(ptx, a, a, 1, shared=300_000)
    with pytest.raises(LaunchError, match="200000 bytes of dynamic"):  # of sm_80
        once(ptx, a, a, 1, shared=200_000)
    once(compile_ptx(COPY % {"type": "int"}, "sm_90"), a, a, 1, shared=200_000)
    with pytest.raises(LaunchError, match="2048 threads"):
        once(ptx, a, a, 1, block=(2048, 1, 1))
    with pytest.raises(LaunchError, match="three positive"):
        once(ptx, a, a, 1, grid=(0, 1, 1))
    with pytest.raises(LaunchError, match="does not fit in 4 bytes"):
        once(ptx, a, a, 1 << 40)
    with pytest.raises(LaunchError, match="parameter of 4 bytes"):
        once(ptx, a, a, a)
    with pytest.raises(LaunchError, match="negative stride"):
        once(ptx, a[::-1], a, 1)
    with pytest.raises(LaunchError, match="no kernel named"):
        run(ptx, Launch((1, 1, 1), (1, 1, 1), 0, (a, a, 1), "other"))
    with pytest.raises(LaunchError, match="completion"):
        once(ptx, a, a, 1, completion="sometimes")


def test_malformed_ptx(compile_ptx):
    ptx = compile_ptx(COPY % {"type": "int"})
    a = np.zeros(4, np.int32)
    with pytest.raises(PtxError):
        once(ptx[: len(ptx) // 2], a, a, 1)
    with pytest.raises(PtxError, match=r"no \.entry"):
        once("", a, a, 1)
    with pytest.raises(PtxError, match="frobnicate") as caught:
        once(ptx.replace("ret;", "frobnicate.b32 %r1;\nret;"), a, a, 1)
    assert (
        "frobnicate"
        in ptx.replace("ret;", "frobnicate.b32 %r1;\nret;").splitlines()[caught.value.line - 1]
    )


def test_races_between_lanes_of_a_warp(compile_ptx):
    source = """extern "C" __global__ void k(int* d) {
      __shared__ int s[32]; int t = threadIdx.x;
      s[t] = t; SYNC d[t] = s[31 - t]; SYNC s[t ^ 1] = 5; SYNC d[t] += s[t]; }"""
    good = once(compile_ptx(source.replace("SYNC", "__syncwarp();")), np.zeros(32, np.int32))
    assert good.ok, str(good)
    bad = once(
        compile_ptx(source.replace("SYNC", "", 1).replace("SYNC", "__syncwarp();")),
        np.zeros(32, np.int32),
    )
    assert [one.code for one in bad.findings] == ["race-write-read"]
    assert "lane 31 of warp 0" in bad.findings[0].sentence
    # without the second one a lane may overwrite what its neighbour still has to read
    parts = source.split("SYNC")
    text = parts[0] + "__syncwarp();" + parts[1] + parts[2] + "__syncwarp();" + parts[3]
    bad = once(compile_ptx(text), np.zeros(32, np.int32))
    assert [one.code for one in bad.findings] == ["race-read-write"]


def test_threads_that_left_do_not_block_a_barrier(compile_ptx):
    source = """extern "C" __global__ void k(int* d, int n) {
      __shared__ int s[96]; int t = threadIdx.x;
      if (t >= n) return;
      s[t] = t; __syncthreads(); d[t] = s[n - 1 - t]; }"""
    for n in (96, 64, 40):
        report = once(compile_ptx(source), np.zeros(96, np.int32), n, block=(96, 1, 1))
        assert report.ok, str(report)
        assert report.arrays[0][:n].tolist() == list(range(n - 1, -1, -1))


def test_spinning_on_another_thread(compile_ptx):
    source = """extern "C" __global__ void k(volatile int* d) {
      int t = threadIdx.x;
      if (t < 32) { while (d[0] == 0) {} d[1 + t] = d[0]; }
      else if (t == 32) { for (int i = 0; i < 50; i++) d[40] += i; d[0] = 7; } }"""
    report = once(compile_ptx(source), np.zeros(64, np.int32), block=(64, 1, 1))
    assert report.ok and report.arrays[0][:33].tolist() == [7] * 33 and report.arrays[0][40] == 1225


def test_shuffle_of_half_a_warp(compile_ptx):
    source = """extern "C" __global__ void k(int* d, int n) {
      int t = threadIdx.x, v = t;
      if (t < 16) { v = __shfl_xor_sync(0xffff, v, 1); v += __popc(__activemask()); }
      else { for (int i = 0; i < n; i++) v += d[32 + i]; v = __shfl_sync(MASK, v, 20); }
      d[t] = v; }"""
    good = once(compile_ptx(source.replace("MASK", "0xffff0000")), np.zeros(64, np.int32), 5)
    assert good.ok, str(good)
    assert good.arrays[0][:32].tolist() == [(t ^ 1) + 16 for t in range(16)] + [20] * 16
    bad = once(compile_ptx(source.replace("MASK", "0xffffffff")), np.zeros(64, np.int32), 5)
    assert [one.code for one in bad.findings] == ["divergent-warp-operation"]


def test_trap_is_a_finding(compile_ptx):
    source = 'extern "C" __global__ void k(int* d) { if (threadIdx.x == 3) asm volatile("trap;"); d[threadIdx.x] = 1; }'
    report = once(compile_ptx(source), np.zeros(32, np.int32))
    assert [one.code for one in report.findings] == ["trap"]


def test_conflicting_global_stores(compile_ptx):
    source = """extern "C" __global__ void k(int* d, int n) {
      int t = threadIdx.x; d[blockIdx.x * n + t] = t; SYNC if (t == 0) d[blockIdx.x * n + 32] = 99; }"""
    ordered = compile_ptx(source.replace("SYNC", "__syncthreads();"))
    report = once(ordered, np.zeros(128, np.int32), 64, block=(64, 1, 1), grid=(2, 1, 1))
    assert report.ok, str(report)
    unordered = compile_ptx(source.replace("SYNC", ""))
    report = once(unordered, np.zeros(128, np.int32), 64, block=(64, 1, 1), grid=(2, 1, 1))
    assert [one.code for one in report.findings] == ["race-write-write"]
    assert (
        "argument 0" in report.findings[0].sentence and "of warp 1" in report.findings[0].sentence
    )
    report = once(ordered, np.zeros(128, np.int32), 60, block=(64, 1, 1), grid=(2, 1, 1))
    assert [one.code for one in report.findings] == ["race-write-write"]
    assert "store" in report.findings[0].sentence


def test_equal_global_stores_are_harmless(compile_ptx):
    source = 'extern "C" __global__ void k(int* d) { d[0] = 5; d[1] = threadIdx.x; }'
    report = once(compile_ptx(source), np.zeros(2, np.int32), block=(64, 1, 1))
    assert [one.code for one in report.findings] == ["race-write-write"]
    assert "byte 4" in report.findings[0].sentence


def test_struct_parameter_through_a_pointer(compile_ptx):
    source = """struct P { int a[8]; };
    extern "C" __global__ void k(int* d, const __grid_constant__ P p, int n) {
      const int* q = n ? p.a : d; d[threadIdx.x] = q[threadIdx.x % 8] + p.a[(threadIdx.x + 1) % 8]; }"""
    values = np.arange(10, 18, dtype=np.int32)
    report = once(compile_ptx(source), np.zeros(32, np.int32), values.tobytes(), 1)
    assert report.ok, str(report)
    assert report.arrays[0][:8].tolist() == (values + np.roll(values, -1)).tolist()


@pytest.mark.parametrize(
    "value, found", [("t", {"race-write-write"}), ("7", set()), ("t / 32", set())]
)
def test_lanes_that_store_different_values_to_one_place(compile_ptx, value, found):
    source = """
extern "C" __global__ void k(int* out) {
  __shared__ int s[4]; const int t = threadIdx.x;
  ((volatile int*)s)[t / 32] = VALUE;
  __syncthreads(); out[t] = s[t / 32];
}"""
    ptx = compile_ptx(source.replace("VALUE", value))
    report = run(ptx, Launch((1, 1, 1), (64, 1, 1), 0, (np.zeros(64, np.int32),)))
    assert {finding.code for finding in report.findings} == found, str(report)
