"""Keys in pages: which page a tile's keys lie in, and where there, for every tile.

    key j is row ``j mod P`` of page ``table[b, floor(j / P)]``

1. A tile of keys is whole pages, each of which is a box, or a part of one page, which is one box.
   Else a tile would end inside of a page in another row than it began, and boxes be of any size.
2. The number of a page is read from the table, kept inside of the array, and is a coordinate of the
   box. Behind the last page of a sequence it is the first one behind the array, where the copy
   engine reads zeros.
3. The same formulas are text of isl, in which they are proved to be the program's access, and of C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polygen import isl
from polygen.errors import VerifyError
from polygen.frontend.indices import named_in
from polygen.frontend.program import Dim
from polygen.hardware.matrix_layout import GROUP_ROWS
from polygen.poly.elements import Along, axis_of
from polygen.poly.legality import Proof
from polygen.poly.scop import space

_KEYS, PLACE = "k", "place"  # the dim of keys, and what stands for a page's place in the table

Quotient = Callable[[str, int], tuple[str, str]]


def in_c(text: str, by: int) -> tuple[str, str]:
    """Quotient and remainder of what is not negative."""
    return f"{text} / {by}", f"{text} % {by}"


def in_isl(text: str, by: int) -> tuple[str, str]:
    """The same as isl has them."""
    return f"floor(({text})/{by})", f"(({text}) mod {by})"


@dataclass(frozen=True, slots=True)
class KeyPages:
    """How the keys of a tile lie in pages.

    Attributes:
        page: keys of a page; 0: a page has all keys.
        keys: of a tile.
    """

    page: int
    keys: int

    @property
    def boxes(self) -> int:
        """Pages of a tile, each of which is brought alone."""
        return max(1, self.keys // self.page) if self.page else 1

    @property
    def rows(self) -> int:
        """Keys of a box."""
        return self.keys // self.boxes

    @property
    def fits(self) -> bool:
        """Whether tiles are whole pages, of whole patterns of a swizzle, or parts of one page."""
        if not self.page or self.page % self.keys == 0:
            return True
        return self.keys % self.page == 0 and self.page % GROUP_ROWS == 0

    def place(self, tile: str, box: int, divided: Quotient = in_c) -> str:
        """Which page of its sequence a box of a tile is of.

        Args:
            tile: of keys.
            box: of the tile.
            divided: how a quotient of whole numbers is written.
        """
        if not self.page:
            return "0"
        if self.page > self.keys:
            return divided(tile, self.page // self.keys)[0]
        return f"{tile} * {self.boxes} + {box}" if self.boxes > 1 else tile

    def places(self, tile: str) -> tuple[str, ...]:
        """The same of all boxes of a tile."""
        return tuple(self.place(tile, box) for box in range(self.boxes))

    def row(self, tile: str, divided: Quotient = in_c) -> str:
        """Where in its page a box of a tile begins; arguments as of `place`."""
        if not self.page:
            return f"{tile} * {self.keys}"
        if self.page > self.keys:
            return f"{divided(tile, self.page // self.keys)[1]} * {self.keys}"
        return "0"

    def __str__(self) -> str:
        if not self.page:
            return "a page has all keys of a matrix"
        if self.boxes > 1:
            return f"{self.boxes} pages of {self.page} keys to a tile"
        return f"pages of {self.page} keys, {self.page // self.keys} tile(s) to a page"


@dataclass(frozen=True, slots=True)
class PagedOperand:
    """An operand whose keys lie in pages.

    Attributes:
        table: the array that names them.
        places: along each of its axes, over the kernel's dims.
        inside: the axis of the operand's array along a page.
        row: what indexes it.
        axis: of the array, that counts pages.
        page: keys of a page; 0: all of them.
        along: the axis of the table along which pages of a sequence follow each other; -1: none.
    """

    table: str
    places: tuple[Along, ...]
    inside: int
    row: Along
    axis: int
    page: int
    along: int

    @property
    def by_place(self) -> tuple[Along, ...]:
        """The places with a dim of their own in the stead of keys: which page of a sequence."""
        return tuple(
            Along(PLACE) if at == self.along else one for at, one in enumerate(self.places)
        )


def paged_operand(index: tuple[Along, ...]) -> PagedOperand | None:
    """How an operand's keys lie in pages; None: it is read by no index.

    Args:
        index: per axis, over the kernel's dims: k counts keys.
    """
    named = [axis for axis, one in enumerate(index) if one.places]
    if not named:
        return None
    (axis,) = named
    own = index[axis]
    inside = axis_of(index, _KEYS)
    assert inside is not None  # of keys, of which both products have all
    along = [at for at, one in enumerate(own.places) if one.dim == _KEYS]
    page = own.places[along[0]].per if along else 0
    last = along[0] if along else -1
    return PagedOperand(own.rows, own.places, inside, index[inside], axis, page, last)


def prove_key_pages(name: str, found: PagedOperand, pages: KeyPages, keys: Dim) -> Proof:
    """Prove that every key of a tile is brought from the row of the page that the program reads.

    Args:
        name: of the operand's array.
        found: how the program reads it.
        pages: how boxes are.
        keys: how many there are.

    Raises:
        VerifyError: with a key that another row, or another page, is brought for.
    """
    parameters = space(named_in(keys))
    there = f"t >= 0 and 0 <= r < {pages.keys} and {pages.keys}*t + r < {keys}"
    each = "; ".join(
        f"[t,r] -> [{pages.place('t', box, in_isl)}, {pages.row('t', in_isl)} + r - "
        f"{box * pages.rows}] : {there} and {box * pages.rows} <= r < {(box + 1) * pages.rows}"
        for box in range(pages.boxes)
    )
    place = str(found.places[found.along]) if found.along >= 0 else "0"
    key = isl.Map(f"{parameters}{{ [t,r] -> [{pages.keys}*t + r] : {there} }}")
    read = isl.Map(f"{parameters}{{ [{_KEYS}] -> [{place}, {found.row}] }}")
    wanted = key.apply_range(read)
    brought = isl.Map(f"{parameters}{{ {each} }}")
    wrong = wanted.subtract(brought)
    if not wrong.is_empty():
        raise VerifyError(
            f"{name}: (tile, key) -> (page, row) is {isl.sample_pair(wrong)} in the program, and "
            "is not what boxes bring",
            where="pages of keys",
        )
    return Proof(
        "every key of a tile is brought from its row of the page that the table names for it, "
        "whatever numbers stand there",
        f"{name}, {pages}",
    )
