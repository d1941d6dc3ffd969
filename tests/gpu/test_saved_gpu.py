"""On a GPU: saved kernels, calls that share kernels, and the launcher that nvcc compiles."""

from __future__ import annotations

import ctypes
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

import polygen as pg
from polygen import knobs
from polygen.emit.conditions import refusals
from polygen.errors import ArgumentError
from polygen.runtime.environment import current_arch

pytestmark = pytest.mark.gpu


def product(x, w):
    return x @ w.T


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


def operands(cupy, m, n, k, seed=0):
    generator = np.random.default_rng(seed)
    return tuple(
        cupy.asarray(generator.integers(-2, 3, shape).astype(np.float16))
        for shape in ((m, k), (n, k))
    )


def exact(x, w):
    return x.get().astype(np.float64) @ w.get().astype(np.float64).T


def test_shapes_that_share_a_kernel_give_right_results(cupy, tmp_path):
    with knobs.scope(cache_dir=tmp_path):
        for _ in range(2):  # the second function finds everything on disk
            call = pg.fuse(product)
            for m in (1, 2, 63, 64, 65, 127, 300, 777, 1000, 2000, 4097):
                x, w = operands(cupy, m, 256, 512, m)
                assert np.array_equal(call(x, w).get().astype(np.float64), exact(x, w)), m
            assert len(call._variants) < 11


def test_arrays_of_other_alignments_take_their_variants(cupy):
    call = pg.fuse(product)
    for k, stride in ((512, 512), (512, 516), (165, 168), (165, 165), (166, 512)):
        x, w = operands(cupy, 130, 100, stride)
        x, w = x[:, :k], w[:, :k]
        assert np.array_equal(call(x, w).get().astype(np.float64), exact(x, w)), (k, stride)


_ELSEWHERE = """
import sys
sys.modules["islpy"] = None
import cupy, pickle
import polygen as pg
from polygen.runtime import nvrtc
nvrtc.compile_source = None
x, w = cupy.load({x!r}), cupy.load({w!r})
for kernel in (pg.Kernel.load({cu!r}), pickle.load(open({pickled!r}, "rb"))):
    print(bool((kernel(x, w) == cupy.load({y!r})).all()))
"""


def test_a_loaded_kernel_runs_without_isl_and_without_compiling(cupy, tmp_path):
    kernel = pg.fuse(product, name="up").compile(
        "f16[M,K]", "f16[N,K]", arch=current_arch(), sizes={"M": 512, "N": 512, "K": 512}
    )
    paths = {name: str(tmp_path / f"{name}.npy") for name in "xwy"}
    x, w = operands(cupy, 130, 104, 72)
    for name, array in zip("xwy", (x, w, kernel(x, w)), strict=True):
        cupy.save(paths[name], array)
    pickled = tmp_path / "kernel.pickle"
    pickled.write_bytes(pickle.dumps(kernel))
    code = _ELSEWHERE.format(cu=str(kernel.save(tmp_path)), pickled=str(pickled), **paths)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["True", "True"], "")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("arch", ["sm_80", None])
def test_the_compiled_launcher_refuses_or_is_right(cupy, arch, tmp_path):
    target = current_arch()
    made = pg.fuse(product, name="up").compile("f16[M,K]", "f16[N,K]", arch=arch or target)
    made.save(tmp_path)
    machine = f"-gencode=arch={target.replace('sm', 'compute')},code={target}"
    command = ["nvcc", machine, "-shared", "-Xcompiler", "-fPIC", "pg_up.cu", "-o", "up.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    launch = ctypes.CDLL(str(tmp_path / "up.so")).pg_up_launch
    launch.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int] * 6 + [ctypes.c_void_p]
    source = made._generated.source
    codes = {r.code: r for r in refusals(source.conditions, source.launch, made.program.tensors)}

    def run(m, n, k, stride):
        x, w = operands(cupy, m, n, stride, k)
        x[:, k:], w[:, k:] = 1, 1  # padding that must not be read as data
        y = cupy.full((m, -(-n // 8) * 8), -7, "f2")
        sizes = (m, k, n, stride, stride, y.shape[1])
        code = launch(x.data.ptr, w.data.ptr, y.data.ptr, *sizes, None)
        if code == 0:
            found = y.get()[:, :n].astype(np.float64)
            assert np.array_equal(found, exact(x[:, :k], w[:, :k])), (m, n, k, stride)
            assert (y.get()[:, n:] == -7).all()
        else:
            assert code in codes and (y.get() == -7).all()
        return code

    whole = any(r.sentence.startswith("K is a multiple") for r in codes.values())
    assert run(130, 104, 168, 168) == 0
    assert (run(130, 104, 165, 168) != 0) == whole
    assert run(130, 104, 160, 164) != 0  # rows begin at odd places
    assert run(1, 104, 168, 168) == 0


@pytest.mark.parametrize("parameter", [True, False])
def test_torch_tensors_that_require_grad_are_refused(parameter):
    torch = pytest.importorskip("torch")
    x = torch.ones((64, 64), dtype=torch.float16, device="cuda")
    w = torch.ones_like(x)
    w = torch.nn.Parameter(w) if parameter else w.requires_grad_()
    call = pg.fuse(product)
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"w: the tensor requires grad"):
            call(x, w)
        with torch.no_grad():
            assert bool((call(x, w) == 64).all())
        assert bool((call(x, w.detach()) == 64).all())
