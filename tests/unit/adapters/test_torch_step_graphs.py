"""Captured steps of a pipeline: what is against them, and a replay that does not end."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from polygen.adapters.torch import capturing, step_graphs  # noqa: E402
from polygen.adapters.torch.step_graphs import StepGraphs, against  # noqa: E402
from polygen.errors import EngineError  # noqa: E402

GPU = torch.device("cuda", 0)


class Never:
    """An event that the stream does not reach."""

    def record(self, stream) -> None: ...

    def query(self) -> bool:
        return False


def test_what_is_against_a_captured_step():
    cpu = torch.zeros(2)
    assert "need tensors on a GPU" in against([cpu], [], torch.device("cpu"))
    assert "a str among inputs and targets" in against([], ["cat"], GPU)
    assert "inputs or targets are on cpu, not cuda:0" in against([cpu], [], GPU)
    assert against([], [], GPU) == ""  # a rank in the middle


def test_a_step_that_does_not_end_leaves_gradients_as_they_were(monkeypatch):
    monkeypatch.setattr(step_graphs, "against", lambda *_: "")
    monkeypatch.setattr(step_graphs, "patience", lambda *_: 0)
    monkeypatch.setattr(torch.cuda, "Event", Never)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(capturing, "prepared", lambda run: run())
    monkeypatch.setattr(
        capturing, "record", lambda run, beside: (lambda: None, run(), lambda: None)
    )
    layer = torch.nn.Linear(2, 2)
    own = list(layer.parameters())

    def turns(given, wanted, *, captured=False):
        layer(given[0]).sum().backward()

    def plainly(given, wanted, own):
        turns(given, wanted)

    steps = StepGraphs(GPU, None)
    x = [torch.ones(1, 2)]
    steps.step(x, [], own, turns, plainly)  # as it is
    before = [p.grad.clone() for p in own]
    with pytest.raises(EngineError, match=r"gives up on a captured step.*not ended after 0 s"):
        steps.step(x, [], own, turns, plainly)
    assert all(torch.equal(p.grad, g) for p, g in zip(own, before, strict=True))


def test_a_capture_that_fails_is_said_once_and_steps_go_on(monkeypatch):
    def fails(run, beside):
        run()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(step_graphs, "against", lambda *_: "")
    monkeypatch.setattr(capturing, "prepared", lambda run: run())
    monkeypatch.setattr(capturing, "record", fails)
    layer = torch.nn.Linear(2, 2)
    own = list(layer.parameters())

    def turns(given, wanted, *, captured=False):
        layer(given[0]).sum().backward()

    steps = StepGraphs(GPU, None)
    x = [torch.ones(1, 2)]
    steps.step(x, [], own, turns, lambda *_: turns(x, []))
    with pytest.warns(UserWarning, match="steps are not captured: the capture fails") as said:
        steps.step(x, [], own, turns, lambda *_: turns(x, []))
        steps.step(x, [], own, turns, lambda *_: turns(x, []))
    assert len(said) == 1
    assert own[1].grad.tolist() == [3, 3]  # of three steps; what was tried is not counted
