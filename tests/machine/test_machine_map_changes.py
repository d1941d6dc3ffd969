# ruff: noqa: E501 - CUDA text
"""Tensor maps that kernels change, or make: what they load, and every fence that is missing."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gpu_twin import run_within

from polygen.errors import PtxError
from polygen.machine import Launch, TensorMap, run

ROWS, COLUMNS, GROUPS = 8, 32, 3

COMMON = """
struct __align__(64) Map { unsigned char bytes[128]; };
__device__ unsigned shared_of(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void wait_for(unsigned barrier, unsigned phase) {
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra D; bra W; D: }" :: "r"(barrier), "r"(phase) : "memory");
}
__device__ void load_box(unsigned to, const void* map, unsigned barrier, int column, int row) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(BYTES) : "memory");
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" :: "r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row) : "memory");
}
__device__ void begin(unsigned barrier) {
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\\n\\tfence.mbarrier_init.release.cluster;\\n\\tfence.proxy.async;" :: "r"(barrier) : "memory");
  __syncthreads();
}
""".replace("BYTES", str(4 * ROWS * COLUMNS))

# One thread changes a map in shared memory for every group, and copies it to global memory.
GROUPED = (
    COMMON
    + """
extern "C" __global__ void k(const __grid_constant__ Map base, Map* maps, const unsigned* x, const int* rows, unsigned* y) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ unsigned long long barrier; unsigned to = shared_of(memory), full = shared_of(&barrier);
  Map* mine = (Map*)(memory + 1024);
  begin(full);
  if (threadIdx.x == 0) *mine = base;
  int begin_row = 0;
  for (int group = 0; group < 3; ++group) {
    if (threadIdx.x == 0) {
      asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" :: "r"(shared_of(mine)), "l"(x + begin_row * 32) : "memory");
      asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" :: "r"(shared_of(mine)), "r"(rows[group]) : "memory");
      maps[blockIdx.x] = *mine;
      asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
      asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(maps + blockIdx.x) : "memory");
      load_box(to, maps + blockIdx.x, full, 0, 0);
    }
    wait_for(full, group & 1);
    for (int i = threadIdx.x; i < 256; i += 32) y[group * 256 + i] = ((unsigned*)memory)[i];
    begin_row += rows[group];
    __syncthreads();
  }
}
"""
)

# A warp makes a map of nothing, as compilers do, and all warps use it.
MADE = (
    COMMON
    + """
extern "C" __global__ void k(Map* maps, const unsigned* x, unsigned* y, int rows) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ unsigned long long barrier; unsigned to = shared_of(memory), full = shared_of(&barrier);
  unsigned mine = to + 1024;
  begin(full);
  if (threadIdx.x < 32) {
    ((unsigned*)(memory + 1024))[threadIdx.x] = 0;
    __syncwarp();
    if (threadIdx.x == 0) {
      asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" :: "r"(mine), "l"(x) : "memory");
      asm volatile("tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], 1;" :: "r"(mine) : "memory");
      asm volatile("tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 0, %1;" :: "r"(mine), "r"(32) : "memory");
      asm volatile("tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 1, %1;" :: "r"(mine), "r"(8) : "memory");
      asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %1;" :: "r"(mine), "r"(32) : "memory");
      asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" :: "r"(mine), "r"(rows) : "memory");
      asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;" :: "r"(mine), "l"(128ll) : "memory");
      asm volatile("tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 0, %1;" :: "r"(mine), "r"(1) : "memory");
      asm volatile("tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 1, %1;" :: "r"(mine), "r"(1) : "memory");
      asm volatile("tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%0], 0x2;" :: "r"(mine) : "memory");
      asm volatile("tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%0], 0x0;" :: "r"(mine) : "memory");
      asm volatile("tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%0], 0x3;" :: "r"(mine) : "memory");
      asm volatile("tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%0], 0x0;" :: "r"(mine) : "memory");
    }
    __syncwarp();
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;" :: "l"(maps), "r"(mine) : "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(maps) : "memory");
  }
  __syncthreads();
  if (threadIdx.x == 32) load_box(to, maps, full, 0, 0);
  wait_for(full, 0);
  for (int i = threadIdx.x; i < 256; i += 64) y[i] = ((unsigned*)memory)[i ^ ((i >> 5 & 7) << 2)];
}
"""
)

# A map in global memory is changed there, and stores go through it.
STORED = (
    COMMON
    + """
extern "C" __global__ void k(Map* map, unsigned* y) {
  extern __shared__ __align__(1024) unsigned char memory[];
  for (int i = threadIdx.x; i < 256; i += 32) ((unsigned*)memory)[i] = i + 1;
  asm volatile("fence.proxy.async;" ::: "memory"); __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("tensormap.replace.tile.global_address.b1024.b64 [%0], %1;" :: "l"(map), "l"(y) : "memory");
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(map) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%1, {%2, %2}], [%0];" :: "r"(shared_of(memory)), "l"(map), "r"(0) : "memory");
    asm volatile("cp.async.bulk.commit_group;"); asm volatile("cp.async.bulk.wait_group 0;");
  }
}
"""
)


def array(rows: int = ROWS) -> np.ndarray:
    return np.arange(1, rows * COLUMNS + 1, dtype=np.uint32).reshape(rows, COLUMNS)


ANY = 255  # of bytes: those of a map are the driver's own


class Grouped:
    text, threads = GROUPED, 32
    allowed = (None, ANY, None, None, None)
    rows = np.array([8, 3, 6], np.int32)
    x = array(17)

    def arguments(self):
        base = TensorMap(self.x, (ROWS, COLUMNS))
        y = np.zeros((GROUPS, ROWS, COLUMNS), np.uint32)
        return base, np.zeros((1, 128), np.uint8), self.x, self.rows, y

    def right(self, arrays):
        wanted, first = np.zeros((GROUPS, ROWS, COLUMNS), np.uint32), 0
        for group, rows in enumerate(self.rows):
            wanted[group, :rows] = self.x[first : first + rows]
            first += rows
        np.testing.assert_array_equal(arrays[-1], wanted)


class Made:
    text, threads = MADE, 64
    allowed = (ANY, None, None)

    def arguments(self):
        return np.zeros((1, 128), np.uint8), array(5), np.zeros((ROWS, COLUMNS), np.uint32), 5

    def right(self, arrays):
        np.testing.assert_array_equal(arrays[2][:5], array(5))
        assert not arrays[2][5:].any()


class Stored:
    text, threads = STORED, 32

    def arguments(self):
        return (TensorMap(np.zeros((ROWS, COLUMNS), np.uint32), (ROWS, COLUMNS)),), np.zeros((ROWS, COLUMNS), np.uint32)  # fmt: skip

    def right(self, arrays):
        assert not arrays[0].any()
        np.testing.assert_array_equal(arrays[1], array())


KERNELS = {"grouped": Grouped(), "made": Made(), "stored": Stored()}


def report_of(compile_ptx, kernel, change=None, completion="late"):
    ptx = compile_ptx(kernel.text, "sm_90a")
    if change is not None:
        ptx = changed(ptx, *change)
    launch = Launch((1, 1, 1), (kernel.threads, 1, 1), 1024 + 128, kernel.arguments())
    return run(ptx, launch, completion=completion)


def changed(ptx: str, pattern: str, by: str) -> str:
    found, count = re.subn(pattern, by, ptx)
    assert count, pattern
    return found


@pytest.mark.parametrize("completion", ["late", "early", "random"])
@pytest.mark.parametrize("name", ["grouped", "made"])
def test_maps_that_change_load_what_they_say(compile_ptx, name, completion):
    kernel = KERNELS[name]
    launch = Launch((1, 1, 1), (kernel.threads, 1, 1), 1024 + 128, kernel.arguments())
    ptx = compile_ptx(kernel.text, "sm_90a")
    report = run_within(ptx, launch, kernel.allowed, completion=completion)
    assert report.ok, str(report)
    kernel.right(report.arrays)


@pytest.mark.parametrize("completion", ["late", "early", "random"])
def test_a_map_in_global_memory_is_changed_there(compile_ptx, completion):
    report = report_of(compile_ptx, KERNELS["stored"], completion=completion)
    assert report.ok, str(report)
    KERNELS["stored"].right(report.arrays)


RELEASE = r"fence\.proxy\.tensormap::generic\.release\.gpu;"
ACQUIRE = r"fence\.proxy\.tensormap::generic\.acquire\.gpu [^;]*;"
BOTH = rf"({RELEASE})([^f]*?)({ACQUIRE})"
COPY = r"tensormap\.cp_fenceproxy[^;]*;"
FENCE, RACE, BAD = "missing-map-fence", "race-", "bad-descriptor"


@pytest.mark.parametrize(
    "name, pattern, by, found, words",
    [
        ("grouped", RELEASE, "", FENCE, "without fence.proxy.tensormap::generic.release"),
        ("grouped", ACQUIRE, "", FENCE, "without fence.proxy.tensormap::generic.acquire"),
        ("grouped", RELEASE, "fence.acq_rel.gpu;", FENCE, "release"),
        ("grouped", RELEASE, "fence.proxy.async;", FENCE, "release"),
        ("grouped", r"(?s)(fence\.proxy\.tensormap::generic\.release\.gpu;)(.*?)(fence\.proxy\.tensormap::generic\.acquire\.gpu [^;]*;)", r"\3\2\1", FENCE, "release"),
        ("made", COPY, "", BAD, "not a TensorMap argument"),
        ("made", ACQUIRE, "", FENCE, "acquire"),
        ("made", r"bar\.warp\.sync[^;]*;", "", RACE, ""),
        ("made", r"tensormap\.replace\.tile\.box_dim[^;]*, 1, [^;]*;", "", BAD, "box (0, 32)"),
        ("made", r"tensormap\.replace\.tile\.rank[^;]*;", "", BAD, "2 coordinates for the 1 dims"),
        ("made", r"(tensormap\.replace\.tile\.swizzle_mode[^;]*, )0x3;", r"\g<1>0x2;", BAD, "swizzle 64"),
        ("made", r"st\.shared\.[bu]32[^;]*;", "", BAD, "no tensor map, nor zeros"),
        ("stored", RELEASE, "", FENCE, "release"),
        ("stored", ACQUIRE, "", FENCE, "acquire"),
    ],
)  # fmt: skip
def test_a_fence_that_is_missing_is_found(compile_ptx, name, pattern, by, found, words):
    report = report_of(compile_ptx, KERNELS[name], (pattern, by))
    mine = [one for one in report.findings if one.code.startswith(found)]
    assert mine and any(words in one.sentence for one in mine), str(report)
    assert found != FENCE or "tensormap::generic.release" in mine[0].story[-1]


def test_a_release_covers_what_was_stored_before_it(compile_ptx):
    """The release comes first: the stores of a copy to global memory follow it."""
    ptx = compile_ptx(GROUPED, "sm_90a")
    begin = ptx.index("tensormap.replace.tile.global_address")
    ptx = re.sub(RELEASE, "", ptx)
    begin = ptx.index("tensormap.replace.tile.global_address")
    line = ptx.rindex("\n", 0, begin)
    ptx = ptx[:line] + "\nfence.proxy.tensormap::generic.release.gpu;" + ptx[line:]
    kernel = KERNELS["grouped"]
    report = run(ptx, Launch((1, 1, 1), (32, 1, 1), 1152, kernel.arguments()))
    assert {one.code for one in report.findings} == {FENCE}, str(report)


def test_a_map_that_leaves_its_array_is_found(compile_ptx):
    rows = np.array([8, 3, 7], np.int32)
    kernel = KERNELS["grouped"]
    arguments = (*kernel.arguments()[:3], rows, kernel.arguments()[4])
    ptx = compile_ptx(GROUPED, "sm_90a")
    report = run(ptx, Launch((1, 1, 1), (32, 1, 1), 1152, arguments))
    assert [one.code for one in report.findings] == ["out-of-bounds-global"]
    assert "changed on the device" in report.findings[0].sentence


def test_every_block_acquires_for_itself(compile_ptx):
    """Two blocks of a cluster: one makes the map, the other is told by the cluster's barrier."""
    text = (
        COMMON
        + """
    extern "C" __global__ __cluster_dims__(2, 1, 1) void k(const __grid_constant__ Map base, Map* map, unsigned* y) {
      extern __shared__ __align__(1024) unsigned char memory[];
      __shared__ unsigned long long barrier; unsigned to = shared_of(memory), full = shared_of(&barrier);
      begin(full);
      if (blockIdx.x == 0 && threadIdx.x == 0) {
        *map = base;
        asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
      }
      if (ACQUIRES == 0 && blockIdx.x == 0 && threadIdx.x == 0) asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(map) : "memory");
      asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
      if (blockIdx.x == 1 && threadIdx.x == 0) {
        if (ACQUIRES == 1) asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(map) : "memory");
        load_box(to, map, full, 0, 0);
      }
      if (blockIdx.x == 1) {
        wait_for(full, 0);
        for (int i = threadIdx.x; i < 256; i += 32) y[i] = ((unsigned*)memory)[i];
      }
    }
    """
    )
    for acquires, found in ((1, []), (0, [FENCE])):
        ptx = compile_ptx(text.replace("ACQUIRES", str(acquires)), "sm_90a")
        given = TensorMap(array(), (ROWS, COLUMNS)), np.zeros((1, 128), np.uint8), np.zeros((ROWS, COLUMNS), np.uint32)  # fmt: skip
        report = run(ptx, Launch((2, 1, 1), (32, 1, 1), 1152, given))
        assert [one.code for one in report.findings] == found, str(report)
        np.testing.assert_array_equal(report.arrays[2], array())


def test_boxes_of_every_second_element_keep_their_meaning(compile_ptx):
    """An image says boxes as the driver does: of `every` times as many elements."""
    x = array(2 * ROWS)
    kernel = KERNELS["stored"]
    ptx = compile_ptx(kernel.text, "sm_90a")
    maps = (TensorMap(x, (ROWS, COLUMNS), every=(2, 1)),)
    report = run(ptx, Launch((1, 1, 1), (32, 1, 1), 1152, (maps, np.zeros_like(x))))
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.arrays[1][::2], array())
    assert not report.arrays[1][1::2].any()


@pytest.mark.parametrize(
    "pattern, by, words",
    [
        (r"(interleave_layout[^;]*, )0x0;", r"\g<1>0x1;", "interleave_layout is not modelled"),
        (r"(elemtype[^;]*, )0x2;", r"\g<1>0x8;", "elemtype is not modelled"),
        (r"(cp_fenceproxy[^;]*, )128;", r"\g<1>64;", "64 bytes"),
        (r"(box_dim[^;]*, )1(, [^;]*;)", r"\g<1>5\2", "no dim 5"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(compile_ptx, pattern, by, words):
    with pytest.raises(PtxError, match=words):
        report_of(compile_ptx, KERNELS["made"], (pattern, by))
