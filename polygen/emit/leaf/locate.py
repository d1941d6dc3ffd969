"""The next output tile of a persistent block."""

from __future__ import annotations

from polygen.emit import last_round, tile_domain
from polygen.emit.last_round import SHARE
from polygen.emit.leaf.sections import divisors, in_cluster, in_raster, located, of_matrix
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import matrix_coordinates
from polygen.emit.row_groups import declared, find, of_group
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.sync_work import Nothing
from polygen.lower.work import Locate
from polygen.poly.raster import run_column, run_place


@leaf("locate", "threads", Locate, ("i",))
def _(plan: KernelPlan, one: Leaf, work: Locate) -> Text:
    if work.sections:
        return located(plan, one, work)
    along, across, group, (rows, _) = work.along, work.across, work.group, work.cluster
    own_run, place = run_place(work.run, "i") if work.run > 1 else ("i", "0")
    lines = [f"const int item = first + {own_run} * stride;"]
    names, walk = ["b_m", "b_n", *(name for name, _ in work.batches)], []
    matrix, item = of_matrix(work)
    if work.walk is not None:
        walk = [f"TileWalk {tile_domain.WALK};"]
        lines = tile_domain.found(along, across, group, matrix_coordinates(work.batches))
    elif work.split > 1:
        names.append(SHARE)
        lines = last_round.found(work.split, "work" if work.batches else "item")
        if work.batches:
            lines += [
                f"const int matrix = {matrix}, item = {item};",
                f"{', '.join(matrix_coordinates(work.batches, work.sides))};",
            ]
    elif work.batches:
        lines = [
            f"const int work = first + {own_run} * stride, matrix = {matrix};",
            f"const int item = {item};",
            f"{', '.join(matrix_coordinates(work.batches, work.sides))};",
        ]
    elif work.groups:
        # Items go up from one to the next, so that every place walks the groups once.
        names, walk = ["b_m", "b_n", *of_group(work.groups)], [declared()]
        lines = [
            "const int work = first + i * stride;",
            f"{find(plan, work.groups, rows, 'work / tiles_n')};",
            "const int tiles_m = groups.tiles, item = work - groups.first_tile * tiles_n;",
            f"{', '.join(f'{name} = {held}' for name, held in of_group(work.groups).items())};",
        ]
    lines += in_raster(work) if work.walk is None else in_cluster(work)
    if work.run > 1:
        lines.append(f"b_n = {run_column(work.run, 'b_n', place)};")
    comment = (
        f"{one.statement}[i]: the i-th output tile of this block. Groups of {group} along {along}."
    )
    variables = f"int {', '.join(f'{name} = 0' for name in names)};"
    declarations = (*divisors(work), variables, *walk)
    return Text(block(*lines), comment, declarations)


@leaf("located", "threads", Nothing, ("i",))
def _(plan: KernelPlan, one: Leaf, work: Nothing) -> Text:
    return Text("", f"{one.statement}[i]: a block has one tile of rows", inline=True)
