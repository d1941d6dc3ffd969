"""Results of folds used in their own row, on the PTX machine: exact on integers, within a bound.

Behind the kernel, which keeps what the launch that follows reads in a workspace that starts as NaN;
or in it, where tiles cover rows.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import row_samples
from matrix import roles, small, tiled

import polygen as pg
from polygen.cli.accuracy import expected
from polygen.covering import in_blocks
from polygen.emit import following as emitted
from polygen.emit.leaf import fold_parts, table
from polygen.errors import IllegalSchedule, ScheduleError, VerifyError
from polygen.frontend.dtypes import dtype
from polygen.frontend.evaluate import evaluate
from polygen.hardware.device import device
from polygen.kernel import Kernel
from polygen.lower import folds as lowered
from polygen.poly import by_warps, mapping
from polygen.poly.tile_tree import Steps
from polygen.schedule.model import CtaTile, Epilogue, Schedule, Tile, WarpTile

PAIRS = Epilogue(through="registers")
SMALL = small(epilogue=PAIRS)
TILE = Epilogue(through="registers", rows="tile")
WHOLE = tiled((32, 96, 32), (16, 96), epilogue=TILE)
SHARED = tiled((32, 96, 32), (16, 48), epilogue=TILE)  # two warps have halves of a row
X_W = ("bf16[M,K]", "bf16[N,K]")
two_levels = pg.fuse(row_samples.two_levels)
NORM = (*X_W, "bf16[M,N]", "bf16[N]")
SIZES = {"M": 72, "N": 88, "K": 96}


@pg.fuse
def centred(x, w):
    return x @ w.T - np.max(x @ w.T, axis=1, keepdims=True)


@pg.fuse
def columns(x, w):
    v = pg.clip(x @ w.T, -3, 4)
    return (v - np.sum(v, axis=0, keepdims=True)).T


@pg.fuse
def whole(x, w):
    return x @ w.T - np.min(x @ w.T)


@pg.fuse
def masked(x, w):
    """A mask that is computed twice, where a coordinate is below another."""
    v = x @ w.T
    i, j = pg.indices(v)
    below = j <= i
    most = np.max(pg.where(below, v, -1000), axis=1, keepdims=True)
    return pg.where(below, v - most, 7)


@pg.fuse
def batches(x, w):
    v = x @ w
    rows = v - np.max(v, axis=-1, keepdims=True)
    return rows, v - np.min(v, axis=(0, 1), keepdims=True)


@pg.fuse
def rounded(x, w):
    """What is kept is what was rounded."""
    v = (x @ w.T).astype("bf16")
    return v - np.max(v, axis=1, keepdims=True)


@pg.fuse
def hits(x, w, s):
    v = x @ w.T
    best = np.argmax(v, axis=1)
    return pg.where(pg.indices(v)[1] == best[:, None], s, 0.0), best


INTEGERS = {
    "centred": (centred, X_W),
    "two_levels": (two_levels, X_W),
    "columns": (columns, X_W),
    "whole": (whole, X_W),
    "masked": (masked, X_W),
    "rounded": (rounded, X_W),
    "hits": (hits, (*X_W, "f32")),
}


KEPT = {name: INTEGERS[name] for name in ("rounded", "whole")}
KEPT["batches"] = (batches, ("bf16[B,M,K]", "bf16[B,K,N]"))


@cache
def made(function, signature: tuple[str, ...], arch: str, schedule: Schedule) -> Kernel:
    return function.compile(*signature, arch=arch, schedule=schedule)


def right(kernel: Kernel, sizes=None) -> None:
    report = kernel.check(dict(sizes or SIZES))
    assert report.ok, str(report)


@pytest.mark.parametrize("name", INTEGERS)
def test_by_warps(name):
    function, signature = INTEGERS[name]
    kernel = made(function, signature, "sm_80", SMALL)
    assert len(kernel.sums.folds) == len(kernel.program.folds)
    right(kernel)


@pytest.mark.parametrize("way", ["registers", "lines", "tma"])
def test_by_roles(way):
    right(made(two_levels, X_W, "sm_90a", roles("one", through=way)))


@pytest.mark.parametrize("name", ["rounded", "whole", "batches"])
@pytest.mark.parametrize("form", ["two", "pingpong"])
def test_kept_by_the_copy_engine(name, form):
    """Rows of the workspace are whole chunks, whatever the matrix's are: 61 and 44 elements."""
    function, signature = KEPT[name]
    kernel = made(function, signature, "sm_90a", roles(form))
    assert "box_store(&map_out_kept_" in kernel.source
    for n in (61, 44) if name != "batches" else (64, 200):  # n of `x @ w` is an operand's row
        right(kernel, {"B": 3, "M": 70, "N": n, "K": 72} if name == "batches" else
              {"M": 200, "N": n, "K": 72})  # fmt: skip


def test_two_matrices_kept_by_the_copy_engine():
    """In 16 bits and in 32, one behind the other, beside a matrix that leaves."""

    @pg.fuse
    def both(x, w, u):
        v, t = x @ w.T, (x @ u.T).astype("bf16")
        one = v - np.max(v, axis=1, keepdims=True)
        return one, t - np.min(t, axis=1, keepdims=True), v + t

    signature = ("bf16[M,K]", "bf16[80,K]", "bf16[80,K]")
    kernel = both.compile(*signature, arch="sm_90a", schedule=roles("one"))
    assert len(set(re.findall(r"box_store\(&(map_out_kept_\w+)", kernel.source))) == 2
    right(kernel, {"M": 130, "K": 64})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["columns", "masked", "hits"])
@pytest.mark.parametrize("form", ["two", "pingpong"])
def test_all_by_roles(name, form):
    function, signature = INTEGERS[name]
    right(made(function, signature, "sm_90a", roles(form, through="registers")))


def test_batches():
    signature = ("bf16[B,M,K]", "bf16[B,K,N]")
    right(made(batches, signature, "sm_80", SMALL), {**SIZES, "B": 2})


@pytest.mark.parametrize("sizes", [(1, 1, 8), (33, 1, 32), (1, 90, 16), (7, 257, 40)])
def test_ragged_sizes(sizes):
    """Rows of the workspace are longer than those of the matrix, one longer than a block."""
    kernel = made(two_levels, X_W, "sm_80", SMALL)
    right(kernel, dict(zip("MNK", sizes, strict=True)))


@pytest.mark.parametrize("n", [4, 90, 131])
def test_one_warp_to_a_row(n):
    """Words of four elements, a part of one at the end; a row of the workspace is whole words."""
    one = small(epilogue=replace(PAIRS, row_warps=1))
    kernel = made(two_levels, X_W, "sm_80", one)
    assert "4 elements for each lane" in kernel.source
    right(kernel, {"M": 9, "N": n, "K": 24})


@pytest.mark.parametrize(
    ("n", "words", "warps"),
    [(4, 1, 1), (90, 1, 1), (131, 2, 1), (300, 2, 1), (300, 2, 2), (513, 2, 2), (20, 3, 4)],
)
def test_lanes_hold_the_beginning_of_a_row(n, words, warps):
    """Words behind the end, a part of one at it, elements that nobody holds behind those."""
    one = small(epilogue=replace(PAIRS, row_warps=warps, row_words=words))
    kernel = made(two_levels, X_W, "sm_80", one)
    assert f"fold_v0_words[{words}];" in kernel.source
    right(kernel, {"M": 5, "N": n, "K": 24})


def test_the_same_bits_whatever_lanes_hold():
    function = pg.fuse(lambda x, w, r, g: pg.layer_norm((x @ w.T + r).astype("bf16"), g))
    rng, found = np.random.default_rng(3), []
    arrays = [rng.standard_normal(s, np.float32) for s in ((5, 24), (700, 24), (5, 700), (700,))]
    arrays = [one.astype(dtype("bf16").numpy) for one in arrays]
    for words in (0, 1, 2):
        one = small(epilogue=replace(PAIRS, row_warps=2, row_words=words))
        done = made(function, NORM, "sm_80", one).emulation(*arrays)
        assert done.report.ok, str(done.report)
        found.append(done.results)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize(("words", "message"), [(-1, "Nearest legal: 0"), (17, "Use 16")])
def test_no_more_words_than_registers(words, message):
    one = small(epilogue=replace(PAIRS, row_words=words))
    with pytest.raises(ScheduleError, match=message):
        two_levels.compile(*X_W, arch="sm_80", schedule=one)


def test_rows_that_are_read_alone_are_not_held():
    """One element to a lane: there is no word to hold."""
    one = small(epilogue=replace(PAIRS, row_words=4))
    turned = pg.fuse(lambda x, w: (x @ w.T - np.max(x @ w.T, axis=1, keepdims=True)).T)
    kernel = made(turned, X_W, "sm_80", one)
    assert "one element for each lane" in kernel.source and "auto hold" not in kernel.source
    right(kernel)


def test_the_order_of_words_is_told():
    one = small(epilogue=replace(PAIRS, row_warps=1))
    function = pg.fuse(lambda x, w: pg.layer_norm(x @ w.T))
    orders = [str(fold) for fold in function.compile(*X_W, arch="sm_80", schedule=one).sums.folds]
    assert any("one word of 4 elements of a row in 32, lanes" in order for order in orders), orders


def test_blocks_that_there_are_not_are_refused():
    with pytest.raises(ScheduleError, match=r"epilogue.row_warps = 3.*Use [24]"):
        two_levels.compile(*X_W, arch="sm_80", schedule=small(epilogue=replace(PAIRS, row_warps=3)))


@pytest.mark.parametrize(
    ("rows", "columns", "warps", "words"),
    [
        (64, 512, 8, 1), (2048, 512, 4, 1), (4096, 512, 2, 2), (1 << 16, 512, 1, 4),
        (1 << 16, 1024, 2, 4), (1 << 16, 4096, 8, 4), (1 << 16, 1 << 15, 8, 16),
    ],
)  # fmt: skip
def test_as_few_warps_as_fill_the_card_and_hold_a_row(rows, columns, warps, words):
    sizes = {"M": rows, "N": columns, "K": 64}
    epilogue = in_blocks(SMALL, two_levels.program(*X_W), device("sm_90a"), sizes).epilogue
    assert (epilogue.row_warps, epilogue.row_words) == (warps, words)


def test_narrow_results_have_short_forms():
    """Terms of sums where the errors are parts of them; results in any case."""
    for kind, call in (("bf16", "approximate_exp2"), ("f32", "expf")):
        function = pg.fuse(lambda x, w: pg.softmax(x @ w.T))
        for schedule in (SMALL, WHOLE):
            made = function.compile(*X_W, arch="sm_80", schedule=schedule, out_dtype=kind)
            source = made.source
            # The kernel's terms, and results made of them; tiles that cover rows hold the terms.
            times = 1 if schedule.covers_rows else 2
            assert source.count(f"= {call}(") >= times and ("expf(" in source) == (call == "expf")
    sines = pg.fuse(lambda x, w: np.sum(np.sin(x @ w.T), axis=1).astype("bf16"))
    assert "sine(" in sines.compile(*X_W, arch="sm_80", schedule=SMALL).source


def test_a_row_of_one_element_and_a_vector():
    one = pg.fuse(lambda x, w: pg.softmax(x @ w.T))
    right(one.compile("bf16[M,K]", "bf16[1,K]", arch="sm_80", schedule=SMALL), {"M": 40, "K": 32})
    function = pg.fuse(lambda x, w: x @ w - np.max(x @ w))
    right(function.compile("bf16[K]", "bf16[K,N]", arch="sm_80", schedule=SMALL), {"K": 64})


# --- tiles that cover rows -----------------------------------------------------------------------
def in_tile(form: str) -> Schedule:
    return replace(roles(form, through="registers"), epilogue=TILE)


@pg.fuse
def beside_others(x, w):
    """What elements use and what leaves, of rows, of columns and of all."""
    v = x @ w.T
    most = np.max(v, axis=1, keepdims=True)
    return v - most, np.sum(v, axis=0), most, np.max(v - most, axis=1), np.min(v, keepdims=True)


COVERED = {
    **{name: INTEGERS[name] for name in ("centred", "two_levels", "columns", "masked", "hits")},
    "beside_others": (beside_others, X_W),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("schedule", [WHOLE, SHARED], ids=["whole", "shared"])
@pytest.mark.parametrize("name", COVERED)
def test_in_tiles_by_warps(name, schedule):
    function, signature = COVERED[name]
    kernel = made(function, signature, "sm_80", schedule)
    assert len(kernel.sums.folds) == len(kernel.program.folds)
    assert "lanes that use a row's result have every term of it" in str(kernel.check(SIZES))
    right(kernel)


@pytest.mark.parametrize("way", ["tma", "lines"])
def test_in_tiles_and_out_in_panels(way):
    """Rows are known where panels are finished, and terms of the last pass are folded there."""

    @pg.fuse
    def all_ways(x, w, r):
        v = x @ w.T + r
        u = v - np.max(v, axis=1, keepdims=True)
        return u.astype("bf16"), v, np.sum(v, axis=0)

    schedule = replace(roles("two"), epilogue=Epilogue(through=way, rows="tile"))
    signature, sizes = (*X_W, "bf16[M,N]"), {"M": 200, "N": 56, "K": 96}
    kernel = all_ways.compile(*signature, arch="sm_90a", schedule=schedule, sizes=sizes)
    right(kernel, sizes)


@pytest.mark.parametrize("form", ["one", "pingpong", "two"])
def test_in_tiles_by_roles(form):
    right(made(beside_others, X_W, "sm_90a", in_tile(form)), {"M": 200, "N": 61, "K": 96})


def consumers_beside(columns: int, stages: int) -> Schedule:
    """Two consumers that have halves of a row each."""
    schedule = in_tile("two")
    tile = Tile(CtaTile(64, columns, 64), WarpTile(64, columns // 2))
    return replace(schedule, tile=tile, pipeline=replace(schedule.pipeline, stages=stages))


def test_consumers_that_share_rows():
    """The next tile's are given when those of the one before are taken."""
    kernel = made(beside_others, X_W, "sm_90a", consumers_beside(128, 3))
    right(kernel, {"M": 200, "N": 125, "K": 96})
    right(kernel, {"M": 64 * 140, "N": 8, "K": 64})


@pytest.mark.slow
def test_rows_of_512_elements():
    """Tiles wider than what the copy engine moves at once."""
    kernel = made(centred, X_W, "sm_90a", consumers_beside(512, 2))
    right(kernel, {"M": 130, "N": 509, "K": 128})


def test_several_tiles_of_persistent_blocks():
    """Registers of one tile's rows are begun again for the next."""
    kernel = made(centred, X_W, "sm_90a", in_tile("one"))
    assert kernel.workspace({"M": 1000, "N": 61, "K": 64}) == 0
    right(kernel, {"M": 64 * 140, "N": 8, "K": 64})


@pytest.mark.parametrize("sizes", [(1, 1, 8), (33, 96, 32), (1, 90, 16), (7, 95, 40)])
def test_ragged_rows_in_tiles(sizes):
    """Columns behind the row's end are no terms, whatever is folded."""
    kernel = made(two_levels, X_W, "sm_80", WHOLE)
    right(kernel, dict(zip("MNK", sizes, strict=True)))


def test_terms_behind_a_row_are_left_out(monkeypatch):
    """All terms are negative: a zero behind the row would be the largest."""
    function = pg.fuse(
        lambda x, w: (lambda v: v - np.max(v, axis=1, keepdims=True))(-abs(x @ w.T) - 1)
    )
    right(function.compile(*X_W, arch="sm_80", schedule=WHOLE), {"M": 40, "N": 83, "K": 32})


def test_batches_in_tiles():
    function = pg.fuse(lambda x, w: x @ w - np.max(x @ w, axis=-1, keepdims=True))
    kernel = function.compile("bf16[B,M,K]", "bf16[B,K,N]", arch="sm_80", schedule=WHOLE)
    right(kernel, {**SIZES, "B": 2})


def test_products_of_computed_operands_in_tiles():
    @pg.fuse
    def both(x, w, g):
        v = pg.relu(x * g) @ pg.relu(w).T
        return v - np.max(v, axis=1, keepdims=True)

    kernel = both.compile(*X_W, "bf16[K]", arch="sm_80", schedule=WHOLE)
    right(kernel)


def test_two_products_in_tiles():
    @pg.fuse
    def gated(x, u, w):
        v = pg.relu(x @ u.T) + (x @ w.T)
        return v - np.min(v, axis=1, keepdims=True)

    kernel = gated.compile(*X_W, "bf16[N,K]", arch="sm_80", schedule=WHOLE)
    right(kernel)


@pytest.mark.parametrize(("n", "rows"), [(64, "tile"), (256, "tile"), (2049, "after")])
def test_automatic_choices_by_the_length_of_rows(n, rows):
    sizes = {"M": 4096, "N": n, "K": 512}
    kernel = FLOATS["rms_norm"][0].compile(*NORM, arch="sm_90a", sizes=sizes)
    assert kernel.schedule.epilogue.rows == rows
    assert (kernel.workspace(sizes) == 0) == (rows == "tile")


# --- floats --------------------------------------------------------------------------------------
FLOATS = {
    "softmax": (pg.fuse(lambda x, w: pg.softmax(x @ w.T)), X_W),
    "rms_norm": (pg.fuse(lambda x, w, r, g: pg.rms_norm(x @ w.T + r, g)), NORM),
    "layer_norm": (pg.fuse(lambda x, w, r, g: pg.layer_norm(x @ w.T + r, g)), NORM),
    "rounded": (pg.fuse(lambda x, w: pg.softmax((x @ w.T) * 0.1).astype("bf16")), X_W),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("schedule", [SMALL, WHOLE], ids=["after", "tile"])
@pytest.mark.parametrize("name", FLOATS)
def test_norms_are_within_their_bound(name, schedule):
    """Random normal data, against float64: the bound is that of types and lengths alone."""
    function, signature = FLOATS[name]
    kernel = made(function, signature, "sm_80", schedule)
    generator, sizes = np.random.default_rng(7), {"M": 40, "N": 92, "K": 64}
    given = {
        t.name: generator.standard_normal([sizes[d] for d in t.dims]).astype(t.dtype.numpy)
        for t in kernel.program.inputs
    }
    done = kernel.emulation(*given.values())
    assert done.report.ok, str(done.report)
    (one,) = expected(kernel.program, given, sizes, kernel.passes.plan.atom.k)
    _, ratio, above = one.compare(np.asarray(done.results))
    assert not above and 0 < ratio <= 1 and np.isfinite(one.allowed).all()


@pytest.mark.parametrize("schedule", [SMALL, WHOLE], ids=["after", "tile"])
def test_infinities_and_what_is_no_number(schedule):
    """As NumPy: a NaN makes its row NaN, and so does a row of -inf alone; others are not."""
    kernel = made(*FLOATS["softmax"], "sm_80", schedule)
    kind = kernel.program.inputs[0].dtype.numpy
    x, w = np.zeros((40, 32)), np.zeros((48, 32))
    x[:, 0], w[:, 0] = 1, np.arange(48) % 7
    x[5, 0], x[8, 1], w[:, 1] = np.nan, -np.inf, 1
    done = kernel.emulation(x.astype(kind), w.astype(kind))
    assert done.report.ok, str(done.report)
    (wanted,) = evaluate(kernel.program, {"x": x, "w": w})
    np.testing.assert_allclose(done.results, wanted, rtol=3e-6)
    assert np.isnan(wanted[5]).all() and np.isnan(wanted[8]).all()
    assert np.isfinite(np.delete(wanted, (5, 8), axis=0)).all()


# --- mistakes ------------------------------------------------------------------------------------
def test_a_level_left_out_is_refused(monkeypatch):
    """The launch that follows does not run what makes the second level."""
    plain = lowered.following

    def fewer(program, entry, parts, warps):
        found = plain(program, entry, parts, warps)
        return replace(found, groups=tuple(replace(g, rows=g.rows[1:]) for g in found.groups))

    monkeypatch.setattr("polygen.lower.build.following", fewer)
    with pytest.raises(VerifyError, match="on rows"):
        centred.compile(*X_W, arch="sm_80", schedule=SMALL)


def test_rows_that_nobody_keeps_are_refused(monkeypatch):
    plain = lowered.following

    def fewer(program, entry, parts, warps):
        return replace(plain(program, entry, parts, warps), kept=())

    monkeypatch.setattr("polygen.lower.build.following", fewer)
    with pytest.raises(VerifyError, match="are read"):
        centred.compile(*X_W, arch="sm_80", schedule=SMALL)


def test_lanes_that_do_not_meet_are_refused(monkeypatch):
    plain = lowered._axis

    def fewer(table, along):
        offsets, masks = plain(table, along)
        return offsets, masks[1:]

    monkeypatch.setattr(lowered, "_axis", fewer)
    with pytest.raises(VerifyError, match=r"lanes meet by"):
        centred.compile(*X_W, arch="sm_80", schedule=WHOLE)


def test_warps_that_share_rows_and_do_not_meet_are_refused(monkeypatch):
    plain = by_warps.passed
    monkeypatch.setattr(by_warps, "passed", lambda *given: plain(*given[:-1]))
    with pytest.raises(VerifyError, match="tiles of the program run in the wrong"):
        centred.compile(*X_W, arch="sm_80", schedule=SHARED)


def test_half_of_a_row_is_found(monkeypatch):
    """Every warp takes what it has itself, twice."""
    plain = fold_parts._area
    monkeypatch.setattr(fold_parts, "_area", lambda plan, one, work, _: plain(plan, one, work, ""))
    with pytest.raises(VerifyError, match="v1_known is not of all that lanes have of a row"):
        centred.compile(*X_W, arch="sm_80", schedule=SHARED)
    monkeypatch.setitem(table._PROOFS, ("take", "threads"), ((), lambda *_: None))
    kernel = centred.compile(*X_W, arch="sm_80", schedule=SHARED)
    assert "wrong-value" in {one.code for one in kernel.check(SIZES).findings}


def test_rows_of_several_tiles_are_refused(monkeypatch):
    """Without the schedule's check, and without what is said of rows: two blocks share one."""
    monkeypatch.setattr("polygen.decide.check_rows", lambda *_: None)
    monkeypatch.setattr(mapping, "_rows_in_tiles", lambda *_: "1 = 1")
    with pytest.raises(IllegalSchedule, match="a dependence connects two thread blocks"):
        centred.compile("bf16[M,K]", "bf16[97,K]", arch="sm_80", schedule=WHOLE)


def test_results_stored_before_rows_are_folded_are_refused(monkeypatch):
    """The passes come last in the tree that runs: the order of the program is broken."""
    plain = by_warps.passed

    def late(part, *rest):
        found = plain(part, *rest)
        *first, last = found.schedule.children
        return replace(found, schedule=Steps((last, *first)))

    monkeypatch.setattr(by_warps, "passed", late)
    with pytest.raises((VerifyError, IllegalSchedule)):
        centred.compile(*X_W, arch="sm_80", schedule=WHOLE)


def test_results_before_all_warps_have_met_are_found(monkeypatch):
    """Derived, proved, and left out of the text: the leaf of the barrier is empty."""
    plain = emitted.render

    def early(plan, one, depth):
        return [line.replace("__syncthreads();", "") for line in plain(plan, one, depth)]

    monkeypatch.setattr(emitted, "render", early)
    kernel = two_levels.compile(*X_W, arch="sm_80", schedule=SMALL)
    assert "race-write-read" in {one.code for one in kernel.check(SIZES).findings}
