"""Kernels for sm_75 and sm_70: all that warps do, compiled, and run on the PTX machine."""

import re
from dataclasses import replace

import numpy as np
import pytest
from older_targets import (
    PROGRAMS,
    TURING,
    VOLTA,
    by_warps,
    compilable,
    compiler_of,
    runnable,
)

import polygen as pg
from polygen.errors import ScheduleError, ToolchainMissing, UnsupportedProgram
from polygen.hardware.device import device
from polygen.runtime import nvrtc_library
from polygen.schedule.model import CtaTile, Pipeline, Schedule, Tile, WarpTile

BY_NAME = {one.name: one for one in PROGRAMS}
# What is unlike the others: storage orders, folds, groups, what is computed, other sums.
QUICK = {
    "nn_f16", "tt_f16", "aligned_2_nt", "folded_rows", "scaled_weights", "f16_sums_tn", "bytes",
}  # fmt: skip
SAMPLE = [pytest.mark.slow, pytest.mark.sample(8)]
NAMES = [
    pytest.param(arch, one.name, marks=[] if one.name in QUICK else SAMPLE)
    for arch in (TURING, VOLTA)
    for one in PROGRAMS
    if arch in one.only
]
LAYOUTS = {
    "nt": (lambda x, w: x @ w.T, ("f16[M,K]", "f16[N,K]")),
    "nn": (lambda x, w: x @ w, ("f16[M,K]", "f16[K,N]")),
    "tn": (lambda x, w: x.T @ w, ("f16[K,M]", "f16[K,N]")),
    "tt": (lambda x, w: x.T @ w.T, ("f16[K,M]", "f16[N,K]")),
}
SMALL = Schedule(name="small", tile=Tile(CtaTile(64, 64, 32), WarpTile(32, 32)))
QUADS = {
    "nt": "quads_m16n16k8", "nn": "quads_m16n32k8", "tn": "quads_m32n32k4", "tt": "quads_m32n16k8",
}  # fmt: skip


def product(layout, arch, **options):
    function, signature = LAYOUTS[layout]
    return pg.fuse(function).compile(*signature, arch=arch, **options)


def test_the_programs_are_many():
    assert len(BY_NAME) == len(PROGRAMS)
    for arch in (TURING, VOLTA):
        assert sum(arch in one.only for one in PROGRAMS) >= 60


@pytest.mark.parametrize(("arch", "name"), NAMES)
def test_compiles_without_spills_and_runs_as_numpy_says(arch, name):
    kernel = runnable(BY_NAME[name], arch)
    assert "0 B spilled, 0 B stack" in str(kernel.resources)
    assert "cp.async" not in kernel.ptx
    plan = kernel.passes.plan
    if arch == VOLTA:
        assert "ldmatrix" not in kernel.ptx
    if compiler_of(arch):
        assert f".target {arch}" in kernel.ptx
        assert plan.launch.shared_bytes <= device(arch).shared_per_block_optin
    report = kernel.check(dict(BY_NAME[name].trial) or None)
    assert report.ok, str(report)
    if all(word not in str(plan.program) for word in ("gelu", "silu", "tanh", "sigmoid")):
        assert report.comparison == "equal to NumPy, bit for bit"


@pytest.mark.parametrize("sums", ["f32", "f16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_way_operands_lie_decides_the_tile_of_quad_pairs(layout, sums):
    plan = product(layout, VOLTA, acc_dtype=sums).passes.plan
    assert plan.atom.name == f"{QUADS[layout]}_{sums}_f16"
    assert product(layout, TURING, acc_dtype=sums).passes.plan.atom.name == f"m16n8k8_{sums}_f16"


@pytest.mark.parametrize(
    ("layout", "arch"),
    [
        pytest.param(layout, arch, marks=[pytest.mark.slow] * ((n + at) % 2))
        for n, layout in enumerate(LAYOUTS)
        for at, arch in enumerate((TURING, VOLTA))
    ],
)
def test_rows_that_are_apart_may_end_inside_a_piece(layout, arch):
    function, signature = LAYOUTS[layout]
    kernel = compilable(pg.fuse(function).compile(*signature, arch=arch, schedule=SMALL))
    sizes = {"M": 13, "N": 21, "K": 45}
    rng = np.random.default_rng(5)
    arrays = []
    for tensor in kernel.program.inputs:
        rows, columns = (sizes[dim] for dim in tensor.dims)
        apart = np.full((rows, -(-columns // 8) * 8), np.nan, np.float16)  # whole pieces
        apart[:, :columns] = rng.integers(-2, 3, (rows, columns))
        arrays.append(apart[:, :columns])
    done = kernel.emulation(*arrays)
    assert done.report.ok, str(done.report)
    np.testing.assert_array_equal(done.results, function(*arrays))


SHIPPED = [
    pytest.param(arch, one, layout, marks=[] if one.tile.cta.k == 32 and n % 2 else SAMPLE)
    for arch in (TURING, VOLTA)
    for n, one in enumerate(by_warps(arch))
    for layout in LAYOUTS
]


@pytest.mark.parametrize(("arch", "schedule", "layout"), SHIPPED)
def test_rings_have_no_bank_conflicts(arch, schedule, layout):
    plan = product(layout, arch, schedule=schedule).passes.plan
    rings = [buffer for buffer in plan.buffers if buffer.kind == "ring"]
    assert len(rings) == 2
    for ring in rings:
        counted, ideal = ring.rows.wavefronts
        assert counted == ideal, str(ring)


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize(("arch", "schedule", "layout"), [one.values for one in SHIPPED])
def test_shipped_schedules_do_not_spill(arch, schedule, layout):
    if not compiler_of(arch):
        pytest.skip(f"nothing here compiles for {arch}")
    kernel = product(layout, arch, schedule=schedule)
    assert "0 B spilled, 0 B stack" in str(kernel.resources)


def test_products_stand_between_the_halves_of_a_copy():
    """Main loop: the next tile is fetched, this one multiplied, then the fetched one is written."""
    for order, calls in (
        (("mma", "copy"), ["fetch_a", "fetch_b", "mma", "copy_a", "copy_b"]),
        (("copy", "mma"), ["copy_a", "copy_b", "fetch_a", "fetch_b", "mma"]),
    ):
        schedule = replace(SMALL, pipeline=Pipeline(stages=3, distance=2, order=order))
        kernel = product("nt", TURING, schedule=schedule)
        loops = [part.split("\n  }\n")[0] for part in kernel.source.split("for (int t = ")[1:]]
        loop = next(one for one in loops if "fetch_a(" in one and "mma(" in one)
        met = [name for name in re.findall(r"\b(fetch_[ab]|copy_[ab]|mma)\(", loop)]
        assert [name for n, name in enumerate(met) if name not in met[:n]] == calls
        statements = {s.name: s for s in kernel.passes.plan.tile_program.statements}
        assert statements["fetch_a"].writes == statements["copy_a"].reads == ("staged_a[k,w,p]",)
        (buffer,) = [b for b in kernel.passes.plan.tile_program.buffers if b.name == "staged_a"]
        assert (buffer.space, buffer.slots) == ("register", 1)


def test_a_distance_that_is_too_short_is_refused():
    """With the copy first a tile is written one step after it was fetched, and read after that."""
    pipeline = Pipeline(stages=3, distance=0, order=("copy", "mma"), lookahead=0)
    with pytest.raises(ScheduleError, match=r"ring_.: the schedule breaks a dependence"):
        product("nt", TURING, schedule=replace(SMALL, pipeline=pipeline))


# --- what is refused -----------------------------------------------------------------------------
@pytest.mark.parametrize("arch", [TURING, VOLTA])
@pytest.mark.parametrize("kind", ["bf16", "tf32", "e4m3", "e5m2"])
def test_types_of_newer_targets_are_refused_by_name(arch, kind):
    function = pg.fuse(lambda x, w: x @ w.T)
    said = rf"{arch} has no warp instruction for {kind} x {kind} .* Use f16 operands with f32 sums"
    with pytest.raises(UnsupportedProgram, match=said):
        function.compile(f"{kind}[M,K]", f"{kind}[N,K]", arch=arch)


def test_volta_multiplies_no_integers():
    function = pg.fuse(lambda x, w: x @ w.T)
    with pytest.raises(UnsupportedProgram, match=r"s8 x s8 .* Use f16 operands with f32 sums"):
        function.compile("s8[M,K]", "s8[N,K]", arch=VOLTA)


@pytest.mark.parametrize("arch", [TURING, VOLTA])
def test_results_in_bf16_are_refused(arch):
    function = pg.fuse(lambda x, w: x @ w.T)
    with pytest.raises(
        UnsupportedProgram, match=rf"nothing on {arch} rounds to bf16.*Use f16 or f"
    ):
        function.compile("f16[M,K]", "f16[N,K]", arch=arch, out_dtype="bf16")
    halved = pg.fuse(lambda x, w: (x @ w.T).astype("bf16") * 2)
    with pytest.raises(UnsupportedProgram, match=f"nothing on {arch} rounds to bf16"):
        halved.compile("f16[M,K]", "f16[N,K]", arch=arch, out_dtype="f32")


def test_spread_copies_are_refused():
    spread = Schedule(pipeline=Pipeline(stages=3, distance=2, copies="spread"))
    with pytest.raises(ScheduleError, match=r'pipeline\.copies = "spread" on sm_75.*"whole"'):
        product("nt", TURING, schedule=spread)


def test_operands_of_one_side_lie_alike_where_the_instruction_is_told():
    function = pg.fuse(lambda x, u, v: (x @ u.T) * (x @ v))
    signature = ("f16[M,K]", "f16[N,K]", "f16[K,N]")
    with pytest.raises(UnsupportedProgram, match=r"u, v: some have k innermost.*Store them alike"):
        function.compile(*signature, arch=VOLTA, single=True)
    assert function.compile(*signature, arch=TURING).passes.plan.atom.name == "m16n8k8_f32_f16"


def test_a_compiler_that_left_a_target_out_names_the_extra(monkeypatch):
    newer = nvrtc_library.library()
    if min(newer.targets) <= 70:
        pytest.skip("the only compiler here is of CUDA 12")
    monkeypatch.setattr(nvrtc_library, "_loaded", lambda broken: iter([newer]))
    nvrtc_library.library.cache_clear()
    try:
        with pytest.raises(ToolchainMissing, match=r"no code for sm_70 .*'polygen\[cuda12\]'"):
            nvrtc_library.library("sm_70")
        assert nvrtc_library.library("sm_75").path == newer.path
    finally:
        nvrtc_library.library.cache_clear()


def test_an_older_compiler_takes_what_the_first_leaves_out(monkeypatch):
    class Known:
        def __init__(self, *targets):
            self.targets, self.path, self.version = targets, "x", (1, 2)

    newer, older = Known(75, 90), Known(50, 70, 90)
    monkeypatch.setattr(nvrtc_library, "_loaded", lambda broken: iter([newer, older]))
    nvrtc_library.library.cache_clear()
    try:
        assert nvrtc_library.library("sm_70") is older
        assert nvrtc_library.library("sm_90a") is newer
        assert nvrtc_library.library("sm_999") is newer  # its refusal says more
    finally:
        nvrtc_library.library.cache_clear()
