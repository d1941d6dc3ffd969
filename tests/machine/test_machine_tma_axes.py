# ruff: noqa: E501 - CUDA and PTX text
"""Boxes of tensors of every rank: stores, multicasts, windows of larger arrays, polygen's wrappers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from generated_roles import role_kernel
from test_machine_tma import COMMON, LOAD, STORE, text, unswizzled, window

from polygen.emit.environment import environment
from polygen.emit.instructions import instructions
from polygen.errors import LaunchError, PtxError
from polygen.lower.plan import MapAxis
from polygen.machine import Launch, TensorMap, run

SHAPE, BOX, CORNER = (4, 3, 5, 6, 32), (2, 2, 3, 4, 16), (3, -1, 3, 4, 24)
STORED = (3, 2, 3, 4, 24)


def five(corner):
    """Coordinates as the kernels take them: innermost first, five of them."""
    return [*reversed(corner), 0, 0, 0, 0][:5]


def loaded(compile_ptx, one, corner, **options):
    size = int(np.prod(one.box)) * one.array.itemsize
    out = np.zeros(size, np.uint8)
    launch = Launch((1, 1, 1), (64, 1, 1), size + 16, (one, out, *five(corner)))
    ptx = compile_ptx(text(LOAD, len(one.box), size), "sm_90a")
    report = run(ptx, launch, **options)
    assert report.ok, str(report)
    return report.arrays[1]


def stored(compile_ptx, one, values, corner, **options):
    ptx = compile_ptx(text(STORE, len(one.box), values.nbytes), "sm_90a")
    launch = Launch((1, 1, 1), (64, 1, 1), values.nbytes, (one, values, *five(corner)))
    report = run(ptx, launch, **options)
    assert report.ok, str(report)
    return report.arrays[0]


def put(array, values, corner):
    """The array with the values at a corner, as far as they are inside."""
    result = array.copy()
    for index in np.ndindex(values.shape):
        at = tuple(i + c for i, c in zip(index, corner, strict=True))
        if all(0 <= i < n for i, n in zip(at, array.shape, strict=True)):
            result[at] = values[index]
    return result


def integers(shape, dtype=np.float32):
    return np.random.default_rng(0).integers(1, 100, shape).astype(dtype)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("completion", ["late", "early", "random"])
def test_stores_of_every_rank_clip_every_axis(compile_ptx, rank, completion):
    corner = STORED[-rank:]
    array, values = -np.ones(SHAPE[-rank:], np.float32), integers(BOX[-rank:])
    found = stored(
        compile_ptx, TensorMap(array, BOX[-rank:]), values, corner, completion=completion
    )
    np.testing.assert_array_equal(found, put(array, values, corner))


@pytest.mark.parametrize("corner", [(-1, 8), (1, -4)], ids=["rows", "columns"])
def test_a_store_does_not_begin_before_the_array(compile_ptx, corner):
    """An H200 stops such a store as an illegal instruction; loads may begin there."""
    array, values = np.zeros((6, 32), np.float32), np.ones((4, 16), np.float32)
    ptx = compile_ptx(text(STORE, 2, values.nbytes), "sm_90a")
    parameters = (TensorMap(array, (4, 16)), values, *five(corner))
    report = run(ptx, Launch((1, 1, 1), (64, 1, 1), values.nbytes, parameters))
    assert [finding.code for finding in report.findings] == ["out-of-bounds-global"]
    assert "before" in report.findings[0].sentence


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_a_swizzle_counts_the_rows_of_all_axes(compile_ptx, swizzle, rank):
    inner = swizzle // 2
    array = integers((*SHAPE[-rank:-1], 2 * inner), np.float16)
    box, corner = (*BOX[-rank:-1], inner), (*CORNER[-rank:-1], inner // 2)
    raw = loaded(compile_ptx, TensorMap(array, box, swizzle), corner)
    found = unswizzled(raw, swizzle).reshape(-1).view(np.float16).reshape(box)
    np.testing.assert_array_equal(found, window(array, corner, box))


WINDOWS = [
    ("every second matrix", lambda a: a[:, 1::2], (2, 1, 4, 16), (1, 1, 3, 8)),
    ("one matrix", lambda a: a[2:3, 3:4], (1, 1, 4, 16), (0, 0, -2, 8)),
    ("every third row from the second on", lambda a: a[:, :, 1::3], (2, 2, 2, 16), (2, 3, -1, 16)),
    ("columns of the middle", lambda a: a[..., 8:24], (1, 2, 8, 8), (0, 2, 1, 12)),
    ("axes in another order", lambda a: a.transpose(2, 0, 1, 3), (4, 1, 2, 16), (5, 1, 3, 20)),
    ("an axis that the array has not", lambda a: a[1, None, :, 2:3], (1, 3, 1, 32), (0, -1, 0, 4)),
]


@pytest.mark.parametrize("name, part, box, corner", WINDOWS)
def test_windows_read_what_numpy_slices(compile_ptx, name, part, box, corner):
    """A start and a step of an axis are an address and a stride of the map."""
    whole = integers((3, 5, 7, 32))
    view = part(whole)
    raw = loaded(compile_ptx, TensorMap(view, box, whole=whole), corner)
    np.testing.assert_array_equal(raw.view("f4").reshape(box), window(view, corner, box))


@pytest.mark.parametrize("name, part, box, corner", WINDOWS)
def test_windows_write_what_numpy_slices(compile_ptx, name, part, box, corner):
    whole, values = integers((3, 5, 7, 32)), -integers(box)
    corner = tuple(max(at, 0) for at in corner)
    wanted = whole.copy()
    part(wanted)[...] = put(part(whole), values, corner)
    found = stored(compile_ptx, TensorMap(part(whole), box, whole=whole), values, corner)
    np.testing.assert_array_equal(found, wanted)


def test_a_window_shares_the_memory_of_its_array(compile_ptx):
    """Two maps of one array, and a pointer to it."""
    source = STORE.replace(
        "const uint4* in", "const uint4* in, const __grid_constant__ Map other, unsigned* all"
    )
    source = source.replace("FENCE_ASYNC;\n  __syncthreads();", """FENCE_ASYNC;
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("OPERATION.RANKd.global.shared::cta.KIND.bulk_group [%1, {COORDS}], [%0];"
      :: "r"(shared_address(memory)), "l"(&other), "r"(0), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
  }
  if (threadIdx.x == 1) all[0] = 77;""")  # fmt: skip
    whole, values = np.zeros((4, 8, 8), np.uint32), integers((2, 4, 4), np.uint32)
    maps = [TensorMap(part, (2, 4, 4), whole=whole) for part in (whole[::2], whole[1::2, 2:])]
    arguments = (maps[0], values, maps[1], whole, *five((0, 3, 4)))
    launch = Launch((1, 1, 1), (64, 1, 1), values.nbytes, arguments)
    report = run(compile_ptx(text(source, 3, values.nbytes), "sm_90a"), launch)
    assert report.ok, str(report)
    wanted = whole.copy()
    wanted[::2, 3:7, 4:] = wanted[1::2, 5:8, 4:] = 0
    wanted[::2, 3:7, 4:], wanted[1::2, 5:8, 4:] = values, values[:, :3]
    wanted[0, 0, 0] = 77
    for number in (0, 2, 3):
        np.testing.assert_array_equal(report.arrays[number], wanted)


MULTICAST = (
    COMMON
    + """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const __grid_constant__ Map map, uint4* out, int c0, int c1, int c2, int c3, int c4) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const word base = shared_address(memory), full = base + 2 * BYTES;
  word rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) { init(full, 1); FENCE_INIT; expect(full, 2 * BYTES); }
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (threadIdx.x == 0) {
    LAST += (int)rank;
    asm volatile("cp.async.bulk.tensor.RANKd.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {COORDS}], [%2], %8;"
      :: "r"(base + rank * BYTES), "l"(&map), "r"(full), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "h"((unsigned short)3) : "memory");
  }
  wait(full, 0);
  for (int i = threadIdx.x; i < 2 * BYTES / 16; i += blockDim.x) out[rank * (2 * BYTES / 16) + i] = ((uint4*)memory)[i];
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
"""
)


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@pytest.mark.parametrize("completion", ["late", "early"])
def test_multicasts_of_every_rank(compile_ptx, rank, completion):
    """Each block fetches the box at its own index of the outermost axis, for both."""
    array, box = integers(SHAPE[-rank:]), (1, *BOX[-rank + 1 : -1], 32)
    corner = (1, *CORNER[-rank + 1 :])
    size = int(np.prod(box)) * 4
    source = MULTICAST.replace("LAST", f"c{rank - 1}")
    launch = Launch(
        (2, 1, 1), (64, 1, 1), 2 * size + 16,
        (TensorMap(array, box), np.zeros(4 * size, np.uint8), *five(corner)),
    )  # fmt: skip
    report = run(compile_ptx(text(source, rank, size), "sm_90a"), launch, completion=completion)
    assert report.ok, str(report)
    boxes = [window(array, (at, *corner[1:]), box).ravel() for at in (1, 2)]
    np.testing.assert_array_equal(
        report.arrays[1].view("f4").reshape(2, -1), [np.concatenate(boxes)] * 2
    )


WRAPPED = """
extern "C" __global__ void k(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap y) {
  __shared__ __align__(128) unsigned char box[1024];
  __shared__ __align__(8) unsigned long long barrier[1];
  const unsigned at = (unsigned)__cvta_generic_to_shared(box), full = (unsigned)__cvta_generic_to_shared(barrier);
  if (threadIdx.x == 0) {
    barrier_init(full, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    barrier_expect(full, 1024);
    LOAD;
    barrier_wait(full, 0);
    box_store(&y, at, 8, 1, 2, 3);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
"""
PARTS = ("tensor_map", "mbarrier", "mbarrier_wait", "box_load", "box_multicast", "panels_out")


def wrappers(more):
    """The wrappers of a kernel whose maps have more axes than they have, and their numbers."""
    plan = role_kernel("cluster").passes.plan
    changed = tuple(
        replace(one, axes=(*[MapAxis(None, 1, 1)] * more.get(one.tensor, 0), *one.axes))
        for one in plan.arguments
    )
    record = instructions(replace(plan, arguments=changed))
    parts = (environment().get_template(f"instructions/{part}.cu.j2") for part in PARTS)
    lists = ("box_loads", "box_multicasts", "box_stores")
    return "".join(part.render(record) for part in parts), [
        [len(one["names"]) for one in record[name]] for name in lists
    ]


def test_kernels_have_the_wrappers_of_the_ranks_of_their_maps():
    assert wrappers({})[1] == [[2], [2], [2]]
    text, ranks = wrappers({"x": 1, "w": 3, "y0": 2})
    assert ranks == [[3, 5], [5], [4]]
    assert (
        "box_load(unsigned to, const TensorMap* map, unsigned barrier, int inner, int outer, int third) {"
        in text
    )
    assert text.count("void box_load(") == 2 and text.count("void box_store(") == 1


@pytest.mark.parametrize("many", [False, True])
def test_the_wrappers_copy_boxes(compile_ptx, many):
    """One name for all ranks: what is called is told by the number of coordinates."""
    head, _ = wrappers({"x": 1, "w": 1, "y0": 2})
    load = "box_multicast(at, &x, full, 0, 4, 1, 1)" if many else "box_load(at, &x, full, 0, 4, 1)"
    x, y = integers((3, 6, 16)), np.zeros((5, 4, 3, 24), np.float32)
    arguments = (TensorMap(x, (4, 4, 16)), TensorMap(y, (2, 2, 4, 16)))
    ptx = compile_ptx(head + WRAPPED.replace("LOAD", load), "sm_90a")
    report = run(ptx, Launch((1, 1, 1), (32, 1, 1), 0, arguments))
    assert report.ok, str(report)
    values = window(x, (1, 4, 0), (4, 4, 16)).reshape(2, 2, 4, 16)
    np.testing.assert_array_equal(report.arrays[1], put(y, values, (3, 2, 1, 8)))


def test_a_map_of_another_rank_is_no_descriptor(compile_ptx):
    one = TensorMap(np.zeros((8, 4, 16), np.uint32), (2, 4, 16))
    for template in (LOAD, STORE):
        launch = Launch((1, 1, 1), (64, 1, 1), 1024, (one, np.zeros(512, np.uint8), 0, 0, 0, 0, 0))
        report = run(compile_ptx(text(template, 2, 512), "sm_90a"), launch)
        assert [found.code for found in report.findings] == ["bad-descriptor"]
        assert "2 coordinates for the 3 dims" in report.findings[0].sentence


def test_an_instruction_names_its_rank(compile_ptx):
    ptx = compile_ptx(text(LOAD, 2, 512), "sm_90a")
    assert ".tensor.2d." in ptx
    one = TensorMap(np.zeros((8, 16), np.uint32), (8, 16))
    launch = Launch((1, 1, 1), (64, 1, 1), 1024, (one, np.zeros(512, np.uint8), 0, 0, 0, 0, 0))
    with pytest.raises(PtxError, match="it has 2 coordinates"):
        run(ptx.replace(".tensor.2d.", ".tensor.3d."), launch)


def test_a_window_is_a_part_of_its_array(compile_ptx):
    whole = np.zeros((8, 4, 16), np.uint32)
    launch = Launch((1, 1, 1), (64, 1, 1), 1024, (
        TensorMap(whole.copy(), (2, 4, 16), whole=whole), np.zeros(512, np.uint8), 0, 0, 0, 0, 0,
    ))  # fmt: skip
    with pytest.raises(LaunchError, match="no part of its whole"):
        run(compile_ptx(text(LOAD, 3, 512), "sm_90a"), launch)
    inside = replace(launch.arguments[0], array=whole[1:, :, 2:])
    launch = replace(launch, arguments=(inside, *launch.arguments[1:]))
    with pytest.raises(LaunchError, match="does not start at a multiple of 16 bytes"):
        run(compile_ptx(text(LOAD, 3, 512), "sm_90a"), launch)
