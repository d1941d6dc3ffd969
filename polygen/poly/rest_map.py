"""The rest of a product's sums as polyhedra: its elements, beside the program's, and their tiles.

    t[r,h,m,e]  = sum over k of x[m,k] * a[e,k]     again for every run of tiles, and its agents h
    t'[r,h,m,e] = f(t[r,h,m,e])
    v0[m,n]    += t'[r(n),h(n),m,e] * b[n,e]        behind all other terms of v0

A run is the tiles of one row of tiles that a block takes one after another; mostly that is one.
Making t again is no dependence and costs none: every run has elements of its own. The dependences
that these have, and those of the sum that now ends later, are carried over to tiles like all
others, and proved of the trees that are emitted (`polygen.poly.mapping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polygen import isl
from polygen.poly.kernel_parts import MIDDLE, REST
from polygen.poly.match import Match, RestMatch
from polygen.poly.scop import Scop, clear_name, must_flow, reuse_dependences, space
from polygen.poly.tiling import Roles, Tiling, called, whose_turn
from polygen.schedule.model import Schedule
from polygen.schedule.sums import SumOrder

_DIMS = ("m", "n", "r", "h", "e", "d")


@dataclass(frozen=True, slots=True)
class RestElements:
    """Statements over elements: instances, blocks, tiles, and those of a whole first tile.

    Attributes:
        model: the program's polyhedra with these.
        blocks: instance -> thread block, isl text.
        tiles: instance -> the tile statement that executes it in a block's first tile, isl text.
        whole: instances of a whole first tile, isl text.
        roles: of both products' instances.
    """

    model: Scop
    blocks: str
    tiles: str
    whole: str
    roles: tuple[Roles, ...]


@dataclass(frozen=True, slots=True)
class _Element:
    instance: str
    bounds: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    time: tuple[str, ...]
    column: str  # a column of the tile that it is made for
    tile: str
    inside: str  # bounds in a first tile


@dataclass(frozen=True, slots=True)
class _Names:
    """What the coordinates of elements are called: none as a size of the program."""

    row: str
    column: str
    run: str
    agent: str
    middle: str
    depth: str
    batches: tuple[str, ...]

    def of(self, dim: str, batches: Sequence[str]) -> str:
        """The coordinate of a dim of the results."""
        return {"m": self.row, "n": self.column, **dict(zip(batches, self.batches, strict=True))}[
            dim
        ]


def _names(scop: Scop, matched: Match) -> _Names:
    batches, end = tuple(dim for dim, _ in matched.batches), ""
    while any(f"{name}{end}" in scop.parameters for name in (*_DIMS, *batches)):
        end += "_"
    row, column, run, agent, middle, depth = (f"{name}{end}" for name in _DIMS)
    own = tuple(f"{name}{end}" for name in batches)
    return _Names(row, column, run, agent, middle, depth, own)


def rest_elements(
    scop: Scop, matched: Match, tiles: Tiling, schedule: Schedule
) -> RestElements | None:
    """The program with the rest of its product's sums; None where there is none.

    Args:
        scop: the program.
        matched: its product.
        tiles: the tile hierarchy.
        schedule: whose blocks.
    """
    rest = matched.rest
    if rest is None:
        return None
    names = _names(scop, matched)
    found = _elements(scop, matched, rest, tiles, schedule, names)
    expressions = [tiles.expressions(names.row, one.column) for one in found]
    grid = {"m": "b_m", "n": "b_n", "k": "k_tile"}
    batches = names.batches
    places = ([*batches, *(e[grid[dim]] for dim in schedule.loops.grid)] for e in expressions)
    blocks = [f"{one.instance} -> [{','.join(at)}]" for one, at in zip(found, places, strict=True)]
    return RestElements(
        _with(scop, found),
        "{ " + "; ".join(blocks) + " }",
        "{ " + "; ".join(f"{one.instance} -> {one.tile}" for one in found) + " }",
        "{ " + "; ".join(f"{one.instance} : {one.inside}" for one in found) + " }",
        tuple(
            Roles(
                product.name, "product", found[at].instance, names.row, column, k, batches, called
            )
            for product, at, column, k, called in (
                (rest.middle, 1, names.agent, names.depth, MIDDLE),
                (rest.last, 3, names.column, names.middle, REST),
            )
        ),
    )


def rest_orders(
    orders: tuple[SumOrder, ...], matched: Match, tiles: Tiling
) -> tuple[SumOrder, ...]:
    """The orders of sums, the last of which is that of the product that goes on with the first's.

    Args:
        orders: as they are found.
        matched: the products.
        tiles: the tile hierarchy.
    """
    if matched.rest is None:
        return orders
    *others, last = orders
    begins = f"to the sums of {matched.contraction.name}"
    count = str(matched.rest.padded // tiles.atom[2])
    return (*others, replace(last, count=count, begins=begins))


def _elements(
    scop: Scop,
    matched: Match,
    rest: RestMatch,
    tiles: Tiling,
    schedule: Schedule,
    names: _Names,
) -> tuple[_Element, ...]:
    """What clears, multiplies, converts, and multiplies again."""
    row, col, run, who, e, d = (
        names.row, names.column, names.run, names.agent, names.middle, names.depth,
    )  # fmt: skip
    batches, dims = names.batches, [dim for dim, _ in matched.batches]
    main, turns = matched.contraction, schedule.in_turns
    wide, (_, across, _) = tiles.cta[1] * tiles.run, tiles.cta
    agents, columns = tiles.warps[1], tiles.warp[1]
    if turns and tiles.run > 1:  # of a run each consumer has the tiles of its turns
        agents, columns = schedule.consumers, across
    outer = [
        f"0 <= {name} < {extent}"
        for name, (_, extent) in zip(batches, matched.batches, strict=True)
    ]
    outer.append(f"0 <= {row} < {matched.m}")
    column = f"({wide}*{run} + {columns}*{who})"
    tile = [f"0 <= {run}", f"0 <= {who} < {agents}", f"{column} < {matched.n}"]
    tile.append(f"0 <= {e} < {rest.columns}")
    before, behind = (
        " and ".join((*outer, *tile)),
        " and ".join((*outer, f"0 <= {col} < {matched.n}", f"0 <= {e} < {rest.columns}")),
    )
    places = (*batches, run, who, row, e)
    own = ",".join(places)
    (depth,) = matched.depths
    sums = f"{rest.middle.write.name}[{own}]"
    value = f"{MIDDLE}_of_{rest.middle.write.name}"
    total = f"{main.write.name}[{','.join(names.of(dim, dims) for dim in matched.axes)}]"
    position = next(n for n, group in enumerate(scop.groups) if group.statements[0] is main)
    first = tiles.expressions(row, column, d)
    last = tiles.expressions(row, col)
    agent = ["0"] if schedule.cluster.blocks > 1 else []

    in_turns = whose_turn(tiles, schedule, "{i}")
    which = in_turns if turns else "{w_n}"
    made = ",".join((*batches, f"floor({col}/{wide})", which.format(**last), row, e))

    def at(own_of: dict[str, str], *inner: str) -> str:
        group = in_turns if turns else f"{tiles.warps[1]}*{{w_m}} + {{w_n}}"
        return ",".join((*agent, group.format(**own_of), own_of["i"], *inner))

    multiply, more = called("multiply", MIDDLE), called("multiply", REST)
    rows, every = f"0 <= {row} < {tiles.cta[0]}", f"{run} = 0 and 0 <= {who} < {agents}"
    inside = f"{rows} and {every} and 0 <= {e} < {rest.columns}"
    k = f"{d} < {tiles.cta[2]}*k_tiles"
    whole = f"{rows} and 0 <= {col} < {wide} and 0 <= {e} < {rest.columns}"
    return (
        _Element(
            f"{clear_name(rest.middle)}[{own}]", before, (), (sums,), ("-3", *places), column,
            f"{multiply}[{at(first, '0', '0', first['a_m'])}]", inside,
        ),
        _Element(
            f"{rest.middle.name}[{own},{d}]", f"{before} and 0 <= {d} < {depth}",
            (sums,), (sums,), ("-2", *places, d), column,
            f"{multiply}[{at(first, first['k_tile'], first['k_step'], first['a_m'])}]",
            f"{inside} and 0 <= {k}",
        ),
        _Element(
            f"{_converts(rest)}[{own}]", before, (sums,), (f"{value}[{own}]",), ("-1", *places),
            column, f"convert[{at(first)}]", inside,
        ),
        _Element(
            f"{rest.last.name}[{','.join((*batches, row, col, e))}]", behind,
            (f"{value}[{made}]", total), (total,),
            (str(2 * position + 2), *batches, row, col, e), col,
            f"{more}[{at(last, f'floor({e}/{tiles.atom[2]})', last['a_m'])}]", whole,
        ),
    )  # fmt: skip


def _converts(rest: RestMatch) -> str:
    """What the statements between both products are called."""
    return f"{rest.middle.name}_{rest.last.name}"


def _with(scop: Scop, elements: tuple[_Element, ...]) -> Scop:
    """The program's polyhedra with more elements, and all dependences."""
    prefix = space(scop.parameters)
    positive = " and ".join(f"{name} >= 1" for name in scop.parameters) or "1 = 1"
    more = isl.UnionSet(
        f"{prefix}{{ {'; '.join(f'{one.instance} : {one.bounds}' for one in elements)} }}"
    ).intersect_params(isl.Set(f"{prefix}{{ : {positive} }}"))

    def relation(items: list[str]) -> isl.UnionMap:
        return isl.UnionMap(f"{prefix}{{ {'; '.join(items)} }}").intersect_domain(more)

    length = _length(scop)
    long = max(length, *(len(one.time) for one in elements))
    names = [f"t{n}" for n in range(length)]
    pad = isl.UnionMap(
        f"{{ [{','.join(names)}] -> [{','.join((*names, *['0'] * (long - length)))}] }}"
    )
    times = [
        f"{one.instance} -> [{','.join((*one.time, *['0'] * (long - len(one.time))))}]"
        for one in elements
    ]
    reads = scop.reads.union(
        relation([f"{e.instance} -> {cell}" for e in elements for cell in e.reads])
    )
    writes = scop.writes.union(
        relation([f"{e.instance} -> {cell}" for e in elements for cell in e.writes])
    )
    order = scop.order.apply_range(pad).union(relation(times))
    flow, reuse = must_flow(reads, writes, order), reuse_dependences(reads, writes, order)
    return replace(
        scop, domain=scop.domain.union(more), reads=reads, writes=writes, order=order, flow=flow,
        reuse=reuse,
    )  # fmt: skip


def _length(scop: Scop) -> int:
    """Coordinates of a time."""
    first = scop.order.get_map_list().get_at(0)
    return int(first.dim(isl.dim_type.out))


def joined(*texts: str) -> str:
    """Sets or relations as one, isl text."""
    return "{ " + "; ".join(text.strip("{ }") for text in texts) + " }"
