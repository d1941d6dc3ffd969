"""Folds that are refused, each with what, where, why and the nearest legal form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matrix import roles, small, tiled

import polygen as pg
from polygen.adapters.gradients import derive
from polygen.errors import (
    ArgumentError,
    GradientError,
    InvarianceError,
    ScheduleError,
    ShapeError,
    TraceError,
    UnsupportedProgram,
)
from polygen.frontend.build import build_program
from polygen.frontend.dtypes import BF16, S32
from polygen.frontend.program import Tensor
from polygen.hardware.device import device
from polygen.poly.folds import split_folds
from polygen.schedule.load import shipped
from polygen.schedule.model import Cluster, CtaTile, Epilogue, Launches, Tile, WarpTile
from polygen.tune.task import describe

X, W = Tensor("x", BF16, ("M", "K")), Tensor("w", BF16, ("N", "K"))


def program(function, *more):
    return build_program(function, "f", "f", (X, W, *more))


TRACED = [
    (lambda v: v.sum(axis=2), ShapeError, "there is no axis 2", "Axes are -2 to 1"),
    (lambda v: v.sum(axis=(0, -2)), ShapeError, "names one twice", "Name every axis once"),
    (lambda v: v.sum(axis=()), ShapeError, "along no axis", "Pass axis=None"),
    (lambda v: v.max(axis="rows"), TraceError, "the axis 'rows'", "Axes are whole numbers"),
    (lambda v: v.sum().sum(), ShapeError, "sum of sum(", "Leave the fold out"),
    (lambda v: v.argmax(), TraceError, "along 2 axes", "Pass axis=, one number"),
    (lambda v: np.sum(v, axis=1, dtype=np.float64), TraceError, "with dtype=", "Leave it out"),
    (lambda v: np.median(v, axis=1), TraceError, "np.median", "There are sum, prod, max"),
    (lambda v: np.add.accumulate(v), TraceError, "np.add.accumulate", "np.add"),
]


@pytest.mark.parametrize(("fold", "kind", "what", "nearest"), TRACED)
def test_what_is_no_fold(fold, kind, what, nearest):
    with pytest.raises(kind) as error:
        program(lambda x, w: fold(x @ w.T))
    assert what in str(error.value) and nearest in str(error.value)


SPLIT = [
    (
        lambda x, w: x @ w.T - np.max(x @ w.T, axis=1, keepdims=True) - np.min(x @ w.T, axis=0),
        "results over different axes, v1[i] and v3[j], in one element",
        "Return v1 beside the matrix, and use it outside of the kernel",
    ),
    (
        lambda x, w: np.sum(pg.softmax(x @ w.T), axis=0),
        "a fold over other axes of what is folded",
        "Return v1 beside the matrix",
    ),
    (
        lambda x, w: pg.softmax(x @ w.T).astype("bf16") @ w,
        "a product of what is folded",
        "Return v1 beside the matrix",
    ),
    (
        lambda x, w: np.max(np.sum(x @ w.T, axis=1, keepdims=True)[:, 0], axis=0, keepdims=True),
        "a fold of what is folded",
        "Return v1 beside the matrix",
    ),
    (
        lambda x, w: (x @ w.T) @ np.sum(x @ w.T, axis=0).astype("bf16"),
        "a fold over other axes of what is folded",
        "Return v1 beside the matrix",
    ),
    (
        lambda x, w: np.sum(x @ w.T, axis=1) + pg.indices(np.sum(x @ w.T, axis=1))[0],
        "coordinates beside a result of a fold",
        "Return v1 beside the matrix",
    ),
]


@pytest.mark.parametrize(("function", "what", "nearest"), SPLIT)
def test_where_a_result_is_not_known_yet(function, what, nearest):
    with pytest.raises(UnsupportedProgram) as error:
        split_folds(program(function))
    said = str(error.value)
    assert what in said and nearest in said and "dependence F" in said
    assert "it is known when all tiles have run" in said


PARTS = [
    (lambda v: pg.rms_norm(v)[:, :32], "a result of elements [M, 64] used by elements [M, 32]"),
    (
        lambda v: np.max(v[:, :32], axis=1, keepdims=True) + v,
        "a result of elements [M, 32] used by elements [M, 64]",
    ),
]


@pytest.mark.parametrize(("function", "what"), PARTS)
def test_results_used_by_a_part_of_their_row(function, what):
    fused = pg.fuse(lambda x, w: function(x @ w.T))
    with pytest.raises(UnsupportedProgram) as error:
        fused.compile("bf16[M,K]", "bf16[64,K]", arch="sm_80", single=True)
    assert what in str(error.value) and "thread block" not in str(error.value)
    assert "beside the matrix, and use it outside of the kernel" in str(error.value)


def test_results_of_other_rows():
    """Element (i, j) of a square needs the largest of row j."""
    x = Tensor("x", BF16, ("M", "K"))
    made = build_program(lambda x: x @ x.T - np.max(x @ x.T, axis=1), "f", "f", (x,))
    with pytest.raises(UnsupportedProgram, match="used by elements of other rows than") as error:
        split_folds(made)
    assert "dependence F1 -> P2" in str(error.value)


TILE = Epilogue(through="registers", rows="tile")
COVERING = tiled((32, 96, 32), (16, 96), epilogue=TILE)
BESIDE = replace(roles("one", cluster=(1, 2), through="registers"), epilogue=TILE)
NOT_COVERING = [
    (
        replace(COVERING, epilogue=Epilogue(rows="tile")),
        {},
        "epilogue.through = 'smem'",
        'Use epilogue.through = "registers"',
    ),
    (
        COVERING,
        {"N": 100},
        "rows of 100 elements in tiles of 96 columns",
        'Use tile.cta.n = 104 and tile.warp.n = 104, or epilogue.rows = "after"',
    ),
    (
        replace(roles("one", cluster=(1, 1, 2), through="registers"), epilogue=TILE),
        {},
        "cluster 1 x 1 x 2 with rows in a tile",
        "Use cluster.k = 1",
    ),
    (
        replace(BESIDE, tile=Tile(CtaTile(64, 128, 64), WarpTile(64, 64))),
        {},
        "cluster.n = 2 with tile.warp.n = 64 of tile.cta.n = 128 and rows in a tile",
        "Use tile.warp.n = 128, or cluster.n = 1",
    ),
    (
        BESIDE,
        {"N": 200},
        "rows of 200 elements in tiles of 64 columns, and clusters of 2 along n",
        'Use cluster.n = 4, or epilogue.rows = "after"',
    ),
    (
        BESIDE,
        {"N": 520},
        "rows of 520 elements in tiles of 64 columns, and clusters of 2 along n",
        'Use epilogue.rows = "after"',
    ),
]


def in_rows(schedule, sizes, static=()):
    arch = "sm_90a" if schedule.specialised else "sm_80"
    return pg.fuse(lambda x, w: pg.softmax(x @ w.T)).compile(
        "bf16[M,K]", "bf16[N,K]", arch=arch, schedule=schedule, sizes=sizes, static=static
    )


@pytest.mark.parametrize(("schedule", "sizes", "what", "nearest"), NOT_COVERING)
def test_tiles_that_do_not_cover_rows(schedule, sizes, what, nearest):
    """Of sizes that a kernel is made for, whether they are constants of it or not."""
    for static in ([*sizes], []):
        with pytest.raises(ScheduleError) as error:
            in_rows(schedule, sizes, static)
        assert what in str(error.value) and nearest in str(error.value)


def test_what_is_said_to_cover_rows_does():
    wide = Tile(CtaTile(32, 104, 32), WarpTile(16, 104))
    for schedule, columns in (
        (replace(COVERING, tile=wide), 100),
        (replace(BESIDE, cluster=Cluster(1, 4)), 200),
    ):
        assert in_rows(schedule, {"N": columns}).passes


def test_columns_are_no_rows_of_tiles():
    function = pg.fuse(lambda x, w: pg.softmax(x @ w.T, axis=0))
    with pytest.raises(UnsupportedProgram, match="a tile covers rows along n alone") as error:
        function.compile("bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=COVERING)
    assert 'Use epilogue.rows = "after"' in str(error.value)


def test_rows_over_several_axes_are_not_in_tiles():
    def both(x, w):
        v = x @ w.T
        return v - np.max(v, axis=1, keepdims=True), v - np.max(v, axis=0, keepdims=True)

    with pytest.raises(UnsupportedProgram, match="results of rows over several axes") as error:
        pg.fuse(both).compile("bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=COVERING)
    assert 'Use epilogue.rows = "after"' in str(error.value)


def test_tiles_that_cover_rows_that_nobody_folds():
    function = pg.fuse(lambda x, w: x @ w.T)
    with pytest.raises(ScheduleError, match="where no element uses a result of its own") as error:
        function.compile("bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=COVERING)
    assert 'Use epilogue.rows = "after"' in str(error.value)


def test_calls_with_longer_rows_than_tiles():
    """By name, before a launch; the C launcher returns a code of its own for it."""
    kernel = pg.fuse(lambda x, w: pg.softmax(x @ w.T)).compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=COVERING
    )
    kind = kernel.program.inputs[0].dtype.numpy
    with pytest.raises(ArgumentError, match="rows of 97 elements, N") as error:
        kernel.emulation(np.ones((8, 32), kind), np.ones((97, 32), kind))
    assert "Legal: 1 to 96" in str(error.value)
    assert "if (N > 96) return 200" in kernel.source


def test_arrays_beside_results():
    b, rows = Tensor("b", BF16, ("M",)), Tensor("rows", S32, ("M",))
    behind = split_folds(program(lambda x, w, b: np.sum(x @ w.T, axis=1) + b, b)).after
    assert [access.name for one in behind for access in one.reads] == ["v1", "b", "v2"]
    for function, more, read in (
        (lambda x, w, b, r: np.sum(x @ w.T, axis=1) + b[r], (b, rows), r"b\[rows\[i\]\]"),
        (lambda x, w: np.sum(x @ w.T, axis=1) + (x * x).sum(1), (), r"v3\[i\]"),
        (lambda x, w: np.sum(x @ w.T) + (x * x).sum(), (), "v3"),
    ):
        with pytest.raises(UnsupportedProgram, match=f"reads {read} beside the result v") as error:
            split_folds(program(function, *more))
        assert "elements of arguments along its own axes" in str(error.value)
        assert "Return v1 and combine it outside" in str(error.value)


def test_scalars_beside_results_are_numbers():
    """What the launch that follows computes may read arguments that are single numbers."""
    scaled = pg.fuse(lambda x, w, t, n: (t * pg.logsumexp(x @ w.T, axis=1), np.sum(x @ w.T) / n))
    kernel = scaled.compile(
        "bf16[M,K]",
        "bf16[N,K]",
        "f32",
        "f32",
        arch="sm_80",
        schedule=small(epilogue=Epilogue("registers")),
    )
    report = kernel.check()
    assert report.ok, str(report)


def test_results_with_their_axes_in_another_order():
    x, w = Tensor("x", BF16, (4, 4, "K")), Tensor("w", BF16, (4, "K", "N"))
    made = build_program(lambda x, w: np.sum(x @ w, axis=-1).T, "f", "f", (x, w))
    with pytest.raises(UnsupportedProgram, match="its axes in another order"):
        split_folds(made)


def test_only_batches_are_folded():
    function = pg.fuse(lambda x, w: np.max(x @ w, axis=0))
    with pytest.raises(UnsupportedProgram, match="folds no axis of a tile") as error:
        function.compile("bf16[B,M,K]", "bf16[B,K,N]", arch="sm_80", schedule=by_pairs())
    assert "Fold rows or columns as well" in str(error.value)
    with pytest.raises(UnsupportedProgram, match="folds no axis of a tile"):  # by name there, too
        function.compile("bf16[B,M,K]", "bf16[B,K,N]", arch="sm_80")


def test_folds_of_which_no_axis_is_that_of_rows():
    function = pg.fuse(
        lambda x, w: tuple(np.max(pg.einsum("npqc,ck->npqk", x, w), axis=axis) for axis in (0, 1))
    )
    with pytest.raises(UnsupportedProgram, match="folds no axis of a tile"):
        function.compile("bf16[4,5,6,K]", "bf16[K,N]", arch="sm_90a")


def by_pairs():
    return small(epilogue=Epilogue(through="registers"))


def test_a_staged_epilogue():
    function = pg.fuse(lambda x, w: np.sum(x @ w.T, axis=1))
    with pytest.raises(ScheduleError, match=r"epilogue.through = 'smem' with v1, a fold") as error:
        function.compile("bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=small())
    assert 'Use epilogue.through = "registers"' in str(error.value)


def test_panels_of_nothing():
    function = pg.fuse(lambda x, w: np.sum(x @ w.T, axis=1))
    with pytest.raises(ScheduleError, match="only folds leave") as error:
        function.compile("bf16[M,K]", "bf16[N,K]", arch="sm_90a", schedule=roles())
    assert 'Use epilogue.through = "registers"' in str(error.value)


@pytest.mark.parametrize(
    ("fold", "why"),
    [
        (lambda v: v.sum(axis=1), "tiles are chosen by the sizes"),
        (lambda v: v.max(axis=0), "it depends on all of M"),
    ],
)
def test_a_promise_that_folds_do_not_keep(fold, why):
    function = pg.fuse(lambda x, w: fold(x @ w.T))
    with pytest.raises(InvarianceError, match=why) as error:
        function.compile("bf16[M,K]", "bf16[N,K]", arch="sm_80", invariant=("M",))
    assert "Fold with max, min, argmax or argmin over other dims" in str(error.value)


EXCLUDED = [
    ({"exchange": True}, "exchange with v1, a fold", "Use exchange = false"),
    ({"launch": Launches(realign=True)}, "launch.realign with v1", "Use launch.realign = false"),
]


@pytest.mark.parametrize(("change", "what", "nearest"), EXCLUDED)
def test_schedules_that_do_not_go_with_folds(change, what, nearest):
    function = pg.fuse(lambda x, w: np.sum(x @ w.T, axis=1))
    with pytest.raises(ScheduleError, match=what) as error:
        function.compile(
            "bf16[M,K]", "bf16[N,K]", arch="sm_90a",
            schedule=replace(roles(through="registers"), **change),
        )  # fmt: skip
    assert nearest in str(error.value)


def test_lanes_that_multiply():
    function = pg.fuse(lambda x, w: np.sum(x @ w.T, axis=1))
    schedule = next(one for one in shipped(device("sm_80")) if one.by_lanes)
    with pytest.raises(ScheduleError, match='atom = "dot" with v1') as error:
        function.compile("bf16[1,K]", "bf16[N,K]", arch="sm_80", schedule=schedule)
    assert 'Use atom = "auto"' in str(error.value)


@pytest.mark.parametrize("sizes", [{"M": 1, "N": 4096, "K": 4096}, {"M": 8, "N": 4096, "K": 4096}])
@pytest.mark.parametrize("alignment", [16, 2])
def test_automatic_choices_go_with_folds(sizes, alignment):
    """Few rows, and rows that are copied first, where the product alone takes other schedules."""
    function = pg.fuse(lambda x, w: (x @ w.T, np.max(x @ w.T, axis=1)))
    signature = (f"bf16[M,K]@{alignment}", f"bf16[N,K]@{alignment}")
    made = function.compile(*signature, arch="sm_90a", sizes=sizes)
    assert not made.schedule.exchange and not made.schedule.by_lanes
    assert made.schedule.launch == Launches(dependent=alignment == 16)  # else it takes too long


def test_rows_in_groups():
    function = pg.fuse(lambda x, w, ends: np.max(pg.grouped_matmul(x, w, ends), axis=1))
    with pytest.raises(UnsupportedProgram, match="in a function with rows in groups") as error:
        function.program("bf16[T,K]", "bf16[E,K,N]", "s32[E]")
    assert "fold it outside of the kernel" in str(error.value)


def test_no_derivative():
    with pytest.raises(GradientError, match="v1, a fold") as error:
        derive(program(lambda x, w: np.sum(x @ w.T, axis=1)), frozenset("x"))
    assert "Fold outside" in str(error.value)


def test_no_tuning_of_what_is_folded_in_front_of_a_product():
    function, sizes = pg.fuse(lambda x, w: pg.rms_norm(x) @ w.T), {"M": 64, "N": 64, "K": 64}
    with pytest.raises(UnsupportedProgram, match="v1, a fold in front of a product") as error:
        describe(function, ("bf16[M,K]", "bf16[N,K]"), sizes=sizes, arch="sm_80")
    assert "Tune the product alone" in str(error.value)


def test_no_tuning_where_no_dim_that_is_named_leaves_a_small_problem():
    function = pg.fuse(lambda x, w: np.sum(x @ w.T, axis=1))
    with pytest.raises(UnsupportedProgram, match=r"6.9e\+10 multiplications of v0") as error:
        describe(function, ("bf16[4096,4096]", "bf16[4096,4096]"), sizes={}, arch="sm_80")
    assert "Name dims that are numbers" in str(error.value)
    made = describe(
        function, ("bf16[M,K]", "bf16[N,K]"), sizes=dict.fromkeys("MNK", 4096), arch="sm_80"
    )
    assert made.small is not None and max(made.small.values()) < 1024
    plain = pg.fuse(lambda x, w: x @ w.T)
    made = describe(plain, ("bf16[4096,4096]", "bf16[4096,4096]"), sizes={}, arch="sm_80")
    assert made.small is None  # rows of it are computed
