"""What the NumPy adapter costs the host in the scripts of examples/numpy: no GPU is needed.

    python docs/measure_numpy_host.py
    python docs/measure_numpy_host.py k_means nmf --rounds 200

NumPy stands in CuPy's place, on small arrays, planned as for CuPy: kernels, products, folds and
functions of libraries are NumPy's, and what they take is subtracted. Left are the recording of
operations, finding plans, and views. Printed are the least and the median of all rounds after the
first ones, in microseconds for each array that a script makes; the least is what to compare with
another tree, in turns, as machines are busy.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy

import polygen.adapters.numpy as np
from polygen.adapters.numpy import arrays, calling, namespace, operators
from polygen.adapters.numpy.backends import Backend, CuPy

sys.path.insert(0, str(Path(__file__).resolve().parent))
from measure_numpy import IMPORT, SCRIPTS, SMALL, loaded

_FIRST = 12  # rounds in which places of a program are learned


class Subtracted:
    """The time that functions take, counted once where one calls another."""

    def __init__(self) -> None:
        self.seconds, self._inside = 0.0, False

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, watched."""

        def run(*args: Any, **options: Any) -> Any:
            if self._inside:
                return function(*args, **options)
            self._inside, began = True, time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds += time.perf_counter() - began
                self._inside = False

        return run


class StandIn(CuPy):
    """Plans as for CuPy on a large GPU; what runs is NumPy's, and watched."""

    times = updates = False
    host, address, memory = Backend.host, Backend.address, Backend.memory
    is_sole, fold, launch = Backend.is_sole, Backend.fold, Backend.launch

    def __init__(self, subtracted: Subtracted) -> None:
        self.module, self._watched = numpy, subtracted.watched

    def fuse(self, function: Any, ends: Any = None) -> Any:
        """As it is."""
        return self._watched(function)

    def alone(self, fold: Any) -> Any:
        """NumPy's fold."""
        axis, keepdims = fold.axis, fold.keepdims
        return self._watched(lambda x: getattr(numpy, fold.name)(x, axis=axis, keepdims=keepdims))

    def product(self, first: Any, second: Any, form: Any, other: Any) -> Any:
        """NumPy's product."""
        return self._watched(numpy.matmul)(first, second)

    def total(self, whole: Any, composed: Any) -> Any:
        """As it is."""
        return self._watched(composed)

    def _multiprocessors(self) -> int:
        return 132

    def _is_one(self) -> bool:
        return True

    def device(self) -> None:
        """No kernel of polygen's is to be had."""


@contextlib.contextmanager
def subtracting(subtracted: Subtracted) -> Iterator[None]:
    """What runs at once is subtracted, too."""
    original = calling.immediately

    def immediately(name: str, function: Any, args: Any, options: Any) -> Any:
        return original(name, subtracted.watched(function), args, options)

    for module in (calling, namespace, operators):
        module.immediately = immediately
    try:
        yield
    finally:
        for module in (calling, namespace, operators):
            module.immediately = original


def counted(main: Callable[..., Any], options: dict[str, int]) -> int:
    """How many arrays a script makes."""
    count, original = 0, arrays.Array.__init__

    def made(self: Any, *given: Any) -> None:
        nonlocal count
        count += 1
        original(self, *given)

    arrays.Array.__init__ = made
    try:
        _silent(main, options)
    finally:
        arrays.Array.__init__ = original
    return count


def _silent(main: Callable[..., Any], options: dict[str, int]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        main(**options)


def measured(name: str, rounds: int) -> tuple[int, float, float]:
    """Arrays that a script makes, and the least and median microseconds for each of them."""
    subtracted, main = Subtracted(), loaded(SCRIPTS / f"{name}.py", IMPORT)
    found = []
    with np.polygen_options(backend=StandIn(subtracted)), subtracting(subtracted):
        count = counted(main, SMALL[name])
        for _ in range(_FIRST + rounds):
            gc.collect()
            gc.disable()
            subtracted.seconds, began = 0.0, time.perf_counter()
            _silent(main, SMALL[name])
            found.append(time.perf_counter() - began - subtracted.seconds)
            gc.enable()
    found = [one / count * 1e6 for one in found[_FIRST:]]
    return count, min(found), statistics.median(found)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of scripts' names; default: all")
    parser.add_argument("--rounds", type=int, default=100)
    words = parser.parse_args()
    print(f"{'script':22s} {'arrays':>7s} {'least us':>9s} {'median us':>10s}")
    for name in sorted(SMALL):
        if not words.names or any(part in name for part in words.names):
            count, least, median = measured(name, words.rounds)
            print(f"{name:22s} {count:7d} {least:9.2f} {median:10.2f}", flush=True)


if __name__ == "__main__":
    main()
