"""Folds on the PTX machine: exact on integers, NumPy's NaN, ties and infinities, no race, no leak.

Both launches run, the second on what the first has left; the workspace between them starts as NaN,
so that a part that nobody writes shows in the result.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from matrix import roles, small, tiled

import polygen as pg
from polygen.check import emulate, launch_of
from polygen.emit import fold_terms
from polygen.emit import folds as emitted
from polygen.emit import following as launched
from polygen.errors import VerifyError
from polygen.frontend import monoids
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.lower import folds as lowered
from polygen.machine import Launch, run
from polygen.schedule.model import Epilogue, Schedule

PAIRS = Epilogue(through="registers")
SM_80 = {
    "small": small(epilogue=PAIRS),
    "wide": tiled((32, 64, 32), (32, 32), epilogue=PAIRS),
    "one_warp": tiled((16, 32, 32), (16, 32), epilogue=PAIRS),
}
SM_90 = {
    "one": roles("one", through="registers"),
    "pingpong": roles("pingpong", through="registers"),
    "three_in_turns": roles("three_in_turns", through="registers"),
    "two": roles("two", through="registers"),
    "cluster": roles("one", cluster=(2, 1), through="registers"),
    "wide_cluster": roles("one", cluster=(1, 2), through="registers"),
    "shared_sums": roles("one", cluster=(1, 1, 2), through="registers"),
}


@pg.fuse
def rows(x, w):
    v = x @ w.T
    return v, np.sum(v, axis=1), np.max(v, axis=1, keepdims=True)


@pg.fuse
def columns(x, w, b):
    v = pg.relu(x @ w.T + b)
    return np.min(v, axis=0), np.sum(v, axis=0, keepdims=True)


@pg.fuse
def whole(x, w):
    v = x @ w.T
    return np.max(abs(v), keepdims=True), np.min(v), v


@pg.fuse
def indices(x, w):
    v = x @ w.T
    return np.argmax(v, axis=1), np.argmin(v, axis=0)


@pg.fuse
def batches(x, w):
    v = x @ w
    return np.sum(v, axis=-1), np.max(v, axis=(0, 1)), np.min(v, axis=-2), v


@pg.fuse
def exponentials(x, w):
    return pg.logsumexp(x @ w.T, axis=1), pg.logsumexp(x @ w.T, axis=0)


@pg.fuse
def finished(x, w):
    v = x @ w.T
    return (
        1 / (np.mean(v * v, axis=1) + 1),
        np.mean(v, axis=1).astype("bf16"),
        np.any(v > 30, axis=0).astype("f32"),
    )


@pg.fuse
def losses(x, w, t):
    """Numbers alone: a squared error, and the mean log-likelihood of truth values."""
    v = x @ w.T
    likely = np.maximum(v, 0) - v * t + np.log1p(np.exp(-abs(v)))
    return np.sqrt(((v - t) ** 2).sum()), np.mean(likely), np.sum(v).astype("bf16")


@pg.fuse
def of_computed(x, w, g):
    v = (x * g) @ pg.relu(w).T
    return v, np.sum(v, axis=1), np.argmax(v, axis=0)


@pg.fuse
def beside_its_terms(x, w):
    """A value that is an operand, and folded beside the product."""
    v = pg.relu(x)
    return np.max(v @ w.T + v, axis=1), v @ w.T


X_W = ("bf16[M,K]", "bf16[N,K]")
STACKS = ("bf16[B,M,K]", "bf16[B,K,N]")
FUNCTIONS = {
    "rows": (rows, X_W),
    "columns": (columns, (*X_W, "bf16[N]")),
    "whole": (whole, X_W),
    "indices": (indices, X_W),
    "batches": (batches, STACKS),
    "finished": (finished, X_W),
    "losses": (losses, (*X_W, "f32[M,N]")),
}
SIZES = {"M": 72, "N": 88, "K": 96}


@cache
def made(function, signature: tuple[str, ...], arch: str, schedule: Schedule) -> Kernel:
    return function.compile(*signature, arch=arch, schedule=schedule)


def right(kernel: Kernel, sizes=None) -> None:
    report = kernel.check(dict(sizes or {}))
    assert report.ok, str(report)
    claims = " ".join(map(str, report.proofs))
    assert "every term is in one part, and parts are written once" in claims
    assert "every part is read once, by a launch that begins when all are written" in claims


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("schedule", ["small", "one_warp"])
def test_by_warps(name, schedule):
    function, signature = FUNCTIONS[name]
    kernel = made(function, signature, "sm_80", SM_80[schedule])
    sizes = {**SIZES, "B": 2} if name == "batches" else SIZES
    right(kernel, sizes)
    assert kernel.deterministic and len(kernel.sums.folds) == len(kernel.program.folds)


@pytest.mark.parametrize("name", ["rows", "columns", "whole", "indices"])
@pytest.mark.parametrize("schedule", ["one", "pingpong"])
def test_by_roles(name, schedule):
    function, signature = FUNCTIONS[name]
    right(made(function, signature, "sm_90a", SM_90[schedule]))


@pytest.mark.parametrize("schedule", ["two", "cluster", "wide_cluster", "shared_sums"])
def test_parts_of_warpgroups_and_clusters(schedule):
    @pg.fuse
    def both(x, w):
        return np.sum(x @ w.T, axis=0), np.sum(x @ w.T, axis=1), np.max(x @ w.T, keepdims=True)

    right(both.compile(*X_W, arch="sm_90a", schedule=SM_90[schedule]))


@pg.fuse
def beside(x, w, r):
    v = x @ w.T + r
    return v, np.sum(v, axis=1, keepdims=True), np.max(abs(v), keepdims=True), np.argmin(v, axis=0)


PANELS = {
    "one": roles("one"),
    "pingpong": roles("pingpong", columns=32),
    "three_in_turns": roles("three_in_turns", 96, columns=32),
    "two": roles("two"),
    "shared_sums": roles("one", cluster=(1, 1, 2)),
    "cluster": roles("one", cluster=(1, 2)),
    "lines": roles("one", through="lines"),
}


@pytest.mark.parametrize("schedule", PANELS)
def test_terms_of_panels(schedule):
    """The matrix leaves in panels; terms are folded before they are rounded to its type."""
    right(made(beside, (*X_W, "bf16[M,N]"), "sm_90a", PANELS[schedule]))


FILLED = replace(SM_90["one"], roles=replace(SM_90["one"].roles, producer_registers=96))


@pytest.mark.parametrize(("arch", "schedule"), [("sm_80", SM_80["small"]), ("sm_90a", FILLED)])
def test_products_of_computed_operands(arch, schedule):
    right(made(of_computed, (*X_W, "bf16[K]"), arch, schedule), SIZES)


def test_values_that_are_multiplied_and_folded():
    square = ("bf16[M,K]", "bf16[K,K]")
    right(made(beside_its_terms, square, "sm_80", SM_80["small"]), {"M": 40, "K": 64})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batches", "finished", "losses"])
def test_batches_and_what_follows_by_roles(name):
    function, signature = FUNCTIONS[name]
    right(made(function, signature, "sm_90a", SM_90["one"]))


@pytest.mark.parametrize(
    "sizes", [(1, 1, 8), (1, 88, 32), (33, 1, 32), (32, 32, 32), (7, 31, 40), (65, 97, 8)]
)
def test_ragged_sizes(sizes):
    kernel = pg.fuse(lambda x, w: (np.sum(x @ w.T, axis=0), np.argmax(x @ w.T, axis=1))).compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=SM_80["small"]
    )
    right(kernel, dict(zip("MNK", sizes, strict=True)))


@cache
def with_edges(kind: str) -> tuple[Kernel, ...]:
    function = pg.fuse(
        lambda x, w, r, c: (
            np.argmin(c - 2 * (x @ w.T), axis=1), np.max(x @ w.T + r, axis=1), np.sum(r + x @ w.T),
        )
    )  # fmt: skip
    signature = ("bf16[M,K]", "bf16[N,K]", f"{kind}[M,N]", "f32[N]")
    ways = ("sm_80", SM_80["wide"]), ("sm_90a", SM_90["one"])
    return tuple(made(function, signature, *way) for way in ways)


@pytest.mark.parametrize(("m", "n"), [(128, 64), (127, 64), (128, 63), (120, 65)])
@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_tiles_inside_and_at_edges(m, n, kind):
    """Terms of a tile that lies inside have no conditions, those of others have."""
    for kernel in with_edges(kind):
        assert not any(one.op == "finish" for one in kernel.passes.plan.leaves)
        right(kernel, {"M": m, "N": n, "K": 40})


def test_a_vector_has_one_row():
    function = pg.fuse(lambda x, w: np.sum(x @ w, axis=0, keepdims=True))
    right(function.compile("bf16[K]", "bf16[K,N]", arch="sm_80", schedule=SM_80["small"]))


def test_integers():
    function = pg.fuse(lambda x, w: (np.sum(x @ w.T, axis=1), np.argmax(x @ w.T, axis=1)))
    right(function.compile("s8[M,K]", "s8[N,K]", arch="sm_80", schedule=SM_80["small"]))


def special(kernel: Kernel, x: np.ndarray, w: np.ndarray) -> None:
    """The results are NumPy's, where terms are infinite or no numbers, too."""
    x, w = (one.astype(kernel.program.inputs[0].dtype.numpy) for one in (x, w))
    done = kernel.emulation(x, w)
    assert done.report.ok, str(done.report)
    found = done.results if isinstance(done.results, tuple) else (done.results,)
    wanted = evaluate(kernel.program, {"x": x, "w": w})
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=3e-6)


def odd_terms() -> tuple[np.ndarray, np.ndarray]:
    """Operands whose product has rows of ties, NaN, both infinities, and all of -inf."""
    generator = np.random.default_rng(3)
    x, w = np.zeros((40, 32)), np.zeros((48, 32))
    x[:, 0], w[:, 0] = 1, generator.integers(-9, 9, 48)
    x[:, 1], w[:, 1] = generator.integers(0, 3, 40), generator.integers(-30, 30, 48)
    x[3] = x[17] = 0  # ties everywhere
    x[5, 0], x[21, 1] = np.nan, np.inf
    x[8, 2], w[:, 2] = -np.inf, 1  # all of a row
    x[9, 3], w[40, 3] = np.inf, 1
    return x, w


@pytest.mark.parametrize(
    ("arch", "schedule"), [("sm_80", SM_80["small"]), ("sm_90a", SM_90["one"])]
)
def test_ties_and_what_is_no_number(arch, schedule):
    @pg.fuse
    def largest(x, w):
        v = x @ w.T
        return np.max(v, axis=1), np.min(v, axis=0), np.argmax(v, axis=1), np.argmin(v, axis=0)

    special(made(largest, X_W, arch, schedule), *odd_terms())


@pytest.mark.parametrize(
    ("arch", "schedule"), [("sm_80", SM_80["small"]), ("sm_90a", SM_90["one"])]
)
def test_exponentials_of_anything(arch, schedule):
    special(made(exponentials, X_W, arch, schedule), *odd_terms())


def terms_of_whole_tiles() -> tuple[np.ndarray, np.ndarray]:
    """Rows with ties, NaN, infinities, nothing but one of these, and both zeros, of whole tiles."""
    generator = np.random.default_rng(5)
    x, w = np.zeros((128, 32)), np.zeros((64, 32))
    x[:, 0], w[:, 0] = 1, generator.integers(-4, 4, 64)
    x[::3, 1], w[:, 1] = 1, generator.integers(-30, 30, 64)
    x[4] = 0  # ties everywhere
    x[5] = 0
    x[5, 0], w[::2, 0] = 0, abs(w[::2, 0])
    for row, (column, value) in enumerate(((17, np.nan), (40, np.inf), (63, -np.inf)), 9):
        x[row, row], w[column, row] = 1, value  # one term of the row
        x[row + 32, row + 8], w[:, row + 8] = value, 1  # all of them
    x[100, 9] = x[100, 10] = 1  # a NaN behind which infinities are
    w[10, 26], w[50, 26], x[101, 26] = np.nan, np.nan, 1  # the first of two
    return x, w


@pytest.mark.parametrize(("arch", "schedule"), [("sm_80", SM_80["wide"]), ("sm_90a", SM_90["one"])])
def test_terms_of_a_row_at_once(arch, schedule):
    """Where tiles are inside: the first of ties and of NaN, exponentials beside infinities."""

    @pg.fuse
    def at_once(x, w):
        v = x @ w.T
        return np.argmax(v, axis=1), np.argmin(v, axis=1), pg.logsumexp(v, axis=1)

    kernel = made(at_once, X_W, arch, schedule)
    for name in ("argmax", "argmin", "logsumexp"):
        assert f"combine_all_{name}<" in kernel.source
    special(kernel, *terms_of_whole_tiles())


def first_of_each(x, w, r):
    v = x @ w.T + r
    return np.argmin(v, axis=1), np.argmax(v, axis=1), pg.logsumexp(v, axis=1)


def first_ones(kernel: Kernel) -> None:
    """The results are NumPy's, of terms that a matrix beside the product says one by one."""
    generator = np.random.default_rng(7)
    r = generator.integers(-3, 4, (128, 64)).astype("f4")  # ties, in groups of terms and between
    r[r == 3] *= generator.integers(-30, 31, (r == 3).sum())
    r[32:64][r[32:64] == 2], r[32:64][r[32:64] == -2] = -0.0, 0.0
    r[32:64] = abs(r[32:64])
    for row in range(64, 128):  # one, two and more of a kind, at all places of a group
        kind = (np.nan, np.inf, -np.inf, -50.0)[row % 4]
        r[row, generator.permutation(64)[: 1 + row % 5]] = kind
    r[126], r[127] = np.inf, -np.inf
    kind = kernel.program.inputs[0].dtype.numpy
    done = kernel.emulation(np.zeros((128, 32), kind), np.zeros((64, 32), kind), r)
    assert done.report.ok, str(done.report)
    least, largest, total = done.results
    np.testing.assert_array_equal(least, np.argmin(r, axis=1))
    np.testing.assert_array_equal(largest, np.argmax(r, axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = monoids.MONOIDS["logsumexp"].reference(r.astype(float), (1,))
    np.testing.assert_allclose(total, wanted, rtol=3e-6)


@pytest.mark.parametrize(("arch", "schedule"), [("sm_80", SM_80["wide"]), ("sm_90a", SM_90["one"])])
def test_the_first_of_terms_at_once(arch, schedule):
    """In groups of terms and between them; zeros of both signs are equal."""
    kernel = made(pg.fuse(first_of_each), (*X_W, "f32[M,N]"), arch, schedule)
    assert ", 4>(" in kernel.source  # groups of four
    first_ones(kernel)


def test_the_same_bits_whatever_the_order_of_blocks():
    """Sums that round: with few persistent blocks or many, every launch gives the same bits."""
    kernel = made(rows, X_W, "sm_90a", SM_90["one"])
    generator = np.random.default_rng(4)
    kind = kernel.program.inputs[0].dtype.numpy
    given = tuple(generator.standard_normal(shape).astype(kind) for shape in ((200, 64), (136, 64)))
    source, ptx = kernel.passes.source, kernel.ptx
    bits = set()
    for blocks in (1, 3, 12):
        launched = replace(source, launch=replace(source.launch, persistent=blocks))
        done = emulate(kernel.program, launched, ptx, given)
        assert done.report.ok
        bits.add(b"".join(one.tobytes() for one in done.results))
    assert len(bits) == 1


# --- mistakes ------------------------------------------------------------------------------------
def broken(function=rows, signature=X_W) -> Kernel:
    return function.compile(*signature, arch="sm_80", schedule=SM_80["small"])


def refused(message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        broken()


def test_a_part_too_few_is_refused(monkeypatch):
    """The launch that follows combines fewer parts than warps write."""
    plain = lowered._warps

    def fewer(given, dim):
        count, text = plain(given, dim)
        return replace(count, times=count.times - 1), text

    monkeypatch.setattr(lowered, "_warps", fewer)
    refused("are not those from 0 to")


def test_parts_of_another_size_are_refused(monkeypatch):
    """One part for a tile of twice the size: the last warps' are dropped."""
    plain = lowered._warps

    def larger(given, dim):
        count, text = plain(given, dim)
        return replace(count, step=2 * count.step), text

    monkeypatch.setattr(lowered, "_warps", larger)
    refused("part")


def test_two_warps_with_one_part_are_refused(monkeypatch):
    plain = lowered._warps
    monkeypatch.setattr(
        lowered, "_warps", lambda given, dim: (plain(given, dim)[0], f"b_{dim} + w_{dim}")
    )
    refused("are not those from 0 to")


@pytest.mark.parametrize("change", [lambda masks: masks[1:], lambda masks: (*masks, 4)])
def test_lanes_that_do_not_meet_or_meet_others_are_refused(monkeypatch, change):
    plain = lowered._axis

    def changed(table, along):
        offsets, masks = plain(table, along)
        return offsets, change(masks)

    monkeypatch.setattr(lowered, "_axis", changed)
    refused("lanes meet by")


def test_a_fold_that_nobody_combines_is_refused(monkeypatch):
    plain = lowered.following

    def fewer(program, entry, parts, warps):
        found = plain(program, entry, parts, warps)
        first = replace(found.groups[0], folds=found.groups[0].folds[1:])
        return replace(found, groups=(first, *found.groups[1:]))

    monkeypatch.setattr("polygen.lower.build.following", fewer)
    refused("parts of .* are made, and of .* combined")


def test_a_tie_broken_the_wrong_way_is_found(monkeypatch):
    """The last of equal ones wins, in the kernel alone."""
    plain = monoids.MONOIDS["argmax"]

    def last(a, i, b, j):
        where = pg.where
        return where(b > a, b, a), where(b > a, j, where(b == a, pg.maximum(i, j), i))

    changed = {**monoids.MONOIDS, "argmax": replace(plain, combine=last)}
    monkeypatch.setattr(launched, "MONOIDS", changed)
    kernel = broken(pg.fuse(lambda x, w: np.argmax(x @ w.T, axis=1)))
    report = kernel.check(SIZES)
    assert [one.code for one in report.findings] == ["wrong-value"]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("kept[j] == extreme", "kept[j] != extreme"),  # another of the group
        ("better ? terms0[i + j] : kept[j]", "kept[j]"),  # the values of the first group
        ("best < extreme", "best <= extreme"),  # the last of equal groups
        ("j = GROUP - 2; j >= 0; --j", "j = 0; j < GROUP - 1; ++j"),  # the last of equal terms
        ("terms0[i] != terms0[i]", "terms0[i] > 0"),  # a NaN that is not looked for
    ],
)
def test_a_group_whose_term_is_not_the_first_is_found(monkeypatch, text, other):
    """Of terms at once, in tiles that are inside: the text that looks for an index, changed."""
    plain = fold_terms.function

    def changed(name, parameters, real):
        lines, helpers = plain(name, parameters, real)
        if name == "argmin":
            assert sum(text in line for line in lines) == 1
            lines = [line.replace(text, other) for line in lines]
        return lines, helpers

    monkeypatch.setattr(launched, "function_of_all", changed)
    kernel = made(pg.fuse(first_of_each), (*X_W, "f32[M,N]"), "sm_80", SM_80["wide"])
    with pytest.raises(AssertionError, match="not equal"):
        first_ones(kernel)


def test_a_fold_that_begins_with_zero_is_found(monkeypatch):
    """The largest of negative terms, of tiles that end inside the matrix."""
    plain = monoids.MONOIDS["max"]
    changed = {**monoids.MONOIDS, "max": replace(plain, identity=(0.0,))}
    monkeypatch.setattr(emitted, "MONOIDS", changed)
    kernel = broken(pg.fuse(lambda x, w: np.max(-abs(x @ w.T) - 1, axis=1)))
    assert "wrong-value" in {one.code for one in kernel.check(SIZES).findings}


def test_results_before_their_parts_are_found():
    """The launch that follows, run first: parts are still NaN."""
    kernel = broken()
    source = kernel.passes.source
    assert source.following is not None
    kind = kernel.program.inputs[0].dtype.numpy
    given = (np.ones((32, 32)).astype(kind), np.ones((32, 32)).astype(kind))
    following, launch = source.following, launch_of(kernel.program, source, given)
    grid, block = (following.grid({"M": 32}), 1, 1), (following.threads, 1, 1)
    early = Launch(grid, block, 0, launch.arguments, following.entry)
    names = [one.tensor for one in source.arguments if one.kind in ("pointer", "workspace")]
    left = dict(zip(names, run(kernel.ptx, early).arrays, strict=True))
    assert np.isnan(left["y1"]).all() and np.isnan(left["y2"]).all()
