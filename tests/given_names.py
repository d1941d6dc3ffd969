"""What the snippets of a page of documentation take for granted: arrays, models, meshes.

Of each page, names for snippets that run anywhere, and names for those that need a GPU, which see
what the snippets before them have made.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest


def anywhere(page):
    """The names that a page's snippets begin with."""
    return _ANYWHERE.get(page, dict)()


def on_gpu(page, made):
    """The names that a page's snippets for a GPU begin with.

    Args:
        page: its name.
        made: the names that there are.
    """
    make = _ON_A_GPU.get(page)
    return {} if make is None else make(made)


def _halves(**shapes):
    """Arrays of CuPy, of f16."""
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    return {
        name: cupy.asarray(rng.integers(-3, 4, shape).astype(np.float16))
        for name, shape in shapes.items()
    }


def _python():
    def narrow(*shape):
        return np.ones(shape, ml_dtypes.bfloat16)

    return {
        "x_np": narrow(16, 64), "w_np": narrow(32, 64), "b_np": narrow(32), "g_np": narrow(16, 32),
    }  # fmt: skip


def _python_on_gpu(made):
    cupy = pytest.importorskip("cupy")
    arrays = _halves(x=(16, 64), w=(32, 64), b=(32,), g=(16, 32))
    return arrays | {"stream": cupy.cuda.Stream(non_blocking=True)}


def _folds(made):
    cupy = pytest.importorskip("cupy")
    sizes = {"M": 64, "N": 128, "K": 64}
    kernel = made["projected"].compile("f16[M,K]", "f16[N,K]", "f16[M,N]", sizes=sizes)
    arrays = _halves(x=(64, 64), w=(128, 64), r=(64, 128), y=(64, 128))
    return arrays | {
        "cupy": cupy, "k": kernel, "sizes": sizes, "squares": cupy.zeros(64, np.float32),
    }  # fmt: skip


def _prologue(made):
    arrays = _halves(x=(8, 64), w=(32, 64), out=(16, 32))
    cupy = pytest.importorskip("cupy")
    return arrays | {"rows": cupy.asarray(np.arange(8, dtype=np.int32)[::-1] * 2)}


def _odd_rows(made):
    import polygen as pg

    kernel = pg.fuse(lambda x, w: x @ w.T).compile(
        "f16[M,K]@2", "f16[N,K]@2", sizes={"M": 256, "N": 256, "K": 1003}
    )
    return _halves(x=(256, 1003), w=(256, 1003)) | {"kernel": kernel}


def _torch(made):
    torch = pytest.importorskip("torch")
    from torch._dynamo import list_backends, register_backend

    import polygen.adapters.torch as pgt

    if "polygen" not in list_backends(exclude_tags=()):  # where polygen is not installed
        register_backend(pgt.polygen, name="polygen")
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    layers = torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)
    return {
        "x": torch.randn(32, 64, **kind), "w": torch.randn(128, 64, **kind),
        "b": torch.randn(128, **kind), "model": torch.nn.Sequential(*layers).to(**kind),
    }  # fmt: skip


def _jax(made):
    jax = pytest.importorskip("jax")
    from jax.sharding import Mesh, PartitionSpec

    return {"mesh": Mesh(np.array(jax.devices()[:1]), ("d",)), "P": PartitionSpec}


_ANYWHERE = {"python.md": _python}
_ON_A_GPU = {
    "../README.md": lambda made: _halves(x=(16, 64), w=(32, 64), b=(32,)),
    "python.md": _python_on_gpu, "folds.md": _folds, "prologue.md": _prologue,
    "odd_rows.md": _odd_rows, "torch.md": _torch, "jax.md": _jax,
}  # fmt: skip
