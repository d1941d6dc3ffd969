"""What PyTorch does to an operator's calls; the driver is played, all else is as on a GPU."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("polygen.adapters.torch")
pytest.importorskip("cupy")

from stand_in_gpu import stand_in  # noqa: E402
from torch_calls import SCENARIOS, Calls  # noqa: E402


@pytest.mark.parametrize("name", SCENARIOS)
def test_calls_are_what_they_are_in_eager_mode(monkeypatch, name):
    with warnings.catch_warnings(), stand_in(monkeypatch) as gpu:
        warnings.simplefilter("ignore")  # of PyTorch's, that an operator is mapped one by one
        SCENARIOS[name](Calls("cpu"))
    assert gpu.launches or name in ("numbers_of_operands", "copies_and_pickles")
