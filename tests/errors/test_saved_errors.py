"""Saved kernels that cannot be loaded, and saves that would lose another kernel."""

from __future__ import annotations

import json

import pytest
from matrix import small
from runtime_samples import Device, artifact, cupy_array

import polygen as pg
from polygen import saved
from polygen.cli import main
from polygen.errors import SavedKernelError, ToolchainMissing, UnknownTarget
from polygen.kernel import Kernel

XW = ("bf16[M,K]", "bf16[N,K]")
up = pg.fuse(lambda x, w: pg.relu(x @ w.T), name="up")


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch):
    monkeypatch.setattr("polygen.described.compile_cached", lambda source: artifact())


@pytest.fixture(scope="module")
def kernel():
    return up.compile(*XW, arch="sm_80", schedule=small())


@pytest.fixture
def folder(kernel, tmp_path):
    kernel.save(tmp_path)
    return tmp_path


def edit(folder, **changes):
    """Change the manifest, and its digest with it, as another version would have written it."""
    path = folder / "pg_up.json"
    manifest = json.loads(path.read_text()) | changes
    manifest["digest"] = saved._own_digest(manifest)
    path.write_text(json.dumps(manifest))


def test_another_format_names_both_versions(folder):
    edit(folder, format=99, polygen="9.1")
    with pytest.raises(
        SavedKernelError, match=r"format 99, written by polygen 9\.1 .*reads format"
    ):
        Kernel.load(folder / "pg_up.cu")


def test_a_manifest_from_before_there_were_formats(folder):
    path = folder / "pg_up.json"
    path.write_text(json.dumps({"entry": "pg_up", "expression": "?", "target": "sm_80"}))
    with pytest.raises(SavedKernelError, match=r"no format number.*Save the kernel again"):
        Kernel.load(path)


@pytest.mark.parametrize("suffix", [".cu", ".h", ".cubin", ".ptx", ".tree.yaml"])
def test_a_missing_file_is_named(folder, suffix):
    (folder / f"pg_up{suffix}").unlink()
    with pytest.raises(SavedKernelError, match=rf"the file pg_up{suffix} is missing"):
        Kernel.load(folder / "pg_up.json")


@pytest.mark.parametrize("suffix", [".cu", ".h", ".cubin", ".ptx", ".tree.yaml"])
@pytest.mark.parametrize("cut", [True, False])
def test_a_damaged_file_is_named(folder, suffix, cut):
    path = folder / f"pg_up{suffix}"
    data = path.read_bytes()
    path.write_bytes(data[:-1] if cut else bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(SavedKernelError, match=rf"damaged \(pg_up{suffix} is not what was saved\)"):
        Kernel.load(folder / "pg_up.json")


def test_no_manifest_at_all(tmp_path):
    with pytest.raises(SavedKernelError, match=r"none\.json: the manifest cannot be read: No such"):
        Kernel.load(tmp_path / "none.cu")


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "3", '{"entry": "pg_up"}', "\x00"])
def test_a_manifest_that_is_none(folder, text):
    (folder / "pg_up.json").write_text(text)
    with pytest.raises(SavedKernelError, match=r"damaged|no manifest"):
        Kernel.load(folder / "pg_up.json")


def test_an_edited_manifest(folder):
    path = folder / "pg_up.json"
    path.write_text(path.read_text().replace('"threads": ', '"threads": 1'))
    with pytest.raises(SavedKernelError, match="does not have the digest"):
        Kernel.load(path)


@pytest.mark.parametrize(
    "change",
    [
        *({"program": {}}, {"launch": []}, {"sizes": None}, {"sizes": {"M": "1"}}, {"files": 3}),
        *({"resources": {"is": "Resources"}}, {"proofs": [3]}, {"schedule_origin": None}),
    ],
    ids=str,
)
def test_fields_that_this_version_does_not_know(folder, change):
    edit(folder, **change)
    with pytest.raises(SavedKernelError, match="the saved kernel is damaged"):
        Kernel.load(folder / "pg_up.json")


def test_a_target_that_this_version_does_not_know(folder):
    edit(folder, target="sm_999")
    with pytest.raises(UnknownTarget, match="sm_999"):
        Kernel.load(folder / "pg_up.json")


def test_a_gpu_of_another_architecture(folder, monkeypatch):
    pytest.importorskip("cupy")
    device = Device()

    def load(cubin, entry, shared):
        raise RuntimeError("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available")

    monkeypatch.setattr(device, "load", load)
    monkeypatch.setattr("polygen.runtime.launch.cupy_driver", lambda: device.driver)
    x, w, y = (cupy_array((64, 64), place << 40, dtype="u2") for place in (1, 2, 3))
    found = Kernel.load(folder / "pg_up.cu")
    import ml_dtypes

    x, w, y = (a.view(ml_dtypes.bfloat16) for a in (x, w, y))
    with pytest.raises(
        ToolchainMissing, match=r"cannot load.*it was compiled for sm_80.*polygen env"
    ):
        found(x, w, out=y)


# --- saving over another kernel -------------------------------------------------------------------
OTHERS = {
    "another program": (lambda x, w: pg.gelu(x @ w.T), XW, {}),
    "another target": (lambda x, w: pg.relu(x @ w.T), XW, {"arch": "sm_86"}),
    "another type": (lambda x, w: pg.relu(x @ w.T), ("f16[M,K]", "f16[N,K]"), {}),
    "another layout": (lambda x, w: pg.relu(x @ w.T), ("bf16[M,K]", "bf16[N,K]:col"), {}),
    "a fixed size": (lambda x, w: pg.relu(x @ w.T), ("bf16[M,64]", "bf16[N,64]"), {}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_name_that_another_kernel_has(folder, what):
    function, signature, options = OTHERS[what]
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    other = pg.fuse(function, name="up").compile(
        *signature, **{"arch": "sm_80", "schedule": small(), **options}
    )
    with pytest.raises(SavedKernelError, match=r"holds pg_up of .* for sm_80.*force=True.*--force"):
        other.save(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_name_that_a_kernel_for_other_rows_has(folder):
    """Sizes of another alignment class make another kernel of the same program."""
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    other = pg.fuse(lambda x, w: pg.relu(x @ w.T), name="up").compile(
        *XW, arch="sm_80", sizes={"M": 64, "N": 64, "K": 165}
    )
    with pytest.raises(
        SavedKernelError,
        match=r"holds pg_up for other rows: those of x are aligned to 16 bytes.*"
        r"for rows of x that are aligned to 2 bytes.*another folder.*force=True.*--force",
    ):
        other.save(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    other.save(folder, force=True)
    assert Kernel.load(folder / "pg_up.cu").source == other.source


@pytest.mark.parametrize("manifest", [None, "{", "{}", "[]"])
def test_a_name_whose_owner_is_unknown(kernel, folder, manifest):
    path = folder / "pg_up.json"
    path.unlink()
    if manifest is not None:
        path.write_text(manifest)
    with pytest.raises(SavedKernelError, match="whose manifest cannot be read"):
        kernel.save(folder)
    kernel.save(folder, force=True)
    kernel.save(folder)


def test_the_command_line_refuses_and_can_be_forced(folder, capsys):
    words = ["generate", "gelu(x @ w.T)", "x:bf16[M,K]", "w:bf16[N,K]", "--arch", "sm_80"]
    words += ["--name", "up", "-o", str(folder)]
    before = (folder / "pg_up.cu").read_text()
    assert main(words) == 2
    assert "it holds pg_up of" in capsys.readouterr().err
    assert (folder / "pg_up.cu").read_text() == before
    assert main([*words, "--force"]) == 0
    assert "gelu" in (folder / "pg_up.cu").read_text()
