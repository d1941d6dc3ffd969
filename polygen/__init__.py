"""polygen: array code with a matmul in it becomes one fused, proved, tensor-core CUDA kernel.

The names below load what they need on first use, so that importing polygen costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polygen.api import Fused, fuse
    from polygen.errors import PolygenError
    from polygen.frontend.functions import absolute as abs
    from polygen.frontend.functions import (
        clip,
        erf,
        exp,
        exp2,
        gelu,
        gelu_tanh,
        hardswish,
        leaky_relu,
        log,
        log1p,
        logical_and,
        logical_not,
        logical_or,
        maximum,
        minimum,
        mish,
        relu,
        rsqrt,
        sigmoid,
        silu,
        softplus,
        sqrt,
        square,
        tanh,
        where,
    )
    from polygen.kernel import Kernel
    from polygen.schedule.load import load_schedule
    from polygen.schedule.model import Schedule

__version__ = "0.1.0"

__all__ = [
    "Fused",
    "Kernel",
    "PolygenError",
    "Schedule",
    "abs",
    "clip",
    "erf",
    "exp",
    "exp2",
    "fuse",
    "gelu",
    "gelu_tanh",
    "hardswish",
    "leaky_relu",
    "load_schedule",
    "log",
    "log1p",
    "logical_and",
    "logical_not",
    "logical_or",
    "maximum",
    "minimum",
    "mish",
    "relu",
    "rsqrt",
    "sigmoid",
    "silu",
    "softplus",
    "sqrt",
    "square",
    "tanh",
    "where",
]

# Where a name lives, for those that are not functions of `polygen.frontend.functions`.
_HOMES = {
    "Fused": "polygen.api",
    "fuse": "polygen.api",
    "Kernel": "polygen.kernel",
    "PolygenError": "polygen.errors",
    "Schedule": "polygen.schedule.model",
    "load_schedule": "polygen.schedule.load",
}
_RENAMED = {"abs": "absolute"}


if not TYPE_CHECKING:  # a type checker is to refuse names that do not exist

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'polygen' has no attribute {name!r}")
        home = importlib.import_module(_HOMES.get(name, "polygen.frontend.functions"))
        value = getattr(home, _RENAMED.get(name, name))
        if name not in _HOMES:
            importlib.import_module("polygen.vocabulary").document(value)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
