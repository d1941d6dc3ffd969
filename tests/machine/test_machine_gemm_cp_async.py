# ruff: noqa: E501 - CUDA and PTX text
"""A cp.async / ldmatrix / mma kernel: exact on integers, silent when right, and every seeded fault found."""

from __future__ import annotations

import numpy as np
import pytest
from float_samples import floats, sum_error
from gpu_twin import run_within

from polygen.machine import Launch, Report, run

STAGES = 3


def execute(ptx: str, m: int, n: int, k: int, **options) -> tuple[Report, bool]:
    random = np.random.default_rng(m * n + k)
    a = random.integers(-4, 5, (m, k)).astype(np.float16)
    b = random.integers(-4, 5, (k, n)).astype(np.float16)
    bias = random.integers(-9, 10, n).astype(np.float32)
    d = np.full((m, n), np.nan, np.float32)
    launch = Launch(
        grid=(-(-n // 64), -(-m // 64), 1),
        block=(128, 1, 1),
        shared_bytes=STAGES * 2 * 64 * 32 * 2,
        arguments=(a, b, bias, d, m, n, k),
    )
    report = run(ptx, launch, **options)
    wanted = np.maximum(a.astype(np.float32) @ b.astype(np.float32) + bias, 0)
    return report, np.array_equal(report.arrays[3], wanted)


@pytest.fixture
def source(read_kernel):
    return read_kernel("gemm_cp_async.cu")


@pytest.mark.parametrize("size", [(64, 64, 32), (72, 136, 72), (128, 64, 200)])
@pytest.mark.parametrize("completion", ["late", "early", "random"])
def test_exact_and_silent(source, compile_ptx, size, completion):
    report, exact = execute(compile_ptx(source), *size, completion=completion)
    assert exact
    assert report.ok, str(report)


def test_random_floats(source, compile_ptx):
    m, n, k = 72, 136, 200
    a, b = floats((m, k), np.float16, 0), floats((k, n), np.float16, 1)
    bias, d = floats((n,), np.float32, 2), np.full((m, n), np.nan, np.float32)
    sums = a.astype(np.float64) @ b.astype(np.float64)
    wanted = np.maximum(sums + bias, 0)
    # The sum as the units add it, then one rounded addition.
    error = sum_error(a, b, np.zeros((m, n)), 16, 23) + 2.0**-24 * np.abs(sums + bias)
    launch = Launch((3, 2, 1), (128, 1, 1), STAGES * 2 * 64 * 32 * 2, (a, b, bias, d, m, n, k))
    report = run_within(compile_ptx(source), launch, (None, None, None, error))
    assert report.ok, str(report)
    assert (np.abs(report.arrays[3] - wanted) <= error).all()


def test_same_answer_without_checks(source, compile_ptx):
    report, exact = execute(compile_ptx(source), 72, 64, 96, checks=False)
    assert exact and report.ok


def test_profile_shows_no_conflicts(source, compile_ptx):
    report, _ = execute(compile_ptx(source), 64, 64, 64, profile=True)
    shared = [row for row in report.profile if row.space == "shared"]
    assert len(shared) >= 6
    assert all(row.actual == row.ideal for row in shared)


def test_profile_shows_conflicts_without_swizzle(source, compile_ptx):
    flat = source.replace("chunk ^ (row >> 1 & 3)", "chunk")
    report, exact = execute(compile_ptx(flat), 64, 64, 64, profile=True)
    assert exact and report.ok
    loads = [row for row in report.profile if "ldmatrix.sync.aligned.m8n8.x4.shared" in row.where]
    assert loads and all(row.actual == 4 * row.ideal for row in loads)


# (name, text, replacement, expected codes, values wrong in late mode)
FAULTS = [
    ("no barrier", "__syncthreads();", "", {"race-write-read", "race-read-write"}, False),
    ("wait one short", '"n"(STAGES - 2)', '"n"(STAGES - 1)', {"in-flight-access"}, True),
    ("one stage too deep", "fetch(tile + STAGES - 1)", "fetch(tile + STAGES)", {"in-flight-access"}, True),
    ("no commit", 'asm volatile("cp.async.commit_group;" ::: "memory");', "", {"in-flight-access"}, True),
    ("row predicate", "gm < m && gk < k", "gk < k", {"out-of-bounds-global"}, False),
    ("store predicate", "if (r < m && c < n)", "if (c < n)", {"out-of-bounds-global"}, False),
    ("half never copied", "for (int i = 0; i < 2; i++) {\n        int id = thread + i * 128, r = id >> 3",
     "for (int i = 0; i < 1; i++) {\n        int id = thread + i * 128, r = id >> 3",
     {"uninitialised-shared-read"}, True),
    ("misaligned", "copy16(at + a_chunk(r, c)", "copy16(at + 8 + a_chunk(r, c)", {"misaligned"}, True),
    ("ring too large", "tile % STAGES * 2", "tile % (STAGES + 1) * 2", {"out-of-bounds-shared"}, True),
    ("barrier in divergence", "__syncthreads();", "if (lane < 16) __syncthreads();",
     {"divergent-warp-operation"}, True),
    ("barrier counts half", "__syncthreads();", 'asm volatile("bar.sync 1, 64;" ::: "memory");',
     {"race-write-read"}, False),
    ("one warp skips", "__syncthreads();", "if (warp != 3) __syncthreads();", {"race-write-read"}, True),
    ("barrier expects too many", "__syncthreads();", 'asm volatile("bar.sync 1, 160;" ::: "memory");',
     {"deadlock"}, True),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=[fault[0] for fault in FAULTS])
def test_fault_is_found(source, compile_ptx, fault):
    _, text, replacement, codes, wrong = fault
    assert text in source
    size = (72, 64, 160) if "predicate" in fault[0] else (64, 64, 160)
    report, exact = execute(compile_ptx(source.replace(text, replacement)), *size)
    found = {finding.code for finding in report.findings}
    assert codes & found, str(report)
    if wrong:
        assert not exact
    else:
        assert exact


def test_race_names_both_lines(source, compile_ptx):
    report, _ = execute(compile_ptx(source.replace("__syncthreads();", "")), 64, 64, 160)
    lines = source.replace("__syncthreads();", "").splitlines()
    copy_line = next(i for i, text in enumerate(lines, 1) if "cp.async.cg" in text)
    race = next(one for one in report.findings if one.code == "race-write-read")
    assert f"kernel.cu:{copy_line}" in race.where
    assert "ldmatrix" in race.where and "cp.async" in race.where


def test_wrong_fragment_shows_in_values(source, compile_ptx):
    swapped = source.replace('"r"(fa[i][1]), "r"(fa[i][2])', '"r"(fa[i][2]), "r"(fa[i][1])')
    report, exact = execute(compile_ptx(swapped), 64, 64, 64)
    assert report.ok and not exact
