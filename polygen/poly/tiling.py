"""Tiling: from statement instances to the tiles that blocks, warps and instructions execute.

The tile sizes of a schedule are integer divisions of the contraction's iterators. This module
writes each of them down once, as text over (m, n, k), and everything else is built from those: the
relations from an element instance to the thread block, and to the tile statement, that executes it.

    block   b_m = floor(m/128)              k tile  k_tile = floor(k/64)
    warp    w_m = floor((m mod 128)/64)     k step  k_step = floor((k mod 64)/16)
    atom    a_m = floor((m mod 64)/16)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polygen.frontend.program import Contraction, Dim
from polygen.hardware.atom import Atom
from polygen.poly.fusion import Fusion
from polygen.poly.match import Match
from polygen.poly.promoted_by import promoted_by
from polygen.poly.scop import Scop, clear_name, in_blocks, space
from polygen.poly.tile_program import PART_TILES
from polygen.poly.whole_rows import RowPasses
from polygen.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tile hierarchy of one kernel; all sizes in elements or counts."""

    cta: tuple[int, int, int]  # m, n, k of a thread block's step
    warp: tuple[int, int]  # m, n of a warp
    atom: tuple[int, int, int]  # m, n, k of the instruction
    split: int = 1  # blocks that share the sums of a tile: each adds up a range of its k tiles
    run: int = 1  # tiles of one row of them that a block takes one after another
    beside: int = 1  # blocks of a cluster that cover a row: each has a range of its columns
    last: bool = False  # whether they share those of the last round only
    sent: int = 0  # columns of a share that are sent at a time; 0: all of them

    @property
    def warps(self) -> tuple[int, int]:
        """Warps along m and n."""
        return (self.cta[0] // self.warp[0], self.cta[1] // self.warp[1])

    @property
    def warp_count(self) -> int:
        """Warps of a block."""
        return self.warps[0] * self.warps[1]

    @property
    def atoms(self) -> tuple[int, int]:
        """Instructions along m and n of one warp tile."""
        return (self.warp[0] // self.atom[0], self.warp[1] // self.atom[1])

    @property
    def k_steps(self) -> int:
        """Instructions along k of one k tile."""
        return self.cta[2] // self.atom[2]

    @property
    def row(self) -> int:
        """Columns of the blocks that cover a row together."""
        return self.cta[1] * self.beside

    @property
    def columns(self) -> int:
        """Columns of a warp tile that one block finishes, of a tile that it has for itself."""
        return self.warp[1] if self.last else self.share

    @property
    def share(self) -> int:
        """Columns of a warp tile that one block finishes, of a tile whose sums blocks share."""
        return self.warp[1] // self.split

    @property
    def part_tiles(self) -> str:
        """The parameter that counts a block's k tiles of a tile whose sums blocks share."""
        return PART_TILES if self.last else "k_tiles"

    def counted(self, parameters: tuple[str, ...]) -> tuple[str, ...]:
        """Parameters of a program, and those that count its k tiles."""
        return (*parameters, *dict.fromkeys(("k_tiles", self.part_tiles)))

    @property
    def kinds(self) -> tuple[Tiling, ...]:
        """The tile hierarchy of each kind of tile: of those that are a block's own, and shared."""
        if not self.last:
            return (self,)
        return (replace(self, split=1, last=False, sent=0), self)

    @property
    def chunks(self) -> int:
        """Times that blocks send each other sums of a tile."""
        return self.share // self.sent if self.sent else 1

    def expressions(self, m: str, n: str, k: str = "k") -> dict[str, str]:
        """Every tile coordinate as isl text over the given iterator names."""
        (cm, cn, ck), (wm, wn), (am, an, ak) = self.cta, self.warp, self.atom
        return {
            "b_m": f"floor({m}/{cm})",
            "b_n": f"floor({n}/{cn * self.run})",
            "i": "0" if self.run == 1 else f"floor(({n} mod {cn * self.run})/{cn})",
            "w_m": f"floor(({m} mod {cm})/{wm})",
            "w_n": f"floor(({n} mod {cn})/{wn})",
            "k_tile": f"floor({k}/{ck})",
            "k_step": f"floor(({k} mod {ck})/{ak})",
            "a_m": f"floor(({m} mod {wm})/{am})",
            "a_n": f"floor(({n} mod {wn})/{an})",
        }

    def __str__(self) -> str:
        block = "x".join(map(str, self.cta))
        warp = "x".join(map(str, self.warp))
        atom = "x".join(map(str, self.atom))
        count = f"{self.warps[0]}x{self.warps[1]} warps"
        return f"block {block}, {count} of {warp}, instruction {atom}"


def tiling(schedule: Schedule, atom: Atom) -> Tiling:
    """The tile hierarchy that a schedule and an instruction define."""
    cta, warp = schedule.tile.cta, schedule.tile.warp
    own = (atom.m, atom.n, atom.k)
    cluster, run = schedule.cluster, schedule.raster.run
    beside = cluster.n if schedule.covers_rows else 1
    return Tiling(
        (cta.m, cta.n, cta.k), (warp.m, warp.n), own, cluster.k, run, beside, cluster.last,
        cluster.columns,
    )  # fmt: skip


def whose_turn(tiles: Tiling, schedule: Schedule, tile: str) -> str:
    """Of consumers that take turns, the one that has a tile of a block's first run; isl text."""
    return "0" if tiles.run == 1 else f"({tile}) mod {schedule.consumers}"


def called(what: str, product: str) -> str:
    """``multiply``, or ``multiply_1`` where there are several products."""
    return f"{what}_{product}" if product else what


def completed(tiles: Tiling) -> str:
    """What the epilogue reads: sums, or totals; those of a last round are in the place of sums."""
    return "total" if tiles.split > 1 and not tiles.last else "sum"


def share_of(tiles: Tiling) -> str:
    """Which share of a tile is a block's, as a variable of the kernel: 0 of a tile of its own."""
    return "share" if tiles.last else "rank"


def in_pass(what: str, number: int) -> str:
    """``terms_r0``: of pass 0 over the sums of a tile that covers rows."""
    return f"{what}_r{number}"


@dataclass(frozen=True, slots=True)
class Roles:
    """How one element statement is written in isl, and what its iterators run along.

    Attributes:
        statement: its name.
        does: "clear", "product" or "map"; of sums in blocks "promote" too.
        instance: with its iterators: "P1[i,j]".
        m: the iterator along m; of rows that are pixels, which row it is, of which tile.
        n: along n.
        k: where it runs along k, as isl text: the iterator of a product; "": at no k.
        batches: along the batch dims.
        product: the name of the product that it clears or adds to.
        before: of a statement in a pass before the last over a tile's sums, which pass; else -1.
    """

    statement: str
    does: str
    instance: str
    m: str
    n: str
    k: str
    batches: tuple[str, ...]
    product: str = ""
    before: int = -1


def roles(
    scop: Scop, fusion: Fusion, match: Match, names: Sequence[str], passes: RowPasses | None = None
) -> tuple[Roles, ...]:
    """What the iterators of every statement run along, through the fused band.

    Args:
        scop: the statements in groups.
        fusion: their band.
        match: the dims.
        names: of the products, as the tile program calls them.
        passes: of a tile that covers rows.
    """
    found = []
    of = dict(passes.statements) if passes else {}
    for group in scop.groups:
        first, own = group.statements[0], fusion.iterators(group.name)
        along = {dim: iterator for iterator, dim in match.dims(own).items()}
        if match.box:
            along |= match.box.numbered({dim: along[dim] for dim in along if dim != "n"})
        batches = tuple(along[dim] for dim, _ in match.batches)
        m, n = along["m"], along["n"]
        instance = f"{group.name}[{','.join(it for it, _ in group.domain)}]"
        if not isinstance(first, Contraction):
            at = of.get(first.name, -1)
            before = at if passes and at < passes.count else -1
            found.append(Roles(group.name, "map", instance, m, n, "", batches, before=before))
            continue
        at = next(i for i, one in enumerate(match.products) if one.contraction is first)
        if first.block:
            found += _in_blocks(first, (m, n), batches, names[at])
            continue
        clear = clear_name(first)
        cleared = f"{clear}[{','.join(first.write.iterators)}]"
        found.append(Roles(clear, "clear", cleared, m, n, "", batches, names[at]))
        k = match.products[at].k
        found.append(Roles(group.name, "product", instance, m, n, k, batches, names[at]))
    return tuple(found)


def _in_blocks(
    product: Contraction, sides: tuple[str, str], batches: tuple[str, ...], name: str
) -> list[Roles]:
    """The roles of a contraction in blocks: what clears the whole sum is the first promotion."""
    clear, products, total, promote = in_blocks(product)
    does = ((clear, "clear"), (products, "product"), (total, "promote"), (promote, "promote"))
    return [Roles(one.name, what, one.instance, *sides, one.k, batches, name) for one, what in does]


def block_map(statements: tuple[Roles, ...], tiles: Tiling, schedule: Schedule) -> str:
    """Which thread block executes an instance; over ("m", "n") unless the schedule says more.

    Of blocks that cover a row together it is their cluster.
    """
    names = {"m": "b_m", "n": "b_n", "k": "k_tile"}
    pieces = []
    for s in statements:
        expressions = tiles.expressions(s.m, s.n, s.k or "0")
        if tiles.beside > 1:
            expressions["b_n"] = f"floor({s.n}/{tiles.row})"
        tile = (expressions[names[dim]] for dim in schedule.loops.grid)
        pieces.append(f"{s.instance} -> [{','.join((*s.batches, *tile))}]")
    return "{ " + "; ".join(pieces) + " }"


@dataclass(frozen=True, slots=True)
class RowVectors:
    """How a staged epilogue walks a warp tile: every lane finishes vectors of adjacent results."""

    vector: int  # adjacent results
    batch: int  # vectors of one lane whose reads are in flight together
    lanes: int  # of a warp

    def passes(self, tiles: Tiling) -> int:
        """Store statements of a warp: each finishes `batch` vectors per lane."""
        return -(-tiles.warp[0] * (tiles.warp[1] // self.vector) // (self.lanes * self.batch))


@dataclass(frozen=True, slots=True)
class Panels:
    """How an epilogue moves matrices: in panels of 64 rows by `columns` columns.

    `columns` is 0 when results go straight from registers to memory. Operands and outputs are what
    panels are called, in the order of the epilogue's matrices and of its results.
    """

    columns: int
    operands: tuple[str, ...]
    outputs: tuple[str, ...]


def _store_pass(m: str, n: str, tiles: Tiling, rows: RowVectors) -> str:
    wm, wn = tiles.warp
    item = f"({m} mod {wm})*{wn // rows.vector} + floor(({n} mod {wn})/{rows.vector})"
    return f"floor(({item})/{rows.lanes * rows.batch})"


def tile_map(
    statements: tuple[Roles, ...],
    tiles: Tiling,
    schedule: Schedule,
    rows: RowVectors,
    panels: Panels,
) -> str:
    """Element instance -> the tile statement that executes it, in a block's first tile, as isl
    text.
    """
    pieces = []
    for s in statements:
        e = tiles.expressions(s.m, s.n, s.k or "0")
        warp = f"{tiles.warps[1]}*{e['w_m']} + {e['w_n']}"
        if schedule.specialised:
            pieces += _by_roles(s, e, warp, tiles, schedule, panels)
            continue
        elif s.does == "clear" and s.k:
            target = f"{called('clear', s.product)}[{warp},{e['k_tile']}]"
        elif s.does == "clear":
            target = f"zero[{warp}]"
        elif s.does == "promote":
            target = f"{called('promote', s.product)}[{warp},{e['k_tile']}]"
        elif s.does == "product":
            mma = called(schedule.multiplies, s.product)
            target = f"{mma}[{warp},{e['k_tile']},{e['k_step']},{e['a_m']},{e['a_n']}]"
        elif s.before >= 0:
            target = f"{in_pass('terms', s.before)}[{warp},{e['a_m']}]"
        else:
            staged = schedule.epilogue.through == "smem"
            inner = _store_pass(s.m, s.n, tiles, rows) if staged else e["a_m"]
            target = f"store[{warp},{inner}]"
        pieces.append(f"{s.instance} -> {target}")
    return "{ " + "; ".join(pieces) + " }"


def _by_roles(
    s: Roles,
    e: dict[str, str],
    warp: str,
    tiles: Tiling,
    schedule: Schedule,
    panels: Panels,
) -> list[str]:
    """The consumer's statement; the first block's, and of consumers in turns the first.

    Where blocks share the sums of a tile, each has a range of k tiles, which are the same in number
    (the last ones may lie outside the operands), and a range of the columns to finish. Where they
    cover a row together, a block has its columns from the first product on.
    """
    rank = ["0"] if schedule.cluster.blocks > 1 else []
    if tiles.beside > 1:
        rank = [f"{schedule.cluster.m}*floor(({s.n} mod {tiles.row})/{tiles.cta[1]})"]
    group = whose_turn(tiles, schedule, e["i"]) if schedule.in_turns else warp
    multiply = called("multiply", s.product)
    if s.does == "product" and tiles.split > 1:
        k, rest, own = e["k_tile"], f"{e['k_step']},{e['a_m']}", tiles.part_tiles
        return [
            f"{s.instance} -> {multiply}[{r},{group},{e['i']},{k} - {r}*{own},{rest}]"
            f" : {r}*{own} <= {k} < {r + 1}*{own}"
            for r in range(tiles.split)
        ]
    if s.does == "map" and tiles.split > 1:
        rank = [f"floor(({s.n} mod {tiles.warp[1]})/{tiles.share})"]
    who = [*rank, group, e["i"]]
    if s.does == "clear" and s.k:  # of a block, whose first product overwrites
        what, inner = multiply, [e["k_tile"], e["k_step"], e["a_m"]]
    elif s.does == "clear":
        what, inner = multiply, ["0", "0", e["a_m"]]  # the first product overwrites
    elif s.does == "promote":  # behind a block's last k tile; the first of a sum overwrites
        to = ",".join([*who, e["k_tile"], e["a_m"]])
        return [
            f"{s.instance} -> {called(name, s.product)}[{to}] : {of}"
            for name, of in promoted_by(schedule.pipeline.overlap, e["k_tile"])
        ]
    elif s.does == "product":
        what, inner = multiply, [e["k_tile"], e["k_step"], e["a_m"]]
    elif s.before >= 0:
        what, inner = in_pass("terms", s.before), [e["a_m"]]
    elif panels.columns:
        per_block = tiles.columns // panels.columns
        column = f"floor(({s.n} mod {tiles.share})/{panels.columns})"
        what, inner = "finish", [f"{per_block}*{e['a_m']} + {column}"]
    else:
        what, inner = "store", [e["a_m"]]
    return [f"{s.instance} -> {what}[{','.join([*who, *inner])}]"]


def whole_tile(statements: tuple[Roles, ...], tiles: Tiling) -> str:
    """The element instances of a whole first tile, whatever the sizes, as isl text.

    Of blocks that cover a row together, the tiles of all of them.
    """
    pieces = []
    for s in statements:
        bounds = [f"0 <= {s.m} < {tiles.cta[0]}", f"0 <= {s.n} < {tiles.row * tiles.run}"]
        if s.k:
            bounds.append(f"0 <= {s.k} < {tiles.cta[2] * tiles.split}*{tiles.part_tiles}")
        pieces.append(f"{s.instance} : {' and '.join(bounds)}")
    return "{ " + "; ".join(pieces) + " }"


def tile_count(scop: Scop, tiles: Tiling, depths: tuple[Dim, ...], *, longer: bool = False) -> str:
    """The parameter space in which `k_tiles` is the number of a block's k tiles, as isl text.

    Where only those of the last round are shared, `part_tiles` is that of a block's part of one.

    Args:
        scop: the program.
        tiles: the tile hierarchy.
        depths: lengths of its sums.
        longer: whether there may be more k tiles than any of them has.
    """
    step = tiles.cta[2] * (1 if tiles.last else tiles.split)
    each = [f"floor(({depth} + {step - 1})/{step})" for depth in depths]
    count = " and ".join(f"k_tiles >= {one}" for one in each)
    reached = "1 = 1" if longer else " or ".join(f"k_tiles = {one}" for one in each)
    if tiles.last:
        count += f" and {PART_TILES} = floor((k_tiles + {tiles.split - 1})/{tiles.split})"
    parameters = tiles.counted(scop.parameters)
    return space(parameters) + "{ : " + f"{count} and ({reached})" + " }"
