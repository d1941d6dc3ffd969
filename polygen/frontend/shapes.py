"""Shape and dtype rules of the array language.

Broadcasting is NumPy's, over dims that are names or numbers: axes align at the right, equal dims
match, a dim of 1 stretches. A name equals only itself, because its value is a run-time argument.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from polygen.errors import DTypeError, ShapeError, SignatureError, in_digits
from polygen.frontend.dtypes import (
    BF16,
    BOOL,
    E4M3,
    E5M2,
    F16,
    F32,
    F64,
    NAMED,
    S8,
    S32,
    TF32,
    U8,
    DType,
)
from polygen.frontend.dtypes import dtype as to_dtype
from polygen.frontend.nodes import Dims
from polygen.frontend.program import Dim, Tensor

MATMUL_DTYPES = (F16, BF16, TF32, F32, F64, E4M3, E5M2, S8, U8)
_MEETING = ((S8, U8), (E4M3, E5M2))  # types that one instruction multiplies by each other
ITERATORS = ("i", "j", "k")  # of a matrix product; those of further axes avoid the dims' names
# Kernels count in s32, and round sizes up to whole tiles, which are far smaller than the margin.
LARGEST_SIZE = 2**31 - 2**16
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def shape_text(dims: Sequence[Dim]) -> str:
    """Dims as a signature writes them."""
    return f"[{', '.join(map(str, dims))}]"


def check_tensor(tensor: Tensor) -> Tensor:
    """The tensor with its order filled in, once its dims, dtype, order and alignment are legal.

    Raises:
        ShapeError: a size below 1.
        DTypeError: a dtype that arguments cannot have.
        SignatureError: a bad name, order or alignment.
    """
    where = f"argument {tensor.name or '?'}"
    for dim in tensor.dims:
        _check_dim(dim, where)
    if tensor.dtype.name not in NAMED:
        raise DTypeError(
            f"an argument cannot be {tensor.dtype}",
            where=where,
            nearest=f"Known: {', '.join(NAMED)}",
        )
    if not tensor.dims and tensor.dtype != F32:
        raise DTypeError(
            f"a run-time scalar cannot be {tensor.dtype}", where=where, nearest="Use f32[]"
        )
    order = tensor.order or tuple(range(len(tensor.dims)))
    if sorted(order) != list(range(len(tensor.dims))):
        raise SignatureError(
            f"order {order} does not permute the axes of {shape_text(tensor.dims)}", where=where
        )
    size, alignment = tensor.dtype.bytes, tensor.alignment
    if alignment < size or alignment & (alignment - 1):
        raise SignatureError(
            f"alignment of {in_digits(alignment)} bytes",
            where=where,
            why=f"it must be a power of two, and a {tensor.dtype} element has {size} byte(s)",
            nearest=f"Use {size}, …, 16",
        )
    return replace(tensor, order=order)


def _check_dim(dim: Dim, where: str) -> None:
    if isinstance(dim, str):
        if not _NAME.fullmatch(dim):
            raise SignatureError(
                f"{dim!r} is not a dim", where=where, nearest="Use a name or a number"
            )
        if dim in ITERATORS:
            raise SignatureError(
                f"the dim name {dim!r} is taken by a loop",
                where=where,
                nearest=f"Use {dim.upper()!r}",
            )
    elif isinstance(dim, bool) or not isinstance(dim, int):
        raise SignatureError(f"{dim!r} is not a dim", where=where, nearest="Use a name or a number")
    elif dim < 1:
        raise ShapeError(f"a size of {in_digits(dim)}", where=where, nearest="Sizes are at least 1")
    elif dim > LARGEST_SIZE:
        raise ShapeError(
            f"a size of {in_digits(dim)}",
            where=where,
            why="a kernel counts in 32 bits",
            nearest=f"Sizes are at most {LARGEST_SIZE}",
        )


def broadcast(function: str, operands: Sequence[tuple[str, Dims]], inner: int = 0) -> Dims:
    """The dims that operands broadcast to.

    Args:
        function: named in the message.
        operands: per operand, how it reads and its dims.
        inner: how many last axes to leave out.

    Raises:
        ShapeError: two dims differ and neither is 1; both operands and both dims are named.
    """
    rank = max(len(dims) for _, dims in operands)
    result: list[Dim] = []
    for axis in range(-rank, -inner):
        chosen: Dim = 1
        owner = ""
        for text, dims in operands:
            dim = dims[axis] if -axis <= len(dims) else 1
            if dim == 1 or dim == chosen:
                continue
            if chosen != 1:
                raise ShapeError.between(
                    chosen,
                    dim,
                    f"{function} of {owner} and {text}: {owner} has {chosen} where {text} "
                    f"has {dim}",
                    why=_shapes(operands),
                    nearest=dim_hint(chosen, dim) + _column_hint(operands),
                )
            chosen, owner = dim, text
        result.append(chosen)
    return tuple(result)


def _column_hint(operands: Sequence[tuple[str, Dims]]) -> str:
    """A vector that is as long as the others have rows is meant to be a column."""
    rows = {dims[0] for _, dims in operands if len(dims) == 2}
    for text, dims in operands:
        if len(dims) == 1 and dims[0] in rows and text.isidentifier():
            return f". Or did you mean {text}[:, None]?"
    return ""


def _shapes(operands: Sequence[tuple[str, Dims]]) -> str:
    return ", ".join(f"{text} is {shape_text(dims)}" for text, dims in operands if dims)


def sum_hint(first: Dim, second: Dim) -> str:
    """What to do about two dims that a product sums over, of which no 1 stretches."""
    stretched = "An axis of size 1 is not stretched along a sum. " if 1 in (first, second) else ""
    return stretched + dim_hint(first, second, stretches=False)


def dim_hint(first: Dim, second: Dim, *, stretches: bool = True) -> str:
    """What to do about two dims that should be one; `stretches`: of sizes one may be 1."""
    if isinstance(first, int) and isinstance(second, int):
        return "Sizes must be equal" + ", or one of them 1" * stretches
    if isinstance(first, str) and isinstance(second, str):
        return f"If {first} and {second} are always equal, give both dims one name"
    name, number = (first, second) if isinstance(first, str) else (second, first)
    return f"A name equals only itself: if {name} is always {number}, write {number} in its place"


@dataclass(frozen=True, slots=True)
class ProductAxes:
    """What the axes of a product's operands run along; the labels are those of `ProductNode`."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    dims: Dims
    summed: Dims


def matmul_axes(lhs: tuple[str, Dims], rhs: tuple[str, Dims]) -> ProductAxes:
    """The axes of a matrix product by NumPy's rules: leading axes are batches, a vector has no row.

    Args:
        lhs: how the operand reads, and its dims.
        rhs: the same of the other.

    Raises:
        ShapeError: a scalar operand, inner dims that differ, or batch dims that do not broadcast.
    """
    (left, left_dims), (right, right_dims) = lhs, rhs
    for text, dims in (lhs, rhs):
        if not dims:
            raise ShapeError(
                f"{left} @ {right}: {text} has 0 axes",
                why=f"{text} is a scalar; a matmul takes matrices and vectors",
                nearest="Use *",
            )
    inner = right_dims[-2] if len(right_dims) > 1 else right_dims[-1]
    if left_dims[-1] != inner:
        turned = len(left_dims) > 1 and len(right_dims) > 1 and left_dims[-1] == right_dims[-1]
        turn = "T" if len(right_dims) == 2 else "mT"
        transposed = f" Or did you mean {left} @ {right}.{turn}?" if turned else ""
        raise ShapeError.between(
            left_dims[-1],
            inner,
            f"{left} @ {right}: {left} has inner dim {left_dims[-1]}, "
            f"{right} has inner dim {inner}",
            why=f"{left} is {shape_text(left_dims)}, {right} is {shape_text(right_dims)}",
            nearest=sum_hint(left_dims[-1], inner) + "." * bool(transposed) + transposed,
        )
    rows, columns = left_dims[-2:-1], right_dims[-1:] if len(right_dims) > 1 else ()
    batch = broadcast(f"{left} @ {right}: batch dims", (lhs, rhs), inner=2)
    dims = (*batch, *rows, *columns)
    batches = tuple(range(len(batch)))

    def labels(count: int, *last: int) -> tuple[int, ...]:
        return (*batches[len(batch) - count :], *last)

    row = tuple(range(len(batch), len(batch) + len(rows)))
    column = tuple(range(len(dims) - len(columns), len(dims)))
    return ProductAxes(
        labels(max(len(left_dims) - 2, 0), *row, len(dims)),
        labels(max(len(right_dims) - 2, 0), len(dims), *column),
        dims,
        left_dims[-1:],
    )


def check_matmul_dtypes(lhs: tuple[str, DType], rhs: tuple[str, DType]) -> None:
    """Refuses operand dtypes that no tensor core multiplies.

    Raises:
        DTypeError: f32 or another non-operand dtype, or two that no instruction takes together.
    """
    text = f"{lhs[0]} @ {rhs[0]}"
    for (operand, dtype), (_, other) in ((lhs, rhs), (rhs, lhs)):
        alone = dtype in (F32, U8)  # what other types do not meet
        if dtype in MATMUL_DTYPES and (not alone or other in _meeting(dtype)):
            continue
        if dtype == F32:
            raise DTypeError(
                f"{text}: {operand} is f32, the other operand {other}",
                why="f32 is multiplied by f32 alone, in parts of tf32",
                nearest=f'Write {operand}.astype("f64")'
                if other == F64
                else "Say f32[...] of both; or tf32[...], whose arrays stay float32",
            )
        if dtype in (U8, S32, BOOL):
            raise DTypeError(
                f"{text}: {operand} is {dtype}",
                why="it is what operands are computed from",
                nearest=f'Write {operand}.astype("bf16")',
            )
        known = ", ".join(map(str, MATMUL_DTYPES))
        raise DTypeError(f"{text}: {operand} is {dtype}", nearest=f"A matmul multiplies {known}")
    if rhs[1] not in _meeting(lhs[1]):
        raise DTypeError(
            f"{text}: {lhs[0]} is {lhs[1]}, {rhs[0]} is {rhs[1]}",
            nearest="Both operands of a matmul have one dtype, or are s8 and u8, e4m3 and e5m2, or "
            "f16 and bf16",
        )


def _meeting(dtype: DType) -> tuple[DType, ...]:
    """The types by which one instruction multiplies a type."""
    return next((group for group in _MEETING if dtype in group), (dtype,))


def accumulator(operand: DType, requested: object) -> DType:
    """The accumulator's dtype: f32, f16 on request for f16, s32 for s8 and u8, f64 for f64.

    Raises:
        DTypeError: no tensor core accumulates so.
    """
    own = S32 if operand.kind == "int" else F64 if operand == F64 else F32
    legal = (F32, F16) if operand == F16 else (own,)
    wanted = to_dtype(requested, legal)
    if wanted == F32:  # the default, which for integers means s32
        return own
    if wanted not in legal:
        raise DTypeError(
            f"acc_dtype {wanted} with {operand} operands",
            nearest=f"Use {' or '.join(map(str, legal))}",
        )
    return wanted


def default_output(operand: DType, bare: bool) -> DType:
    """The output dtype when nobody names one.

    Args:
        operand: what the matmul multiplies.
        bare: the output is the contraction itself, with no pointwise function.
    """
    if operand.kind == "int":
        return S32 if bare else F32
    return {TF32: F32, E4M3: F16, E5M2: F16}.get(operand, operand)
