"""What goes before a kernel: operands -> matrices whose rows start at cache lines.

The copy engine moves rows that start at multiples of 16 bytes. Where those of an operand do not, a
small kernel copies it before the product, and the product's kernel runs on the copy, as on any
array with such rows: the same code, the same sums, the same bits.

1. A copy has the order of the array's axes, and a pitch of whole cache lines. The copies of a
   kernel lie one behind the other in one workspace.
2. A warp copies a segment of a row, a round of chunks of 16 bytes after the other; a lane writes
   whole chunks, each from the two chunks of the array in which it lies. What a block does is a tile
   program (`polygen.poly.realign_program`), with proofs that every chunk is written once, and that
   nothing outside the row is read.
3. Operands that are computed may be made there as well, each as an array of its own: a lane
   computes whole chunks, as threads that fill rings do (`polygen.poly.make_program`), of what lies
   across the rows as in 4. Those with folds over their own rows are made a row by a block
   (`polygen.poly.row_operands`).
4. Operands that no instruction reads as they lie are copied there with their axes in another
   order: a lane writes chunks, and rows that follow each other are neighbours in the array
   (`polygen.poly.turn_program`).
5. The last chunk of a row is filled up with zeros; what lies between it and the next row is neither
   written nor read: the product's tensor maps end with the row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from polygen.frontend.indices import size_value
from polygen.frontend.program import Tensor
from polygen.hardware.device import common_facts

WARPS = 8  # of a block: rows that it copies at a time
TOGETHER = 4  # chunks of a lane that are on their way at once
ROUNDS = 4  # of them, until a segment ends
AT_ONCE = 3  # blocks of a multiprocessor that copy: more would leave reads too few registers


def row_multiple() -> int:
    """Bytes at whose multiples rows start that tensor maps describe: what a lane writes at once."""
    return common_facts()["tensor_map_row_bytes"]


def lanes() -> int:
    """Threads of a warp."""
    return common_facts()["warp_size"]


def segment_chunks() -> int:
    """Chunks of a row that one warp copies."""
    return lanes() * TOGETHER * ROUNDS


@dataclass(frozen=True, slots=True)
class Realign:
    """The launch that goes before a kernel: what it copies, and what it makes.

    Attributes:
        entry: the name of its kernel.
        tensors: what it copies, as the caller has it.
        made: operands that it computes: arrays of the kernel's that no caller has.
        by_rows: the names of those with folds over their own rows, of which a block has one.
        warps: of a block.
        turned: the names of those that are arrays with their axes in another order.
        across: the names of those that are computed of what lies across their rows.
        dependent: whether it may begin while the grids before it still run.
    """

    entry: str
    tensors: tuple[Tensor, ...]
    made: tuple[Tensor, ...] = ()
    by_rows: tuple[str, ...] = ()
    warps: int = WARPS
    turned: tuple[str, ...] = ()
    across: tuple[str, ...] = ()
    dependent: bool = False

    @property
    def every(self) -> tuple[Tensor, ...]:
        """What it leaves in the workspace, in that order."""
        return (*self.tensors, *self.made)

    @property
    def names(self) -> tuple[str, ...]:
        """The arrays that are copied."""
        return tuple(tensor.name for tensor in self.tensors)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * lanes()

    def blocks(self, tensor: Tensor, sizes: Mapping[str, int]) -> int:
        """Thread blocks that copy or make one of `every`."""
        if tensor.name in self.by_rows:
            return rows(tensor, sizes)
        if tensor.name in (*self.turned, *self.across):
            return _blocks(tensor, sizes, lanes(), WARPS * ROUNDS)
        return blocks(tensor, sizes)

    def offsets(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Bytes from the start of the workspace to each of `every`, and to its end."""
        found = [0]
        for tensor in self.every:
            found.append(found[-1] + rows(tensor, sizes) * pitch(tensor, sizes))
        return tuple(found)

    def workspace(self, sizes: Mapping[str, int]) -> int:
        """Bytes of all of them."""
        return self.offsets(sizes)[-1]

    def __str__(self) -> str:
        parts = {"copies": self.tensors, "makes": self.made}
        done = (f"{verb} {', '.join(map(str, each))}" for verb, each in parts.items() if each)
        rows = f"rows start at multiples of {line_bytes()} bytes there"
        return f"{self.entry} {' and '.join(done)}: {rows}"


def line_bytes() -> int:
    """Bytes of a line of the cache, at whose multiples rows of copies start."""
    return common_facts()["cache_line_bytes"]


def row_bytes(tensor: Tensor, sizes: Mapping[str, int]) -> int:
    """Bytes of a row of an array."""
    return size_value(tensor.dims[tensor.order[-1]], sizes) * tensor.dtype.bytes


def rows(tensor: Tensor, sizes: Mapping[str, int]) -> int:
    """Rows of an array, along all its other axes."""
    return math.prod(size_value(tensor.dims[axis], sizes) for axis in tensor.order[:-1])


def pitch(tensor: Tensor, sizes: Mapping[str, int]) -> int:
    """Bytes from one row of an array's copy to the next."""
    return -(-row_bytes(tensor, sizes) // line_bytes()) * line_bytes()


def strides(tensor: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Elements per step along each axis of an array's copy."""
    found, step = [1] * len(tensor.order), pitch(tensor, sizes) // tensor.dtype.bytes
    for axis in reversed(tensor.order[:-1]):
        found[axis] = step
        step *= size_value(tensor.dims[axis], sizes)
    return tuple(found)


def blocks(tensor: Tensor, sizes: Mapping[str, int]) -> int:
    """Thread blocks that copy or make an array, chunk by chunk."""
    return _blocks(tensor, sizes, WARPS, segment_chunks())


def _blocks(tensor: Tensor, sizes: Mapping[str, int], each: int, chunks: int) -> int:
    """Blocks of so many rows and of so many chunks of them."""
    segments = -(-row_bytes(tensor, sizes) // (chunks * row_multiple()))
    return -(-rows(tensor, sizes) // each) * segments


def constants(tensor: Tensor, sizes: Mapping[str, int], steps: tuple[int, ...]) -> tuple[int, ...]:
    """What the kernel is told of an array behind its address and that of its copy.

    Args:
        tensor: the array.
        sizes: of the symbolic dims.
        steps: elements per step along each of its axes, as the caller has it.

    Returns:
        32-bit numbers: blocks, elements of a row, then the extent and the step of every other axis,
        the fastest first.
    """
    outer = [(size_value(tensor.dims[a], sizes), steps[a]) for a in reversed(tensor.order[:-1])]
    length = size_value(tensor.dims[tensor.order[-1]], sizes)
    return (blocks(tensor, sizes), length, *(value for pair in outer for value in pair))
