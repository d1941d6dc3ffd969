"""Sums over several axes as one: several taps of a window in a k tile, proved, run, and refused."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import polygen as pg
from polygen.decide import candidates
from polygen.errors import ScheduleError, VerifyError
from polygen.hardware.device import device
from polygen.lower.verify import verify
from polygen.lower.work import Copy, Move
from polygen.pipeline import generate, with_sizes
from polygen.poly import joined
from polygen.schedule.load import dumps, load_schedule, loads, schedules_folder
from polygen.schedule.model import Cluster, Launches, Schedule
from polygen.schedule.problem import Problem
from polygen.tune.cost import counts
from polygen.tune.schedule_name import schedule_name

COPIED = Launches(realign=True)


def slid(x, size, stride=1, dilation=1, pad=0):
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0))) if pad else x
    reach = (size - 1) * dilation + 1
    found = np.lib.stride_tricks.sliding_window_view(x, (reach, reach), axis=(1, 2))
    return found[:, ::stride, ::stride, :, ::dilation, ::dilation]


def convolution(size=3, order="krsc", **options):
    return lambda x, w: pg.einsum(f"npqcrs,{order}->npqk", slid(x, size, **options), w)


def of_groups(x, w):
    found = slid(x.reshape(-1, 5, 6, 2, 16), 3)
    return pg.einsum("npqgcrs,gkrsc->npqgk", found, w)


def heads(x, w):
    return np.einsum("shd,ehd->se", x, w)


def shipped(arch, name, k, **fields):
    found = load_schedule(schedules_folder() / arch / f"{name}.toml")
    fields = {"tile": replace(found.tile, cta=replace(found.tile.cta, k=k), joined=True)} | fields
    return replace(found, **fields)


def warps(k, **fields):
    return shipped("sm_80", "64x64x64_w32x32_s4", k, **fields)


def roles(k, sides=(2, 8, 8), name="cooperative_128x64x64", **fields):
    found = shipped("sm_90a", name, k, **fields)
    return replace(
        found,
        tile=replace(found.tile, pixels=sides),
        pipeline=replace(found.pipeline, stages=3),
    )


def checked(function, signature, chosen, sizes, arch=""):
    arch = arch or ("sm_90a" if chosen.specialised else "sm_80")
    kernel = pg.fuse(function, name="c").compile(
        *signature, arch=arch, sizes=sizes, schedule=chosen
    )
    report = kernel.check(sizes)
    assert report.ok, str(report)
    assert report.comparison == "equal to NumPy, bit for bit"


# --- kernels -------------------------------------------------------------------------------------
KERNELS = {
    "3 channels, every second": (
        convolution(stride=2, pad=1), ("f16[B,8,10,3]", "f16[40,3,3,3]"), warps(32), {"B": 2},
    ),
    "24 channels, chunks of taps": (
        convolution(pad=1), ("f16[B,7,9,24]", "f16[64,3,3,24]"), roles(48), {"B": 2},
    ),
}  # fmt: skip
SLOW = {
    "20 channels, dilated": (
        convolution(dilation=2, pad=2), ("bf16[B,6,7,20]", "bf16[40,3,3,20]"), warps(64), {"B": 2},
    ),
    "weights by rows": (
        convolution(order="rsck", pad=1), ("f16[B,5,6,5]", "f16[3,3,5,40]"), warps(32), {"B": 2},
    ),
    "bytes": (
        convolution(pad=1), ("s8[B,5,6,3]", "s8[40,3,3,3]"), warps(64), {"B": 2},
    ),
    "registers on the way": (
        convolution(stride=2, pad=1), ("f16[B,5,6,8]", "f16[40,3,3,8]"),
        shipped("sm_75", "64x64x64_w32x32_s2", 32), {"B": 2}, "sm_75",
    ),
    "groups": (of_groups, ("f16[B,5,6,32]", "f16[2,40,3,3,16]"), roles(48), {"B": 3}),
    "some of the channels": (
        lambda x, w: convolution(pad=1)(x[..., 8:24], w), ("f16[B,5,6,32]", "f16[40,3,3,16]"),
        roles(64), {"B": 2},
    ),
    "heads": (heads, ("f16[S,3,40]", "f16[E,3,40]"), roles(48, ()), {"S": 130, "E": 72}),
    "3 channels, copied first": (
        convolution(7, stride=2, pad=3), ("bf16[N,15,14,3]", "bf16[64,7,7,3]"),
        roles(80, launch=COPIED), {"N": 2},
    ),
    "weights by rows, with roles": (
        convolution(order="rsck", pad=1), ("f16[B,7,9,24]", "f16[3,3,24,72]"), roles(64), {"B": 2},
    ),
    "weights by rows, copied first": (
        convolution(order="rsck", pad=1), ("f16[B,7,9,3]", "f16[3,3,3,72]"),
        roles(80, launch=COPIED), {"B": 2},
    ),
    "8 channels, every third": (
        convolution(stride=3, pad=1), ("f16[3,11,10,8]", "f16[64,3,3,8]"), roles(80, (8, 4, 4)), {},
    ),
    "40 channels, dilated, blocks share pixels": (
        convolution(dilation=2, pad=2), ("f16[B,6,7,40]", "f16[72,3,3,40]"),
        roles(80, cluster=Cluster(n=2)), {"B": 3},
    ),
    "96 channels, blocks share weights": (
        convolution(2), ("f16[3,8,5,96]", "f16[64,2,2,96]"), roles(64, cluster=Cluster(m=2)), {},
    ),
    "24 channels, blocks share sums": (
        convolution(stride=2, pad=1), ("f16[3,9,8,24]", "f16[64,3,3,24]"),
        roles(48, (2, 4, 8), "cooperative_64x64x64_s11_k2"), {},
    ),
    "bytes of 16 channels": (
        convolution(pad=1), ("e4m3[2,7,9,16]", "e4m3[64,3,3,16]"), roles(96), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_join_taps(name):
    checked(*KERNELS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_kernels_join_axes_of_every_kind(name):
    checked(*SLOW[name])


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(warps(64), marks=pytest.mark.slow, id="warps"),
        pytest.param(roles(64), id="roles"),
    ],
)
def test_nothing_behind_the_last_tap_is_multiplied(chosen):
    """Behind the ninth tap of a window is the next line of the image: infinities would be seen."""
    arch = "sm_90a" if chosen.specialised else "sm_80"
    signature = "f16[1,6,4,16]", "f16[64,3,3,16]"
    kernel = pg.fuse(convolution(), name="c").compile(*signature, arch=arch, schedule=chosen)
    x, w = np.ones((1, 6, 4, 16), np.float16), np.ones((64, 3, 3, 16), np.float16)
    x[:, 3] = np.inf  # the line behind those that the first line of results has
    y = kernel.emulate(x, w)
    assert (y[:, 0] == 144).all() and np.isinf(y[:, 1:4]).all()


# --- the choice ----------------------------------------------------------------------------------
def fitted(channels, arch, name, size=3, **fields):
    """What a shipped schedule is for a program, as the automatic choice weighs it."""
    shape = (f"bf16[N,14,14,{channels}]", f"bf16[64,{size},{size},{channels}]")
    program = with_sizes(pg.fuse(convolution(size, pad=1), name="c").program(*shape), {"N": 64})
    problem, fit = candidates(program, device(arch), {"N": 64})
    found = load_schedule(schedules_folder() / arch / f"{name}.toml")
    return problem, fit(replace(found, **fields))


@pytest.mark.parametrize(
    ("channels", "size", "k", "tiles"),
    [(3, 3, 32, 1), (3, 7, 32, 5), (24, 3, 48, 5), (8, 3, 48, 2)],
)
def test_k_tiles_of_warps_hold_taps(channels, size, k, tiles):
    problem, found = fitted(channels, "sm_80", "64x64x64_w32x32_s4", size)
    assert found.schedule.tile.joined and found.schedule.tile.cta.k == k
    assert counts(device("sm_80"), found, problem).k_tiles == tiles
    assert counts(device("sm_80"), found, problem).k_tiles == -(-size * size * channels // k)


def test_k_tiles_of_boxes_hold_taps_where_that_is_faster():
    name = "cooperative_128x64x64"
    problem, found = fitted(96, "sm_90a", name)
    assert found.schedule.tile.joined and found.schedule.tile.cta.k == 64
    counted = counts(device("sm_90a"), found, problem)
    assert counted.k_tiles == 14  # of 13.5; within taps they are 18
    assert counted.box_rows == 2 * (128 + 64)  # rows of 32 channels, which divide 96 and 64
    assert not fitted(64, "sm_90a", name)[1].schedule.tile.joined  # whole k tiles as they are
    whole = Problem(196, 64, 27, depth=3, joinable=True)
    assert whole.under(roles(80, launch=COPIED)).k == 72 and whole.under(warps(32)).k == 27


def test_joined_sums_are_read_and_written():
    assert "joined = true" in dumps(warps(32)) and loads(dumps(warps(32)), "here") == warps(32)
    assert "joined" not in dumps(Schedule())
    assert schedule_name(warps(32)) == "64x64x32_w32x32_joined_s4"


# --- proofs --------------------------------------------------------------------------------------
@cache
def planned(name):
    function, signature, chosen, *_ = KERNELS[name]
    program = pg.fuse(function, name="c").program(*signature)
    arch = "sm_90a" if chosen.specialised else "sm_80"
    return generate(program, device(arch), {}, chosen)


def test_digits_are_proved_to_be_taps(monkeypatch):
    made = planned("24 channels, chunks of taps")
    assert any("3 x 3 x 24" in str(one) and "summed once" in str(one) for one in made.tree.proofs)
    match = made.plan.match
    assert "w[n, floor(k/72), (floor(k/24) mod 3), (k mod 24)]" in str(match.operand("b"))
    for change, words in (
        (lambda name, index: joined._index(index, {"over1": (24, 2)}), "read .* elsewhere"),
        (lambda name, index: replace(index, offset=index.offset + 1), "read .* elsewhere"),
    ):
        indices = tuple((n, tuple(change(n, one) for one in at)) for n, at in match.joined.indices)
        with pytest.raises(VerifyError, match=words):
            joined.prove_joined(replace(match, joined=replace(match.joined, indices=indices)))
    places = joined._places
    monkeypatch.setattr(joined, "_places", lambda *of: places(*of) | {"over1": (24, 4)})
    with pytest.raises(VerifyError, match="digits of k are not"):
        joined.prove_joined(match)


def test_elements_behind_a_run_are_outside_of_operands():
    program = pg.fuse(convolution(pad=1), name="c").program("f16[2,7,9,3]", "f16[64,3,3,3]")
    plan = generate(program, device("sm_90a"), {}, roles(80, launch=COPIED)).plan
    b = plan.match.operand("b")
    wide = replace(b, tensor=replace(b.tensor, dims=(64, 3, 3, 5)))
    operands = tuple((n, wide if n == "b" else one) for n, one in plan.match.operands)
    with pytest.raises(VerifyError, match="w has elements behind a run's"):
        joined.prove_joined(replace(plan.match, operands=operands))


def moved(change):
    def made(work):
        if not isinstance(work, Move):
            return work
        first, *others = work.boxes
        return replace(work, boxes=(change(first), *others))

    return made


def elsewhere(work):
    if not isinstance(work, Copy) or not work.padded:
        return work
    first, *others = work.padded
    taps = tuple(replace(one, per=one.per + 1) for one in first.taps)
    return replace(work, padded=(replace(first, taps=taps), *others))


def inside(corner):
    """A corner that stays on the innermost axis."""
    return (*corner[:-1], corner[-1].partition(" + 24 * ")[0])


BOXES, THREADS = "24 channels, chunks of taps", "3 channels, every second"
BROKEN = {
    "the tap before": (
        BOXES, moved(lambda b: replace(b, others=(b.corner, *b.others[1:]))),
        "box 1 of k tile 0 of x begins at",
    ),
    "what lies behind the last tap": (
        BOXES,
        moved(lambda b: replace(b, others=tuple(map(inside, b.others)))),
        "box 3 of k tile 4 of x begins at",
    ),
    "zeros around another tap": (THREADS, elsewhere, "rows of x are kept inside at"),
    "elements of another tap": (
        THREADS,
        lambda work: replace(work, lie=(work.lie[0], work.lie[1][-1:]))
        if isinstance(work, Copy) else work,
        "is accessed at",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_taps_are_caught(name):
    of, change, words = BROKEN[name]
    plan = planned(of).plan
    leaves = tuple(replace(leaf, work=change(leaf.work)) for leaf in plan.leaves)
    with pytest.raises(VerifyError, match=words):
        verify(replace(plan, leaves=leaves))


# --- refused -------------------------------------------------------------------------------------
IMAGE, WEIGHTS = "f16[B,7,9,24]", "f16[40,3,3,24]"
REFUSED = {
    "one axis": (lambda x, w: x @ w, ("f16[M,64]", "f16[64,N]"), warps(64), "sums over one axis"),
    "channels by name": (
        convolution(), ("f16[B,7,9,C]", "f16[40,3,3,C]"), warps(64), "sums over C",
    ),
    "computed images": (
        lambda x, w: convolution()(x * 2.0, w), (IMAGE, WEIGHTS), warps(64), "which is computed",
    ),
    "some of the channels": (
        lambda x, w: convolution()(x[..., :4], w), (IMAGE, "f16[40,3,3,4]"),
        roles(32, launch=COPIED), "where the array ends with it",
    ),
    "weights by rows, shared": (
        convolution(order="rsck"), (IMAGE, "f16[3,3,24,40]"), roles(48, cluster=Cluster(m=2)),
        "its rows are of taps",
    ),
    "threads that fill rings": (
        heads, ("f16[S,3,20]", "f16[E,3,20]"), roles(32, ()), "do not look for taps",
    ),
    "registers on the way": (
        convolution(), ("f16[B,7,9,4]", "f16[40,3,3,4]"),
        shipped("sm_75", "64x64x64_w32x32_s2", 32), "are of one tap",
    ),
    "axes of a reshape": (
        lambda x, y: np.einsum("pki,pkj->ij", x.reshape(20, 328, 64), y.reshape(20, 328, 32)),
        ("f16[6560,64]", "f16[6560,32]"), roles(64, ()), "a reshape put",
    ),
    "several sections": (
        lambda x, w, v: (heads(x, w), heads(x, v)),
        ("f16[S,3,40]", "f16[E,3,40]", "f16[F,3,40]"), roles(48, ()), "several sections",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    function, signature, chosen, words = REFUSED[name]
    arch = {"registers on the way": "sm_75"}.get(name, "sm_90a" if chosen.specialised else "sm_80")
    with pytest.raises(ScheduleError) as caught:
        pg.fuse(function, name="c").compile(*signature, arch=arch, schedule=chosen)
    found = str(caught.value)
    assert "tile.joined with" in found and words in found and "Leave tile.joined out" in found


def test_axes_of_a_reshape_are_summed_one_after_another():
    function, signature, *_ = REFUSED["axes of a reshape"]
    kernel = pg.fuse(function, name="c").compile(*signature, arch="sm_90a")
    assert not kernel.schedule.tile.joined
    report = kernel.check()
    assert report.ok, str(report)
