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
    assert {s.epilogue.columns for s in schedules} == {0, 32}
    assert {s.tile.cta.k for s in schedules} == {16, 32, 48, 64, 128}
    met = {(s.roles.form, s.cluster.m, s.cluster.n) for s in schedules}
    assert met == {(form, *cluster) for form in ("cooperative", "pingpong") for cluster in CLUSTERS}


@pytest.mark.parametrize("name", BY_NAME)
def test_compiles_without_spills(name):
    built = kernel(name)
    resources = built.resources
    assert "0 B spilled" in str(resources)
    assert "0 B stack" in str(resources)
    assert f".target {device(BY_NAME[name].arch).compile_target}" in built.ptx
    assert built.cubin[:4] == b"\x7fELF"
    plan = built.passes.plan
    assert resources.registers <= device(BY_NAME[name].arch).max_registers_per_thread
    assert plan.launch.shared_bytes <= plan.device.shared_per_block_optin


@pytest.mark.parametrize("name", BY_NAME)
def test_runs_on_the_machine_exactly_as_numpy_says(name):
    case = BY_NAME[name]
    report = kernel(name).check(dict(case.trial) or None)
    assert report.ok, str(report)
    exact = all(word not in case.expression for word in ("gelu", "silu", "tanh"))
    if exact:
        assert report.comparison == "equal to NumPy, bit for bit"


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_schedules_run_at_every_length_of_the_pipeline(name):
    """One k tile, fewer than the ring has slots, as many, more; and ragged in m and n."""
    built = kernel(name)
    plan = built.passes.plan
    depth, stages = plan.tiles.cta[2], plan.schedule.pipeline.stages
    for extent in (8, depth, (stages - 1) * depth, stages * depth, (2 * stages + 1) * depth - 8):
        if extent >= 8:
            report = built.check({"M": 24, "N": 40, "K": extent})
            assert report.ok, str(report)


@pytest.mark.parametrize("name", [case.name for case in HOPPER if "stages" in case.name])
def test_roles_run_at_every_length_of_the_ring(name):
    """Fewer k tiles than slots, as many, more: the ring goes on from one tile to the next."""
    built = kernel(name)
    plan = built.passes.plan
    tile, stages = plan.tiles.cta, plan.schedule.pipeline.stages
    for k_tiles in (1, stages - 1, stages, 2 * stages + 1):
        sizes = {"M": 3 * tile[0] - 8, "N": 2 * tile[1] - 8, "K": k_tiles * tile[2] - 8}
        report = built.check(sizes)
        assert report.ok, str(report)


@pytest.mark.parametrize("form", ["one", "two", "pingpong"])
def test_one_tile_is_less_work_than_there_are_blocks(form):
    report = kernel(f"roles_{form}_2x1").check({"M": 8, "N": 8, "K": 8})
    assert report.ok, str(report)


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
