"""Nothing that a tile program leaves in a cell is lost: who overwrites it finds it read.

A sum is overwritten by its first term, and all others are added to it: they read what they write.
So an instance that writes a cell without reading it is the first that writes it, or somebody has
read what was there, as where one array of registers holds one sum after another. A statement that
begins anew further on loses terms, whatever trees and barriers do.
"""

from __future__ import annotations

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.before import earlier, union_map
from polygen.poly.versions import TileModel


def check_kept(model: TileModel) -> None:
    """Check all cells.

    Raises:
        VerifyError: with who wrote a cell, and who overwrites that unread.
    """
    for name, writes in model.writes.items():
        for target, write in writes.items():
            read = model.reads[name].get(target)
            begins = write if read is None else write.subtract(read)
            if begins.is_empty() or not _again(model, name, target, begins):
                continue
            lost = _unread(model, name, begins)
            if not lost.is_empty():
                raise VerifyError(
                    f"cells: {target} overwrites what nobody has read of {name}: "
                    f"{isl.sample_pair(lost)}",
                    where="refinement",
                )


def _again(model: TileModel, name: str, target: str, begins: isl.Map) -> bool:
    """Whether a cell has been written before."""
    for source, before in model.writes[name].items():
        if source == target and before.is_injective():
            continue
        pairs = before.apply_range(begins.reverse())
        if pairs.is_empty():
            continue
        order = earlier(model.meaning[source], model.meaning[target])
        if not pairs.intersect(order).is_empty():
            return True
    return False


def _unread(model: TileModel, name: str, begins: isl.Map) -> isl.UnionMap:
    """Write -> the next one of the same cell, of those given, with no read between them."""
    reads, writes = model.reads[name], model.writes[name]
    order = union_map(model.meaning[one] for one in dict.fromkeys((*reads, *writes)))
    access = isl.UnionAccessInfo.from_sink(isl.UnionMap.from_map(begins))
    access = access.set_must_source(union_map(writes.values()))
    # Who adds to a cell leaves another value to be read.
    only = [read.subtract(writes[one]) if one in writes else read for one, read in reads.items()]
    if only:
        access = access.set_kill(union_map(only))
    return access.set_schedule_map(order).compute_flow().get_must_dependence()
