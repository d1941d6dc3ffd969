"""Sums that blocks share, as they are written: parts go to their places, and are added from there.

All blocks of a cluster send side by side. Part q of a landing area holds what block q has sent: for
every instruction along m and every group of columns the elements of all threads, thread by thread.
Every thread adds the elements that it holds itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.stored import Wanted, Writes, check_writes
from polygen.emit.proofs.threads import APART, SHARED, of_kernel, of_place, times
from polygen.emit.run_text import Called
from polygen.emit.text_functions import run
from polygen.emit.text_values import Register, mixed
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Combine, Landing, Send

_ELEMENTS = 4  # of an access
_BARRIER = 8  # bytes


@proof("send", "st.async", Send)
def _(plan: KernelPlan, leaf: Leaf, work: Send, texts: tuple[str, ...]) -> None:
    blocks = _Blocks.of(plan, leaf, work.landings, "rank")
    names = blocks.names | {
        of.total: blocks.sums(of.total, of, work.blocks * of.groups) for of in work.landings
    }
    sent, announced = Writes(), Writes()

    def send(called: Called) -> None:
        who, (to, barrier) = called.state.who(), (called.of_all(at) for at in (0, 2))
        values = [np.broadcast_to(one, who.shape) for one in called.arguments[1].held(_ELEMENTS)]
        sent.append((to[who], mixed("sent", barrier, *values)[who]))

    def expect(called: Called) -> None:
        who = called.state.who()
        announced.append((called.of_all(0)[who], called.of_all(1)[who]))

    handlers = {
        "sums_send": send,
        "barrier_expect": expect,
        "address_in": lambda called: called.values[0] + called.values[1] * APART,
    }
    run(read(texts[0]), names, blocks.threads, handlers)
    barrier, slot = plan.buffer(work.full.buffer), blocks.slot(work.counter)
    own = names["group"] * barrier.slots if barrier.owners > 1 else 0
    full = np.broadcast_to(SHARED + barrier.offset + (own + slot) * _BARRIER, (blocks.threads,))
    wanted = []
    for of in work.landings:
        groups = work.blocks * of.groups
        for d in range(work.blocks):
            for m, j in np.ndindex(of.rows, of.sent):
                group = d * of.groups + blocks.first(of) + j
                held = names[of.total].base[(m * groups + group) * _ELEMENTS :][:_ELEMENTS]
                place = blocks.landed(of, work.counter, names["rank"], m, j) + d * APART
                value = mixed("sent", full + d * APART, *held)
                wanted.append(Wanted(of.buffer, place, value, (names["thread"],)))
    check_writes(sent, wanted)
    first = names["thread"] % work.landings[0].threads == 0
    brought = np.full(int(first.sum()), work.full.bytes)
    check_writes(
        announced, [Wanted(work.full.buffer, full[first], brought, (names["thread"][first],))]
    )


@proof("combine", "threads", Combine)
def _(plan: KernelPlan, leaf: Leaf, work: Combine, texts: tuple[str, ...]) -> None:
    blocks = _Blocks.of(plan, leaf, work.landings, "q")
    names = dict(blocks.names)
    for of in work.landings:
        own = plan.tiles.split if of.completed == of.total else 1
        names[of.completed] = blocks.sums(of.completed, of, own * of.groups)

    def load(called: Called) -> None:
        place = called.of_all(0)
        called.arguments[1].fill([mixed("part", place, e) for e in range(_ELEMENTS)])

    state = run(read(texts[0]), names, blocks.threads, {"sums_read": load})
    for of in work.landings:
        found = state.names[of.completed].base
        groups = len(found) // (of.rows * _ELEMENTS)
        wanted = blocks.sums(of.completed, of, groups).base
        for m, j, e in np.ndindex(of.rows, of.sent, _ELEMENTS):
            at = (m * groups + blocks.first(of) + j) * _ELEMENTS + e
            part = mixed("part", blocks.landed(of, work.counter, names["q"], m, j), e)
            wanted[at] = np.where(names["q"] > 0, wanted[at] + part, part)
        if not np.array_equal(found, wanted):
            at, thread = (int(one[0]) for one in np.nonzero(found != wanted))
            raise VerifyError(
                f"register {at} of {of.completed} in thread {thread} is not its own sum and part"
            )


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The threads of the blocks of a cluster, or of one for each part.

    Attributes:
        plan: the kernel.
        names: what they know.
        threads: how many.
        chunk: of the groups, the last one.
    """

    plan: KernelPlan
    names: dict[str, Any]
    threads: int
    chunk: int

    @staticmethod
    def of(plan: KernelPlan, leaf: Leaf, landings: tuple[Landing, ...], number: str) -> _Blocks:
        """As many copies of a place's threads as parts, by what says which it is."""
        own, threads = of_place(plan, leaf.place)
        parts, chunk = plan.tiles.split, landings[0].groups // landings[0].sent - 1
        names = of_kernel(plan, {}) | times(own, parts) | {"chunk": chunk}
        names[number] = np.repeat(np.arange(parts), threads)
        return _Blocks(plan, names, parts * threads, chunk)

    def slot(self, counter: str) -> int:
        """The slot that a counter says."""
        return int(self.names[f"{counter}.slot"])

    def first(self, of: Landing) -> int:
        """The first group of the chunk."""
        return self.chunk * of.sent

    def sums(self, total: str, of: Landing, groups: int) -> Register:
        """Registers of sums before anything was added, each a number of its own."""
        dims = (of.rows, groups, _ELEMENTS)
        register = np.arange(of.rows * groups * _ELEMENTS)[:, None]
        return Register(mixed(total, np.arange(self.threads), register), 0, dims)

    def landed(self, of: Landing, counter: str, part: Any, m: int, j: int) -> Any:
        """Where a part has the elements of a thread."""
        buffer = self.plan.buffer(of.buffer)
        area = buffer.offset + self.names["group"] * buffer.owner_bytes
        area = area + self.slot(counter) * buffer.slot_bytes + part * of.part_bytes
        thread = self.names["thread"] % of.threads * of.access_bytes
        return SHARED + area + (m * of.sent + j) * of.group_bytes + thread
