"""The PTX machine: runs compiled PTX on NumPy with no GPU, and says what is wrong with it."""

from polygen.machine.arguments import Struct
from polygen.machine.chain import Link, chain
from polygen.machine.grids import Behind
from polygen.machine.images import Surface, Texture
from polygen.machine.report import AccessProfile, Finding, Report
from polygen.machine.run import Launch, run
from polygen.machine.tensormap import TensorMap

__all__ = [
    "AccessProfile", "Behind", "Finding", "Launch", "Link", "Report", "Struct", "Surface",
    "TensorMap", "Texture", "chain", "run",
]  # fmt: skip
