"""Pieces of shared memory, and how tiles lie in them as rows."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.hardware.matrix_layout import MatrixLayout
from polygen.hardware.swizzle import Swizzle
from polygen.lower.launch import Argument as Argument
from polygen.lower.launch import Following as Following
from polygen.lower.launch import Launch as Launch
from polygen.lower.launch import MapAxis as MapAxis


@dataclass(frozen=True, slots=True)
class Rows:
    """A tile as stored rows whose 16-byte chunks a swizzle permutes."""

    rows: int
    row_bytes: int
    swizzle: Swizzle
    wavefronts: tuple[int, int]  # of one access of each kind: counted, and without any conflict

    @property
    def bytes(self) -> int:
        """Of the tile."""
        return self.rows * self.row_bytes

    @property
    def place(self) -> str:
        """Where byte `byte` of row `row` lies, as C and Python have it."""
        swizzle = self.swizzle
        if not swizzle.mask:
            return f"row * {self.row_bytes} + byte"
        row = f"(row >> {swizzle.shift})" if swizzle.shift else "row"
        spread = f"({row} & {swizzle.mask})"
        if swizzle.multiplier != 1:
            spread = f"{swizzle.multiplier} * {spread}"
        return f"row * {self.row_bytes} + (((byte >> 4) ^ {spread}) << 4) + (byte & 15)"

    def __str__(self) -> str:
        counted, ideal = self.wavefronts
        conflicts = (
            "no bank conflicts" if counted == ideal else f"{counted / ideal:.2f}x wavefronts"
        )
        return f"{self.rows} rows of {self.row_bytes} B, swizzle {self.swizzle}, {conflicts}"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of shared memory: `slots` tiles, panels or barriers, for each of `owners`."""

    name: str
    kind: str  # "ring", "scratch", "panel", "landing", "given" or "barrier"
    offset: int  # bytes from the start of dynamic shared memory
    slots: int
    slot_bytes: int
    alignment: int  # of every slot
    owners: int = 1  # warps or warpgroups that have one each; 1: shared by all
    overlay: bool = False  # uses the bytes of other buffers once they are done with
    layout: Rows | MatrixLayout | None = None
    note: str = ""  # what else there is to say

    @property
    def owner_bytes(self) -> int:
        """From one owner's copy to the next."""
        return self.slots * self.slot_bytes

    @property
    def bytes(self) -> int:
        """Size of the whole buffer."""
        return self.owners * self.owner_bytes

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset + self.bytes

    @property
    def rows(self) -> Rows:
        """Its layout, which is one of rows that threads write and read."""
        assert isinstance(self.layout, Rows)
        return self.layout

    @property
    def matrix(self) -> MatrixLayout:
        """Its layout, which is one that matrix descriptors tell."""
        assert isinstance(self.layout, MatrixLayout)
        return self.layout

    def __str__(self) -> str:
        each = f" for each of {self.owners}" if self.owners > 1 else ""
        parts = [f"{self.name}: {self.slots} x {self.slot_bytes} B{each} at {self.offset}"]
        parts += [self.note] if self.note else []
        return ", ".join([*parts, str(self.layout)] if self.layout else parts)
