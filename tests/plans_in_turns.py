"""The NumPy adapter where each plan is run both ways."""

from polygen.adapters.numpy import structures
from polygen.adapters.numpy.backends import Backend
from polygen.adapters.numpy.trials import Spent


class Timed(Backend):
    """NumPy, where plans run in turns with their operations apart, for ever."""

    times = True

    def timed(self, function):
        structures._trials = type(structures._trials)(4096)  # none comes to an end
        function()
        return Spent(1.0, 1.0)
