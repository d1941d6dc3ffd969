"""Rows that blocks of a cluster cover together: what each has folded goes to all of them."""

from __future__ import annotations

from polygen.emit.leaf.fold_parts import given, met, taken
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import indexed_address, real_of, slot_address
from polygen.lower.peers import Peers, blocks_of_row
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Exchange, FoldPart

_NEEDS = ("mbarrier", "mbarrier_wait", "cursor", "block_address", "row_numbers", "wait_across")


@leaf("give", "st.async", Exchange, needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Exchange) -> Text:
    slot, barrier = f"{work.counter}.slot", plan.buffer(work.full.buffer)
    full = indexed_address(barrier, slot, "group" if barrier.owners > 1 else "")
    lines = [
        f"const unsigned full = {full};",
        f"if (thread % {plan.device.group_threads} == 0) barrier_expect(full, {work.full.bytes});",
        f"const unsigned own_rows = {_area(plan, work)} + {_to(work).own} * {work.part_bytes};",
    ]
    first = 0
    for part in work.epilogue.folds:
        lines += ["#pragma unroll", f"for (int fold_i = 0; fold_i < {part.atoms}; ++fold_i) {{"]
        for at in range(len(part.offsets)):
            inside, names = met(part, at, real_of(plan))
            places = [
                given(plan, work.epilogue, part, at, first + number, "own_rows")
                for number in range(len(names))
            ]
            lines += [f"  {line}" for line in inside]
            lines += _sent(_to(work, part), list(zip(places, names, strict=True)))
            lines.append("  }")
        lines.append("}")
        first += len(part.terms)
    text = block(*lines).replace("  #pragma", "#pragma")
    return Text(text, f"{one.statement}: every block of the row gets what this one has of it")


@leaf("take_sent", "threads", Exchange, needs=(*_NEEDS, "words"))
def _(plan: KernelPlan, one: Leaf, work: Exchange) -> Text:
    areas = [f"{_area(plan, work)} + {q * work.part_bytes}" for q in range(work.cluster[1])]
    return taken(plan, one, work.epilogue, areas)


def _area(plan: KernelPlan, work: Exchange) -> str:
    """The slot of an agent's landing area."""
    return slot_address(plan.buffer(work.given), f"{work.counter}.slot", "group")


def _to(work: Exchange, part: FoldPart | None = None) -> Peers:
    """To which blocks lanes send that have a row."""
    return blocks_of_row(work.cluster, 1 << len(part.masks) if part is not None else 1)


def _sent(to: Peers, numbers: list[tuple[str, str]]) -> list[str]:
    """Each of the lanes that have a row sends it to some of the blocks, and begins with its own."""
    return [
        "#pragma unroll",
        f"    for (int turn = 0; turn < {to.steps}; ++turn) {{",
        f"      const int there = {to.number.replace('step', 'turn')}, d = {to.target};",
        f"      if ({to.sends}) {{",
        *(
            f"        number_send(address_in({at}, d), {name}, address_in(full, d));"
            for at, name in numbers
        ),
        "      }",
        "    }",
    ]
