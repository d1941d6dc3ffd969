"""Tests marked ``gpu`` are skipped where there is no GPU to run on.

Of those marked ``sample(n)`` one case in n runs, always the same; with POLYGEN_SAMPLE=all, all do.
Of those marked ``slow`` one in POLYGEN_SLOW_SHARE runs, whose name decides, so that other tests may
come and go; all do without it. Tests that `long_tests.txt` lists are marked so.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from zlib import crc32

import long_tests
import progress
import pytest
from hypothesis import HealthCheck, settings

from polygen.errors import ToolchainMissing
from polygen.runtime.cupy_import import give_folder

give_folder()  # test modules import CuPy by themselves, and the home folder may be missing

# No example fails for being slow: on a busy machine any may be. The same tree has the same verdict:
# examples are new ones only where POLYGEN_EXAMPLES=new asks for them.
settings.register_profile(
    "untimed",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("POLYGEN_EXAMPLES") != "new",
)
settings.load_profile("untimed")


def _missing_gpu() -> str | None:
    from polygen.runtime.driver import cupy_driver

    try:
        cupy_driver()
    except ToolchainMissing as reason:
        return str(reason)
    return None


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    progress.use(config)
    limit = os.environ.get("POLYGEN_NOTE_LONG")
    if limit and not os.environ.get("PYTEST_XDIST_WORKER"):
        config.pluginmanager.register(long_tests.Notes(float(limit)))


def _sampled(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that run, and those that are left out as other cases of the same test run."""
    run, left_out, counts = [], [], Counter[str]()
    for item in items:
        marker = item.get_closest_marker("sample")
        if marker is None:
            run.append(item)
            continue
        test = item.nodeid.partition("[")[0]
        (left_out if counts[test] % marker.args[0] else run).append(item)
        counts[test] += 1
    return run, left_out


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("POLYGEN_SAMPLE") != "all":
        items[:], left_out = _sampled(items)
        config.hook.pytest_deselected(items=left_out)
    long = long_tests.listed()
    for item in items:
        if item.nodeid in long:
            item.add_marker(pytest.mark.slow)
    share = int(os.environ.get("POLYGEN_SLOW_SHARE", "1"))
    slow = (one for one in items if one.get_closest_marker("slow"))
    left_out = [one for one in slow if crc32(one.nodeid.encode()) % share]
    if left_out:
        gone = set(left_out)
        items[:] = [one for one in items if one not in gone]
        config.hook.pytest_deselected(items=left_out)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = _missing_gpu() if marked else None
    if reason:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: no search for what may go has to walk through them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled kernels go to a folder of the test session, never to the user's cache.

    The processes of one session share it, so that what two tests need is compiled once.
    """
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent  # of the session's processes
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYGEN_CACHE_DIR", str(folder / "polygen-cache"))
        yield
