"""Loops, barriers and counters that are not those that were proved are refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from plan_changes import plan

from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.verify import verify
from polygen.poly.ast import Binary, Block, Call, Const, For, If, LoopAst, Marked


def changed(node: LoopAst, change: Callable[[LoopAst], LoopAst]) -> LoopAst:
    """Loops in which a change was made from the inside out."""
    if isinstance(node, Block):
        return change(Block(tuple(changed(child, change) for child in node.children)))
    if isinstance(node, If):
        other = None if node.otherwise is None else changed(node.otherwise, change)
        return change(replace(node, then=changed(node.then, change), otherwise=other))
    if isinstance(node, For | Marked):
        return change(replace(node, body=changed(node.body, change)))
    return change(node)


def without(name: str) -> Callable[[LoopAst], LoopAst]:
    def change(node):
        if not isinstance(node, Block):
            return node
        kept = [c for c in node.children if not (isinstance(c, Call) and c.statement == name)]
        return Block(tuple(kept))

    return change


def twice(name: str) -> Callable[[LoopAst], LoopAst]:
    def change(node):
        return Block((node, node)) if isinstance(node, Call) and node.statement == name else node

    return change


def ends_early(node: LoopAst) -> LoopAst:
    if isinstance(node, For) and "k_tiles" in str(node.condition):
        end = node.condition
        return replace(node, condition=Binary(end.op, end.left, Binary("-", end.right, Const(1))))
    return node


def one_off(name: str) -> Callable[[LoopAst], LoopAst]:
    def change(node):
        if not isinstance(node, Call) or node.statement != name:
            return node
        *others, last = node.arguments
        return replace(node, arguments=(*others, Binary("+", last, Const(1))))

    return change


LOOPS = {
    "a wait is dropped": ("consumer", without("wait_full_ring"), "wait_full_ring"),
    "an arrival is dropped": ("consumer", without("arrive_empty_ring"), "arrive_empty_ring"),
    "a wait for groups is dropped": ("consumer", without("retire_empty_ring"), "retire_empty_"),
    "a tile is filled twice": ("producer", twice("fill"), "fill is called twice"),
    "the last k tile is not filled": ("producer", ends_early, "is not called"),
    "the last k tile is not multiplied": ("consumer", ends_early, "is not called"),
    "a k tile further": ("producer", one_off("fill"), "fill"),
}


def test_the_plan_itself_is_sound():
    assert verify(plan("roles"))


@pytest.mark.parametrize("name", LOOPS)
def test_loops_that_do_something_else_are_refused(name):
    place, change, message = LOOPS[name]
    given = plan("roles")
    places = tuple(
        replace(one, loops=changed(one.loops, change)) if one.name == place else one
        for one in given.places
    )
    assert places != given.places
    with pytest.raises(VerifyError, match=message):
        verify(replace(given, places=places))


def leaf(statement: str, change: Callable[[Leaf], Leaf]) -> Callable[[KernelPlan], KernelPlan]:
    def made(of: KernelPlan) -> KernelPlan:
        leaves = tuple(change(one) if one.statement == statement else one for one in of.leaves)
        return replace(of, leaves=leaves)

    return made


def works(statement: str, **changes) -> Callable[[KernelPlan], KernelPlan]:
    return leaf(statement, lambda one: replace(one, work=replace(one.work, **changes)))


def barrier(**changes) -> Callable[[KernelPlan], KernelPlan]:
    """The first barrier with another record, wherever it is named."""

    def made(of: KernelPlan) -> KernelPlan:
        first, *others = of.syncs
        other = replace(first, sync=replace(first.sync, **changes))
        return replace(of, syncs=(other, *others))

    return made


def other_phase(one: Leaf) -> Leaf:
    of = one.work.placed
    sync = replace(of.sync, phase=of.sync.phase + 1)
    return replace(one, work=replace(one.work, placed=replace(of, sync=sync)))


RECORDS = {
    "one group more is left": works("retire_empty_ring", pending=2),
    "a wait for another phase": leaf("wait_full_ring", other_phase),
    "the slot of no counter": works("wait_full_ring", counter=""),
    "products of another slot": works("multiply", counter="ring_producer"),
    "a fill of another slot": works("fill", counter="ring_consumer"),
    "a counter that stays": leaf("arrive_empty_ring", lambda one: replace(one, advances=())),
    "all threads arrive": works("arrive_empty_ring", threads="all"),
    "one arrival less": barrier(arrivals=2),
    "a slot less": barrier(slots=1),
    "a barrier is left out": lambda of: replace(of, syncs=of.syncs[1:]),
    "a leaf is left out": lambda of: replace(
        of, leaves=tuple(one for one in of.leaves if one.statement != "wait_full_ring")
    ),
    "a panel's other slot": leaf(
        "store",
        lambda one: replace(
            one,
            work=replace(
                one.work,
                panels=tuple((replace(p, slot="(p + 1) % 2"), b) for p, b in one.work.panels),
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_that_say_something_else_are_refused(name):
    other = RECORDS[name](plan("roles"))
    assert other != plan("roles")
    with pytest.raises(VerifyError):
        verify(other)
