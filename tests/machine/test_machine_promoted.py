"""Sums in blocks of k on the PTX machine: whole numbers and powers of two, every bit is known."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.schedule.load import load_schedule, schedules_folder
from polygen.schedule.model import CtaTile, Loops, Pipeline, Schedule, Tile, WarpTile

E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16


def whole(*shape, seed=0, dtype=E4M3):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32).astype(dtype)


def powers(*shape, seed=1, dtype=np.float32):
    return (2.0 ** np.random.default_rng(seed).integers(-3, 4, shape)).astype(dtype)


def groups(scales, *counts):
    """Scales repeated along their axes."""
    for axis, count in enumerate(counts):
        scales = pg.repeat(scales, count, axis=axis) if count > 1 else scales
    return scales


def exact(function, signature, arrays, schedule="auto", arch="sm_90a", **sizes):
    """A kernel that gives what float64 gives, and touches nothing it may not."""
    fused = pg.fuse(function, name="scaled")
    kernel = fused.compile(*signature, arch=arch, sizes=sizes, out_dtype="f32", schedule=schedule)
    done = kernel.emulation(*arrays)
    assert done.report.ok, str(done.report)
    np.testing.assert_array_equal(np.asarray(done.results), fused.reference(*arrays))
    return kernel


def shipped(name, **pipeline):
    one = load_schedule(schedules_folder() / "sm_90a" / f"{name}.toml")
    return replace(one, pipeline=replace(one.pipeline, **pipeline))


ROLES = shipped("cooperative_64x64x64")


def test_scales_of_rows_and_of_square_blocks_at_ragged_rows():
    """As DeepSeek-V3 has them, with smaller squares; the last block of rows is not whole."""
    kernel = exact(
        lambda x, sx, w, sw: (x * groups(sx, 1, 128)) @ (w * groups(sw, 32, 128)).T,
        ("e4m3[M,256]", "f32[M,2]", "e4m3[64,256]", "f32[2,2]"),
        (whole(37, 256), powers(37, 2), whole(64, 256, seed=2), powers(2, 2, seed=3)),
        replace(ROLES, tile=Tile(CtaTile(64, 64, 128), WarpTile(64, 64))),
        M=37,
    )
    assert "promote(i, k, 0)" in kernel.source


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("left, right", [(32, 32), (64, 128), (256, 64), (512, 256), (128, 512)])
def test_groups_of_all_sizes_that_divide_each_other(left, right):
    depth = min(128, left, right)
    exact(
        lambda x, sx, w, sw: (x * groups(sx, 1, left)) @ (w * groups(sw, 1, right)).T,
        ("e4m3[M,512]", f"f32[M,{512 // left}]", "e4m3[N,512]", f"bf16[N,{512 // right}]"),
        (
            whole(67, 512),
            powers(67, 512 // left),
            whole(76, 512, seed=2),
            powers(76, 512 // right, seed=3, dtype=BF16),
        ),
        replace(ROLES, tile=Tile(CtaTile(64, 64, depth), WarpTile(64, 64))),
        M=67,
        N=76,
    )


@pytest.mark.slow
def test_one_side_scaled_and_a_row_that_leaves_the_sum():
    """The block factor is in the loop, those of rows and columns behind it, and an epilogue."""
    exact(
        lambda x, sx, w, sw, c, b: pg.relu(
            (x * sx[:, None]) @ (w * groups(sw, 1, 128) * c[:, None]).T + b
        ),
        ("e5m2[M,256]", "f32[M]", "e4m3[N,256]", "f32[N,2]", "f32[N]", "f32[N]"),
        (
            whole(33, 256, dtype=E5M2), powers(33), whole(41, 256, seed=2),
            powers(41, 2, seed=3), powers(41, seed=4), powers(41, seed=5),
        ),
        M=33,
        N=41,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["64x8x128_s12", "128x8x128_w64_s6"])
def test_operands_exchanged_for_few_rows(name):
    exact(
        lambda x, sx, w, sw, s: (x * groups(sx, 1, 128)) @ (w * groups(sw, 1, 128) * s).T,
        ("e4m3[M,256]", "f32[M,2]", "e4m3[N,256]", "f32[N,2]", "f32[]"),
        (whole(5, 256), powers(5, 2), whole(70, 256, seed=2), powers(70, 2, seed=3), 4.0),
        shipped(f"cooperative_{name}_registers_exchanged", stages=4),
        M=5,
        N=70,
    )


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("form", ["pingpong", "several instructions", "columns shared out"])
def test_other_forms_of_consumers(form):
    """Scales for every 128 columns meet tiles that begin inside of such a run."""
    one = shipped("pingpong_64x96x64_s10" if form == "pingpong" else "cooperative_128x64x64")
    cta, warp = {
        "pingpong": ((64, 96), (64, 96)),
        "several instructions": ((256, 64), (128, 64)),
        "columns shared out": ((64, 192), (64, 96)),
    }[form]
    tile = Tile(CtaTile(*cta, 128), WarpTile(*warp))
    one = replace(one, tile=tile, pipeline=replace(one.pipeline, stages=3))
    exact(
        lambda x, sx, w, sw: (x * groups(sx, 1, 128)) @ (w * groups(sw, 128, 128)).T,
        ("e4m3[M,256]", "f32[M,2]", "e4m3[384,256]", "f32[3,2]"),
        (whole(130, 256), powers(130, 2), whole(384, 256, seed=2), powers(3, 2, seed=3)),
        one,
        M=130,
    )


WARPS = {
    "the next tile's fragments ahead": Schedule(
        "warps", tile=Tile(CtaTile(32, 32, 64), WarpTile(16, 16)), pipeline=Pipeline(stages=3)
    ),
    "m and n outside": Schedule(
        "warps",
        tile=Tile(CtaTile(32, 64, 64), WarpTile(16, 32)),
        pipeline=Pipeline(stages=3, fragments=2, lookahead=0),
        loops=Loops(mma=("m", "n", "k")),
    ),
    "copies between the steps": Schedule(
        "warps",
        tile=Tile(CtaTile(64, 32, 128), WarpTile(32, 16)),
        pipeline=Pipeline(stages=3, copies="spread", across=False),
    ),
}


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("tiles", [1, 2], ids=["a k tile each", "two"])
@pytest.mark.parametrize("name", WARPS)
def test_warps_promote_as_well(name, tiles):
    one = WARPS[name]
    left, right, depth = (count * one.tile.cta.k for count in (tiles, 2, 4))
    exact(
        lambda x, sx, w, sw: (x * groups(sx, 1, left)) @ (w * groups(sw, 1, right)).T,
        (f"e4m3[M,{depth}]", f"f32[M,{4 // tiles}]", f"e4m3[N,{depth}]", "f32[N,2]"),
        (
            whole(37, depth),
            powers(37, 4 // tiles),
            whole(41, depth, seed=2),
            powers(41, 2, seed=3),
        ),
        one,
        "sm_89",
        M=37,
        N=41,
    )


def test_a_device_without_roles_has_blocks_of_its_own_choice():
    """K tiles, and the fragments that are loaded ahead, follow from a block of 32."""
    kernel = exact(
        lambda x, s, w: (x * groups(s, 1, 32)) @ w.T,
        ("e4m3[M,128]", "f32[M,4]", "e5m2[N,128]"),
        (whole(20, 128), powers(20, 4), whole(24, 128, seed=2, dtype=E5M2)),
        arch="sm_89",
        M=20,
        N=24,
    )
    assert kernel.schedule.tile.cta.k == 32


@pytest.mark.slow
def test_matrices_of_a_batch_and_two_products():
    def gated(x, sx, u, su, v, sv):
        y = x * groups(sx, 1, 1, 128)
        return y @ (u * groups(su, 1, 1, 128)).mT + y @ (v * groups(sv, 1, 1, 128)).mT

    shapes = ("e4m3[B,M,256]", "f32[B,M,2]", *("e4m3[B,N,256]", "f32[B,N,2]") * 2)
    weights = [(whole(2, 21, 256, seed=s), powers(2, 21, 2, seed=s + 1)) for s in (2, 4)]
    arrays = (whole(2, 17, 256), powers(2, 17, 2), *weights[0], *weights[1])
    exact(gated, shapes, arrays, B=2, M=17, N=21)


def test_the_same_rows_give_the_same_bits_in_every_batch_of_rows():
    """Blocks are promoted in one order, which is proved, so that M may be named invariant."""
    kernel = pg.fuse(lambda x, s, w: (x * groups(s, 1, 128)) @ w.T, name="scaled").compile(
        "e4m3[M,256]", "f32[M,2]", "e4m3[N,256]", arch="sm_90a", invariant=("M",),
        sizes={"M": 9, "N": 40},
    )  # fmt: skip
    (order,) = kernel.passes.plan.sums.orders
    assert order.fixed and "blocks of 128 along k, each times its factors, if any" in str(order)


OVERLAPPED = {
    "cooperative": (
        "cooperative_64x64x64",
        Tile(CtaTile(64, 64, 128), WarpTile(64, 64)),
        (37, 64),
    ),
    "two consumers": (
        "cooperative_128x64x64",
        Tile(CtaTile(128, 32, 128), WarpTile(64, 32)),
        (130, 40),
    ),
    "pingpong": ("pingpong_64x96x64_s10", Tile(CtaTile(64, 32, 128), WarpTile(64, 32)), (130, 40)),
    "several instructions": (
        "cooperative_128x64x64",
        Tile(CtaTile(128, 16, 128), WarpTile(128, 16)),
        (130, 24),
    ),
}


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("blocks", [1, 3, 4, 7])
@pytest.mark.parametrize("overlap", [2, 4])
@pytest.mark.parametrize("form", OVERLAPPED)
def test_a_block_is_promoted_beside_the_products_of_the_next_one(form, overlap, blocks):
    """Runs of blocks that are whole, too few, or followed by blocks that are too few."""
    name, tile, (m, n) = OVERLAPPED[form]
    depth = 128 * blocks
    kernel = exact(
        lambda x, sx, w, sw: (x * groups(sx, 1, 128)) @ (w * groups(sw, 1, 128)).T,
        (f"e4m3[M,{depth}]", f"f32[M,{blocks}]", f"e4m3[N,{depth}]", f"f32[N,{blocks}]"),
        (whole(m, depth), powers(m, blocks), whole(n, depth, seed=2), powers(n, blocks, seed=3)),
        replace(shipped(name, overlap=overlap, stages=3), tile=tile),
        M=m,
        N=n,
    )
    assert "promote_last(i, " in kernel.source


@pytest.mark.parametrize("arch", ["sm_89", "sm_90a"])
def test_rows_in_groups_read_no_scales_behind_the_last(arch):
    """The last group ends inside of a tile, and the array of scales with it."""
    rows, ends = 70, np.array([5, 5, 70], np.int32)
    kernel = exact(
        lambda x, sx, w, sw, ends: pg.grouped_matmul(
            x * groups(sx, 1, 128), (w * groups(sw, 1, 64, 128)).mT, ends
        ),
        ("e4m3[M,256]", "f32[M,2]", "e4m3[E,64,256]", "f32[E,1,2]", "s32[E]"),
        (
            whole(rows, 256),
            powers(rows, 2),
            whole(3, 64, 256, seed=2),
            powers(3, 1, 2, seed=3),
            ends,
        ),
        arch=arch,
        M=rows,
        E=3,
    )
    assert "not proved" not in kernel.source and kernel.check().ok


@pytest.mark.parametrize("arch", ["sm_89", "sm_90a"])
def test_a_sum_that_is_one_block(arch):
    kernel = exact(
        lambda x, sx, w: (x * groups(sx, 1, 128)) @ w.T,
        ("e4m3[M,128]", "f32[M,1]", "e4m3[N,128]"),
        (whole(37, 128), powers(37, 1), whole(48, 128, seed=2)),
        arch=arch,
        M=37,
        N=48,
    )
    assert "not proved" not in kernel.source
