"""`ChainMatch` -> `ScheduleTree`: the statements of a chain as polyhedra, tiles, and the proofs.

1. The chain is written as element statements in the form of its scans: state b of a row is known
   behind block b of its keys. isl computes their dependences.
2. As the program was, with folds, one loop over keys breaks dependences; isl finds the pair. As it
   is now, none leaves a row, and none goes backwards along the keys.
3. Every element statement has one tile statement. The dependences are carried over to these, and
   are proved of the trees that are emitted, as everything else about them (`refine`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from polygen import isl
from polygen.errors import VerifyError
from polygen.frontend.indices import named_in
from polygen.poly.by_chain import frames
from polygen.poly.chain_layers import nth, of_layer
from polygen.poly.chain_match import VALUES, WEIGHTS, ChainMatch
from polygen.poly.chain_shape import ChainShape
from polygen.poly.derive_syncs import Synchronised, derive
from polygen.poly.emitted import emitted_of
from polygen.poly.frames import check_frames
from polygen.poly.kernel_parts import MainLoop, Product
from polygen.poly.kernel_program import chain_program
from polygen.poly.legality import Proof, check_blocks
from polygen.poly.mapping import ScheduleTree
from polygen.poly.refine import refine
from polygen.poly.scop import Scop, must_flow, reuse_dependences, space
from polygen.poly.tile_program import TileProgram
from polygen.poly.tiling import in_pass
from polygen.schedule.sums import ASCENDING, FROM_FIRST, FROM_ZERO, Sums, sum_order


@dataclass(frozen=True, slots=True)
class _Element:
    """One statement over elements: its instance, bounds, accesses, time and tile statement."""

    instance: str
    bounds: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    time: str
    tile: str


def map_chain(
    matched: ChainMatch,
    shape: ChainShape,
    instruction: str,
    derived: Callable[[TileProgram], Synchronised] = derive,
) -> tuple[Scop, ScheduleTree]:
    """Build and prove the schedule tree of a chain.

    Args:
        matched: its products.
        shape: tiles, stages, lag.
        instruction: that multiplies.
        derived: what synchronises a tile program, derived or kept from before.

    Raises:
        IllegalSchedule: a dependence is broken; with a witness.
        VerifyError: what would be emitted does not do what the program says; with a witness.
    """
    elements = _elements(matched, shape)
    model = _scop(matched, elements)
    program = chain_program(shape)
    rows = "; ".join(
        f"{one.instance} -> [{','.join((*_batches(matched), f'floor(i/{shape.tiles.cta[0]})'))}]"
        for one in elements
    )
    prefix = space(model.parameters)
    blocks = isl.UnionMap(f"{prefix}{{ {rows} }}").intersect_domain(model.domain)
    apart = check_blocks(model.dependences, blocks, "tile.cta.m")
    text = "; ".join(f"{one.instance} -> {one.tile}" for one in elements)
    relation = isl.UnionMap(f"{space((*model.parameters, 'k_tiles'))}{{ {text} }}")
    relation = relation.intersect_domain(model.domain)
    count = isl.Set(_tile_count(matched, model, shape))
    whole = _check_whole(model, program, relation, count)
    carried = _carried(model, relation, count)
    layered = {name for one in shape.layers for name in of_layer(one)}
    synchronised = derived(program)
    emitted = emitted_of(synchronised, carried)
    proofs = (
        _one_loop(matched, model, program, carried, layered), apart, whole, *refine(emitted),
        *check_frames(program, frames(shape)),
    )  # fmt: skip
    tree = ScheduleTree(
        matched.fusion,
        matched.values,
        shape.tiles,
        MainLoop((), (Product("", WEIGHTS, VALUES),)),
        f"{{ {text} }}",
        synchronised,
        emitted.trees,
        proofs,
        shape.panels,
        _sums(matched, shape, instruction),
    )
    return model, tree


def _batches(matched: ChainMatch) -> tuple[str, ...]:
    return tuple(dim for dim, _ in matched.values.batches)


def _elements(matched: ChainMatch, shape: ChainShape) -> tuple[_Element, ...]:
    """The statements of a chain in the form of its scans: b counts blocks of keys."""
    z, keys = _batches(matched), shape.tiles.cta[2]
    m, columns, depth = matched.values.m, matched.columns, matched.depth
    row = ",".join((*z, "i"))
    outer = " and ".join([*(f"0 <= {d} < {n}" for d, n in matched.values.batches), f"0 <= i < {m}"])
    key = f"{outer} and 0 <= j < {matched.values.depths[0]}"
    column, block = f"0 <= e < {columns}", f"floor(j/{keys})"
    rows, (high, wide, step) = shape.tiles.warp[0], shape.tiles.atom
    who = (f"floor((i mod {shape.tiles.cta[0]})/{rows})", *("0" for _ in shape.rows_of_block))
    atom = f"floor((i mod {rows})/{high})"

    def tile(statement: str, *inside: str) -> str:
        return f"{statement}[{','.join((*who, *inside))}]"

    def parts(column: str) -> tuple[str, ...]:
        return (atom,) if shape.roles else (atom, f"floor({column}/{wide})")

    state, before = f"state[{row},{block}]", f"state[{row},{block} - 1]"
    scores = tuple(f"{nth('v', n)}[{row},j]" for n in range(shape.products))
    scored = (*scores, *(f"h_{name}[{row},j]" for name in shape.again))
    x, weight = f"x[{row},j]", f"p[{row},j]"
    returned = (f"r_{one.tensor.name}[{row},j]" for one in matched.returned)
    total, result = f"o[{row},e]", f"y[{row},e]"

    def time(phase: int, *rest: str) -> str:
        return ",".join((row, str(phase), *(*rest, "0", "0", "0", "0")[:4]))

    made = (f"h_{shape.layers[-1].name}[{row},d]",) if shape.layers else ()
    found = [
        *_layers(matched, shape, row, outer, (atom, *who), time),
        _Element(
            f"Z[{row},e]", f"{outer} and {column}", (), (total,), time(0, "e"),
            tile("multiply", "0", "0", atom) if shape.roles else tile("zero", *shape.begins),
        ),
        *(
            _Element(
                f"{nth('score', n)}[{row},j,d]", f"{key} and 0 <= d < {depth}", (one, *made),
                (one,), time(1, block, "0", "j", "d"),
                tile(nth("score", n), block, f"floor(d/{step})", *parts(f"(j mod {keys})")),
            )
            for n, one in enumerate(scores)
        ),
    ]  # fmt: skip
    own = (state,) if shape.states else ()
    if shape.referenced:
        found.append(
            _Element(
                f"advance[{row},j]", key, (*scored, before, state), (x, state),
                time(1, block, "1", "j"), tile("advance", block),
            )
        )  # fmt: skip
    found.append(
        _Element(
            f"weigh[{row},j]", key, (*((x,) if shape.referenced else scored), *own),
            (weight, *returned, *own),
            time(1, block, "2", "j"), tile("weigh", block),
        )
    )  # fmt: skip
    if shape.referenced:
        found.append(
            _Element(
                f"rescale[{row},j,e]", f"{key} and {column} and j mod {keys} = 0 and j > 0",
                (before, state, total), (total,), time(1, block, "3", "j", "e"),
                tile("rescale", block),
            )
        )  # fmt: skip
    found += [
        _Element(
            f"multiply[{row},j,e]", f"{key} and {column}", (weight, total), (total,),
            time(1, block, "4", "j", "e"),
            tile(shape.second, block, f"floor((j mod {keys})/{step})", *parts("e")),
        ),
    ]  # fmt: skip
    behind = (f"h_{name}[{row},e]" if name else f"p[{row},e]" for name in shape.behind)
    reads = (total, *behind, *_last(matched, shape, row))
    for number, held in enumerate(shape.passes):
        name, folded = in_pass("terms", number), f"{in_pass('r', number)}[{row}]"
        left = f"{in_pass('held', number)}[{row},e]"
        found.append(
            _Element(
                f"{name}[{row},e]", f"{outer} and {column}", (*reads, folded),
                (folded, *((left,) if held else ())), time(2 + number, "e"), tile(name, atom),
            )
        )  # fmt: skip
        reads = (*((left, *reads[1:]) if held else reads), folded)
    found.append(
        _Element(
            f"store[{row},e]", f"{outer} and {column}", reads, (result,),
            time(2 + len(shape.passes), "e"), tile(shape.ends, _part_of_end(shape, atom)),
        )
    )  # fmt: skip
    return tuple(found)


def _layers(
    matched: ChainMatch,
    shape: ChainShape,
    row: str,
    outer: str,
    place: tuple[str, ...],
    time: Callable[..., str],
) -> Iterator[_Element]:
    """Products of layers, and what is made of their sums, in front of everything else of a row.

    Args:
        matched: the chain.
        shape: of its tiles.
        row: of an element.
        outer: its bounds.
        place: the instruction along m of an element's row, and the warp that has it.
        time: of a phase, and of what is inside of it.
    """
    (atom, *who), (_, wide, step) = place, shape.tiles.atom
    made: tuple[str, ...] = ()
    for at, (one, of) in enumerate(zip(matched.layers, shape.layers, strict=True)):
        column, depth = f"{outer} and 0 <= j < {one.columns}", f"0 <= d < {one.depth}"
        totals = tuple(f"{nth(f'v_{of.name}', n)}[{row},j]" for n in range(of.products))
        value = f"h_{of.name}[{row},j]"
        phase = at - len(shape.layers)
        for n, total in enumerate(totals):
            name, k = nth(of.called("score"), n), str(of.tiles[n].at)
            tile = ",".join((*who, k, f"floor(d/{step})", atom, f"floor(j/{wide})"))
            yield _Element(
                f"{name}[{row},j,d]", f"{column} and {depth}", (total, *made), (total,),
                time(phase, "0", "j", "d", str(n)), f"{name}[{tile}]",
            )  # fmt: skip
        yield _Element(
            f"{of.called('weigh')}[{row},j]", column,
            (*totals, *(f"h_{name}[{row},j]" for name in of.again)),
            (value, *(f"r_{result.tensor.name}[{row},j]" for result in one.returned)),
            time(phase, "1", "j"),
            f"{of.called('weigh')}[{','.join((*who, '0'))}]",
        )  # fmt: skip
        made = (f"h_{of.name}[{row},d]",)


def _part_of_end(shape: ChainShape, atom: str) -> str:
    """Which part of a consumer's tile result `e` of a row leaves with; isl text."""
    if not shape.panels.columns:
        return atom
    return f"{shape.panels_beside}*{atom} + floor(e/{shape.panels.columns})"


def _last(matched: ChainMatch, shape: ChainShape, row: str) -> tuple[str, ...]:
    keys = matched.values.depths[0]
    return (f"state[{row},floor(({keys} - 1)/{shape.tiles.cta[2]})]",) if shape.states else ()


def _parameters(matched: ChainMatch) -> tuple[str, ...]:
    extents = (matched.values.m, matched.values.depths[0], *(n for _, n in matched.values.batches))
    return tuple(dict.fromkeys(name for one in extents for name in named_in(one)))


def _scop(matched: ChainMatch, elements: tuple[_Element, ...]) -> Scop:
    parameters = _parameters(matched)
    prefix = space(parameters)
    positive = " and ".join(f"{name} >= 1" for name in parameters) or "1 = 1"
    domain = isl.UnionSet(
        f"{prefix}{{ {'; '.join(f'{one.instance} : {one.bounds}' for one in elements)} }}"
    ).intersect_params(isl.Set(f"{prefix}{{ : {positive} }}"))

    def relation(items: list[str]) -> isl.UnionMap:
        return isl.UnionMap(f"{prefix}{{ {'; '.join(items)} }}").intersect_domain(domain)

    read = relation([f"{one.instance} -> {cell}" for one in elements for cell in one.reads])
    write = relation([f"{one.instance} -> {cell}" for one in elements for cell in one.writes])
    order = relation([f"{one.instance} -> [{one.time}]" for one in elements])
    flow, reuse = must_flow(read, write, order), reuse_dependences(read, write, order)
    return Scop(parameters, (), domain, read, write, order, flow, reuse)


def _one_loop(
    matched: ChainMatch,
    model: Scop,
    program: TileProgram,
    carried: str,
    layered: Collection[str],
) -> Proof:
    """One loop over blocks of keys keeps all dependences of the scans; folds would break one.

    `layered`: the statements of layers.

    Raises:
        VerifyError: it does not; with the pair.
    """
    image = isl.UnionMap(f"{program.prefix}{{ {carried} }}").get_map_list()
    for at in range(image.n_map()):
        one = image.get_at(at)
        ends = [
            program.statement(str(one.get_tuple_name(side)))
            for side in (isl.dim_type.in_, isl.dim_type.out)
        ]
        loops = [end.loops for end in ends]
        # Layers are in front of all keys: their k tells right operands apart.
        if any("k" not in end.loops or end.name in layered for end in ends):
            continue
        first, then = (1 + names.index("k") for names in loops)
        backwards = isl.Map.universe(one.get_space())
        backwards = backwards.order_gt(isl.dim_type.in_, first, isl.dim_type.out, then)
        wrong = one.intersect(backwards)
        if not wrong.is_empty():
            raise VerifyError(
                f"a scan reads what a later block of keys leaves: {isl.sample_pair(wrong)}",
                where="rewrite",
            )
    claim = "one loop over blocks of keys keeps every dependence"
    if not matched.chain.reference:
        return Proof(claim, "keys")
    return Proof(f"{claim}; as folds they had {_broken(matched, model)}", "scans")


def _broken(matched: ChainMatch, model: Scop) -> isl.InstancePair | None:
    """A dependence that goes backwards in a loop over keys, where the reference is a fold: between
    that and what is made with it.
    """
    row = ",".join((*_batches(matched), "i"))
    prefix, fold = space(model.parameters), matched.chain.reference
    term = matched.chain.weight
    keys = model.domain.apply(
        isl.UnionMap(f"{prefix}{{ weigh[{row},j] -> {fold}[{row},j]; "
                     f"weigh[{row},j] -> {term}[{row},j] }}")
    )  # fmt: skip
    order = isl.UnionMap(f"{prefix}{{ {fold}[{row},j] -> [{row},0,j]; "
                         f"{term}[{row},j] -> [{row},1,j] }}")  # fmt: skip
    write = isl.UnionMap(f"{prefix}{{ {fold}[{row},j] -> m[{row}] }}").intersect_domain(keys)
    read = isl.UnionMap(f"{prefix}{{ {term}[{row},j] -> m[{row}] }}").intersect_domain(keys)
    flow = isl.Map.from_union_map(must_flow(read, write, order))
    at = len(_batches(matched)) + 1
    later = isl.Map.universe(flow.get_space())
    later = later.order_gt(isl.dim_type.in_, at, isl.dim_type.out, at)
    return isl.sample_pair(flow.intersect(later))


def _tile_count(matched: ChainMatch, model: Scop, shape: ChainShape) -> str:
    keys, step = matched.values.depths[0], shape.tiles.cta[2]
    prefix = space((*model.parameters, "k_tiles"))
    return f"{prefix}{{ : k_tiles = floor(({keys} + {step - 1})/{step}) }}"


def _check_whole(
    model: Scop, program: TileProgram, relation: isl.UnionMap, count: isl.Set
) -> Proof:
    """Every element has one tile statement, and that is one of the program's."""
    counted = model.domain.intersect_params(count)
    if not relation.is_single_valued() or not counted.is_subset(relation.domain()):
        raise VerifyError("the tiles do not execute every instance exactly once", where="tiling")
    names = {s.name for s in program.statements}
    image = relation.intersect_params(count).range().get_set_list()
    first = program.context.replace("tiles >= 0", "tiles = 1")
    for at in range(image.n_set()):
        tile = image.get_at(at)
        name = str(tile.get_tuple_name())
        rest = tile
        if name in names:
            domain = isl.Set(f"{program.prefix}{{ {program.statement(name).domain} and {first} }}")
            others = len(program.parameters) - 1
            rest = tile.subtract(domain.project_out(isl.dim_type.param, 1, others))
        if not rest.is_empty():
            raise VerifyError(f"{isl.sample_point(rest)} is no tile of the program", where="tiling")
    return Proof("every element is executed by one tile of the program", "tiling")


def _carried(model: Scop, relation: isl.UnionMap, count: isl.Set) -> str:
    """The dependences between the tile statements of one row tile, as isl text."""
    image = model.dependences.apply_domain(relation).apply_range(relation)
    image = image.intersect_params(count).subtract(image.domain().identity())
    for name in model.parameters:
        at = int(image.get_space().find_dim_by_name(isl.dim_type.param, name))
        image = image.project_out(isl.dim_type.param, at, 1)
    return "; ".join(isl.pieces(image))


def _sums(matched: ChainMatch, shape: ChainShape, instruction: str) -> Sums:
    """In which order products add up: keys go up, tile by tile, instruction by instruction."""
    orders = []
    step, keys = shape.tiles.atom[2], shape.tiles.cta[2]
    for found, groups in (
        *((one.match, str(of.steps)) for one, of in zip(matched.layers, shape.layers, strict=True)),
        (matched.scores, str(shape.score_steps)),
        (matched.values, f"{keys // step} * ceil({matched.values.depths[0]} / {keys})"),
    ):
        orders += [
            sum_order(
                one.contraction.name, instruction, one.contraction.dtype, step, ASCENDING,
                count=groups, begins=FROM_FIRST if shape.roles else FROM_ZERO,
            )
            for one in found.products
        ]  # fmt: skip
    return Sums(tuple(orders))
