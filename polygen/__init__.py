"""polygen: array code with a matmul in it becomes one fused, proved, tensor-core CUDA kernel."""

from __future__ import annotations

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
