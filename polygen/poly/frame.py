"""What a kernel does before its places begin and after they have ended.

mbarriers are initialised by one thread: everybody who waits or arrives there comes after that,
which takes a barrier of the block, or of the cluster where other blocks reach it. A block of a
cluster stays until no other can reach its shared memory any more: what lands there is waited for by
its own threads, at a barrier that has all bytes; arrivals are waited for by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.poly.tile_program import Sync
from polygen.poly.versions import TileModel

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out
_WIDTH = ("none", "block", "cluster")


@dataclass(frozen=True, slots=True)
class Frame:
    """Who meets at the beginning and at the end: "none", the "block" or the "cluster"."""

    begin: str
    end: str

    def holds(self, needed: Frame) -> bool:
        """Whether it is as wide as is needed."""
        return _WIDTH.index(self.begin) >= _WIDTH.index(needed.begin) and _WIDTH.index(
            self.end
        ) >= _WIDTH.index(needed.end)


def frame(model: TileModel, syncs: tuple[Sync, ...]) -> Frame:
    """The frame that a synchronised program needs."""
    barriers = [s for s in syncs if s.kind in ("mbarrier", "turn")]
    if not barriers:
        return Frame("none", "none")
    arriving = any(_signals_across(model, s, moves=False) for s in barriers)
    if arriving or not all(_waited_for(model, name, syncs) for name in _moves_across(model)):
        return Frame("cluster", "cluster")
    if any(_signals_across(model, s, moves=True) for s in barriers):
        return Frame("cluster", "none")
    return Frame("block", "none")


def _moves_across(model: TileModel) -> list[tuple[str, str]]:
    """Statements that write another block's copy of a buffer, with the buffer."""
    found = []
    for buffer in model.program.buffers:
        for name, access in model.writes[buffer.name].items():
            blocks = model.program.statement(name).place.blocks
            if buffer.space == "shared" and _leaves_block(access, blocks, buffer.versions):
                found.append((name, buffer.name))
    return found


def _waited_for(model: TileModel, move: tuple[str, str], syncs: tuple[Sync, ...]) -> bool:
    """Whether everything that a statement writes is waited for in the block that it lands in."""
    statement, buffer = model.program.statement(move[0]), model.program.buffer(move[1])
    written = model.whole(buffer, model.writes[buffer.name][statement.name]).range()
    return statement.unit.completion == "bytes" and any(
        sync.kind == "mbarrier"
        and statement.name in dict(sync.signals)
        and buffer.name in sync.buffers
        and written.set_tuple_name(sync.buffers[0]).is_subset(model.map(sync.waits_for).range())
        for sync in syncs
    )


def _signals_across(model: TileModel, sync: Sync, *, moves: bool) -> bool:
    """Whether a leaf arrives at another block's barrier.

    Args:
        model: the program.
        sync: the barrier.
        moves: whether Moves count, which signal by their bytes.
    """
    versions = model.versions[sync.buffers[0]]
    statements = {s.name for s in model.program.statements}
    place = {
        leaf: model.map(cells) for leaf, cells in sync.signals if moves or leaf not in statements
    }
    return any(
        _leaves_block(cells, cells.dim(_OUT) - versions - _private(model, sync), versions)
        for cells in place.values()
    )


def _private(model: TileModel, sync: Sync) -> int:
    """Coordinates of an owner that do not name a block."""
    blocks = max(place.blocks for place in model.program.places)
    owner = model.cells[sync.buffers[0]].dim(isl.dim_type.set) - model.versions[sync.buffers[0]]
    return max(0, owner - blocks)


def _leaves_block(cells: isl.Map, blocks: int, versions: int) -> bool:
    own = cells
    for n in range(blocks):
        own = own.equate(_IN, n, _OUT, versions + n)
    return not cells.is_subset(own)
