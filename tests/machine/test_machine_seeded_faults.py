# ruff: noqa: E501 - CUDA text
"""Seeded faults in kernels that polygen generates and in a hand-written Hopper kernel.

A fault is found when the run has a finding, the launch is refused, or the values are wrong. For
each the tables say whether the values come out right on the machine: those faults no comparison
of results would show. Edits are made in the CUDA text. Faults of kernels with roles are in
``role_faults.py``; each is a test of its own, and counted here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import role_faults
import test_machine_gemm_hopper as hopper
from generated import edited, execute, kernel
from generated_roles import role_execute, role_kernel
from wgmma_text import wgmma_function

from polygen.errors import CompileError, PolygenError
from polygen.runtime.nvrtc import compile_source

BAR = "auto bar_load_a = [&](int) __attribute__((always_inline)) { __syncthreads(); };"
STAGE = "auto bar_stage = [&]() __attribute__((always_inline)) { __syncthreads(); };"
WAIT = "wait_load_a(t);\n    bar_load_a(t);\n    load_a(t - 2, 0);"
COPIES = "    copy_a(t, 0);\n    copy_b(t, 0);\n    commit(t);\n  }\n  #pragma unroll 1\n  for (int t = max("
LOOP = "for (int t = 2; t < k_tiles; ++t) {\n"
EPILOGUE = "bar_stage();\n  stage(0);\n  bar_store();\n  store(0);"
LOAD_A = "((slot + place_ring_a(w_m * 16 + lane % 16, (lane / 16) * 16)) ^ s * 32)"
LOAD_B = (
    "((slot + place_ring_b(w_n * 32 + lane % 8 + 8 * (lane / 16), ((lane / 8) % 2) * 16)) ^ s * 32)"
)
EARLY = (
    (COPIES, "  }\n  #pragma unroll 1\n  for (int t = max("),
    (LOOP, LOOP + COPIES.split("  }")[0]),
)


def bar(body: str) -> tuple[str, str]:
    return BAR, BAR.replace("__syncthreads();", body)


def last(text: str, new: str) -> tuple[str, str, int]:
    """Replace the last occurrence only."""
    return text, new, -1


def first(text: str, new: str) -> tuple[str, str, int]:
    """Replace the first occurrence only."""
    return text, new, 1


# kernel, fault, edits, values right
FAULTS = [
    ("nt", "no barrier before the loads", [bar("")], True),
    ("nt", "barrier of a warp", [bar("__syncwarp();")], True),
    ("nt", "barrier before the wait", [("wait_load_a(t);\n    bar_load_a(t);", "bar_load_a(t);\n    wait_load_a(t);")], True),
    ("nt", "barrier after the first load", [(WAIT, "wait_load_a(t);\n    load_a(t - 2, 0);\n    bar_load_a(t);")], True),
    ("nt", "no barrier in the residual loop", [last("    bar_load_a(t);\n", "")], True),
    ("nt", "no barrier in the main loop", [first("    bar_load_a(t);\n", "")], True),
    ("nt", "one warp skips the barrier", [bar("if (warp != 3) __syncthreads();")], False),
    ("nt", "one warp skips the barrier once", [("bar_load_a(t);\n", "if (warp != 2 || t != 3) bar_load_a(t);\n")], False),
    ("nt", "barrier of two warps", [bar('asm volatile("bar.sync 1, 64;" ::: "memory");')], True),
    ("nt", "barrier of five warps", [bar('asm volatile("bar.sync 1, 160;" ::: "memory");')], False),
    ("nt", "barrier in every other step", [("bar_load_a(t);\n", "if (t % 2) bar_load_a(t);\n")], True),
    ("nt", "arrives without waiting", [bar('asm volatile("bar.arrive 1, 128;" ::: "memory");')], True),
    ("nt", "no barrier before the scratch", [(STAGE, STAGE.replace("__syncthreads();", ""))], True),
    ("nt", "barrier of a warp before the scratch", [(STAGE, STAGE.replace("__syncthreads", "__syncwarp"))], True),
    ("nt", "barrier after the scratch is written", [(EPILOGUE, "stage(0);\n  bar_stage();\n  bar_store();\n  store(0);")], True),
    ("nt", "no __syncwarp before the store", [("{ __syncwarp(); }", "{ }")], True),
    ("nt", "__syncwarp before the scratch is written", [(EPILOGUE, "bar_stage();\n  bar_store();\n  stage(0);\n  store(0);")], True),
    ("nt", "__syncwarp of half a warp", [("{ __syncwarp(); }", "{ if (lane < 16) __syncwarp(0xFFFF); }")], True),
    ("nt", "waits for one group less", [("cp.async.wait_group 1", "cp.async.wait_group 2")], False),
    ("nt", "never waits", [("    wait_load_a(t);\n", "")], False),
    ("nt", "never waits in the residual loop", [last("    wait_load_a(t);\n", "")], False),
    ("nt", "waits after the first load", [(WAIT, "bar_load_a(t);\n    load_a(t - 2, 0);\n    wait_load_a(t);")], False),
    ("nt", "one warp does not wait", [("wait_load_a(t);\n", "if (warp) wait_load_a(t);\n")], False),
    ("nt", "no group is committed", [('asm volatile("cp.async.commit_group;" ::: "memory");', "")], False),
    ("nt", "no empty groups at the end", [last("    commit(t);\n  }\n  #pragma unroll\n", "  }\n  #pragma unroll\n")], False),
    ("nt", "commits before the second copy", [(COPIES, COPIES.replace("    copy_b(t, 0);\n    commit(t);", "    commit(t);\n    copy_b(t, 0);"))], False),
    ("nt", "copies before the barrier", list(EARLY), True),
    ("nt", "copies one tile too far ahead", [(COPIES, COPIES.replace("(t, 0)", "(t + 1, 0)"))], False),
    ("nt", "prologue one tile short", [("t <= min(1, k_tiles - 1)", "t <= min(0, k_tiles - 1)")], False),
    ("nt", "ring of one stage less", [("(k % 3)", "(k % 2)")], True),
    ("nt", "ring of one stage more", [("(k % 3)", "(k % 4)")], False),
    ("nt", "ring of A of one stage less", [("(k % 3) * 2048", "(k % 2) * 2048")], True),
    ("nt", "reads the next stage", [last("shared + 0 + (k % 3)", "shared + 0 + ((k + 1) % 3)")], False),
    ("nt", "rings overlap", [("shared + 6144 + (k % 3)", "shared + 5120 + (k % 3)")], True),
    ("nt", "same k step twice", [("load_a(t - 2, 1)", "load_a(t - 2, 0)")], False),
    ("nt", "swizzle bit of A", [(LOAD_A, f"({LOAD_A} ^ 16)")], False),
    ("nt", "swizzle bit of B", [(LOAD_B, f"({LOAD_B} ^ 32)")], False),
    ("nt", "step added instead of XORed", [(LOAD_A, LOAD_A.replace("^ s", "+ s"))], False),
    ("nt", "copy without swizzle", [("slot + place_ring_b(row, column * 2)", "slot + row * 64 + column * 2")], False),
    ("nt", "copy misaligned", [("copy_16(to + i", "copy_16(to + 8 + i")], False),
    ("nt", "half of B never copied", [("i < (p + 1) * 2", "i < (p + 1) * 1")], False),
    ("nt", "scratch read without swizzle", [("place_scratch(local_row, (local_column + 4) * 4)", "local_row * 128 + (local_column + 4) * 4")], False),
    ("nt", "scratch areas overlap", [("warp * 2048", "warp * 1024")], False),
    ("nt", "rows of the fragment not 8 apart", [("place_scratch(m * 16 + (lane / 4) + 8,", "place_scratch(m * 16 + (lane / 4),")], False),
    ("nt", "fragment registers of A swapped", [("fragment_a[s % 2][i][1], fragment_a[s % 2][i][2]", "fragment_a[s % 2][i][2], fragment_a[s % 2][i][1]")], False),
    ("nt", "fragment registers of B swapped", [("fragment_b[s % 2][i * 2 + 0][1], fragment_b[s % 2][i * 2 + 1][0]", "fragment_b[s % 2][i * 2 + 1][0], fragment_b[s % 2][i * 2 + 0][1]")], False),
    ("nt", "wrong fragment buffer", [("fragment_a[s % 2][m], fragment_b", "fragment_a[(s + 1) % 2][m], fragment_b")], False),
    ("nt", "sums swapped", [("sum[m][n][0], sum[m][n][1]", "sum[m][n][1], sum[m][n][0]")], False),
    ("nt", "sums of the neighbour", [("multiply(sum[m][n],", "multiply(sum[m][n ^ 1],")], False),
    ("nt", "a sum not zeroed", [("(int i = 0; i < 16; ++i) (&sum", "(int i = 1; i < 16; ++i) (&sum"), ("  zero();", "  sum[0][0][0] = thread; zero();")], False),
    ("nt", "no k edge of A", [first("inside && i * 32 < rows_left", "i * 32 < rows_left")], True),
    ("nt", "no m edge of A", [first("inside && i * 32 < rows_left", "inside")], True),
    ("nt", "no n edge of B", [last("inside && i * 32 < rows_left", "inside")], True),
    ("nt", "no m edge of the store", [("if (row < M) {", "if (true) {")], True),
    ("nt", "no n edge of the store", [("if (count >= 8) {", "if (count > -100) {")], False),
    ("nt", "no n edge of the bias", [("if (column + 8 > N) return;", "")], True),
    ("nt", "last k tile forgotten", [("(K + 31) / 32", "K / 32")], False),
    ("nt", "operands swapped", [("x + (long long)(b_m", "w + (long long)(b_m")], False),
    ("nt", "stride of another array", [("y0 + (long long)row * y0_stride0 + column, y0_out", "y0 + (long long)row * x_stride0 + column, y0_out")], False),
    ("nt", "tiles of columns overlap", [("b_n = blockIdx.x / 8", "b_n = blockIdx.x / 8 / 2")], False),
    ("nt", "one warp leaves early", [("const int k_tiles", "if (warp == 3) return;\n  const int k_tiles")], False),
    ("nt", "lanes leave before the loads", [("  zero();", "  if (lane == 31) return;\n  zero();")], False),
    ("nn", "no barrier before the loads", [bar("")], True),
    ("nn", "barrier of a warp", [bar("__syncwarp();")], True),
    ("nn", "barrier before the wait", [("wait_load_a(t);\n    bar_load_a(t);", "bar_load_a(t);\n    wait_load_a(t);")], True),
    ("nn", "waits for one group less", [("cp.async.wait_group 1", "cp.async.wait_group 2")], False),
    ("nn", "copies before the barrier", list(EARLY), True),
    ("nn", "ring of one stage less", [("(k % 3)", "(k % 2)")], True),
    ("nn", "one warp skips the barrier", [bar("if (warp != 1) __syncthreads();")], False),
    ("nn", "not transposed", [("x4.trans.shared", "x4.shared")], False),
    ("nn", "no k edge of B", [last("inside && i * 16 < rows_left", "inside")], True),
    ("nn", "no n edge of B", [last("inside && i * 16 < rows_left", "i * 16 < rows_left")], True),
    ("nn", "no m edge of the result", [("row < M ? N - column : 0", "N - column")], True),
    ("nn", "stride of the residual", [("(long long)safe_row * r_stride0", "(long long)safe_row * (r_stride0 + 1)")], False),
]  # fmt: skip

# Faults of the Hopper kernel, as its own test has them; the values come out right.
HOPPER_RIGHT = {
    "barrier of one warpgroup",
    "no barrier after init",
    "no barrier before the store",
    "no commit",
    "no init fence",
    "no proxy fence",
    "no wgmma fence",
    "only odd warps wait",
    "proxy fence by one thread",
    "released before the wait",
    "store never awaited",
    "wait one group short",
}

# Stricter or only slower than it must be: nothing to find.
HARMLESS = [
    ("nt", "waits for one group more", [("cp.async.wait_group 1", "cp.async.wait_group 0")]),
    ("nt", "barrier twice", [bar("__syncthreads(); __syncthreads();")]),
    ("nt", "block barrier for a warp barrier", [("{ __syncwarp(); }", "{ __syncthreads(); }")]),
    ("nn", "waits for one group more", [("cp.async.wait_group 1", "cp.async.wait_group 0")]),
]


def judged(run, *arguments, **options) -> tuple[bool, bool]:
    """(found by the machine or by a comparison, values right)."""
    try:
        report, exact = run(*arguments, max_steps=20_000, **options)
    except PolygenError:
        return True, False
    return not report.ok or not exact, exact


@pytest.fixture(scope="module")
def outcomes(compile_ptx, read_kernel):
    """(kernel, fault) -> (found, values right); without the kernels with roles."""
    seen = {}
    for name, fault, edits, _ in FAULTS:
        ptx = compile_ptx(edited(kernel(name).source, edits), "sm_80")
        seen[name, fault] = judged(execute, name, ptx)
    front = wgmma_function("multiply_128", 128, 16, "f32.bf16.bf16")
    source = front + read_kernel("gemm_tma_wgmma.cu")
    for fault, old, new, codes in hopper.FAULTS:
        if codes is not None:
            ptx = compile_ptx(edited(source, [(old, new)]), "sm_90a")
            seen["hopper", fault] = judged(hopper.execute, ptx, 136, 136, 328)
    return seen


def test_the_kernels_themselves_are_silent():
    for name in ("nt", "nn"):
        for completion in ("late", "early", "random"):
            report, exact = execute(name, kernel(name).ptx, completion=completion)
            assert exact and report.ok, str(report)


@pytest.mark.parametrize("case", HARMLESS, ids=lambda case: f"{case[0]}: {case[1]}")
def test_too_much_synchronisation_is_no_fault(case, compile_ptx):
    name, _, edits = case
    report, exact = execute(name, compile_ptx(edited(kernel(name).source, edits), "sm_80"))
    assert exact and report.ok, str(report)


@pytest.mark.parametrize("case", role_faults.HARMLESS, ids=lambda case: f"{case[0]}: {case[1]}")
def test_a_harmless_change_of_roles(case, compile_ptx):
    name, _, edits = case
    report, exact = role_execute(
        name, compile_ptx(edited(role_kernel(name).source, edits), "sm_90a")
    )
    assert exact and report.ok, str(report)


# A fifth of them by `make test`; faults of one kind stand beside each other.
SAMPLE = [pytest.mark.slow, pytest.mark.sample(6)]
ROLE_FAULTS = [
    pytest.param(case, id=f"{case[0]}: {case[1]}", marks=SAMPLE if at % 5 else [])
    for at, case in enumerate(role_faults.FAULTS)
]


@pytest.mark.parametrize("case", ROLE_FAULTS)
def test_a_fault_of_roles_is_found(case, compile_ptx):
    name, _, edits, right = case
    ptx = compile_ptx(edited(role_kernel(name).source, edits), "sm_90a")
    assert judged(role_execute, name, ptx) == (True, right)


@pytest.mark.parametrize("case", role_faults.REFUSED, ids=lambda case: case[0])
def test_the_compiler_and_the_machine_find_what_registers_wait_for(case, compile_ptx):
    _, edits = case
    source = role_kernel("cooperative").passes.source
    broken = replace(source, text=edited(source.text, edits))
    report, exact = role_execute("cooperative", compile_ptx(broken.text, "sm_90a"))
    assert exact and {one.code for one in report.findings} == {"wgmma-order"}, str(report)
    with pytest.raises(CompileError, match="potential performance loss"):
        compile_source(broken)


@pytest.mark.slow
def test_the_faults_are_found(outcomes):
    missed = [fault for fault, (found, _) in outcomes.items() if not found]
    tried = len(outcomes) + len(role_faults.FAULTS)
    assert tried >= 250
    assert tried - len(missed) >= 0.98 * tried, missed


@pytest.mark.slow
def test_a_third_of_them_has_right_values(outcomes):
    right = {fault for fault, (_, exact) in outcomes.items() if exact}
    said = {(name, fault) for name, fault, _, exact in FAULTS if exact}
    said |= {("hopper", fault) for fault in HOPPER_RIGHT}
    assert right == said
    roles = [(name, fault) for name, fault, _, exact in role_faults.FAULTS if exact]
    assert 3 * (len(right) + len(roles)) >= len(outcomes) + len(role_faults.FAULTS)
