"""An oracle for one thread block: runs its loops in plain Python and watches every shared cell.

It knows what the statements mean on hardware, and nothing of isl, trees or dependences. All warps
run the same sequence, so the order between two warps is decided by the barriers alone: what a warp
did before a block barrier has happened for whoever is past it. A background copy has happened only
once its own thread waited for the group that it was committed with. Lanes of one warp are threads
too: one may run ahead and overwrite what another has yet to read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache

from matrix import LAYOUTS
from tile_simulator import run_loops

from polygen import isl
from polygen.api import fuse
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Program
from polygen.hardware.atom import atoms_for
from polygen.hardware.device import device
from polygen.poly import ast
from polygen.poly.fusion import fuse as fuse_statements
from polygen.poly.kernel_parts import Epilogue, MainLoop, Product, Ring
from polygen.poly.kernel_program import kernel_program
from polygen.poly.mapping import ScheduleTree, map_program
from polygen.poly.match import match
from polygen.poly.place_trees import place_trees
from polygen.poly.scop import Scop, scop
from polygen.poly.tile_program import SyncStatement
from polygen.poly.tile_tree import Leaf, Loop, Node, Steps, leaves, without
from polygen.poly.tiling import Panels, RowVectors, Tiling, tiling
from polygen.poly.versions import TileModel
from polygen.schedule.model import Schedule

VECTOR = 8  # adjacent 16-bit results one lane finishes
ROWS = RowVectors(VECTOR, 1, 32)
WARP = 32
K_TILES = range(1, 10)

Trace = list[tuple[str, tuple[int, ...]]]


class Violation(AssertionError):
    """The loops read, overwrite or count something wrongly."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier of a block without roles, as the oracle knows it."""

    name: str  # "bar_load_a"
    scope: str  # "block" or "warp"
    phase: str  # "main" or "epilogue"
    before: str  # the statement that it precedes
    pending: int | None  # groups of copies that a wait in front of it leaves; None: no wait

    @property
    def wait(self) -> str:
        """The leaf that waits for copies in front of it."""
        return f"wait_{self.before}"


@dataclass(frozen=True)
class Shape:
    """What the oracle must know of a kernel."""

    tiles: Tiling
    schedule: Schedule
    asynchronous: bool
    barriers: tuple[Barrier, ...]
    drains: frozenset[str] = frozenset()  # further leaves that wait for all copies

    @property
    def parts(self) -> int:
        spread = self.schedule.pipeline.copies == "spread" and self.schedule.loops.mma[0] == "k"
        return self.tiles.k_steps if spread else 1

    @property
    def staged(self) -> bool:
        return self.schedule.epilogue.through == "smem"

    @property
    def stores(self) -> int:
        """Vectors of a warp tile, a warp's worth at a time; or rows of instructions."""
        vectors = self.tiles.warp[0] * self.tiles.warp[1] // VECTOR
        return -(-vectors // WARP) if self.staged else self.tiles.atoms[0]


def expected(shape: Shape, k_tiles: int) -> Counter[tuple[str, tuple[int, ...]]]:
    """Every instance that has to run, once, apart from synchronisation."""
    (atoms_m, atoms_n), steps = shape.tiles.atoms, shape.tiles.k_steps
    wanted: Trace = [("zero", ())]
    for k in range(k_tiles):
        for side in "ab":
            wanted += [(f"copy_{side}", (k, p)) for p in range(shape.parts)]
            wanted += [(f"load_{side}", (k, s)) for s in range(steps)]
        wanted += [
            ("mma", (k, s, m, n))
            for s in range(steps) for m in range(atoms_m) for n in range(atoms_n)
        ]  # fmt: skip
    if shape.staged:
        wanted += [("stage", (m,)) for m in range(atoms_m)]
    wanted += [("store", (r,)) for r in range(shape.stores)]
    return Counter(wanted)


@dataclass
class _Block:
    """The state of the block at one place of the sequence."""

    shape: Shape
    k_tiles: int
    place: int = 0
    block_barrier: int = -1  # place of the last one
    warp_barrier: int = -1
    ring: dict[tuple[str, int, int], int] = field(default_factory=dict)  # side, slot, part -> k
    landed: dict[tuple[str, int, int], int] = field(default_factory=dict)  # side, k, part -> place
    last_read: dict[tuple[str, int, int], int] = field(default_factory=dict)
    open_group: list[tuple[str, int, int]] = field(default_factory=list)
    groups: list[list[tuple[str, int, int]]] = field(default_factory=list)
    fragment: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    sums: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    zeroed: bool = False
    scratch: dict[int, int] = field(default_factory=dict)

    def need(self, condition: bool, text: str) -> None:
        if not condition:
            raise Violation(f"at {self.place}, k_tiles = {self.k_tiles}: {text}")

    def copy(self, side: str, k: int, part: int) -> None:
        cell = (side, k % self.shape.schedule.pipeline.stages, part)
        if cell in self.last_read:
            safe = self.block_barrier > self.last_read[cell]
            self.need(safe, f"copy_{side}({k}) overwrites slot {cell[1]} while it may be read")
        if cell in self.ring:
            before = (side, self.ring[cell], part)
            self.need(before in self.landed, f"copy_{side}({k}) races with that of {before[1]}")
        self.ring[cell] = k
        if self.shape.asynchronous:
            self.open_group.append((side, k, part))
        else:
            self.landed[side, k, part] = self.place

    def wait(self, pending: int) -> None:
        for group in self.groups[: max(0, len(self.groups) - pending)]:
            for copy in group:
                self.landed.setdefault(copy, self.place)

    def load(self, side: str, k: int, step: int) -> None:
        for part in range(self.shape.parts):
            cell = (side, k % self.shape.schedule.pipeline.stages, part)
            self.need(
                self.ring.get(cell) == k, f"load_{side}({k},{step}) finds {self.ring.get(cell)}"
            )
            landed = self.landed.get((side, k, part))
            self.need(landed is not None, f"load_{side}({k},{step}): the copy may be in flight")
            seen = landed is not None and self.block_barrier > landed
            self.need(seen, f"load_{side}({k},{step}): no barrier after the copies landed")
            self.last_read[cell] = self.place
        self.fragment[side, step % self.shape.schedule.pipeline.fragments] = (k, step)

    def multiply(self, k: int, step: int, m: int, n: int) -> None:
        self.need(self.zeroed, "a sum is used before it is cleared")
        for side in "ab":
            held = self.fragment.get((side, step % self.shape.schedule.pipeline.fragments))
            self.need(held == (k, step), f"mma({k},{step}) finds fragment {side} of {held}")
        self.sums.setdefault((m, n), []).append((k, step))

    def row_is_complete(self, m: int) -> None:
        every = [(k, s) for k in range(self.k_tiles) for s in range(self.shape.tiles.k_steps)]
        for n in range(self.shape.tiles.atoms[1]):
            self.need(self.sums.get((m, n)) == every, f"sum[{m},{n}] is {self.sums.get((m, n))}")

    def stage(self, m: int) -> None:
        """Staging overwrites the rings, so nobody may read or copy there any more."""
        self.row_is_complete(m)
        for cell, read in self.last_read.items():
            self.need(self.block_barrier > read, f"stage({m}) overwrites {cell}")
        for (side, slot, part), k in self.ring.items():
            self.need((side, k, part) in self.landed, f"copy_{side}({k}) lands in scratch, {slot}")
        self.scratch[m] = self.place

    def store(self, r: int) -> None:
        if not self.shape.staged:
            self.row_is_complete(r)
            return
        for m in range(self.shape.tiles.atoms[0]):
            staged = self.scratch.get(m)
            self.need(staged is not None, f"store({r}) before stage({m})")
            met = max(self.warp_barrier, self.block_barrier) > (staged or 0)
            self.need(met, f"store({r}): no barrier since stage({m})")


def check_trace(trace: Trace, shape: Shape, k_tiles: int) -> None:
    """Run one sequence.

    Raises:
        Violation: an instance is missing, doubled, or sees something it must not see.
    """
    barriers = {barrier.name: barrier for barrier in shape.barriers}
    waits = {b.wait: b.pending for b in shape.barriers if b.pending is not None}
    waits |= dict.fromkeys(shape.drains, 0)
    found = Counter(
        call
        for call in trace
        if call[0] not in barriers and call[0] not in waits and call[0] not in ("commit", "prepare")
    )
    if found != expected(shape, k_tiles):
        different = (found - expected(shape, k_tiles)) + (expected(shape, k_tiles) - found)
        raise Violation(f"k_tiles = {k_tiles}: missing or more than once: {sorted(different)[:4]}")
    block = _Block(shape, k_tiles)
    for place, (name, arguments) in enumerate(trace):
        block.place = place
        if name == "zero":
            block.zeroed = True
            block.need(not block.sums, "sums are cleared after use")
        elif name.startswith("copy_"):
            block.copy(name[-1], *arguments)
        elif name.startswith("load_"):
            block.load(name[-1], *arguments)
        elif name == "mma":
            block.multiply(*arguments)
        elif name == "commit":
            block.groups.append(block.open_group)
            block.open_group = []
        elif name in waits:
            block.wait(waits[name] or 0)
        elif name in barriers:
            if barriers[name].scope == "block" or shape.tiles.warp_count == 1:
                block.block_barrier = place
            block.warp_barrier = place
        elif name == "stage":
            block.stage(*arguments)
        elif name == "store":
            block.store(*arguments)


def check_loops(loops: ast.LoopAst, shape: Shape, k_tiles: range = K_TILES) -> None:
    """Run the loops for several numbers of k tiles."""
    for count in k_tiles:
        check_trace(run_loops(loops, {"k_tiles": count}), shape, count)


def breaks(loops: ast.LoopAst, shape: Shape, k_tiles: range = K_TILES) -> bool:
    """Whether the loops go wrong for some number of k tiles."""
    try:
        check_loops(loops, shape, k_tiles)
    except Violation:
        return True
    return False


ONE_PRODUCT = MainLoop((Ring("a", "m"), Ring("b", "n")), (Product("", "a", "b"),))


# --- subjects ------------------------------------------------------------------------------------
@lru_cache
def sample_program(dtype: str = "bf16", layout: str = "nt") -> tuple[Program, Scop]:
    """A product with a bias, and its model."""
    product, x, w = LAYOUTS[layout]
    function = parse_expression(f"{product} + b", ("x", "w", "b"))
    program = fuse(function, name="sample").program(f"{dtype}{x}", f"{dtype}{w}", "f32[N]")
    return program, scop(program)


def map_sample(
    schedule: Schedule, *, asynchronous: bool = True, dtype: str = "bf16", layout: str = "nt"
) -> ScheduleTree:
    """The schedule tree of the sample program."""
    program, model = sample_program(dtype, layout)
    fusion = fuse_statements(program, model)
    return map_program(
        model,
        fusion,
        match(program, fusion),
        schedule,
        sample_atom(dtype),
        asynchronous=asynchronous,
        rows=ROWS,
    )


def sample_atom(dtype: str = "bf16"):  # type: ignore[no-untyped-def]
    """The instruction for the sample program."""
    program, _ = sample_program(dtype, "nt")
    kind = program.inputs[0].dtype
    return atoms_for(device("sm_80"), kind, kind, program.contractions[0].dtype)[0]


def barriers_of(tree: ScheduleTree) -> tuple[Barrier, ...]:
    """The barriers of a mapped schedule."""
    made = tree.synchronised
    waits = {s.wait: s.pending for s in made.syncs if s.kind == "retire"}
    loops = {leaf.name: leaf.loops for leaf in made.leaves}
    scopes = {"place": "block", "agent": "warp"}
    return tuple(
        Barrier(
            s.name,
            scopes[s.scope],
            "main" if loops[s.name] else "epilogue",
            s.name.removeprefix("bar_"),
            waits.get(f"wait_{s.name.removeprefix('bar_')}"),
        )
        for s in made.syncs
        if s.kind == "bar"
    )


def shape_of(tree: ScheduleTree, schedule: Schedule, asynchronous: bool = True) -> Shape:
    """What the oracle must know of a mapped schedule."""
    return Shape(tree.tiles, schedule, asynchronous, barriers_of(tree))


def loops_without(
    tree: ScheduleTree, schedule: Schedule, dropped: Barrier, *, asynchronous: bool = True
) -> tuple[ast.LoopAst, Shape]:
    """The loops of a mapped schedule with one barrier less, and without the wait in front of it."""
    of = tree.synchronised
    present = set(leaves(of.tree))
    left = without(of.tree, *(present & {dropped.name, dropped.wait}))
    more = tuple(x for x in of.leaves if x.name in leaves(left))
    (place,) = place_trees(of.program, left, more)
    kept = tuple(b for b in barriers_of(tree) if b is not dropped)
    return place.loops(), Shape(tree.tiles, schedule, asynchronous, kept)


def loops_with_every_barrier(
    schedule: Schedule, *, asynchronous: bool = True
) -> tuple[ast.LoopAst, Shape]:
    """The loops of a schedule, legal or not, with a wait for everything and a barrier of the block
    between any two statements."""
    tiles = tiling(schedule, sample_atom())
    epilogue = Epilogue(ROWS, Panels(0, (), ()))
    program = kernel_program(tiles, schedule, epilogue, ONE_PRODUCT, asynchronous=asynchronous)
    model = TileModel(program)
    (place,) = program.places
    more: list[SyncStatement] = []

    def domain(child: Node, outer: tuple[Loop, ...], name: str) -> isl.Set:
        variables = ",".join((*place.agents, *(one.variable for one in outer)))
        found = None
        for leaf in leaves(child):
            when = ",".join((*place.agents, *(one.time(leaf) for one in outer)))
            runs = model.map(f"{program.statement(leaf).instance} -> {name}[{when}]")
            runs = runs.intersect_domain(model.domains[leaf])
            found = runs.range() if found is None else found.union(runs.range())
        assert found is not None and variables
        return found.coalesce()

    def visit(node: Node, outer: tuple[Loop, ...]) -> Node:
        if isinstance(node, Leaf):
            return node
        if isinstance(node, Loop):
            child = visit(node.child, (*outer, node))
            known = dict(node.times)
            every = tuple((x, known.get(x, node.variable)) for x in leaves(child))
            return replace(node, child=child, times=every)
        children: list[Node] = []
        for child in node.children:
            for kind in ("wait", "bar"):
                name = f"{kind}_{len(more)}"
                variables = tuple(one.variable for one in outer)
                at = str(domain(child, outer, name))
                more.append(SyncStatement(name, kind, variables, at, place))
                children.append(Leaf(name))
            children.append(visit(child, outer))
        return Steps(tuple(children))

    tree = visit(program.schedule, ())
    (found,) = place_trees(program, tree, tuple(more))
    barriers = tuple(
        Barrier(f"bar_{n + 1}", "block", "main", f"_{n}", None) for n in range(0, len(more), 2)
    )
    waits = {f"wait_{n}" for n in range(0, len(more), 2)}
    return found.loops(), Shape(tiles, schedule, asynchronous, barriers, frozenset(waits))
