"""The functions of the vocabulary on PyTorch's tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from polygen.frontend import philox
from polygen.frontend.functions import TABLE
from polygen.frontend.symbolic import Symbolic


def _both(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of two tensors, for calls with a number in the place of one."""

    def call(x: Any, y: Any) -> Any:
        tensor = x if isinstance(x, torch.Tensor) else y
        return function(*(v if isinstance(v, torch.Tensor) else tensor.new_full((), v)
                          for v in (x, y)))  # fmt: skip

    return call


def _where(condition: Any, x: Any, y: Any) -> Any:
    if isinstance(x, torch.Tensor) or isinstance(y, torch.Tensor):
        return torch.where(condition, x, y)
    return torch.where(condition, torch.full((), x, device=condition.device), y)


def _cbrt(x: Any) -> Any:
    return torch.sign(x) * torch.abs(x) ** (1.0 / 3.0)


def _nibble(byte: Any, place: Any) -> Any:
    """The low half of a byte where its place is even, else the high one."""
    high = torch.floor(torch.as_tensor(byte) / 16)
    return torch.where(torch.as_tensor(place) % 2 > 0, high, byte - 16 * high)


def _random_uniform(*args: Any) -> Any:
    """Philox 4x32-10 in 64-bit integers; a factor of 32 bits goes in two halves."""
    low = 0xFFFFFFFF
    tensor = next(arg for arg in args if isinstance(arg, torch.Tensor))
    wide = (torch.as_tensor(arg, device=tensor.device).to(torch.int64) for arg in args)
    a, b, c, d, first = torch.broadcast_tensors(*wide)
    second = torch.zeros_like(first)

    def times(word: Any, factor: int) -> tuple[Any, Any]:
        above, below = word * (factor >> 16), word * (factor & 0xFFFF)
        return (above + (below >> 16)) >> 16, (((above & 0xFFFF) << 16) + below) & low

    for _ in range(philox.ROUNDS):
        (left_high, left), (right_high, right) = map(times, (a, c), philox.MULTIPLIERS)
        a, b, c, d = right_high ^ b ^ first, right, left_high ^ d ^ second, left
        first, second = (first + philox.STEPS[0]) & low, (second + philox.STEPS[1]) & low
    return (a >> 8).to(tensor.dtype) * 2.0**-24


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": operator.neg,
    "abs": torch.abs,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "minimum": _both(torch.minimum),
    "maximum": _both(torch.maximum),
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "cbrt": _cbrt,
    "hypot": _both(torch.hypot),
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "arctan2": _both(torch.arctan2),
    "tanh": torch.tanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinv": torch.erfinv,
    "sigmoid": torch.sigmoid,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "gelu": torch.nn.functional.gelu,
    "copysign": _both(torch.copysign),
    "logaddexp": _both(torch.logaddexp),
    "pow": operator.pow,
    "where": _where,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_not": torch.logical_not,
    "random_uniform": _random_uniform,
    "nibble_i4": lambda byte, place: (_nibble(byte, place) + 8) % 16 - 8,
    "nibble_u4": lambda byte, place: _nibble(byte, place),
}


class _Term(Symbolic):
    """A tensor inside the definition of a function."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def apply(self, function: str, *args: Any) -> Any:
        plain = [arg.value if isinstance(arg, _Term) else arg for arg in args]
        return _Term(applied(function, plain))


def applied(function: str, args: Sequence[Any]) -> Any:
    """A function of the vocabulary on tensors and numbers, at least one of them a tensor."""
    if function in FUNCTIONS:
        return FUNCTIONS[function](*args)
    definition = TABLE[function].definition
    assert definition is not None
    first = next(arg for arg in args if isinstance(arg, torch.Tensor))
    return definition(
        *(_Term(arg if isinstance(arg, torch.Tensor) else first.new_full((), arg)) for arg in args)
    ).value
