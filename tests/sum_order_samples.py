"""What the proof of the order of sums takes, of kernels; and other trees of theirs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pytest

from polygen.api import fuse
from polygen.poly import mapping
from polygen.poly.emitted import Emitted
from polygen.poly.place_trees import place_trees
from polygen.poly.sum_order import sum_orders
from polygen.poly.tile_tree import Leaf, Loop, Node, Steps
from polygen.schedule.load import shipped
from polygen.schedule.sums import SumOrder

SIZES = {"M": 512, "N": 1024, "K": 1024}
WARPS, COOPERATIVE, PINGPONG = "64x64x64_w32x32_s4", "cooperative_256x128x64", "pingpong_128x128x64"
CLUSTER, NARROW = "cooperative_128x256x64_c2x1", "cooperative_128x64x64"
ARCHS = dict.fromkeys((COOPERATIVE, PINGPONG, CLUSTER, NARROW), "sm_90a") | {WARPS: "sm_80"}


@dataclass(frozen=True)
class Given:
    """What `sum_orders` takes, of a kernel."""

    emitted: Emitted
    rest: tuple[Any, ...]

    def orders(self, *, invariant: bool = True, **changes: Any) -> tuple[SumOrder, ...]:
        emitted = replace(self.emitted, **changes)
        return sum_orders(emitted, *self.rest, invariant=invariant)[0]


@lru_cache
def given(name: str, expression: str = "product") -> Given:
    """The arguments of `sum_orders` in the compilation of a kernel."""
    taken: list[Given] = []
    found = mapping.sum_orders

    def spy(emitted: Emitted, *rest: Any, **options: Any) -> Any:
        taken.append(Given(emitted, rest))
        return found(emitted, *rest, **options)

    arch = ARCHS.get(name, "sm_90a")
    schedule = next(s for s in shipped(arch) if s.name == name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapping, "sum_orders", spy)
        if expression == "pair":
            function = fuse(lambda x, u, v: (x @ u.T) * (x @ v.T), name="pair")
            stages = replace(schedule.pipeline, stages=3)
            signature = ("bf16[M,K]", "bf16[N,K]", "bf16[N,K]")
            schedule = replace(schedule, pipeline=stages)
        else:
            function = fuse(lambda x, w: x @ w.T, name="one")
            signature = ("bf16[M,K]", "bf16[N,K]")
        function.compile(*signature, arch=arch, sizes=SIZES, schedule=schedule)
    return taken[0]


def retimed(node: Node, statement: str, variable: str, when: str) -> Node:
    """The tree in which a statement runs at another time in one loop; ``@`` is its own time."""
    if isinstance(node, Leaf):
        return node
    if isinstance(node, Steps):
        return Steps(tuple(retimed(child, statement, variable, when) for child in node.children))
    times = node.times
    if node.variable == variable:
        times = tuple(
            (name, when.replace("@", f"({time})") if name == statement else time)
            for name, time in times
        )
    return Loop(node.variable, times, retimed(node.child, statement, variable, when), node.options)


def mutant(
    name: str, *changes: tuple[str, str, str], expression: str = "product"
) -> dict[str, Any]:
    """Trees in which statements run at other times."""
    emitted = given(name, expression).emitted
    tree = emitted.certificate
    for change in changes:
        tree = retimed(tree, *change)
    return {"trees": place_trees(emitted.program, tree, emitted.leaves)}
