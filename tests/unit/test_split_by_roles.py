"""Products of f32 in parts that warpgroups multiply: the program, the choice, what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from matrix import roles
from numpy.lib.stride_tricks import sliding_window_view

import polygen as pg
from polygen import knobs
from polygen.decision import as_run, multiplied
from polygen.errors import ScheduleError, UnsupportedProgram, VerifyError
from polygen.frontend.evaluate import evaluate
from polygen.frontend.indices import Affine
from polygen.frontend.program import Program
from polygen.frontend.rounding import nearest_tf32
from polygen.hardware.device import device
from polygen.lower.promoting import Promote
from polygen.lower.realign_work import RowMake
from polygen.lower.verify import verify
from polygen.lower.verify_made import check_made
from polygen.lower.work import FIRST_OF_TILE, Move, Product
from polygen.poly.supported import require_each_once
from polygen.rewrite.programs import rewritten
from polygen.rewrite.tf32_parts import in_parts
from polygen.schedule.load import dumps, load_schedule
from polygen.schedule.model import Schedule
from polygen.show import show_plan
from polygen.tune.lookup import Tuned

LARGE, SMALL = ({name: size for name in "MNK"} for size in (4096, 256))
F32 = ("f32[M,K]", "f32[K,N]")


def program(
    function: Any = lambda x, w: x @ w, signature: tuple[str, ...] = F32, **more: Any
) -> Program:
    return pg.fuse(function, name="split").program(*signature, **more)


def compiled(schedule: Any = "auto", sizes: Any = None, arch: str = "sm_90a", **more: Any) -> Any:
    fused = pg.fuse(more.pop("function", lambda x, w: x @ w), name="split")
    return fused.compile(
        *more.pop("signature", F32), arch=arch, sizes=sizes or {}, schedule=schedule, **more
    )


def made_first(**changes: Any) -> Schedule:
    found = roles("one", 64, 32)
    return replace(found, roles=replace(found.roles, computes="before"), **changes)


def test_the_statements() -> None:
    parts = in_parts(program())
    assert parts is not None
    assert [str(s) for s in parts.statements[:9]] == [
        "w0[q,i,k] = nearest_tf32(x[i,k])",
        "w1[q,i,k] = sub(x[i,k], w0[q,i,k])",
        "w2[q,i,k] = eq(q, 0.0)",
        "w3[q,i,k] = where(w2[q,i,k], w1[q,i,k], w0[q,i,k])",
        "w4[q,k,j] = nearest_tf32(w[k,j])",
        "w5[q,k,j] = sub(w[k,j], w4[q,k,j])",
        "w6[q,k,j] = eq(q, 1.0)",
        "w7[q,k,j] = where(w6[q,k,j], w5[q,k,j], w4[q,k,j])",
        "v0[i,j] += (w3[(p mod 2) + floor(p/2),i,k] * w7[(p mod 2),k,j] over 32 of k)",
    ]


def test_rows_with_folds_are_made_for_each_part() -> None:
    first = rewritten(program(lambda x, w: pg.softmax(x) @ w, F32))
    parts = in_parts(first)
    assert parts is not None and first.first == ("v5",) and parts.first == ("w9",)
    assert [str(s) for s in parts.statements[:10]] == [
        "w0[q,i] = max over k of x[i,k]",
        "w1[q,i,k] = sub(x[i,k], w0[q,i])",
        "w2[q,i,k] = exp(w1[q,i,k])",
        "w3[q,i] = sum over k of w2[q,i,k]",
        "w4[q,i,k] = div(w2[q,i,k], w3[q,i])",
        "w5[q,i,k] = cast(w4[q,i,k])",
        "w6[q,i,k] = nearest_tf32(w5[q,i,k])",
        "w7[q,i,k] = sub(w5[q,i,k], w6[q,i,k])",
        "w8[q,i,k] = eq(q, 0.0)",
        "w9[q,i,k] = where(w8[q,i,k], w7[q,i,k], w6[q,i,k])",
    ]


@pytest.mark.parametrize("data", ["normal", "wide"])
def test_the_parts_leave_out_what_is_documented(data: str) -> None:
    """In float64, where nothing but what is left out differs: three products, not four."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((40, 64)), rng.standard_normal((64, 24))
    if data == "wide":
        x *= 2.0 ** rng.integers(-30, 30, x.shape)
    given = {"x": x.astype("f4"), "w": w.astype("f4")}
    parts = in_parts(program())
    assert parts is not None
    (found,) = evaluate(parts, given, {"M": 40, "N": 24, "K": 64}, round_outputs=False)
    exact = given["x"].astype("f8") @ given["w"].astype("f8")
    scale = np.abs(given["x"]).astype("f8") @ np.abs(given["w"])
    left_out = np.abs(found - exact) / scale
    assert 0 < left_out.max() < 3 * 2.0**-22


def test_nearest_tf32_and_its_rest_are_the_number() -> None:
    values = np.random.default_rng(1).standard_normal(4096).astype("f4")
    near = nearest_tf32(values)
    assert not (near.astype("f4").view("u4") & 0x1FFF).any()
    assert (np.abs(values - near) <= np.abs(values) * 2.0**-11).all()
    assert np.array_equal((values - near).astype("f4") + near, values.astype("f8"))
    special = np.array([np.inf, -np.inf, 0.0, 1 + 2.0**-11, 3.4028235e38], "f4")
    assert np.array_equal(nearest_tf32(special), [np.inf, -np.inf, 0, 1 + 2.0**-10, np.inf])
    assert np.isnan(nearest_tf32(np.array([np.nan]))).all()


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (lambda x, w: x @ w, ("tf32[M,K]", "tf32[K,N]")),
        (lambda x, w: x @ w, ("bf16[M,K]", "bf16[K,N]")),
        (lambda x, w: (x @ w).sum(axis=0), ("f32[B,M,K]", "f32[B,K,N]")),
        (lambda x, w: sliding_window_view(x, 3, axis=0) @ w, ("f32[34,16]", "f32[3,N]")),
        (lambda x, y: heads(x) @ heads(y).mT, ("f32[M,128]", "f32[N,128]")),
    ],
)
def test_other_products_have_no_parts(function: Any, signature: tuple[str, ...]) -> None:
    assert in_parts(rewritten(program(function, signature))) is None


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (lambda x, w: x.reshape(8, 4, 64) @ w, ("f32[32,64]", "f32[64,40]")),
        (lambda x, w: x.reshape(32, 2, 48).swapaxes(0, 1) @ w, ("f32[64,48]", "f32[48,40]")),
        (lambda x, y: terms(x).mT @ terms(y), ("f32[384,72]", "f32[384,40]")),
    ],
)
def test_rows_that_a_reshape_tells_apart_have_parts(
    function: Any, signature: tuple[str, ...]
) -> None:
    kernel = compiled(made_first(), function=function, signature=signature)
    assert "nearest_tf32" in kernel.source and kernel.check().ok
    rng = np.random.default_rng(3)
    given = [rng.integers(-8, 9, tensor.dims).astype("f4") for tensor in kernel.program.inputs]
    np.testing.assert_array_equal(kernel.emulate(*given), function(*given))


def terms(x: Any) -> Any:
    """The rows in four parts, as those of a sum over many."""
    return x.reshape(4, 96, x.shape[1])


def heads(x: Any) -> Any:
    """Columns in parts: rows of a head end where no row of the array does."""
    return x.reshape(x.shape[0], 4, 32).swapaxes(0, 1)


# --- the choice -----------------------------------------------------------------------------------
def test_large_products_are_multiplied_in_parts_by_roles() -> None:
    kernel = compiled(sizes=LARGE)
    assert kernel.schedule.makes_first and kernel.schedule.specialised
    assert "f32 is multiplied in parts of tf32" in kernel.schedule_origin
    assert "wgmma.mma_async" in kernel.source and "mma.sync" not in kernel.source


def test_small_ones_are_split_by_warps() -> None:
    kernel = compiled(sizes=SMALL)
    assert not kernel.schedule.specialised and "mma.sync" in kernel.source


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_without_warpgroups_all_are(arch: str) -> None:
    assert "mma.sync" in compiled(sizes=LARGE, arch=arch).source


def test_invariant_dims_have_one_way_for_all_sizes() -> None:
    kernels = [compiled(sizes=LARGE | {"M": m}, invariant="M") for m in (8, 4096)]
    assert [kernel.schedule.specialised for kernel in kernels] == [False, False]
    assert kernels[0].sums == kernels[1].sums


def test_bits_do_not_depend_on_rows_under_a_schedule_that_is_given() -> None:
    kernel = compiled(made_first(), invariant="M")
    assert "4 group(s) of 8" in kernel.sums.text and "blocks of 32" in kernel.sums.text


def test_a_schedule_says_which(tmp_path: Any) -> None:
    whole, parts = program(), in_parts(program())
    assert as_run(whole, Schedule()) == whole and as_run(whole, made_first()) == parts
    file = tmp_path / "first.toml"
    file.write_text(dumps(made_first()))
    assert load_schedule(file) == made_first()
    target = device("sm_90a")
    for asked in (file, str(file)):
        assert multiplied(whole, target, LARGE, asked) == parts
    with knobs.scope(schedule=str(file)):
        assert multiplied(whole, target, LARGE, "auto") == parts
    assert multiplied(whole, target, SMALL, "auto") == whole


@pytest.mark.parametrize("schedule", [Schedule(), made_first()])
def test_what_was_measured_fastest_says_which(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Tuned(schedule, 1.0, "", 2.0, "", "", stale=False)
    monkeypatch.setattr("polygen.decision.lookup.best", lambda *_: found)
    whole = program()
    assert multiplied(whole, device("sm_90a"), LARGE, "auto") == as_run(whole, schedule)


# --- what is refused ------------------------------------------------------------------------------
@pytest.mark.parametrize("computes", ["producer", "consumer"])
def test_other_places_are_refused(computes: str) -> None:
    other = made_first()
    with pytest.raises(ScheduleError, match=r'computes = "\w+" with .*f32.*computes = "before"'):
        compiled(replace(other, roles=replace(other.roles, computes=computes)))


def test_k_tiles_that_are_no_blocks_are_refused() -> None:
    other = made_first()
    tile = replace(other.tile, cta=replace(other.tile.cta, k=64))
    with pytest.raises(ScheduleError, match=r"tile.cta.k = 64 with sums in blocks of 32.*k = 32"):
        compiled(replace(other, tile=tile))


def test_shared_sums_are_refused() -> None:
    other = made_first()
    with pytest.raises(ScheduleError, match=r"cluster.k = 2 .*blocks of 32"):
        compiled(replace(other, cluster=replace(other.cluster, k=2)))


def test_folds_beside_them_are_refused_with_roles() -> None:
    function = lambda x, w: (x @ w).sum(axis=-1)  # noqa: E731
    with pytest.raises(ScheduleError, match="roles with products of f32 beside v1, a fold"):
        compiled(made_first(), function=function)
    assert not compiled(sizes=LARGE, function=function).schedule.specialised


def test_roles_without_warpgroup_instructions_of_f32_are_refused_where_there_are_no_parts() -> None:
    with pytest.raises(UnsupportedProgram, match="no warpgroup instruction for f32 x f32"):
        compiled(
            made_first(), function=lambda x, w: (x @ w).sum(axis=0),
            signature=("f32[B,M,K]", "f32[B,K,N]"),
        )  # fmt: skip


# --- what is proved -------------------------------------------------------------------------------
@cache
def passes() -> Any:
    return compiled(made_first()).passes


def test_the_wait_and_the_fence_of_a_promotion_are_derived() -> None:
    """No factors are read: what is left are the sums of blocks."""
    tree = passes().tree.synchronised
    names = {one.name for one in tree.program.statements}
    assert "promote" in names and "read_scales" not in names
    syncs = {sync.name: sync for sync in tree.syncs}
    assert "multiply -> promote (flow through inner)" in syncs["retire_empty_ring"].enforces
    (needed,) = syncs["fence_multiply"].enforces
    assert needed == "promote -> multiply (reuse through inner, 1 version(s) later, wgmma.fence)"


def test_the_plan_says_what_is_promoted() -> None:
    text = show_plan(passes().plan, "given")
    assert "sum += inner, the products of 32 of k: behind every k tile" in text
    assert "made by the launch that goes before" in text


PROMOTED = {
    "blocks twice as long": (Promote, {"block": 64}),
    "one instruction's sums left out": (Promote, {"groups": 7}),
    "another inner sum": (Promote, {"inner": "sum"}),
    "sums that are not promoted": (Product, {"total": "sum"}),
    "a block that goes on with the last one's sum": (Product, {"overwrites": FIRST_OF_TILE}),
    "a block that begins with every second tile": (Product, {"overwrites": (("k", 2), ("s", 0))}),
}


@pytest.mark.parametrize("name", PROMOTED)
def test_mistakes_in_promotions_are_refused(name: str) -> None:
    kind, changes = PROMOTED[name]
    plan = passes().plan
    assert verify(plan)
    leaves = tuple(
        replace(one, work=replace(one.work, **changes)) if isinstance(one.work, kind) else one
        for one in plan.leaves
    )
    with pytest.raises(VerifyError):
        verify(replace(plan, leaves=leaves))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("((over0) % 2) + ((over0) / 2)", "((over0) % 2)"),
        ("((over0) % 2)", "((over0) % 3)"),
        ("over0", "k_inside"),
    ],
)
def test_boxes_of_other_parts_are_refused(old: str, new: str) -> None:
    plan = passes().plan
    leaves = []
    for one in plan.leaves:
        if isinstance(one.work, Move):
            boxes = tuple(
                replace(of, corner=tuple(at.replace(old, new) for at in of.corner))
                for of in one.work.boxes
            )
            one = replace(one, work=replace(one.work, boxes=boxes))
        leaves.append(one)
    with pytest.raises(VerifyError, match="of axis 0 and not at"):
        verify(replace(plan, leaves=tuple(leaves)))


def other_function(statements: Any, old: str, new: str) -> Any:
    return tuple(replace(s, function=new) if s.function == old else s for s in statements)


MADE = {
    "the first part is not rounded": lambda s: other_function(s, "nearest_tf32", "neg"),
    "the rest is a sum": lambda s: other_function(s, "sub", "add"),
    "the parts change places": lambda s: other_function(s, "eq", "ne"),
    "the other part's number": lambda s: tuple(
        replace(one, args=(one.args[0], 2.0)) if one.function == "eq" else one for one in s
    ),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("side", [0, 1])
def test_mistakes_in_parts_are_refused(name: str, side: int) -> None:
    plan = passes().plan
    made = plan.copies[side]
    check_made(plan, made)
    (leaf,) = (one for one in made.leaves if isinstance(one.work, RowMake))
    changed = replace(leaf.work.computed, statements=MADE[name](leaf.work.computed.statements))
    work = replace(leaf.work, computed=changed)
    leaves = tuple(replace(one, work=work) if one is leaf else one for one in made.leaves)
    with pytest.raises(VerifyError):
        check_made(plan, replace(made, leaves=leaves))


def test_elements_are_read_again_by_loops_around_a_tile_alone() -> None:
    """The digits of p are of an outer loop; of rows they would be elements of one tile."""
    parts = in_parts(program())
    assert parts is not None
    product = parts.contractions[0]
    assert product.again == ("p",)
    require_each_once(parts, product)
    rows = replace(product, lhs=replace(product.lhs, index=("p", Affine("i", 1, 0, 2), "k")))
    with pytest.raises(UnsupportedProgram, match="elements are repeated"):
        require_each_once(parts, rows)
    with pytest.raises(UnsupportedProgram, match="elements are repeated"):
        require_each_once(parts, replace(product, block=0))


def test_warps_multiply_no_parts_of_tf32() -> None:
    """They split what they load: a program of parts is of warpgroups alone."""
    sizes = {"M": 16, "N": 16, "K": 1000}
    kernel = pg.fuse(lambda a, b: a @ b).compile(
        "f32[M,K]@4", "f32[K,N]@4", arch="sm_90a", sizes=sizes
    )
    assert kernel.schedule.specialised == ("in parts of tf32" in kernel.schedule_origin)
    again = pg.fuse(lambda a, b: a @ b).compile(
        "f32[M,K]@4", "f32[K,N]@4", arch="sm_90a", sizes=sizes, schedule=kernel.schedule
    )
    assert again.schedule == kernel.schedule
