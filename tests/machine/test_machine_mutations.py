"""Every synchronisation, copy and matrix instruction of some kernels, dropped or bent, in the PTX.

A mutant is found when the run has a finding, ends in an error, or gives wrong values. Mutants that
change nothing for the chosen size are listed with the reason.
"""

from __future__ import annotations

import re

import generated
import generated_roles
import pytest
import test_machine_gemm_cp_async as cp_async
import test_machine_gemm_hopper as hopper
from wgmma_text import wgmma_function

from polygen.errors import PolygenError

pytestmark = pytest.mark.slow
DROPPED = re.compile(
    r"(@!?%\w+ )?(bar\.sync|cp\.async|wgmma\.|mbarrier\.|fence\.|ldmatrix|stmatrix|mma\.sync|setp)"
)


def mutants(ptx: str):
    """(line number, kind, mutated text)."""
    lines = ptx.splitlines()
    for at, line in enumerate(lines):
        text = line.strip()
        changed = []
        if DROPPED.match(text) and not text.startswith("setp"):
            changed.append(("dropped", ""))
        wait = re.match(r"(.*wait_group(?:\.read|\.sync\.aligned)? )(\d+);", text)
        if wait:
            changed.append(("one more group open", f"{wait[1]}{int(wait[2]) + 1};"))
        if text.startswith("mma.sync"):
            registers = re.findall(r"%r\d+", text)
            for kind, (x, y) in (("A swapped", registers[1:3]), ("B swapped", registers[-2:])):
                pattern = rf"({x}|{y})\b"
                swap = {x: y, y: x}
                changed.append((kind, re.sub(pattern, lambda m, s=swap: s[m[1]], text)))
        if "xor.b32" in text and re.search(r", \d+;", text):
            changed.append(("swizzle", re.sub(r", (\d+);", lambda m: f", {int(m[1]) ^ 8};", text)))
        if "mbarrier.init" in text or "expect_tx" in text:
            last = re.findall(r"%r\d+", text)[-1]
            bump = f"{{ .reg .b32 more; add.u32 more, {last}, 1; {text.replace(last, 'more')} }}"
            changed.append(("one more", bump))
        for kind, new in changed:
            yield at + 1, f"{kind}: {text[:60]}", "\n".join([*lines[:at], new, *lines[at + 1 :]])


def survivors(execute, ptx: str, size, equivalent):
    """(mutants tried, found with right values, mutants nothing showed)."""
    tried, right, missed = 0, 0, []
    for line, kind, text in mutants(ptx):
        if equivalent(kind):
            continue
        tried += 1
        try:
            report, exact = execute(text, *size, max_steps=20_000)
        except PolygenError:
            continue
        if report.ok and exact:
            missed.append(f"line {line}, {kind}")
        right += exact and not report.ok
    return tried, right, missed


def test_ampere(compile_ptx, read_kernel):
    ptx = compile_ptx(read_kernel("gemm_cp_async.cu"))
    tried, right, missed = survivors(cp_async.execute, ptx, (72, 72, 168), lambda kind: False)
    assert tried >= 70 and right >= 1
    assert not missed, missed


@pytest.mark.parametrize("name", ["nt", "nn"])
def test_generated(name):
    def execute(ptx, *sizes, **options):
        for k in sizes:  # short sums take branches of their own
            report, exact = generated.execute(name, ptx, 40, 72, k, **options)
            if not (report.ok and exact):
                break
        return report, exact

    ptx = generated.kernel(name).ptx
    tried, right, missed = survivors(execute, ptx, (168, 24, 56, 88), lambda kind: False)
    assert tried >= 60 and right >= 2
    assert not missed, missed


def test_hopper(compile_ptx, read_kernel):
    def equivalent(kind: str) -> bool:
        # accumulators are not touched between the groups, so one fence at the start is enough;
        # the loop's last copy releases a stage that nobody fills again
        return "wgmma.fence" in kind or ("dropped" in kind and "mbarrier.arrive.shared" in kind)

    text = wgmma_function("multiply_128", 128, 16, "f32.bf16.bf16")
    ptx = compile_ptx(text + read_kernel("gemm_tma_wgmma.cu"), "sm_90a")
    tried, right, missed = survivors(hopper.execute, ptx, (200, 136, 520), equivalent)
    assert tried >= 40 and right >= 10
    assert not missed, missed


# Panels go round their slots twice for every consumer.
@pytest.mark.parametrize(
    "name, size", [("cluster", (264, 136, 264)), ("pingpong", (200, 200, 136))]
)
def test_roles(name, size):
    def execute(ptx, *sizes, **options):
        return generated_roles.role_execute(name, ptx, *sizes, **options)

    def equivalent(kind: str) -> bool:
        # after init two fences stand in for each other; between k tiles nothing touches the sums;
        # of a parity only the lowest bit counts
        unneeded = ("fence.mbarrier_init", "wgmma.fence")
        return any(one in kind for one in unneeded) or bool(re.match(r"swizzle: .*, 1;", kind))

    ptx = generated_roles.role_kernel(name).ptx
    tried, right, missed = survivors(execute, ptx, size, equivalent)
    assert tried >= 35 and right >= 10
    first = next(at for at, line in enumerate(ptx.splitlines(), 1) if "fence.proxy.async" in line)
    assert missed == [f"line {first}, dropped: fence.proxy.async.shared::cta;"]
