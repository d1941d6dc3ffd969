"""Checks where sums are overwritten: there alone where nothing of them is there yet.

1. A tile statement that adds to cells reads them as well as writing them. So the instances that
   write without reading are those that overwrite; what a leaf says of its loops has to be the same
   instances, for every size.
2. That the tile program itself overwrites nothing that was added is proved with its trees
   (`polygen.poly.refine`).
"""

from __future__ import annotations

from polygen import isl, remembered
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.promoting import Promote
from polygen.lower.work import Product
from polygen.poly.tile_program import TileProgram, TileStatement


def check_overwrites(plan: KernelPlan, leaf: Leaf) -> None:
    """Check a leaf that adds to sums; others are passed over.

    Raises:
        VerifyError: it adds where its statement overwrites, or overwrites where that adds; with an
            instance.
    """
    if isinstance(leaf.work, Product):
        zero = _zero(leaf.work.overwrites)
    elif isinstance(leaf.work, Promote) and leaf.op == "promote":
        zero = f"k < {leaf.work.tiles}"
    else:
        return
    program, where = plan.tile_program, f"{plan.entry}, {leaf.statement}"
    statement = program.statement(leaf.statement)
    if leaf.loops != statement.loops:
        raise VerifyError(f"loops are {leaf.loops} and not {statement.loops}", where=where)
    adds, writes = (
        _access(program, statement, leaf.work.total, cells)
        for cells in (statement.reads, statement.writes)
    )
    if not adds.is_subset(writes):
        raise VerifyError(f"{leaf.work.total} is added to other cells", where=where)
    domain = remembered.read_set(f"{program.prefix}{{ {statement.domain} and {program.context} }}")
    said = isl.Set(f"{program.prefix}{{ {statement.instance} : {zero} }}").intersect(domain)
    wanted = domain.subtract(adds.domain())
    for claim, rest in (
        ("is added to and should be overwritten", wanted.subtract(said)),
        ("is overwritten and should be added to", said.subtract(wanted)),
    ):
        if not rest.is_empty():
            raise VerifyError(f"{leaf.work.total} {claim}: {isl.sample_point(rest)}", where=where)


def _zero(overwrites: tuple[tuple[str, int], ...] | None) -> str:
    """Where all of these loops are at the beginning of their rounds, as isl text."""
    if overwrites is None:
        return "1 = 0"
    each = (f"{loop} mod {count}" if count else loop for loop, count in overwrites)
    return " and ".join(f"{one} = 0" for one in each)


def _access(
    program: TileProgram, statement: TileStatement, name: str, cells: tuple[str, ...]
) -> isl.Map:
    """Instances of a statement -> cells of one buffer."""
    own = "; ".join(
        f"{statement.instance} -> {cell}" for cell in cells if cell.partition("[")[0] == name
    )
    domain = remembered.read_set(f"{program.prefix}{{ {statement.domain} and {program.context} }}")
    return remembered.read_map(f"{program.prefix}{{ {own} }}").intersect_domain(domain)
