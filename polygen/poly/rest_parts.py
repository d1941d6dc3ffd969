"""Behind the k tiles of a product: the product that goes on with its sums, in a kernel with roles.

    producer   fill_rest[i]           the copy engine brings the right operand's tile
    consumer   convert[i]             sums of the product beside -> a left operand, in registers
               multiply_rest[i,s,m]   its product, added to the sums of the main one

The product beside, `multiply_middle`, is one of the main loop, with sums of its own: its left
operand is the main product's, and it is made again for every tile of columns. The ring of
`fill_rest` has one slot: it is free when the tile before is stored, and wanted behind all k tiles.
"""

from __future__ import annotations

from polygen.poly.kernel_parts import Part, alone
from polygen.poly.role_shape import RoleShape, tile_of
from polygen.poly.tile_tree import loop, steps


def first_of_run(shape: RoleShape, bounds: str) -> str:
    """Bounds of what is done once for all tiles of a run; isl text."""
    return f"{bounds} and {shape.begins_run}" if shape.begins_run else bounds


def rest_parts(shape: RoleShape) -> tuple[Part, ...]:
    """The statements of one output tile, or none."""
    rest, tiles, consumer = shape.main.rest, shape.tiles, shape.consumer
    if rest is None:
        return ()
    producer, own, at = shape.producer, shape.own(consumer), shape.owner("i")
    ring, m = f"ring_{rest.last.right}", f"0 <= m < {tiles.atoms[0]}"
    s = f"0 <= s < {rest.columns // tiles.atom[2]}"
    tile = f"{ring}[{','.join(('i', *shape.rank))}]"
    made, weights = f"{rest.middle.called('sum')}[{at},m]", f"{rest.last.left}[{at}]"
    begins, kept = first_of_run(shape, own), f"{rest.last.left}[{shape.owner(shape.run)}]"
    (product,) = shape.main.products
    total, multiply = f"{product.called('sum')}[{at},m]", rest.last.called("multiply")
    commit, fill = rest.last.called("commit"), rest.last.called("fill")
    statements = (
        producer.runs(
            fill, ("i",), shape.own(producer), (tile_of(producer),), (tile,), "move", "tma.load",
            executes="one" if producer.threads > 1 else "all",
        ),
        consumer.runs("convert", ("i",), begins, (f"{made} : {m}",), (weights,)),
        consumer.runs(
            multiply, ("i", "s", "m"), f"{own} and {s} and {m}", (kept, tile, total), (total,),
            "product", "wgmma", group=commit,
        ),
        consumer.runs(commit, ("i",), own, op="commit"),
    )  # fmt: skip
    buffers = (producer.keeps(ring, 1, "shared"), consumer.keeps(rest.last.left, 1))
    tree = steps(fill, "convert", loop("s", loop("m", multiply)), commit)
    return (alone(statements, buffers, tree),)
