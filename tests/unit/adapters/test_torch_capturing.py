"""When calls are captured, what graphs are kept for, and what happens where nothing can be.

Without a GPU a capture is played: a replay runs the function again on the graph's own tensors.
"""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

import polygen.adapters.torch as pgt  # noqa: E402
from polygen.adapters.torch import capturing  # noqa: E402
from polygen.errors import ArgumentError  # noqa: E402


class Played:
    """What `torch.cuda.graph` does, with a function that may run again."""

    def __init__(self) -> None:
        self.captures, self.replays, self.forgotten, self.fails = 0, 0, 0, ""

    def prepared(self, run):
        run()

    def record(self, run, beside):
        if self.fails:
            raise RuntimeError(self.fails)
        self.captures += 1
        with torch.no_grad():
            results = run()

        def replay() -> None:
            self.replays += 1
            for own, made in zip(_leaves(results), _leaves(run()), strict=True):
                own.copy_(made)

        def forget() -> None:
            self.forgotten += 1

        return replay, results, forget


def _leaves(results):
    return torch.utils._pytree.tree_leaves(results)


@pytest.fixture
def played(monkeypatch):
    found = Played()
    monkeypatch.setattr(capturing, "record", found.record)
    monkeypatch.setattr(capturing, "prepared", found.prepared)
    monkeypatch.setattr(capturing, "against", lambda *_: "")
    return found


def test_calls_of_one_form_are_one_graph(played):
    run = pgt.captured(lambda x, times: {"twice": x * times, "sum": [x.sum()]})
    for seed in range(3):
        x = torch.full((4, 3), float(seed))
        found = run(x, 2)
        assert torch.equal(found["twice"], 2 * x) and found["sum"][0] == 12 * seed
    assert (played.captures, played.replays) == (1, 3)
    run(torch.ones(5, 3), 2)
    run(torch.ones(4, 3, dtype=torch.float64), 2)
    run(torch.ones(3, 4).T, 2)
    run(torch.ones(4, 3), 3)
    assert played.captures == 5


def test_results_are_new_unless_they_are_kept(played):
    run = pgt.captured(lambda x: x + 1)
    first = run(torch.zeros(2))
    run(torch.ones(2))
    assert first.tolist() == [1, 1]
    kept = pgt.captured(lambda x: x + 1, keep=True)
    first = kept(torch.zeros(2))
    kept(torch.ones(2))
    assert first.tolist() == [2, 2]


def test_who_writes_into_the_graphs_own_operands_saves_the_copy(played):
    run = pgt.captured(lambda x: x + 1)
    with pytest.raises(ArgumentError, match=r"nothing is captured for such operands.*Call it once"):
        run.operands(torch.zeros(2))
    run(torch.zeros(2))
    (own,) = run.operands(torch.zeros(2))
    own.fill_(5)
    assert run(own).tolist() == [6, 6] and played.captures == 1


def test_parameters_that_have_moved_are_captured_again(played):
    layer = torch.nn.Linear(3, 2)
    run = pgt.captured(layer)
    x = torch.randn(4, 3)
    with torch.no_grad():
        assert torch.equal(run(x), layer(x))
        layer.weight.mul_(2)  # stays where it is
        assert torch.equal(run(x), layer(x)) and played.captures == 1
        layer.weight = torch.nn.Parameter(torch.randn(2, 3))
        assert torch.equal(run(x), layer(x))
    assert (played.captures, played.forgotten) == (2, 1)


def test_parts_that_are_others_are_captured_again(played):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    run, x, captures = pgt.captured(model), torch.randn(4, 3), []
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: model.__setitem__(0, torch.nn.Linear(3, 3)),
            lambda: model[0].register_buffer("unused", torch.zeros(2)),
            lambda: model.insert(1, torch.nn.Tanh()),
        ):
            change()
            for _ in range(2):
                assert torch.equal(run(x), model(x))
            captures.append(played.captures)
    assert captures == [1, 2, 3, 4] and played.forgotten == 3


def test_what_lies_at_the_address_of_another_is_captured_again(played):
    layer, x = torch.nn.Linear(4, 2, bias=False), torch.randn(5, 4)
    run, room = pgt.captured(layer), torch.randn(64)
    with torch.no_grad():
        for part in (
            room[:8].view(2, 4),
            room[:8].view(4, 2).t(),
            room[:12].view(3, 4),
        ):
            layer.weight.data = part
            assert torch.equal(run(x), layer(x))
        layer.weight.data = room.view(torch.bfloat16)[:8].view(2, 4)
        assert torch.equal(run(x.bfloat16()), layer(x.bfloat16()))
    assert played.captures == 4


def test_a_capture_that_fails_is_said_once_and_not_tried_again(played):
    run = pgt.captured(lambda x: x + 1)
    played.fails = "operation not permitted\n when stream is capturing"
    wanted = "not captured: the capture fails: RuntimeError: operation not permitted when stream"
    with pytest.warns(UserWarning, match=wanted):
        assert run(torch.zeros(2)).tolist() == [1, 1]
    played.fails = ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(torch.zeros(2)).tolist() == [1, 1]
    assert played.captures == 0 and run.why.startswith("the capture fails")


def test_errors_of_the_function_are_its_own(played):
    def run(x):
        raise RuntimeError("its own")

    with pytest.raises(RuntimeError, match="its own"):
        pgt.captured(run)(torch.zeros(2))


def test_operands_without_a_hash(played):
    run = pgt.captured(lambda x, sizes: x + sizes[0])
    with pytest.warns(UserWarning, match="told apart by their hash: unhashable type"):
        assert run(torch.zeros(2), [3]).tolist() == [3, 3]


def test_graphs_are_given_up(played):
    run = pgt.captured(lambda x: x + 1)
    run(torch.zeros(2))
    run(torch.zeros(3))
    run.forget()
    assert played.forgotten == 2
    run(torch.zeros(2))
    assert played.captures == 3


def test_without_a_gpu_the_function_is_called_and_that_is_said_once():
    run = pgt.captured(torch.nn.Linear(3, 2))
    with pytest.warns(UserWarning, match="Linear is not captured: CUDA graphs need tensors on a"):
        run(torch.zeros(4, 3)).sum().backward()  # with its gradients
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(torch.zeros(4, 3))


def test_what_is_against_a_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with torch.device("meta"):
        x, wanted = torch.zeros(2), torch.zeros(2, requires_grad=True)
    assert "need tensors on a GPU" in capturing.against((3,), ())
    assert "need tensors on a GPU" in capturing.against((x,), ())
    monkeypatch.setattr(torch.Tensor, "device", torch.device("cuda", 0))
    assert capturing.against((x, 3), ()) == ""
    assert "gradients are wanted" in capturing.against((x,), (wanted,))
    assert "gradients are wanted" in capturing.against((wanted,), ())
    with torch.no_grad():
        assert capturing.against((wanted,), (wanted,)) == ""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert "a larger graph" in capturing.against((x,), ())


def test_what_cannot_be_called():
    with pytest.raises(ArgumentError, match=r"a int cannot be called.*A function of tensors"):
        pgt.captured(3)
