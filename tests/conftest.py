"""Tests marked ``gpu`` are skipped where there is no GPU to run on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import progress
import pytest
from hypothesis import HealthCheck, settings

from polygen.errors import ToolchainMissing
from polygen.runtime.cupy_import import give_folder

give_folder()  # test modules import CuPy by themselves, and the home folder may be missing

# No example fails for being slow: on a busy machine any may be.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = _missing_gpu() if marked else None
    if reason:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


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
