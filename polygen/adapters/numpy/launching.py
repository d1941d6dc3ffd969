"""Launches of kernels whose parameters are known but for addresses and numbers.

CuPy finds out in every launch what each argument is, and makes an object of it. Here a kernel's
parameters have slots of 8 bytes in one block of memory, with a table of their addresses that CUDA
takes; a launch packs addresses and numbers into it, and hands over the table. The block is one
thread's at a time: who finds it taken, or meets an error of the driver, asks CuPy.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_SLOT = 8  # bytes
_INTEGERS = {1: "b", 2: "h", 4: "i", 8: "q"}
_REALS = {2: "e", 4: "f", 8: "d"}
ADDRESS = "Q"


def letter_of(dtype: np.dtype[Any]) -> str:
    """How `struct` calls a type of a parameter that is a number; "": it has no name for it."""
    if dtype.kind == "b":
        return "?"
    if dtype.kind == "f":
        return _REALS.get(dtype.itemsize, "")
    found = _INTEGERS.get(dtype.itemsize, "") if dtype.kind in "iu" else ""
    return found.upper() if dtype.kind == "u" else found


class Launch:
    """One kernel in a known number of blocks.

    Args:
        module: CuPy.
        kernel: its `RawKernel`, compiled.
        letters: of the parameters that change: `ADDRESS` of arrays, `letter_of` of numbers; where
            one has no letter, CuPy launches.
        rest: the parameters behind those, 64 bits each.
        blocks: how many.
        threads: of a block.
    """

    __slots__ = (
        "_blocks", "_kernel", "_lock", "_pack", "_room", "_stream", "_submit", "_table", "_tail",
        "_threads",
    )  # fmt: skip

    def __init__(
        self, module: Any, kernel: Any, letters: Sequence[str], rest: Sequence[int], blocks: int,
        threads: int,
    ) -> None:  # fmt: skip
        count, self._tail = len(letters) + len(rest), tuple(rest)
        self._room = (ctypes.c_int64 * count)(*[0] * len(letters), *rest)
        start = ctypes.addressof(self._room)
        self._table = (ctypes.c_void_p * count)(*(start + _SLOT * n for n in range(count)))
        sizes = [struct.calcsize(f"<{letter}") for letter in letters]
        slots = (f"{letter}{_SLOT - n}x" for letter, n in zip(letters, sizes, strict=True))
        self._pack = struct.Struct("<" + "".join(slots)).pack_into
        self._lock = threading.Lock()
        self._stream = module.cuda.get_current_stream
        table = ctypes.addressof(self._table)
        known = all(letters)
        self._submit = _submitted(module, kernel, (blocks, threads), table) if known else None
        self._kernel, self._blocks, self._threads = kernel, blocks, threads

    def __call__(self, values: Sequence[Any]) -> bool:
        """Launch it on the current stream.

        Args:
            values: of the parameters that change: addresses, and numbers.

        Returns:
            Whether it was done; if not, `ask`.
        """
        if self._submit is None or not self._lock.acquire(False):
            return False
        try:
            self._pack(self._room, 0, *values)
            return self._submit(self._stream().ptr)
        finally:
            self._lock.release()

    def ask(self, given: Sequence[Any]) -> None:
        """Let CuPy launch it.

        Args:
            given: the parameters that change: arrays, and numbers.
        """
        self._kernel((self._blocks,), (self._threads,), (*given, *self._tail))


def _submitted(
    module: Any, kernel: Any, size: tuple[int, int], table: int
) -> Callable[[int], bool] | None:
    """What launches a kernel with a table of parameters on a stream, and says whether it could.

    None: CuPy, or what stands in its place, has no such function of the driver.
    """
    try:
        driver = module.cuda.driver
        submit, function, failed = driver.launchKernel, kernel.kernel.ptr, driver.CUDADriverError
    except AttributeError:
        return None
    blocks, threads = size

    def run(stream: int) -> bool:
        try:
            submit(function, blocks, 1, 1, threads, 1, 1, 0, stream, table, 0)
        except failed:  # a thread without a context, or what ran before: CuPy tells
            return False
        return True

    return run
