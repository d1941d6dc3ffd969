"""Windows in products: strides, dilation and padding, traced, interpreted, and in kernels."""

from dataclasses import replace

import numpy as np
import pytest

import polygen as pg
from polygen.analysis import analysed
from polygen.errors import ShapeError, TraceError, UnsupportedProgram, VerifyError
from polygen.frontend.evaluate import evaluate
from polygen.hardware.device import device
from polygen.lower.verify import verify
from polygen.lower.work import Copy
from polygen.pipeline import generate
from polygen.schedule.load import load_schedule, schedules_folder

WAYS = {
    "roles": ("sm_90a", "cooperative_128x64x64_s8_e4p2"),
    "tall roles": ("sm_90a", "cooperative_256x64x64_w128_s2_b2"),
    "warps": ("sm_80", "64x64x64_w32x32_s4"),
    "registers on the way": ("sm_75", "64x64x64_w32x32_s2"),
}
SIZES = {"B": 2, "C": 64, "O": 40}


def slid(x, size, stride=1, dilation=1, pad=0):
    if pad:
        x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    reach = (size - 1) * dilation + 1
    found = np.lib.stride_tricks.sliding_window_view(x, (reach, reach), axis=(1, 2))
    return found[:, ::stride, ::stride, :, ::dilation, ::dilation]


def convolution(size=3, **options):
    return lambda x, w: pg.relu(pg.einsum("npqcrs,krsc->npqk", slid(x, size, **options), w))


def with_residual(x, w, b, r):
    return pg.relu(pg.einsum("npqcrs,rsck->npqk", slid(x, 3), w) + b + r)


def of_groups(x, w):
    found = slid(x.reshape(-1, 7, 9, 2, 32), 3)
    return pg.einsum("npqgcrs,grsck->npqgk", found, w)


def of_a_row(x, w):
    found = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (2, 2), (0, 0))), 5, axis=1)
    return pg.einsum("npcr,krc->npk", found, w)


def squared(x, w):
    return pg.einsum("npqcrs,rsck->npqk", slid(x * x, 3), w)


PROGRAMS = {
    "plain": (convolution(), ("f16[B,7,9,C]", "f16[O,3,3,C]")),
    "padded": (convolution(pad=1), ("f16[B,7,9,C]", "f16[O,3,3,C]")),
    "strided": (convolution(stride=2, pad=1), ("f16[B,8,10,C]", "f16[O,3,3,C]")),
    "strided, odd": (convolution(stride=2, pad=1), ("f16[B,7,9,C]", "f16[O,3,3,C]")),
    "dilated": (convolution(dilation=2, pad=2), ("f16[B,7,9,C]", "f16[O,3,3,C]")),
    "strided, long": (convolution(stride=2), ("f16[B,3,531,C]", "f16[O,3,3,C]")),
    "three channels": (convolution(stride=2, pad=1), ("f16[B,8,10,3]", "f16[O,3,3,3]")),
    "a point": (convolution(1, stride=2), ("f16[B,8,10,C]", "f16[O,1,1,C]")),
    "residual": (with_residual, ("f16[B,7,9,C]", "f16[3,3,C,O]", "f32[O]", "f16[B,5,7,O]")),
    "groups": (of_groups, ("f16[B,7,9,64]", "f16[2,3,3,32,O]")),
    "a row": (of_a_row, ("f16[B,50,C]", "f16[O,5,C]")),
    "computed": (squared, ("f16[B,7,9,C]", "f16[3,3,C,O]")),
}
QUICK = [("padded", "roles"), ("strided, odd", "warps")]
SLOW = [
    ("strided", "roles"), ("dilated", "roles"), ("groups", "roles"), ("a row", "roles"),
    ("strided, long", "tall roles"),
    ("three channels", "warps"), ("residual", "warps"), ("computed", "warps"),
    ("padded", "registers on the way"),
]  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_what_numpy_computes(name):
    function, signature = PROGRAMS[name]
    program = pg.fuse(function, name="slid").program(*signature)
    rng, sizes = np.random.default_rng(0), {"B": 2, "C": 4, "O": 3}
    arrays = {
        t.name: rng.integers(-3, 4, [sizes.get(dim, dim) for dim in t.dims]).astype(np.float64)
        for t in program.inputs
    }
    (found,) = evaluate(program, arrays)
    np.testing.assert_array_equal(found.astype(np.float64), function(*arrays.values()))


def schedule_of(way):
    arch, name = WAYS[way]
    return arch, load_schedule(schedules_folder() / arch / f"{name}.toml")


def checked(name, way):
    function, signature = PROGRAMS[name]
    arch, schedule = schedule_of(way)
    fused = pg.fuse(function, name="slid")
    sizes = {dim: SIZES[dim] for dim in fused.program(*signature).sizes}
    report = fused.compile(*signature, arch=arch, sizes=sizes, schedule=schedule).check(sizes)
    assert report.ok, str(report)
    assert report.comparison == "equal to NumPy, bit for bit"


@pytest.mark.parametrize(("name", "way"), QUICK)
def test_kernels_slide(name, way):
    checked(name, way)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), SLOW)
def test_kernels_slide_in_every_way(name, way):
    checked(name, way)


def planned(name, way):
    function, signature = PROGRAMS[name]
    arch, schedule = schedule_of(way)
    program = pg.fuse(function, name="slid").program(*signature)
    return generate(program, device(arch), {}, schedule).plan


@pytest.mark.parametrize(("axes", "rows"), [(0, "B"), (1, 5), ((0, 1), 5), ((1, 2), 6), (3, 6)])
def test_rows_run_along_an_axis_that_is_folded(axes, rows):
    fused = pg.fuse(lambda x, w: pg.max(convolution(pad=1)(x, w), axis=axes), name="slid")
    program = fused.program("f16[B,5,6,3]", "f16[40,3,3,3]")
    assert analysed(program).prospect.matched.m == rows


@pytest.mark.slow
def test_columns_of_pixels_are_folded():
    fused = pg.fuse(lambda x, w: pg.max(convolution(pad=1)(x, w), axis=1), name="slid")
    kernel = fused.compile("f16[B,5,6,3]", "f16[40,3,3,3]", arch="sm_80", sizes={"B": 3})
    report = kernel.check({"B": 3})
    assert report.ok, str(report)
    assert report.comparison == "equal to NumPy, bit for bit"


def test_boxes_of_windows_begin_outside_of_the_image():
    (x,) = [a for a in planned("padded", "roles").arguments if a.name == "map_a"]
    assert [(one.axis, one.extent) for one in x.axes] == [(0, "B"), (1, 7), (2, 9), (3, "C")]
    (x,) = [a for a in planned("strided", "roles").arguments if a.name == "map_a"]
    shown = [(one.axis, one.extent, one.box, one.every) for one in x.axes]
    assert shown == [(0, "B", 1, 1), (1, 8, 1, 1), (2, 10, 128, 2), (3, "C", 64, 1)]


def test_rows_that_are_kept_inside_elsewhere_are_caught():
    plan = planned("padded", "warps")

    def wrong(work):
        if not isinstance(work, Copy) or not work.padded:
            return work
        first, *others = work.padded
        return replace(work, padded=(replace(first, rest=f"{first.rest} + 1"), *others))

    leaves = tuple(replace(leaf, work=wrong(leaf.work)) for leaf in plan.leaves)
    with pytest.raises(VerifyError, match="rows of x are kept inside at 0 and not at -1"):
        verify(replace(plan, leaves=leaves))


def of(subscripts, size=3, axis=(1, 2)):
    def function(x, w):
        view = np.lib.stride_tricks.sliding_window_view(x, size, axis=axis)
        return pg.einsum(subscripts, view, w)

    return function


IMAGE = "f16[B,7,9,C]"
WIDE = ((0, 0), (1, 1), (1, 1), (0, 0))
REFUSED = {
    "larger than the image": (
        of("npqcrs,rsck->npqk", (8, 3)), (IMAGE, "f16[8,3,C,O]"), ShapeError,
        ("of 8 along an axis of 7", "np.pad"),
    ),
    "a size without a number": (
        of("npqcrs,rsck->npqk", (3, 3)), ("f16[B,H,9,C]", "f16[3,3,C,O]"), ShapeError,
        ("of 3 along H", "known only at run time"),
    ),
    "no such axes": (
        of("npqcrs,rsck->npqk", (3, 3), (1, 5)), (IMAGE, "f16[3,3,C,O]"), TraceError,
        ("2 sizes along axes (1, 5)",),
    ),
    "depth-wise": (
        of("npqcrs,rsc->npqc", (3, 3)), (IMAGE, "f16[3,3,C]"), UnsupportedProgram,
        ("depth-wise convolution", "pointwise code"),
    ),
    "no channels": (
        of("npqrs,rsk->npqk", (3, 3)), ("f16[B,7,9]", "f16[3,3,O]"), UnsupportedProgram,
        ("Give the windows channels",),
    ),
    "one axis and no channels": (
        of("npr,rk->npk", 3, 1), ("f16[B,9]", "f16[3,O]"), UnsupportedProgram,
        ("has rows and what is summed on one axis", "Give the windows channels"),
    ),
    "channels first of doubles": (
        of("ncpqrs,crsk->npqk", (3, 3), (2, 3)), ("f64[B,C,7,9]", "f64[C,3,3,O]"),
        UnsupportedProgram, ("slide, or zeros lie, along the innermost axis", "channels last"),
    ),
    "channels first of what is computed": (
        lambda x, w: pg.einsum("ncpqrs,crsk->npqk", np.lib.stride_tricks.sliding_window_view(
            pg.relu(x), (3, 3), axis=(2, 3)), w),
        ("f16[B,C,7,9]", "f16[C,3,3,O]"),
        UnsupportedProgram, ("slide, or zeros lie, along the innermost axis", "channels last"),
    ),
    "zeros behind a product": (
        lambda x, w, r: x @ w + np.pad(r, ((0, 0), (1, 1))),
        ("f16[B,C]", "f16[C,9]", "f16[B,7]"), UnsupportedProgram, ("r[i,j-1]: zeros around",),
    ),
    "zeros around what is computed": (
        lambda x, w: pg.einsum("npqcrs,rsck->npqk", slid(pg.relu(x), 3, pad=1), w),
        (IMAGE, "f16[3,3,C,O]"), UnsupportedProgram,
        ("an image with zeros around it", "in a function before"),
    ),
    "padding with ones": (
        lambda x, w: pg.einsum("npqc,ck->npqk", np.pad(x, WIDE, constant_values=1), w),
        (IMAGE, "f16[C,O]"), UnsupportedProgram, ("with 1", "Pad with zeros"),
    ),
    "padding with edges": (
        lambda x, w: pg.einsum("npqc,ck->npqk", np.pad(x, WIDE, mode="edge"), w),
        (IMAGE, "f16[C,O]"), TraceError, ("mode='edge'",),
    ),
    "padding backwards": (
        lambda x, w: np.pad(x, ((0, -1), (0, 0))) @ w, ("f16[7,C]", "f16[C,O]"), TraceError,
        ("before and behind for every axis",),
    ),
    "padding without a number": (
        lambda x, w: np.pad(x, ((1, 1), (0, 0))) @ w, ("f16[B,C]", "f16[C,O]"), ShapeError,
        ("by 1 and 1 along B",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    function, signature, error, fragments = REFUSED[name]
    with pytest.raises(error) as caught:
        pg.fuse(function, name="slid").compile(*signature, arch="sm_80")
    assert all(fragment in str(caught.value) for fragment in fragments), str(caught.value)


def test_windows_that_no_map_shows_take_schedules_without_roles():
    function, signature = convolution(stride=9), ("f16[B,7,30,C]", "f16[O,3,3,C]")
    arch, schedule = schedule_of("roles")
    with pytest.raises(UnsupportedProgram, match=r"windows 9 elements apart.*every 8th element"):
        pg.fuse(function).compile(*signature, arch=arch, schedule=schedule)
    function, signature = PROGRAMS["three channels"]
    with pytest.raises(UnsupportedProgram, match="windows of rows at multiples of 2 bytes"):
        pg.fuse(function).compile(*signature, arch=arch, schedule=schedule)
