"""Saved and pickled kernels: what comes back is what was written; it runs without a compiler."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from matrix import roles, small
from runtime_samples import artifact

import polygen as pg
from polygen import saved
from polygen.emit.source import Argument, MapAxis
from polygen.errors import ToolchainMissing
from polygen.frontend.program import Constant
from polygen.generated import Generated, decode, encode, version
from polygen.kernel import Kernel
from polygen.runtime import nvrtc
from polygen.schedule.model import Launches

SIGNATURE = ("bf16[M,K]", "bf16[N,K]", "bf16[N]", "f32")


@pg.fuse
def up(x, w, b, s):
    return pg.relu(x @ w.T + b) * s


@pytest.fixture(scope="module")
def kernel():
    return up.compile(*SIGNATURE, arch="sm_80", sizes={"M": 64, "N": 64, "K": 64})


@pytest.fixture
def folder(kernel, tmp_path):
    kernel.save(tmp_path)
    return tmp_path


def same(found: Kernel, kernel: Kernel) -> bool:
    return (
        found.source == kernel.source
        and found.header == kernel.header
        and found.program == kernel.program
        and found.schedule == kernel.schedule
        and found.schedule_origin == kernel.schedule_origin
        and found.artifact == kernel.artifact
        and repr(found) == repr(kernel)
    )


@pytest.mark.parametrize("suffix", ["", ".cu", ".json", ".cubin", ".h", ".tree.yaml"])
def test_any_file_names_the_kernel(kernel, folder, suffix):
    assert same(Kernel.load(folder / f"pg_up{suffix}"), kernel)
    assert same(pg.Kernel.load(str(folder / f"pg_up{suffix}")), kernel)


def test_a_loaded_kernel_is_a_kernel(kernel, folder):
    found = Kernel.load(folder / "pg_up.cu")
    generator = np.random.default_rng(0)
    shapes = ((24, 64), (40, 64), (40,))
    x, w, b = (generator.integers(-3, 4, s).astype(ml_dtypes.bfloat16) for s in shapes)
    assert np.array_equal(found.emulate(x, w, b, 2.0), kernel.emulate(x, w, b, 2.0))
    assert found.show("plan") == kernel.show("plan")
    assert found.passes.source == kernel.passes.source, "generated again, it is the same"
    again = folder / "again"
    found.save(again)
    assert {f.name: f.read_bytes() for f in again.iterdir()} == {
        f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()
    }


_ELSEWHERE = """
import sys
from dataclasses import replace
sys.path[:0] = {paths!r}
sys.modules["islpy"] = None  # importing it fails
from polygen.runtime import nvrtc
from polygen.schedule.model import Launches
from polygen.errors import ToolchainMissing
def missing(*_):
    raise ToolchainMissing("no compiler")
nvrtc.library = nvrtc.identity = missing
import ctypes
import polygen as pg
from runtime_samples import Device, cupy_array
place, number = ctypes.c_uint64, ctypes.c_int32
device = Device(kinds=(*(place,) * 3, ctypes.c_float, place, *(number,) * 6))
import polygen.runtime.launch
polygen.runtime.launch.cupy_driver = lambda: device.driver
kernel = pg.Kernel.load({file!r})
import ml_dtypes
def array(shape, place):
    return cupy_array(shape, place << 40, dtype=ml_dtypes.bfloat16)
x, w, b, y = array((24, 64), 1), array((40, 64), 2), array((40,), 3), array((24, 40), 4)
kernel(x, w, b, 2.0, out=y)
print(device.launches[0][-1] == (1 << 40, 2 << 40, 3 << 40, 2.0, 4 << 40, 24, 64, 40, 64, 64, 40))
print(device.loads[0][0] == open({cubin!r}, "rb").read(), kernel.resources.threads > 0)
print(kernel.show("cuda") == kernel.source, "mma" in kernel.ptx)
for refused in (
    lambda: kernel(array((24, 63), 1), array((40, 63), 2), b, 2.0, out=y),
    lambda: kernel.show("plan"),
    lambda: kernel.check(),
):
    try:
        refused()
    except ToolchainMissing as error:
        print("islpy" in str(error))
print([name for name in sys.modules if name in ("islpy", "polygen.isl", "jinja2")])
"""


def test_it_runs_without_isl_and_without_a_compiler(folder):
    pytest.importorskip("cupy")
    here = Path(__file__).resolve().parents[1]
    code = _ELSEWHERE.format(
        paths=[str(here.parent), str(here)],
        file=str(folder / "pg_up.cu"),
        cubin=str(folder / "pg_up.cubin"),
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    *claims, modules = done.stdout.splitlines()
    assert " ".join(claims).split() == ["True"] * 8
    assert modules == "['islpy']", "the entry that makes importing it fail, and nothing else"


def test_what_was_asked_for_comes_back(tmp_path):
    given = up.compile(*SIGNATURE, arch="sm_80", schedule=small(), command="polygen generate")
    given.save(tmp_path)
    found = Kernel.load(tmp_path / "pg_up.json")
    assert found._asked == small() and found.schedule == given.schedule
    assert "polygen generate" in found.source and found.passes.source == given.passes.source


# --- without a compiler ---------------------------------------------------------------------------
@pytest.fixture
def no_compiler(monkeypatch):
    def missing(*_):
        raise ToolchainMissing("no compiler")

    nvrtc.compiler_identity.cache_clear()
    with monkeypatch.context() as patch:
        for name in ("library", "identity"):
            patch.setattr(nvrtc, name, missing)
        yield patch
    nvrtc.compiler_identity.cache_clear()


def test_a_kernel_saved_without_a_compiler_is_compiled_when_it_is_used(no_compiler, tmp_path):
    made = up.compile(*SIGNATURE, arch="sm_80", schedule=small())
    path = made.save(tmp_path)
    assert sorted(f.suffix for f in tmp_path.iterdir()) == [".cu", ".h", ".json", ".yaml"]
    assert path.read_text().startswith("// not compiled")
    found = Kernel.load(path)
    with pytest.raises(ToolchainMissing):
        _ = found.cubin
    no_compiler.setattr("polygen.described.compile_cached", lambda source: artifact())
    assert found.cubin == b"cubin"


def test_no_binary_of_an_older_kernel_is_left_beside_a_newer_one(kernel, no_compiler, tmp_path):
    kernel.save(tmp_path)
    up.compile(*SIGNATURE, arch="sm_80", schedule=small()).save(tmp_path)
    assert not (tmp_path / "pg_up.cubin").exists() and not (tmp_path / "pg_up.ptx").exists()
    assert Kernel.load(tmp_path / "pg_up.cu").schedule == small()


# --- pickles --------------------------------------------------------------------------------------
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_kernel_is_the_same(kernel, protocol):
    kernel.artifact  # noqa: B018  (compiled before it travels)
    found = pickle.loads(pickle.dumps(kernel, protocol))
    assert same(found, kernel)
    assert same(pickle.loads(pickle.dumps(found, protocol)), kernel)


def test_pickling_does_not_compile(monkeypatch):
    monkeypatch.setattr("polygen.described.compile_cached", lambda source: pytest.fail("compiled"))
    made = up.compile(*SIGNATURE, arch="sm_80", schedule=small())
    found = pickle.loads(pickle.dumps(made))
    monkeypatch.setattr("polygen.described.compile_cached", lambda source: artifact())
    assert found.source == made.source and found.cubin == b"cubin"


# --- as JSON --------------------------------------------------------------------------------------
def test_numbers_keep_their_kind():
    for value in (2, 2.0):
        found = decode(Constant, json.loads(json.dumps(encode(Constant(value)))))
        assert repr(found) == repr(Constant(value))


def test_the_axes_of_tensor_maps_survive():
    axes = (MapAxis(None, 1, 1), MapAxis(2, "M", 8, 3, 2), MapAxis(0, 64, 32))
    one = Argument("x_map", "map", "x", axes=axes, swizzle=64)
    assert decode(Argument, json.loads(json.dumps(encode(one)))) == one
    with pytest.raises(ValueError, match="is not"):
        decode(MapAxis, encode(axes[0]) | {"axis": "0"})


@pytest.mark.parametrize("value", [-0.0, float("inf"), float("nan"), 1e-45, 0.1])
def test_special_numbers_survive(value):
    found = decode(Constant, json.loads(json.dumps(encode(Constant(value)))))
    assert repr(found) == repr(Constant(value))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("target"),
        lambda data: data.update(more=1),
        lambda data: data.update(target=3),
        lambda data: data["schedule"].update(min_blocks="1"),
        lambda data: data["program"]["inputs"][0].update(dtype="f12"),
        lambda data: data["program"]["statements"][0].update({"is": "Scan"}),
        lambda data: data["source"]["launch"].update(cluster=[1]),
        lambda data: data.update(proofs={}),
    ],
)
def test_decoding_refuses_what_is_not_a_record_of_today(kernel, change):
    data = json.loads(json.dumps(encode(kernel._generated)))
    assert decode(Generated, data) == kernel._generated
    change(data)
    with pytest.raises(ValueError, match=r"is no|is not|unknown"):
        decode(Generated, data)


def test_the_version_covers_every_file_of_the_package(tmp_path, monkeypatch):
    from polygen import generated

    before = version()
    for name in ("a.py", "b/c.toml", "d.cu.j2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(generated, "__file__", str(tmp_path / "generated.py"))
    found = [before]
    for name in ("a.py", "b/c.toml", "d.cu.j2", "new.py"):
        generated.version.cache_clear()
        found.append(version())
        (tmp_path / name).write_text("2")
    generated.version.cache_clear()
    found.append(version())
    generated.version.cache_clear()
    assert len(set(found)) == len(found)
    assert pg.__version__ in before and "islpy" in before


# --- names belong to kernels ----------------------------------------------------------------------
@pytest.mark.parametrize(
    "options", [{"sizes": {"M": 4096, "N": 4096, "K": 1024}}, {"schedule": small()}], ids=str
)
def test_the_same_program_may_be_saved_again(kernel, folder, options):
    other = up.compile(*SIGNATURE, arch="sm_80", **options)
    assert saved.identity(other._generated) == saved.identity(kernel._generated)
    assert other.source != kernel.source
    other.save(folder)
    assert Kernel.load(folder / "pg_up.cu").source == other.source


def test_another_kernel_takes_the_place_when_it_is_forced(folder):
    other = up.compile(*SIGNATURE, arch="sm_86", schedule=small())
    other.save(folder, force=True)
    assert repr(Kernel.load(folder / "pg_up.cu")) == "<kernel pg_up for sm_86>"


def test_a_copy_before_a_kernel_is_saved_with_it(tmp_path):
    launch = Launches(realign=True, dependent=True)
    schedule = replace(roles(through="lines"), name="copying", launch=launch)
    odd = pg.fuse(lambda x, w: x @ w.T, name="odd")
    kernel = odd.compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_90a", sizes={"M": 9, "N": 7, "K": 71}, schedule=schedule
    )
    path = kernel.save(tmp_path)
    for found in (Kernel.load(path), pickle.loads(pickle.dumps(kernel))):
        assert same(found, kernel) and found.schedule.launch == launch
        assert found.workspace() == kernel.workspace() == (9 + 7) * 256
        generator = np.random.default_rng(0)
        x, w = (generator.integers(-3, 4, (n, 71)).astype(ml_dtypes.bfloat16) for n in (9, 7))
        wanted = x.astype("f4") @ w.astype("f4").T
        assert np.array_equal(found.emulate(x, w).astype("f4"), wanted)
    text = path.read_text()
    assert "int pg_odd_realigned_launch(" in text and "pg_odd_workspace(" in kernel.header
