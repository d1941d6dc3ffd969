"""Boxes of tensors -> a step of a ring, by the copy engine, for one barrier."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import coordinates, indexed_address, slot_address, walk_lines
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Boxes, Move

_NEEDS = ("tensor_map", "mbarrier", "mbarrier_wait", "box_load", "cursor")


@leaf("move", "tma", Move, ("k",), ("p",), ("i",), needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Move) -> Text:
    slot, agent = f"{work.counter}.slot", plan.place(one.place).agent
    barrier, ring = plan.buffer(work.full.buffer), plan.buffer(work.boxes[0].buffer)
    full = indexed_address(barrier, slot, agent if barrier.owners > 1 else "")
    lines = [
        *(walk_lines(plan) if "k" in one.loops else []),
        f"const unsigned full = {full};",
        f"barrier_expect(full, {work.full.bytes});",
    ]
    if agent:
        lines.append(f"const unsigned to = {indexed_address(ring, slot, agent)};")
    for boxes in work.boxes:
        to = "to" if agent else slot_address(plan.buffer(boxes.buffer), slot)
        lines += _boxes(boxes, to)
    if not plan.place(one.place).elected:  # one of the threads that also fill other rings
        lines = [
            f"if (thread % {plan.device.group_threads} == 0) {{",
            *map("  {}".format, lines),
            "}",
        ]
    policies = (
        f"const unsigned long long {_policy(boxes)} = read_policy({boxes.once});"
        for boxes in work.boxes
        if boxes.once
    )
    return Text(
        block(*lines),
        f"{one.statement}[{','.join(one.loops)}]: {work.note}",
        tuple(policies),
    )


def _policy(of: Boxes) -> str:
    return f"keep_{of.buffer.removeprefix('ring_')}"


def _boxes(of: Boxes, slot: str) -> list[str]:
    part = f" + {of.part} * {of.part_bytes}" if of.part else ""
    function = "box_multicast" if of.mask else "box_load"
    mask = f", {of.mask}" if of.mask else f", {_policy(of)}" if of.once else ""
    return [
        f"{function}({slot}{part} + {j * of.box_bytes + piece * of.part_bytes}, &{of.map}, full, "
        f"{', '.join(coordinates(of, j, piece))}{mask});"
        for j in range(of.count)
        for piece in range(of.pieces)
    ]
