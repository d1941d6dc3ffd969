"""Role programs: what the warps of a specialised block do to shared memory, step by step.

A ring in shared memory is filled by one role and used by another. Its *program* lists the
statements that touch it, with who executes each:

    fill[c,w,v,g]      the producer of block c of the cluster copies k tile g (w = v = 0)
    multiply[c,w,v,g]  consumer warpgroup w of block c multiplies with it (v = 0: all its threads)

    fetch[c,w,v,q]     the loader copies panel q of an operand matrix for warpgroup w
    finish[c,w,v,q]    warp v of warpgroup w turns sums into panel q of the results
    store[c,w,v,q]     one thread of the warpgroup has the copy engine write panel q (v = 0)

Steps run through all tiles of a persistent block: g = i * k_tiles + k for k tile k of the block's
i-th output tile, q likewise. Slots and parities depend on g alone, so that a proof over g, for
every number of steps, holds for every number of tiles and every size.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.hardware.device import common_facts
from polygen.poly.scop import must_flow, reuse_dependences

PREFIX = "[steps] -> "
WARPS = common_facts()["warpgroup_warps"]
DIMS = ("c", "w", "v", "g")


@dataclass(frozen=True, slots=True)
class RoleStatement:
    """What one role does at each step.

    Attributes:
        name: of the statement.
        role: "producer", "loader" or "consumer".
        counts: how many blocks, warpgroups and warps (per warpgroup) execute it.
        reads: cells over (c, w, v, g).
        writes: likewise.
        engine: who completes it, and so when: "copy" and "store" (the copy engine, some time after
            it was issued), "product" (the tensor cores, in order), "threads" (at once).
        serial: whether instances of one thread follow each other in steps; False when it is not
            known which warpgroup takes which step.
    """

    name: str
    role: str
    counts: tuple[int, int, int]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    engine: str = "threads"
    serial: bool = True

    @property
    def instance(self) -> str:
        """``fill[c,w,v,g]``."""
        return f"{self.name}[{','.join(DIMS)}]"

    @property
    def bounds(self) -> str:
        """Which instances there are."""
        places = zip(DIMS, self.counts, strict=False)
        return " and ".join([*(f"0 <= {d} < {n}" for d, n in places), "0 <= g < steps"])


@dataclass(frozen=True, slots=True)
class RoleProgram:
    """The statements that share some rings, in the order of their sequential meaning."""

    name: str
    statements: tuple[RoleStatement, ...]
    memories: tuple[tuple[str, int], ...]  # ring -> slots

    def statement(self, name: str) -> RoleStatement:
        """The statement called `name`."""
        return next(s for s in self.statements if s.name == name)

    @property
    def domain(self) -> isl.UnionSet:
        """All instances."""
        pieces = [f"{s.instance} : {s.bounds}" for s in self.statements]
        return isl.UnionSet(PREFIX + "{ " + "; ".join(pieces) + " }")

    @property
    def time(self) -> isl.UnionMap:
        """The sequential order: step by step, statement by statement."""
        pieces = [f"{s.instance} -> [g,{n}]" for n, s in enumerate(self.statements)]
        return isl.UnionMap(PREFIX + "{ " + "; ".join(pieces) + " }").intersect_domain(self.domain)

    def dependences(self, memory: str) -> isl.UnionMap:
        """Flow, anti and output dependences through one ring."""

        def relation(kind: str) -> isl.UnionMap:
            pairs = [
                f"{s.instance} -> {cell}"
                for s in self.statements
                for cell in getattr(s, kind)
                if cell.startswith(memory + "[")
            ]
            text = PREFIX + "{ " + "; ".join(pairs) + " }"
            return isl.UnionMap(text).intersect_domain(self.domain)

        reads, writes, time = relation("reads"), relation("writes"), self.time
        return must_flow(reads, writes, time).union(reuse_dependences(reads, writes, time))

    def thread_order(self, *, completed: bool) -> isl.UnionMap:
        """Pairs of one thread of control, in its order; every instance with itself as well.

        Args:
            completed: pairs whose first instance has *completed* when the second has; otherwise
                pairs whose first has *started* when the second starts.
        """
        pieces = []
        for place, first in enumerate(self.statements):
            pieces.append(f"{first.instance} -> {first.instance}")
            if completed and first.engine in ("copy", "store"):
                continue
            for later, second in enumerate(self.statements):
                if first.role != second.role or not (first.serial and second.serial):
                    continue
                sign = "<" if later <= place else "<="
                target = f"{second.name}[c,w,v,h]"
                pieces.append(f"{first.instance} -> {target} : g {sign} h")
        order = isl.UnionMap(PREFIX + "{ " + "; ".join(pieces) + " }")
        return order.intersect_domain(self.domain).intersect_range(self.domain)


def ring_program(
    stages: int, consumers: int, cluster: tuple[int, int], *, pingpong: bool
) -> RoleProgram:
    """The main loop: operand tiles from global memory to the tensor cores.

    Args:
        stages: slots of the ring.
        consumers: warpgroups that multiply with every k tile; those that take turns count as one.
        cluster: blocks along m and n; block c is at (c mod m, c / m). Blocks in one row share tiles
            of the left operand, in one column of the right; each copies its part for all of them.
        pingpong: consumers take turns at whole tiles.
    """
    along, across = cluster
    count = along * across
    row, column = f"c mod {along}", f"floor(c/{along})"
    same_row = f"(d - c) mod {along} = 0"
    same_column = f"floor(d/{along}) = {column}"
    blocks = f"0 <= d < {count}"
    slot = f"g mod {stages}"
    fill = RoleStatement(
        "fill",
        "producer",
        (count, 1, 1),
        writes=(
            f"ring[d, {slot}, 0, {column}] : {blocks} and {same_row}",
            f"ring[d, {slot}, 1, {row}] : {blocks} and {same_column}",
        ),
        engine="copy",
    )
    multiply = RoleStatement(
        "multiply",
        "consumer",
        (count, 1 if pingpong else consumers, 1),
        reads=(
            f"ring[c, {slot}, 0, p] : 0 <= p < {across}",
            f"ring[c, {slot}, 1, p] : 0 <= p < {along}",
        ),
        engine="product",
        serial=not pingpong,
    )
    return RoleProgram("main loop", (fill, multiply), (("ring", stages),))


def panel_program(
    operands: tuple[str, ...],
    outputs: tuple[str, ...],
    slots: int,
    prefetch: int,
    consumers: int,
) -> RoleProgram:
    """The epilogue: operand panels in, result panels out; each warpgroup has its own.

    Args:
        operands: matrices that the pointwise statements read.
        outputs: matrices they write.
        slots: panels of a result on their way out.
        prefetch: panels of an operand on their way in.
        consumers: warpgroups.
    """
    statements = []
    for name in operands:
        cell = f"panel_{name}[c,w,g mod {prefetch}]"
        statements.append(
            RoleStatement(
                f"fetch_{name}", "loader", (1, consumers, 1), writes=(cell,), engine="copy"
            )
        )
    reads = tuple(f"panel_{name}[c,w,g mod {prefetch}]" for name in operands)
    finish = RoleStatement(
        "finish",
        "consumer",
        (1, consumers, WARPS),
        reads=reads,
        writes=tuple(f"result_{name}[c,w,g mod {slots},v]" for name in outputs),
    )
    whole = tuple(f"result_{name}[c,w,g mod {slots},u] : 0 <= u < {WARPS}" for name in outputs)
    store = RoleStatement("store", "consumer", (1, consumers, 1), reads=whole, engine="store")
    memories = [(f"panel_{name}", prefetch) for name in operands]
    memories += [(f"result_{name}", slots) for name in outputs]
    return RoleProgram("epilogue", (*statements, finish, store), tuple(memories))
