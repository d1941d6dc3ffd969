"""Whether anybody sees, records or changes what operators do to some tensors.

Where nobody does, PyTorch's dispatcher, which takes longer than the rest of a call, has nothing to
decide: calls go past it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.autograd import forward_ad

_is_there = attrgetter("is_cuda")


def are_plain(operands: Sequence[Any]) -> bool:
    """Whether operands are numbers, and tensors on a GPU of which PyTorch records nothing."""
    recorded = torch.is_grad_enabled()
    for one in operands:
        kind = type(one)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if not _is_there(one) or (recorded and one.requires_grad) or one.is_neg():
                return False
        elif kind is not float and kind is not int:
            return False
    return True


def is_watched() -> bool:
    """Whether somebody sees or changes what operators do: a mode, a transform, a profiler.

    Where nobody does, the dispatcher, which takes longer than the rest of a call, has nothing to
    decide.
    """
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch.is_autocast_enabled("cuda")
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch.autograd._profiler_enabled()
    )
