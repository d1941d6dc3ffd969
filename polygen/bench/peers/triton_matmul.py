"""A Triton kernel written for this comparison, the fastest of a list of tiles for each row.

`compile_ahead` fills Triton's cache from other processes, so that the one that measures finds every
kernel there: compiling takes seconds each, launching to choose takes milliseconds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.bench.operations import VALUE, Operation, chain
from polygen.bench.products import torch_types
from polygen.bench.rows import Row
from polygen.bench.source import Call
from polygen.errors import BenchError

TRIALS = 5  # launches of each tile

# (TILE_M, TILE_N, TILE_K, warps, stages)
TILES = (
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 3),
    (128, 128, 64, 8, 4),
    (128, 128, 64, 4, 4),
    (64, 256, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (128, 64, 64, 4, 5),
    (64, 64, 64, 4, 5),
    (16, 64, 128, 4, 5),
    (16, 32, 256, 4, 4),
)
_GROUP = 8
_SMALL = 64  # rows of the result up to which the tiles of 16 rows are tried

_ACTIVATIONS = {("relu", ()): 1, ("silu", ()): 2, ("gelu", ("tanh",)): 3, ("gelu", ()): 4}


@dataclass(frozen=True, slots=True)
class Form:
    """An operation as the kernel has it: names of its operands, and the activation's number."""

    bias: str | None
    added: str | None
    activation: int
    gate: str | None


def form(op: Operation) -> Form:
    """What of the kernel's epilogue an operation uses.

    Raises:
        BenchError: the kernel has no such form.
    """
    ranks = {name: len(dims) for name, dims in op.operands}
    if max(ranks.values()) > 2:
        raise BenchError("the kernel has no batches", where="Triton")
    found: dict[str, Any] = {"bias": None, "added": None, "activation": 0, "gate": None}
    stage = 0  # 0: sums, 1: activated, 2: multiplied
    for step in chain(op).steps:
        other = next((a for a in step.arguments if isinstance(a, str) and a != VALUE), None)
        place = None
        if step.function == "add" and other and stage == 0:
            place = "bias" if ranks[other] == 1 else "added"
        elif step.function == "mul" and other and ranks[other] == 2 and stage < 2:
            place, stage = "gate", 2
        elif (step.function, step.words) in _ACTIVATIONS and stage == 0:
            found["activation"], stage = _ACTIVATIONS[step.function, step.words], 1
            continue
        if place is None or found[place] is not None:
            raise BenchError(
                f"the kernel has no epilogue for {op.expression}", where="Triton",
                why=f"{step.function} has no place there",
            )  # fmt: skip
        found[place] = other
    return Form(**found)


def check_type(row: Row) -> None:
    """Refuse a type that the kernel does not multiply.

    Raises:
        BenchError: it adds products as floats, and the row's are integers.
    """
    if row.dtype == "s8":
        raise BenchError("the kernel's sums are floats, those of s8 are s32", where="Triton")


def tiles_for(row: Row) -> list[tuple[int, int, int, int, int]]:
    """The tiles that are tried for a row."""
    small = row.m <= _SMALL
    return [tile for tile in TILES if (tile[0] == 16) == small or (small and tile[0] == 64)]


def grid(row: Row, tile: tuple[int, ...]) -> tuple[int]:
    """Blocks."""
    return (math.ceil(row.m / tile[0]) * math.ceil(row.n / tile[1]),)


def arguments(row: Row, pointers: Callable[[str], Any]) -> tuple[Any, ...]:
    """What the kernel takes before its constants.

    Args:
        row: what.
        pointers: a tensor, or its type, by operand name and "" for the result.
    """
    found, had = chain(row.operation), form(row.operation)
    (left, left_turned), (right, right_turned) = found.left, found.right

    def strides(name: str, turned: bool) -> tuple[int, int]:
        step = row.shape(name)[1] + row.pad
        return (1, step) if turned else (step, 1)

    def of(name: str | None) -> Any:
        return pointers(name if name else left)  # a pointer that is not read

    step = row.n + row.pad
    return (
        of(left), of(right), of(had.bias), of(had.added), of(had.gate), pointers(""),
        row.m, row.n, row.k,
        *strides(left, left_turned), *strides(right, right_turned), step, step, row.n,
    )  # fmt: skip


def constants(row: Row, tile: tuple[int, int, int, int, int]) -> dict[str, Any]:
    """The kernel's constants for a tile, with warps and stages."""
    had = form(row.operation)
    return {
        "BIAS": had.bias is not None, "ADDED": had.added is not None,
        "ACTIVATION": had.activation, "GATE": had.gate is not None,
        "HALF_SUMS": row.acc == "f16", "EVEN_K": row.k % tile[2] == 0,
        "TILE_M": tile[0], "TILE_N": tile[1], "TILE_K": tile[2], "GROUP": _GROUP,
        "num_warps": tile[3], "num_stages": tile[4],
    }  # fmt: skip


def compile_ahead(row: Row) -> None:
    """Compile a row's kernels into Triton's cache, without launching any.

    Raises:
        BenchError: the kernel has no form for the row.
    """
    from polygen.bench.peers.triton_kernel import product  # noqa: PLC0415

    check_type(row)
    kinds = torch_types()
    for tile in tiles_for(row):
        given = arguments(row, lambda name: kinds[row.type_of(name)])
        product.warmup(*given, grid=grid(row, tile), **constants(row, tile))


class TritonMatmul:
    """Triton."""

    def __init__(self) -> None:
        import triton  # noqa: PLC0415

        from polygen.bench.peers import triton_kernel  # noqa: PLC0415

        self._version, self._kernel = triton.__version__, triton_kernel.product

    def versions(self) -> dict[str, Any]:
        """Triton's."""
        return {"version": self._version}

    def make(self, work: Any) -> Call:
        """The kernel with its fastest tile.

        Raises:
            BenchError: the kernel has no form for the row.
        """
        row, held = work.row, work.operands
        check_type(row)
        form(row.operation)
        (z,) = held.scratches
        given = arguments(row, lambda name: held.timed[name] if name else z)
        times, calls, refused = {}, {}, ""
        for tile in tiles_for(row):
            launch = self._kernel[grid(row, tile)]
            call = functools.partial(_launch, launch, given, constants(row, tile), z)
            try:
                call()
                times[tile] = float(np.median(work.timed([call] * TRIALS)))
            except Exception as error:  # shared memory, or a tile that Triton cannot compile
                refused = f"{type(error).__name__}: {error}"
                continue
            calls[tile] = call
        if not times:
            raise BenchError("no tile runs", where="Triton", why=refused)
        chosen = min(times, key=times.__getitem__)
        work.note("triton", tile=list(chosen), tiles=len(times))
        return calls[chosen]


def _launch(launch: Any, given: tuple[Any, ...], fixed: dict[str, Any], result: Any) -> Any:
    launch(*given, **fixed)
    return result
