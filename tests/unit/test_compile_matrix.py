"""Every kernel of the matrix compiles without spills, and runs on the PTX machine as NumPy says."""

import shutil
import subprocess
from functools import lru_cache

import pytest
from matrix import ARCHS, CASES, EPILOGUES, LAYOUTS, UNUSUAL

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
