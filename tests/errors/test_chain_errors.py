"""Chains of products that are refused: what, where, why, and what would do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polygen as pg
from polygen.decide import candidates
from polygen.errors import (
    IllegalSchedule,
    InvarianceError,
    ResourceError,
    ScheduleError,
    ShapeError,
    UnsupportedProgram,
)
from polygen.hardware.device import device
from polygen.schedule.model import (
    CtaTile,
    Epilogue,
    Loops,
    Pipeline,
    Raster,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)

SIGNATURE = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")


def softmax(q, k, v):
    return pg.softmax((q @ k.mT) * 0.125) @ v


def _refused(function, *signature: str, error=UnsupportedProgram, **more) -> str:
    with pytest.raises(error) as found:
        pg.fuse(function).compile(
            *(signature or SIGNATURE), single=True, **({"arch": "sm_90a"} | more)
        )
    return str(found.value)


def test_three_products() -> None:
    text = _refused(
        lambda x, y, a, b, c: (pg.relu(x @ a) + pg.relu(y @ b)) @ c,
        "bf16[M,64]", "bf16[M,64]", "bf16[64,64]", "bf16[64,64]", "bf16[64,64]",
    )  # fmt: skip
    assert "3 products" in text and "two functions" in text


def test_products_of_what_a_fold_behind_the_second_is_in() -> None:
    def function(q, k, v, x):
        y = q @ v.T @ k
        return (x * y.max(-1, keepdims=True)) @ v.T

    signature = ("bf16[M,32]", "bf16[32,32]", "bf16[32,32]", "bf16[M,32]")
    text = _refused(function, *signature)
    assert "multiplies what S" in text and "multiply it in a second" in text
    assert len(pg.fuse(function).compile(*signature, arch="sm_90a").kernels) == 2


def _paged(keys: int, values: int, count: int = 0):
    """Pages of so many keys, of so many values; as many keys as `count` says."""
    count = count or keys * values

    def function(q, k, v, table, other):
        k, v = (x[t].reshape(-1, count, 64) for x, t in ((k, table), (v, other)))
        return pg.softmax(q @ k.mT) @ v

    tables = (f"s32[2,{count // keys}]", f"s32[2,{count // values}]")
    pages = (f"bf16[N,{keys},64]", f"bf16[N,{values},64]")
    return function, ("bf16[2,S,64]", *pages, *tables)


def test_pages_that_no_tile_is_made_of() -> None:
    function, given = _paged(20, 20)
    text = _refused(function, *given)
    assert "pages of 20 keys" in text and "Use pages of 16 or 24 keys" in text
    assert "whole pages of a multiple of 8 keys, or a part of one" in text
    function, given = _paged(56, 72)
    text = _refused(function, *given)
    assert "pages of 56 and of 72 keys" in text and "as many keys for the values" in text
    function, given = _paged(24, 24)
    text = _refused(function, *given, error=ScheduleError, schedule=_schedule(keys=80))
    assert "tile.cta.k" in text and "Use tile.cta.k = 48: whole pages" in text
    kernel = pg.fuse(function).compile(*given, arch="sm_90a")
    assert kernel.schedule.tile.cta.k == 96


def test_pages_outside_of_a_chain() -> None:
    given = ("bf16[B,S,64]", "bf16[N,16,64]", "s32[B,J]")
    text = _refused(lambda q, k, t: q @ k[t].reshape(q.shape[0], -1, 64).mT, *given)
    assert "an axis of 16*J elements, of pages that a table names" in text
    assert "f(q @ k.mT) @ v" in text and "Gather the pages first" in text
    given = ("bf16[B,S,64]", "bf16[N,16,64]", "s32[B,4]")
    text = _refused(lambda q, k, t: q @ k[t].reshape(q.shape[0], -1, 64).mT, *given)
    assert "is read at t[b,floor(j/16)], by an array of several axes" in text
    text = _refused(lambda x, w: x.reshape(-1, 64) @ w.T, "bf16[B,16,64]", "bf16[N,64]",
                    error=ShapeError)  # fmt: skip
    assert "how many elements B stands for is known only at run time" in text


def test_what_is_read_by_index_in_a_chain_is_pages_or_rows() -> None:
    text = _refused(
        lambda q, k, v, t, o: (
            pg.softmax(q @ k[t].reshape(2, 256, 64)[:, 16:].mT) @ v[o].reshape(2, 256, 64)[:, 16:]
        ),
        *_paged(16, 16)[1],
    )
    assert "k[t[b,floor(j/16)+1],(j mod 16),i], read by index" in text
    assert "is not made before the kernel" in text and "pass it as an argument" in text
    slots = lambda q, k, v, t: pg.softmax(q[t] @ k.mT) @ v  # noqa: E731
    text = _refused(slots, "bf16[N,S,64]", *["bf16[B,T,64]"] * 2, "s32[B]")
    assert "rows of the first product by index" in text and "Pass q with its rows" in text


def test_pages_of_what_is_no_key_in_a_row_of_its_own() -> None:
    def columns(q, k, v, t):
        return pg.softmax(q @ k.mT) @ v[t].reshape(2, 64, 96).mT

    given = ("bf16[2,S,64]", "bf16[2,96,64]", "bf16[N,16,96]", "s32[2,4]")
    text = _refused(columns, *given)
    assert "columns, or what is summed, by index" in text and "pages of keys" in text

    def neighbours(q, k, v, t):
        return pg.softmax(q @ k[t].swapaxes(2, 3).reshape(2, -1, 64).mT) @ v

    given = ("bf16[2,S,64]", "bf16[N,64,16]", "bf16[2,64,64]", "s32[2,4]")
    text = _refused(neighbours, *given)
    assert "keys of a page are neighbours in memory" in text and "as in [N,P,D]" in text


def test_a_product_beside_a_chain() -> None:
    text = _refused(
        lambda x, w, a, b: x @ w.T * ((x @ a.T) @ b.T),
        "bf16[M,K]", "bf16[N,K]", "bf16[16,K]", "bf16[N,16]",
    )  # fmt: skip
    assert "takes mul" in text and "return what is made of v1 from the first" in text
    second = pg.fuse(lambda x, w, z, b: x @ w.T + z @ b.T)  # the change that would work
    second.compile("bf16[M,K]", "bf16[N,K]", "bf16[M,16]", "bf16[N,16]", arch="sm_90a")


def test_both_operands_are_made_of_sums() -> None:
    text = _refused(
        lambda x, a, y, b: pg.relu(x @ a) @ pg.relu(y @ b),
        "bf16[M,64]", "bf16[64,64]", "bf16[64,32]", "bf16[32,48]",
    )  # fmt: skip
    assert "is computed" in text and "Make two functions" in text


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda q, k, v: pg.softmax((q - q.max()) @ k.mT) @ v, "over several axes"),
        (lambda q, k, v: pg.softmax(pg.rms_norm(q) @ k.mT) @ v + pg.rms_norm(q), "used beside"),
        (
            lambda q, k, v: pg.softmax(pg.rms_norm(q, axis=1) @ pg.rms_norm(k).mT) @ v
            * np.mean(q * q, axis=1, keepdims=True),
            "used beside",
        ),
    ],
    ids=["folds over all rows", "a norm beside the chain", "a mean beside the chain"],
)  # fmt: skip
def test_folds_that_no_launch_before_makes(function, what: str) -> None:
    text = _refused(function)
    assert what in text and "is not made before the kernel" in text
    assert "before the call, and pass it as an argument" in text


def test_a_product_that_turns_the_rows() -> None:
    text = _refused(
        lambda q, k, v: pg.softmax((q @ k.mT) * 0.1).mT @ v,
        "bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,S,64]",
    )  # fmt: skip
    assert "does not multiply the rows" in text


def test_a_fold_over_rows() -> None:
    text = _refused(lambda q, k, v: pg.softmax((q @ k.mT) * 0.1, axis=-2) @ v)
    assert "folds over its keys" in text


def test_states_of_rows_beside_folds_of_results() -> None:
    def added(q, k, v):
        s = q @ k.mT
        return (pg.softmax(s) @ v).sum(axis=-1) + pg.logsumexp(s, axis=-1)

    text = _refused(added)
    assert "a row's, beside a fold of what" in text and "as well, and combine both outside" in text

    def columns(q, k, v):
        s = q @ k.mT
        return pg.softmax(pg.softmax(s) @ v, axis=-2) * pg.logsumexp(s, axis=-1, keepdims=True)

    text = _refused(columns)
    assert "a row's, beside a fold of results" in text and "known behind it" in text

    def apart(q, k, v):  # the change that works
        s = q @ k.mT
        return (pg.softmax(s) @ v).sum(axis=-1), pg.logsumexp(s, axis=-1)

    assert pg.fuse(apart).compile(*SIGNATURE, arch="sm_90a")


def test_folds_that_tiles_have_no_parts_of() -> None:
    text = _refused(lambda q, k, v: softmax(q, k, v).sum(axis=0), *_batched())
    assert "folds no axis of a tile" in text and "Fold rows or columns as well" in text
    text = _refused(lambda q, k, v: (softmax(q, k, v) ** 2).sum(axis=-1).max())
    assert "a fold of what is folded" in text and "outside of the kernel" in text


def _batched() -> tuple[str, ...]:
    return ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")


def _normed(q, k, v):
    return pg.rms_norm(softmax(q, k, v))


@pytest.mark.parametrize(
    ("function", "more", "field", "nearest"),
    [
        (_normed, {"part": 256}, "tile.part beside folds", "tile.part = 0"),
        (_normed, {"epilogue": Epilogue("tma")}, "epilogue.through beside folds", '"registers"'),
        (softmax, {"epilogue": Epilogue("registers", rows="tile")}, "epilogue.rows", '"after"'),
    ],
)
def test_schedules_that_fold_no_results(function, more, field, nearest) -> None:
    text = _refused(function, error=ScheduleError, schedule=_schedule(**more))
    assert f"{field} does not fit" in text and nearest in text


def test_lengths_of_rows() -> None:
    def cosine(q, k, v):
        rows = pg.rsqrt(np.sum(q * q, axis=-1, keepdims=True) + 1e-6)
        return pg.softmax((q @ k.mT) * rows, axis=-1) @ v

    text = _refused(cosine)
    assert "in a function before, and pass it" in text
    passed = pg.fuse(lambda q, k, v, r: pg.softmax((q @ k.mT) * r[..., None], axis=-1) @ v)
    sides = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]", "f32[B,S]")
    assert passed.compile(*sides, arch="sm_90a")  # the change that works


def test_scores_that_are_returned() -> None:
    def function(q, k, v):
        p = pg.softmax((q @ k.mT) * 0.1)
        return p @ v, p

    text = _refused(function)
    assert "stays on chip" in text


@pytest.mark.parametrize("kind", ["bf16", "f32"])  # the operand itself, and what it is made of
def test_weights_are_read_behind_the_second_product(kind: str) -> None:
    def function(x, w, b):
        between = pg.softmax(x @ w.T).astype(kind)
        return between.astype("bf16") @ b.T + between

    text = _refused(function, "bf16[M,64]", "bf16[64,64]", "bf16[64,64]")
    assert "which lies between the products" in text and "in a second" in text


def test_a_head_dim_without_a_number() -> None:
    text = _refused(softmax, "bf16[S,D]", "bf16[T,D]", "bf16[T,64]")
    assert "as a number in the signature" in text


def test_more_columns_than_registers_hold() -> None:
    text = _refused(softmax, "bf16[S,64]", "bf16[T,64]", "bf16[T,320]")
    assert "320 columns" in text and "256 columns" in text
    text = _refused(softmax, "f32[S,64]", "f32[T,64]", "f32[T,256]")
    assert "a chain with 256 columns" in text and "Multiply by parts of v, of 192" in text


def test_what_is_multiplied_and_folded() -> None:
    def function(q, k, v):
        p = pg.sigmoid((q @ k.mT) * 0.1).astype("bf16")
        return p @ v, pg.max(p, axis=-1)

    text = _refused(function)
    assert "is folded and multiplied" in text


def test_rows_that_no_tensor_map_takes() -> None:
    given = ("bf16[S,64]@2", "bf16[T,64]", "bf16[T,64]")
    text = _refused(softmax, *given, schedule=_schedule())
    assert "cannot move it" in text and "without roles" in text
    assert not pg.fuse(softmax).compile(*given, arch="sm_90a").schedule.specialised


def test_neither_in_boxes_nor_in_rows() -> None:
    """Threads copy adjacent elements, and the copy engine aligned rows."""
    text = _refused(lambda q, k, v: softmax(q[:, ::2], k, v),
                    "bf16[S,128]", "bf16[T,64]", "bf16[T,64]")  # fmt: skip
    assert "cannot move it" in text


def test_types_and_targets_without_an_instruction() -> None:
    operands = ("f16[B,S,64]", "f16[B,T,64]", "f16[B,T,64]")
    for arch in ("sm_75", "sm_70"):
        text = _refused(softmax, *operands, arch=arch)
        assert f"a chain of products of f16 on {arch}" in text and 'Use arch="sm_80"' in text
        text = _refused(softmax, "tf32[S,64]", "tf32[T,64]", "tf32[T,64]", arch=arch)
        assert "f16, bf16, tf32 and f32" in text
    text = _refused(softmax, arch="sm_80", schedule=_schedule())
    assert "warpgroups, with roles," in text and 'Use arch="sm_90a"' in text
    text = _refused(
        lambda q, k, v: pg.softmax((q @ k.mT) * 0.1).astype("e4m3") @ v,
        "e4m3[S,64]", "e4m3[T,64]", "e4m3[T,64]",
    )  # fmt: skip
    assert "Use f16, bf16, tf32 or f32, or make two functions" in text
    text = _refused(softmax, "f16[S,64]", "f16[T,64]", "bf16[T,64]")
    assert "Pass all of them as one type, f16, bf16, tf32 or f32" in text
    given = tuple(f"tf32[{side},64]" for side in "STT")
    text = _refused(softmax, *given, schedule=_schedule())
    assert "a chain of products of tf32 on sm_90a" in text and "leave out roles" in text


def test_tuning() -> None:
    program = pg.fuse(softmax).program(*SIGNATURE)
    with pytest.raises(UnsupportedProgram, match="is not tuned"):
        candidates(program, device("sm_90a"), {})


def test_promises_of_bits() -> None:
    text = _refused(softmax, error=InvarianceError, invariant=("S",))
    assert "a chain of products" in text


def _schedule(
    rows=128, columns=64, keys=128, warp=64, registers=240, part=0, pixels=(), **more
) -> Schedule:
    made = {
        "tile": Tile(CtaTile(rows, columns, keys), WarpTile(warp, columns), part, pixels),
        "pipeline": Pipeline(stages=2, in_flight=1),
        "roles": Roles("cooperative", 24, registers),
        "epilogue": Epilogue("registers"),
    }
    return Schedule("own", "sm_90a", **(made | more))


def _by_warps(rows=64, columns=64, keys=64, warp=16, **more) -> Schedule:
    made = {"roles": Roles(), "pipeline": Pipeline(stages=2, distance=1, order=("copy", "mma"))}
    return _schedule(rows, columns, keys, warp, **(made | more))


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        (_schedule(columns=128), None),
        (_schedule(columns=48), "tile.cta.n"),
        (_schedule(warp=32), "tile.warp.m"),
        (_schedule(keys=24), "tile.cta.k"),
        (_schedule(pipeline=Pipeline(stages=2, in_flight=2)), "pipeline.in_flight"),
        (_by_warps(warp=24), "tile.warp.m"),
        (_by_warps(rows=72), "tile.cta.m"),
        (_by_warps(keys=24), "tile.cta.k"),
        (_by_warps(columns=272), "tile.cta.n"),
        (_by_warps(pipeline=Pipeline(copies="spread")), "pipeline.copies"),
        (_by_warps(loops=Loops(k="backward")), "loops"),
        (_by_warps(epilogue=Epilogue("smem")), "epilogue.through"),
        (_by_warps(part=96), "tile.part"),
        (_by_warps(raster=Raster("m", 1, order="longest")), "raster.order"),
        (_schedule(part=192), "tile.part"),
        (_schedule(pixels=(8, 16)), "tile.pixels"),
        (_schedule(epilogue=Epilogue("smem")), "epilogue.through does not fit"),
        (_schedule(epilogue=Epilogue("lines")), 'Use "registers" or "tma"'),
        (_schedule(raster=Raster("m", 1, order="longest")), "raster.order"),
        (_schedule(raster=Raster("m", 1, order="pairs")), "raster.order"),
    ],
)
def test_schedules_of_other_kernels(schedule, field) -> None:
    if field is None:  # wider than the columns: zeros
        pg.fuse(softmax).compile(*SIGNATURE, arch="sm_90a", schedule=schedule)
        return
    assert field in _refused(softmax, error=ScheduleError, schedule=schedule)


def _causal(q, k, v):
    s = q @ k.mT
    i, j = pg.indices(s)[-2:]
    return pg.softmax(pg.where(i >= j, s, -np.inf)) @ v


def test_results_that_panels_do_not_hold() -> None:
    tma = Epilogue("tma")
    text = _refused(softmax, error=ScheduleError, schedule=_schedule(part=256, epilogue=tma))
    assert "epilogue.through beside parts" in text and "lie in the workspace" in text
    text = _refused(
        lambda q, k, v, r: softmax(q, k, v) + r, *SIGNATURE, "bf16[S,64]",
        error=ScheduleError, schedule=_schedule(epilogue=tma),
    )  # fmt: skip
    assert "epilogue.through beside matrices" in text and 'Use "registers"' in text
    narrow = ("bf16[S,64]", "bf16[T,64]", "bf16[T,8]")
    text = _refused(
        lambda q, k, v: softmax(q, k, v).astype("e4m3"), *narrow,
        error=ScheduleError, schedule=_schedule(columns=16, epilogue=tma),
    )  # fmt: skip
    assert "the copy engine cannot move" in text and "multiples of 16 bytes" in text
    assert 'Use epilogue.through = "registers"' in text
    columns = replace(tma, columns=48)
    text = _refused(softmax, error=ScheduleError, schedule=_schedule(epilogue=columns))
    assert "epilogue.columns = 48" in text and "Use 64 or 32 or 16" in text
    slots = replace(tma, slots=12)
    text = _refused(softmax, error=ResourceError, schedule=_schedule(epilogue=slots))
    assert "12 panels of results a consumer" in text and "or epilogue.slots" in text


def _ragged(q, k, v, end):
    s = q @ k.mT
    return pg.softmax(pg.where(pg.indices(s)[-1] < end[:, None], s, -np.inf)) @ v


def test_orders_that_persistent_blocks_do_not_go_through() -> None:
    pairs = Raster("m", 1, order="pairs")
    text = _refused(_causal, error=ScheduleError, schedule=_schedule(part=256, raster=pairs))
    assert "raster.order beside parts" in text and '"longest", or tile.part = 0' in text
    signature = (*SIGNATURE, "s32[S]")
    text = _refused(_ragged, *signature, error=ScheduleError, schedule=_schedule(raster=pairs))
    assert "raster.order beside bounds" in text and '"longest"' in text


def test_warps_have_one_tile_of_rows_each() -> None:
    pairs = Raster("m", 1, order="pairs")
    text = _refused(_causal, error=ScheduleError, schedule=_by_warps(raster=pairs))
    assert "raster.order without roles" in text and '"longest": a block has one' in text


def test_warps_that_have_no_room() -> None:
    def refused(**more) -> str:
        return _refused(softmax, error=ResourceError, arch="sm_80", schedule=_by_warps(**more))

    assert "Reduce tile.cta.k, the keys of a tile, tile.warp.m" in refused(keys=256, warp=32)
    assert "at most 1024" in refused(rows=1024)
    deep = Pipeline(stages=16, distance=1)
    assert "Reduce pipeline.stages" in refused(pipeline=deep)
    three = Pipeline(stages=3, distance=1)
    assert "min_blocks = 4 of" in refused(rows=16, pipeline=three, min_blocks=4)


def test_copies_that_come_too_early_or_fragments_too_soon() -> None:
    for pipeline, field in (
        (Pipeline(stages=2, distance=2, order=("copy", "mma")), "pipeline.distance"),
        (Pipeline(stages=2, distance=1, fragments=1, lookahead=1), "pipeline.lookahead"),
    ):
        text = _refused(softmax, error=IllegalSchedule, schedule=_by_warps(pipeline=pipeline))
        assert "breaks a dependence" in text and field in text


def test_what_threads_do_not_copy() -> None:
    function, given = _paged(16, 16)
    text = _refused(function, *given, arch="sm_80")
    assert "by index, without roles" in text and 'Use arch="sm_90a"' in text
    text = _refused(
        lambda q, k, v: pg.softmax(q[:, ::2] @ k.mT) @ v,
        "bf16[S,128]", "bf16[T,64]", "bf16[T,64]", arch="sm_80",
    )  # fmt: skip
    assert "neighbours are not adjacent" in text and "Pass q with adjacent elements" in text


def test_what_does_not_fit() -> None:
    text = _refused(softmax, error=ResourceError, schedule=_schedule(registers=120))
    assert "Reduce tile.cta.k" in text
    text = _refused(
        softmax, error=ResourceError, schedule=_schedule(pipeline=Pipeline(stages=9, in_flight=1))
    )
    assert "shared memory" in text
    text = _refused(softmax, error=ResourceError, schedule=_schedule(rows=256))
    assert "Use fewer consumers" in text
    text = _refused(softmax, error=ResourceError, schedule=_schedule(min_blocks=2))
    assert "a smaller min_blocks" in text
    deep = Pipeline(stages=7, in_flight=1)
    few = _schedule(64, registers=232, min_blocks=2, keys=64, pipeline=deep)
    assert "Reduce min_blocks" in _refused(softmax, error=ResourceError, schedule=few)
