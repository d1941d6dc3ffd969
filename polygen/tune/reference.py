"""Some rows of a program's outputs on integers, in float64: what the anchor is checked against.

1. On the device, rows of the sums as sums of products in f32, exact because everything is a small
   integer. No library for linear algebra is needed.
2. On the host, the pointwise statements one by one over those rows, each as a program of its own.
   The fused band says which iterator of a statement runs over rows.

The array module is an argument: CuPy where this is used, NumPy where it is tested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polygen.frontend.dtypes import F32, DType
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Access, Constant, Contraction, Pointwise, Program, Tensor
from polygen.poly.fusion import fuse
from polygen.poly.scop import scop

Array = np.ndarray[Any, Any]


def as_f32(xp: Any, array: Any, dtype: DType) -> Any:
    """The values of a stored array in f32, on the device where it is."""
    if dtype.storage == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype.kind == "float" and dtype.bits == 8:
        table = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
        return xp.asarray(table)[array.view(np.uint8)]
    return array.view(np.dtype(dtype.storage)).astype(np.float32)


def bits(array: Any) -> Any:
    """The same memory as unsigned integers, which every version of CuPy can copy and compare."""
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def host(array: Any) -> Array:
    """A NumPy array of either module's array."""
    return np.asarray(array.get() if hasattr(array, "get") else array)


def row_axes(program: Program) -> dict[str, int]:
    """Of every output, the axis along which rows lie."""
    fusion = fuse(program, scop(program))
    written = {s.write.name: s for s in program.statements}
    return {
        t.name: written[t.name].write.index.index(fusion.iterators(written[t.name].name)[0])
        for t in program.outputs
    }


def sampled(
    xp: Any, program: Program, operands: Mapping[str, Any], rows: Sequence[int]
) -> dict[str, Array]:
    """Rows of the outputs, in float64 and not rounded.

    Args:
        xp: the array module of the operands.
        program: has one contraction, of matrices.
        operands: stored arrays, or numbers, by name; small integers.
        rows: which rows.

    Returns:
        Outputs by name, with only those rows.
    """
    fusion = fuse(program, scop(program))
    (contraction,) = program.contractions
    tensors = program.tensors
    chosen = xp.asarray(np.asarray(rows, dtype=np.int64))
    own = fusion.iterators(contraction.name)[0]
    values = {contraction.write.name: _sums(xp, program, contraction, operands, rows, own)}
    names = {t.name for t in program.outputs}

    def value(access: Access, iterator: str) -> Array:
        if access.name in values:
            return values[access.name]
        if not access.index:
            return np.asarray(operands[access.name], dtype=np.float64)
        array = bits(operands[access.name])
        for axis, index in enumerate(access.index):
            if index == iterator:
                array = xp.take(array, chosen, axis=axis)
        return host(as_f32(xp, array, tensors[access.name].dtype)).astype(np.float64)

    for statement in program.pointwise:
        iterator = fusion.iterators(statement.name)[0]
        given = [
            value(arg, iterator) if isinstance(arg, Access) else None for arg in statement.args
        ]
        final = statement.write.name in names
        values[statement.write.name] = _apply(statement, given, len(rows), iterator, final)
    return {name: values[name] for name in names}


def _sums(
    xp: Any,
    program: Program,
    contraction: Contraction,
    operands: Mapping[str, Any],
    rows: Sequence[int],
    row: str,
) -> Array:
    tensors = program.tensors
    left, right = contraction.reads
    if row in right.index:
        left, right = right, left

    def oriented(access: Access, first: bool) -> Any:
        array = operands[access.name]
        return array if first else array.T

    a = oriented(left, left.index[0] == row)
    column = next(i for i in contraction.write.index if i != row)
    b = as_f32(xp, oriented(right, right.index[0] == column), tensors[right.name].dtype)
    found = [(b * as_f32(xp, a[r], tensors[left.name].dtype)).sum(axis=1) for r in rows]
    sums = np.stack([host(one) for one in found]).astype(np.float64)
    return sums if contraction.write.index[0] == row else sums.T


def _apply(
    statement: Pointwise,
    given: Sequence[Array | None],
    rows: int,
    row: str,
    final: bool,
) -> Array:
    """One statement as a program of its own, over the rows alone."""
    extents: dict[str, int] = {row: rows}
    for arg, array in zip(statement.args, given, strict=True):
        if isinstance(arg, Access) and array is not None:
            for index, extent in zip(arg.index, array.shape, strict=True):
                if isinstance(index, str) and index != row:
                    extents[index] = max(extent, extents.get(index, 1))
    args: list[Access | Constant] = []
    inputs, arrays = [], {}
    for at, (arg, array) in enumerate(zip(statement.args, given, strict=True)):
        if not isinstance(arg, Access) or array is None:
            args.append(arg)
            continue
        name = f"argument{at}"
        args.append(replace(arg, name=name))
        inputs.append(Tensor(name, F32, array.shape))
        arrays[name] = array
    # A statement that reads no matrix runs over an extent that only its domain tells: one column
    # stands for all of them.
    domain = tuple((it, extents.get(it, 1)) for it, _ in statement.domain)
    shape = tuple(dict(domain)[i] if isinstance(i, str) else 1 for i in statement.write.index)
    output = Tensor("result", statement.dtype, shape)
    written = replace(statement.write, name="result")
    alone = Program(
        "alone",
        "",
        tuple(inputs),
        (output,),
        (replace(statement, domain=domain, write=written, args=tuple(args)),),
    )
    # Casts between statements round, as they do in the whole program; nothing else does.
    rounds = statement.function == "cast" and not final
    (result,) = evaluate(alone, arrays, {}, round_outputs=rounds)
    return result.astype(np.float64) if result.dtype != np.bool_ else result
