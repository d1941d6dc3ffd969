"""Layers in front of a chain in the kernel's dims: m counts rows, n a layer's columns, k its depth.

What a layer makes is read by the next product where it is: index for index, with columns for what
is summed. Sums of all columns of a row stay in registers, so that there has to be a number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.program import Dim, Program
from polygen.poly.chain_layers import nth
from polygen.poly.fusion import fuse
from polygen.poly.match import Along, Match, match
from polygen.poly.operand import Operand
from polygen.poly.pointwise import Element, Pointwork, pointwork
from polygen.poly.scop import scop
from polygen.rewrite.layers import Layer

ROWS = "a"  # the ring of the rows that come from memory


@dataclass(frozen=True, slots=True)
class Left:
    """What is left in the registers of a product's sums.

    Attributes:
        value: what the program calls it.
        index: where an element of it is.
        by: the layer; "": the first product of the chain.
    """

    value: str
    index: tuple[Along, ...]
    by: str


@dataclass(frozen=True, slots=True)
class LayerMatch:
    """One layer.

    Attributes:
        at: how many layers are in front of it.
        made: what it makes, the left operand of the next product.
        kept: what takes the place of its first sums: that, or what it is rounded of.
        match: its product, or several of the same rows.
        work: what is computed at every (row, column).
        again: what that reads of layers before: variable, and whose registers it is in.
    """

    at: int
    made: str
    kept: str
    match: Match
    work: Pointwork
    again: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """What its first right operand and its registers are called."""
        return f"l{self.at}"

    @property
    def rights(self) -> tuple[tuple[str, Operand], ...]:
        """What rows are multiplied by, by the name of its ring, in the order of the products."""
        return tuple(
            (nth(self.name, n), self.match.operand(one.right))
            for n, one in enumerate(self.match.products)
        )

    @property
    def left(self) -> Operand:
        """The rows."""
        return self.match.operand(self.match.products[0].left)

    @property
    def columns(self) -> int:
        """Columns of the sums."""
        assert isinstance(self.match.n, int)
        return self.match.n

    @property
    def depth(self) -> int:
        """Elements that the product sums over."""
        (found,) = self.match.depths
        assert isinstance(found, int)
        return found

    @property
    def sums(self) -> tuple[str, ...]:
        """What the program calls the sums, in the order of the products."""
        return tuple(one.contraction.write.name for one in self.match.products)

    @property
    def scored(self) -> tuple[str, ...]:
        """All that an element is made of in registers: sums, and what layers before have made."""
        return (*self.sums, *(name for name, _ in self.again))

    @property
    def written(self) -> tuple[Along, ...]:
        """Where an element of what it makes is."""
        return next(one.index for one in self.work.writes if one.name == self.made)

    @property
    def leaves(self) -> Left:
        """What stays in the registers of its sums."""
        return Left(self.kept, self.written, self.name)

    @property
    def returned(self) -> tuple[Element, ...]:
        """The results that are made of its sums."""
        return tuple(one for one in self.work.writes if one.name != self.made)


def match_layers(layers: Sequence[Layer]) -> tuple[LayerMatch, ...]:
    """Layers in the kernel's dims, the first one first.

    Raises:
        UnsupportedProgram: rows or matrices of one are not those of the next.
    """
    found: list[LayerMatch] = []
    for at, layer in enumerate(layers):
        program = layer.program
        fusion = fuse(program, scop(program))
        own = match(program, fusion)
        left = [one.leaves for one in found]
        work, again = read_again(program, pointwork(program, fusion, own), left)
        one = LayerMatch(at, layer.made, layer.kept, own, work, again)
        require_one_left(program, own)
        if found:
            require_rows_of(program, found[-1], one.match)
        found.append(one)
    return tuple(found)


def read_again(
    program: Program, work: Pointwork, left: Sequence[Left]
) -> tuple[Pointwork, tuple[tuple[str, str], ...]]:
    """Work without reads of what products before have left; these, each with whose it is.

    Raises:
        UnsupportedProgram: an element is read that another thread may have.
    """
    found, others = [], []
    for one in work.reads:
        own = next((of for of in left if of.value == one.tensor.name), None)
        if own is None:
            others.append(one)
            continue
        if one.index != own.index:
            raise UnsupportedProgram(
                f"{one.tensor.name}[{', '.join(map(str, one.index))}] is read again, made as "
                f"[{', '.join(map(str, own.index))}]",
                where=program.name,
                why="what a layer makes stays in the registers of the threads that have its row "
                "and column",
                nearest=f"Read {one.tensor.name} where it is, as in h + f(h @ b)",
            )
        found.append((one.name, own.by))
    return replace(work, reads=tuple(others)), tuple(found)


def require_one_left(program: Program, found: Match) -> None:
    """Refuse products of one stage that do not multiply the same rows, each by an array of its own.

    Raises:
        UnsupportedProgram: with the products.
    """
    rights = {one.right for one in found.products}
    lefts = {one.left for one in found.products}
    if len(lefts) == 1 and len(rights) == len(found.products):
        return
    raise UnsupportedProgram(
        "; ".join(str(one.contraction) for one in found.products),
        where=program.name,
        why="products that one thread adds up side by side are of the same rows, of one array, and "
        "of arrays of their own",
        nearest="Write f(x @ a) * (x @ b), or make a function of each product",
    )


def require_rows_of(program: Program, layer: LayerMatch, following: Match) -> None:
    """Refuse a product whose rows, or matrices, are not those of the layer in front of it.

    Args:
        program: of the product.
        layer: that makes its left operand.
        following: the product.

    Raises:
        UnsupportedProgram: with both.
    """
    wanted = tuple(one.renamed({"n": "k"}) for one in layer.written)
    operand = following.operand(following.products[0].left)
    same = operand.tensor.name == layer.made and operand.index == wanted
    if same and (layer.match.batches, layer.match.m) == (following.batches, following.m):
        return
    raise UnsupportedProgram(
        f"{layer.made}[{', '.join(map(str, wanted))}] is multiplied as "
        f"[{', '.join(map(str, operand.index))}]",
        where=program.name,
        why="rows of a layer stay in the registers of the threads that multiply them",
        nearest="Write f(x @ a) @ b, with the rows of x in the same place everywhere",
    )


def sized(layers: Sequence[LayerMatch]) -> tuple[tuple[str, Dim], ...]:
    """The sizes of layers that have to be numbers, each with what it is."""
    found: list[tuple[str, Dim]] = []
    for one in layers:
        found.append(("sums over", one.match.depths[0]))
        found.append(("has columns", one.match.n))
    return tuple(found)
