"""The NumPy adapter where each plan is run both ways."""

from polygen.adapters.numpy import structures
from polygen.adapters.numpy.backends import Backend


class Timed(Backend):
    """NumPy, where plans run in turns with their operations apart, for ever."""

    times = True

    def timed(self, function):
        structures._trials = type(structures._trials)(4096)  # none comes to an end
        function()
        return 1.0
