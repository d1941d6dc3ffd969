"""What every family of kernels is described by, and the pieces that their programs are made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from polygen.poly.fills import Held, held, shifted
from polygen.poly.match import REST_RIGHT, REST_RING, Match
from polygen.poly.register_operands import kept
from polygen.poly.tile_program import Buffer, TileStatement
from polygen.poly.tile_tree import Node, Steps, steps
from polygen.poly.tiling import Panels, RowVectors, called

ALWAYS = "1 = 1"
MIDDLE, REST = "middle", "rest"  # products that share sums: what makes an operand, and of what


@dataclass(frozen=True, slots=True)
class Ring:
    """An operand's tiles in shared memory.

    Attributes:
        name: "a": the buffer is ``ring_a``.
        side: "m" or "n": the dim of the output that the operand carries.
        pieces: of a tile, that each thread of the producer writes; 0: the copy engine fills it.
        computed: whether its elements are computed by the threads that write them.
        fragment: whether consumers compute fragments of its elements, and multiply those.
        beside: whether they read something for that a k tile ahead.
        staged: whether threads hold a tile in registers on its way.
        ahead: whether a thread of its own has it copied, which waits for no grid before.
    """

    name: str
    side: str
    pieces: int = 0
    computed: bool = False
    fragment: bool = False
    beside: bool = False
    staged: bool = False
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Product:
    """A product of two operands' tiles that is added to a sum.

    Attributes:
        name: "" for the only one; else what tells its statements and its sum from others'.
        left: the ring of the operand that carries m.
        right: of the one that carries n.
        scaled: of a sum in blocks whether numbers multiply what is promoted.
    """

    name: str
    left: str
    right: str
    scaled: bool = False

    def called(self, what: str) -> str:
        """``multiply``, or ``multiply_up`` where there are several."""
        return called(what, self.name)


@dataclass(frozen=True, slots=True)
class RestLoop:
    """What goes on with the sums of the only product, behind its k tiles.

    Attributes:
        middle: the product of the same k tiles that its left operand is made of.
        last: its product; the left operand is none of a ring.
        columns: of the first, as tiles have them; k of the second.
    """

    middle: Product
    last: Product
    columns: int


@dataclass(frozen=True, slots=True)
class MainLoop:
    """What the main loop brings and multiplies: products over one output domain.

    Attributes:
        rings: of the operands.
        products: of their tiles.
        held: what threads that fill rings hold in registers.
        folded: rings whose elements are folded beside the products.
        leaving: of these, rings of whose rows results leave.
        inside: whether some tiles have no products: blocks know how many of theirs have some.
        rest: what goes on with the sums.
        block: indices of k whose products are added up before they are promoted; 0: all.
    """

    rings: tuple[Ring, ...]
    products: tuple[Product, ...]
    held: Held = field(default_factory=shifted)
    folded: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    inside: bool = False
    rest: RestLoop | None = None
    block: int = 0

    @property
    def multiplied(self) -> tuple[Product, ...]:
        """All products of a k tile, in their order: last is one that every k tile has."""
        return self.products if self.rest is None else (self.rest.middle, *self.products)


def main_loop(
    match: Match,
    pieces: Mapping[str, int] | None = None,
    depth: int = 1,
    *,
    staged: bool = False,
    folded: tuple[str, ...] = (),
    leaving: tuple[str, ...] = (),
    inside: bool = False,
    ahead: Collection[str] = (),
) -> MainLoop:
    """A ring for every operand; products are numbered where there are several.

    Args:
        match: the operands.
        pieces: of those that threads fill.
        depth: indices of k of a tile.
        staged: whether copies of arguments pass through registers, in two statements.
        folded: operands that are folded beside the products.
        leaving: of these, those of whose rows results leave.
        inside: whether some tiles have no products.
        ahead: operands that nobody writes while grids before still run.
    """
    several, filled = len(match.products) > 1, pieces or {}
    rest = None
    if match.rest is not None:
        middle = Product(MIDDLE, match.rest.left, REST_RIGHT)
        rest = RestLoop(middle, Product(REST, MIDDLE, REST_RING), match.rest.padded)
    return MainLoop(
        tuple(
            Ring(
                name,
                operand.role,
                filled.get(name, 0),
                operand.computed is not None,
                operand.fragment is not None,
                bool(kept(operand, depth)),
                staged and operand.computed is None,
                name in ahead,
            )
            for name, operand in match.operands
        ),
        tuple(
            Product(str(number) if several else "", one.left, one.right, bool(one.factors))
            for number, one in enumerate(match.products)
        ),
        held(operand for _, operand in match.operands),
        folded,
        leaving,
        inside,
        rest,
        match.block,
    )


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What the epilogue of a kernel moves, and how a warp walks its tile."""

    rows: RowVectors
    panels: Panels
    folds: bool = False  # whether terms of results are folded
    # Over the sums of a tile that covers rows, before results are made: whether each leaves values
    # of elements for those behind it.
    passes: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """Some statements with their memory; the trees say when they run in a tile.

    Attributes:
        statements: of a program.
        buffers: that they bring with them.
        order: their meaning.
        schedule: what runs.
        early: when statements run in the loop that the part stands in, where that is not their own
            iteration of it.
    """

    statements: tuple[TileStatement, ...]
    buffers: tuple[Buffer, ...]
    order: Node
    schedule: Node
    early: tuple[tuple[str, str], ...] = ()


def alone(statements: Iterable[TileStatement], buffers: Iterable[Buffer], tree: Node) -> Part:
    """A part that runs in the order of its meaning."""
    return Part(tuple(statements), tuple(buffers), tree, tree)


def in_turn(*parts: Part) -> Part:
    """Parts one behind the other."""
    return Part(
        tuple(s for one in parts for s in one.statements),
        tuple(b for one in parts for b in one.buffers),
        flat(steps(*(one.order for one in parts))),
        flat(steps(*(one.schedule for one in parts))),
        tuple(time for one in parts for time in one.early),
    )


def flat(node: Steps) -> Steps:
    """Steps in steps as one list."""
    found: list[Node] = []
    for child in node.children:
        found += child.children if isinstance(child, Steps) else (child,)
    return Steps(tuple(found))
