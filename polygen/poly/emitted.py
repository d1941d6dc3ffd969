"""What is emitted of a tile program, and how its trees are read back.

A tree is for any one agent: the agent's coordinates are parameters of its text. Reading a text
makes them coordinates of the instances again, so that the trees of all places speak of the same
instances as the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from polygen import isl, remembered
from polygen.errors import VerifyError
from polygen.poly.counters import Counter
from polygen.poly.derive_syncs import Synchronised
from polygen.poly.frame import Frame
from polygen.poly.place_trees import PlaceTree, place_trees
from polygen.poly.tile_program import Sync, SyncStatement, TileProgram, TileStatement
from polygen.poly.tile_tree import Node
from polygen.poly.varying import numbered, positions

_PARAM, _IN, _OUT = isl.dim_type.param, isl.dim_type.in_, isl.dim_type.out


@dataclass(frozen=True, slots=True)
class Emitted:
    """What is emitted of a tile program, and the certificate of its liveness.

    Attributes:
        program: what has to be done.
        leaves: what synchronises, without their domains, which the trees say.
        syncs: the records.
        counters: which slot a leaf works on.
        trees: of the places.
        certificate: one order of everything.
        frame: who meets before the places begin, and after they have ended.
        carried: dependences between tile statements of one agent that come from the elements, as
            isl text.
    """

    program: TileProgram
    leaves: tuple[SyncStatement, ...]
    syncs: tuple[Sync, ...]
    counters: tuple[Counter, ...]
    trees: tuple[PlaceTree, ...]
    certificate: Node
    frame: Frame
    carried: str = ""

    @property
    def known(self) -> dict[str, TileStatement | SyncStatement]:
        """Everything that may be in a tree, by its name."""
        found: dict[str, TileStatement | SyncStatement]
        found = {s.name: s for s in self.program.statements}
        return found | {leaf.name: leaf for leaf in self.leaves}


def emitted_of(made: Synchronised, carried: str = "") -> Emitted:
    """What is emitted of a program, synchronised: every place runs its part of the tree.

    Args:
        made: the program.
        carried: as of `Emitted`.
    """
    trees = place_trees(made.program, made.tree, made.leaves)
    return Emitted(
        made.program, made.leaves, made.syncs, made.counters, trees, made.tree, made.frame, carried
    )


@lru_cache(maxsize=8)
def read_trees(emitted: Emitted, context: isl.Set) -> Mapping[str, isl.Map]:
    """Leaf -> (agents and loops -> time), from the texts of all trees.

    The same texts are read once for who proves them and for who looks at the order of sums.

    Raises:
        VerifyError: a tree has a leaf that its place does not know, or has one twice; or a
            statement of the program is in no tree, with an instance of it.
    """
    known, varying = emitted.known, emitted.program.varying
    at = {} if varying is None else positions(varying, known.values())
    found: dict[str, isl.Map] = {}
    for tree in emitted.trees:
        schedule = remembered.read_schedule(tree.text)
        timed = remembered.schedule_times(tree.text)[0].intersect_domain(schedule.get_domain())
        each = timed.get_map_list()
        for position in range(each.n_map()):
            one = each.get_at(position)
            call = str(one.get_tuple_name(_IN))
            name = dict(tree.calls).get(call, call)
            leaf = known.get(name)
            if leaf is None or leaf.place != tree.place:
                raise VerifyError(
                    f"instances: {name} is no leaf of the {tree.place.name}", where="refinement"
                )
            if name in found:
                raise VerifyError(f"instances: {name} runs twice", where="refinement")
            lifted = _lifted(one, leaf)
            if varying is not None:
                lifted = numbered(varying, lifted, at.get(name))
            found[name] = lifted.intersect_params(context)
    for statement in emitted.program.statements:
        if statement.name not in found:
            wanted = isl.Set(f"{emitted.program.prefix}{{ {statement.domain} }}")
            wanted = wanted.intersect_params(context)
            if not wanted.is_empty():
                raise VerifyError(
                    f"instances: {isl.sample_point(wanted)} is never executed", where="refinement"
                )
    width = max((one.dim(_OUT) for one in found.values()), default=0)
    return MappingProxyType({name: _padded(one, width) for name, one in found.items()})


def _lifted(timed: isl.Map, leaf: TileStatement | SyncStatement) -> isl.Map:
    """The coordinates of the agents, which the text has as parameters, as coordinates."""
    for position, (agent, count) in enumerate(
        zip(leaf.place.agents, leaf.place.counts, strict=True)
    ):
        parameter = timed.find_dim_by_name(_PARAM, agent)
        if parameter >= 0:
            timed = timed.move_dims(_IN, position, _PARAM, parameter, 1)
        else:
            timed = timed.insert_dims(_IN, position, 1)
        timed = timed.lower_bound_val(_IN, position, isl.Val(0))
        timed = timed.upper_bound_val(_IN, position, isl.Val(count - 1))
    return timed.set_tuple_name(_IN, leaf.name)


def _padded(timed: isl.Map, width: int) -> isl.Map:
    first = timed.dim(_OUT)
    timed = timed.add_dims(_OUT, width - first)
    for n in range(first, width):
        timed = timed.fix_val(_OUT, n, isl.Val(0))
    return timed
