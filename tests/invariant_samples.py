"""Programs whose bits must not depend on M: types, layouts, epilogues, pairs and batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.api import Fused
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Program, Tensor
from polygen.frontend.signature import parse_signature
from polygen.kernel import Kernel
from polygen.runtime.arrays import in_order

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One program.

    Attributes:
        expression: over the operands.
        operands: descriptions; M is the dim that has no part in the bits.
        out_dtype: as for `Fused.compile`.
        acc_dtype: likewise.
    """

    expression: str
    operands: tuple[str, ...]
    out_dtype: str | None = None
    acc_dtype: str = "f32"

    @property
    def fused(self) -> Fused:
        """The function."""
        names = tuple(parse_signature(text).name for text in self.operands)
        return Fused(parse_expression(self.expression, names), "sample", self.expression, False)

    def program(self) -> Program:
        """The program, with M invariant."""
        return self.fused.program(
            *self.operands, out_dtype=self.out_dtype, acc_dtype=self.acc_dtype, invariant="M"
        )

    def kernel(self, arch: str, sizes: dict[str, int], **options: Any) -> Kernel:
        """A kernel for sizes, with M invariant."""
        return self.fused.compile(
            *self.operands, arch=arch, sizes=sizes, out_dtype=self.out_dtype,
            acc_dtype=self.acc_dtype, invariant=("M",), **options,
        )  # fmt: skip


def _nt(dtype: str, *more: str) -> tuple[str, ...]:
    return (f"x:{dtype}[M,K]", f"w:{dtype}[N,K]", *more)


SAMPLES = {
    "bf16": Sample("x @ w.T", _nt("bf16")),
    "f16": Sample("x @ w.T", _nt("f16")),
    "f16 sums": Sample("x @ w.T", _nt("f16"), acc_dtype="f16"),
    "tf32": Sample("x @ w.T", _nt("tf32")),
    "e4m3": Sample("x @ w.T", _nt("e4m3")),
    "e5m2 to f32": Sample("x @ w.T", _nt("e5m2"), out_dtype="f32"),
    "s8": Sample("x @ w.T", _nt("s8"), out_dtype="f32"),
    "s8, scaled": Sample("(x @ w.T) * s + b", _nt("s8", "s:f32", "b:f32[N]"), out_dtype="bf16"),
    "to f32": Sample("x @ w.T", _nt("bf16"), out_dtype="f32"),
    "bias, gelu": Sample("gelu(x @ w.T + b)", _nt("bf16", "b:bf16[N]")),
    "bias, residual, relu": Sample(
        "relu(x @ w.T + b + r)", _nt("bf16", "b:f32[N]", "r:bf16[M,N]")
    ),
    "gate": Sample("silu(x @ w.T + b) * g", _nt("f16", "b:f16[N]", "g:f16[M,N]")),
    "fused products and sums": Sample(
        "s * (x @ w.T) + c * r + b", _nt("bf16", "s:f32", "c:f32[M,1]", "r:f32[M,N]", "b:f32[N]"),
        out_dtype="f32",
    ),
    "polynomial, f32": Sample(
        "(x @ w.T) * ((x @ w.T) * b + r) - b * r", _nt("tf32", "b:f32[N]", "r:f32[M,N]")
    ),
    "soft cap": Sample("30 * tanh((x @ w.T) / 30)", _nt("bf16")),
    "two outputs": Sample("(relu(x @ w.T), (x @ w.T) * 2 + b)", _nt("bf16", "b:f32[N]")),
    "nn": Sample("sigmoid(x @ w)", ("x:bf16[M,K]", "w:bf16[K,N]")),
    "tt": Sample("x.T @ w.T + r", ("x:f16[K,M]", "w:f16[N,K]", "r:f16[M,N]")),
    "column-major residual": Sample("maximum(x @ w.T, r)", _nt("bf16", "r:bf16[M,N]:col")),
    "gated pair": Sample(
        "silu(x @ u.T) * (x @ v.T)", ("x:bf16[M,K]", "u:bf16[N,K]", "v:bf16[N,K]")
    ),
    "pair of e4m3": Sample(
        "gelu(x @ u.T) * (x @ v.T)", ("x:e4m3[M,K]", "u:e4m3[N,K]", "v:e4m3[N,K]")
    ),
    "sum of two products": Sample(
        "x @ w.T + y @ v.T", (*_nt("f16"), "y:f16[M,L]", "v:f16[N,L]")
    ),
    "batch": Sample("gelu(x @ w)", ("x:bf16[B,M,K]", "w:bf16[B,K,N]")),
    "batch, one weight": Sample("x @ w.T + b", ("x:f16[B,M,K]", "w:f16[N,K]", "b:f16[N]")),
    "unaligned rows": Sample("x @ w.T + b", ("x:bf16[M,K]@2", "w:bf16[N,K]@2", "b:bf16[N]")),
}  # fmt: skip

# More rows than the tiles of any family have; of the others, one more and one less than some.
MOST_ROWS = 80


def arrays(program: Program, sizes: dict[str, int], seed: int) -> tuple[Any, ...]:
    """Normal random operands; of integers, uniform ones.

    Args:
        program: whose inputs to make.
        sizes: of all dims.
        seed: of the numbers.
    """
    generator = np.random.default_rng(seed)

    def made(tensor: Tensor) -> Any:
        shape = tuple(d if isinstance(d, int) else sizes[d] for d in tensor.dims)
        if not shape:
            return float(np.float32(generator.standard_normal()))
        if tensor.dtype.kind == "int":
            values = generator.integers(-128, 128, shape).astype(np.int8)
        else:
            values = generator.standard_normal(shape).astype(np.float32)
        return in_order(values.astype(tensor.dtype.numpy), tensor.order)

    return tuple(map(made, program.inputs))


def rows_of(values: tuple[Any, ...], program: Program, rows: slice) -> tuple[Any, ...]:
    """The operands of some rows, as new arrays in the same storage order."""

    def cut(tensor: Tensor, value: Any) -> Any:
        if "M" not in tensor.dims:
            return value
        index = tuple(rows if dim == "M" else slice(None) for dim in tensor.dims)
        return in_order(np.array(value[index]), tensor.order)

    return tuple(cut(t, v) for t, v in zip(program.inputs, values, strict=True))


def bits(array: Array) -> Array:
    """The bits of elements, so that NaNs and zeros compare as what they are."""
    return np.ascontiguousarray(array).view(
        {1: np.uint8, 2: np.uint16, 4: np.uint32}[array.itemsize]
    )
