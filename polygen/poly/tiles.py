"""The statements of one thread block at tile granularity: copies are statements like any other.

`w` is the warp, `k` the k tile, `s` the MMA step inside it, `m` and `n` the instruction inside the
warp tile. Every statement says which cells of which memory it touches, so the pipelined order can
be checked, the reuse of ring slots included:

    copy_a[w,k,p]    global A -> ring_a[k mod stages, w, p]           (part p, every warp its share)
    load_a[w,k,s]    ring_a[k mod stages, all parts] -> fragment_a[w, s mod fragments, m]
    mma[w,k,s,m,n]   sum[w,m,n] += fragment_a[w, s mod fragments, m] * fragment_b[.., n]
    stage[w,m]       sum[w,m,n] -> scratch[w,m]             (a row of instructions at a time)
    store[w,r]       scratch[w] -> pointwise functions -> global outputs   (32 vectors at a time)

The scratch area overlays the rings, which is one more memory that loads read and staging writes.
Dependences are computed in the sequential order: clear, then per k tile copy, then per step load
and multiply, then the epilogue row by row. Whatever order a schedule asks for is checked against
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.poly.scop import must_flow, reuse_dependences
from polygen.poly.tiling import RowVectors, Tiling
from polygen.schedule.model import Schedule

PREFIX = "[k_tiles] -> "


@dataclass(frozen=True, slots=True)
class TileStatement:
    """One statement of a thread block."""

    name: str
    dims: tuple[str, ...]  # without the warp
    bounds: str  # isl constraint over dims
    order: tuple[str, ...]  # sequential time
    reads: tuple[str, ...] = ()  # cells, over (w, *dims)
    writes: tuple[str, ...] = ()

    def instance(self, warp: bool) -> str:
        """``mma[w,k,s,m,n]``; without the warp, ``mma[k,s,m,n]``."""
        return f"{self.name}[{','.join((('w',) if warp else ()) + self.dims)}]"


@dataclass(frozen=True, slots=True)
class Memory:
    """Where an array of the block lives, which decides who can see it."""

    name: str
    scope: str  # "block": shared by all warps; "warp": shared memory of one warp; "lane": registers


@dataclass(frozen=True, slots=True)
class TileProgram:
    """The block's statements and memories."""

    statements: tuple[TileStatement, ...]
    memories: tuple[Memory, ...]
    warps: int
    k_steps: int

    def statement(self, name: str) -> TileStatement:
        """The statement called `name`."""
        return next(s for s in self.statements if s.name == name)

    def domain(self, warp: bool = True) -> str:
        """All instances, as isl text; with or without the warp dimension."""
        bound = f"0 <= w < {self.warps} and " if warp else ""
        pieces = [f"{s.instance(warp)} : {bound}{s.bounds}" for s in self.statements]
        return PREFIX + "{ " + "; ".join(pieces) + " }"

    def dependences(self, memory: str) -> tuple[isl.UnionMap, isl.UnionMap]:
        """Flow, and anti and output, dependences through one memory."""
        domain = isl.UnionSet(self.domain())

        def relation(pairs: list[tuple[TileStatement, str]]) -> isl.UnionMap:
            text = "; ".join(f"{s.instance(True)} -> {target}" for s, target in pairs)
            return isl.UnionMap(PREFIX + "{ " + text + " }").intersect_domain(domain)

        touching = [
            s
            for s in self.statements
            if any(c.startswith(memory + "[") for c in s.reads + s.writes)
        ]
        reads = relation([(s, c) for s in touching for c in s.reads if c.startswith(memory + "[")])
        writes = relation(
            [(s, c) for s in touching for c in s.writes if c.startswith(memory + "[")]
        )
        time = relation([(s, f"[{','.join(s.order)}]") for s in touching])
        return must_flow(reads, writes, time), reuse_dependences(reads, writes, time)


def copy_parts(tiles: Tiling, schedule: Schedule) -> int:
    """Parts into which the copy of a k tile is cut: one per MMA step when copies are spread."""
    spread = schedule.pipeline.copies == "spread" and schedule.loops.mma[0] == "k"
    return tiles.k_steps if spread else 1


def tile_program(tiles: Tiling, schedule: Schedule, rows: RowVectors) -> TileProgram:
    """Write down the statements of one thread block.

    Args:
        tiles: the tile hierarchy.
        schedule: stages, fragments, copies, epilogue.
        rows: how a staged epilogue walks a warp tile.
    """
    stages, fragments = schedule.pipeline.stages, schedule.pipeline.fragments
    warps, (atoms_m, atoms_n), steps = tiles.warp_count, tiles.atoms, tiles.k_steps
    k_bound, s_bound = "0 <= k < k_tiles", f"0 <= s < {steps}"
    m_bound, n_bound = f"0 <= m < {atoms_m}", f"0 <= n < {atoms_n}"
    fragment = f"s mod {fragments}"
    statements = [
        TileStatement(
            "zero",
            (),
            "1 = 1",
            ("0", "0", "0", "0"),
            writes=(f"sum[w,m,n] : {m_bound} and {n_bound}",),
        )
    ]
    parts = copy_parts(tiles, schedule)
    # The scratch area reuses the bytes of the rings: staging may overwrite what a load still reads.
    staged = schedule.epilogue.through == "smem"
    overlaid = (f"overlay[v] : 0 <= v < {warps}",) if staged else ()
    for place, operand in enumerate("ab"):
        other, bound = ("m", m_bound) if operand == "a" else ("n", n_bound)
        statements.append(
            TileStatement(
                f"copy_{operand}",
                ("k", "p"),
                f"{k_bound} and 0 <= p < {parts}",
                ("1", "k", "0", f"{place}"),
                writes=(f"ring_{operand}[k mod {stages}, w, p]",),
            )
        )
        statements.append(
            TileStatement(
                f"load_{operand}",
                ("k", "s"),
                f"{k_bound} and {s_bound}",
                ("1", "k", "1 + s", f"{place}"),
                reads=(
                    f"ring_{operand}[k mod {stages}, v, p] : 0 <= v < {warps} and 0 <= p < {parts}",
                    *overlaid,
                ),
                writes=(f"fragment_{operand}[w, {fragment}, {other}] : {bound}",),
            )
        )
    statements.append(
        TileStatement(
            "mma",
            ("k", "s", "m", "n"),
            f"{k_bound} and {s_bound} and {m_bound} and {n_bound}",
            ("1", "k", "1 + s", "2"),
            reads=(f"fragment_a[w, {fragment}, m]", f"fragment_b[w, {fragment}, n]", "sum[w,m,n]"),
            writes=("sum[w,m,n]",),
        )
    )
    memories = [
        Memory("ring_a", "block"),
        Memory("ring_b", "block"),
        Memory("fragment_a", "lane"),
        Memory("fragment_b", "lane"),
        Memory("sum", "lane"),
    ]
    epilogue, places = _epilogue(tiles, schedule, rows)
    statements += epilogue
    memories += places
    return TileProgram(tuple(statements), tuple(memories), warps, steps)


def _epilogue(
    tiles: Tiling, schedule: Schedule, rows: RowVectors
) -> tuple[list[TileStatement], list[Memory]]:
    """Sums -> outputs: through the scratch area in rows of vectors, or straight from registers."""
    atoms_m, atoms_n = tiles.atoms
    m_bound = f"0 <= m < {atoms_m}"
    row = f"sum[w,m,n] : 0 <= n < {atoms_n}"
    if schedule.epilogue.through != "smem":
        return [TileStatement("store", ("m",), m_bound, ("2", "0", "m", "0"), reads=(row,))], []
    all_rows = f"scratch[w,m] : {m_bound}"
    statements = [
        TileStatement("prepare", (), "1 = 1", ("2", "0", "0", "0")),
        TileStatement(
            "stage",
            ("m",),
            m_bound,
            ("2", "1", "m", "0"),
            reads=(row,),
            writes=("scratch[w,m]", "overlay[w]"),
        ),
        TileStatement(
            "store",
            ("r",),
            f"0 <= r < {rows.passes(tiles)}",
            ("2", "2", "r", "0"),
            reads=(all_rows,),
        ),
    ]
    return statements, [Memory("scratch", "warp"), Memory("overlay", "block")]
