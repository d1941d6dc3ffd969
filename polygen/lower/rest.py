"""What goes on with the sums of a product behind its k tiles: layout, boxes, leaves.

1. The right operand's tile has the product's columns and all of k. It lies as matrix descriptors
   tell, proved as for any operand; every block of a cluster brings its own.
2. The left operand stays where the product beside left its sums (`polygen.lower.carried`).
"""

from __future__ import annotations

from collections.abc import Iterator

from polygen.hardware.atom import Atom
from polygen.hardware.matrix_layout import MatrixLayout, matrix_layout
from polygen.lower.accesses import corner, map_axes
from polygen.lower.carried import in_pairs
from polygen.lower.epilogue import own_part
from polygen.lower.given import Given
from polygen.lower.operands import major
from polygen.lower.plan import Leaf
from polygen.lower.rest_work import Convert
from polygen.lower.sync_work import Groups
from polygen.lower.synchronise import counter_of
from polygen.lower.work import Boxes, Product
from polygen.poly.kernel_parts import RestLoop
from polygen.poly.match import REST_RING, Match, RestMatch
from polygen.poly.tiling import Tiling


def given_columns(given: Given, right: str) -> int:
    """Columns of a product's sums, by its right operand; 0: those of an agent's tile."""
    return given.match.operand(right).whole


def rest_fills(given: Given) -> tuple[str, ...]:
    """The statement that brings the right operand; none where nothing goes on with the sums."""
    rest = given.tree.main.rest
    return () if rest is None else (rest.last.called("fill"),)


def layout_of(rest: RestMatch, tiles: Tiling, atom: Atom, where: str) -> MatrixLayout:
    """The layout of the right operand's tile, proved.

    Raises:
        ScheduleError: it has none.
    """
    operand = rest.operand
    return matrix_layout(
        major(operand), tiles.cta[1], rest.padded, operand.tensor.dtype.bytes, atom.k,
        tiles.warp[1], f"{where}, {operand.tensor.name}",
    )  # fmt: skip


def rest_layout(given: Given, rest: RestMatch) -> MatrixLayout:
    """The same of a kernel."""
    return layout_of(rest, given.tiles, given.atom, f"schedule {given.schedule.name}")


def rest_boxes(given: Given, rest: RestMatch, layout: MatrixLayout) -> Boxes:
    """The boxes of the right operand's tile."""
    operand, tile = rest.operand, given.tiles.cta[1]
    box = (layout.rows, layout.span // operand.tensor.dtype.bytes)
    sides = (operand.role, "k") if operand.k_contiguous else ("k", operand.role)
    axes, dims = map_axes(
        operand.tensor, operand.index, dict(operand.extents), dict(zip(sides, box, strict=True))
    )
    note = (
        f"operand {REST_RING}: {operand.tensor.name}, {tile} of {operand.role} x {rest.padded} of "
        f"what is between the products -> ring_{REST_RING}, {layout.boxes} box(es) of {box[0]} x "
        f"{box[1]} elements by the copy engine; zeros outside the array; proved equal to what the "
        "instruction's descriptors read"
    )
    return Boxes(
        operand.tensor, f"map_{REST_RING}", f"ring_{REST_RING}", axes, layout.boxes, layout.span,
        layout.box_bytes, corner(dims, {"n": f"b_n * {tile}", "k": "0"}), note,
    )  # fmt: skip


def rest_leaves(given: Given, rest: RestMatch, layout: MatrixLayout, agent: str) -> Iterator[Leaf]:
    """What consumers do behind the k tiles.

    Args:
        given: the kernel.
        rest: what goes on with the sums.
        layout: of the right operand's tile.
        agent: how the code of a consumer knows it.
    """
    tree, tiles, loop = given.tree.synchronised, given.tiles, given.tree.main.rest
    assert loop is not None
    (main,) = given.tree.main.products
    yield Leaf(
        "convert", "convert", "registers", ("i",), conversion(given.match, loop, tiles, given.atom)
    )
    name = loop.last.called("multiply")
    product = Product(
        (loop.last.left, loop.last.right),
        main.called("sum"),
        counter_of(tree, name, f"ring_{loop.last.right}"),
        ("", own_part(tiles, 1, agent, layout.block)),
        f"{loop.last.left}[m][s]",
    )
    yield Leaf(name, "multiply", "wgmma", ("i", "s", "m"), product)
    yield Leaf(loop.last.called("commit"), "commit", "wgmma", ("i",), Groups())


def conversion(matched: Match, loop: RestLoop, tiles: Tiling, atom: Atom) -> Convert:
    """What leads from the sums of one product to the operand of the next.

    Raises:
        VerifyError: the operand is not where the sums are.
    """
    rest = matched.rest
    assert rest is not None
    groups, pairs = atom.k // atom.n, in_pairs(atom)
    return Convert(
        total=loop.middle.called("sum"),
        fragment=loop.last.left,
        value=rest.middle.write.name,
        statements=rest.statements,
        reads=rest.reads,
        dtype=rest.operand.tensor.dtype.name,
        rows=tiles.atoms[0],
        registers=tuple(
            tuple((step * groups + group, element) for group, element in pairs)
            for step in range(rest.padded // atom.k)
        ),
        groups=rest.columns // atom.n,
    )
