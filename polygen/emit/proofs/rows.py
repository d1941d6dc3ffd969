"""Results by way of a warp's scratch area, as they are written: staged sums, then rows of vectors.

The texts are run one behind the other, with what is read once for all rows: the sums of all
instructions go to the scratch area, from which lanes take vectors. Every element of the tile that
is inside of the matrix is then stored once, made of its own numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.blocks import blocks
from polygen.emit.proofs.elements import Block
from polygen.emit.proofs.threads import SHARED
from polygen.emit.run_text import Called, Handler
from polygen.emit.text_functions import run
from polygen.errors import VerifyError
from polygen.lower.buffers import Buffer
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Epilogue
from polygen.lower.tallies import stored_at

_WORD = 4  # bytes


@proof("store_rows", "threads", Epilogue, "prepare", "stage")
def _(plan: KernelPlan, leaf: Leaf, e: Epilogue, texts: tuple[str, ...]) -> None:
    *prepared, staged, stored = texts
    assert e.share is not None
    warp_size = plan.device.warp_size
    vectors = -(-plan.tiles.warp[0] * max(1, plan.tiles.warp[1] // e.vector) // warp_size)
    sums = blocks(plan, leaf.place, e, "m", plan.tiles.atoms[0], shared=True)
    rows = blocks(plan, leaf.place, e, "r", -(-vectors // e.batch), shared=True)
    end = int(sums.names["shared"].max()) - SHARED + plan.launch.shared_bytes
    scratch = _Scratch(plan.buffer("scratch"), np.full(-(-end // _WORD), -1, np.int64))
    handlers = sums.handlers() | scratch.handlers(sums)
    run(read(staged), sums.names | sums.registers(), sums.threads, handlers)
    known, handlers = rows.names, rows.handlers() | scratch.handlers(rows)
    for text in (*prepared, stored):
        known = run(read(text), known, rows.threads, handlers).names
    columns = range(plan.tiles.columns // plan.atom.n)
    places = [sums.places(sums.names["m"], n) for n in columns]
    row, column = (np.concatenate(one).ravel() for one in zip(*places, strict=True))
    rows.check_stored(row, column)


@dataclass(frozen=True, slots=True)
class _Scratch:
    """The areas of warps, of both blocks.

    Attributes:
        buffer: of the plan.
        words: what is in them; -1 where nobody has written.
    """

    buffer: Buffer
    words: Any

    def handlers(self, block: Block) -> dict[str, Handler]:
        """What functions do that write and read them; `block`: whose threads do."""
        whole = block.handlers()["read_sum"]

        def read_sum(called: Called) -> Any:
            """A sum, or what a fold of a ring has left."""
            at, who = called.of_all(0), called.state.who()
            own = self._inside(block, at)
            return self._words(block, called, 1)[0] if own[who].all() else whole(called)

        return {
            f"place_{self.buffer.name}": self._place,
            "write_pair": lambda called: self._write(block, called),
            "read_quad": lambda called: called.arguments[0].fill(self._words(block, called, 4)),
            "read_sum": read_sum,
        }

    def _place(self, called: Called) -> Any:
        """Where the area has a byte of a row."""
        assert self.buffer.layout is not None
        return stored_at(self.buffer.layout)(called.of_all(0), called.of_all(1))

    def _inside(self, block: Block, at: Any) -> Any:
        """Whether addresses are in the areas of the threads' own warps."""
        names, room = block.names, self.buffer
        first = names["shared"] + room.offset + names["warp"] * room.owner_bytes
        return (at >= first) & (at < first + room.owner_bytes)

    def _at(self, block: Block, called: Called, at: Any, count: int) -> Any:
        """The word at an address, of those that may be read or written there."""
        who = called.state.who()
        if ((at % (count * _WORD) != 0) | ~self._inside(block, at))[who].any():
            raise VerifyError(f"{count} words are not in the area of their warp")
        return np.where(who, (at - SHARED) // _WORD, 0)

    def _write(self, block: Block, called: Called) -> None:
        word, who = self._at(block, called, called.of_all(0), 2), called.state.who()
        for number in range(2):
            self.words[word[who] + number] = called.of_all(number + 1)[who]

    def _words(self, block: Block, called: Called, count: int) -> list[Any]:
        at = called.of_all(len(called.arguments) - 1)
        word = self._at(block, called, at, count)
        return [self.words[word + number] for number in range(count)]
