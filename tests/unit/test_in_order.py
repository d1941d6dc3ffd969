"""Programs of several kernels: which they are, and what can be asked of them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from sequence_samples import SAMPLES, compiled

import polygen as pg
from polygen.errors import (
    InvarianceError,
    PolygenError,
    SavedKernelError,
    ScheduleError,
    UnsupportedProgram,
)
from polygen.runtime.nvrtc import compile_source

MLP = ("bf16[M,K]", "bf16[K,H]", "bf16[H,N]")
WIDE = {"M": 64, "K": 320, "H": 520, "N": 320}


def mlp(x, u, d):
    return pg.relu(x @ u) @ d


@pytest.fixture(scope="module")
def kernels():
    return pg.fuse(mlp).compile(*MLP, arch="sm_80", sizes=WIDE)


def test_kernels_are_named_and_numbered(kernels):
    assert isinstance(kernels, pg.KernelSequence)
    assert [one.entry for one in kernels.kernels] == ["pg_mlp_1", "pg_mlp_2"]
    assert [one.kernels for one in kernels.kernels] == [(one,) for one in kernels.kernels]
    assert [t.name for t in kernels.between] == ["m0"]
    assert kernels.program.sizes == ("M", "K", "H", "N")  # none is a number in the kernels
    assert "2 kernels; mlp_1: shipped " in kernels.schedule_origin
    assert kernels.target.name == "sm_80" and kernels.deterministic
    assert len(kernels.sums.orders) == 2
    first, last = kernels.kernels
    assert kernels.schedule == last.schedule
    assert kernels.ptx == f"{first.ptx}\n{last.ptx}"
    assert kernels.resources in (first.resources, last.resources)


def test_what_one_kernel_runs_is_one():
    attention = pg.fuse(lambda q, k, v: pg.softmax(q @ k.mT) @ v)
    signature = ("bf16[S,64]", "bf16[T,64]", "bf16[T,64]")
    made = attention.compile(*signature, arch="sm_80", sizes={"S": 1024, "T": 1024})
    assert isinstance(made, pg.Kernel)


def test_one_kernel_or_none():
    with pytest.raises(UnsupportedProgram, match="a chain with 320 columns"):
        pg.fuse(mlp).compile(*MLP, arch="sm_80", sizes=WIDE, single=True)


def test_a_schedule_is_one_kernels(kernels):
    schedule = kernels.kernels[0].schedule
    with pytest.raises((UnsupportedProgram, ScheduleError)):
        pg.fuse(mlp).compile(*MLP, arch="sm_80", sizes=WIDE, schedule=schedule)


def test_invariant_dims_are_of_one_kernel():
    with pytest.raises((InvarianceError, UnsupportedProgram)):
        pg.fuse(mlp).compile(*MLP, arch="sm_80", sizes=WIDE, invariant=("M",))


def test_sizes_that_would_make_one_kernel_are_asked_for():
    with pytest.raises(UnsupportedProgram, match="Give K as a number"):
        pg.fuse(mlp).compile(*MLP, arch="sm_80")


def test_a_part_that_no_kernel_runs_is_the_wholes_refusal():
    def function(x, w):  # sums over rows and columns of one array
        return (x.T @ pg.tanh(x @ w)).T @ pg.einsum("ij,ij->i", x, x)[:, None]

    with pytest.raises(PolygenError):
        pg.fuse(function).compile("bf16[M,320]", "bf16[320,320]", arch="sm_80", sizes={"M": 64})


def test_few_rows_of_a_chain_are_two_kernels_where_that_is_faster():
    gated = pg.fuse(lambda x, g, u, d: (pg.silu(x @ g) * (x @ u)) @ d)
    signature = ("bf16[M,256]", "bf16[256,512]", "bf16[256,512]", "bf16[512,256]")
    assert len(gated.compile(*signature, arch="sm_90a", sizes={"M": 1024}).kernels) == 2
    assert len(gated.compile(*signature, arch="sm_90a").kernels) == 1  # whose rows are not known
    small = ("bf16[M,64]", "bf16[64,256]", "bf16[256,64]")
    assert len(pg.fuse(mlp).compile(*small, arch="sm_90a", sizes={"M": 65536}).kernels) == 1


def test_the_text_compiles_alone(kernels):
    text = kernels.source
    assert text.index("#include <cuda.h>") < text.index("namespace part1")
    assert "//   1. mlp_1: m0 of x, u" in text and "//   2. mlp_2: y0 of d, m0" in text
    assert "pg_mlp_1_launch" in kernels.header and "pg_mlp_2_launch" in kernels.header
    made = compile_source(replace(kernels.kernels[0]._generated.source, text=text))
    assert all(f".entry {one.entry}(" in made.ptx for one in kernels.kernels)


def test_stages_are_those_of_each(kernels):
    for stage in ("program", "plan", "cost"):
        text = kernels.show(stage)
        assert "== kernel 1 of 2, mlp_1: m0 of x, u" in text
        assert "== kernel 2 of 2, mlp_2: y0 of d, m0" in text
    assert kernels.show("program").startswith("mlp: pg.relu(x @ u) @ d")
    assert kernels.show("cuda") == kernels.source
    assert str(kernels) == kernels.show("plan")
    assert repr(kernels) == "<kernels mlp_1, mlp_2 for sm_80>"
    assert "mlp_2" in kernels._repr_html_()
    with pytest.raises(PolygenError, match="unknown stage"):
        kernels.show("else")
    assert "mlp_2" in kernels.page()


def test_rows_between_kernels_are_aligned_whatever_their_length():
    made = compiled(SAMPLES["rows of no 16 bytes"], "sm_80")
    for one in made.kernels:
        tensor = one.program.tensors["m0"]
        assert (tensor.alignment, tensor.ragged) == (16, True)


def test_the_workspace_holds_what_lies_between(kernels):
    sizes = {"M": 5, "K": 16, "H": 13, "N": 8}
    assert kernels.workspace(sizes) == 256  # 5 rows of 16 elements
    assert kernels.workspace() == 64 * 520 * 2
    other = pg.fuse(mlp).compile(*MLP, arch="sm_80", sizes=WIDE)
    other.kernels[0]._sizes.clear()
    other.kernels[1]._sizes.clear()
    with pytest.raises(PolygenError, match="sizes without M, K, H, N"):
        other.workspace()


def test_they_are_saved_and_loaded(kernels, tmp_path):
    path = kernels.save(tmp_path)
    assert path == tmp_path / "pg_mlp.json"
    names = {file.name for file in tmp_path.iterdir()}
    assert {"pg_mlp_1.cu", "pg_mlp_1.json", "pg_mlp_2.cu", "pg_mlp_2.ptx"} <= names
    for found in (pg.KernelSequence.load(path), pickle.loads(pickle.dumps(kernels))):
        assert found.program == kernels.program
        assert found.source == kernels.source
        assert [one.schedule for one in found.kernels] == [one.schedule for one in kernels.kernels]
    assert kernels.save(tmp_path) == path


def _edited(path, change):
    path.write_text(change(path.read_text()))


def test_manifests_that_are_none(kernels, tmp_path):
    path = kernels.save(tmp_path)
    with pytest.raises(SavedKernelError, match=r"with polygen\.KernelSequence\.load"):
        pg.Kernel.load(path)
    with pytest.raises(SavedKernelError, match=r"with polygen\.Kernel\.load"):
        pg.KernelSequence.load(tmp_path / "pg_mlp_1.json")
    with pytest.raises(SavedKernelError, match="the manifest cannot be read"):
        pg.KernelSequence.load(tmp_path / "other.json")
    _edited(path, lambda text: text.replace("pg_mlp_1", "pg_mlp_2"))
    with pytest.raises(SavedKernelError, match="the saved kernels are damaged"):
        pg.KernelSequence.load(path)
    kernels.save(tmp_path, force=True)
    _edited(path, lambda text: text.replace('"format": ', '"format": 1'))
    with pytest.raises(SavedKernelError, match="Save the kernels again"):
        pg.KernelSequence.load(path)
    path.write_text("{")
    with pytest.raises(SavedKernelError, match="the saved kernels are damaged"):
        pg.KernelSequence.load(path)
    with pytest.raises(SavedKernelError, match="it holds another pg_mlp"):
        kernels.save(tmp_path)


def test_operands_that_stay_are_aligned_for_all_kernels(kernels):
    mismatch = pg.errors.AlignmentMismatch("operands that stay are aligned", where="plan")
    mismatch.alignment = (("u", 2),)
    other = kernels.for_alignment(mismatch)
    assert other.kernels[0].program.tensors["u"].alignment == 2
    assert other.kernels[1].program.tensors["m0"].alignment == 16


def test_numpy_arrays_run_through_all(kernels):
    x, u, d = (np.ones(shape, kernels.program.inputs[0].dtype.numpy) for shape in
               ((3, 8), (8, 5), (5, 8)))  # fmt: skip
    np.testing.assert_array_equal(kernels.emulate(x, u, d).astype(float), np.full((3, 8), 40.0))
    with pytest.raises(PolygenError, match="2 operands, expected 3"):
        kernels.emulate(x, u)
    with pytest.raises(PolygenError, match="K"):
        kernels.emulate(x, u[:7], d)
    with pytest.raises(PolygenError, match="Q"):
        kernels.check({"Q": 3})
