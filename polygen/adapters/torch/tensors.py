"""PyTorch's tensors as polygen sees them: element types, forms, storage, float64 on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from polygen.adapters.forms import Form
from polygen.errors import ArgumentError, DTypeError, SignatureError
from polygen.frontend.dtypes import F32, NAMED, TF32, DType
from polygen.runtime.arrays import storage_order

_BY_STORAGE = {d.storage: d for d in NAMED.values() if d != TF32}
KNOWN: dict[torch.dtype, DType] = {
    getattr(torch, storage): d for storage, d in _BY_STORAGE.items() if hasattr(torch, storage)
}


DEVICES = frozenset({"cuda"})  # on which kernels run


def torch_dtype(dtype: DType) -> torch.dtype:
    """The element type in which PyTorch keeps `dtype`."""
    found: torch.dtype = getattr(torch, dtype.storage)
    return found


def is_reference(operands: Sequence[Any]) -> bool:
    """Whether the program's meaning is asked for: float64 on the CPU, perhaps with masks."""
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    kinds = {t.dtype for t in tensors}
    return torch.float64 in kinds <= {torch.float64, torch.bool} and all(
        t.device.type == "cpu" for t in tensors
    )


def element(tensor: torch.Tensor, name: str, *, allow_tf32: bool) -> DType:
    """The polygen type of a tensor's elements.

    Raises:
        DTypeError: it has none.
    """
    if tensor.dtype == torch.float32:
        return TF32 if allow_tf32 and tensor.dim() >= 2 else F32
    found = KNOWN.get(tensor.dtype)
    if found is None:
        raise DTypeError(
            f"the tensor is {str(tensor.dtype).rpartition('.')[2]}",
            where=name,
            why="kernels read what tensor cores multiply, and f32",
            nearest=f"Convert it: {name}.to(torch.bfloat16); known are "
            f"{', '.join(str(d).rpartition('.')[2] for d in KNOWN)}",
        )
    return found


def forms(names: Sequence[str], operands: Sequence[Any], *, allow_tf32: bool = False) -> list[Form]:
    """The forms of the operands of a call; a number is a run-time scalar.

    Float64 tensors on the CPU stand for exact values: their forms are those of tf32, which is the
    type of products with the fewest conditions.

    Raises:
        DTypeError: an element type that no kernel reads.
        ArgumentError: a tensor without axes.
        SignatureError: operands are missing, or too many.
    """
    if len(operands) != len(names):
        raise SignatureError(
            f"{len(operands)} operands given, {len(names)} expected",
            nearest=f"Expected: {', '.join(names)}",
        )
    exact = is_reference(operands)
    found = []
    for name, operand in zip(names, operands, strict=True):
        if not isinstance(operand, torch.Tensor):
            found.append(Form(name, F32))
            continue
        if operand.dim() == 0:
            raise ArgumentError(
                "the tensor has no axes",
                where=name,
                why="a kernel takes numbers by value, and reading one from a tensor would wait",
                nearest=f'Name it: op(f, scalars=("{name}",)), and pass a number; '
                f"or pass {name}.reshape(1)",
            )
        number = exact and operand.dtype != torch.bool
        kind = TF32 if number else element(operand, name, allow_tf32=allow_tf32)
        found.append(Form(name, kind, tuple(operand.shape)))
    return found


def are_on_gpus(found: Sequence[torch.Tensor]) -> bool:
    """Whether kernels read these tensors where they are."""
    return all(one.device.type in DEVICES for one in found)


def order_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The axes of a tensor, the contiguous one last."""
    return storage_order(tensor.shape, tensor.stride())


def needs_copy(tensor: torch.Tensor) -> bool:
    """Whether no axis has neighbours that are adjacent, or elements lie on top of each other."""
    steps = [step for step, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1]
    return bool(steps) and (1 not in steps or 0 in steps)


def same_extent(first: Any, second: Any, needed: bool) -> bool:
    """Whether two extents are the same, of which each is a number or a symbol of a trace.

    Symbols that a program needs to be the same become a condition of the trace.
    """
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    if str(first) == str(second):
        return True
    if not needed:
        return False
    torch._check(first == second)
    return True
