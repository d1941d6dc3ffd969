# ruff: noqa: E501 - CUDA text
"""The wrapper of a wgmma that reads A from registers: fragments of the data, B through a descriptor.

Two k steps of one tile: the first clears the sums, the second adds to them. What lanes hold follows
the fragment tables that the data proves, where B lies the layouts of operand tiles.
"""

from __future__ import annotations

import functools
import re

import ml_dtypes
import numpy as np
import pytest

from polygen.emit.environment import environment
from polygen.emit.leaf.multiply_wgmma import REGISTERS, product_wrapper
from polygen.hardware.atom import atom, atom_names
from polygen.hardware.matrix_layout import copied_to, matrix_layout
from polygen.machine import Launch, run

WARPGROUP = [name for name in atom_names() if atom(name).scope == "warpgroup"]
TYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "f32": np.float32,
    "s8": np.int8,
    "u8": np.uint8,
    "s32": np.int32,
}
COLUMNS, STEPS = 64, 2
KERNEL = """
extern "C" __global__ void __launch_bounds__(128, 1)
k(const uint4* image, const unsigned* fragments, C_TYPE* out, unsigned long long descriptor) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned base = (unsigned)__cvta_generic_to_shared(memory);
  for (int i = threadIdx.x; i < BYTES / 16; i += 128) ((uint4*)memory)[i] = image[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  unsigned a[STEPS][4];
  for (int s = 0; s < STEPS; ++s)
    for (int i = 0; i < 4; ++i) a[s][i] = fragments[(s * 128 + threadIdx.x) * 4 + i];
  C_TYPE sums[BLOCKS][PER_BLOCK];
  for (int n = 0; n < BLOCKS; ++n)
    for (int e = 0; e < PER_BLOCK; ++e) sums[n][e] = 77;
  const unsigned long long first = descriptor + (base >> 4);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  product(sums, a[0], first, 0);
  product(sums, a[1], first + SECOND / 16, 1);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int n = 0; n < BLOCKS; ++n)
    for (int e = 0; e < PER_BLOCK; ++e) out[(threadIdx.x * BLOCKS + n) * PER_BLOCK + e] = sums[n][e];
}
"""


@functools.cache
def source(name: str, major: str) -> str:
    """The wrapper and a kernel that calls it."""
    one, layout = atom(name), tile(name, major)
    record = product_wrapper(one, COLUMNS, (REGISTERS, major), "product")
    wrapper = environment().get_template("instructions/wgmma.cu.j2").render(products=[record])
    texts = {
        "C_TYPE": record["c_type"],
        "BYTES": layout.bytes,
        "STEPS": STEPS,
        "BLOCKS": record["blocks"],
        "PER_BLOCK": record["registers"],
        "SECOND": layout.k_steps[1],
    }
    kernel = KERNEL
    for key, value in texts.items():
        kernel = kernel.replace(key, str(value))
    return wrapper + kernel


def tile(name: str, major: str):
    """Where B lies."""
    one = atom(name)
    return matrix_layout(
        major, COLUMNS, STEPS * one.k, one.b.dtype.bytes, one.k, COLUMNS, "the test"
    )


def execute(compile_ptx, name, major):
    """The report, and the sums that are right, in the places of the accumulators."""
    one, layout = atom(name), tile(name, major)
    random, depth = np.random.default_rng(5), STEPS * one.k
    a, b = (
        random.integers(0 if operand.dtype.name == "u8" else -3, 4, (rows, depth))
        .astype(np.float32)
        .astype(TYPES[operand.dtype.name])
        for operand, rows in ((one.a, 64), (one.b, COLUMNS))
    )
    table = one.a.table
    parts = [a[table[..., 0], s * one.k + table[..., 1]] for s in range(STEPS)]
    fragments = np.ascontiguousarray(np.stack(parts)).view(np.uint32)
    stored = np.ascontiguousarray(b if major == "k" else b.T)
    row, byte = np.indices((stored.shape[0], layout.row_bytes))
    image = np.zeros(layout.bytes, np.uint8)
    image[copied_to(layout, row, byte)] = stored.view(np.uint8).reshape(row.shape)
    sums = TYPES[one.c.dtype.name]
    blocks, each = COLUMNS // one.n, one.c.elements
    out = np.zeros((128, blocks, each), sums)
    given = (image, fragments, out.view(np.uint32), layout.descriptor)
    report = run(
        compile_ptx(source(name, major), "sm_90a"),
        Launch((1, 1, 1), (128, 1, 1), layout.bytes, given),
    )
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    place = one.c.table
    columns = 8 * np.arange(blocks)[None, :, None] + place[:, None, :, 1]
    return report, wanted[place[:, None, :, 0] + 0 * columns, columns], sums


@pytest.mark.parametrize("name", WARPGROUP)
@pytest.mark.parametrize("major", ["k", "mn"])
def test_fragments_of_the_data_are_multiplied(compile_ptx, name, major):
    if major not in atom(name).majors:
        pytest.skip("the instruction reads this operand along k alone")
    report, wanted, kind = execute(compile_ptx, name, major)
    assert report.ok, str(report)
    got = report.arrays[2].view(kind).reshape(wanted.shape)
    np.testing.assert_array_equal(got.astype(np.float64), wanted)


@pytest.mark.parametrize("name", ["wgmma_m64k16_f32_bf16", "wgmma_m64k32_f32_e4m3"])
@pytest.mark.parametrize("early", [False, True])
def test_fragments_belong_to_the_instruction_until_the_wait(compile_ptx, name, early):
    """Writing one over is an error before the wait, and none behind it."""

    def changed(text, arch):
        ptx = compile_ptx(text, arch)
        (register, *_) = re.search(r"k(?:16|32)[^{]*{[^}]*}, {(%r\d+), [^}]*}", ptx).groups()
        write = f"add.s32 {register}, {register}, 1;"
        wait = "wgmma.wait_group.sync.aligned 0;"
        assert ptx.count(wait) == 1
        return ptx.replace(wait, f"{write}\n{wait}" if early else f"{wait}\n{write}")

    report, *_ = execute(changed, name, "k")
    found = {one.code for one in report.findings}
    assert found == ({"wgmma-order"} if early else set()), str(report)
