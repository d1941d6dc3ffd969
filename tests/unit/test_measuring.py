"""What measures models and NumPy programs runs without a GPU, and says what does not agree."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_numpy_programs_are_rehearsed():
    measure = runpy.run_path(str(DOCS / "measure_numpy.py"))
    assert len(measure["SMALL"]) == 10
    (path,) = measure["SCRIPTS"].glob("nmf.py")
    assert measure["measured"](path, 0, 0.0, True) == {"agrees": True}
    assert measure["difference"]((1.0, [2.0, 4.0]), (1.0, [2.0, 3.0])) == 0.25
    assert measure["difference"]((float("nan"), 1.0), (2.0, 1.0)) == float("inf")
    assert "failed" in measure["_safely"](lambda: 1 / 0)


def test_what_the_host_takes_is_measured_without_a_gpu(capsys, monkeypatch):
    measure = runpy.run_path(str(DOCS / "measure_numpy_host.py"))
    monkeypatch.setattr("sys.argv", ["measure_numpy_host.py", "nmf", "--rounds", "1"])
    measure["main"]()
    head, row = capsys.readouterr().out.splitlines()
    assert row.split()[0] == "nmf" and int(row.split()[1]) > 100
    assert "arrays" in head
    clock = measure["Subtracted"]()
    inner = clock.watched(lambda: 3)
    assert clock.watched(lambda: inner() + 1)() == 4 and clock.seconds > 0


@pytest.fixture
def models():
    pytest.importorskip("torch")
    return runpy.run_path(str(DOCS / "measure_models.py"))


def test_models_are_blocks_and_thirty_public_ones(models):
    blocks, public = models["defined"].blocks(), models["defined"].models()
    assert list(blocks)[:2] == ["Llama block, 2048 tokens", "ViT-B block, 64 images"]
    assert len(blocks) == 6 and len(public) >= 30
    assert {one.source for one in public.values()} == {"transformers", "torchvision"}


@pytest.mark.parametrize(
    ("errors", "agrees"),
    [
        ({"eager": 1e-3, "inductor": 9e-4, "polygen": 1.2e-3}, True),
        ({"eager": 1e-3, "inductor": 9e-4, "polygen": 1.3e-3}, False),
        ({"eager": 1e-3, "polygen": 1e-4, "polygen measured": 2e-3}, False),
        ({"eager": 1e-3, "polygen": float("nan")}, False),
        ({"eager": 1e-3}, False),
    ],
)
def test_errors_are_compared_with_those_of_others(models, errors, agrees):
    assert models["_agrees"](errors) == agrees


def test_a_small_model_is_rehearsed(models, monkeypatch):
    """Every contender runs; on the CPU nothing is taken, and a failing one is noted."""
    import torch

    defined = models["defined"]

    def fails(*_, **__):
        raise ValueError("no such kernel")

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Linear(16, 24, bias=False)
            torch.nn.init.zeros_(self.up.weight)

        def forward(self, x):
            return torch.relu(self.up(x))

    given = defined.Model(Layer, lambda small: (torch.randn(4, 16),))
    with torch.no_grad():
        row = models["measured"](given, models["MODELS"], 1e9, True)
        assert row["agrees"] and row["compiled_again"] == 0 and not row["left_out"]
        assert row["groups"] == {"polygen": 1} and row["taken"] == {"polygen": 0}
        assert set(row["error"]) == set(models["MODELS"]) and row["error"]["eager"] > 0
        monkeypatch.setattr(models["pgt"], "polygen", fails)
        row = models["measured"](given, models["MODELS"], 1e9, True)
    assert "no such kernel" in row["left_out"]["polygen"] and not row["agrees"]
