"""The progress bar of the tests themselves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from progress import Bar, line


def test_the_line_says_what_is_done_and_how_long_it_will_take():
    text = line(done=1000, total=4000, failed=0, seconds=100, width=80)
    assert text == f"[{'=' * 10}{' ' * 30}]  25% 1000/4000, 1:40, 5:00 left"
    assert line(4000, 4000, 2, 400, 80).endswith("] 100% 4000/4000, 2 failed, 6:40")
    assert line(0, 0, 0, 0.0, 80).endswith("]   0% 0/0, 0:00")


@pytest.mark.parametrize("width", [1, 10, 40, 79, 300])
def test_the_line_fits_the_terminal(width):
    assert len(line(1234, 4567, 89, 1000, width)) < width or width == 1


class Writer:
    def __init__(self):
        self.text = ""

    def write(self, text, flush=False):
        self.text += text

    def line(self):
        self.text += "\n"


def report(when, outcome="passed"):
    return SimpleNamespace(when=when, outcome=outcome, **{
        one: one == outcome for one in ("passed", "failed", "skipped")})  # fmt: skip


def test_it_counts_tests_and_failures_and_swallows_letters():
    bar = Bar(writer := Writer())
    bar.pytest_xdist_node_collection_finished(["a", "b", "c"])
    assert bar.pytest_report_teststatus(report("call", "failed")) == ("failed", "", "")
    assert bar.pytest_report_teststatus(report("setup", "failed")) == ("error", "", "")
    assert bar.pytest_report_teststatus(report("setup", "skipped")) == ("skipped", "", "")
    assert bar.pytest_report_teststatus(report("teardown")) is None
    for outcome in ("passed", "failed"):
        for when in ("setup", "call", "teardown"):
            bar.pytest_runtest_logreport(report(when, outcome if when == "call" else "passed"))
    assert "67% 2/3, 1 failed" in writer.text and writer.text.count("\r") == 2
