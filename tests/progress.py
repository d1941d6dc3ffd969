"""A progress bar while tests run on a terminal; elsewhere pytest's dots and percentages stay."""

from __future__ import annotations

import shutil
import time
from typing import Any

import pytest


def line(done: int, total: int, failed: int, seconds: float, width: int) -> str:
    """The bar as text of a width: what is done, what failed, how long it took and will take."""
    share = min(1.0, done / total) if total else 0.0
    left = f", {clock(seconds * (1 - share) / share)} left" if 0.02 <= share < 1 else ""
    bad = f", {failed} failed" if failed else ""
    text = f" {share:4.0%} {done}/{total}{bad}, {clock(seconds)}{left}"
    room = max(0, min(40, width - len(text) - 3))
    full = int(room * share)
    return f"[{'=' * full}{' ' * (room - full)}]{text}"[: max(0, width - 1)]


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


class Bar:
    """Replaces the letters of single tests; failures are told at the end as always."""

    def __init__(self, writer: Any) -> None:
        self._writer, self._start = writer, time.monotonic()
        self._done, self._total, self._failed = 0, 0, 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = self._total or len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._total = len(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        if report.when != "call" and report.passed:
            return None
        if report.failed:
            return ("failed" if report.when == "call" else "error"), "", ""
        return None if hasattr(report, "wasxfail") else (report.outcome, "", "")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        self._failed += report.failed
        if report.when == "teardown":
            self._done += 1
            self.show()

    def show(self) -> None:
        width = shutil.get_terminal_size().columns
        text = line(self._done, self._total, self._failed, time.monotonic() - self._start, width)
        self._writer.write(f"\r{text:<{width - 1}}", flush=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._done:
            self._writer.line()


def use(config: pytest.Config) -> None:
    """Show the bar if somebody can see it, and did not ask for every test's name."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    watched = reporter is not None and reporter._tw.hasmarkup and config.option.verbose <= 0
    if watched and config.option.capture != "no" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Bar(reporter._tw), "progress-bar")
