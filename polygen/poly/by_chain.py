"""The program of a chain: two products in one loop over keys, with scans between them.

    producer   fill_a[i] fill_b[i,k] fill_c[i,k]   one thread has the copy engine fill rings: the
                                                   rows of the first product, its keys, the values
               find_b[i,k] find_c[i,k]             of keys or values in pages it first reads where
                                                   these are, while it waits for a slot
    consumer   score[i,k,s,m]     a tile of the first product: 64 rows by the keys of a tile
               advance[i,k]       terms of the reference; its next state, and what corrects sums
               weigh[i,k]         terms under the reference; their states
               rescale[i,k]       the second product's sums, for the reference of this tile
               convert[i,k]       what is weighed -> the second product's left operand, in registers
               multiply[i,k,s,m]  the second product
               complete[i]        states of threads -> states of rows
               store[i,m]         sums and states -> results, straight from the registers
               finish[i,p] store[i,p]
                                  or sums and states -> panels; one thread has the copy engine store
                                  them, while the next tile is scored (`panels_out`)

Blocks are persistent: `i` counts the tiles of rows of one, `k` the tiles of keys, `s` instructions
along what is summed, `m` those along the rows of a consumer. Where a mask leaves tiles of rows
different numbers of tiles of keys, `k_tiles` is that of tile `i`: rings go on from one to the next.

The second product lags a tile: it runs while the next tile is scored and weighed. So the last
uses of rings stand where something else waits for them, so that both products are in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.hardware.device import common_facts
from polygen.poly.chain_layers import LayerShape, Tile, nth
from polygen.poly.frames import Frames, Held
from polygen.poly.kernel_parts import flat
from polygen.poly.panels_out import panel_buffer, panels_out
from polygen.poly.role_shape import tile_of
from polygen.poly.tile_program import Buffer, Place, TileProgram, TileStatement, Varying
from polygen.poly.tile_tree import Node, loop, steps
from polygen.poly.tiling import Panels, Tiling
from polygen.schedule.model import Pipeline

NO_PANELS = Panels(0, (), ())


@dataclass(frozen=True, slots=True)
class ChainShape:
    """What a chain's kernel is made of.

    Attributes:
        tiles: rows, columns of results and keys of a block's tile; those of a consumer.
        depth: elements that the first product sums over, as the tile holds them.
        stages: slots of the rings of keys and of values.
        referenced: whether terms are made with a reference.
        states: whether there are any.
        turns: whether consumers issue their products one after another, so that one multiplies
            while the others weigh.
        row_slots: slots of the ring of rows: with two the next tile's come while this one's are
            used.
        paged: rings of what lies in pages that a table names.
        varying: whether tiles of rows of one block have different numbers of tiles of keys.
        pipeline: of warps that do everything, as `chain_by_warps` has it; None: they have roles.
        asynchronous: whether copies by warps run in the background until waited for.
        panels: in which results leave; of no columns where they leave the registers for memory.
        slots: panels of a result that may be on their way out.
        layers: that make the rows of the first product, in front of the first tile of keys.
        products: of the first rows: one, or several, each with keys and scores of its own.
        layer_slots: tiles of a ring that layers share which it holds at once.
    """

    tiles: Tiling
    depth: int
    stages: int
    referenced: bool
    states: bool
    turns: bool = False
    row_slots: int = 1
    paged: tuple[str, ...] = ()
    varying: bool = False
    pipeline: Pipeline | None = None
    asynchronous: bool = True
    panels: Panels = NO_PANELS
    slots: int = 2
    layers: tuple[LayerShape, ...] = ()
    products: int = 1
    layer_slots: int = 1

    @property
    def roles(self) -> bool:
        """Whether warps have roles."""
        return self.pipeline is None

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply, or warps, each its own rows."""
        return self.tiles.warps[0]

    @property
    def score_steps(self) -> int:
        """Instructions along what the first product sums over."""
        return self.depth // self.tiles.atom[2]

    @property
    def panel_count(self) -> int:
        """Panels of a consumer's tile of one result."""
        return self.tiles.atoms[0] * self.panels_beside

    @property
    def panels_beside(self) -> int:
        """Panels of the same rows."""
        return self.tiles.columns // self.panels.columns

    @property
    def ends(self) -> str:
        """The statement that takes the sums of a tile."""
        return "finish" if self.panels.columns else "store"

    @property
    def producer(self) -> Place:
        """The thread that fills rings."""
        return Place("producer")

    @property
    def consumer(self) -> Place:
        """Who multiplies: a warpgroup, or a warp."""
        facts = common_facts()
        if not self.roles:
            return Place("warps", ("w",), (self.consumers,), facts["warp_size"])
        threads = facts["warpgroup_warps"] * facts["warp_size"]
        return Place("consumer", ("group",), (self.consumers,), threads)

    @property
    def rows_of_block(self) -> tuple[str, ...]:
        """The loop over the tiles of rows of one block; none where it has one."""
        return ("i",) if self.roles else ()

    @property
    def second(self) -> str:
        """What the second product is called."""
        return "multiply" if self.roles else "mma"

    @property
    def layer_tiles(self) -> tuple[Tile, ...]:
        """The right operands of all layers, in the order in which they are used."""
        return tuple(tile for one in self.layers for tile in one.tiles)

    def late(self, tile: Tile) -> bool:
        """Whether a tile is copied where another one was, once that is used."""
        return tile.number >= self.layer_slots

    @property
    def key_rings(self) -> tuple[str, ...]:
        """The rings of keys, of each product of the first rows."""
        return ("b", *(f"b{number + 1}" for number in range(1, self.products)))

    @property
    def all_scores(self) -> tuple[str, ...]:
        """The cells of the scores of each of these products."""
        return tuple(nth("scores", number) for number in range(self.products))

    @property
    def begins(self) -> tuple[str, ...]:
        """The tile of keys in front of which the second product's sums are cleared by warps; none
        where that is in front of all. Beside layers, whose sums come first, they are not held yet.
        """
        return ("0",) if self.layers else ()

    @property
    def atoms(self) -> tuple[str, ...]:
        """Coordinates of an instruction in a tile of sums; with roles it has all columns."""
        return ("m",) if self.roles else ("m", "n")

    def every(self, columns: int) -> str:
        """The bounds of these in a tile of so many columns, as isl text."""
        found = f"0 <= m < {self.tiles.atoms[0]}"
        return found if self.roles else f"{found} and 0 <= n < {columns // self.tiles.atom[1]}"

    @property
    def rows(self) -> str:
        """The bounds of a tile of rows, as isl text."""
        return "0 <= i < tiles" if self.roles else "1 = 1"

    @property
    def keys(self) -> str:
        """The bounds of its tiles of keys."""
        return f"{self.rows} and 0 <= k < k_tiles"

    def of_rows(self, name: str, *inside: str) -> str:
        """A cell that who multiplies has for a tile of rows."""
        return f"{name}[{','.join((*self.rows_of_block, *self.consumer.agents, *inside))}]"

    def of_keys(self, name: str, *inside: str) -> str:
        """A cell that who multiplies has for a tile of keys."""
        return f"{name}[{','.join((*self.rows_of_block, 'k', *self.consumer.agents, *inside))}]"

    @property
    def located(self) -> tuple[str, ...]:
        """The cell that says which tile of rows it is; none where a block has one."""
        return (tile_of(self.consumer),) if self.roles else ()


def by_chain(shape: ChainShape) -> TileProgram:
    """The program."""
    late = (*_finds(shape, "c"), "fill_c")
    lag = {name: "k + 1" for name in (*late, "multiply", "commit_multiply")}
    middle = [s.name for s in between(shape)]
    score, multiply = (loop("s", loop("m", name)) for name in ("score", "multiply"))
    first: tuple[Node | str, ...] = (*_finds(shape, "b"), "fill_b", score, "commit_score")
    second: tuple[Node | str, ...] = (*late, multiply, "commit_multiply")
    begin = ("locate_producer", "locate_consumer", "fill_a")
    ends = (*(("complete",) if shape.states else ()), *_leave(shape))
    every = loop("k", flat(steps(*first, *middle, *second)))
    runs = loop("k", flat(steps(*first, *second, *middle)), "separate[x]", **lag)
    # Where what a product makes is needed first: until then the other one may run as well.
    second_needed = "rescale" if shape.referenced else "convert"
    releases = (("ring_b", middle[0]), ("ring_c", second_needed))
    return TileProgram(
        ("k_tiles", "tiles"),
        "k_tiles >= 1 and tiles >= 0",
        _buffers(shape),
        (*_fills(shape), *_products(shape), *between(shape), *end(shape)),
        loop("i", flat(steps(*begin, every, *ends))),
        loop("i", flat(steps(*begin, runs, *ends))),
        fields=(
            ("ring", "pipeline.stages or pipeline.in_flight"),
            ("scores", "pipeline.in_flight"),
            ("weights", "pipeline.in_flight"),
            ("result", "epilogue.slots"),
        ),
        releases=releases,
        turns=(("score", "commit_multiply"),) if shape.turns else (),
        varying=varying(shape),
    )


def _leave(shape: ChainShape) -> tuple[Node, ...]:
    """How results leave behind a tile's last product.

    Where there are slots for all panels of a tile they are made first, and then stored: what the
    slots wait for are the stores of a whole tile before. Else they go one by one.
    """
    if not shape.panels.columns:
        return (loop("m", "store"),)
    if shape.slots % shape.panel_count == 0:
        return (loop("p", "finish"), loop("p", "store"))
    return (loop("p", steps("finish", "store")),)


def varying(shape: ChainShape) -> Varying | None:
    """The number of tiles of keys, where it is not the same for all tiles of rows.

    Slots are taken again as many versions later as a ring has: with a tile of keys for each tile of
    rows, so many tiles of rows later.
    """
    if not shape.varying:
        return None
    return Varying("k_tiles", "i", 1, 1 + max(shape.stages, shape.row_slots))


def frames(shape: ChainShape) -> Frames:
    """Under which tile's reference sums are taken, and left."""
    if not shape.referenced:
        return Frames("sum", ())
    rows = "".join(f"{loop}," for loop in shape.rows_of_block)
    now, before, last = (f"[{rows}{key}]" for key in ("k", "k-1", "k_tiles - 1"))
    cleared = () if shape.roles else (Held("zero", "", "[0]"),)
    return Frames(
        "sum",
        (
            *cleared,
            Held("rescale", before, now),
            Held(shape.second, now, now),
            Held(shape.ends, last, ""),
        ),
    )


def _buffers(shape: ChainShape) -> tuple[Buffer, ...]:
    producer, consumer = shape.producer, shape.consumer
    found = [
        *(place.keeps(f"tile_{place.name}", 1, "scalar") for place in (producer, consumer)),
        *(producer.keeps(page_registers(ring), 2, "scalar") for ring in shape.paged),
        producer.keeps("ring_a", 1, "shared", shape.row_slots),
        producer.keeps("ring_b", 2, "shared", shape.stages),
        producer.keeps("ring_c", 2, "shared", shape.stages),
        *(consumer.keeps(name, 2) for name in ("scores", "weights")),
        consumer.keeps("sum", 1),
    ]
    if shape.states:
        found.append(consumer.keeps("states", 1))
    if shape.referenced:
        found.append(consumer.keeps("correction", 2))
    for name in shape.panels.outputs:
        found.append(panel_buffer(consumer, f"result_{name}", shape.slots, [shape.panel_count]))
    return tuple(found)


def _finds(shape: ChainShape, ring: str) -> tuple[str, ...]:
    """The statement that finds the pages of a ring's next tile; none where it has no pages."""
    return (f"find_{ring}",) if ring in shape.paged else ()


def page_registers(ring: str) -> str:
    """Where the numbers of a tile's pages are, from the table to the copies."""
    return f"page_{ring}"


def _fills(shape: ChainShape) -> tuple[TileStatement, ...]:
    rows = "0 <= i < tiles"
    keys = f"{rows} and 0 <= k < k_tiles"
    producer, found = shape.producer, []
    for place in (producer, shape.consumer):
        name, cells = f"locate_{place.name}", (tile_of(place),)
        found.append(place.runs(name, ("i",), rows, (), cells, "frame", calls="locate"))
    reads = (tile_of(producer),)
    for ring, loops, bounds in (
        ("a", ("i",), rows),
        ("b", ("i", "k"), keys),
        ("c", ("i", "k"), keys),
    ):
        cell = f"ring_{ring}[{','.join(loops)}]"
        own: tuple[str, ...] = reads
        if ring in shape.paged:
            pages = f"{page_registers(ring)}[{','.join(loops)}]"
            own = (*reads, pages)
            found.append(producer.runs(f"find_{ring}", loops, bounds, reads, (pages,)))
        found.append(producer.runs(f"fill_{ring}", loops, bounds, own, (cell,), "move", "tma.load"))
    return tuple(found)


def _products(shape: ChainShape) -> tuple[TileStatement, ...]:
    consumer = shape.consumer
    keys, m = "0 <= i < tiles and 0 <= k < k_tiles", f"0 <= m < {shape.tiles.atoms[0]}"
    scores, total = "scores[i,k,group,m]", "sum[i,group,m]"
    loops = ("i", "k", "s", "m")
    score = consumer.runs(
        "score", loops, f"{keys} and 0 <= s < {shape.score_steps} and {m}",
        ("ring_a[i]", "ring_b[i,k]", f"{scores} : s > 0"), (scores,),
        "product", "wgmma", group="commit_score",
    )  # fmt: skip
    multiply = consumer.runs(
        "multiply", loops, f"{keys} and 0 <= s < {shape.tiles.k_steps} and {m}",
        ("weights[i,k,group]", "ring_c[i,k]", f"{total} : k + s > 0"), (total,),
        "product", "wgmma", group="commit_multiply",
    )  # fmt: skip
    # Behind the first scores of a row tile nothing is multiplied yet: the group is empty, and as
    # many groups follow the scores as later on.
    behind = "0 <= i < tiles and -1 <= k < k_tiles"
    commits = (("commit_score", keys), ("commit_multiply", behind))
    closing = (consumer.runs(name, ("i", "k"), own, op="commit") for name, own in commits)
    return (score, multiply, *closing)


def between(shape: ChainShape) -> tuple[TileStatement, ...]:
    """What runs from the scores of a tile to the second product's operand."""
    consumer, loops, keys = shape.consumer, (*shape.rows_of_block, "k"), shape.keys
    scores, *beside = (
        f"{shape.of_keys(name, *shape.atoms)} : {shape.every(shape.tiles.cta[2])}"
        for name in shape.all_scores
    )
    sums = f"{shape.of_rows('sum', *shape.atoms)} : {shape.every(shape.tiles.cta[1])}"
    states, seen = shape.of_rows("states"), f"{shape.of_rows('states')} : k > 0"
    correction, weights = shape.of_keys("correction"), shape.of_keys("weights")
    found = []
    if shape.referenced:
        reads, writes = (*shape.located, scores, *beside, seen), (scores, states, correction)
        beside = []
        found.append(consumer.runs("advance", loops, keys, reads, writes))
    own = (states,) if shape.states else ()
    before = ((states,) if shape.referenced else (seen,)) if shape.states else ()
    corrects = (correction,) if shape.referenced else ()
    reads = (*shape.located, scores, *beside, *before, *corrects)
    found.append(consumer.runs("weigh", loops, keys, reads, (scores, *own)))
    if shape.referenced:
        later = f"{keys} and k > 0"
        found.append(consumer.runs("rescale", loops, later, (correction, sums), (sums,)))
    found.append(consumer.runs("convert", loops, keys, (scores,), (weights,)))
    return tuple(found)


def end(shape: ChainShape) -> tuple[TileStatement, ...]:
    """What becomes of sums and states behind the last tile of keys."""
    consumer, loops = shape.consumer, shape.rows_of_block
    states = (shape.of_rows("states"),) if shape.states else ()
    complete = (consumer.runs("complete", loops, shape.rows, states, states),) if states else ()
    if shape.panels.columns:
        bounds = f"{shape.rows} and 0 <= p < {shape.panel_count}"
        m = f"floor(p/{shape.panels_beside})"
        reads = (f"sum[i,group,m] : m = {m}", *states)
        (located,) = shape.located
        return (
            *complete,
            *panels_out(consumer, bounds, "i,p,group", reads, shape.panels, located),
        )
    each = f"{shape.rows} and 0 <= m < {shape.tiles.atoms[0]}"
    total = shape.of_rows("sum", *shape.atoms)
    if not shape.roles:
        total = f"{total} : 0 <= n < {shape.tiles.atoms[1]}"
    store = consumer.runs("store", (*loops, "m"), each, (*shape.located, total, *states))
    return (*complete, store)
