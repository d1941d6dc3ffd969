# ruff: noqa: E501 - PTX text
"""Registers that nothing has written: found where their values matter, and nowhere else."""

from __future__ import annotations

import re

import numpy as np
import pytest
from generated import execute, kernel
from generated_roles import role_execute, role_kernel

from polygen.machine import Launch, run

PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out) {
  .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .b16 %h<9>; .reg .pred %p<9>; .reg .f32 %f<20>;
  .shared .align 4 .b32 s[32];
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
  cvta.to.global.u64 %rd1, %rd1; cvta.to.global.u64 %rd2, %rd2;
  mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd2, %rd3;
  setp.lt.u32 %p1, %r1, 16; setp.ge.u32 %p2, %r1, 16;
  BODY
  ret;
}
"""
STORE = "st.global.u32 [%rd2], %r2;"
LOOP = "mov.u32 %r4, 0; again: INSIDE add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 3; @%p3 bra again;"
FOUND = {
    "stored": STORE,
    "copied, then stored": "mov.u32 %r3, %r5; mov.u32 %r2, %r3;" + STORE,
    "computed with, then stored": "add.u32 %r2, %r5, 1;" + STORE,
    "written by half the lanes": "@%p1 mov.u32 %r2, 1;" + STORE,
    "written where a branch leads": "@%p1 bra over; mov.u32 %r2, 1; over:" + STORE,
    "a sum that begins with nothing": LOOP.replace("INSIDE", "add.u32 %r2, %r2, 1;") + STORE,
    "an address": "cvt.u64.u32 %rd4, %r5; and.b64 %rd4, %rd4, 0; add.s64 %rd4, %rd4, %rd1; ld.global.u32 %r2, [%rd4];"
    + STORE,
    "an address in shared memory": "mov.u32 %r6, s; mad.lo.u32 %r6, %r1, 4, %r6; and.b32 %r5, %r5, 0; add.u32 %r6, %r6, %r5; st.shared.u32 [%r6], %r1;",
    "a branch": "setp.eq.u32 %p4, %r5, 0; @%p4 bra over; mov.u32 %r6, 1; over:",
    "a predicate of a store": "mov.u32 %r2, 1; setp.eq.u32 %p4, %r5, 0; @%p4 " + STORE,
    "a predicate of a move": "mov.u32 %r2, 1; setp.eq.u32 %p4, %r5, 0; @%p4 mov.u32 %r2, 2;"
    + STORE,
    "the operand that selp takes": "selp.b32 %r2, %r5, %r1, %p1;" + STORE,
    "the predicate of selp": "selp.b32 %r2, 1, 2, %p5;" + STORE,
    "packed": "cvt.u16.u32 %h1, %r1; mov.b32 %r2, {%h1, %h2};" + STORE,
    "an accumulator": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1, %f2, %f3, %f4}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%f5, %f6, %f7, %f8};",
}
SILENT = {
    "never read": "mov.u32 %r2, 1;" + STORE,
    "moved and computed with only": "mov.u32 %r3, %r5; add.u32 %r3, %r3, 1; mov.u32 %r2, 1;" + STORE,
    "stored in shared memory, and the half that was written from there": "@%p1 mov.u32 %r2, 1; mov.u32 %r6, s; mad.lo.u32 %r6, %r1, 4, %r6; st.shared.u32 [%r6], %r2; ld.shared.u32 %r3, [%r6]; @%p1 st.global.u32 [%rd2], %r3;",
    "written later": "mov.u32 %r3, %r2; mov.u32 %r2, 1;" + STORE,
    "loaded and stored by the same half": "@%p1 ld.global.u32 %r2, [%rd1]; @%p1 " + STORE,
    "written by both halves": "@%p1 mov.u32 %r2, 1; @%p2 mov.u32 %r2, 2;" + STORE,
    "written before a branch that is always taken": "setp.eq.u32 %p4, 0, 0; @%p4 mov.u32 %r2, 1;" + STORE,
    "the operand that selp does not take": "setp.lt.u32 %p4, %r1, 99; selp.b32 %r2, %r1, %r5, %p4;" + STORE,
    "a loop that writes first": LOOP.replace("INSIDE", "setp.eq.u32 %p4, %r4, 0; @%p4 mov.u32 %r2, 0; add.u32 %r2, %r2, 1;") + STORE,
    "the other lanes' values": "@%p1 mov.u32 %r2, 1; shfl.sync.idx.b32 %r2, %r2, 0, 31, -1;" + STORE,
}  # fmt: skip


# Half of shared memory is written, and %r7 holds what a lane finds there.
LOAD = "mov.u32 %r6, s; mad.lo.u32 %r6, %r1, 4, %r6; @%p1 st.shared.u32 [%r6], %r1; ld.shared.u32 %r7, [%r6];"
PAIR = "mov.u32 %r6, s; mad.lo.u32 %r6, %r1, 4, %r6; and.b32 %r6, %r6, -8; setp.eq.u32 %p6, %r1, 4; @%p6 st.shared.u32 [%r6], %r1; setp.lt.u32 %p7, %r1, 4; mov.u32 %r3, 5; @%p7 st.shared.v2.u32 [%r6], {%r3, %r3}; bar.warp.sync -1; ld.shared.v2.u32 {%r7, %r8}, [%r6];"
FOUND_IN_SHARED = {
    "stored": "st.global.u32 [%rd2], %r7;",
    "stored in shared memory": "st.shared.u32 [%r6], %r7;",
    "exchanged": "shfl.sync.bfly.b32 %r2, %r7, 1, 31, -1;",
    "computed with, then stored": "add.u32 %r2, %r7, 1;" + STORE,
    "a branch": "setp.eq.u32 %p4, %r7, 0; @%p4 bra over; mov.u32 %r2, 1; over:",
    "a comparison that an and lets through": "setp.gt.u32 %p4, %r7, 3; and.pred %p4, %p4, %p2; selp.b32 %r2, 1, 2, %p4;" + STORE,
    "a comparison that an or lets through": "setp.gt.u32 %p4, %r7, 3; or.pred %p4, %p1, %p4; selp.b32 %r2, 1, 2, %p4;" + STORE,
    "a comparison with an and": "setp.gt.and.u32 %p4, %r7, 3, %p2; selp.b32 %r2, 1, 2, %p4;" + STORE,
}  # fmt: skip
SILENT_IN_SHARED = {
    "read, and no more": "",
    "computed with": "add.u32 %r2, %r7, 1;",
    "stored where it was written": "@%p1 st.global.u32 [%rd2], %r7;",
    "the operand that selp does not take": "selp.b32 %r2, %r7, %r1, %p1;" + STORE,
    "a comparison that an and decides": "setp.gt.u32 %p4, %r7, 3; and.pred %p4, %p4, %p1; selp.b32 %r2, 1, 2, %p4;" + STORE,
    "a comparison that an or decides": "setp.gt.u32 %p4, %r7, 3; or.pred %p4, %p2, %p4; selp.b32 %r2, 1, 2, %p4;" + STORE,
    "a comparison with an and of another": "setp.gt.and.u32 %p4, %r7, 3, %p1; selp.b32 %r2, 1, 2, %p4;" + STORE,
    "a comparison with an or of another": "setp.gt.or.u32 %p4, %r7, 3, !%p1; selp.b32 %r2, 1, 2, %p4;" + STORE,
    "written later": "mov.u32 %r7, 1; st.global.u32 [%rd2], %r7;",
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND_IN_SHARED)
def test_what_was_found_in_shared_memory_is_followed(what):
    assert codes(LOAD + FOUND_IN_SHARED[what]) == {"uninitialised-shared-read"}


@pytest.mark.parametrize("what", SILENT_IN_SHARED)
def test_what_was_found_in_shared_memory_may_not_matter(what):
    assert codes(LOAD + SILENT_IN_SHARED[what]) == set()


@pytest.mark.parametrize("name, found", [("%r7", 26), ("%r8", 28)])
def test_each_element_of_a_vector_is_followed_by_itself(name, found):
    arrays = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    text = PTX.replace("BODY", PAIR + f"st.global.u32 [%rd2], {name};")
    (finding,) = run(text, Launch((1, 1, 1), (32, 1, 1), 0, arrays)).findings
    assert finding.code == "uninitialised-shared-read" and finding.count == found


def test_what_was_found_is_told_at_the_load():
    arrays = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    text = PTX.replace("BODY", LOAD + "add.u32 %r2, %r7, 1;" + STORE)
    (finding,) = run(text, Launch((1, 1, 1), (32, 1, 1), 0, arrays)).findings
    assert "thread 16 of block (0, 0, 0) reads shared byte 64, which nothing" in finding.sentence
    assert "ld.shared.u32 %r7" in finding.where and finding.count == 16


def codes(body: str, completion: str = "late", checks: bool = True) -> set[str]:
    arrays = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    launch = Launch((1, 1, 1), (32, 1, 1), 0, arrays)
    report = run(PTX.replace("BODY", body), launch, completion=completion, checks=checks)
    return {finding.code for finding in report.findings}


@pytest.mark.parametrize("what", FOUND)
def test_a_use_of_what_nothing_wrote_is_found(what):
    assert codes(FOUND[what]) == {"unwritten-register"}


@pytest.mark.parametrize("what", SILENT)
def test_what_does_not_matter_is_not(what):
    assert codes(SILENT[what]) == set()


def test_without_checks_nothing_is_followed():
    assert codes(STORE, checks=False) == set()


def test_the_sentence_names_the_register_and_the_lane():
    arrays = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    text = PTX.replace("BODY", FOUND["written by half the lanes"])
    (finding,) = run(text, Launch((1, 1, 1), (32, 1, 1), 0, arrays)).findings
    assert "thread 16 of block (0, 0, 0) uses register %r2" in finding.sentence
    assert finding.count == 16


KERNELS = {
    "nt": (kernel, execute),
    "nn": (kernel, execute),
    "cooperative": (role_kernel, role_execute),
}
DEFINITION = re.compile(
    r"^\s*(?:mov|add|mul|shl|cvt|and|or|setp|ld\.param)[.\w]*\s+(%\w+), .*;$", re.M
)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("part", range(4))
def test_a_kernel_that_lacks_an_instruction_is_found(name, part):
    """Any of those that alone define a register, drawn from all over the kernel."""
    made, run_it = KERNELS[name]
    ptx = made(name).ptx
    places = [
        one
        for one in DEFINITION.finditer(ptx)
        if len(re.findall(rf"^\s*(?:@!?%p\d+ )?[.\w]+\s+{one[1]}\b[,|]", ptx, re.M)) == 1
    ]
    assert len(places) > 40
    one = places[len(places) * (2 * part + 1) // 8]
    report, _ = run_it(name, ptx[: one.start()] + ptx[one.end() :], max_steps=20_000)
    assert "unwritten-register" in {finding.code for finding in report.findings}, one[0]
