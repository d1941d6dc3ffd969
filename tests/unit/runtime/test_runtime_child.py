"""The child process that may hang, die or fail."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from polygen.runtime.child import Lost, Stage, Watched

PATIENCE = 600.0  # seconds for what answers, however slow the machine is


def handler() -> Any:
    """Does what jobs say, in a process of its own."""
    kept: list[Any] = []

    def handle(job: dict[str, Any], stage: Stage) -> Any:
        kept.append(job)
        stage(job.get("stage", "work"), job.get("limit", PATIENCE))
        if job["do"] == "hang":
            threading.Event().wait()  # for ever: only a time limit ends it
        if job["do"] == "die":
            os._exit(7)
        if job["do"] == "fail":
            raise ValueError("the card\nis gone")
        print("worked")
        return os.getpid(), len(kept)

    return handle


def broken() -> Any:
    raise RuntimeError("no CUDA")


def test_a_child_that_hangs_dies_or_fails_is_replaced(tmp_path):
    log = tmp_path / "log"
    worker = Watched(handler, PATIENCE, PATIENCE, log)
    try:
        first, count = worker.ask({"do": "work"})
        assert (first, 2) == worker.ask({"do": "work", "padding": b"x" * 1_000_000})
        with pytest.raises(Lost, match=r"check: no answer within 0.2 s") as caught:
            worker.ask({"do": "hang", "stage": "check", "limit": 0.2})
        assert caught.value.stage == "check"
        second, count = worker.ask({"do": "work"})
        assert second != first and count == 1
        with pytest.raises(Lost, match="the process ended with 7"):
            worker.ask({"do": "die"})
        with pytest.raises(Lost, match="ValueError: the card is gone"):
            worker.ask({"do": "fail"})
        assert worker.ask({"do": "work"})[1] == 1
    finally:
        worker.stop()
        worker.stop()
    assert log.read_text().count("worked") == 4 and "ValueError" in log.read_text()


def test_a_child_that_cannot_start_says_why():
    worker = Watched(broken, PATIENCE, PATIENCE)
    with pytest.raises(Lost, match="start: RuntimeError: no CUDA"):
        worker.ask({"do": "work"})
    worker.stop()


def test_an_answer_that_nobody_waited_for_is_not_the_next_one_s(monkeypatch):
    child = Watched(handler, PATIENCE, PATIENCE)
    first, _ = child.ask({"do": "work"})
    receive = child._receive

    def interrupted(stage: str, limit: float) -> Any:
        monkeypatch.setattr(child, "_receive", receive)
        raise KeyboardInterrupt

    monkeypatch.setattr(child, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.ask({"do": "work"})
    second, jobs = child.ask({"do": "work"})
    assert second != first and jobs == 1
    child.stop()
