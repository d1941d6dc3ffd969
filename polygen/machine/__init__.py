"""The PTX machine: runs compiled PTX on NumPy with no GPU, and says what is wrong with it."""

from polygen.machine.report import AccessProfile, Finding, Report
from polygen.machine.run import Launch, run
from polygen.machine.tensormap import TensorMap

__all__ = ["AccessProfile", "Finding", "Launch", "Report", "TensorMap", "run"]
