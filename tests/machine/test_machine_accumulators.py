# ruff: noqa: E501 - CUDA and PTX text
"""Registers of wgmma: read or written while it runs, and accessed without a fence before it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from generated_roles import role_execute, role_kernel
from wgmma_text import wgmma_function

from polygen.machine import Launch, run

FENCE, COMMIT = (
    f'asm volatile("wgmma.{what}.sync.aligned;" ::: "memory");'
    for what in ("fence", "commit_group")
)
WAIT0, WAIT1 = (f'asm volatile("wgmma.wait_group.sync.aligned {n};" ::: "memory");' for n in (0, 1))
STORE = "for (int i = 0; i < 8; i++) out[threadIdx.x * 8 + i] = acc[i];"
DOUBLE = "for (int i = 0; i < 8; i++) acc[i] = acc[i] * 2.f + 1.f;"
PRODUCT, OTHER = "product(acc, da, db, 1);", "product(other, da, db, 1);"
FROM_REGISTERS = "from_registers(acc, a, db, 1);"
COUNT = "for (int i = 0; i < 4; i++) a[i] += 1;"
KERNEL = """
extern "C" __global__ void __launch_bounds__(128, 1)
k(const uint4* image, float* out, unsigned long long da, unsigned long long db) {
  extern __shared__ __align__(1024) unsigned char memory[];
  word base; asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(base) : "l"(memory));
  for (int i = threadIdx.x; i < 4096 / 16; i += 128) ((uint4*)memory)[i] = image[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float acc[8], other[8]; word a[4];
  for (int i = 0; i < 8; i++) { acc[i] = 0.f; other[i] = 0.f; }
  for (int i = 0; i < 4; i++) a[i] = ((word*)memory)[threadIdx.x + i];
  da += base >> 4; db += base >> 4;
  BODY
}
"""


def findings(compile_ptx, *body, change=lambda ptx: ptx):
    """The sentences of wgmma-order findings, which must be the only ones."""
    front = wgmma_function("product", 16, 16, "f32.f16.f16") + wgmma_function(
        "from_registers", 16, 16, "f32.f16.f16", registers_a=True, immediates="1, 1, 0"
    ).replace("typedef unsigned int word;", "")
    ptx = change(compile_ptx(front + KERNEL.replace("BODY", " ".join(body)), "sm_90a"))
    image, out = np.zeros(4096, np.uint8), np.zeros((128, 8), np.float32)
    plain = 8 << 16 | 16 << 32  # LBO 128, SBO 256 bytes, no swizzle
    report = run(ptx, Launch((1, 1, 1), (128, 1, 1), 4096, (image, out, plain, plain)))
    assert {one.code for one in report.findings} <= {"wgmma-order"}, str(report)
    return [one.sentence for one in report.findings]


RIGHT = {
    "one product": (FENCE, PRODUCT, COMMIT, WAIT0, STORE),
    "same shape, no fence between": (
        FENCE,
        PRODUCT,
        PRODUCT,
        COMMIT,
        PRODUCT,
        COMMIT,
        WAIT0,
        STORE,
    ),
    "another group still runs": (FENCE, PRODUCT, COMMIT, OTHER, COMMIT, WAIT1, STORE, WAIT0),
    "changed and fenced": (
        FENCE,
        PRODUCT,
        COMMIT,
        WAIT0,
        DOUBLE,
        FENCE,
        PRODUCT,
        COMMIT,
        WAIT0,
        STORE,
    ),
    "loop": (
        FENCE,
        "for (int k = 0; k < out[0] + 3; k++) {",
        PRODUCT,
        COMMIT,
        WAIT1,
        "}",
        WAIT0,
        STORE,
    ),
    "a from registers": (
        FENCE,
        FROM_REGISTERS,
        COMMIT,
        WAIT0,
        COUNT,
        FENCE,
        FROM_REGISTERS,
        COMMIT,
        WAIT0,
        STORE,
    ),
    "a is still read": (FENCE, FROM_REGISTERS, COMMIT, "out[threadIdx.x] = a[0];", WAIT0, STORE),
}
WRONG = {
    "read before the wait": ((FENCE, PRODUCT, COMMIT, STORE, WAIT0), "reads register"),
    "read after a wait for older groups": (
        (FENCE, PRODUCT, COMMIT, WAIT1, STORE, WAIT0),
        "reads register",
    ),
    "the other group was waited for": (
        (FENCE, OTHER, COMMIT, PRODUCT, COMMIT, WAIT1, STORE, WAIT0),
        "reads register",
    ),
    "changed before the wait": ((FENCE, PRODUCT, COMMIT, DOUBLE, WAIT0, STORE), "reads register"),
    "not committed": ((FENCE, PRODUCT, WAIT0, STORE, COMMIT, WAIT0), "reads register"),
    "changed, no fence": (
        (FENCE, PRODUCT, COMMIT, WAIT0, DOUBLE, PRODUCT, COMMIT, WAIT0, STORE),
        "since the last wgmma.fence",
    ),
    "stored, no fence": (
        (FENCE, PRODUCT, COMMIT, WAIT0, STORE, PRODUCT, COMMIT, WAIT0, STORE),
        "since the last wgmma.fence",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_orders_are_silent(compile_ptx, name):
    assert findings(compile_ptx, *RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_wrong_orders_are_found(compile_ptx, name):
    body, words = WRONG[name]
    found = findings(compile_ptx, *body)
    assert any(words in sentence for sentence in found), found


@pytest.mark.parametrize(
    "verb, line", [("writes", "add.s32 {0}, {0}, 1;"), ("", "add.s32 %fresh, {0}, 1;")]
)
def test_registers_of_a_are_read_until_the_wait(compile_ptx, verb, line):
    """They may be read meanwhile; CUDA text cannot write them, for compilers take new ones."""

    def change(ptx):
        register = re.search(r"wgmma.mma_async[^{]*{[^}]*}, {(%r\d+)", ptx)[1]
        ptx = ptx.replace(".reg .b32 \t", ".reg .b32 %fresh;\n\t.reg .b32 \t", 1)
        assert "%fresh" in ptx
        at = ptx.index("wgmma.commit_group")
        return ptx[:at] + line.format(register) + "\n" + ptx[at:]

    found = findings(compile_ptx, FENCE, FROM_REGISTERS, COMMIT, WAIT0, STORE, change=change)
    assert all("writes register %r" in sentence for sentence in found)
    assert bool(found) == bool(verb)


@pytest.mark.parametrize("name", ["cooperative", "pingpong"])
@pytest.mark.parametrize(
    "text, instead",
    [
        ("wgmma.wait_group.sync.aligned 0;", ""),
        ("wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;"),
        ("wgmma.fence.sync.aligned;", ""),
    ],
)
def test_generated_kernels_without_a_wait_or_a_fence(name, text, instead):
    ptx = role_kernel(name).ptx
    first = ptx.index(text)
    report, _ = role_execute(name, ptx[:first] + instead + ptx[first + len(text) :])
    assert "wgmma-order" in {one.code for one in report.findings}, str(report)
