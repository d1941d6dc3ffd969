"""Coordinates and places of a kernel with roles, from its tiles and its schedule."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.hardware.device import common_facts
from polygen.poly.fills import filling_threads, rounds
from polygen.poly.kernel_parts import MainLoop, Ring
from polygen.poly.tile_program import INSIDE, OWN_TILES, PART_TILES, Place
from polygen.poly.tiling import Panels, Tiling, completed
from polygen.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class RoleShape:
    """Coordinates and places of a kernel with roles."""

    tiles: Tiling
    schedule: Schedule
    panels: Panels
    main: MainLoop

    @property
    def in_turns(self) -> bool:
        """Whether consumers take turns at whole tiles."""
        return self.schedule.in_turns

    @property
    def blocks(self) -> int:
        """Of a cluster."""
        return self.schedule.cluster.blocks

    @property
    def block_tiles(self) -> int:
        """K tiles of a block whose sum is promoted; 0: sums are in no blocks."""
        return self.main.block // self.tiles.cta[2]

    @property
    def lag(self) -> int:
        """K tiles by which the release of a slot is late: none where all of them are waited for."""
        alone = self.block_tiles == 1 and self.overlap == 1
        return 0 if alone else self.schedule.pipeline.in_flight

    @property
    def overlap(self) -> int:
        """Blocks of a sum in a run, in which each is promoted beside the next one's products."""
        return self.schedule.pipeline.overlap

    @property
    def completed(self) -> str:
        """What the sums are called that the epilogue reads."""
        return completed(self.tiles)

    @property
    def in_lines(self) -> bool:
        """Whether consumers move panels of the epilogue themselves."""
        return self.schedule.epilogue.through == "lines"

    @property
    def rank(self) -> tuple[str, ...]:
        """The coordinate of the block, where there are several."""
        return ("rank",) if self.blocks > 1 else ()

    @property
    def group(self) -> str:
        """The coordinate of a consumer."""
        return "turn" if self.in_turns else "group"

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.schedule.consumers

    def place(self, name: str, threads: int, *, each_consumer: bool) -> Place:
        """A place of every block, or of every consumer of it."""
        agents, counts = self.rank, (self.blocks,) * len(self.rank)
        if each_consumer:
            agents, counts = (*agents, self.group), (*counts, self.consumers)
        return Place(name, agents, counts, threads, len(self.rank))

    @property
    def by_engine(self) -> tuple[Ring, ...]:
        """The rings that the copy engine fills for the producer."""
        return tuple(ring for ring in self.main.rings if not (ring.pieces or ring.ahead))

    @property
    def ahead(self) -> tuple[Ring, ...]:
        """Those that it fills for who waits for no grid before."""
        return tuple(ring for ring in self.main.rings if ring.ahead)

    @property
    def by_threads(self) -> tuple[Ring, ...]:
        """The rings that threads of the producer fill."""
        return tuple(ring for ring in self.main.rings if ring.pieces)

    @property
    def rounds(self) -> tuple[int, int]:
        """Rounds in which threads fill a k tile, and pieces of one."""
        pieces = sum(ring.pieces for ring in self.by_threads)
        return rounds(pieces, self.schedule.roles.producer_registers, self.main.held)

    @property
    def producer(self) -> Place:
        """The thread that fills the rings, or the warpgroup where threads do it."""
        threads = filling_threads() if self.by_threads else 1
        return self.place("producer", threads, each_consumer=False)

    @property
    def streamer(self) -> Place:
        """The thread that fills rings with what nobody writes meanwhile."""
        return self.place("streamer", 1, each_consumer=False)

    @property
    def loader(self) -> Place:
        """The thread that fetches the operand panels of one consumer."""
        return self.place("loader", 1, each_consumer=True)

    @property
    def consumer(self) -> Place:
        """A warpgroup that multiplies."""
        facts = common_facts()
        threads = facts["warpgroup_warps"] * facts["warp_size"]
        return self.place("consumer", threads, each_consumer=True)

    def own(self, place: Place) -> str:
        """The tiles of an agent: all, or those of its turns."""
        every = "0 <= i < tiles"
        if self.in_turns and self.group in place.agents:
            return f"{every} and (i - {self.group}) mod {self.consumers} = 0"
        return every

    def working(self, place: Place) -> str:
        """Of these, the tiles that have products: all, or the first ones."""
        own = self.own(place)
        return f"{own} and i < {INSIDE}" if self.main.inside else own

    @property
    def counts(self) -> tuple[tuple[str, ...], str]:
        """What else is counted of the tiles of a block, and what is known of it, as isl text."""
        if self.main.inside:
            return (INSIDE,), f" and 0 <= {INSIDE} <= tiles"
        if self.tiles.last:
            known = f"0 <= {OWN_TILES} <= tiles and 1 <= {PART_TILES} <= k_tiles"
            return (OWN_TILES, PART_TILES), f" and {known}"
        return (), ""

    @property
    def every_k(self) -> str:
        """The k tiles of a block's tile `i`; isl text."""
        if not self.tiles.last:
            return "0 <= k < k_tiles"
        own, shared = f"i < {OWN_TILES} and k < k_tiles", f"i >= {OWN_TILES} and k < {PART_TILES}"
        return f"0 <= k and (({own}) or ({shared}))"

    def shared(self, own: str) -> str:
        """Of tiles, those whose sums blocks share; isl text."""
        return f"{own} and i >= {OWN_TILES}" if self.tiles.last else own

    @property
    def begins_run(self) -> str:
        """Of a tile `i`: it is the first of its agent's in a run; isl text."""
        first = self.group if self.in_turns else "0"
        return f"i mod {self.tiles.run} = {first}" if self.tiles.run > 1 else ""

    @property
    def run(self) -> str:
        """The tile of an agent that begins the run that tile `i` is of; isl text."""
        if self.tiles.run == 1:
            return "i"
        own = f" + {self.group}" if self.in_turns else ""
        return f"{self.tiles.run}*floor(i/{self.tiles.run}){own}"

    def elements(self, m: str) -> str:
        """Values of all elements of instruction row `m` of a tile, as cells of a buffer."""
        return f"[{self.owner('i')},m]" + (f" : m = {m}" if m != "m" else "")

    @property
    def row_of_panel(self) -> str:
        """The instruction row that an instance of what ends a tile works on; isl text."""
        columns = self.panels.columns
        return f"floor(p/{self.tiles.columns // columns})" if columns else "m"

    def owner(self, *coordinates: str) -> str:
        """Coordinates of a cell with the agent's after them: ``i,p,rank,group``."""
        return ",".join((*coordinates, *self.rank, self.group))


def tile_of(place: Place) -> str:
    """The cell that says which output tile is the i-th of a place's agents."""
    return f"tile_{place.name}[{','.join(('i', *place.agents))}]"
