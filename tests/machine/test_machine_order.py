# ruff: noqa: E501 - CUDA and PTX text
"""What orders what: arrivals one by one, lanes of a warp, copies in any order, phases of barriers."""

from __future__ import annotations

import numpy as np
import pytest
from test_machine_tma import COMMON, window

from polygen.machine import Launch, TensorMap, run

FRONT = (
    COMMON
    + """
__device__ __forceinline__ void bulk(word to, const void* from, word barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
    :: "r"(to), "l"(from), "r"(barrier) : "memory"); }
extern "C" __global__ void k(const unsigned* in, unsigned* out) {
  __shared__ __align__(128) unsigned data[64];
  __shared__ __align__(8) unsigned long long barriers[2];
  const word one = shared_address(barriers), two = one + 8, at = shared_address(data);
  const int t = threadIdx.x, warp = t / 32, lane = t % 32;
  if (t == 0) { init(one, COUNT); init(two, 1); FENCE_INIT; FENCE_ASYNC; }
  if (t < 64) data[t] = t;
  __syncthreads();
"""
)
MODES = ("late", "early", "random")


def codes(
    compile_ptx, body: str, count: int = 1, completion: str = "late", warps: int = 3
) -> set[str]:
    """Findings of some warps that run `body`; `in` holds 64 words, `out` as many as threads."""
    ptx = compile_ptx(FRONT.replace("COUNT", str(count)) + body + "}\n", "sm_90a")
    arrays = np.arange(64, dtype=np.uint32), np.zeros(32 * warps, np.uint32)
    report = run(ptx, Launch((1, 1, 1), (32 * warps, 1, 1), 0, arrays), completion=completion)
    return {finding.code for finding in report.findings}


@pytest.mark.parametrize("count, found", [(3, set()), (2, {"race-read-write"})])
def test_arrivals_after_the_last_of_a_phase_are_of_the_next(compile_ptx, count, found):
    body = """
  if (warp) { out[t] = data[t % 64]; __syncwarp(); if (lane == 0) arrive(one); }
  else { wait(one, 0); data[t] = 1; data[t + 32] = 1; }
"""
    assert codes(compile_ptx, body, count, warps=4) == found


@pytest.mark.parametrize(
    "who, count, found",
    [
        ("lane == 0", 1, set()),
        ("lane != 0", 31, set()),
        ("true", 64, set()),
        ("lane != 0", 1, {"barrier-count"}),
        ("true", 31, {"barrier-count"}),
        ("lane < 3", 2, {"barrier-count"}),
    ],
)
def test_lanes_of_one_instruction_count_in_one_phase(compile_ptx, who, count, found):
    """31 in place of one are as many phases, with the parity of one."""
    body = f"if (warp && {who}) {{ arrive(one); arrive(one); }} out[t] = 0;"
    assert codes(compile_ptx, body, count) == found


@pytest.mark.parametrize("sync, found", [("__syncwarp();", set()), ("", {"race-read-write"})])
def test_one_lane_does_not_arrive_for_its_warp(compile_ptx, sync, found):
    body = f"""
  if (warp == 1) {{ out[t] = data[lane]; {sync} if (lane == 0) arrive(one); }}
  if (warp == 0) {{ wait(one, 0); data[lane] = 1; }}
"""
    assert codes(compile_ptx, body) == found


def test_a_lane_arrives_for_itself(compile_ptx):
    body = """
  if (warp == 1) { if (lane == 0) { out[t] = data[0]; data[1] = 5; arrive(one); } }
  if (warp == 0 && lane == 0) { wait(one, 0); data[0] = data[1]; }
"""
    assert codes(compile_ptx, body) == set()


COPIES = """
  if (t == 0) {{
    FENCE_ASYNC;
    expect(one, 128); bulk(at, in, one);
    expect(two, 128); bulk(at + 128, in + 32, two);
  }}
  {wait}
  out[t] = data[32 + lane];
"""


@pytest.mark.parametrize("completion", MODES)
@pytest.mark.parametrize(
    "wait, found",
    [
        ("wait(one, 0); wait(two, 0);", set()),
        ("wait(one, 0);", {"in-flight-access", "race-write-read"}),
        (
            "wait(one, 0); if (warp == 0) wait(two, 0);",
            {"in-flight-access", "race-write-read"},
        ),
    ],
)
def test_copies_complete_in_any_order(compile_ptx, wait, found, completion):
    seen = codes(compile_ptx, COPIES.format(wait=wait), completion=completion)
    assert bool(seen) == bool(found) and seen <= found


@pytest.mark.parametrize("completion", MODES)
def test_a_block_ends_after_its_copies(compile_ptx, completion):
    body = COPIES.format(wait="").replace("out[t] = data[32 + lane];", "{wait}")
    waited = body.replace("{wait}", "if (t == 64) { wait(one, 0); wait(two, 0); }")
    assert codes(compile_ptx, waited, completion=completion) == set()
    left = body.replace("{wait}", "if (t == 64) wait(one, 0);")
    assert codes(compile_ptx, left, completion=completion) == {"in-flight-access"}


def sync(number: str, threads: int, kind: str = "sync") -> str:
    return f'asm volatile("bar.{kind} %0, {threads};" :: "r"({number}) : "memory");'


@pytest.mark.parametrize(
    "body, found",
    [
        (sync("1", 32), {"barrier-count"}),
        (sync("1 + warp", 32) + sync("1 + warp", 32), set()),
        (sync("1", 96) + f"if (warp < 2) {sync('1', 64)}" + f"if (warp == 2) {sync('1', 32)}", {"barrier-count"}),
        (sync("15", 96), set()),
        (sync("warp + 16", 32), {"barrier-count"}),
        # one warp hands over to another, twice, and hears of it in between
        (f"for (int i = 0; i < 2; ++i) {{ if (warp == 0) {{ {sync('1', 64, 'arrive')} {sync('2', 64)} }} if (warp == 1) {{ {sync('1', 64)} {sync('2', 64, 'arrive')} }} }}", set()),
        (f"for (int i = 0; i < 2; ++i) {{ if (warp == 0) {{ {sync('1', 64, 'arrive')} }} if (warp == 1) {{ {sync('1', 64)} }} }}", {"barrier-count"}),
    ],
)  # fmt: skip
def test_phases_of_a_named_barrier_are_told_apart(compile_ptx, body, found):
    assert codes(compile_ptx, body) == found


def test_registers_are_asked_for_by_whole_warpgroups(compile_ptx):
    body = """
extern "C" __global__ void __launch_bounds__(128, 1) k(unsigned* out) {
  if (threadIdx.x / 32 < WARPS) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  __syncthreads();
  out[threadIdx.x] = threadIdx.x;
}
"""
    for warps, found in ((4, set()), (1, {"divergent-warp-operation", "deadlock"})):
        ptx = compile_ptx(body.replace("WARPS", str(warps)), "sm_90a")
        report = run(ptx, Launch((1, 1, 1), (128, 1, 1), 0, (np.zeros(128, np.uint32),)))
        assert {finding.code for finding in report.findings} == found


@pytest.mark.parametrize(
    "give, first, second, found",
    [
        (40, 232, 232, set()),  # what one of three warpgroups gives is what the others lack
        (48, 232, 232, {"deadlock"}),
        (48, 232, 224, set()),
        (24, 240, 240, set()),
        (0, 176, 168, {"deadlock"}),  # of 65536, three warpgroups have 168 each
        (0, 168, 168, set()),
    ],
)
def test_registers_are_taken_from_what_others_give_back(compile_ptx, give, first, second, found):
    """Two warpgroups ask, at once or after the third gives: the order does not matter."""
    body = """
extern "C" __global__ void __launch_bounds__(384, 1) k(unsigned* out) {
  const int group = threadIdx.x / 128;
  if (group == 0) { GIVE }
  else if (group == 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 FIRST;");
  else asm volatile("setmaxnreg.inc.sync.aligned.u32 SECOND;");
  out[threadIdx.x] = threadIdx.x;
}
"""
    text = f'asm volatile("setmaxnreg.dec.sync.aligned.u32 {give};");' if give else ""
    body = body.replace("GIVE", text).replace("FIRST", str(first)).replace("SECOND", str(second))
    ptx = compile_ptx(body, "sm_90a")
    report = run(ptx, Launch((2, 1, 1), (384, 1, 1), 0, (np.zeros(384, np.uint32),)))
    assert {finding.code for finding in report.findings} == found
    if found:
        assert "registers per thread" in report.findings[0].sentence
    unbounded = ptx.replace(".maxntid", "//").replace(".minnctapersm", "//")
    assert run(unbounded, Launch((1, 1, 1), (384, 1, 1), 0, (np.zeros(384, np.uint32),))).ok


@pytest.mark.parametrize("before, found", [(0, set()), (8, {"bad-descriptor"})])
def test_a_tensor_map_is_aligned(compile_ptx, before, found):
    kernel = (
        COMMON.replace("__align__(64) Map", "Map")
        + """
extern "C" __global__ void k(BEFORE const __grid_constant__ Map map, unsigned* out) {
  __shared__ __align__(128) unsigned data[32];
  __shared__ __align__(8) unsigned long long barriers[1];
  const word one = shared_address(barriers);
  if (threadIdx.x == 0) {
    init(one, 1); FENCE_INIT;
    expect(one, 128);
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %3}], [%2];"
      :: "r"(shared_address(data)), "l"(&map), "r"(one), "r"(0) : "memory");
  }
  __syncthreads();
  wait(one, 0);
  out[threadIdx.x] = data[threadIdx.x];
}
"""
    ).replace("BEFORE", "unsigned long long unused," if before else "")
    array, out = np.arange(64, dtype=np.uint32).reshape(8, 8), np.zeros(32, np.uint32)
    given = (0,) * bool(before)
    launch = Launch((1, 1, 1), (32, 1, 1), 0, (*given, TensorMap(array, (4, 8)), out))
    report = run(compile_ptx(kernel, "sm_90a"), launch)
    assert {finding.code for finding in report.findings} == found
    if not found:
        assert (report.arrays[1] == window(array, (0, 0), (4, 8)).ravel()).all()


TRY = """{ .reg .pred p; mbarrier.KIND.parity.shared::cta.b64 p, [%0], %1; FIRST }"""
AGAIN = "@p bra done; mbarrier.KIND.parity.shared::cta.b64 p, [%0], %1; @p bra done; trap; done:"
LAST = "@p bra done; again: mbarrier.KIND.parity.shared::cta.b64 p, [%0], %1; @!p bra again; done:"


@pytest.mark.parametrize("kind", ["try_wait", "test_wait"])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("more, found", [("", {"race-write-read"}), (AGAIN, set()), (LAST, set())])
def test_a_wait_may_return_false(compile_ptx, kind, first, more, found):
    """Whoever goes on without asking again is found, whichever warp the machine runs first."""
    wait = TRY.replace("FIRST", more).replace("KIND", kind)
    body = f"""
  if (warp == {first}) {{ data[lane] = 7; arrive(one); }}
  if (warp == {1 - first}) {{ asm volatile("{wait}" :: "r"(one), "r"(0) : "memory"); out[t] = data[lane]; }}
"""
    assert codes(compile_ptx, body, 32) == found


@pytest.mark.parametrize("completion", MODES)
@pytest.mark.parametrize("more, found", [("", True), (LAST, False)])
def test_a_wait_for_a_copy_may_return_false(compile_ptx, completion, more, found):
    wait = TRY.replace("FIRST", more).replace("KIND", "try_wait")
    body = f"""
  if (t == 0) {{ expect(one, 128); bulk(at, in, one); }}
  __syncthreads();
  asm volatile("{wait}" :: "r"(one), "r"(0) : "memory");
  out[t] = data[lane];
"""
    seen = codes(compile_ptx, body, 1, completion)
    assert bool(seen & {"in-flight-access", "race-write-read"}) == found and (found or not seen)


def test_a_wait_does_not_fail_for_those_who_know(compile_ptx):
    body = """
  arrive(one);
  __syncthreads();
  word over; asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
    : "=r"(over) : "r"(one) : "memory");
  if (!over) asm volatile("trap;");
"""
    assert codes(compile_ptx, body, 96) == set()


ALL = "FENCE_ASYNC;"
HALVES = ("if (lane < 16) { FENCE_ASYNC; }", "if (lane >= 16) { FENCE_ASYNC; }")
OUT = """
  if (t == 0) asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
    :: "l"(out), "r"(at) : "memory");
"""


@pytest.mark.parametrize(
    "fence, found",
    [
        (ALL, False),
        (HALVES[0], True),
        (HALVES[1], True),
        (" ".join(HALVES), False),
        (f"__syncwarp(); {HALVES[0]}", False),  # the barrier orders what the others wrote
        (f"{HALVES[0]} __syncwarp(); {HALVES[1]}", False),
        (f"{HALVES[0]} if (lane < 16) data[lane] = 4; {HALVES[1]}", True),
        (f"{HALVES[0]} if (lane < 16) {{ data[lane] = 4; FENCE_ASYNC; }} {HALVES[1]}", False),
    ],
)
def test_a_fence_covers_what_its_lanes_wrote(compile_ptx, fence, found):
    body = f"if (warp == 0) {{ data[lane] = 7; {fence} }} __syncthreads(); {OUT}"
    assert codes(compile_ptx, body) == ({"missing-proxy-fence"} if found else set())


@pytest.mark.parametrize("fence, found", [("FENCE_ASYNC;", False), ("", True)])
def test_a_lane_that_fences_itself_needs_no_others(compile_ptx, fence, found):
    """The other lanes wrote elsewhere, and nobody but threads reads that."""
    body = f"""
  if (warp == 0) {{ data[32 + lane] = 7; if (lane < 16) {{ data[lane * 2] = 3; data[lane * 2 + 1] = 3; {fence} }} }}
  __syncthreads(); {OUT} __syncthreads(); out[32 + t % 32] = data[32 + t % 32];
"""
    assert codes(compile_ptx, body) == ({"missing-proxy-fence"} if found else set())


FLAG = """
extern "C" __global__ void k(const int* x, int* y) {
  __shared__ int flag, data[32]; const int t = threadIdx.x;
  const unsigned at = (unsigned)__cvta_generic_to_shared(&flag); int seen = 0, old;
  if (t == 0) flag = 0;
  __syncthreads();
  if (t < 32) {
    data[t] = x[t]; __syncwarp();
    if (t == 0) asm volatile("atom.add.RELEASE.cta.shared.u32 %0, [%1], 1;" : "=r"(old) : "r"(at) : "memory");
  } else {
    while (!seen) asm volatile("ld.ACQUIRE.cta.shared.u32 %0, [%1];" : "=r"(seen) : "r"(at) : "memory");
    y[t - 32] = data[63 - t];
  }
}"""


@pytest.mark.parametrize(
    ("acquire", "release", "ordered"),
    [("acquire", "release", True), ("relaxed", "release", False), ("acquire", "relaxed", False)],
)
def test_strong_loads_may_meet_atomics_in_shared_memory(compile_ptx, acquire, release, ordered):
    """A flag is no race; what it does not order is one."""
    x = np.arange(32, dtype=np.int32)
    ptx = compile_ptx(FLAG.replace("ACQUIRE", acquire).replace("RELEASE", release))
    report = run(ptx, Launch((1, 1, 1), (64, 1, 1), 0, (x, np.zeros_like(x))))
    assert [one.code for one in report.findings] == ([] if ordered else ["race-write-read"])
    assert all("`ld.shared" in one.where for one in report.findings), "of the data alone"
