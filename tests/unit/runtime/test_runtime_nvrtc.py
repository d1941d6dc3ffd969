from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from runtime_samples import TEXT, source

from polygen import knobs
from polygen.errors import (
    CompileError,
    PressureError,
    SpillError,
    ToolchainBroken,
    ToolchainMissing,
)
from polygen.runtime import compilelog, nvrtc, nvrtc_library

ROOT = Path(__file__).parents[3]

SPILLING = """\
extern "C" __global__ void __launch_bounds__(1024, 2) scale(float *y) {
  float t[160];
  #pragma unroll
  for (int i = 0; i < 160; ++i) t[i] = y[i * 1024 + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 160; ++i) y[i * 1024 + threadIdx.x] = t[i] * t[159 - i];
}
"""


def test_compiles_without_a_gpu():
    artifact = nvrtc.compile_source(source(arch="sm_90a", shared=1000))
    assert ".target sm_90a" in artifact.ptx and ".entry scale" in artifact.ptx
    assert artifact.cubin[:4] == b"\x7fELF" and artifact.cubin.endswith(b"\0")
    assert 0 < artifact.resources.registers < 64
    assert artifact.resources.spill_store_bytes == artifact.resources.stack_bytes == 0
    assert artifact.resources.shared_bytes == 1000 and artifact.resources.threads == 64
    assert artifact.compiler.startswith("NVRTC ") and artifact.compiler.count(".") >= 1
    assert "Compile time" not in artifact.log


def test_the_cubin_has_the_length_its_header_says():
    cubin = nvrtc.compile_source(source()).cubin
    offset, size, count = (
        int.from_bytes(cubin[a:b], "little") for a, b in ((32, 40), (54, 56), (56, 58))
    )
    section_offset, section_size, sections = (
        int.from_bytes(cubin[a:b], "little") for a, b in ((40, 48), (58, 60), (60, 62))
    )
    assert len(cubin) == max(offset + size * count, section_offset + section_size * sections)


def test_same_input_same_bytes():
    assert nvrtc.compile_source(source()) == nvrtc.compile_source(source())


def test_static_shared_memory_counts():
    text = TEXT.replace("int row =", "__shared__ float s[64]; s[threadIdx.x] = *x; __syncthreads();"
                        " if (a > 3) *y = s[63 - threadIdx.x]; int row =")  # fmt: skip
    assert nvrtc.compile_source(source(text, shared=100)).resources.shared_bytes == 356


def test_spills_are_refused_and_can_be_allowed():
    with pytest.raises(CompileError, match=r"spills \d+ bytes") as caught:
        nvrtc.compile_source(source(SPILLING))
    assert "spill stores" in caught.value.log
    found = nvrtc.compile_source(source(SPILLING), allow_spills=True).resources
    assert found.spill_store_bytes > 0


def test_a_source_error_quotes_the_line():
    with pytest.raises(CompileError, match="undefined") as caught:
        nvrtc.compile_source(source(TEXT.replace("= a *", "= nonsense *")))
    assert "> 5 |   if (row < rows" in str(caught.value)
    assert "nonsense" in caught.value.log


def test_an_inline_assembly_error_quotes_the_ptx():
    text = TEXT.replace("int row =", 'asm volatile("mma.nonsense;"); int row =')
    with pytest.raises(CompileError, match="its PTX") as caught:
        nvrtc.compile_source(source(text))
    assert "mma.nonsense;" in str(caught.value)


def test_an_unknown_target_is_named():
    with pytest.raises(CompileError, match="does not compile for sm_91"):
        nvrtc.compile_source(source(arch="sm_91"))


def test_line_info_is_an_option():
    assert "-lineinfo" not in nvrtc.options(source())
    with knobs.scope(line_info=True):
        assert "-lineinfo" in nvrtc.options(source())


FINE = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 9 registers"


@pytest.mark.parametrize(
    ("log", "kind", "message"),
    [
        (
            FINE.replace("0 bytes stack", "32 bytes stack"),
            SpillError,
            "32 bytes per thread in local",
        ),
        (FINE + "\nptxas info : (C7510) Potential Performance Loss", PressureError, "C7510"),
    ],
)
def test_a_slow_kernel_is_refused(log, kind, message):
    found = compilelog.resources(source(), log)
    with pytest.raises(kind, match=message) as caught:
        compilelog.refuse_slow(source(), found, log, allow_spills=False)
    assert type(caught.value) is kind and caught.value.log == log


SPILLS = FINE.replace("0 bytes spill", "4 bytes spill").replace("0 bytes stack", "8 bytes stack")


@pytest.mark.parametrize(
    ("kernel", "other", "beside"), [(FINE, SPILLS, True), (SPILLS, FINE, False)]
)
def test_who_spills_is_told(kernel, other, beside):
    """A launch behind the kernel is not made better by another tile."""
    names = source().entry, source().entry + "_folds"
    log = "".join(
        f"ptxas info : Compiling entry function '{name}' for 'sm_90a'\n{text}\n"
        for name, text in zip(names, (kernel, other), strict=True)
    )
    with pytest.raises(SpillError, match="spills 4 bytes") as caught:
        compilelog.refuse_slow(source(), compilelog.resources(source(), log), log,
                               allow_spills=False)  # fmt: skip
    assert caught.value.beside is beside
    assert ("a launch beside the kernel" in str(caught.value)) is beside
    assert ("epilogue.row_words = 0" in str(caught.value)) is beside


def test_too_few_registers_for_one_product_are_no_mistake_of_the_source():
    few = "ptxas fatal : (C7602) Insufficient registers (128) to compile instruction at line 419"
    assert isinstance(compilelog.rejection(source(), few, ""), PressureError)
    other = compilelog.rejection(source(), "ptxas fatal : (C7999) something else", "")
    assert type(other) is CompileError


def test_a_performance_loss_is_refused_even_when_spills_are_allowed():
    log = FINE + "\n(C7514) Potential Performance Loss"
    with pytest.raises(CompileError):
        compilelog.refuse_slow(
            source(), compilelog.resources(source(), log), log, allow_spills=True
        )


def test_a_silent_log_is_refused():
    with pytest.raises(CompileError, match="does not report"):
        compilelog.resources(source(), "ptxas info: nothing to see")


@pytest.fixture
def no_library(monkeypatch):
    """A machine on which nothing is called NVRTC; gives the path of the real one."""
    path = nvrtc_library.library().path
    monkeypatch.setattr(nvrtc_library, "_NAMES", ("libnvrtc-of-nobody.so",))
    monkeypatch.setattr(nvrtc_library, "candidates", lambda: iter(()))
    nvrtc_library.library.cache_clear()
    yield path
    nvrtc_library.library.cache_clear()


def test_a_missing_toolchain_says_what_to_install(no_library):
    with pytest.raises(ToolchainMissing, match=r"`pip install 'nvidia-cuda-nvrtc==13.0.[*]'`"):
        nvrtc.compile_source(source())


def test_a_library_that_does_not_load_is_named(no_library, monkeypatch, tmp_path):
    file = tmp_path / "libnvrtc.so.13"
    file.write_text("not a library")
    monkeypatch.setattr(nvrtc_library, "candidates", lambda: iter([file]))
    with pytest.raises(ToolchainBroken, match=f"{file}: .*cannot be loaded.*--force-reinstall"):
        nvrtc.compile_source(source())


def test_the_first_library_that_loads_is_taken(no_library, monkeypatch, tmp_path):
    broken = tmp_path / "libnvrtc.so.13"
    broken.write_text("not a library")
    monkeypatch.setattr(nvrtc_library, "candidates", lambda: iter([broken, no_library]))
    assert nvrtc.compile_source(source()).cubin[:4] == b"\x7fELF"


def test_the_packages_recommended_are_those_of_the_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for major, requirement in nvrtc_library.PACKAGES.items():
        assert requirement in extras["optional-dependencies"][f"cuda{major}"]


def test_compiling_needs_no_cupy_and_no_home(tmp_path):
    code = """
        import sys
        sys.modules["cupy"] = None
        from runtime_samples import source
        from polygen.runtime.cache import compile_cached
        print(compile_cached(source()).compiler)
    """
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, cwd=tmp_path, env=environment, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("NVRTC ") and done.stderr == ""


def test_importing_the_runtime_imports_no_cupy():
    modules = "nvrtc, nvrtc_library, cache, arrays, outputs, launch, environment, files"
    code = f"import sys; from polygen.runtime import {modules}; print('cupy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
