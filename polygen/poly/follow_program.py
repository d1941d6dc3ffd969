"""The tile program of a launch that follows a kernel's: parts of folds -> results.

A block has a result for every lane of a warp, or one result that all its lanes share.

    begin_0[warp]        registers hold the identity
    combine_0[warp,q]    parts q, combined into them; a warp takes every so many, from its own on
    give_0[warp]         lanes that share the result meet; what the warp has -> shared memory
    take_0[warp,o]       of warp o, combined into registers, from the first warp on
    finish_0[warp]       results, and what is computed of them
    store[warp]          results -> memory

Where elements use results of their own row, a block has a row and all warps take; else the first
one does. A *level* is the folds whose terms are known at the same time: those of level 0 are made
of parts (folds of which there are as many parts are combined together: `combine_0`, `combine_0_1`),
those of the others of elements, which use results of the levels before.

    walk_1[warp,e]       the terms of level 1 of elements e .., combined into registers
    elements[warp,e]     what is computed of all results and of elements -> memory

The first elements of a row may be read once, before anything else, and held in registers: the walks
go through those first (`FollowShape.words` visits of a block), and read the others themselves.

    hold[warp,c]         elements of visit c -> registers
    walk_1_held[warp,c]  as walk_1, of what is held

A warp visits as many parts at a time as it has lanes, where they share the result: lane l the l-th
behind the first (`OWN`). Of elements a lane has one, or `wide` of them beside each other, which it
moves together (`element_of`). Nothing here waits: the barriers follow from the cells.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.poly.tile_program import Buffer, Place, TileProgram, TileStatement
from polygen.poly.tile_tree import Node, loop, steps

WARP, PART, ELEMENT, OTHER = "warp", "fold_q", "fold_e", "fold_w"  # agent and loops
WORD = "fold_c"  # loop over what lanes hold of a row
ELEMENTS = "fold_elements"  # how many elements a row has
BESIDE = "fold_v"  # which of the elements that a lane has beside each other
HELD = "row_words"  # what lanes hold of the row, by visit
_HELD = f"{HELD}[{WARP},{WORD}]"
OWN = "{} + lane"  # what a lane visits of what its warp does: text of C and of isl


def result_of(each: int) -> str:
    """Which result is a lane's, of so many that a block has: text of C and of isl."""
    return "fold_block" if each == 1 else f"fold_block * {each} + lane"


def element_of(wide: int, beside: str = BESIDE) -> str:
    """Which element is a lane's, of so many that it has beside each other: C and isl, as `OWN`.

    Args:
        wide: how many a lane has.
        beside: the text of which of them; "": the first one.
    """
    if wide == 1:
        return OWN
    return f"{{}} + {wide} * lane" + (f" + {beside}" if beside else "")


def held_from(warps: int, visit: int) -> str:
    """The first element that a warp holds of a visit: text of C and of isl.

    Args:
        warps: of a block.
        visit: elements that a warp visits at a time.
    """
    return f"{warps * visit} * {WORD} + {visit} * {WARP}"


def over_held(walk: str) -> str:
    """The statement of a walk that goes through what is held."""
    return f"{walk}_held"


def combining(number: int) -> str:
    """The statement that combines parts, of those of which there are equally many."""
    return f"combine_0_{number}" if number else "combine_0"


def parts_of(number: int) -> str:
    """How many of them a result has: a parameter of the tile program."""
    return f"fold_parts_{number}"


@dataclass(frozen=True, slots=True)
class FollowShape:
    """What a block of a launch that follows does.

    Attributes:
        parts: how many different numbers of parts its results have; 0: all folds are of elements,
            and level 0 has none.
        later: levels behind the first.
        warps: of a block.
        lanes: of a warp.
        shared: whether the lanes of a warp share a result; else each has its own.
        rows: whether elements of a block's row use its results.
        written: whether elements are written.
        stored: whether results are.
        wide: elements of a row that a lane has beside each other.
        words: visits of a block to a row, from its beginning on, whose elements lanes hold.
        dependent: whether the launch may begin while the grids before it still run.
        given: whether what is computed of results reads elements of arguments.
    """

    parts: int
    later: int
    warps: int
    lanes: int
    shared: bool
    rows: bool = False
    written: bool = False
    stored: bool = True
    wide: int = 1
    words: int = 0
    dependent: bool = False
    given: bool = False

    @property
    def visit(self) -> int:
        """Elements of a row that a warp visits at a time."""
        return self.chunk * self.wide

    @property
    def held(self) -> int:
        """Elements at the beginning of a row that lanes hold."""
        return self.words * self.warps * self.visit

    @property
    def chunk(self) -> int:
        """Parts that a warp visits at a time."""
        return self.lanes if self.shared else 1

    @property
    def levels(self) -> range:
        """Of folds, by number."""
        return range(int(not self.parts), 1 + self.later)

    @property
    def walks(self) -> tuple[str, ...]:
        """The statements that go through the elements of a row."""
        own = tuple(f"walk_{number}" for number in range(1, self.levels.stop))
        return (*own, "elements") if self.written else own


def follow_program(shape: FollowShape) -> TileProgram:
    """The statements of a block."""
    written = _Writer(shape)
    if shape.words:
        written.hold()
    for number in shape.levels:
        written.level(number)
    if shape.written:
        written.walk("elements", written.known(shape.levels.stop), "element")
    if shape.stored:
        cells = f"result[l] : 0 <= l < {1 if shape.shared else shape.lanes}"
        written.add("store", (), f"{WARP} = 0", written.known(shape.levels.stop), (cells,))
    parameters = tuple(map(parts_of, range(shape.parts)))
    if shape.walks:
        parameters += (ELEMENTS,)
    order = steps(*written.tree)
    return TileProgram(
        parameters,
        " and ".join(f"{name} >= 1" for name in parameters),
        tuple(written.buffers),
        tuple(written.statements),
        order,
        order,
        dependent=shape.dependent,
    )


class _Writer:
    """Writes down statements, buffers and the tree, in the order of the program."""

    def __init__(self, shape: FollowShape) -> None:
        self.shape = shape
        self.place = Place("warps", (WARP,), (shape.warps,), shape.lanes)
        self.statements: list[TileStatement] = []
        self.tree: list[Node | str] = []
        outside = {
            "row": bool(shape.walks), "element": shape.written, "result": shape.stored,
            "argument": shape.given,
        }  # fmt: skip
        self.buffers = [Buffer(name, "global") for name, there in outside.items() if there]

    def level(self, number: int) -> None:
        """The folds of one level, and what is computed of their results."""
        shape, held, given = self.shape, f"held_{number}", f"given_{number}"
        known, before = f"known_{number}", self.known(number)
        own, whole = f"{held}[{WARP}]", f"whole_{number}[{WARP}]"
        self.buffers += [
            Buffer(held, "register", 0, 1),
            Buffer(given, "shared", 0, 1),
            Buffer(f"whole_{number}", "register", 0, 1),
            Buffer(known, "register", 0, 1),
        ]
        self.add(f"begin_{number}", (), "1 = 1", (), (own,))
        if number:
            self.walk(f"walk_{number}", (*before, own), own)
        else:
            for one in range(shape.parts):
                self._combine(one, own)
        self.add(f"give_{number}", (), "1 = 1", (own,), (f"given_{number}[{WARP}]",))
        takers = "1 = 1" if shape.rows else f"{WARP} = 0"
        every = f"{takers} and 0 <= {OTHER} < {shape.warps}"
        reads = (f"{given}[{OTHER}]", f"{whole} : {OTHER} >= 1")
        self.add(f"take_{number}", (OTHER,), every, reads, (whole,))
        elements = (f"argument[l] : 0 <= l < {1 if shape.shared else shape.lanes}",)
        reads = (*before, whole, *(elements if shape.given else ()))
        self.add(f"finish_{number}", (), takers, reads, (f"{known}[{WARP}]",))

    def known(self, number: int) -> tuple[str, ...]:
        """What is known of the levels before one, as cells."""
        return tuple(f"known_{before}[{WARP}]" for before in self.shape.levels if before < number)

    def _combine(self, number: int, held: str) -> None:
        """The parts of a result, warp by warp in turns."""
        parts = f"part_{number}"
        self.buffers.append(Buffer(parts, "global"))
        inside = f"0 <= {PART} < {parts_of(number)} and {self._turn(PART, self.shape.chunk)}"
        own = f"p = {OWN.format(PART)} and 0 <= lane < {self.shape.lanes}"
        cells = f"{parts}[p] : exists (lane : {own}) and p < {parts_of(number)}"
        if self.shape.chunk == 1:
            cells = f"{parts}[{PART}]"
        self.add(combining(number), (PART,), inside, (cells, held), (held,))

    def _turn(self, first: str, chunk: int) -> str:
        """Whose turn it is, where a warp visits so many at a time."""
        own = WARP if chunk == 1 else f"{chunk}*{WARP}"
        return f"{first} mod {chunk * self.shape.warps} = {own}"

    def visited(self, name: str, first: str = ELEMENT) -> str:
        """The elements that a warp visits at a time, as cells."""
        shape = self.shape
        own = element_of(shape.wide).format(first)
        lanes, beside = f"0 <= lane < {shape.lanes}", f"0 <= {BESIDE} < {shape.wide}"
        which = f"lane : p = {own} and {lanes}"
        if shape.wide > 1:
            which = f"lane, {BESIDE} : p = {own} and {lanes} and {beside}"
        return f"{name}[p] : exists ({which}) and p < {ELEMENTS}"

    def hold(self) -> None:
        """What lanes hold of the row."""
        self.buffers.append(Buffer(HELD, "register", 0, 1))
        reads = (self.visited("row", held_from(self.shape.warps, self.shape.visit)),)
        self.add("hold", (WORD,), self._held(), reads, (_HELD,))

    def _held(self) -> str:
        return f"0 <= {WORD} < {self.shape.words}"

    def walk(self, name: str, reads: tuple[str, ...], written: str) -> None:
        """A walk over the elements of the row: over what is held, then over the others.

        Args:
            name: of the statement.
            reads: beside elements, as cells.
            written: the buffer whose elements are written, or the cell.
        """

        def writes(first: str) -> tuple[str, ...]:
            return (written if "[" in written else self.visited(written, first),)

        shape = self.shape
        if shape.words:
            first = held_from(shape.warps, shape.visit)
            self.add(over_held(name), (WORD,), self._held(), (*reads, _HELD), writes(first))
        turn = self._turn(ELEMENT, shape.visit)
        inside = f"{shape.held} <= {ELEMENT} < {ELEMENTS} and {turn}"
        self.add(name, (ELEMENT,), inside, (*reads, self.visited("row")), writes(ELEMENT))

    def add(
        self,
        name: str,
        loops: tuple[str, ...],
        bounds: str,
        reads: tuple[str, ...],
        writes: tuple[str, ...],
    ) -> None:
        """One statement, behind all others."""
        self.statements.append(self.place.runs(name, loops, bounds, reads, writes))
        self.tree.append(loop(loops[0], name) if loops else name)
