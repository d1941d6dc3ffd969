"""The order in which k enters a sum, from the trees that are emitted: one for all, or refused.

An element of the output is S[m,n,..]; its sum takes the groups of k that instructions add, one
after the other. isl computes, for each product,

1. *groups*: which instruction of an agent takes element (m,n,k), through the tiling: relation
   (m,n,k) -> (k tile, step). It is a function of k alone, and groups are k's in runs of the
   instruction's depth, so that tiles of any depth cut k alike;
2. *order*: when the agent runs these instructions, through its emitted tree: relation (k tile,
   step) -> (k tile, step) of what comes before what. It has no other coordinate in it: not the
   place in the warp's tile, not the agent, not which tile of the output the agent is at;
3. *parts*: which sum an instruction adds to: all of one element to one.

A relation that holds without a coordinate is proved independent of it, and so of every size that
bounds it. The named orders are tried first (`_NAMED`). Another one is projected to k, and has to be
what it was before: else it depends on something else, and a pair of instructions is the witness.
Nothing here is about one number of k tiles: `k_tiles` stays a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

from polygen import isl
from polygen.errors import InvarianceError, VerifyError
from polygen.frontend.program import Dim
from polygen.hardware.atom import Atom
from polygen.poly.emitted import Emitted, read_trees
from polygen.poly.legality import Proof
from polygen.poly.tile_program import TileProgram, TileStatement
from polygen.poly.tiling import Roles, Tiling
from polygen.poly.versions import TileModel
from polygen.schedule.sums import (
    ASCENDING,
    DESCENDING,
    FROM_FIRST,
    FROM_ZERO,
    VARIES,
    SumOrder,
    sum_order,
)

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out
_TILE, _STEP = "k", "s"  # the coordinates of a tile statement that say which group of k it takes
_WHERE = "invariant"

# Position of group `g` (of step `s` in tile `k`) in a sum: the smaller, the earlier.
_NAMED = {
    ASCENDING: "[{k} * {steps} + {s}]",
    DESCENDING: "[-{k} * {steps} - {s}]",
    "k tiles of {tile} descending, ascending inside": "[-{k}, {s}]",
}


def sum_orders(
    emitted: Emitted,
    roles: Sequence[Roles],
    relation: isl.UnionMap,
    tiles: Tiling,
    atom: Atom,
    depths: Sequence[Dim],
    *,
    invariant: bool,
) -> tuple[tuple[SumOrder, ...], tuple[Proof, ...]]:
    """The orders of all products, and what was proved of them.

    Args:
        emitted: the trees.
        roles: of the element statements.
        relation: element instance -> its tile statement in a block's first tile.
        tiles: the tile hierarchy.
        atom: the instruction.
        depths: lengths of the sums.
        invariant: refuse what depends on anything but k; else it is called `VARIES`.

    Raises:
        InvarianceError: with one pair of instructions.
    """
    model = TileModel(emitted.program)
    times = read_trees(emitted, model.context)
    pieces = relation.get_map_list()
    placed = {
        str(one.get_tuple_name(_IN)): one
        for one in (pieces.get_at(at) for at in range(pieces.n_map()))
    }
    found, proofs = [], []
    for role in roles:
        if role.does != "product":
            continue
        elements = placed[role.statement]
        statement = emitted.program.statement(str(elements.get_tuple_name(_OUT)))
        one = _Product(model, statement, times[statement.name], tiles)
        one.check_groups(elements, role)
        order = sum_order(
            role.statement,
            atom.name,
            atom.c.dtype,
            atom.k,
            one.order(),
            count=group_count(tiles, depths),
            begins=one.begins(emitted.program),
            parts=one.parts(elements, role),
        )
        if invariant and not order.fixed:
            raise one.refused(order)
        if not order.instruction:
            claim = "sums of integers are exact, in any order"
            proofs.append(Proof(claim, role.statement))
        elif order.fixed:
            claim = f"k enters a sum in one order, whatever tile the element is in: {order.order}"
            proofs.append(Proof(claim, f"{role.statement}, {atom.k} at a time"))
        found.append(order)
    return tuple(found), tuple(proofs)


def group_count(tiles: Tiling, depths: Sequence[Dim]) -> str:
    """How many groups enter a sum: a number where all depths are, else a formula."""
    steps, tile = tiles.k_steps, tiles.cta[2]
    each = [-(-d // tile) * steps if isinstance(d, int) else f"ceil({d}/{tile})" for d in depths]
    if all(isinstance(one, int) for one in each):
        return str(max(one for one in each if isinstance(one, int)))
    text = [one if isinstance(one, str) else str(one // steps) for one in each]
    most = text[0] if len(text) == 1 else f"max({', '.join(text)})"
    return most if steps == 1 else f"{steps}*{most}"


class _Product:
    """The instructions of one product, and when they run."""

    def __init__(
        self, model: TileModel, statement: TileStatement, timed: isl.Map, tiles: Tiling
    ) -> None:
        self.model, self.statement, self.timed, self.tiles = model, statement, timed, tiles
        self.names = (*statement.place.agents, *statement.loops)
        self.others = [at for at, name in enumerate(self.names) if name not in (_TILE, _STEP)]
        self.witness = ""

    def check_groups(self, elements: isl.Map, role: Roles) -> None:
        """Prove that a group is a run of the instruction's depth along k.

        Raises:
            VerifyError: an element is in another group than its k says.
        """
        depth, steps = self.tiles.atom[2], self.tiles.k_steps
        instance = f"{self.statement.name}[{','.join(f'_{name}' for name in self.names)}]"
        said = (
            f"floor({role.k}/{depth}) = _{_TILE} * {steps} + _{_STEP} and 0 <= _{_STEP} < {steps}"
        )
        wrong = elements.subtract(isl.read_map(f"{{ {role.instance} -> {instance} : {said} }}"))
        if not wrong.is_empty():
            raise VerifyError(
                f"{role.statement} does not take k in groups of {depth}: {isl.sample_pair(wrong)}",
                where="sums",
            )

    def order(self) -> str:
        """In which order an agent runs the groups of one element: `VARIES`, or the one order."""
        before = self._same_element(self.timed.lex_lt_map(self.timed)).coalesce()
        domain = self.timed.domain()
        for name, position in _NAMED.items():
            when = position.format(k=_TILE, s=_STEP, steps=self.tiles.k_steps)
            named = self.model.map(f"{self.statement.instance} -> {when}").intersect_domain(domain)
            if before.is_equal(self._same_element(named.lex_lt_map(named))):
                return name.format(tile=self.tiles.cta[2])
        alone = before
        for at in reversed(self.others):
            alone = alone.project_out(_IN, at, 1).project_out(_OUT, at, 1)
        # What is left says nothing of the other coordinates: put back, it holds for all of them.
        whole = alone
        for at in self.others:
            whole = whole.insert_dims(_IN, at, 1).insert_dims(_OUT, at, 1)
        whole = whole.set_tuple_name(_IN, self.statement.name)
        whole = self._same_element(whole.set_tuple_name(_OUT, self.statement.name))
        rest = whole.intersect_domain(domain).intersect_range(domain).subtract(before)
        if rest.is_empty():
            return f"k tiles of {self.tiles.cta[2]} and steps by {isl.canonical(alone)}"
        self.witness = f"others have the order {isl.sample_pair(rest)}"
        return VARIES

    def _same_element(self, pairs: isl.Map) -> isl.Map:
        """Of pairs of instances those that differ in the group of k alone."""
        for at in self.others:
            pairs = pairs.equate(_IN, at, _OUT, at)
        return pairs

    def begins(self, program: TileProgram) -> str:
        """What the first group of a sum is added to."""
        cleared = any(
            program.statement(name).op == "map"
            for buffer in self._sums()
            for name in self.model.writes[buffer]
        )
        return FROM_ZERO if cleared else FROM_FIRST

    def _sums(self) -> list[str]:
        """The buffers that the product adds to."""
        return [b for b, users in self.model.writes.items() if self.statement.name in users]

    def parts(self, elements: isl.Map, role: Roles) -> str:
        """Which k of one element have a sum of their own, as isl text; "": they share one.

        A schedule that splits k adds its parts to other cells, by other agents or in other places
        of one. What is added up from them, and in which order, has to be proved where the statement
        that combines them is known; until then such sums are not `fixed`.
        """
        iterators = role.instance.partition("[")[2].rstrip("]").split(",")
        for buffer in self._sums():
            cells = self.model.writes[buffer][self.statement.name]
            every = elements.apply_range(cells)
            one = every.project_out(_IN, iterators.index(role.k), 1)
            alone = cells
            for at in reversed(range(len(self.names))):
                if at not in self.others:
                    alone = alone.project_out(_IN, at, 1)
            if not (one.is_single_valued() and alone.is_single_valued()):
                self.witness = f"an element's sum lies in several cells of {buffer}"
                return isl.canonical(every)
        return ""

    def refused(self, order: SumOrder) -> InvarianceError:
        """That the bits of an element depend on more than its operands."""
        return InvarianceError(
            f"the order of {order.product}'s sums is not one for all elements: {self.witness}",
            where=_WHERE,
            why="an element has the same bits everywhere if k enters all sums in one order",
            nearest="Use a schedule that takes k in one order for all tiles",
        )
