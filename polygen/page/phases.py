"""What a wait at an mbarrier is for: the instances that its phase needs, from the sets of a `Sync`.

Versions of a buffer follow each other in the order of their coordinates, each owner's by
themselves. A wait for a version is for the signals of the one that many slots before it, as the
record's phase says; the first ones are for nothing.
"""

from __future__ import annotations

from polygen import isl
from polygen.page.loops import Instance, Point
from polygen.poly.tile_program import Sync, TileProgram


class Barrier:
    """An mbarrier or a turn: which instances every wait needs."""

    def __init__(
        self, sync: Sync, program: TileProgram, sizes: dict[str, int], blocks: int
    ) -> None:
        self.sync, self._blocks = sync, blocks
        owned = next((b for b in program.buffers if b.name == sync.buffers[0]), None)
        self._owner = (owned.versions, owned.versions + owned.owner) if owned else None
        self._cells: dict[Point, list[Point]] = {}  # of every wait
        for wait, cell in _pairs(program, sizes, sync.waits_for):
            self._cells.setdefault(wait, []).append(cell)
        self._signals: dict[tuple[Point, Point], list[Instance]] = {}  # by owner and version
        for leaf, text in sync.signals:
            for instance, cell in _pairs(program, sizes, text):
                self._signals.setdefault(self._key(cell), []).append((leaf, instance))
        versions: dict[Point, list[Point]] = {}
        waited = (cell for cells in self._cells.values() for cell in cells)
        for owner, version in {*self._signals, *map(self._key, waited)}:
            versions.setdefault(owner, []).append(version)
        self._versions = {owner: sorted(found) for owner, found in versions.items()}

    def _key(self, cell: Point) -> tuple[Point, Point]:
        """Whose barrier a cell is, and which version."""
        if self._owner is None:  # turns: a token of each block, passed on in the order of tiles
            own = len(cell) - self._blocks
            return cell[own:], cell[:own]
        first, end = self._owner
        return cell[first:end], cell[:first]

    def needed(self, wait: Point) -> list[Instance]:
        """The instances that a wait is for."""
        found: list[Instance] = []
        for owner, version in map(self._key, self._cells.get(wait, ())):
            order = self._versions[owner]
            before = order.index(version) + self.sync.phase * self.sync.slots
            if before >= 0:
                found += self._signals.get((owner, order[before]), [])
        return found


def _pairs(program: TileProgram, sizes: dict[str, int], text: str) -> list[tuple[Point, Point]]:
    relation = isl.Map(f"{program.prefix}{{ {text} }}")
    param = isl.dim_type.param
    for name, size in sizes.items():
        place = relation.find_dim_by_name(param, name)
        relation = relation.fix_val(param, place, isl.Val(size))
    relation = relation.project_out(param, 0, relation.dim(param))
    length = relation.dim(isl.dim_type.in_)
    return [(p[:length], p[length:]) for p in isl.points(relation)]
