"""Panels of results, as they are written: of every row and column what is made of its own sums.

A panel's text is run for all panels of a tile that ends outside, and for one of a tile that does
not: operands come from where the copy engine has put them, and what the threads of a warpgroup
write is the panel as the copy engine reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.elements import epilogue_type, outcomes
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.blocks import blocks
from polygen.emit.proofs.elements import Block
from polygen.emit.proofs.shared_bytes import Memory
from polygen.emit.proofs.stored import Wanted, check_writes
from polygen.emit.proofs.threads import SHARED, address, evaluated
from polygen.emit.run_text import Called, Handler
from polygen.emit.text_functions import run
from polygen.emit.text_values import mixed
from polygen.errors import VerifyError
from polygen.hardware.matrix_layout import span_swizzle
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Finish, Panel


@proof("finish", "threads", Finish, alone=True)
def _(plan: KernelPlan, leaf: Leaf, work: Finish, texts: tuple[str, ...]) -> None:
    e = work.epilogue
    per_row = plan.tiles.columns // work.results[0].columns
    count = per_row * plan.tiles.atoms[0]
    block = blocks(plan, leaf.place, e, "p", count, even=True, states=dict(work.states))
    names = block.names | block.registers() | block.rows_known() | block.folding()
    own = BlockPanels(block, per_row)
    memory = own.memory() if work.operands else Memory(0)
    for one in work.operands:
        own.bring(memory, one)
    run(read(texts[0]), names, block.threads, own.handlers(memory))
    check_writes(block.shared, own.wanted(work.results))
    p = block.names["p"]
    row, column = (one[p % per_row == 0].ravel() for one in block.places(p // per_row, 0))
    block.check_stored(row, column, [one.name for one in work.beside])
    block.check_folded(names)


@dataclass(frozen=True, slots=True)
class BlockPanels:
    """The panels of a block's agents, so many of them side by side in an agent's tile."""

    block: Block
    per_row: int

    def places(self, of: Panel) -> tuple[Any, Any, Any]:
        """Rows and columns of elements, and where they lie; of all agents in all calls."""
        plan, names = self.block.plan, self.block.names
        buffer, swizzle = plan.buffer(of.buffer), span_swizzle(of.span)
        row, column = (one.ravel() for one in np.indices((of.rows, of.columns)))
        box, byte = np.divmod(column * of.element_bytes, of.span)
        place = box * of.rows * of.span + swizzle.address(row, byte, of.span)
        first = np.arange(0, self.block.threads, plan.device.group_threads)  # thread of each agent
        p, group = names["p"][first], names["group"][first]
        slot = np.broadcast_to(evaluated(of.slot, names), (self.block.threads,))[first]
        start = names["shared"][first] + buffer.offset + group * buffer.owner_bytes
        start = start + slot * buffer.slot_bytes
        rows, columns = (one[first] for one in self.block.corner())
        rows, columns = rows + p // self.per_row * of.rows, columns + p % self.per_row * of.columns
        return tuple(
            (a[:, None] + b).ravel() for a, b in ((rows, row), (columns, column), (start, place))
        )

    def memory(self) -> Memory:
        """Shared memory of all copies of the block, in which nothing is."""
        launch = self.block.plan.launch
        return Memory(int(self.block.names["shared"][-1]) - SHARED + launch.shared_bytes)

    def bring(self, memory: Memory, of: Panel) -> None:
        """What the copy engine has put into a panel of an operand."""
        row, column, place = self.places(of)
        element = next(one for one in self.block.work.reads if one.name == of.name)
        at = dict(zip("mn", self.block.clamped(row, column), strict=True))
        stored = self.block.arrays.stored(
            address(self.block.names, element.tensor, element.index, at)
        )
        memory.put(place - SHARED, stored, of.element_bytes)

    def wanted(self, results: tuple[Panel, ...]) -> list[Wanted]:
        """What has to be written."""
        found = []
        for of in results:
            row, column, place = self.places(of)
            inside = self.block.inside(row, column)
            made = self.block.element(row, column)
            value = made[outcomes(self.block.epilogue).index(of.name)]
            if of.element_bytes < 4:  # two in a word, or in half of one
                kind, name = epilogue_type(of.tensor), {2: "pack", 1: "two_to"}[of.element_bytes]
                value = mixed(f"{name}_{kind}", value[0::2], value[1::2])
                inside = inside[0::2] | inside[1::2]
                row, column, place = row[0::2], column[0::2], place[0::2]
            found.append(Wanted(of.name, place, value, (row, column), inside))
        return found

    def handlers(self, memory: Memory) -> dict[str, Handler]:
        """What functions do that read panels and write them."""
        return self.block.handlers() | {
            "matrices_read": lambda called: memory.matrices(called, called.arguments[1:], 0),
            "matrices_write": self._matrices,
            "pair_read": lambda called: _each(called, memory.words(called.arguments[0].value, 8)),
            "pair_write": lambda called: self._write(called, 8),
            "two_read": lambda called: memory.words(called.arguments[0].value, 2)[0],
            "two_write": lambda called: self._write(called, 2),
        }

    def _matrices(self, called: Called) -> None:
        row, lane = called.of_all(0), np.arange(called.state.threads)
        if (row % 16).any() or not called.state.who().all():
            raise VerifyError("rows of matrices lie elsewhere")
        for number in range(4):
            to = row[lane // 32 * 32 + number * 8 + lane % 32 // 4] + lane % 4 * 4
            self.block.shared.append((to, called.of_all(number + 1)))

    def _write(self, called: Called, size: int) -> None:
        first, who = called.of_all(0), called.state.who()
        if (first % size)[who].any():
            raise VerifyError(f"{size} bytes are written where they do not begin")
        for number in range(len(called.arguments) - 1):
            self.block.shared.append((first[who] + 4 * number, called.of_all(number + 1)[who]))


def _each(called: Called, values: list[Any]) -> None:
    for place, value in zip(called.arguments[1:], values, strict=True):
        place.store(value)
