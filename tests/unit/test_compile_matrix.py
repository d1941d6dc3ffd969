"""Every kernel of the matrix compiles without spills, and runs on the PTX machine as NumPy says."""

import re
import shutil
import subprocess
from functools import lru_cache

import pytest
from matrix import (
    ARCHS,
    CASES,
    CLUSTERS,
    EPILOGUES,
    FORMS,
    HOPPER,
    LAYOUTS,
    RASTERS,
    UNUSUAL,
    WIDTHS,
)

from polygen.errors import ToolchainMissing
from polygen.hardware.device import device

BY_NAME = {case.name: case for case in CASES}


@lru_cache(maxsize=4)
def kernel(name):
    return BY_NAME[name].kernel()


def test_the_matrix_covers_what_it_says():
    assert len(BY_NAME) == len(CASES) >= 60
    assert {case.arch for case in CASES} == set(ARCHS)
    text = " ".join(text for case in CASES for _, text in case.signature)
    for dtype in ("f16[", "bf16[", "tf32[", ":col", "@8", "@4", "@2"):
        assert dtype in text
    names = " ".join(BY_NAME)
    for part in (*LAYOUTS, *EPILOGUES, *UNUSUAL):
        assert part in names


def test_the_kernels_with_roles_cover_what_they_say():
    """Each value of each decision, in some case."""
    names = " ".join(case.name for case in HOPPER)
    halves = [f"{layout}_{kind}" for layout in LAYOUTS for kind in ("bf16", "f16")]
    for part in (*EPILOGUES, *halves):
        assert f"roles_{part}" in names
    for part in ("tf32", "e4m3", "e5m2"):
        assert f"roles_nt_{part}" in names
    assert {f"roles_{layout}_sum_f16" for layout in LAYOUTS} <= {case.name for case in HOPPER}
    schedules = [case.schedule for case in HOPPER]
    assert all(schedule.specialised for schedule in schedules)
    assert {case.arch for case in HOPPER} == {"sm_90a"}
    tiles = [(s.roles.form, s.tile.cta, s.tile.warp) for s in schedules]
    assert {(form, (cta.m // own.m, cta.n // own.n)) for form, cta, own in tiles} == {
        (form, parts) for form, parts, *_ in FORMS.values()
    }
    assert {cta.n for _, cta, own in tiles if cta.n == own.n} == set(WIDTHS)
    assert {s.raster for s in schedules} == set(RASTERS)
    assert {s.pipeline.stages for s in schedules} == set(range(2, 7))
    assert {s.pipeline.in_flight for s in schedules} == {0, 1, 2}
    assert {s.epilogue.through for s in schedules} == {"tma", "registers"}
    assert {s.epilogue.slots for s in schedules} == {2, 3}
    assert {s.epilogue.prefetch for s in schedules} == {1, 2, 3}
    assert {s.epilogue.columns for s in schedules} == {0, 16, 32}
    assert {s.tile.cta.k for s in schedules} == {16, 32, 48, 64, 128}
    met = {(s.roles.form, s.cluster.m, s.cluster.n) for s in schedules}
    assert {s.cluster.k for s in schedules} == {1, 2, 3, 4, 8}
    assert met == {(form, *cluster) for form in ("cooperative", "pingpong") for cluster in CLUSTERS}


def more_sizes(case, plan):
    """Sizes to run a kernel at beside its own, with the reason."""
    depth, stages = plan.tiles.cta[2], plan.schedule.pipeline.stages
    if case.name in UNUSUAL:
        # One k tile, fewer than the ring has slots, as many, more; and ragged in m and n.
        for extent in (
            8,
            depth,
            (stages - 1) * depth,
            stages * depth,
            (2 * stages + 1) * depth - 8,
        ):
            if extent >= 8:
                yield {"M": 24, "N": 40, "K": extent}
    elif case in HOPPER and "stages" in case.name:
        # Fewer k tiles than slots, as many, more: the ring goes on from one tile to the next.
        m, n, _ = plan.tiles.cta
        for k_tiles in (1, stages - 1, stages, 2 * stages + 1):
            yield {"M": 3 * m - 8, "N": 2 * n - 8, "K": k_tiles * depth - 8}
    elif case.name in [f"roles_{form}_2x1" for form in ("one", "two", "pingpong")]:
        yield {"M": 8, "N": 8, "K": 8}  # one tile is less work than there are blocks


# Two of five are compiled and run by `make test`; neighbours in the matrix are much alike.
QUICK = {case.name for at, case in enumerate(CASES) if at % 5 in (0, 3)}
SAMPLE = [pytest.mark.slow, pytest.mark.sample(8)]
NAMES = [n if n in QUICK else pytest.param(n, marks=SAMPLE) for n in BY_NAME]


@pytest.mark.parametrize("name", NAMES)
def test_compiles_without_spills_and_runs_as_numpy_says(name):
    case, built = BY_NAME[name], kernel(name)
    compiles_without_spills(case, built)
    report = built.check(dict(case.trial) or None)
    assert report.ok, str(report)
    exact = all(word not in case.expression for word in ("gelu", "silu", "tanh"))
    if exact:
        assert report.comparison == "equal to NumPy, bit for bit"
    for sizes in more_sizes(case, built.passes.plan):
        report = built.check(sizes)
        assert report.ok, (sizes, str(report))


def compiles_without_spills(case, built):
    resources = built.resources
    assert "0 B spilled" in str(resources)
    assert "0 B stack" in str(resources)
    assert f".target {device(case.arch).compile_target}" in built.ptx
    assert built.cubin[:4] == b"\x7fELF"
    plan = built.passes.plan
    assert resources.registers <= device(case.arch).max_registers_per_thread
    assert plan.launch.shared_bytes <= plan.device.shared_per_block_optin


def test_the_quick_kernels_cover_each_layout_epilogue_target_and_kind():
    quick = [BY_NAME[name] for name in QUICK]
    assert {case.arch for case in quick} == set(ARCHS)
    names, dtypes = " ".join(QUICK), " ".join(text for case in quick for _, text in case.signature)
    for part in (*LAYOUTS, *EPILOGUES, "aligned_", "large_", "names_", "roles_"):
        assert part in names, part
    for dtype in ("f16[", "bf16[", "tf32[", ":col", "@8", "@4", "@2"):
        assert dtype in dtypes, dtype
    with_roles = [case.schedule for case in quick if case in HOPPER]
    assert {s.roles.form for s in with_roles} == {"cooperative", "pingpong"}
    assert {s.epilogue.through for s in with_roles} == {"tma", "registers"}
    assert {(s.cluster.m, s.cluster.n) for s in with_roles} == set(CLUSTERS)
    assert len(QUICK & set(UNUSUAL)) >= 10 and len(QUICK) >= 60


# --- machine code ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "store"),
    [("roles_one_2x1", "UTMASTG"), ("roles_two_2x1", "STG"), ("roles_pingpong_1x1", "UTMASTG")],
)
def test_machine_code_with_roles_uses_the_engines_and_no_local_memory(name, store):
    try:
        sass = kernel(name).show("sass")
    except ToolchainMissing as missing:
        pytest.skip(str(missing))
    watched = "HGMMA|UTMALDG|USETMAXREG|UTMASTG|STG|LDL|STL|HMMA|LDGSTS"
    assert set(re.findall(rf"\b({watched})\b", sass)) == {
        "HGMMA", "UTMALDG", "USETMAXREG", store,
    }  # fmt: skip
    assert ("MULTICAST" in sass) == ("2x1" in name)


# --- nvcc ----------------------------------------------------------------------------------------
needs_nvcc = pytest.mark.skipif(
    not (shutil.which("nvcc") and shutil.which("nm")), reason="nvcc and nm are not both installed"
)


@needs_nvcc
@pytest.mark.parametrize("name", ["two_outputs_nt_bf16", "aligned_2_nn"])
def test_the_source_compiles_alone_with_nvcc(name, tmp_path):
    built = kernel(name)
    source = tmp_path / "kernel.cu"
    source.write_text(built.source)
    target = ["nvcc", "-arch=sm_80", "-c", str(source), "-o", str(tmp_path / "kernel.o")]
    done = subprocess.run(target, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    symbols = subprocess.run(
        ["nm", str(tmp_path / "kernel.o")], capture_output=True, text=True, check=True
    ).stdout
    entry = built.passes.source.entry
    defined = [line.split()[-1] for line in symbols.splitlines() if " T " in line]
    assert any(name.startswith(entry) for name in defined), symbols


@needs_nvcc
def test_the_launcher_links_into_a_c_program(tmp_path):
    """A C compiler takes the prototype's name: linkage is C, nothing is mangled."""
    built = kernel("nt_bf16")
    (tmp_path / "kernel.cu").write_text(built.source)
    subprocess.run(
        ["nvcc", "-arch=sm_80", "-c", "kernel.cu", "-o", "kernel.o"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    symbols = subprocess.run(
        ["nm", "kernel.o"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    launchers = [s.split()[-1] for s in symbols.splitlines() if " T " in s and "launch" in s]
    assert launchers
    assert all(not name.startswith("_Z") for name in launchers)
