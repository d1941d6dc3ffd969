"""The order in which k enters a sum, from the trees that are emitted: one for all, or refused.

An element of the output is S[m,n,..]; its sum takes the groups of k that instructions add, one
after the other. isl computes, for each product,

1. *groups*: which instruction takes element (m,n,k), through the tiling: (m,n,k) -> (k tile, step).
   It is a function of k alone, and groups are runs of the instruction's depth along k;
2. *order*: when an agent runs these instructions, through its emitted tree: what comes before what,
   as a relation of (k tile, step). No other coordinate is in it: not the place in the warp's tile,
   not the agent, not which tile of the output the agent is at;
3. *parts*: which sum takes a group. Where agents share the k of an element, the part is a function
   of k alone, too, and parts are added up in one order (`polygen.poly.sum_parts`).

Composed they are a relation of k and k', which gets the first of the names in `_NAMED` that says
the same. Tiles of any depth, rings of any number of slots thus have one order: ascending.

A relation that holds without a coordinate is proved independent of it, and so of every size that
bounds it: the relation is projected, and what is put back has to be what it was before. Else the
order depends on that coordinate, and a pair of instructions is the witness. Nothing here is about
one number of k tiles: `k_tiles` stays a parameter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from polygen import isl
from polygen.errors import InvarianceError
from polygen.frontend.program import Dim
from polygen.hardware.atom import Atom
from polygen.poly.emitted import Emitted, read_trees
from polygen.poly.legality import Proof
from polygen.poly.sum_blocks import block_parts, promoted
from polygen.poly.sum_parts import Parts, added_up, function_of, only, order_of, parts
from polygen.poly.tile_program import TileProgram
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
    turned,
)

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out
_TILE, _STEP = "k", "s"  # the coordinates of a tile statement that say which group of k it takes

# Where the group of an element k stands in its sum: the smaller, the earlier.
_NAMED = {
    ASCENDING: "[floor(k/{depth})]",
    DESCENDING: "[-floor(k/{depth})]",
    "k tiles of {tile} descending, ascending inside": "[-floor(k/{tile}), floor(k/{depth})]",
}


def sum_orders(
    emitted: Emitted,
    roles: Sequence[Roles],
    kinds: Sequence[tuple[isl.UnionMap, Tiling]],
    atom: Atom,
    depths: Sequence[Dim],
    *,
    invariant: bool,
    exchanged: bool = False,
    over: Sequence[Dim] = (),
    block: int = 0,
) -> tuple[tuple[SumOrder, ...], tuple[Proof, ...]]:
    """The orders of all products, and what was proved of them.

    Args:
        emitted: the trees.
        roles: of the element statements.
        kinds: of each kind of tiles element instance -> its tile statement in a block's first tile,
            and the hierarchy: of all, or of those that are a block's own and of those it shares.
        atom: the instruction.
        depths: lengths of the sums.
        invariant: refuse what depends on anything but k; else it is called `VARIES`.
        exchanged: whether the instruction's left operand is the program's right one.
        over: of sums over several axes the lengths of the others.
        block: indices of k whose sum is promoted; 0: there are no blocks.

    Raises:
        InvarianceError: with one pair of instructions.
    """
    model = TileModel(emitted.program)
    times = read_trees(emitted, model.context)
    found, proofs = [], []
    for role in roles:
        if role.does != "product":
            continue
        each = []
        for relation, tiles in kinds:
            elements = _of_statement(relation, role.statement)
            one = _Product(model, emitted.program, times, elements, role, tiles, block)
            split = one.parts()
            lengths, axes = ((block,), ()) if block else (depths, over)
            count = group_count(tiles, lengths, split.count, axes)
            each.append(
                sum_order(
                    role.statement,
                    turned(atom.name, exchanged, atom.exchangeable),
                    atom.c.dtype,
                    atom.k,
                    one.order(split),
                    count=count,
                    begins=one.begins(),
                    parts=split.name,
                    combine=one.combined(split),
                )
            )
            if invariant and not each[-1].fixed:
                raise _refused(each[-1], one.witness or "nothing proves how its parts are added up")
        order, *others = each
        order = functools.reduce(SumOrder.beside, others, order)
        if invariant and not order.alike:
            raise _refused(
                order, "blocks share the sums of some tiles, and which depends on the sizes"
            )
        if not order.instruction:
            claim = "sums of integers are exact, in any order"
            proofs.append(Proof(claim, role.statement))
        for kind in each if order.instruction else ():
            if kind.fixed:
                where = "whatever tile the element is in"
                if others:
                    where = "of a tile whose sums blocks share" if kind.parts else "of other tiles"
                claim = f"k enters a sum in one order, {where}: {kind.order}"
                inside = f" in {kind.parts}" if kind.parts else ""
                proofs.append(Proof(claim, f"{role.statement}, {atom.k} at a time{inside}"))
        found.append(order)
    return tuple(found), tuple(proofs)


def _of_statement(relation: isl.UnionMap, statement: str) -> isl.Map:
    """The part of a relation that leads from the instances of one statement."""
    pieces = relation.get_map_list()
    every = (pieces.get_at(at) for at in range(pieces.n_map()))
    return next(one for one in every if str(one.get_tuple_name(_IN)) == statement)


def group_count(
    tiles: Tiling, depths: Sequence[Dim], split: int = 1, over: Sequence[Dim] = ()
) -> str:
    """How many groups enter a sum, or one of its parts: a number where all depths are.

    Args:
        tiles: the tile hierarchy.
        depths: lengths of the sums.
        split: parts of a sum.
        over: of sums over several axes the lengths of the others, whose tiles are numbered through.
    """
    steps, tile = tiles.k_steps, tiles.cta[2] * split
    if over:
        return _through_axes(tiles, depths[0], split, over)
    each = [-(-d // tile) * steps if isinstance(d, int) else f"ceil({d}/{tile})" for d in depths]
    if all(isinstance(one, int) for one in each):
        return str(max(one for one in each if isinstance(one, int)))
    text = [one if isinstance(one, str) else str(one // steps) for one in each]
    most = text[0] if len(text) == 1 else f"max({', '.join(text)})"
    return most if steps == 1 else f"{steps}*{most}"


def _through_axes(tiles: Tiling, depth: Dim, split: int, over: Sequence[Dim]) -> str:
    """The same of sums over several axes."""
    tile, steps = tiles.cta[2], tiles.k_steps
    if isinstance(depth, int) and all(isinstance(one, int) for one in over):
        tiles_of_all = -(-depth // tile) * math.prod(int(one) for one in over)
        return str(-(-tiles_of_all // split) * steps)
    text = "*".join([*map(str, over), f"ceil({depth}/{tile})"])
    text = text if split == 1 else f"ceil({text}/{split})"
    return text if steps == 1 else f"{steps}*{text}"


def _refused(order: SumOrder, witness: str) -> InvarianceError:
    return InvarianceError(
        f"the order of {order.product}'s sums is not one for all elements: {witness}",
        where="invariant",
        why="an element has the same bits everywhere if k enters all sums in one order",
        nearest="Use a schedule that takes k in one order for all tiles",
    )


class _Product:
    """The instructions of one product, when they run, and which elements they take."""

    def __init__(
        self,
        model: TileModel,
        program: TileProgram,
        times: Mapping[str, isl.Map],
        elements: isl.Map,
        role: Roles,
        tiles: Tiling,
        block: int,
    ) -> None:
        self.block = block
        self.model, self.program, self.times, self.tiles = model, program, times, tiles
        self.elements = elements
        self.statement = program.statement(str(elements.get_tuple_name(_OUT)))
        self.k = role.instance.partition("[")[2].rstrip("]").split(",").index(role.k)
        names = (*self.statement.place.agents, *self.statement.loops)
        self.group = [at for at, name in enumerate(names) if name in (_TILE, _STEP)]
        self.witness = ""

    def parts(self) -> Parts:
        """Which sum of an element takes which k."""
        if self.block:
            found = block_parts(self.model, self.statement, self.elements, self.k, self.block)
            self.witness = found.witness
            return found
        sums = [self.model.writes[buffer][self.statement.name] for buffer in self._sums()]
        tile, parameters = self.tiles.cta[2], self.program.parameters
        own = self.tiles.part_tiles
        found = parts(self.elements, self.k, self.group, sums, tile, parameters, own)
        for name in self._sums():
            if self.program.buffer(name).space != "register":
                witness = f"{name} is memory that others may add to"
                found = replace(found, name=found.name or name, witness=found.witness or witness)
        self.witness = found.witness
        return found

    def order(self, split: Parts) -> str:
        """In which order the groups of one element enter its sum: `VARIES`, or the one order."""
        if split.witness:
            return VARIES
        timed = self.times[self.statement.name]
        before = order_of(timed, self.group)
        if isinstance(before, str):
            self.witness = before
            return VARIES
        kept = sorted({*split.coordinates, *self.group})
        taken = function_of(self.elements, self.k, kept, self.program.parameters)
        if taken is None:
            self.witness = "which instruction takes k depends on the element"
            return VARIES
        return self._name(taken, kept, before, only(timed, _IN, self.group).domain())

    def _name(self, taken: isl.Map, kept: list[int], before: isl.Map, groups: isl.Set) -> str:
        """The name of an order.

        Args:
            taken: k -> its part, and its group there.
            kept: the coordinates that these are.
            before: group -> group that comes after it.
            groups: that there are.
        """
        depth, tile = self.tiles.atom[2], self.tiles.cta[2]
        own = only(taken, _OUT, [kept.index(at) for at in self.group]).intersect_range(groups)
        part = only(taken, _OUT, [n for n, at in enumerate(kept) if at not in self.group])
        same_part, domain = part.apply_range(part.reverse()), own.domain()
        comes = own.apply_range(before).apply_range(own.reverse()).intersect(same_part)
        together = own.apply_range(own.reverse()).intersect(same_part)

        def placed(position: str) -> isl.Map:
            found = isl.Map(f"{{ [k] -> {position.format(depth=depth, tile=tile)} }}")
            return found.intersect_domain(domain)

        runs = placed(_NAMED[ASCENDING])
        if not together.is_equal(runs.apply_range(runs.reverse())):
            self.witness = f"instructions do not take k in runs of {depth}"
            return VARIES
        for name, position in _NAMED.items():
            said = placed(position)
            if comes.is_equal(said.lex_lt_map(said).intersect(same_part)):
                return name.format(tile=tile)
        return f"as k comes before k' in {isl.canonical(comes)}"

    def combined(self, split: Parts) -> str:
        """In which order the parts of a sum are added up; "" if none is proved, or there is one."""
        if self.block and not split.witness:
            return promoted(self.model, self.program, self.times, self.statement)
        if split.witness or not split.coordinates:
            return ""
        return added_up(self.model, self.program, self.times, self.statement, split)

    def begins(self) -> str:
        """What the first group of a sum is added to."""
        cleared = any(
            self.program.statement(name).op == "map"
            for buffer in self._sums()
            for name in self.model.writes[buffer]
        )
        return FROM_ZERO if cleared else FROM_FIRST

    def _sums(self) -> list[str]:
        """The buffers that the product adds to."""
        return [b for b, users in self.model.writes.items() if self.statement.name in users]
