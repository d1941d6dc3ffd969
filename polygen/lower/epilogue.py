"""The epilogue: the fused pointwise statements in the coordinates of the accumulator.

1. The fused band says which iterators of a statement run along m and n, so every tensor access
   becomes a tuple over ("m", "n", 0), and equal tuples of one tensor become one read.
2. A read or write whose axis along n is contiguous moves vectors; one that does not depend on n is
   a value per row; anything else steps along n with a stride.
3. Values stay in registers under the names of the program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from polygen.frontend.dtypes import DType
from polygen.frontend.program import Access, Constant, Program, Tensor
from polygen.hardware.device import common_facts
from polygen.lower.launch import stride_argument as stride_argument
from polygen.lower.plan import Compute, Read, Write
from polygen.poly.fusion import Fusion
from polygen.poly.match import Match
from polygen.poly.tiling import RowVectors
from polygen.schedule.model import Schedule

# Vectors in flight per lane, by the number of matrices that the epilogue reads.
_IN_FLIGHT = (4, 8, 4, 2)


@dataclass(frozen=True, slots=True)
class Pointwork:
    """Reads, statements and writes of one element vector."""

    reads: tuple[Read, ...]
    statements: tuple[Compute, ...]
    writes: tuple[Write, ...]


def pointwork(program: Program, fusion: Fusion, match: Match, vector: int) -> Pointwork:
    """Translate the pointwise statements into accumulator coordinates."""
    row, _ = fusion.iterators(match.contraction.name)
    tensors = program.tensors
    reads: dict[tuple[str, tuple[str | int, ...]], Read] = {}
    statements, writes = [], []
    for statement in program.pointwise:
        along_row, along_column = fusion.iterators(statement.name)
        roles = {along_row: "m", along_column: "n"}
        if match.m != row:
            roles = {along_row: "n", along_column: "m"}
        names: list[str | float] = []
        for argument in statement.args:
            if isinstance(argument, Constant):
                names.append(argument.value)
            elif argument.name not in tensors:
                names.append(argument.name)
            else:
                index = _in_roles(argument, roles)
                key = (argument.name, index)
                if key not in reads:
                    variable = f"{argument.name}_{len(reads)}"
                    reads[key] = _read(variable, tensors[argument.name], index, vector)
                names.append(reads[key].name)
        target = statement.write.name
        statements.append(Compute(target, statement.function, tuple(names), statement.dtype))
        if target in tensors:
            writes.append(_write(tensors[target], _in_roles(statement.write, roles), vector))
    return Pointwork(tuple(reads.values()), tuple(statements), tuple(writes))


def _in_roles(access: Access, roles: dict[str, str]) -> tuple[str | int, ...]:
    return tuple(roles[i] if isinstance(i, str) else 0 for i in access.index)


def _read(name: str, tensor: Tensor, index: tuple[str | int, ...], vector: int) -> Read:
    if not tensor.dims:
        return Read(name, tensor, "scalar", "0", "0", 0)
    m_stride, n_stride = (_stride(tensor, index, role) for role in ("m", "n"))
    kind = {"0": "row", "1": "vector"}.get(n_stride, "strided")
    return Read(name, tensor, kind, m_stride, n_stride, _width(tensor, vector))


def _write(tensor: Tensor, index: tuple[str | int, ...], vector: int) -> Write:
    m_stride, n_stride = (_stride(tensor, index, role) for role in ("m", "n"))
    kind = "vector" if n_stride == "1" else "strided"
    return Write(tensor, kind, m_stride, n_stride, _width(tensor, vector))


def _stride(tensor: Tensor, index: tuple[str | int, ...], role: str) -> str:
    if role not in index:
        return "0"
    axis = index.index(role)
    return "1" if axis == tensor.contiguous_axis else stride_argument(tensor, axis)


def _width(tensor: Tensor, vector: int) -> int:
    """Bytes per access: what the alignment allows, at most the whole vector, at most 16."""
    return min(16, tensor.alignment, vector * tensor.dtype.bytes)


def vector_length(outputs: tuple[DType, ...]) -> int:
    """Adjacent results per lane: 16 bytes of the narrowest 16- or 32-bit output."""
    return 16 // max(2, min(dtype.bytes for dtype in outputs))


def row_vectors(program: Program, schedule: Schedule) -> RowVectors:
    """How a staged epilogue walks a warp tile.

    Reads of full matrices take most of the epilogue's time, so several are kept in flight per lane:
    as many as registers hold, once the sums have left them.
    """
    lanes = common_facts()["warp_size"]
    if schedule.epilogue.through != "smem":
        return RowVectors(2, 1, lanes)
    vector = vector_length(tuple(t.dtype for t in program.outputs))
    warp = schedule.tile.warp
    per_row = max(1, warp.n // vector)
    items = warp.m * per_row
    if lanes % per_row or items % lanes:
        return RowVectors(vector, 1, lanes)
    operands = {access.name for c in program.contractions for access in c.reads}
    matrices = sum(len(t.dims) == 2 and t.name not in operands for t in program.inputs)
    batch = math.gcd(items // lanes, _IN_FLIGHT[min(matrices, 3)])
    return RowVectors(vector, batch, lanes)
