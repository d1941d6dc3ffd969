"""NumPy programs on the GPU, unchanged but for one line.

    import polygen.adapters.numpy as np

Arrays record what is done with them. What forces a value (printing, `float`, `if`, an index that is
data, a library's function) runs what it needs: pointwise chains and the folds of them as one kernel
each, matrix products with work around them as kernels of polygen where that wins and NumPy's
accuracy is kept, everything else by CuPy's libraries. Without a GPU all of it runs on NumPy.

Importing this imports no CuPy: first use does. docs/numpy.md explains.
"""

from __future__ import annotations

from typing import Any

from polygen.adapters.numpy.namespace import lookup
from polygen.adapters.numpy.report import polygen_report
from polygen.adapters.numpy.settings import polygen_options

__all__ = ["polygen_options", "polygen_report"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = lookup(name)
    return found
