# ruff: noqa: E501 - CUDA text
"""Races through global memory, what locks and flags order, and lanes that wait alone."""

from __future__ import annotations

import numpy as np
import pytest
from test_machine_order import FRONT

from polygen.machine import Launch, run

KERNEL = 'extern "C" __global__ void k(volatile int* flag, int* x, int* y) { const int t = threadIdx.x, b = blockIdx.x; '


def codes(
    compile_ptx, body: str, grid: int = 1, threads: int = 64, front: str = KERNEL
) -> set[str]:
    """Findings of a kernel whose `x` and `y` have 128 elements, and `flag` 4."""
    arrays = (np.zeros(4, np.int32), np.arange(128, dtype=np.int32), np.zeros(128, np.int32))
    report = run(
        compile_ptx(front + body + "}", "sm_90a"), Launch((grid, 1, 1), (threads, 1, 1), 0, arrays)
    )
    return {one.code for one in report.findings}


@pytest.mark.parametrize(
    "body, found",
    [
        ("x[t] = t + 5; y[t] = x[(t + 32) % 64];", {"race-write-read"}),
        ("x[t] = t + 5; __syncthreads(); y[t] = x[(t + 32) % 64];", set()),
        ("x[t] = t + 5; y[t] = x[t ^ 1];", {"race-write-read"}),
        ("x[t] = t + 5; __syncwarp(); y[t] = x[t ^ 1];", set()),
        ("const int v = x[(t + 32) % 64]; x[t] = v + 1;", {"race-read-write"}),
        ("const int v = x[(t + 32) % 64]; __syncthreads(); x[t] = v + 1;", set()),
        # the store that comes first is of the value that is there, or the reader's own
        ("x[t] = t; y[t] = x[(t + 32) % 64];", set()),
        ("x[t] = t + 5; y[t] = x[t];", set()),
        # two warps read before a third writes: the last two are remembered
        ("if (t < 32) y[t] = x[0]; else if (t < 64) y[t] = x[0]; __syncwarp(); if (t == 64) x[0] = 9;", {"race-read-write"}),
    ],
)  # fmt: skip
def test_loads_and_stores_of_one_block(compile_ptx, body, found):
    assert codes(compile_ptx, body, threads=96) == found


@pytest.mark.parametrize("grid", [2, 300])
@pytest.mark.parametrize(
    "body, found",
    [
        ("if (b == 0) x[t] = t + 5; else y[t] = x[t];", True),
        ("if (b == 0) y[t] = x[t]; else x[t] = t + 5;", True),
        ("if (b == 0) x[t] = t + 5; else y[t] = x[64 + t];", False),
    ],
)
def test_loads_and_stores_of_several_blocks(compile_ptx, body, found, grid):
    """300 blocks are several waves. Those that store the same value do each other no harm."""
    seen = codes(compile_ptx, body, grid)
    assert bool(seen) == found and all(code.startswith("race") for code in seen)


LOCK = """
  __shared__ int one;
  if (t == 0) { while (atomicCAS((int*)flag, 0, 1) != 0); ACQUIRE }
  BEGIN
  x[t] += b + 1;
  END
  if (t == 0) { RELEASE atomicExch((int*)flag, 0); }
"""
GOOD = {"ACQUIRE": "__threadfence();", "BEGIN": "__syncthreads();", "END": "__syncthreads();", "RELEASE": "__threadfence();"}  # fmt: skip


@pytest.mark.parametrize("removed", ["", "ACQUIRE", "BEGIN", "END", "RELEASE"])
def test_a_lock_needs_all_of_its_parts(compile_ptx, removed):
    body = LOCK
    for part, text in GOOD.items():
        body = body.replace(part, "" if part == removed else text)
    seen = codes(compile_ptx, body, grid=3)
    assert bool(seen) == bool(removed) and all(code.startswith("race") for code in seen)


def test_a_lock_whose_threads_all_fence(compile_ptx):
    body = LOCK.replace("END", "__threadfence(); __syncthreads();").replace("RELEASE", "")
    body = body.replace("ACQUIRE", "__threadfence();").replace("BEGIN", "__syncthreads();")
    assert codes(compile_ptx, body, grid=3) == set()


FLAG = """
  if (b == 0) { x[t] = t + 5; __syncthreads(); if (t == 0) { asm volatile("st.STORE.gpu.s32 [%0], 1;" :: "l"(flag) : "memory"); } }
  else { if (t == 0) { int v; do { asm volatile("ld.LOAD.gpu.s32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory"); } while (!v); } SYNC y[t] = x[t]; }
"""


@pytest.mark.parametrize(
    "store, load, sync, fine",
    [
        ("release", "acquire", "__syncthreads();", True),
        ("relaxed", "acquire", "__syncthreads();", False),
        ("release", "relaxed", "__syncthreads();", False),
        ("release", "acquire", "", False),
        ("release.cta", "acquire", "__syncthreads();", False),
        ("release", "acquire.cta", "__syncthreads();", False),
    ],
)
def test_flags_between_blocks(compile_ptx, store, load, sync, fine):
    body = FLAG.replace("STORE", store).replace("LOAD", load).replace("SYNC", sync)
    body = body.replace(".cta.gpu", ".cta")
    assert codes(compile_ptx, body, grid=2) == (set() if fine else {"race-write-read"})


COUNTER = """
  __shared__ int last;
  y[64 * b + t] = b + 1;
  FENCE SYNC
  if (t == 0) last = atomicAdd((int*)flag, 1) == 1;
  __syncthreads();
  if (last) { AGAIN x[t] = y[t] + y[64 + t]; }
"""


@pytest.mark.parametrize("removed", ["", "FENCE", "SYNC", "AGAIN"])
def test_the_last_block_adds_up(compile_ptx, removed):
    """As in many reductions: who counts last reads what the others have stored."""
    body = COUNTER
    good = {"FENCE": "__threadfence();", "SYNC": "__syncthreads();", "AGAIN": "__threadfence();"}
    for part, text in good.items():
        body = body.replace(part, "" if part == removed else text)
    body = body.replace("== 1;", "== 1; __threadfence();") if removed != "AGAIN" else body
    assert bool(codes(compile_ptx, body, grid=2)) == bool(removed)


def test_a_flag_of_the_block_in_shared_memory(compile_ptx):
    body = """
  __shared__ int told; if (t == 0) told = 0; __syncthreads();
  if (t < 32) { x[t] = 100 + t; __syncwarp(); if (t == 0) { FENCE atomicExch(&told, 1); } }
  else { if (t == 32) { while (atomicAdd(&told, 0) == 0); FENCE } __syncwarp(); y[t] = x[t - 32]; }
"""
    assert codes(compile_ptx, body.replace("FENCE", "__threadfence_block();")) == set()
    assert codes(compile_ptx, body.replace("FENCE", "")) == {"race-write-read"}


# --- one lane waits ------------------------------------------------------------------------------
ALONE = """
  if (warp == 1) { data[lane] = t; arrive(one); }
  else if (warp == 0) { if (WHO) wait(one, 0); MEET out[t] = data[lane]; }
"""


@pytest.mark.parametrize(
    "who, meet, fine",
    [
        ("true", "", True),
        ("lane == 0", "__syncwarp();", True),
        ("lane == 0", "", False),
        ("lane == 0", "if (lane < 16) __syncwarp(0xFFFF);", False),
        ("lane == 0", "if (lane < 16) { __syncwarp(0xFFFF); } else { __syncwarp(0xFFFF0000); wait(one, 0); }", True),
        ("lane < 16", "if (lane >= 16) wait(one, 0);", True),
        ("lane == 0", 'asm volatile("bar.sync 1, 32;" ::: "memory");', True),
    ],
)  # fmt: skip
def test_who_waits_alone_learns_alone(compile_ptx, who, meet, fine):
    text = FRONT.replace("COUNT", "32") + ALONE.replace("WHO", who).replace("MEET", meet) + "}\n"
    arrays = np.arange(64, dtype=np.uint32), np.zeros(96, np.uint32)
    report = run(compile_ptx(text, "sm_90a"), Launch((1, 1, 1), (96, 1, 1), 0, arrays))
    assert {one.code for one in report.findings} == (set() if fine else {"race-write-read"})


def test_what_a_lane_has_learned_it_passes_on(compile_ptx):
    """A chain through single lanes: one waits and arrives for the next."""
    body = """
  if (warp == 1) { data[lane] = t; arrive(one); }
  else if (warp == 2 && lane == 0) { wait(one, 0); arrive(two); }
  else if (warp == 0) { wait(two, 0); out[t] = data[lane]; }
"""
    text = FRONT.replace("COUNT", "32") + body + "}\n"
    arrays = np.arange(64, dtype=np.uint32), np.zeros(96, np.uint32)
    report = run(compile_ptx(text, "sm_90a"), Launch((1, 1, 1), (96, 1, 1), 0, arrays))
    assert report.ok, str(report)


@pytest.mark.parametrize("threads, found", [(128, set()), (32, {"divergent-warp-operation"})])
def test_a_whole_warpgroup_changes_its_registers(compile_ptx, threads, found):
    body = f'if (t < {threads}) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); y[t] = 1;'
    assert codes(compile_ptx, body, threads=128) == found


# --- beginnings and ends -------------------------------------------------------------------------
@pytest.mark.parametrize("sync, fine", [("__syncthreads();", True), ("", False)])
def test_every_warp_has_to_know_of_the_initialisation(compile_ptx, sync, fine):
    """The first thread of those that wait has done it itself."""
    source = (
        FRONT.replace("COUNT", "1").replace("__syncthreads();", sync)
        + """
  if (t == 0) arrive(one);
  wait(one, 0); out[t] = t;
}"""
    )
    source = source.replace("if (t < 64) data[t] = t;", "")
    arrays = np.arange(64, dtype=np.uint32), np.zeros(96, np.uint32)
    report = run(compile_ptx(source, "sm_90a"), Launch((1, 1, 1), (96, 1, 1), 0, arrays))
    assert {one.code for one in report.findings} == (set() if fine else {"race-write-read"})


PAIR = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* x) {
  __shared__ int s[32]; const int t = threadIdx.x; unsigned rank, there; int v;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  s[t] = x[32 * rank + t];
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((unsigned)__cvta_generic_to_shared(s + t)), "r"(rank ^ 1));
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(there) : "memory");
  x[32 * rank + t] = v;
  END
}"""


@pytest.mark.parametrize(
    "end, found",
    [
        ("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", set()),
        ("barrier.cluster.arrive.aligned;", {"out-of-bounds-shared"}),
        ("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;", {"out-of-bounds-shared"}),
        ("barrier.cluster.wait.aligned;", {"out-of-bounds-shared", "barrier-count"}),
        ("", {"out-of-bounds-shared"}),
    ],
)  # fmt: skip
def test_a_block_ends_after_the_others_have_read_its_memory(compile_ptx, end, found):
    text = PAIR.replace("END", f'asm volatile("{end}" ::: "memory");')
    x = np.arange(64, dtype=np.int32)
    report = run(compile_ptx(text, "sm_90a"), Launch((2, 1, 1), (32, 1, 1), 0, (x,)))
    assert {one.code for one in report.findings} <= found | {"deadlock"}
    assert bool(report.findings) == bool(found)


@pytest.mark.parametrize("fence, fine", [("__threadfence();", True), ("", False)])
def test_a_volatile_load_needs_the_fence_of_the_store_before_it(compile_ptx, fence, fine):
    body = f"""
  if (b == 0) {{ x[t] = t + 5; __syncthreads(); if (t == 0) {{ {fence} atomicExch((int*)flag, 1); }} }}
  else {{ if (t == 0) {{ while (!*flag); __threadfence(); }} __syncthreads(); y[t] = ((volatile int*)x)[t]; }}
"""
    assert codes(compile_ptx, body, grid=2) == (set() if fine else {"race-write-read"})
