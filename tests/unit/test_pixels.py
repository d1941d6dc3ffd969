"""Tiles of pixels: rows of several lines and images, as relations, in kernels, and refused."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polygen as pg
from polygen import isl
from polygen.analysis import prospect
from polygen.decide import candidates
from polygen.emit.cuda import emit
from polygen.errors import ScheduleError, ScheduleFileError, VerifyError
from polygen.hardware.device import device
from polygen.lower.result_work import Store
from polygen.lower.verify import verify
from polygen.lower.work import Locate, Move
from polygen.pipeline import generate, with_sizes
from polygen.poly.pixel_boxes import PixelBox, prove_box
from polygen.problems import whole_problem
from polygen.schedule.load import dumps, load_schedule, loads, schedules_folder
from polygen.schedule.model import Cluster, Launches, Schedule
from polygen.schedule.pixels import with_pixels
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.cost import counts
from polygen.tune.schedule_name import schedule_name

ARCH = "sm_90a"


def slid(x, size, stride=1, pad=0):
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0))) if pad else x
    found = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
    return found[:, ::stride, ::stride]


def convolution(size=3, stride=1, pad=0):
    return lambda x, w: pg.einsum("npqcrs,krsc->npqk", slid(x, size, stride, pad), w)


def layer(x, w, b, r):
    return pg.relu(pg.einsum("npqcrs,krsc->npqk", slid(x, 3, 2, 1), w) + b + r)


def point(x, w):
    return pg.relu(pg.einsum("npqc,kc->npqk", x, w)).reshape(-1, 49, 40)


def of_groups(x, w):
    found = slid(x.reshape(-1, 7, 9, 2, 32), 3)
    return pg.einsum("npqgcrs,grsck->npqgk", found, w)


def schedule(pixels, name="cooperative_128x64x64", k=64, **fields):
    found = load_schedule(schedules_folder() / ARCH / f"{name}.toml")
    cta = replace(found.tile.cta, m=math.prod(pixels), k=k)
    found = replace(found, tile=replace(found.tile, cta=cta, pixels=pixels))
    stages = replace(found.pipeline, stages=3)
    return replace(found, pipeline=stages, **fields)


def checked(function, signature, chosen, sizes):
    kernel = pg.fuse(function, name="c").compile(
        *signature, arch=ARCH, sizes=sizes, schedule=chosen
    )
    report = kernel.check(sizes)
    assert report.ok, str(report)
    assert report.comparison == "equal to NumPy, bit for bit"


# --- boxes ---------------------------------------------------------------------------------------
def test_a_convolution_of_images_of_which_no_number_is_known_gets_a_schedule():
    """As many of them as matrices are thought to be, wherever they are counted."""
    program = pg.fuse(convolution(3, 1, 1)).program("bf16[N,32,32,64]", "bf16[128,3,3,64]")
    problem = whole_problem(program, prospect(program), {})
    assert (problem.pixels, problem.m * problem.batches) == ((16, 32, 32), 16 * 32 * 32)
    assert problem.merged.batches == 1
    assert problem.stored[0] == 16 * 32 * 32 * 64


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=4), st.data())
def test_rows_of_a_box_are_its_pixels_in_order(sides, data):
    dims = ["m", "z0", "z1", "z2"][: len(sides)]
    box = PixelBox(tuple(zip(dims, sides, strict=True)))
    pixels = list(np.ndindex(*sides))
    for row, pixel in enumerate(pixels):
        places = [eval(box.digit(dim, "r").replace("/", "//"), {"r": row}) for dim in dims]
        assert tuple(places) == pixel
    rows = data.draw(st.sampled_from([n for n in range(1, box.rows + 1) if box.rows % n == 0]))
    part = box.part(rows)
    for first in range(0, box.rows, rows):
        begin, own = pixels[first], pixels[first : first + rows]
        if part is not None:
            steps = np.ndindex(*(side for _, side in part.sides))
            assert own == [tuple(np.add(begin, step)) for step in steps]


def test_pixels_are_proved_to_be_rows(monkeypatch):
    box = PixelBox((("m", 2), ("z0", 3), ("z1", 8)))
    assert "2 of m x 3 of z0 x 8 of z1" in str(prove_box(box))
    monkeypatch.setattr(PixelBox, "weight", lambda self, dim: {"m": 24, "z0": 4, "z1": 1}[dim])
    with pytest.raises(VerifyError, match="are not their pixels"):
        prove_box(box)


@pytest.mark.parametrize(
    ("rows", "m", "batches", "cta", "wanted", "of_windows"),
    [
        ((64, 56, 56), 56, 64 * 56, 128, (2, 8, 8), (64, 2, 1)),
        ((64, 14, 14), 14, 64 * 14, 128, (32, 2, 2), (64, 2, 1)),
        ((64, 7, 7), 7, 64 * 7, 128, (16, 1, 8), (64, 2, 1)),
        ((1, 7, 7), 7, 7, 64, (1, 8, 8), (1, 8, 8)),
        ((2, 64, 128), 128, 128, 128, (), (2, 64, 1)),  # a line is a tile
        ((2, 63, 128), 128, 126, 128, (), (2, 1, 64)),
        ((), 14, 64, 128, (), ()),
    ],
)
@pytest.mark.parametrize("windows", [False, True])
def test_boxes_waste_least(rows, m, batches, cta, wanted, of_windows, windows):
    problem = Problem(m, 256, 2304, batches=batches, pixels=rows, stored=(m * 256 * windows, 0))
    wanted = of_windows if windows else wanted
    chosen = with_pixels(schedule((cta,)), problem)
    assert chosen.tile.pixels == (cta,)  # what is asked for stays
    asked = replace(chosen, tile=replace(chosen.tile, pixels=()))
    found = with_pixels(asked, problem)
    assert found.tile.pixels == wanted
    own = problem.under(found)
    tiles = -(-own.m // cta) * own.batches
    assert tiles >= math.prod(rows) / cta and own.pixels == (() if wanted else rows)


def test_boxes_are_read_and_written():
    chosen = schedule((2, 8, 8))
    assert "pixels = [2, 8, 8]" in dumps(chosen)
    assert loads(dumps(chosen), "here") == chosen
    assert "pixels" not in dumps(Schedule())
    assert schedule_name(chosen) == "cooperative_128x64x64_w64_pixels2x8x8_s3"


# --- kernels -------------------------------------------------------------------------------------
LAYER = ("f16[B,7,9,64]", "f16[40,3,3,64]", "f32[40]", "f16[B,4,5,40]")
SLOW = {
    "14x14, blocks share pixels": (
        convolution(pad=1), ("bf16[N,14,14,32]", "bf16[K,3,3,32]"),
        schedule((2, 4, 16), k=32, cluster=Cluster(n=2)), {"N": 3, "K": 72},
    ),
    "7x7, blocks share weights, consumers take turns": (
        convolution(pad=1), ("bf16[N,7,7,32]", "bf16[64,3,3,32]"),
        schedule((8, 4, 2), "pingpong_64x64x64_s10", 32, cluster=Cluster(m=2)), {"N": 9},
    ),
    "blocks share sums": (
        convolution(2), ("f16[3,8,5,64]", "f16[64,2,2,64]"),
        schedule((4, 2, 8), "cooperative_64x64x64_s11_k2"), {},
    ),
    "a point, two warpgroups": (
        point, ("f16[N,7,7,64]", "f16[40,64]"),
        schedule((16, 2, 4), "cooperative_128x128x64_w64_s5_e3p2"), {"N": 18},
    ),
    "groups": (
        of_groups, ("f16[N,7,9,64]", "f16[2,3,3,32,40]"), schedule((2, 8, 8)), {"N": 3},
    ),
    "three channels, copied first": (
        convolution(3, 2, 1), ("bf16[N,15,14,3]", "bf16[64,3,3,3]"),
        schedule((2, 8, 8), k=16, launch=Launches(realign=True)), {"N": 3},
    ),
    "every third": (
        convolution(3, 3, 1), ("e4m3[2,11,10,64]", "e4m3[64,3,3,64]"), schedule((32, 4)), {},
    ),
}  # fmt: skip


def pixel_heads(x, w):
    """Digits of columns on axes of their own: panels lie at other places of several axes."""
    return (x @ w.T).reshape(-1, 7, 9, 2, 64).transpose(0, 1, 3, 2, 4)


def depth_to_space(x, w):
    """What a pixel has becomes pixels: lines and columns have a digit of the channels too."""
    y = (x @ w.T).reshape(-1, 8, 8, 2, 2, 32)
    return y.transpose(0, 1, 3, 2, 4, 5).reshape(-1, 16, 16, 32)


@pytest.mark.parametrize("tile", [(2, 4, 8), (1, 8, 8)])
def test_pixels_whose_columns_are_axes(tile):
    signature = "f16[B,7,9,64]", "f16[128,64]"
    checked(pixel_heads, signature, schedule(tile), {"B": 3})


def test_a_panel_that_lies_elsewhere_is_refused():
    fused = pg.fuse(pixel_heads, name="c")
    wide = schedule((2, 4, 8), "cooperative_64x128x64")
    plan = fused.compile("f16[B,7,9,64]", "f16[128,64]", arch=ARCH, schedule=wide).passes.plan

    def moved_on(work):
        if not isinstance(work, Store):
            return work
        panels = tuple(
            (panel, replace(b, corner=(*b.corner[:2], f"({b.corner[2]}) + p % 2", *b.corner[3:])))
            for panel, b in work.panels
        )
        return replace(work, panels=panels)

    leaves = tuple(replace(leaf, work=moved_on(leaf.work)) for leaf in plan.leaves)
    with pytest.raises(VerifyError, match="of y0"):
        verify(replace(plan, leaves=leaves))


def test_results_with_more_digits_than_maps_have_axes():
    signature = "f16[B,8,8,32]", "f16[128,32]"
    with pytest.raises(ScheduleError, match="at most 5 axes") as caught:
        pg.fuse(depth_to_space).compile(*signature, arch=ARCH, schedule=schedule((2, 4, 8)))
    assert 'Use epilogue.through = "lines"' in str(caught.value)
    taken = pg.fuse(depth_to_space).compile(*signature, arch=ARCH, sizes={"B": 64})
    assert taken.check({"B": 1}).ok


def test_layers_of_pixels():
    checked(layer, LAYER, schedule((4, 4, 8)), {"B": 5})


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_kernels_of_pixels(name):
    checked(*SLOW[name])


def fitted(signature, sizes, name="cooperative_128x64x64", **fields):
    """What a shipped schedule is for a program, as the automatic choice weighs it."""
    program = with_sizes(pg.fuse(convolution(pad=1), name="c").program(*signature), sizes)
    problem, fit = candidates(program, device(ARCH), sizes)
    shipped = load_schedule(schedules_folder() / ARCH / f"{name}.toml")
    return problem, fit(replace(shipped, **fields))


def test_pixels_are_chosen_where_they_fit():
    shape = ("bf16[N,7,7,64]", "bf16[64,3,3,64]")
    assert fitted(shape, {"N": 64})[1].schedule.tile.pixels == (64, 2, 1)
    assert fitted(shape, {"N": 1})[1].schedule.tile.pixels == (2, 8, 8)
    lines = replace(Schedule().epilogue, through="registers")
    assert fitted(shape, {"N": 64}, epilogue=lines)[1].schedule.tile.pixels == ()
    narrow = ("bf16[N,7,7,64]", "bf16[60,3,3,64]")  # rows of results that no map has
    assert fitted(narrow, {"N": 64})[1].schedule.tile.pixels == ()


@pytest.mark.parametrize(
    ("channels", "k", "stages"),
    [(256, 64, 6), (32, 32, 12), (24, 32, 12), (16, 16, 24), (3, 16, 24)],
)
def test_k_tiles_are_no_longer_than_channels_are_many(channels, k, stages):
    launch = Launches(realign=channels == 3)
    shape = (f"bf16[N,7,7,{channels}]", f"bf16[64,3,3,{channels}]")
    problem, found = fitted(shape, {"N": 64}, "cooperative_128x128x64_s6", launch=launch)
    assert (found.schedule.tile.cta.k, found.schedule.pipeline.stages) == (k, stages)
    assert counts(device(ARCH), found, problem).k_tiles == 9 * -(-channels // k)


# --- refused -------------------------------------------------------------------------------------
@cache
def planned():
    program = pg.fuse(layer, name="c").program(*LAYER)
    return generate(program, device(ARCH), {}, schedule((4, 4, 8), cluster=Cluster(n=2))).plan


def test_the_cost_model_counts_the_tiles_there_are():
    """The image of the elements in the blocks of the launch, and what is stored of the image."""
    plan, sizes = planned(), {"B": 37}
    problem, _ = candidates(plan.program, device(ARCH), sizes)
    c = counts(device(ARCH), Fitted(plan.schedule, 1), problem)
    elements = isl.Set("{ [n,h,w,o] : 0 <= n < 37 and 0 <= h < 4 and 0 <= w < 5 and 0 <= o < 40 }")
    tile = plan.match.box.numbered({"m": "n", "z0": "h", "z1": "w"})
    blocks = f"floor({tile['m']}/128), {tile['z0']}, {tile['z1']}, floor(floor(o/64)/2)"
    clusters = elements.apply(isl.Map(f"{{ [n,h,w,o] -> [{blocks}] }}"))
    assert isl.count(clusters) == c.clusters == plan.launch.work(sizes) == 10
    results, image = 37 * 4 * 5 * 40 * 2, 37 * 7 * 9 * 64 * 2
    assert c.written_bytes == results
    assert c.read_bytes == results + 40 * 9 * 64 * 2 + image


def test_boxes_leave_out_what_strides_skip():
    maps = {argument.name: argument for argument in planned().arguments}
    shown = [(one.extent, one.box, one.every) for one in maps["map_a"].axes]
    assert shown == [("B", 2, 1), (7, 4, 2), (9, 8, 2), (64, 64, 1)]
    assert [one.box for one in maps["map_out_y0"].axes] == [2, 4, 8, 64]
    assert planned().launch.batches == (1, 1) and planned().launch.tile_along == 4
    text = emit(planned()).text
    assert "{9, x_stride2, 16, 2}" in text and "element_steps[axis] = axes[axis].every;" in text


def moved(work, map_name, change):
    if not isinstance(work, Move):
        return work
    boxes = tuple(change(b) if b.map.startswith(map_name) else b for b in work.boxes)
    return replace(work, boxes=boxes)


def swapped(of):
    first, second, *others = of.corner
    return replace(of, corner=(second, first, *others))


BROKEN = {
    "parts of images": (
        lambda work: moved(work, "map_a", lambda b: replace(b, corner=("b_m * 4", *b.corner[1:]))),
        "row 64 of a tile of x is at 0 of axis 0 and not at 2",
    ),
    "lines for columns": (
        lambda work: moved(work, "map_a", swapped), "of x begin at",
    ),
    "tiles overlap": (
        lambda work: replace(work, sides=(1, 1)) if isinstance(work, Locate) else work,
        r"tiles are \(1, 1\) apart",
    ),
    "panels of residuals": (
        lambda work: moved(work, "map_in_", lambda b: replace(b, corner=("b_m", *b.corner[1:]))),
        "boxes of r begin at 1 of axis 0 and not at 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_boxes_are_caught(name):
    change, words = BROKEN[name]
    plan = planned()
    leaves = tuple(replace(leaf, work=change(leaf.work)) for leaf in plan.leaves)
    with pytest.raises(VerifyError, match=words):
        verify(replace(plan, leaves=leaves))


def test_tiles_that_miss_pixels_are_refused(monkeypatch):
    """Weights of another box in the tiling: rows of the tile have no pixel, or two."""
    numbered = PixelBox.numbered

    def wrong(self, places):
        return {at: text.replace("8*", "4*") for at, text in numbered(self, places).items()}

    monkeypatch.setattr(PixelBox, "numbered", wrong)
    with pytest.raises(VerifyError, match=r"tiling: .* shares its row of a tile with another"):
        program = pg.fuse(layer, name="c").program(*LAYER)
        generate(program, device(ARCH), {}, schedule((4, 4, 8)))


IMAGE, WEIGHTS = "f16[B,7,9,64]", "f16[40,3,3,64]"
plain = convolution()
REFUSED = {
    "more sides than axes": (
        lambda x, w: x @ w, ("f16[M,64]", "f16[64,N]"), schedule((2, 64)), ("[2, 64]", "1 side"),
    ),
    "a side along a name": (
        lambda x, w: pg.einsum("npqc,ck->npqk", x, w), ("f16[B,H,9,64]", "f16[64,40]"),
        schedule((4, 4, 8)), ("4 indices of H", "side of 1 along H"),
    ),
    "without roles": (
        plain, (IMAGE, WEIGHTS),
        replace(schedule((4, 4, 8)), roles=Schedule().roles, device="sm_80"), ("without roles",),
    ),
    "line by line": (
        plain, (IMAGE, WEIGHTS),
        schedule((4, 4, 8), epilogue=replace(schedule((1,)).epilogue, through="lines")),
        ('epilogue.through = "lines"', "leave tile.pixels out"),
    ),
    "values of a row": (
        lambda x, w, r: plain(x, w) * r[:, :, :, None], (IMAGE, WEIGHTS, "f32[B,5,7]"),
        schedule((4, 4, 8)), ("r: f32[B, 5, 7]", "whole matrices"),
    ),
    "values of an image": (
        lambda x, w, r: plain(x, w) + r[:, None, None], (IMAGE, WEIGHTS, "f16[B,40]"),
        schedule((4, 4, 8)), ("r: f16[B, 40]", "whole matrices"),
    ),
    "folds": (
        lambda x, w: pg.sum(plain(x, w), axis=3), (IMAGE, WEIGHTS), schedule((4, 4, 8)),
        ("folds",),
    ),
    "coordinates": (
        lambda x, w: plain(x, w) * pg.indices(plain(x, w))[1], (IMAGE, WEIGHTS),
        schedule((4, 4, 8)), ("coordinates of rows",),
    ),
    "three channels": (
        plain, ("f16[B,7,9,3]", "f16[40,3,3,3]"), schedule((4, 4, 8)), ("copy engine",),
    ),
    "a span too long": (
        convolution(3, 3), ("f16[B,7,384,64]", WEIGHTS), schedule((128,)),
        ("every 3 elements", "spans at most 256"),
    ),
    "no box for a panel": (
        plain, (IMAGE, WEIGHTS), schedule((2, 6, 16), "cooperative_192x128x64_w64_s2_e2p3"),
        ("64 rows", "powers of two"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    function, signature, chosen, fragments = REFUSED[name]
    with pytest.raises(ScheduleError) as caught:
        pg.fuse(function, name="c").compile(*signature, arch=ARCH, schedule=chosen)
    assert all(fragment in str(caught.value) for fragment in fragments), str(caught.value)


def test_boxes_of_other_sizes_than_tiles_are_refused():
    chosen = schedule((4, 4, 8))
    other = replace(chosen, tile=replace(chosen.tile, pixels=(4, 4, 4)))
    with pytest.raises(ScheduleFileError, match=r"are 64 rows; tile\.cta\.m is 128"):
        pg.fuse(plain).compile(IMAGE, WEIGHTS, arch=ARCH, schedule=other)
    with pytest.raises(ScheduleFileError, match="a side below 1"):
        loads(dumps(chosen).replace("pixels = [4, 4, 8]", "pixels = [0, 4, 8]"), "here")
