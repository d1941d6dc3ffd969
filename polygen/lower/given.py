"""What a plan is made from: the results of the passes before, as every part of it needs them."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.program import Program
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.poly.footprint import Footprint
from polygen.poly.mapping import ScheduleTree
from polygen.poly.match import Match
from polygen.poly.pointwise import Pointwork
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class Given:
    """Program, mapping, decisions and target of one kernel."""

    program: Program
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

    def footprint(self, name: str) -> Footprint:
        """What one copy of an operand moves."""
        return dict(self.tree.footprints)[name]
