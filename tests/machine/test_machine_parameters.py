"""Parameters read through their address: by all threads alike, and by each its own word."""

from __future__ import annotations

import numpy as np
import pytest
from machine.conftest import to_ptx

from polygen.machine import Launch, run

HEAD = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .align 4 .b8 table[32], .param .u64 out)
{
  .reg .pred %p<3>;
  .reg .b32 %r<16>;
  .reg .b64 %rd<16>;
  mov.u32 %r1, %tid.x;
  mov.b64 %rd1, table;
  ld.param.u64 %rd2, [out];
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd4, %rd2, %rd3;
"""
TABLE = np.arange(100, 108, dtype=np.uint32)


def launched(body: str, **options) -> np.ndarray:
    later = "LATER:\n  bra READ;\n" if "LATER" in body else ""
    text = f"{HEAD}{body}\n  st.global.u32 [%rd4], %r2;\n  ret;\n{later}}}\n"
    out = np.zeros(64, np.uint32)
    launch = Launch((1, 1, 1), (64, 1, 1), 0, (TABLE.tobytes(), out))
    report = run(text, launch, **options)
    assert report.ok, str(report)
    return report.arrays[0]


# The second warp comes by when the first one waits for it, and they go on together.
APART = """
  setp.ge.u32 %p1, %r1, 32;
  @%p1 bra LATER;
READ:
"""


def test_every_thread_reads_its_own_word():
    body = f"""
  and.b64 %rd5, %rd3, 31;
  add.s64 %rd6, %rd1, %rd5;
  {APART}
  ld.param.u32 %r2, [%rd6];
  bar.sync 0;"""
    np.testing.assert_array_equal(launched(body), TABLE[np.arange(64) % 8])


def test_a_word_that_warps_read_one_by_one_and_use_together():
    body = f"""
  {APART}
  ld.param.u32 %r3, [%rd1+8];
  bar.sync 0;
  add.u32 %r2, %r3, %r1;"""
    np.testing.assert_array_equal(launched(body), 102 + np.arange(64))


def test_a_guarded_word_keeps_the_others():
    body = """
  setp.lt.u32 %p1, %r1, 5;
  mov.u32 %r2, 7;
  @%p1 ld.param.u32 %r2, [%rd1+12];"""
    np.testing.assert_array_equal(launched(body), np.where(np.arange(64) < 5, 103, 7))


def test_two_words_at_once():
    body = """
  ld.param.v2.u32 {%r3, %r4}, [%rd1+16];
  sub.u32 %r2, %r4, %r3;
  add.u32 %r2, %r2, %r3;"""
    np.testing.assert_array_equal(launched(body), np.full(64, 105))


@pytest.mark.parametrize("completion", ["late", "random"])
def test_a_member_of_a_large_struct_read_in_a_branch(completion):
    source = """
struct Shape { int side[8]; };
extern "C" __global__ void k(const __grid_constant__ Shape shape, int* out) {
  const int* side = shape.side;
  asm volatile("" : "+l"(side));
  int found = 0;
  if (threadIdx.x >= 32) for (int i = 0; i < side[0] - 98; ++i) found += side[threadIdx.x & 7];
  out[threadIdx.x] = found;
}"""
    out = np.zeros(64, np.int32)
    launch = Launch((1, 1, 1), (64, 1, 1), 0, (TABLE.tobytes(), out))
    report = run(to_ptx(source), launch, completion=completion)
    assert report.ok, str(report)
    threads = np.arange(64)
    np.testing.assert_array_equal(
        report.arrays[0], np.where(threads < 32, 0, 2 * TABLE[threads % 8])
    )
