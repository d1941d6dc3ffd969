"""Types in which PyTorch multiplies, and how values are rounded to what kernels store."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from polygen.adapters.torch.tensors import torch_dtype
from polygen.frontend.dtypes import DType


def multiplied(kinds: Sequence[torch.dtype]) -> torch.dtype:
    """The type in which PyTorch multiplies operands as kernels do: whole numbers exactly.

    Args:
        kinds: of the operands.
    """
    if not all(kind.is_floating_point for kind in kinds):
        return torch.float64
    same = len(set(kinds)) == 1 and kinds[0].itemsize > 1
    return kinds[0] if same else torch.float32


def rounded(values: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Values as a kernel stores them: `polygen.frontend.rounding` in PyTorch.

    Args:
        values: any shape; float64 where whole numbers are stored that float32 does not hold.
        dtype: integers are the nearest, ties to even, and saturate, as floats of 8 bits do.
    """
    kind = torch_dtype(dtype)
    if dtype.kind == "int":
        limits = torch.iinfo(kind)
        whole = values.to(torch.float64).round().clamp(limits.min, limits.max)
        return whole.nan_to_num(0.0).to(kind)
    if dtype.kind == "float" and dtype.bits == 8:
        largest = torch.finfo(kind).max
        values = values.clamp(-largest, largest)
    return values.to(kind)
