"""Launches made from a kernel's arguments: tensor maps share the memory of their arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensor_map_samples as samples

from polygen.check import emulate, launch_of
from polygen.emit.source import MapAxis
from polygen.errors import VerifyError
from polygen.frontend.dtypes import F16, NAMED
from polygen.frontend.program import Program, Tensor
from polygen.machine import Launch, TensorMap, run
from polygen.runtime.arrays import in_order

INCREMENT = """
struct alignas(64) TensorMap { unsigned long long words[16]; };
extern "C" __global__ void k(const __grid_constant__ TensorMap map, TYPE* array, int elements) {
  __shared__ __align__(128) TYPE box[8 * 16];
  for (int i = threadIdx.x; i < 8 * 16; i += blockDim.x) box[i] = i;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%1, {%2, %2}], [%0];"
      :: "r"((unsigned)__cvta_generic_to_shared(box)), "l"(&map), "r"(0) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  __syncthreads();
  for (int i = threadIdx.x; i < elements; i += blockDim.x) array[i] += 1;
}
"""


def copied(compile_ptx, x, dtype, order=(0, 1), persistent=0, **options):
    program, source = samples.program(dtype, order), samples.source(dtype, order, persistent)
    done = emulate(program, source, compile_ptx(source.text, source.arch), (x,), **options)
    assert done.report.ok, str(done.report)
    return done.results


def integers(dtype, shape):
    drawn = np.random.default_rng(0).integers(-8, 8, shape)
    return drawn.astype(np.float32).astype(NAMED[dtype].numpy)


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2", "f16", "bf16", "f32", "tf32"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("completion", ["late", "early"])
def test_a_kernel_with_maps_alone_returns_its_output(compile_ptx, dtype, order, completion):
    x = integers(dtype, (80, 144))
    found = copied(compile_ptx, x, dtype, order, completion=completion)
    assert found.shape == x.shape and found.dtype == x.dtype
    np.testing.assert_array_equal(found.astype(np.float32), x.astype(np.float32))


@pytest.mark.parametrize(
    "order", [(0,), (0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 1, 0, 3), (3, 1, 0, 2), (0, 3, 1, 4, 2)]
)
@pytest.mark.parametrize("persistent", [0, 5])
def test_arrays_of_every_rank_and_order(compile_ptx, order, persistent):
    extents = (3, 5, 3, 10, 72)[-len(order) :]
    stored = integers("f16", extents)
    padded = np.zeros([extent + 8 for extent in extents], stored.dtype)
    inside = padded[tuple(slice(extent) for extent in extents)]
    inside[...] = stored
    for one in (stored, inside):
        x = one.transpose([order.index(axis) for axis in range(len(order))])
        found = copied(compile_ptx, x, "f16", order, persistent)
        np.testing.assert_array_equal(found, x)


def test_a_block_for_each_tile_of_each_matrix():
    program, source = samples.program("f16", (0, 1, 2, 3)), samples.source("f16", (0, 1, 2, 3))
    launch = launch_of(program, source, (integers("f16", (3, 5, 10, 72)),))
    assert launch.grid == (2, 3, 15)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
def test_extents_of_one(compile_ptx, order):
    for shape in ((1, 9, 64), (5, 1, 72), (1, 1, 40), (2, 3, 8)):
        x = integers("bf16", shape)
        found = copied(compile_ptx, in_order(x, order), "bf16", order)
        np.testing.assert_array_equal(found.astype(np.float32), x.astype(np.float32))


@pytest.mark.parametrize("case", samples.WINDOWS, ids=[case[0] for case in samples.WINDOWS])
def test_windows_of_arrays(compile_ptx, case):
    """Sizes are fixed: what is outside the window of the output stays as it was."""
    _, x_shape, x_axes, read, y_shape, y_axes, written = case
    tensors = (Tensor(n, F16, s, tuple(range(len(s)))) for n, s in (("x", x_shape), ("y", y_shape)))
    x, y = tensors
    program = Program("copy", "x", (x,), (y,), ())
    source = samples.copy_of(program, x_axes, y_axes)
    values = integers("f16", x_shape)
    done = emulate(program, source, compile_ptx(source.text, source.arch), (values,))
    assert done.report.ok, str(done.report)
    wanted = np.full(y_shape, np.nan, np.float16)
    written(wanted)[...] = read(values)
    np.testing.assert_array_equal(done.results, wanted)


def test_a_window_beyond_its_array():
    x = Tensor("x", F16, (4, 64), (0, 1))
    program = Program("copy", "x", (x,), (replace(x, name="y"),), ())
    axes = (MapAxis(0, 3, 2, 2), MapAxis(1, 64, 64))
    with pytest.raises(VerifyError, match=r"x_map shows \[3, 64\] of x, which has \[4, 64\]"):
        launch_of(program, samples.copy_of(program, axes, axes), (integers("f16", (4, 64)),))


@pytest.mark.parametrize("persistent", [0, 1, 3, 100])
def test_any_number_of_persistent_blocks(compile_ptx, persistent):
    x = integers("f16", (44, 136))
    np.testing.assert_array_equal(copied(compile_ptx, x, "f16", persistent=persistent), x)


def test_padded_rows_and_windows(compile_ptx):
    wide = integers("f16", (40, 256))
    for x in (wide[:, :72], wide[3:29, 64:136], wide[::2]):
        np.testing.assert_array_equal(copied(compile_ptx, x, "f16"), x)


@pytest.mark.parametrize("step", [0, 5, 16])
def test_one_row_may_have_any_stride(compile_ptx, step):
    row = integers("e4m3", (48,))
    x = np.lib.stride_tricks.as_strided(row, (1, 48), (step, 1))
    found = copied(compile_ptx, x, "e4m3").astype(np.float32)
    np.testing.assert_array_equal(found, row[None].astype(np.float32))


def test_the_launch_describes_the_stored_axes():
    x = np.asfortranarray(integers("f16", (16, 24)))
    program, source = samples.program("f16", (1, 0)), samples.source("f16", (1, 0))
    one, _, *sizes = launch_of(program, source, (x,)).arguments
    assert isinstance(one, TensorMap) and np.shares_memory(one.array, x)
    assert (one.array.shape, one.box, one.swizzle) == ((24, 16), (8, 64), 128)
    assert sizes == [16, 24]


@pytest.mark.parametrize("kind", ["unsigned char", "unsigned short", "unsigned"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("map_first", [True, False])
def test_a_map_and_a_pointer_share_memory(compile_ptx, kind, transposed, map_first):
    """The pointer may be the array the map views with its axes swapped."""
    dtype = {"unsigned char": np.uint8, "unsigned short": np.uint16, "unsigned": np.uint32}[kind]
    stored = np.zeros((8, 16), dtype)
    array, text = stored.T if transposed else stored, INCREMENT.replace("TYPE", kind)
    given = [TensorMap(stored, (8, 16)), array]
    if not map_first:
        pair = "const __grid_constant__ TensorMap map, ", f"{kind}* array, "
        text = text.replace("".join(pair), "".join(reversed(pair)))
        given.reverse()
    launch = Launch((1, 1, 1), (64, 1, 1), 0, (*given, np.int32(128)))
    report = run(compile_ptx(text, "sm_90a"), launch)
    assert report.ok, str(report)
    wanted = 1 + np.arange(128).reshape(8, 16)
    through_map, through_pointer = report.arrays if map_first else reversed(report.arrays)
    np.testing.assert_array_equal(through_map, wanted)
    np.testing.assert_array_equal(through_pointer, wanted.T if transposed else wanted)


def test_different_parts_of_one_array_stay_apart(compile_ptx):
    text = """extern "C" __global__ void k(unsigned* a, unsigned* b) { a[threadIdx.x] = 1; b[threadIdx.x] = 2; }"""  # noqa: E501
    whole = np.zeros((2, 32), np.uint32)
    report = run(compile_ptx(text), Launch((1, 1, 1), (32, 1, 1), 0, (whole[0], whole[1])))
    assert [set(array.tolist()) for array in report.arrays] == [{1}, {2}]
