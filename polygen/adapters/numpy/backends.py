"""Where arrays are, and what runs on them: CuPy on a GPU, or NumPy where there is none.

The backend is an argument: ``np.polygen_options(backend=...)``. A backend has an array module,
makes one kernel of pointwise functions and perhaps a fold (CuPy's `fuse`), and runs polygen's
programs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from polygen.adapters.numpy.on_cupy import CuPy, steps_of
from polygen.adapters.numpy.on_numpy import Backend
from polygen.adapters.numpy.settings import current, stated
from polygen.runtime.cupy_import import import_cupy

__all__ = ["NUMPY", "Backend", "CuPy", "active", "steps_of"]

NUMPY = Backend()


_latest: tuple[Any, Any] = (None, None)  # settings, and their backend


def active(*, _stated: Callable[[], Any] = stated) -> Any:
    """The backend in force."""
    global _latest
    known, backend = _latest
    if known is None or known is not _stated():
        settings = current()
        backend = _present() if settings.backend is None else settings.backend
        _latest = settings, backend
    return backend


@functools.cache
def _present() -> Backend:
    """CuPy if there is a GPU; it is imported here, on first use."""
    try:
        module = import_cupy()
        if module.cuda.runtime.getDeviceCount():
            return CuPy(module)
    except Exception:  # not installed, or no driver
        pass
    return NUMPY
