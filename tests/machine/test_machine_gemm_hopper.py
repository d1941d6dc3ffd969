# ruff: noqa: E501 - CUDA and PTX text
"""A TMA / mbarrier / wgmma kernel: exact on integers, silent when right, every seeded fault found."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from float_samples import floats, sum_error
from gpu_twin import run_within
from wgmma_text import wgmma_function

from polygen.machine import Launch, Report, TensorMap, run

BF16 = ml_dtypes.bfloat16
STAGES = 3


def execute(ptx: str, m: int, n: int, k: int, **options) -> tuple[Report, bool]:
    random = np.random.default_rng(m + n + k)
    a = random.integers(-3, 4, (m, k)).astype(BF16)
    b = random.integers(-3, 4, (n, k)).astype(BF16)
    bias = random.integers(-9, 10, n).astype(np.float32)
    d = np.full((m, n), np.nan, BF16)
    box = (128, 64)
    launch = Launch(
        grid=(-(-n // 128), -(-m // 128), 1),
        block=(384, 1, 1),
        shared_bytes=(STAGES + 1) * 32768 + 16 * STAGES,
        arguments=(
            TensorMap(a, box, 128), TensorMap(b, box, 128), TensorMap(d, box, 128), bias, m, n, k,
        ),
    )  # fmt: skip
    report = run(ptx, launch, **options)
    wanted = np.maximum(a.astype(np.float32) @ b.astype(np.float32).T + bias, 0).astype(BF16)
    return report, np.array_equal(report.arrays[2].astype(np.float32), wanted.astype(np.float32))


@pytest.fixture
def source(read_kernel):
    function = wgmma_function("multiply_128", 128, 16, "f32.bf16.bf16")
    return function + read_kernel("gemm_tma_wgmma.cu")


@pytest.mark.parametrize("size", [(128, 128, 64), (200, 136, 328)])
@pytest.mark.parametrize("completion", ["late", "early", "random"])
def test_exact_and_silent(source, compile_ptx, size, completion):
    report, exact = execute(compile_ptx(source, "sm_90a"), *size, completion=completion)
    assert exact
    assert report.ok, str(report)


def test_random_floats(source, compile_ptx):
    m, n, k, box = 200, 136, 328, (128, 64)
    a, b, bias = floats((m, k), BF16, 0), floats((n, k), BF16, 1), floats((n,), np.float32, 2)
    d = np.full((m, n), np.nan, BF16)
    sums = a.astype(np.float64) @ b.astype(np.float64).T
    wanted = np.maximum(sums + bias, 0)
    # The sum as the units add it, one rounded addition, and half a unit of bf16 for the output.
    error = sum_error(a, b.T, np.zeros((m, n)), 16, 23) + 2.0**-24 * np.abs(sums + bias)
    error += 2.0**-8 * (np.abs(wanted) + error)
    maps = [TensorMap(one, box, 128) for one in (a, b, d)]
    shared = (STAGES + 1) * 32768 + 16 * STAGES
    launch = Launch((2, 2, 1), (384, 1, 1), shared, (*maps, bias, m, n, k))
    ptx = compile_ptx(source, "sm_90a")
    report = run_within(ptx, launch, (None, None, error, None))
    assert report.ok, str(report)
    assert (np.abs(report.arrays[2].astype(np.float64) - wanted) <= error).all()


def test_profile_of_the_epilogue(source, compile_ptx):
    report, _ = execute(compile_ptx(source, "sm_90a"), 128, 128, 64, profile=True)
    rows = [row for row in report.profile if "stmatrix" in row.where]
    assert len(rows) == 8 and all(row.actual == row.ideal for row in rows)


ASYNC = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
INIT = 'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");'
COMMIT = 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'
WAIT0 = "wgmma.wait_group.sync.aligned 0;"
RELEASE = "if (thread == 0) barrier_arrive(full + 8);"
READ = 'asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");'
# (name, text, replacement, codes any of which must appear; empty: the values must be wrong)
FAULTS = [
    ("no wait on full", "barrier_wait(full, t / STAGES & 1);", "", {"uninitialised-shared-read"}),
    ("no wait on empty", "barrier_wait(full + 8, (t / STAGES & 1) ^ 1);", "",
     {"in-flight-access", "race-write-write"}),
    ("released before the wait", f"asm volatile(\"{WAIT0}\" ::: \"memory\");\n    {RELEASE}",
     f"{RELEASE}\n asm volatile(\"{WAIT0}\" ::: \"memory\");", {"race-read-write", "in-flight-access"}),
    ("wait one group short", WAIT0, "wgmma.wait_group.sync.aligned 1;",
     {"race-read-write", "in-flight-access"}),
    ("no commit", COMMIT, "", {"in-flight-access", "wgmma-order"}),
    ("no wgmma fence", "asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");", "", {"wgmma-order"}),
    ("too many bytes", "barrier_expect(full, 2 * tile)", "barrier_expect(full, 2 * tile + 16)", {"deadlock"}),
    ("too few bytes", "barrier_expect(full, 2 * tile)", "barrier_expect(full, tile)",
     {"in-flight-access", "race-write-read"}),
    ("consumer parity", "barrier_wait(full, t / STAGES & 1)", "barrier_wait(full, t / STAGES & 1 ^ 1)",
     {"uninitialised-shared-read"}),
    ("producer parity", "(t / STAGES & 1) ^ 1)", "t / STAGES & 1)", {"deadlock"}),
    ("parity never flips", "barrier_wait(full, t / STAGES & 1)", "barrier_wait(full, 0)",
     {"in-flight-access", "race-write-read", "deadlock"}),
    ("empty count too large", "barrier_init(barriers + s * 16 + 8, 2)", "barrier_init(barriers + s * 16 + 8, 3)",
     {"deadlock"}),
    ("empty count too small", "barrier_init(barriers + s * 16 + 8, 2)", "barrier_init(barriers + s * 16 + 8, 1)",
     {"race-read-write", "deadlock", "in-flight-access"}),
    ("full count too large", "barrier_init(barriers + s * 16, 1)", "barrier_init(barriers + s * 16, 2)", {"deadlock"}),
    ("never released", RELEASE, "", {"deadlock"}),
    ("all threads release", RELEASE, "barrier_arrive(full + 8);", {"barrier-count", "race-read-write", "deadlock"}),
    ("no init fence", INIT, "", {"missing-proxy-fence"}),
    ("no barrier after init", "__syncthreads();", "", {"race-write-read"}),
    ("no proxy fence", ASYNC, "", {"missing-proxy-fence"}),
    ("proxy fence by one thread", ASYNC, "if (threadIdx.x == 128) " + ASYNC, {"missing-proxy-fence"}),
    ("no barrier before the store", "asm volatile(\"bar.sync 1, 256;\" ::: \"memory\");", "", {"race-write-read"}),
    ("barrier of one warpgroup", "bar.sync 1, 256;", "bar.sync 1, 128;", {"race-write-read"}),
    ("barrier of three warpgroups", "bar.sync 1, 256;", "bar.sync 1, 384;", {"deadlock"}),
    ("store never awaited", READ, "", {"in-flight-access"}),
    ("ring one stage too long", "t % STAGES, full = barriers + stage * 16, at = base + stage * 2 * tile;\n        barrier",
     "t % (STAGES - 1), full = barriers + stage * 16, at = base + stage * 2 * tile;\n        barrier", {"deadlock"}),
    ("only odd warps wait", "barrier_wait(full, t / STAGES & 1);",
     "if (thread & 32) barrier_wait(full, t / STAGES & 1);", {"race-write-read", "uninitialised-shared-read"}),
    ("shared memory too small", "STAGES * 2 * tile, barriers", "(STAGES + 1) * 2 * tile, barriers", {"out-of-bounds-shared"}),
    ("one warp outside", "for (int t = 0; t < tiles; t++) {\n    const", "if (threadIdx.x < 352) for (int t = 0; t < tiles; t++) {\n    const",
     {"divergent-warp-operation"}),
    ("swizzle bit", "| 1ull << 62", "| 2ull << 62", set()),
    ("stride field", "(1024 >> 4) << 32", "(512 >> 4) << 32", set()),
    ("k step", "descriptor(at + tile + step * 32)", "descriptor(at + tile + step * 16)", set()),
    ("m offset", "(group - 1) * 64 * 128 + step", "(group - 1) * 32 * 128 + step", set()),
    ("accumulators kept", "t | step", "1 | step", None),
    ("accumulators dropped", "t | step", "step", set()),
    ("swapped maps", "box_load(at, &map_a, full, t * 64, row0)", "box_load(at, &map_b, full, t * 64, row0)", set()),
    ("swapped coordinates", "&map_a, full, t * 64, row0", "&map_a, full, row0, t * 64", set()),
    ("stmatrix swizzle", "((chunk ^ (row & 7)) << 4)", "(chunk << 4)", set()),
    ("stmatrix pairs swapped", '"f"(fmaxf(acc[r + 1] + high, 0.f)), "f"(fmaxf(acc[r] + low, 0.f))',
     '"f"(fmaxf(acc[r] + low, 0.f)), "f"(fmaxf(acc[r + 1] + high, 0.f))', set()),
]  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("fault", FAULTS, ids=[fault[0] for fault in FAULTS])
def test_fault_is_found(source, compile_ptx, fault):
    _, text, replacement, codes = fault
    assert text in source
    ptx = compile_ptx(source.replace(text, replacement), "sm_90a")
    report, exact = execute(ptx, 200, 136, 520)
    found = {finding.code for finding in report.findings}
    if codes is None:  # harmless: the accumulators start at zero
        assert exact and report.ok
    elif codes:
        assert codes & found, str(report)
    else:
        assert not exact


@pytest.mark.parametrize("align", [16, 128])
def test_less_alignment_than_it_needs_is_told(source, compile_ptx, align):
    """Drivers give the kernel what it does not ask for; a static array in front would end that."""
    text = source.replace(
        "__align__(1024) unsigned char memory", f"__align__({align}) unsigned char memory"
    )
    report, exact = execute(compile_ptx(text, "sm_90a"), 128, 128, 520)
    assert exact and report.ok, str(report)
    assert len(report.notes) == 1 and "needs 1024" in report.notes[0]
    front = text.replace(
        "extern __shared__",
        "__shared__ volatile unsigned first[4]; if (threadIdx.x == 0) first[1] = 5; extern __shared__",
    )
    assert front != text
    moved, exact = execute(compile_ptx(front, "sm_90a"), 128, 128, 520)
    if align < 128:
        assert "misaligned" in {one.code for one in moved.findings}
    else:  # the copy engine and wgmma go by absolute addresses, the results by those in the array
        assert moved.ok and not exact


def test_wait_that_only_peeks(source, compile_ptx):
    peek = (
        'word ready; asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; '
        'selp.u32 %0, 1, 0, p; }" : "=r"(ready) : "r"(full), "r"(t / STAGES & 1) : "memory"); '
        "if (!ready) barrier_wait(full, t / STAGES & 1);"
    )
    text = source.replace("barrier_wait(full, t / STAGES & 1);", peek)
    report, exact = execute(compile_ptx(text, "sm_90a"), 128, 128, 520)
    assert exact and report.ok, str(report)
