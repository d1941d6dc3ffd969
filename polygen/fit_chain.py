"""Whether and how schedules fit chains of products: the decisions, and the passes in their order.

1. A block's tile has 64 rows for each consumer and all columns; it takes as many keys at a time as
   registers and shared memory hold. A schedule that is given says so by its tile: m rows, n
   columns, k keys. Without instructions of warpgroups, and where operands have rows that the copy
   engine cannot bring, every warp has 16 rows or more of the tile.
2. Tiles, proofs and plan are made as for any kernel.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polygen.chained import matched
from polygen.errors import ResourceError, UnsupportedProgram
from polygen.frontend.indices import named_in, size_value
from polygen.frontend.program import (
    Dim,
    Program,
)  # fmt: skip
from polygen.hardware.atom import Atom, atoms_for, products_of
from polygen.hardware.data_file import read, take
from polygen.hardware.device import Device
from polygen.lower.chain import lower_chain
from polygen.lower.chain_entries import (
    PARTS,
    covering,
    for_roles,
    for_warps,
    from_registers,
    tile_of,
)
from polygen.lower.legal_chain import chain_shape, check_chain, leaves_in_panels, streamed
from polygen.lower.legal_folds import check_folded
from polygen.lower.plan import KernelPlan
from polygen.poly.chain_map import map_chain
from polygen.poly.chain_match import VALUES, ChainMatch, require_numbers
from polygen.poly.chain_operands import in_rows_alone, require_boxes, require_rows
from polygen.poly.chain_shape import ChainShape
from polygen.poly.derive_syncs import Synchronised
from polygen.poly.mapping import ScheduleTree
from polygen.poly.scop import Scop
from polygen.poly.tile_program import TileProgram
from polygen.schedule.load import load_schedule
from polygen.schedule.model import BEHIND_LOADS, MATRIX, Schedule
from polygen.tune.cost.chains import ChainProblem, chain_time, parts_worth_it, timed

_FILE = "chains.toml"
_WITH_ROLES = ("wgmma", "tma")
_KINDS_BY_WARPS: tuple[str, ...] = ("f16", "bf16", "tf32", "f32")
_HALVES = ("f16", "bf16")  # types of the operands, where entries do not say
_HELD = (1, 2)  # elements of a register of the left operand

_KINDS = {"warpgroup": "tiles", "warp": "warps"}  # tables of the data


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
    check_folded(found.after)
    if isinstance(schedule, Schedule):
        given, origin = schedule, f"given: {schedule.name}"
    elif schedule != "auto":
        given, origin = load_schedule(Path(schedule)), f"file {schedule}"
    else:
        atom = _instruction(found, device, roles=with_roles(program, device))
        require_numbers(found)  # behind the target: no number makes up for that
        if found.split.passes is not None:
            with contextlib.suppress(ResourceError):  # then rows are left to a launch
                return _letting(_fitting(found, atom, device, skip, sizes or {}), program)
            found = matched(program, behind=True)
        return _letting(_fitting(found, atom, device, skip, sizes or {}), program)
    found = matched(program, behind=not given.covers_rows)
    atom = _instruction(found, device, roles=given.specialised)
    require_numbers(found)
    shape = chain_shape(found, atom, given, device)
    if shape.layers:
        try:
            check_chain(found, shape, atom, given, device)
        except ResourceError:
            shape = streamed(found, shape)
    check_chain(found, shape, atom, given, device)
    return Decided(atom, given, shape, origin)


def _letting(found: Decided, program: Program) -> Decided:
    """The same; what comes behind it in order, or combines its parts, begins behind its loads."""
    schedule = found.schedule
    if not schedule.specialised or (program.in_order is None and not schedule.tile.part):
        return found
    launch = replace(schedule.launch, trigger=BEHIND_LOADS)
    return replace(found, schedule=replace(schedule, launch=launch))


def with_roles(program: Program, device: Device) -> bool:
    """Whether the schedules that are chosen for a chain have roles.

    Args:
        program: a chain.
        device: the target.
    """
    found = matched(program)
    alone = found.by_warps or in_rows_alone(found)
    return (
        all(map(device.has, _WITH_ROLES)) and not alone and bool(_atoms(found, device, roles=True))
    )


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
    found = matched(program, behind=not decided.schedule.covers_rows)
    kind = decided.atom.name
    model, tree = map_chain(found, decided.shape, kind, derived)
    plan = lower_chain(program, found, tree, decided.shape, decided.schedule, decided.atom, device)
    return model, tree, plan


def _instruction(found: ChainMatch, device: Device, *, roles: bool) -> Atom:
    """The device's instruction that multiplies the operands' type: of a warpgroup, or of a warp.

    Raises:
        UnsupportedProgram: it has none, or nothing brings the operands to it.
    """
    types = _types(found)
    where = found.chain.values.name
    if len(types) > 1:
        raise UnsupportedProgram(
            f"operands of types {', '.join(sorted(types))}",
            where=where,
            why="both products of a chain are made by one instruction",
            nearest=f"Pass all of them as one type, {_listed(_KINDS_BY_WARPS, 'or')}, or make two "
            "functions",
        )
    (name,), atoms = types, _atoms(found, device, roles=roles)
    if not atoms or not device.has("cp_async"):
        what, since, arch = "warps", "sm_80", '"sm_80" or a later one'
        kinds = _KINDS_BY_WARPS
        if roles:
            what, since, arch = "warpgroups, with roles,", "sm_90a", '"sm_90a"'
            kinds = kinds[:2]
        way = "Use" if device.has("cp_async") and not roles else f"Use arch={arch} and"
        raise UnsupportedProgram(
            f"a chain of products of {name} on {device}",
            where=where,
            why=f"chains run on instructions of {what} that take their left operand from "
            f"registers, of {_listed(kinds, 'and')}, and beside copies in the background: from "
            f"{since} on",
            nearest=f"{way} {_listed(kinds, 'or')}, or make two functions"
            + ", or leave out roles" * roles,
        )
    if roles:
        require_boxes(found)
    else:
        require_rows(found)
    return atoms[0]


def _listed(names: Sequence[str], word: str) -> str:
    return f"{', '.join(names[:-1])} {word} {names[-1]}"


def _types(found: ChainMatch) -> set[str]:
    """The types of the operands."""
    return {operand.tensor.dtype.name for _, operand in found.operands}


def _atoms(found: ChainMatch, device: Device, *, roles: bool) -> list[Atom]:
    """The instructions that multiply the operands' types, and whose left operand is sums of them:
    of elements of 16 bits and more, whole ones in a register.

    Those of warpgroups read the right operand of the second product with its columns innermost.
    """
    scope = "warpgroup" if roles else "warp"
    names = min(_types(found)), max(_types(found))
    atoms = [a for a in atoms_for(device, *names, "f32") if a.scope == scope]
    return [
        a for a in atoms if a.a.elements_per_register in _HELD and (not roles or "mn" in a.majors)
    ]


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
    try:
        first = next(fitting)
    except ResourceError:
        if not found.layers:
            raise
        fitting = _all_fitting(found, atom, device, skip, sizes, streams=True)
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
    elif problem is not None and not schedule.specialised:

        def takes(one: tuple[Mapping[str, Any], Schedule, ChainShape]) -> float:
            return chain_time(device, one[1], problem)

        _, schedule, shape = min(beside := [first, *fitting], key=takes)
        origin = f"shipped: the fastest of {len(beside)} tiles by the cost model"
    whole = found.folds or found.again or found.behind or found.returned_by_layers
    part = 0 if problem is None or whole else parts_worth_it(device, schedule, problem)
    if not part:
        return Decided(atom, schedule, shape, origin)
    schedule = from_registers(schedule)
    tile, raster = replace(schedule.tile, part=part), replace(schedule.raster, order=MATRIX)
    name = f"{tile_of(schedule.name)}{PARTS}{part}"
    schedule = replace(schedule, name=name, tile=tile, raster=raster)
    origin = f"{origin}, keys in parts of {part} by the cost model"
    own = chain_shape(found, atom, schedule, device)
    own = replace(own, layers=shape.layers, layer_slots=shape.layer_slots)
    return Decided(atom, schedule, own, origin)


def _all_fitting(
    found: ChainMatch,
    atom: Atom,
    device: Device,
    skip: frozenset[str],
    sizes: Mapping[str, int],
    *,
    streams: bool = False,
) -> Iterator[tuple[Mapping[str, Any], Schedule, ChainShape]]:
    """Entries of the data with their schedules, those that fit the chain and the device; one at
    least.

    Args:
        found: the chain.
        atom: its instruction.
        device: the target.
        skip: names of schedules that spill.
        sizes: as far as they are known.
        streams: whether right operands of layers share rings.

    Raises:
        PolygenError: none does.
    """
    columns, kind = -(-found.columns // atom.k) * atom.k, _KINDS[atom.scope]
    own = _types(found)
    tiles = [one for one in take(read(_FILE), kind, _FILE) if own <= {*one.get("types", _HALVES)}]
    most = max(one["columns_most"] for one in tiles)
    if columns > most:
        raise UnsupportedProgram(
            f"a chain with {found.columns} columns",
            where=found.chain.values.name,
            why=f"whoever multiplies holds the sums of all columns of its rows, at most {most}",
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
        make = for_roles if atom.scope == "warpgroup" else for_warps
        schedule, skipped = make(found, atom, device, columns, one), set(map(tile_of, skip))
        if found.split.passes is not None:
            schedule = covering(schedule)
        if not leaves_in_panels(found, schedule) or tile_of(schedule.name) in skipped:
            schedule = from_registers(schedule)
        if tile_of(from_registers(schedule).name) in skipped:
            continue
        shape = chain_shape(found, atom, schedule, device)
        shape = streamed(found, shape) if streams else shape
        try:
            check_chain(found, shape, atom, schedule, device)
        except ResourceError as reason:
            last = reason
            continue
        fits = True
        yield one, schedule, shape
    if not fits:
        raise last


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
    kind = values.operand(VALUES).tensor.dtype
    return ChainProblem(
        int(rows), int(keys), int(matrices), found.depth, found.columns, found.item, int(shared),
        lower, upper, tuple((one.depth, one.columns * len(one.sums)) for one in found.layers),
        len(found.sums), products_of(kind, kind),
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
    problem = problem_of(program, sizes)
    assert problem is not None
    return chain_time(device, decided.schedule, problem)


def problem_of(program: Program, sizes: Mapping[str, int]) -> ChainProblem | None:
    """What the cost model looks at of a chain; None where a size is not known.

    Args:
        program: a chain, of `with_numbers`.
        sizes: of its dims.

    Raises:
        UnsupportedProgram: no loop over keys runs it.
    """
    return _problem(matched(program), sizes)
