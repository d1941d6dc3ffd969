# ruff: noqa: E501 - CUDA and PTX text
"""TMA boxes of every rank, swizzle and edge, linear bulk copies, stores, reductions, clusters."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from float_samples import nearest_tf32, patterns

from polygen.errors import LaunchError
from polygen.machine import Launch, TensorMap, run

COMMON = """
typedef unsigned int word;
struct __align__(64) Map { unsigned long long words[16]; };
__device__ __forceinline__ word shared_address(const void* p) {
  word a; asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(a) : "l"(p)); return a; }
__device__ __forceinline__ void init(word at, word n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(n) : "memory"); }
__device__ __forceinline__ void expect(word at, word n) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(n) : "memory"); }
__device__ __forceinline__ void arrive(word at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory"); }
__device__ __forceinline__ void wait(word at, word parity) {
  asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L; }" :: "r"(at), "r"(parity) : "memory"); }
#define FENCE_INIT asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory")
#define FENCE_ASYNC asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
"""

LOAD = (
    COMMON
    + """
extern "C" __global__ void k(const __grid_constant__ Map map, uint4* out, int c0, int c1, int c2, int c3, int c4) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const word base = shared_address(memory), barrier = base + BYTES;
  if (threadIdx.x == 0) { init(barrier, 1); FENCE_INIT; }
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(barrier, BYTES);
    asm volatile("cp.async.bulk.tensor.RANKd.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {COORDS}], [%2];"
      :: "r"(base), "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
  }
  wait(barrier, 0);
  for (int i = threadIdx.x; i < BYTES / 16; i += blockDim.x) out[i] = ((uint4*)memory)[i];
}
"""
)

STORE = (
    COMMON
    + """
extern "C" __global__ void k(const __grid_constant__ Map map, const uint4* in, int c0, int c1, int c2, int c3, int c4) {
  extern __shared__ __align__(1024) unsigned char memory[];
  for (int i = threadIdx.x; i < BYTES / 16; i += blockDim.x) ((uint4*)memory)[i] = in[i];
  FENCE_ASYNC;
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("OPERATION.RANKd.global.shared::cta.KIND.bulk_group [%1, {COORDS}], [%0];"
      :: "r"(shared_address(memory)), "l"(&map), "r"(0), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
"""
)


def text(
    template: str, rank: int, size: int, operation: str = "cp.async.bulk.tensor", kind: str = "tile"
) -> str:
    coordinates = ", ".join(f"%{3 + i}" for i in range(rank))
    return (
        template.replace("RANK", str(rank)).replace("BYTES", str(size)).replace("COORDS", coordinates)
        .replace("OPERATION", operation).replace("KIND", kind)
    )  # fmt: skip


def unswizzled(raw: np.ndarray, span: int) -> np.ndarray:
    """Chunks back in row order: chunk c of 128-byte line l sits at c ^ (l mod something)."""
    chunks = raw.reshape(-1, 16).copy()
    lines = np.arange(len(chunks)) // 8
    mask = {0: 0, 32: 1, 64: 3, 128: 7}[span]
    return chunks[np.arange(len(chunks)) ^ (lines & mask)]


def window(array: np.ndarray, corner: tuple[int, ...], box: tuple[int, ...], fill=0) -> np.ndarray:
    """The box at `corner`, filled outside."""
    result = np.full(box, fill, array.dtype)
    for index in np.ndindex(box):
        at = tuple(i + c for i, c in zip(index, corner, strict=True))
        if all(0 <= i < n for i, n in zip(at, array.shape, strict=True)):
            result[index] = array[at]
    return result


def load(compile_ptx, array, box, corner, swizzle=0, completion="late", **options):
    size = int(np.prod(box)) * array.itemsize
    out = np.zeros(size, np.uint8)
    coordinates = [*reversed(corner), 0, 0, 0, 0][:5]
    launch = Launch(
        (1, 1, 1),
        (64, 1, 1),
        size + 16,
        (TensorMap(array, box, swizzle, **options), out, *coordinates),
    )
    report = run(compile_ptx(text(LOAD, array.ndim, size), "sm_90a"), launch, completion=completion)
    return report, report.arrays[1]


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("completion", ["late", "early"])
def test_load_every_rank(compile_ptx, rank, completion):
    shape, box = (3, 4, 5, 6, 32)[5 - rank :], (2, 2, 3, 4, 16)[5 - rank :]
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    corner = tuple([1, -1, 3, 4, 24][5 - rank :])
    report, raw = load(compile_ptx, array, box, corner, completion=completion)
    assert report.ok, str(report)
    np.testing.assert_array_equal(raw.view(np.float32).reshape(box), window(array, corner, box))


def test_a_box_of_every_second_row(compile_ptx):
    """A map that leaves nothing out loads other rows."""
    array = np.arange(40 * 16, dtype=np.float16).reshape(40, 16)
    for every, wanted in (((2, 1), array[3:19:2]), ((1, 1), array[3:11])):
        report, raw = load(compile_ptx, array, (8, 16), (3, 0), every=every)
        assert report.ok, str(report)
        np.testing.assert_array_equal(raw.view(np.float16).reshape(8, 16), wanted)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("dtype", [np.float16, np.uint8, np.float32])
def test_load_swizzles(compile_ptx, swizzle, dtype):
    inner = (swizzle or 64) // np.dtype(dtype).itemsize
    array = np.random.default_rng(0).integers(0, 100, (40, 2 * inner)).astype(dtype)
    box = (32, inner)
    report, raw = load(compile_ptx, array, box, (20, inner // 2), swizzle)
    assert report.ok, str(report)
    # the box starts at a multiple of the pattern, so plain line numbers give the pattern
    wanted = window(array, (20, inner // 2), box)
    got = unswizzled(raw, swizzle).reshape(-1).view(dtype).reshape(box)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "corner", [(-8, 0), (0, -16), (36, 0), (0, 56), (39, 56), (40, 64), (-32, -64), (-31, 56)]
)
@pytest.mark.parametrize("swizzle", [0, 128])
def test_load_bounds(compile_ptx, corner, swizzle):
    array = np.random.default_rng(1).integers(1, 100, (40, 64)).astype(np.uint16)
    report, raw = load(compile_ptx, array, (32, 64), corner, swizzle)
    assert report.ok, str(report)
    got = unswizzled(raw, swizzle).reshape(-1).view(np.uint16).reshape(32, 64)
    np.testing.assert_array_equal(got, window(array, corner, (32, 64)))


@pytest.mark.parametrize("first", [1, 7, 12, 63, -1])
def test_a_box_starts_at_whole_16_bytes(compile_ptx, first):
    """An H200 stops such a load with an illegal instruction."""
    array = np.ones((40, 64), np.uint16)
    launch = Launch(
        (1, 1, 1), (64, 1, 1), 8 * 32 + 16,
        (TensorMap(array, (8, 16)), np.zeros(256, np.uint8), first, 2, 0, 0, 0),
    )  # fmt: skip
    report = run(compile_ptx(text(LOAD, 2, 256), "sm_90a"), launch)
    assert [f.code for f in report.findings] == ["misaligned"]
    assert f"{2 * first} bytes into a row" in report.findings[0].sentence


PARITY = (
    COMMON
    + """
__device__ __forceinline__ word done(word at, word parity) {
  word r; asm volatile("{ .reg .pred p; mbarrier.WAIT.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
    : "=r"(r) : "r"(at), "r"(parity) : "memory"); return r; }
extern "C" __global__ void k(word* out) {
  __shared__ __align__(8) unsigned long long barrier[1];
  const word at = shared_address(barrier);
  if (threadIdx.x == 0) init(at, 32);
  __syncthreads();
  for (int phase = 0; phase < 5; phase++) {
    out[phase * 96 + threadIdx.x] = done(at, (phase & 1) ^ 1);
    out[phase * 96 + 32 + threadIdx.x] = done(at, phase & 1);
    __syncwarp();
    arrive(at);
    __syncwarp();
    out[phase * 96 + 64 + threadIdx.x] = done(at, phase & 1);
    __syncwarp();
  }
}
"""
)


@pytest.mark.parametrize("kind", ["test_wait", "try_wait"])
def test_parity_of_the_phases(compile_ptx, kind):
    """Before anybody arrives the previous phase is over, even the one before the first."""
    launch = Launch((1, 1, 1), (32, 1, 1), 0, (np.full((5, 3, 32), 7, np.uint32),))
    report = run(compile_ptx(PARITY.replace("WAIT", kind), "sm_90"), launch)
    assert report.ok, str(report)
    assert (report.arrays[0] == np.array([1, 0, 1])[None, :, None]).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_fill_with_nan(compile_ptx, dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    report, raw = load(compile_ptx, np.ones((8, 16), kind), (8, 16), (4, 8), nan_fill=True)
    got = raw.view(kind).astype(np.float32).reshape(8, 16)
    assert report.ok and np.isnan(got).sum() == 128 - 32 and (got[:4, :8] == 1).all()
    bits = raw.view(f"u{kind.itemsize}").reshape(8, 16)
    assert (bits[7, 15] & 0xFFFF) == 0x7FF7  # what an H200 writes, whatever the type
    assert len(np.unique(bits[4:])) == 1


@pytest.mark.parametrize("nan_fill", [False, True])
def test_tf32_loads_round(compile_ptx, nan_fill):
    """To the nearest number with ten mantissa bits, ties to even; NaN of all kinds becomes one."""
    array = patterns().view(np.float32).reshape(16, 32)
    report, raw = load(
        compile_ptx, array, (16, 32), (2, 4), swizzle=128, kind="tf32", nan_fill=nan_fill
    )
    assert report.ok, str(report)
    got = unswizzled(raw, 128).reshape(-1).view(np.float32).reshape(16, 32)
    fill = np.float32(np.nan if nan_fill else 0)
    wanted = window(nearest_tf32(array), (2, 4), (16, 32), fill)
    np.testing.assert_array_equal(got, wanted)
    inside = window(np.ones((16, 32), bool), (2, 4), (16, 32), False)
    assert (got.view(np.uint32)[inside & np.isnan(wanted)] == 0x7FFFE000).all()
    signed = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(got)[signed], np.signbit(wanted)[signed])
    assert np.isinf(got).sum() > np.isinf(array).sum()  # the largest numbers round to infinity


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint8"])
def test_other_loads_keep_all_bits(compile_ptx, dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    array = patterns().view(kind).reshape(16, -1)
    report, raw = load(compile_ptx, array, array.shape, (0, 0))
    assert report.ok, str(report)
    assert raw.tobytes() == array.tobytes()


def test_tf32_stores_keep_all_bits(compile_ptx):
    values = patterns().view(np.float32).reshape(16, 32)
    empty = TensorMap(np.zeros((16, 32), np.float32), (16, 32), kind="tf32")
    launch = Launch((1, 1, 1), (64, 1, 1), values.nbytes, (empty, values, 0, 0, 0, 0, 0))
    report = run(compile_ptx(text(STORE, 2, values.nbytes), "sm_90a"), launch)
    assert report.ok, str(report)
    assert report.arrays[0].tobytes() == values.tobytes()


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("completion", ["late", "early", "random"])
def test_store_clips(compile_ptx, rank, completion):
    shape, box = (5, 6, 32)[3 - rank :], (2, 4, 16)[3 - rank :]
    corner = (4, 4, 24)[3 - rank :]
    values = np.arange(np.prod(box), dtype=np.float32).reshape(box)
    array = np.full(shape, -1, np.float32)
    coordinates = [*reversed(corner), 0, 0, 0, 0][:5]
    ptx = compile_ptx(text(STORE, rank, values.nbytes), "sm_90a")
    launch = Launch(
        (1, 1, 1), (64, 1, 1), values.nbytes, (TensorMap(array, box), values, *coordinates)
    )
    report = run(ptx, launch, completion=completion)
    assert report.ok, str(report)
    wanted = array.copy()
    for index in np.ndindex(box):
        at = tuple(i + c for i, c in zip(index, corner, strict=True))
        if all(i < n for i, n in zip(at, shape, strict=True)):
            wanted[at] = values[index]
    np.testing.assert_array_equal(report.arrays[0], wanted)


def test_reduction(compile_ptx):
    values = np.arange(128, dtype=np.float32).reshape(8, 16)
    ptx = compile_ptx(text(STORE, 2, 512, "cp.reduce.async.bulk.tensor", "add.tile"), "sm_90a")
    launch = Launch(
        (2, 1, 1),
        (64, 1, 1),
        512,
        (TensorMap(np.ones((8, 16), np.float32), (8, 16)), values, 0, 0, 0, 0, 0),
    )
    report = run(ptx, launch)
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.arrays[0], 1 + 2 * values)


def test_linear_copies(compile_ptx):
    source = (
        COMMON
        + """
extern "C" __global__ void k(const unsigned* in, unsigned* out) {
  __shared__ __align__(128) unsigned data[256]; __shared__ __align__(8) unsigned long long barrier[1];
  const word at = shared_address(data), full = shared_address(barrier);
  if (threadIdx.x == 0) { init(full, 1); FENCE_INIT; expect(full, 1024);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" :: "r"(at), "l"(in), "r"(full) : "memory"); }
  __syncthreads();
  wait(full, 0);
  for (int i = threadIdx.x; i < 256; i += 64) data[i] += 1;
  FENCE_ASYNC;
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" :: "l"(out), "r"(at) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); } }"""
    )
    data = np.arange(256, dtype=np.uint32)
    for completion in ("late", "early"):
        report = run(
            compile_ptx(source, "sm_90a"),
            Launch((1, 1, 1), (64, 1, 1), 0, (data, np.zeros_like(data))),
            completion=completion,
        )
        assert report.ok, str(report)
        np.testing.assert_array_equal(report.arrays[1], data + 1)
    report = run(
        compile_ptx(source, "sm_90a"),
        Launch((1, 1, 1), (64, 1, 1), 0, (data[:200].copy(), np.zeros_like(data))),
    )
    assert [one.code for one in report.findings] == ["out-of-bounds-global"]


def test_cp_async_arrives_on_an_mbarrier(compile_ptx):
    source = (
        COMMON
        + """
extern "C" __global__ void k(const uint4* in, uint4* out) {
  __shared__ __align__(128) uint4 data[32]; __shared__ __align__(8) unsigned long long barrier[1];
  const word at = shared_address(data), full = shared_address(barrier);
  if (threadIdx.x == 0) { init(full, 32); }
  __syncthreads();
  if (threadIdx.x < 32) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at + threadIdx.x * 16), "l"(in + threadIdx.x) : "memory");
    ARRIVE;
  } else { wait(full, 0); out[threadIdx.x - 32] = data[63 - threadIdx.x]; } }"""
    )
    good = source.replace(
        "ARRIVE",
        'asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(full) : "memory")',
    )
    data = np.arange(128, dtype=np.uint32)
    for completion in ("late", "early"):
        report = run(
            compile_ptx(good, "sm_90a"),
            Launch((1, 1, 1), (64, 1, 1), 0, (data, np.zeros_like(data))),
            completion=completion,
        )
        assert report.ok, str(report)
        np.testing.assert_array_equal(report.arrays[1].reshape(32, 4), data.reshape(32, 4)[::-1])
    report = run(
        compile_ptx(source.replace("ARRIVE", "arrive(full)"), "sm_90a"),
        Launch((1, 1, 1), (64, 1, 1), 0, (data, np.zeros_like(data))),
    )
    assert "in-flight-access" in {one.code for one in report.findings}


CLUSTER = (
    COMMON
    + """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const __grid_constant__ Map map, unsigned* out) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ unsigned extra[1];
  const word base = shared_address(memory), full = base + 2048, empty = full + 8;
  word rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) { init(full, 1); init(empty, 2); FENCE_INIT; extra[0] = 100 + rank; }
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  for (int step = 0; step < 2; step++) {
    if (threadIdx.x == 0) {
      if (step) wait(empty, 0);
      expect(full, 2048);
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
        :: "r"(base + rank * 1024), "l"(&map), "r"(full), "r"(0), "r"(step * 32 + (int)rank * 16), "h"((unsigned short)3) : "memory");
    }
    wait(full, step);
    out[(step * 2 + rank) * 512 + threadIdx.x] = ((unsigned*)memory)[threadIdx.x];
    out[(step * 2 + rank) * 512 + 256 + threadIdx.x] = ((unsigned*)memory)[256 + threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 2 && step == 0) {
      asm volatile("{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }"
        :: "r"(empty), "r"(threadIdx.x) : "memory");
    }
  }
  word other, value; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(shared_address(extra)), "r"(rank ^ 1));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(other) : "memory");
  if (threadIdx.x == 0) out[2048 + rank] = value;
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
"""
)


def cluster(compile_ptx, source, **options):
    array = np.arange(64 * 16, dtype=np.uint32).reshape(64, 16)
    launch = Launch(
        (2, 1, 1), (256, 1, 1), 2048 + 16, (TensorMap(array, (16, 16)), np.zeros(2050, np.uint32))
    )
    return run(compile_ptx(source, "sm_90a"), launch, **options), array


@pytest.mark.parametrize("completion", ["late", "early", "random"])
def test_cluster_multicast(compile_ptx, completion):
    report, array = cluster(compile_ptx, CLUSTER, completion=completion)
    assert report.ok, str(report)
    got = report.arrays[1]
    for step in range(2):
        for rank in range(2):
            part = got[(step * 2 + rank) * 512 :][:512]
            np.testing.assert_array_equal(part, array[step * 32 : step * 32 + 32].ravel())
    assert got[2048:].tolist() == [101, 100]


CLUSTER_FAULTS = [
    ("no cluster barrier at the start", 'asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");\n'
     '  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");', "__syncthreads();",
     {"race-write-read", "uninitialised-shared-read"}),
    ("relaxed arrival without a fence", 'FENCE_INIT; extra[0] = 100 + rank; }\n  asm volatile("barrier.cluster.arrive.release.aligned;"',
     'extra[0] = 100 + rank; }\n  asm volatile("barrier.cluster.arrive.relaxed.aligned;"', {"race-write-read"}),
    ("half the bytes", "expect(full, 2048)", "expect(full, 1024)", {"race-write-read", "in-flight-access", "deadlock", "race-write-write"}),
    ("mask misses the peer", "(unsigned short)3", "(unsigned short)(1 << rank)", {"deadlock"}),
    ("only one release", "threadIdx.x < 2 && step", "threadIdx.x < 1 && step", {"deadlock"}),
    ("own block released twice", '"r"(empty), "r"(threadIdx.x)', '"r"(empty), "r"(rank)', {"race-read-write", "race-write-write"}),
    ("no wait on empty", "if (step) wait(empty, 0);", "", {"race-read-write", "in-flight-access", "race-write-write"}),
    ("no block barrier before the release", "__syncthreads();\n    if (threadIdx.x < 2", "if (threadIdx.x < 2", {"race-read-write"}),
    ("arrives twice", 'asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");',
     'asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");', {"barrier-count"}),
]  # fmt: skip


@pytest.mark.parametrize("fault", CLUSTER_FAULTS, ids=[fault[0] for fault in CLUSTER_FAULTS])
def test_cluster_fault_is_found(compile_ptx, fault):
    _, wrong, replacement, codes = fault
    assert wrong in CLUSTER
    report, _ = cluster(compile_ptx, CLUSTER.replace(wrong, replacement))
    assert codes & {one.code for one in report.findings}, str(report)


def test_grid_must_be_whole_clusters(compile_ptx):
    array = np.zeros((64, 16), np.uint32)
    with pytest.raises(LaunchError, match="multiple of the cluster"):
        run(
            compile_ptx(CLUSTER, "sm_90a"),
            Launch((3, 1, 1), (256, 1, 1), 4096, (TensorMap(array, (16, 16)), array)),
        )


@pytest.mark.parametrize(
    "array, box, swizzle, words",
    [
        (np.zeros((8, 20), np.float16), (8, 16), 0, "stride of 40 bytes"),
        (np.zeros((8, 32), np.float16), (8, 12), 0, "inner box of 24 bytes"),
        (np.zeros((8, 32), np.float16), (8,), 0, "box of 1 axes"),
        (np.zeros((8, 512), np.uint8), (8, 512), 0, "Sides are 1 to 256"),
        (np.zeros((8, 64), np.float16), (8, 32), 128, "with swizzle 128"),
        (np.zeros((8, 64), np.float16), (8, 64), 48, "swizzle 48"),
        (np.zeros((64, 8), np.float16).T, (8, 8), 0, "not contiguous"),
    ],
)
def test_tensor_maps_the_driver_refuses(compile_ptx, array, box, swizzle, words):
    with pytest.raises(LaunchError, match=words):
        launch = Launch(
            (1, 1, 1),
            (64, 1, 1),
            4096,
            (TensorMap(array, box, swizzle), np.zeros(4, np.uint8), 0, 0, 0, 0, 0),
        )
        run(compile_ptx(text(LOAD, 2, 512), "sm_90a"), launch)


@pytest.mark.parametrize(
    "every, words",
    [
        ((2, 2), r"every \(2, 2\) elements"),
        ((9, 1), "1 to 8"),
        ((2,), "1 to 8"),
        ((4, 1), r"box \(80, 16\) of every \(4, 1\) elements"),
    ],
)
def test_boxes_that_leave_out_what_the_driver_refuses(compile_ptx, every, words):
    one = TensorMap(np.zeros((400, 16), np.float16), (80, 16), every=every)
    launch = Launch((1, 1, 1), (64, 1, 1), 4096, (one, np.zeros(4, np.uint8), 0, 0, 0, 0, 0))
    with pytest.raises(LaunchError, match=words):
        run(compile_ptx(text(LOAD, 2, 512), "sm_90a"), launch)


@pytest.mark.parametrize(
    "kind, dtype, words",
    [("tf32", np.float16, "kind 'tf32' over float16"), ("tf16", np.float32, "kind 'tf16'")],
)
def test_kinds_of_maps(compile_ptx, kind, dtype, words):
    one = TensorMap(np.zeros((8, 16), dtype), (8, 16), kind=kind)
    launch = Launch((1, 1, 1), (64, 1, 1), 4096, (one, np.zeros(4, np.uint8), 0, 0, 0, 0, 0))
    with pytest.raises(LaunchError, match=words):
        run(compile_ptx(text(LOAD, 2, 512), "sm_90a"), launch)


def test_raw_bytes_are_no_tensor_map(compile_ptx):
    launch = Launch(
        (1, 1, 1), (64, 1, 1), 4096, (bytes(128), np.zeros(512, np.uint8), 0, 0, 0, 0, 0)
    )
    report = run(compile_ptx(text(LOAD, 2, 512), "sm_90a"), launch)
    assert [one.code for one in report.findings] == ["bad-descriptor"]
