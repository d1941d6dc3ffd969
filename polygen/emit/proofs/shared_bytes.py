"""Shared memory of a block, byte by byte: what texts write there and what they read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polygen.emit.proofs.threads import SHARED, Integers
from polygen.emit.run_text import Argument, Called, Handler
from polygen.errors import VerifyError

_MATRIX_ROW = 16  # bytes of a row that `ldmatrix` loads


class Memory:
    """Shared memory whose every element is a number of its own."""

    def __init__(self, total: int) -> None:
        """Memory of so many bytes, of which nobody has written any."""
        self.bytes = np.full(total, -1, np.int16)

    def put(self, first: Integers, number: Integers, size: int) -> None:
        """Elements of `size` bytes that lie from `first` on."""
        for at in range(size):
            self.bytes[first + at] = number >> 8 * at & 255

    def words(self, first: Any, size: int, who: Any = True) -> list[Any]:
        """What lies in `size` bytes from an address on, as words; -1 where nobody has written.

        Args:
            first: addresses, of all threads.
            size: bytes of an access.
            who: the threads that read.

        Raises:
            VerifyError: no instruction reads so many bytes there.
        """
        first = np.asarray(first) - SHARED
        if size not in (1, 2, 4, 8, 16) or ((first % size != 0) & who).any():
            raise VerifyError(f"{size} bytes are read at addresses that they do not begin at")
        inside = (first >= 0) & (first + size <= len(self.bytes))
        first, found = np.where(inside, first, 0), []
        for word in range(0, size, 4):
            each = [
                self.bytes[first + word + at].astype(np.int64) for at in range(min(4, size - word))
            ]
            made = sum(one << 8 * at for at, one in enumerate(each))
            found.append(np.where(inside & (np.min(each, axis=0) >= 0), made, -1))
        return found

    def handlers(self) -> dict[str, Handler]:
        """What functions do that read shared memory."""
        return {
            f"load_matrices_{count}{how}": lambda called, how=how: self.matrices(
                called, called.arguments[:-1], -1, transposed=bool(how)
            )
            for count in (1, 2, 4)
            for how in ("", "_transposed")
        } | {
            "load_shared": lambda called: called.arguments[0].fill(
                self.words(called.arguments[1].value, int(called.template[0]), called.state.who())
            ),
        }

    def matrices(
        self, called: Called, results: Sequence[Argument], at: int, *, transposed: bool = False
    ) -> None:
        """Matrices of 8 x 8 elements of 16 bits, whose rows lanes give the addresses of."""
        row, lane = called.of_all(at), np.arange(called.state.threads)
        used = lane % 32 // 8 < len(results)  # whose addresses are taken
        if (row % _MATRIX_ROW != 0)[called.state.who() & used].any():
            raise VerifyError("a row of a matrix is loaded from where none begins")
        first = lane // 32 * 32
        for number, result in enumerate(results):
            own = row[first + number * 8 + np.arange(len(lane)) % 32 // 4]
            if not transposed:
                (word,) = self.words(own + lane % 4 * 4, 4)
            else:
                pair = [
                    row[first + number * 8 + lane % 4 * 2 + at] + lane % 32 // 4 * 2
                    for at in (0, 1)
                ]
                low, high = (self.words(one, 2)[0] for one in pair)
                word = low | high << 16
            result.store(word)
