"""Layers in front of a chain on the PTX machine: exact on small integers, and broken ones.

Operands are few and small enough that every sum and what is made of it is a whole number that the
operands' type holds: what the kernel gives is what the program says, to the bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from chain_samples import by_warps
from generated import edited
from machine.conftest import ptx_of

import polygen as pg
from polygen.emulated import emulate
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.schedule.model import Schedule

KINDS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "tf32": np.float32}


def layers(count: int) -> Callable:
    """A function of rows and so many matrices, with relu between the products."""
    names = [f"w{n}" for n in range(count)]
    rows = "x"
    for name in names[:-1]:
        rows = f"pg.relu({rows} @ {name})"
    made: dict = {"pg": pg}
    exec(f"def layers({', '.join(['x', *names])}): return {rows} @ {names[-1]}", made)
    return made["layers"]


def widths(kind: str, *given: int) -> tuple[str, ...]:
    """A signature: rows of the first width, and a matrix from each to the next."""
    pairs = itertools.pairwise(given)
    return (f"{kind}[M,{given[0]}]", *(f"{kind}[{one},{other}]" for one, other in pairs))


def arrays_for(signature: tuple[str, ...], sizes: dict[str, int], share: float) -> list[np.ndarray]:
    """-1, 0 and 1, so many of them not 0; vectors of any of the three."""
    rng, found = np.random.default_rng(len(signature)), []
    for one in signature:
        kind, dims = one.rstrip("]").split("[")
        shape = [sizes[d] if d in sizes else int(d) for d in dims.split(",")]
        numbers = rng.integers(-1, 2, shape)
        if len(shape) > 1:
            numbers = numbers * (rng.random(shape) < share)
        found.append(numbers.astype(KINDS[kind]))
    return found


def same(kernel: Kernel, arrays: list[np.ndarray]) -> None:
    """The kernel's results are the program's; no findings."""
    done = kernel.emulation(*arrays)
    assert done.report.findings == ()
    found = done.results if isinstance(done.results, tuple) else (done.results,)
    named = dict(zip((t.name for t in kernel.program.inputs), arrays, strict=True))
    for one, wanted in zip(found, evaluate(kernel.program, named), strict=True):
        assert np.array_equal(one.astype(np.float64), wanted)
        assert wanted.any() and np.abs(wanted).max() <= 256  # of 8 bits, which bf16 holds


def exact(
    function: Callable,
    signature: tuple[str, ...],
    *,
    share: float = 0.3,
    arch: str = "sm_80",
    schedule: Schedule | str = "auto",
    **sizes: int,
) -> None:
    """A kernel of warps gives what its program says."""
    kernel = pg.fuse(function).compile(*signature, arch=arch, schedule=schedule)
    assert kernel.passes.plan.chained.by_warps
    same(kernel, arrays_for(signature, sizes, share))


@pytest.mark.parametrize(
    ("kind", "given", "rows"),
    [
        ("bf16", (16, 16, 32, 16), 75),
        ("bf16", (64, 64, 64, 64, 64), 1),
        ("f16", (24, 40, 72, 8, 3), 131),
        ("f16", (16, 32, 16, 48, 16, 32), 40),
        ("bf16", (32, 16, 24, 16, 24, 16, 16), 129),
    ],
    ids=["three", "four", "no multiples", "five", "six"],
)
def test_layers_of_any_number_and_width(kind: str, given: tuple[int, ...], rows: int) -> None:
    exact(layers(len(given) - 1), widths(kind, *given), M=rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "share"),
    [((128, 128, 128, 128), 0.1), ((16,) * 9, 0.4), ((48, 128, 128, 96, 5), 0.1)],
)
def test_wide_and_many_layers(given: tuple[int, ...], share: float) -> None:
    exact(layers(len(given) - 1), widths("bf16", *given), share=share, M=140)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "given", "share"),
    [("sm_80", (64, 128, 128, 128, 128, 128, 128, 128), 0.06), ("sm_86", (128,) * 8, 0.06)],
)
def test_layers_that_share_a_ring(arch: str, given: tuple[int, ...], share: float) -> None:
    """Shared memory does not hold all of them at once: a tile comes where another one was."""
    function, signature = layers(len(given) - 1), widths("bf16", *given)
    plan = pg.fuse(function).compile(*signature, arch=arch).passes.plan
    assert 2 in {one.slots for one in plan.buffers if one.name.startswith("ring_l")}
    exact(function, signature, arch=arch, share=share, M=70)


def test_rows_of_odd_widths_are_copied_by_elements() -> None:
    exact(layers(3), widths("bf16", 27, 21, 33, 5), M=70)


def residuals(x, a, b, c, d):
    h = pg.relu(x @ a)
    g = pg.relu(h @ b) + h
    return (pg.relu(g @ c) + g - h) @ d


def scaled(x, a, b, c):
    """What is read again is what is multiplied, rounded; and results are folded."""
    h = pg.relu(x @ a).astype("bf16")
    y = (pg.relu(h @ b) * h) @ c
    return y, y.sum(axis=1)


def gates(x, a, b, c, d):
    h = pg.relu(x @ a)
    return (pg.relu(h @ b) * (h @ c) + h) @ d


@pytest.mark.parametrize(
    ("kind", "function", "given"),
    [
        ("bf16", residuals, (16, 32, 32, 32, 16)),
        ("f16", residuals, (27, 40, 40, 40, 5)),
        ("tf32", residuals, (16, 32, 32, 32, 16)),
        ("bf16", residuals, (16, 64, 64, 64, 24)),
        ("bf16", scaled, (32, 48, 48, 24)),
        ("bf16", gates, (16, 32, 32, 32, 32)),
        ("tf32", gates, (16, 24, 24, 24, 8)),
    ],
)
def test_what_layers_make_is_read_again(kind: str, function, given: tuple[int, ...]) -> None:
    first, inner, *_, last = given
    square = (f"{kind}[{inner},{inner}]",) * (len(given) - 3)
    ends = (f"{kind}[M,{first}]", f"{kind}[{first},{inner}]", f"{kind}[{inner},{last}]")
    exact(function, (*ends[:2], *square, ends[2]), share=3 / inner, M=83)


def plain(x, a, b, c):
    return x @ a @ b @ c


def sums_again(x, a, b, c):
    """Sums that the next product multiplies themselves, and that are read again."""
    h = x @ a
    return pg.relu(h @ b + h) @ c


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("function", [plain, sums_again])
@pytest.mark.parametrize("kind", ["bf16", "tf32", "f32"])
def test_sums_are_multiplied_themselves(kind: str, function, arch: str) -> None:
    exact(function, widths(kind, 16, 32, 32, 8), share=0.05, arch=arch, M=70)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_sums_that_are_read_again_are_not_rounded(arch: str) -> None:
    """Whole numbers of more bits than bf16 has, less what they are rounded to."""

    def function(x, a, b, c, r):
        h = x @ a
        return pg.relu(h @ b + (h - r)) @ c

    signature = (*widths("bf16", 16, 32, 32, 32), "bf16[M,32]")
    kernel = pg.fuse(function).compile(*signature, arch=arch, single=True)
    rng, bf16 = np.random.default_rng(0), ml_dtypes.bfloat16
    x, a = (rng.integers(0, 16, shape).astype(bf16) for shape in ((40, 16), (16, 32)))
    sums = x.astype(np.float64) @ a.astype(np.float64)
    rounded = sums.astype(bf16)
    found = kernel.emulate(x, a, np.zeros((32, 32), bf16), np.eye(32).astype(bf16), rounded)
    wanted = np.maximum(sums - rounded.astype(np.float64), 0)
    assert np.array_equal(found.astype(np.float64), wanted) and wanted.max() >= 2


def test_a_wide_residual() -> None:
    def function(x, a, b, c):
        h = pg.relu(x @ a)
        return (pg.relu(h @ b) + h) @ c

    exact(function, widths("bf16", 32, 128, 128, 16), share=0.05, M=70)


def test_residuals_beside_a_ring_of_layers() -> None:
    def function(x, a, b, c, d, e):
        h = pg.relu(x @ a)
        for one in (b, c, d):
            h = pg.relu(h @ one) + h
        return h @ e

    exact(function, widths("bf16", 64, 64, 64, 64, 64, 16), share=0.05, arch="sm_86", M=70)


def biased(x, a, b, c, e, f, g):
    return pg.relu(pg.relu(x @ a + e) @ b - f) @ c * 2.0 + g


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_biases_and_matrices_between_layers(arch: str) -> None:
    three = ("bf16[M,32]", "bf16[32,40]", "bf16[40,24]", "bf16[24,16]")
    beside = ("f32[40]", "bf16[M,24]", "f32[16]")
    exact(biased, (*three, *beside), arch=arch, share=0.2, M=70)


def test_matrices_of_their_own_in_every_batch() -> None:
    def function(x, a, b, c):
        return pg.relu(pg.relu(x @ a) @ b.mT) @ c

    signature = ("bf16[B,M,32]", "bf16[B,32,32]", "bf16[48,32]", "bf16[B,48,16]")
    exact(function, signature, B=2, M=70)


@pytest.mark.parametrize("keys", [3, 200])
def test_the_last_inner_width_is_any_number(keys: int) -> None:
    def function(x, a, b, c):
        return pg.relu(pg.relu(x @ a) @ b.T) @ c

    exact(function, ("f16[M,32]", "f16[32,40]", "f16[N,40]", "f16[N,24]"), M=70, N=keys)


def gated(x, g, u, d):
    return (pg.relu(x @ g) * (x @ u)) @ d


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_two_products_of_the_same_rows(arch: str) -> None:
    signature = ("bf16[M,32]", "bf16[32,80]", "bf16[32,80]", "bf16[80,48]")
    exact(gated, signature, arch=arch, share=0.2, M=75)


def test_the_last_inner_width_in_parts() -> None:
    """Of few rows every part goes through the layers again; parts are added up behind."""
    function, signature = layers(3), widths("f16", 24, 40, 200, 24)
    exact(function, signature, schedule=by_warps(2, 16, 32, columns=32, part=64), M=40)


def test_gates_in_front_and_at_the_end() -> None:
    def function(x, g, u, d, p, q, e, b):
        h = pg.relu((pg.relu(x @ g + b) * (x @ u)) @ d)
        return (pg.relu(h @ p) * (h @ q)) @ e

    signature = (
        "f16[M,16]", "f16[16,24]", "f16[16,24]", "f16[24,32]", "f16[32,40]", "f16[32,40]",
        "f16[40,8]", "f32[24]",
    )  # fmt: skip
    exact(function, signature, share=0.3, M=70)


@pytest.mark.parametrize(
    "schedule",
    [
        by_warps(1, 64, 16, fragments=1, lookahead=0, columns=32),
        by_warps(3, 32, 48, stages=3, distance=2, order=("mma", "copy"), columns=32),
    ],
    ids=["one warp", "products first"],
)
def test_schedules_that_are_given(schedule: Schedule) -> None:
    exact(layers(3), widths("bf16", 24, 40, 72, 24), schedule=schedule, M=130)


def test_projected_queries_of_attention() -> None:
    """A softmax between the last two products, over rows that a layer has made."""

    def function(x, w, k, v):
        return pg.softmax((x @ w) @ k.mT * 0.25) @ v

    rng = np.random.default_rng(3)
    shapes = ((1, 70, 32), (2, 32, 64), (2, 90, 64), (2, 90, 64))
    arrays = [(rng.standard_normal(one) / 4).astype(KINDS["bf16"]) for one in shapes]
    kernel = pg.fuse(function).compile(
        "bf16[1,S,32]", "bf16[H,32,64]", "bf16[H,T,64]", "bf16[H,T,64]", arch="sm_80"
    )
    done = kernel.emulation(*arrays)
    named = dict(zip((t.name for t in kernel.program.inputs), arrays, strict=True))
    (wanted,) = evaluate(kernel.program, named)
    assert done.report.findings == ()
    # Weights are rounded to bf16 before they are divided by their sum, and the result is.
    assert np.abs(done.results.astype(np.float64) - wanted).max() <= 2**-7 * np.abs(wanted).max()


# --- mistakes forced into the text ----------------------------------------------------------------
WRONG = "wrong values"
RACES = {"race-read-write", "race-write-write", "race-write-read", "in-flight-access"}
UNSEEN = {"in-flight-access", "uninitialised-shared-read", "race-write-read"}
BROKEN = {
    "a layer is left out": ([("      convert_l1(0);\n", "")], WRONG),
    "another layer's rows": ([("weights_l0[m][s], fragment_l1", "weights_l1[m][s], fragment_l1")],
                             WRONG),
    "columns behind the last one": ([("v2_out = 0.0f; ", "v2_out = 1.0f; ")], "nothing"),
    "no barrier": ([("    bar_copy_a(t);\n", "")], RACES),
    "no wait for copies": ([("    wait_copy_a(t);\n", "")], UNSEEN),
    "a step of another": ([("load_l1(0, 1);", "load_l1(0, 0);")], WRONG),
}  # fmt: skip


def _changed(edits: list) -> tuple[set[str], bool]:
    """The findings of a changed kernel, and whether its values are right."""
    signature = widths("bf16", 16, 24, 32, 32, 16)
    kernel = pg.fuse(layers(4)).compile(*signature, arch="sm_80")
    source = kernel.passes.source
    changed = replace(source, text=edited(source.text, edits))
    arrays = arrays_for(signature, {"M": 150}, 0.4)
    done = emulate(kernel.program, changed, ptx_of(changed), arrays)
    named = dict(zip((t.name for t in kernel.program.inputs), arrays, strict=True))
    (wanted,) = evaluate(kernel.program, named)
    return {one.code for one in done.report.findings}, np.array_equal(
        done.results.astype(np.float64), wanted
    )


def test_the_kernel_itself_is_right() -> None:
    assert _changed([("#pragma", "#pragma")]) == (set(), True)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", BROKEN)
def test_mistakes_are_found(name: str) -> None:
    edits, shows = BROKEN[name]
    found, right = _changed(edits)
    if shows == "nothing":  # columns that tiles have for the instruction's sake meet rows of zeros
        assert (found, right) == (set(), True)
    elif shows == WRONG:
        assert not right
    else:
        assert found & shows, found
