"""Polygen in PyTorch: operators of array code, and a backend of `torch.compile`.

    import polygen.adapters.torch as pgt

    up = pgt.op(lambda x, w, b: pg.gelu(x @ w.T + b))
    y = up(x, w, b)

    fast = torch.compile(model, backend="polygen")
    print(pgt.explain(model, x))

Importing this imports PyTorch; `import polygen` does not. The backend loads PyTorch's compiler, and
is itself loaded on first use. docs/torch.md explains.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from polygen.adapters.rules import beside, pattern, rule
from polygen.adapters.torch.operator import Operator, op

if TYPE_CHECKING:
    from polygen.adapters.torch.backend import Explanation, explain, polygen
    from polygen.adapters.torch.capturing import Captured, captured
    from polygen.adapters.torch.overlap import gathered, scattered
    from polygen.adapters.torch.pipelines import Pipeline, pipeline
    from polygen.adapters.torch.settled import Record

__all__ = [
    "Captured",
    "Explanation",
    "Operator",
    "Pipeline",
    "Record",
    "beside",
    "captured",
    "explain",
    "gathered",
    "op",
    "pattern",
    "pipeline",
    "polygen",
    "rule",
    "scattered",
]

_LATER = {
    "Captured": "capturing",
    "Explanation": "backend",
    "Pipeline": "pipelines",
    "Record": "settled",
    "captured": "capturing",
    "explain": "backend",
    "gathered": "overlap",
    "pipeline": "pipelines",
    "polygen": "backend",
    "scattered": "overlap",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
