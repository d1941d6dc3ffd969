"""What the kernel of a chain is made of: tiles, slots, places, and the cells of a tile."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.hardware.device import common_facts
from polygen.poly.chain_layers import LayerShape, Tile, left_by, nth
from polygen.poly.role_shape import tile_of
from polygen.poly.tile_program import Place
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
        folds: whether terms of results are folded.
        again: layers whose values are read behind the first product's sums.
        behind: those whose values are read behind the second one's; "": the first product.
        passes: over the sums, before results are made: whether each leaves values of elements for
            those behind it.
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
    folds: bool = False
    passes: tuple[bool, ...] = ()
    again: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()

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
    def left(self) -> tuple[str, ...]:
        """The cells of what is read behind the second product's sums, of instruction row `m`."""
        bounds = "" if self.roles else f" : 0 <= n < {self.tiles.atoms[1]}"
        own = (*self.consumer.agents, *self.atoms)
        of_first = (*self.rows_of_block, "k_tiles - 1", *own)
        return tuple(
            f"{left_by(layer)}[{','.join(own if layer else of_first)}]{bounds}"
            for layer in self.behind
        )

    @property
    def located(self) -> tuple[str, ...]:
        """The cell that says which tile of rows it is; none where a block has one."""
        return (tile_of(self.consumer),) if self.roles else ()
