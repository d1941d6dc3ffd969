"""`KernelPlan`: everything the emitter needs, and nothing it would have to decide.

A plan is the loops of one thread block (`LoopAst`), one leaf operation for each statement those
loops call, the memory the leaves work on, and the launch. Indices inside a leaf are index formulas
over the names that the kernel defines:

    b_m, b_n   the block's tile          w_m, w_n   the warp's place in the block      lane, thread
    k          a k tile                  s          an MMA step in it
    m, n       an instruction in the warp
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.dtypes import DType
from polygen.frontend.program import Dim, Program, Tensor
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.hardware.fragment_load import FragmentLoad
from polygen.hardware.swizzle import Swizzle
from polygen.lower.launch import Argument as Argument
from polygen.lower.launch import Launch as Launch
from polygen.lower.role_plan import RoleWork
from polygen.poly.ast import LoopAst
from polygen.poly.barriers import Enforced
from polygen.poly.legality import Proof
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class Buffer:
    """A ring or scratch area in shared memory: `slots` tiles of `rows` rows each."""

    name: str
    offset: int  # bytes from the start of dynamic shared memory
    slots: int  # stages of a ring; warps of a scratch area
    rows: int
    row_bytes: int
    swizzle: Swizzle
    wavefronts: tuple[int, int]  # of one access of each kind: counted, and without any conflict
    overlay: bool = False  # uses the bytes of other buffers once they are done with

    @property
    def slot_bytes(self) -> int:
        """Size of one slot."""
        return self.rows * self.row_bytes

    @property
    def bytes(self) -> int:
        """Size of the whole buffer."""
        return self.slots * self.slot_bytes

    def __str__(self) -> str:
        counted, ideal = self.wavefronts
        conflicts = (
            "no bank conflicts" if counted == ideal else f"{counted / ideal:.2f}x wavefronts"
        )
        return (
            f"{self.name}: {self.slots} x {self.rows} rows x {self.row_bytes} B at {self.offset}, "
            f"swizzle {self.swizzle}, {conflicts}"
        )


@dataclass(frozen=True, slots=True)
class Copy:
    """Global memory -> ring: one k tile of one operand, by all threads of the block."""

    operand: str  # "a" or "b"
    tensor: Tensor
    buffer: str
    element_bytes: int
    width: int  # bytes per copy instruction
    asynchronous: bool
    k_contiguous: bool
    role: str  # "m" or "n"
    tile: int  # elements along the role per block
    tile_k: int
    parts: int  # the tile is copied in this many calls
    ragged: bool  # a row may end inside one copy
    stride: str  # argument: elements between stored rows

    @property
    def rows(self) -> int:
        """Stored rows of a tile: indices of the dim that is not contiguous."""
        return self.tile if self.k_contiguous else self.tile_k

    @property
    def columns(self) -> int:
        """Elements of a stored row."""
        return self.tile_k if self.k_contiguous else self.tile


@dataclass(frozen=True, slots=True)
class Load:
    """Ring -> fragment registers: one MMA step of one operand, by each warp."""

    operand: str
    buffer: str
    load: FragmentLoad
    tiles: int  # instructions (or groups of them) along m or n
    warp_tile: int  # elements along m or n per warp
    element_bytes: int
    slots: int  # register ring
    round_to_tf32: bool


@dataclass(frozen=True, slots=True)
class Read:
    """One operand of the epilogue, for a row vector of results."""

    name: str  # C variable
    tensor: Tensor
    # "vector": adjacent along n; "strided": a step along n; "row": one value per row; "scalar"
    kind: str
    m_stride: str  # argument or "0" or "1": elements per step along m
    n_stride: str
    width: int  # bytes per access of a vector read


@dataclass(frozen=True, slots=True)
class Compute:
    """``result = function(args)`` on one element; args are values, reads' variables, constants."""

    result: str
    function: str
    args: tuple[str | float, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Write:
    """One output of the epilogue."""

    tensor: Tensor
    kind: str  # "vector" or "strided"
    m_stride: str
    n_stride: str
    width: int


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Accumulators -> pointwise functions -> global memory, one row of instructions at a time."""

    staged: bool  # through shared memory
    vector: int  # adjacent results one lane handles
    batch: int  # vectors of one lane whose reads are in flight together
    fixed_column: bool  # a lane's column is the same in every pass
    reads: tuple[Read, ...]
    statements: tuple[Compute, ...]
    accumulator: str  # the contraction's value
    writes: tuple[Write, ...]
    row_of_lane: str  # position of accumulator element 0 in the instruction's tile
    column_of_lane: str
    element_offsets: tuple[tuple[int, int], ...]  # of each accumulator element from element 0


@dataclass(frozen=True, slots=True)
class Resources:
    """What one thread block takes, before the compiler has its say."""

    threads: int
    shared_bytes: int
    shared_limit: int
    registers: int  # estimated per thread: sums, fragments, addresses
    blocks_per_multiprocessor: int

    def __str__(self) -> str:
        return (
            f"{self.threads} threads, {self.shared_bytes} of {self.shared_limit} B shared memory, "
            f"about {self.registers} registers per thread, "
            f"{self.blocks_per_multiprocessor} block(s) per multiprocessor"
        )


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """One kernel, decided down to the instruction."""

    entry: str
    program: Program
    schedule: Schedule
    device: Device
    atom: Atom
    tiles: Tiling
    arguments: tuple[Argument, ...]
    launch: Launch
    extents: tuple[tuple[str, Dim], ...]  # "m", "n", "k" -> size
    buffers: tuple[Buffer, ...]
    copies: tuple[Copy, ...]
    loads: tuple[Load, ...]
    epilogue: Epilogue
    loops: LoopAst
    enforced: tuple[Enforced, ...]
    proofs: tuple[Proof, ...]
    resources: Resources
    roles: RoleWork | None = None  # with roles: their memory, barriers and loops

    @property
    def mapping(self) -> str:
        """The tile hierarchy and the instruction, in words."""
        if self.roles is None:
            return f"{self.tiles}, {self.atom.name} on {self.device.name}"
        block, (m, n), (rows, _, depth) = self.tiles.cta, self.tiles.warp, self.tiles.atom
        return (
            f"block {'x'.join(map(str, block))}, {self.roles.consumers} consumer warpgroup(s) of "
            f"{m}x{n}, instruction {rows}x{n}x{depth}, {self.atom.name} on {self.device.name}"
        )

    def buffer(self, name: str) -> Buffer:
        """The buffer called `name`."""
        return next(b for b in self.buffers if b.name == name)
