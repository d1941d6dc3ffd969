"""Random modules by the backend beside eager mode, on the CPU: the driver is played.

What runs is all that runs on a GPU, from PyTorch's compiler to the parameter block of a launch;
`tests/gpu/test_torch_random_gpu.py` runs the same with kernels.
"""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("polygen.adapters.torch")
pytest.importorskip("cupy")

import random_torch  # noqa: E402
from stand_in_gpu import stand_in  # noqa: E402


def agrees(monkeypatch, seed, arch, **options):
    with warnings.catch_warnings(), stand_in(monkeypatch, arch) as gpu:
        warnings.simplefilter("ignore")  # PyTorch's, of norms over nothing
        pair = random_torch.run(
            seed, "cpu", {"take": "legal", **options}, dynamic=(None, True, False)[seed % 3]
        )
    assert gpu.launches and any(record.taken for record in pair.heard)


@pytest.mark.parametrize("seed", [1, 2, 8])
def test_modules_give_what_they_give_in_eager_mode(monkeypatch, seed):
    agrees(monkeypatch, seed, "sm_80", rest="eager")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 22))
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_many_modules_give_what_they_give_in_eager_mode(monkeypatch, seed, arch):
    agrees(monkeypatch, seed, arch, rest="eager")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 34))
def test_so_they_do_in_inductor_s_code(monkeypatch, seed):
    agrees(monkeypatch, seed, "sm_90a", fx_graph_cache=False)
