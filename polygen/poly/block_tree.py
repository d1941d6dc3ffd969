"""The tree of a block of a launch beside a kernel's: of one that follows it, or goes before it.

A tile program with one place, synchronised as every tile program (`polygen.poly.derive_syncs`). The
text that loops are generated from is proved to do what the program says (`polygen.poly.refine`);
that the program leaves nothing out is proved of its cells, by who writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from polygen import isl, remembered
from polygen.errors import VerifyError
from polygen.poly.derive_syncs import Synchronised
from polygen.poly.emitted import Emitted
from polygen.poly.legality import Proof
from polygen.poly.place_trees import PlaceTree, place_trees
from polygen.poly.refine import refine
from polygen.poly.tile_program import TileProgram

_OUT = isl.dim_type.out


@dataclass(frozen=True, slots=True)
class BlockTree:
    """A tile program of a launch beside a kernel's, synchronised and proved.

    Attributes:
        synchronised: the program, with what orders it.
        place: what the warps of a block run.
        proofs: of that text.
    """

    synchronised: Synchronised
    place: PlaceTree
    proofs: tuple[Proof, ...]

    @property
    def emitted(self) -> Emitted:
        """What is proved."""
        return _emitted(self.synchronised, self.place)

    def __str__(self) -> str:
        text = isl.to_yaml(remembered.read_schedule(self.place.text))
        return "\n".join([text, *(f"# {proof}" for proof in self.proofs)])


def proved(
    program: TileProgram,
    visits: tuple[Proof, ...],
    derived: Callable[[TileProgram], Synchronised],
    where: str,
) -> BlockTree:
    """The tree of a program, synchronised and proved.

    Args:
        program: the statements of a block.
        visits: what was proved of them.
        derived: what synchronises a tile program.
        where: the launch, in words.

    Raises:
        VerifyError: what would be emitted does not do what the program says; with an instance.
    """
    synchronised = derived(program)
    (place,) = place_trees(program, synchronised.tree, synchronised.leaves)
    of_text = refine(_emitted(synchronised, place))
    proofs = (*visits, *(replace(proof, subject=where) for proof in of_text))
    return BlockTree(synchronised, place, proofs)


def _emitted(synchronised: Synchronised, place: PlaceTree) -> Emitted:
    return Emitted(
        synchronised.program, synchronised.leaves, synchronised.syncs, synchronised.counters,
        (place,), synchronised.tree, synchronised.frame,
    )  # fmt: skip


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
