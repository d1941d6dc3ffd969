"""Random modules by the backend beside eager mode, with kernels."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("polygen.adapters.torch")

import random_torch  # noqa: E402
from torch_calls import SCENARIOS, Calls  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _cuda():
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")


def agrees(seed, **options):
    pair = random_torch.run(
        seed, "cuda", {"take": "legal", **options}, dynamic=(None, True, False)[seed % 3]
    )
    assert any(record.taken for record in pair.heard)


@pytest.mark.parametrize("seed", range(16))
def test_modules_give_what_they_give_in_eager_mode(seed):
    agrees(seed, rest="eager")


@pytest.mark.parametrize("seed", range(30, 38))
def test_so_they_do_in_inductor_s_code(seed):
    agrees(seed)


@pytest.mark.parametrize("name", SCENARIOS)
def test_calls_are_what_they_are_in_eager_mode(name):
    SCENARIOS[name](Calls("cuda"))
