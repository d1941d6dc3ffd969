"""Whether and how schedules fit chains of products: the decisions, and the passes in their order.

1. A block's tile has 64 rows for each consumer and all columns; it takes as many keys at a time as
   registers and shared memory hold. A schedule that is given says so by its tile: m rows, n
   columns, k keys.
2. Tiles, proofs and plan are made as for any kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polygen.chained import matched
from polygen.errors import ResourceError, ScheduleError, UnsupportedProgram
from polygen.frontend.indices import named_in, size_value
from polygen.frontend.program import (
    Dim,
    Program,
)  # fmt: skip
from polygen.hardware.atom import Atom, atoms_for
from polygen.hardware.data_file import read, take
from polygen.hardware.device import Device
from polygen.lower.chain import lower_chain
from polygen.lower.chain_memory import chain_memory, chain_resources, layouts
from polygen.lower.legal_pages import keys_beside_pages, registers_beside_pages
from polygen.lower.memory import needed
from polygen.lower.plan import KernelPlan
from polygen.poly.by_chain import ChainShape
from polygen.poly.chain_map import map_chain
from polygen.poly.chain_match import VALUES, ChainMatch, require_numbers
from polygen.poly.derive_syncs import Synchronised
from polygen.poly.mapping import ScheduleTree
from polygen.poly.scop import Scop
from polygen.poly.tile_program import TileProgram
from polygen.poly.tiling import tiling
from polygen.schedule.idle import idle
from polygen.schedule.load import load_schedule
from polygen.schedule.model import (
    LONGEST,
    MATRIX,
    PAIRS,
    CtaTile,
    Epilogue,
    Pipeline,
    Raster,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)
from polygen.tune.cost.chains import ChainProblem, chain_time, parts_worth_it, timed

_FILE = "chains.toml"


_STAGES = 2


_PARTS = "_p"  # in a schedule's name, before the keys of a part


@dataclass(frozen=True, slots=True)
class Decided:
    """The decisions for one chain."""

    atom: Atom
    schedule: Schedule
    shape: ChainShape
    origin: str


def decide_chain(
    program: Program,
    device: Device,
    schedule: Schedule | Path | str,
    skip: frozenset[str] = frozenset(),
    sizes: Mapping[str, int] | None = None,
) -> Decided:
    """The schedule and the instruction of a chain.

    Args:
        program: a chain.
        device: the target.
        schedule: a record, a file, or "auto".
        skip: names of schedules not to choose: their kernels spill.
        sizes: of its dims, as far as they are known: few rows have tiles of their own, and where
            the grid is thin the keys are in parts.

    Raises:
        PolygenError: no kernel can be made of the program, or none with this schedule.
    """
    found = matched(program)
    atom = _instruction(found, device)
    require_numbers(found)  # behind the target: no number makes up for that
    if schedule == "auto":
        return _fitting(found, atom, device, skip, sizes or {})
    if isinstance(schedule, Schedule):
        given, origin = schedule, f"given: {schedule.name}"
    else:
        given, origin = load_schedule(Path(schedule)), f"file {schedule}"
    shape = _shape(found, atom, given)
    _check(found, shape, atom, given, device)
    return Decided(atom, given, shape, origin)


def map_and_lower(
    program: Program,
    device: Device,
    decided: Decided,
    derived: Callable[[TileProgram], Synchronised],
) -> tuple[Scop, ScheduleTree, KernelPlan]:
    """The proved tree of a chain, and its plan.

    Raises:
        VerifyError: what would be emitted does not do what the program says.
    """
    found = matched(program)
    kind = decided.atom.name
    model, tree = map_chain(found, decided.shape, kind, derived)
    plan = lower_chain(program, found, tree, decided.shape, decided.schedule, decided.atom, device)
    return model, tree, plan


def _instruction(found: ChainMatch, device: Device) -> Atom:
    """The device's instruction of a warpgroup that multiplies the operands' type."""
    types = {operand.tensor.dtype.name for _, operand in found.operands}
    where = found.chain.values.name
    if len(types) > 1:
        raise UnsupportedProgram(
            f"operands of types {', '.join(sorted(types))}",
            where=where,
            why="both products of a chain are made by one instruction",
            nearest="Pass all of them as f16 or as bf16, or make two functions",
        )
    (name,) = types
    atoms = [a for a in atoms_for(device, name, name, "f32") if a.scope == "warpgroup"]
    atoms = [a for a in atoms if a.a.elements_per_register == 2 and "mn" in a.majors]
    if not atoms:
        raise UnsupportedProgram(
            f"a chain of products of {name} on {device}",
            where=where,
            why="chains run on warpgroup instructions that take their left operand from registers, "
            "of f16 and bf16, from sm_90a on; other targets have none, or none of this type",
            nearest='Use arch="sm_90a" and f16 or bf16, or make two functions',
        )
    return atoms[0]


def _fitting(
    found: ChainMatch,
    atom: Atom,
    device: Device,
    skip: frozenset[str],
    sizes: Mapping[str, int],
) -> Decided:
    """The first schedule of the data that fits the chain and the device, or the fastest of those
    that were timed beside it; with the parts that the cost model finds worth it.
    """
    problem = _problem(found, sizes)
    fitting = _all_fitting(found, atom, device, skip, sizes)
    first = next(fitting)
    entry, schedule, shape = first
    origin = "shipped: the first tile that fits"
    if problem is not None and "step" in entry:

        def took(one: tuple[Mapping[str, Any], Schedule, ChainShape]) -> float:
            return timed(device, one[1], problem, one[0]["begin"], one[0]["step"])

        alike = (one for one in fitting if one[0]["columns_most"] == entry["columns_most"])
        beside = [first, *(one for one in alike if "step" in one[0])]
        _, schedule, shape = min(beside, key=took)
        if len(beside) > 1:
            origin = f"shipped: the fastest of {len(beside)} tiles that were timed"
    part = 0 if problem is None else parts_worth_it(device, schedule, problem)
    if not part:
        return Decided(atom, schedule, shape, origin)
    tile, raster = replace(schedule.tile, part=part), replace(schedule.raster, order=MATRIX)
    name = f"{_tile_of(schedule.name)}{_PARTS}{part}"
    schedule = replace(schedule, name=name, tile=tile, raster=raster)
    origin = f"{origin}, keys in parts of {part} by the cost model"
    return Decided(atom, schedule, _shape(found, atom, schedule), origin)


def _all_fitting(
    found: ChainMatch,
    atom: Atom,
    device: Device,
    skip: frozenset[str],
    sizes: Mapping[str, int],
) -> Iterator[tuple[Mapping[str, Any], Schedule, ChainShape]]:
    """Entries of the data with their schedules, those that fit the chain and the device; one at
    least.

    Raises:
        PolygenError: none does.
    """
    columns, rows = -(-found.columns // atom.k) * atom.k, atom.m
    tiles = take(read(_FILE), "tiles", _FILE)
    most = max(one["columns_most"] for one in tiles)
    if columns > most:
        raise UnsupportedProgram(
            f"a chain with {found.columns} columns",
            where=found.chain.values.name,
            why=f"a consumer holds the sums of all columns of its rows, at most {most}",
            nearest=f"Multiply by parts of v, of {most} columns",
        )
    last = ResourceError(
        f"schedules {', '.join(sorted(skip))} spill",
        where=found.chain.values.name,
        nearest="Compute less at every score, or pass it as an array",
    )
    fits = False
    for one in tiles:
        ranges = one.get("ranges", found.chain.range is not None)
        if extent(found.values.m, sizes) > one.get("rows_most", math.inf):
            continue
        if columns > one["columns_most"] or ranges != (found.chain.range is not None):
            continue
        consumers, turns = one["consumers"], one["turns"]
        keys = keys_beside_pages(found, atom, one["keys"])
        registers = registers_beside_pages(found, one["registers"], consumers, device)
        name = f"chain_{consumers * rows}x{columns}x{keys}_r{one['rows']}{'_t' * turns}"
        order = _order(found, one.get("order", MATRIX))
        name += f"_{order}" if order != MATRIX else ""
        schedule = Schedule(
            name=name,
            device=device.name,
            tile=Tile(CtaTile(consumers * rows, columns, keys), WarpTile(rows, columns)),
            pipeline=Pipeline(stages=_STAGES, in_flight=1),
            roles=Roles("pingpong" if turns else "cooperative", *registers),
            raster=Raster("m", 1, order=order),
            epilogue=Epilogue("registers", prefetch=one["rows"]),
            min_blocks=one.get("blocks", 1),
        )
        if _tile_of(name) in map(_tile_of, skip):
            continue
        shape = _shape(found, atom, schedule)
        try:
            _check(found, shape, atom, schedule, device)
        except ResourceError as reason:
            last = reason
            continue
        fits = True
        yield one, schedule, shape
    if not fits:
        raise last


def _tile_of(name: str) -> str:
    """A schedule's name without the order of rows and the keys of a part."""
    for ending in (f"_{LONGEST}", f"_{PAIRS}", _PARTS):
        name = name.split(ending)[0]
    return name


def _order(found: ChainMatch, wanted: str) -> str:
    """The order of tiles of rows, where they have ranges of keys; see `_shape` for what is not."""
    inside = found.chain.range
    if inside is None:
        return MATRIX
    return LONGEST if wanted == PAIRS and inside.arrays else wanted


def extent(dim: Dim, sizes: Mapping[str, int]) -> float:
    """A size, or infinity where it is not known."""
    known = all(name in sizes for name in named_in(dim))
    return float(size_value(dim, sizes)) if known else math.inf


def _problem(found: ChainMatch, sizes: Mapping[str, int]) -> ChainProblem | None:
    """What the cost model looks at; None where a size is not known."""
    values = found.values
    own = values.operand(VALUES).dims
    rows, keys = extent(values.m, sizes), extent(values.depths[0], sizes)
    matrices = math.prod(extent(n, sizes) for _, n in values.batches)
    shared = math.prod(extent(n, sizes) for dim, n in values.batches if dim not in own)
    if math.inf in (rows, keys, matrices):
        return None
    inside = found.chain.range
    lower, upper = (None, None) if inside is None else (inside.lower, inside.upper)
    if upper is not None:  # what lies beyond is never visited
        keys = max(1, min(keys, rows + upper) - max(0, lower or 0))
    item = values.operand(VALUES).tensor.dtype.bytes
    return ChainProblem(
        int(rows), int(keys), int(matrices), found.depth, found.columns, item, int(shared),
        lower, upper,
    )  # fmt: skip


def predicted_time(program: Program, device: Device, sizes: Mapping[str, int]) -> float:
    """Predicted microseconds of a chain's kernel, under the schedule that is chosen for it.

    Args:
        program: a chain, of `with_numbers`.
        device: the target.
        sizes: of all its dims.

    Raises:
        PolygenError: no kernel can be made of the program.
    """
    decided = decide_chain(program, device, "auto", sizes=sizes)
    problem = _problem(matched(program), sizes)
    assert problem is not None
    return chain_time(device, decided.schedule, problem)


def _shape(found: ChainMatch, atom: Atom, schedule: Schedule) -> ChainShape:
    """The tile program's shape.

    Raises:
        ScheduleError: the tiles are none of a chain.
    """
    cta, warp = schedule.tile.cta, schedule.tile.warp
    fitting = keys_beside_pages(found, atom, cta.k)
    wanted = {
        "tile.warp.n": (warp.n == cta.n, f"tile.cta.n = {cta.n}"),
        "tile.cta.n": (
            found.columns <= cta.n <= atom.n_most and cta.n % atom.k == 0,
            f"a multiple of {atom.k} from {found.columns} to {atom.n_most}",
        ),
        "tile.warp.m": (warp.m % atom.m == 0, f"a multiple of {atom.m}"),
        "tile.cta.m": (cta.m % warp.m == 0, f"a multiple of tile.warp.m = {warp.m}"),
        "tile.cta.k": (
            cta.k % atom.k == 0 and cta.k <= atom.n_most,
            f"keys, a multiple of {atom.k} up to {atom.n_most}",
        ),
        "tile.cta.k beside pages": (
            cta.k == fitting,
            f"tile.cta.k = {fitting}: whole pages, or a part of one",
        ),
        "tile.part": (
            schedule.tile.part % cta.k == 0,
            f"keys of a part, a multiple of tile.cta.k = {cta.k}, or 0",
        ),
        "tile.pixels": (not schedule.tile.pixels, "rows along one axis: leave it out"),
        "tile.joined": (not schedule.tile.joined, "false"),
        "pipeline.in_flight": (schedule.pipeline.in_flight == 1, "1"),
        "roles.form": (schedule.specialised, '"cooperative" or "pingpong"'),
        "epilogue.through": (schedule.epilogue.through == "registers", '"registers"'),
        "cluster": (schedule.cluster.blocks == 1, "clusters of 1"),
        "raster.order": (
            schedule.raster.order == MATRIX or found.chain.range is not None,
            f'"{MATRIX}": rows without ranges of keys have all as many',
        ),
        "raster.order beside parts": (
            schedule.raster.order != PAIRS or not schedule.tile.part,
            f'"{LONGEST}", or tile.part = 0: a persistent block visits all keys of its rows',
        ),
        "raster.group beside parts": (
            schedule.raster.group == 1 or not schedule.tile.part,
            "raster.group = 1: a tile of rows is beside its own parts",
        ),
        "raster.order beside bounds": (
            schedule.raster.order != PAIRS or not (found.chain.range and found.chain.range.arrays),
            f'"{LONGEST}": what arrays hold of bounds is found once, for one tile of rows',
        ),
    }
    for field in idle(schedule, chain=True):
        wanted[field] = False, "the default: it decides nothing there"
    for field, (fits, nearest) in wanted.items():
        if not fits:
            raise ScheduleError(
                f"{field} does not fit a chain of products",
                where=f"schedule {schedule.name}",
                why="a tile has all columns of its rows, and k counts keys",
                nearest=f"Use {nearest}",
            )
    depth = -(-found.depth // atom.k) * atom.k
    chain_of = found.chain
    alone = chain_of.range is not None or schedule.tile.part > 0
    varying = schedule.raster.order == PAIRS
    return ChainShape(
        tiling(schedule, atom), depth, schedule.pipeline.stages,
        bool(chain_of.reference), bool(chain_of.states), schedule.roles.form == "pingpong",
        1 if alone and not varying else schedule.epilogue.prefetch,
        tuple(found.paged), varying,
    )  # fmt: skip


def _check(
    found: ChainMatch, shape: ChainShape, atom: Atom, schedule: Schedule, device: Device
) -> None:
    made = layouts(found, shape, atom, f"schedule {schedule.name}")
    least = needed(chain_memory(found, shape, made))
    chain_resources(found, shape, schedule, device, least)
