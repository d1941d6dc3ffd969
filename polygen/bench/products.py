"""PyTorch's matrix product of each type: what ``@`` is there, or the function that stands for it.

PyTorch's operator multiplies floats of 16 bits and, where it may, f32 as tf32. Products of 8-bit
types are functions of their own, which cuBLASLt computes: both want K innermost in both operands,
and rows and columns in multiples of 8 or 16; what they refuse is the reason a record gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polygen.bench.elements import ELEMENTS
from polygen.errors import BenchError

Product = Callable[..., Any]  # (left, right, out=None): matrices of PyTorch


def torch_types() -> dict[str, Any]:
    """PyTorch's types by polygen's names."""
    import torch  # noqa: PLC0415

    return {
        "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "tf32": torch.float32,
        "s8": torch.int8, "e4m3": torch.float8_e4m3fn, "s32": torch.int32,
    }  # fmt: skip


def allow(dtype: str, acc: str) -> None:
    """Set what PyTorch may do with a row's products: f16 sums, and f32 as tf32."""
    import torch  # noqa: PLC0415

    torch.backends.cuda.matmul.allow_fp16_accumulation = acc == "f16"
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"


def drawn(shape: tuple[int, ...], kind: Any, device: str = "cuda") -> Any:
    """Random elements of a PyTorch type: normal floats, or all integers of 8 bits."""
    import torch  # noqa: PLC0415

    if kind == torch.int8:
        return torch.randint(-128, 128, shape, device=device, dtype=kind)
    if kind == torch.float8_e4m3fn:  # PyTorch draws no 8-bit floats
        return torch.randn(shape, device=device, dtype=torch.float32).to(kind)
    return torch.randn(shape, device=device, dtype=kind)


def by_operator(dtype: str) -> bool:
    """Whether ``@`` multiplies matrices of the type."""
    return ELEMENTS[dtype].default


def product(dtype: str, batched: bool = False) -> Product:
    """The function that multiplies matrices of a type.

    Args:
        dtype: of a row. Products of s8 are int32, as PyTorch has them; `out` may be any 32-bit
            matrix.
        batched: whether operands have a batch as their first axis.

    Raises:
        BenchError: there is none for batches.
    """
    import torch  # noqa: PLC0415

    if by_operator(dtype):
        operator: Product = torch.bmm if batched else torch.mm
        return operator
    if batched:
        raise BenchError(f"no function multiplies batches of {dtype}", where="PyTorch")
    if dtype == "s8":

        def of_integers(left: Any, right: Any, out: Any = None) -> Any:
            if out is None:
                return torch._int_mm(left, right)
            return torch._int_mm(left, right, out=out.view(torch.int32))

        return of_integers
    one = torch.ones((), device="cuda")
    result = torch_types()[ELEMENTS[dtype].result]

    def scaled(left: Any, right: Any, out: Any = None) -> Any:
        # Fast sums are the matrix unit's own, as polygen's are.
        words = {"scale_a": one, "scale_b": one, "out_dtype": result, "use_fast_accum": True}
        return torch._scaled_mm(left, right, **words, **({} if out is None else {"out": out}))

    return scaled


def no_steps_in_place(dtype: str, steps: tuple[Any, ...]) -> None:
    """Refuse steps in place after a product whose type they would have to change.

    Raises:
        BenchError: there are steps, and the product is int32.
    """
    if dtype == "s8" and steps:
        raise BenchError(
            "the product of int8 is int32, and no step in place makes f32 of it", where="PyTorch"
        )
