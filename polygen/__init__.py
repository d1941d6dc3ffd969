"""polygen: array code with a matmul in it becomes one fused, proved, tensor-core CUDA kernel.

The names below load what they need on first use, so that importing polygen costs next to nothing.
"""

from __future__ import annotations

import importlib
from math import e, inf, nan, pi
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polygen.api import Fused, fuse
    from polygen.errors import PolygenError
    from polygen.frontend import random
    from polygen.frontend.coordinates import indices, repeat, tril, triu
    from polygen.frontend.folds import averaged as mean
    from polygen.frontend.folds import every as all
    from polygen.frontend.folds import index_of_largest as argmax
    from polygen.frontend.folds import index_of_smallest as argmin
    from polygen.frontend.folds import largest as max
    from polygen.frontend.folds import layer_norm, logsumexp, rms_norm, softmax
    from polygen.frontend.folds import multiplied as prod
    from polygen.frontend.folds import smallest as min
    from polygen.frontend.folds import some as any
    from polygen.frontend.folds import summed as sum
    from polygen.frontend.functions import absolute as abs
    from polygen.frontend.functions import (
        arctan2,
        cbrt,
        ceil,
        celu,
        clip,
        copysign,
        cos,
        elu,
        erf,
        erfc,
        erfinv,
        exp,
        exp2,
        expm1,
        floor,
        gelu,
        gelu_tanh,
        hardswish,
        heaviside,
        hypot,
        isfinite,
        isinf,
        isnan,
        leaky_relu,
        log,
        log1p,
        logaddexp,
        logical_and,
        logical_not,
        logical_or,
        logsigmoid,
        maximum,
        minimum,
        mish,
        power,
        reciprocal,
        relu,
        rsqrt,
        selu,
        sigmoid,
        sign,
        silu,
        sin,
        softplus,
        softsign,
        sqrt,
        square,
        tan,
        tanh,
        trunc,
        where,
    )
    from polygen.frontend.functions import round_half_even as rint
    from polygen.frontend.functions import round_half_even as round
    from polygen.frontend.gathering import check_rows
    from polygen.frontend.groups import check_ends, grouped_matmul, per_group
    from polygen.frontend.joined import concatenate, split, stack
    from polygen.frontend.norms import matrix_norm, norm, vector_norm
    from polygen.frontend.packed import pack, unpack
    from polygen.frontend.products import (
        einsum,
        inner,
        matmul,
        matvec,
        outer,
        vdot,
        vecdot,
        vecmat,
    )
    from polygen.frontend.random import dropout
    from polygen.frontend.selecting import diagonal, nan_to_num, take_along_axis, trace
    from polygen.frontend.statistics import average, count_nonzero, log_softmax, ptp, std, var
    from polygen.frontend.user_monoids import fold, monoid
    from polygen.kernel import Kernel
    from polygen.kernel_sequence import KernelSequence
    from polygen.machine import Launch, TensorMap
    from polygen.schedule.load import load_schedule
    from polygen.schedule.model import Schedule
    from polygen.verdict import Verdict, judge

__version__ = "0.1.0"

__all__ = [
    "Fused",
    "Kernel",
    "KernelSequence",
    "Launch",
    "PolygenError",
    "Schedule",
    "TensorMap",
    "Verdict",
    "abs",
    "all",
    "any",
    "arctan2",
    "argmax",
    "argmin",
    "average",
    "cbrt",
    "ceil",
    "celu",
    "check_ends",
    "check_rows",
    "clip",
    "concatenate",
    "copysign",
    "cos",
    "count_nonzero",
    "diagonal",
    "dropout",
    "e",
    "einsum",
    "elu",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "fold",
    "fuse",
    "gelu",
    "gelu_tanh",
    "grouped_matmul",
    "hardswish",
    "heaviside",
    "hypot",
    "indices",
    "inf",
    "inner",
    "isfinite",
    "isinf",
    "isnan",
    "judge",
    "layer_norm",
    "leaky_relu",
    "load_schedule",
    "log",
    "log1p",
    "log_softmax",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logsigmoid",
    "logsumexp",
    "matmul",
    "matrix_norm",
    "matvec",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "monoid",
    "nan",
    "nan_to_num",
    "norm",
    "outer",
    "pack",
    "per_group",
    "pi",
    "power",
    "prod",
    "ptp",
    "random",
    "reciprocal",
    "relu",
    "repeat",
    "rint",
    "rms_norm",
    "round",
    "rsqrt",
    "selu",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "softsign",
    "split",
    "sqrt",
    "square",
    "stack",
    "std",
    "sum",
    "take_along_axis",
    "tan",
    "tanh",
    "trace",
    "tril",
    "triu",
    "trunc",
    "unpack",
    "var",
    "vdot",
    "vecdot",
    "vecmat",
    "vector_norm",
    "where",
]

# Where a name lives, for those that are not functions of the vocabulary.
_FUNCTIONS = "polygen.frontend.functions"
_HOMES = {
    "Fused": "polygen.api",
    "fuse": "polygen.api",
    "Kernel": "polygen.kernel",
    "KernelSequence": "polygen.kernel_sequence",
    "PolygenError": "polygen.errors",
    "Schedule": "polygen.schedule.model",
    "load_schedule": "polygen.schedule.load",
    "Launch": "polygen.machine",
    "TensorMap": "polygen.machine",
    "Verdict": "polygen.verdict",
    "judge": "polygen.verdict",
    "einsum": "polygen.frontend.products",
    "check_ends": "polygen.frontend.groups",
    "check_rows": "polygen.frontend.gathering",
    "dropout": "polygen.frontend.random",
    "grouped_matmul": "polygen.frontend.groups",
    "concatenate": "polygen.frontend.joined",
    "split": "polygen.frontend.joined",
    "stack": "polygen.frontend.joined",
    "indices": "polygen.frontend.coordinates",
    "repeat": "polygen.frontend.coordinates",
    "tril": "polygen.frontend.coordinates",
    "triu": "polygen.frontend.coordinates",
    "pack": "polygen.frontend.packed",
    "unpack": "polygen.frontend.packed",
    "matmul": "polygen.frontend.products",
    "per_group": "polygen.frontend.groups",
}
_WORDS = {
    "polygen.frontend.norms": "matrix_norm norm vector_norm",
    "polygen.frontend.products": "inner matvec outer vdot vecdot vecmat",
    "polygen.frontend.selecting": "diagonal nan_to_num take_along_axis trace",
    "polygen.frontend.statistics": "average count_nonzero log_softmax ptp std var",
    "polygen.frontend.user_monoids": "fold monoid",
}
_HOMES |= {name: home for home, names in _WORDS.items() for name in names.split()}
# Reductions, under names that are not Python's.
_FOLDS = {
    "sum": "summed",
    "prod": "multiplied",
    "max": "largest",
    "min": "smallest",
    "mean": "averaged",
    "all": "every",
    "any": "some",
    "argmax": "index_of_largest",
    "argmin": "index_of_smallest",
    **{name: name for name in ("logsumexp", "softmax", "rms_norm", "layer_norm")},
}
_HOMES |= dict.fromkeys(_FOLDS, "polygen.frontend.folds")
_RENAMED = {"abs": "absolute", "round": "round_half_even", "rint": "round_half_even"} | _FOLDS


if not TYPE_CHECKING:  # a type checker is to refuse names that do not exist

    def __getattr__(name: str) -> Any:
        if name == "random":  # a module, as in NumPy
            return importlib.import_module("polygen.frontend.random")
        home = (
            None if name.startswith("__") else importlib.import_module(_HOMES.get(name, _FUNCTIONS))
        )
        if name in __all__:
            value = getattr(home, _RENAMED.get(name, name))
        else:  # a function of the vocabulary that is not listed above
            value = getattr(home, "PUBLIC", {}).get(name)
        if value is None:
            near = importlib.import_module("difflib").get_close_matches(name, __all__, 1)
            hint = f". Did you mean: {near[0]!r}?" if near else ""
            raise AttributeError(f"module 'polygen' has no attribute {name!r}{hint}")
        if name not in _HOMES:
            importlib.import_module("polygen.vocabulary").document(value)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
