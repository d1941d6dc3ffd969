"""What a plan is made from: the results of the passes before, as every part of it needs them."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.program import Dim, Program
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.poly.mapping import ScheduleTree
from polygen.poly.match import Match
from polygen.poly.operand import Operand
from polygen.poly.pointwise import Pointwork
from polygen.poly.register_operands import tile_extents
from polygen.poly.tile_walk import TileWalk, tile_walk
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class Given:
    """Program, mapping, decisions and target of one kernel."""

    program: Program  # its products read arrays, computed ones too
    tree: ScheduleTree
    schedule: Schedule
    atom: Atom
    device: Device
    work: Pointwork  # of the epilogue

    @property
    def tiles(self) -> Tiling:
        """The tile hierarchy."""
        return self.tree.tiles

    @property
    def match(self) -> Match:
        """The operands in their roles."""
        return self.tree.match

    @property
    def walk(self) -> TileWalk | None:
        """How persistent blocks find tiles that have products before others; None: all have."""
        domain, raster = self.tree.domain, self.schedule.raster
        if domain is None:
            return None
        return tile_walk(domain, raster.along, raster.group, self.device.warp_size)

    def extents(self, operand: Operand) -> tuple[int, int]:
        """Stored elements of an operand's tile: along m or n, and along k."""
        return tile_extents(operand, self.tiles)

    @property
    def sizes(self) -> dict[str, Dim]:
        """The extents of m, n and the batch dims."""
        return {"m": self.match.m, "n": self.match.n, **dict(self.match.batches)}
