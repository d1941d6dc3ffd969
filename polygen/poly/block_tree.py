"""The tree of a block of a launch beside a kernel's: of one that follows it, or goes before it.

A tile program with one place, synchronised as every tile program (`polygen.poly.derive_syncs`). The
text that loops are generated from is proved to do what the program says (`polygen.poly.refine`);
that the program leaves nothing out is proved of its cells, by who writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias, TypeVar

from polygen import isl, remembered
from polygen.errors import VerifyError
from polygen.poly.derive_syncs import Synchronised, derive
from polygen.poly.emitted import Emitted, emitted_of
from polygen.poly.legality import Proof
from polygen.poly.place_trees import PlaceTree
from polygen.poly.refine import refine
from polygen.poly.tile_program import TileProgram

_OUT = isl.dim_type.out
Derive: TypeAlias = Callable[[TileProgram], Synchronised]  # or finds what was derived before
Shape = TypeVar("Shape", bound=Hashable)


@dataclass(frozen=True, slots=True)
class BlockTree:
    """A tile program of a launch beside a kernel's, synchronised and proved.

    Attributes:
        synchronised: the program, with what orders it.
        emitted: what is proved.
        proofs: of that.
    """

    synchronised: Synchronised
    emitted: Emitted
    proofs: tuple[Proof, ...]

    @property
    def place(self) -> PlaceTree:
        """What the warps of a block run."""
        (place,) = self.emitted.trees
        return place

    def __str__(self) -> str:
        text = isl.to_yaml(remembered.read_schedule(self.place.text))
        return "\n".join([text, *(f"# {proof}" for proof in self.proofs)])


@lru_cache(maxsize=64)
def block_tree(
    shape: Shape,
    written: Callable[[Shape], TileProgram],
    check: Callable[[Shape, TileProgram], tuple[Proof, ...]],
    where: str,
    derived: Derive = derive,
) -> BlockTree:
    """The tree of what blocks of one shape do; in whatever kernel, it is proved once in a process.

    Args:
        shape: what a block does.
        written: the tile program of a shape.
        check: proves of a program that it leaves nothing out, and meets nothing twice.
        where: the launch, in words.
        derived: what synchronises a tile program, derived or kept from before: it is proved.

    Raises:
        VerifyError: something is left out or met twice, or what would be emitted does not do what
            the program says; with an instance.
    """
    program = written(shape)
    visits, synchronised = check(shape, program), derived(program)
    emitted = emitted_of(synchronised)
    of_text = (replace(proof, subject=where) for proof in refine(emitted))
    return BlockTree(synchronised, emitted, (*visits, *of_text))


def check_once(
    access: isl.Map | None,
    wanted: isl.Set,
    statement: str,
    where: str,
    *,
    by_warp: bool = False,
) -> None:
    """Everything wanted is met by one instance of a statement, and nothing else by any.

    Args:
        access: instance -> cell; None where the statement accesses nothing.
        wanted: the cells.
        statement: its name.
        where: the launch, in words.
        by_warp: whether every warp has to meet them: `wanted` are warps and cells.

    Raises:
        VerifyError: with what is left out, or is not wanted.
    """
    if access is None:
        raise VerifyError(f"{statement} visits nothing", where=where)
    if by_warp:
        agent = access.domain().identity()
        agent = agent.project_out(_OUT, 1, agent.dim(_OUT) - 1).reset_tuple_id(_OUT)
        name = access.get_tuple_name(_OUT)
        access = agent.flat_range_product(access.reset_tuple_id(_OUT)).set_tuple_name(_OUT, name)
    met = access.range()
    for claim, rest in (
        ("is left out", wanted.subtract(met)),
        ("is visited, and is not there", met.subtract(wanted)),
    ):
        if not rest.is_empty():
            raise VerifyError(f"{statement}: {isl.sample_point(rest)} {claim}", where=where)
    if not access.is_injective():
        raise VerifyError(f"{statement} visits something twice", where=where)
