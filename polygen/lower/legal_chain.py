"""Whether a schedule fits a chain of products: its fields, and what it takes of the device.

A tile has all columns of its rows, and k counts keys. Results leave the registers for memory, or in
panels, where a tensor map describes every matrix of them.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.errors import ScheduleError
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.lower.chain_memory import chain_memory, chain_resources, layouts
from polygen.lower.legal_pages import keys_beside_pages
from polygen.lower.memory import needed
from polygen.lower.registers import fold_registers
from polygen.lower.ring_tiles import ring_extents
from polygen.poly.chain_layers import LayerShape
from polygen.poly.chain_match import ChainMatch
from polygen.poly.chain_operands import in_background
from polygen.poly.chain_shape import NO_PANELS, ChainShape
from polygen.poly.layer_match import LayerMatch
from polygen.poly.results import panels
from polygen.poly.tiling import tiling
from polygen.schedule.idle import idle
from polygen.schedule.model import LONGEST, MATRIX, PAIRS, Loops, Schedule

REGISTERS, PANELS = "registers", "tma"  # how results leave
_LAYER_SLOTS = 2  # of a ring that layers share: one is multiplied while the next one comes
_MOST = 256  # columns, or keys of a tile, where no instruction bounds them


def leaves_in_panels(found: ChainMatch, schedule: Schedule) -> bool:
    """Whether results leave as the schedule says, where it says in panels."""
    if schedule.epilogue.through != PANELS or found.after.matrices or found.folds or found.behind:
        return False
    try:
        panels(schedule, found.in_panels)
    except ScheduleError:
        return False
    return True


def chain_shape(found: ChainMatch, atom: Atom, schedule: Schedule, device: Device) -> ChainShape:
    """The tile program's shape.

    Args:
        found: the chain.
        atom: its instruction.
        schedule: with roles if that is a warpgroup's.
        device: the target.

    Raises:
        ScheduleError: the tiles are none of a chain.
    """
    cta, warp, roles = schedule.tile.cta, schedule.tile.warp, schedule.specialised
    fitting = keys_beside_pages(found, atom, cta.k) if roles else cta.k
    most = atom.n_most if roles else _MOST
    whole = padded(found.width, atom) if found.whole else cta.k
    beside = padded(found.columns, atom) if found.behind else cta.n
    again = found.again or found.behind
    wanted = {
        "tile.warp.n": (warp.n == cta.n, f"tile.cta.n = {cta.n}"),
        "tile.cta.n": (
            found.columns <= cta.n <= most and cta.n % atom.k == 0,
            f"a multiple of {atom.k} from {found.columns} to {most}",
        ),
        "tile.warp.m": (warp.m % atom.m == 0, f"a multiple of {atom.m}"),
        "tile.cta.m": (cta.m % warp.m == 0, f"a multiple of tile.warp.m = {warp.m}"),
        "tile.cta.k": (
            cta.k % atom.k == 0 and cta.k <= most,
            f"keys, a multiple of {atom.k} up to {most}",
        ),
        "tile.cta.k beside pages": (
            cta.k == fitting,
            f"tile.cta.k = {fitting}: whole pages, or a part of one",
        ),
        "tile.cta.k beside layers that are read again": (
            cta.k == whole,
            f"tile.cta.k = {whole}: all columns of a layer, which stays in registers",
        ),
        "tile.cta.n beside layers that are read again": (
            cta.n == beside,
            f"tile.cta.n = {beside}: the columns of a layer, which are those of results",
        ),
        "tile.part beside layers that are read again": (
            not again or not schedule.tile.part,
            "tile.part = 0",
        ),
        "tile.part beside layers that are returned": (
            not found.returned_by_layers or not schedule.tile.part,
            "tile.part = 0: every part goes through the layers again, and would store them again",
        ),
        "tile.part": (
            schedule.tile.part % cta.k == 0,
            f"keys of a part, a multiple of tile.cta.k = {cta.k}, or 0",
        ),
        "tile.pixels": (not schedule.tile.pixels, "rows along one axis: leave it out"),
        "tile.joined": (not schedule.tile.joined, "false"),
        "pipeline.in_flight": (schedule.pipeline.in_flight == 1, "1"),
        "pipeline.copies": (schedule.pipeline.copies == "whole", '"whole"'),
        "loops": (roles or schedule.loops == Loops(), "the usual ones: leave them out"),
        "epilogue.through": (
            schedule.epilogue.through in (ways := (REGISTERS, PANELS) if roles else (REGISTERS,)),
            " or ".join(f'"{way}"' for way in ways),
        ),
        "epilogue.through beside parts": (
            schedule.epilogue.through != PANELS or not schedule.tile.part,
            '"registers": parts of the keys lie in the workspace',
        ),
        "tile.part beside folds": (
            not schedule.tile.part or not found.folds,
            "tile.part = 0: results whose keys are in parts are known in the launch that follows, "
            "which folds none of them",
        ),
        "epilogue.rows": (
            not schedule.covers_rows or found.split.passes is not None,
            '"after": no results of rows are used by their own elements alone',
        ),
        "epilogue.through beside folds": (
            schedule.epilogue.through != PANELS or not found.folds,
            '"registers": parts of folds are made of terms in registers',
        ),
        "epilogue.through beside layers that are read again": (
            schedule.epilogue.through != PANELS or not found.behind,
            '"registers": what a layer makes is there',
        ),
        "epilogue.through beside matrices": (
            schedule.epilogue.through != PANELS or not found.after.matrices,
            '"registers": nothing brings matrices that results are made with',
        ),
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
    if not roles:
        wanted |= {
            "raster.order without roles": (
                schedule.raster.order != PAIRS,
                f'"{LONGEST}": a block has one tile of rows',
            ),
        }
    if found.by_warps:
        wanted["roles.form beside layers"] = (
            not roles,
            'roles.form = "none": rows that layers make, and sums of several products of the same '
            "rows, stay with the warps that make them",
        )
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
    depth = padded(found.depth, atom)
    chain_of = found.chain
    alone = chain_of.range is not None or schedule.tile.part > 0
    varying = schedule.raster.order == PAIRS
    return ChainShape(
        tiling(schedule, atom), depth, schedule.pipeline.stages,
        bool(chain_of.reference), bool(chain_of.states), schedule.in_turns,
        1 if (alone and not varying) or not roles else schedule.epilogue.prefetch,
        tuple(found.paged), varying, None if roles else schedule.pipeline,
        in_background(found, device), panels(schedule, found.in_panels, REGISTERS) or NO_PANELS,
        schedule.epilogue.slots, tuple(_layer(one, atom) for one in found.layers),
        len(found.sums), folds=bool(found.after.folds),
        passes=tuple(bool(one.holds) for one in found.after.before),
        again=tuple(layer for _, layer in found.again),
        behind=tuple(dict.fromkeys(layer for _, layer in found.behind)),
    )  # fmt: skip


def streamed(found: ChainMatch, shape: ChainShape) -> ChainShape:
    """The shape with right operands of layers that share rings, where there are several of a form.

    Args:
        found: the chain.
        shape: with a ring for each.
    """
    forms: dict[tuple[object, ...], list[str]] = {}
    every = dict(right for one in found.layers for right in one.rights)
    for name, operand in every.items():
        size, where = ring_extents(found, name, shape.tiles), operand.alignment
        forms.setdefault((size, operand.k_contiguous, where), []).append(name)
    slots = max(_LAYER_SLOTS, *(one.products for one in shape.layers))
    rings = {
        name: (names[0], number)
        for names in forms.values()
        for number, name in enumerate(names)
        if len(names) > slots
    }
    layers = tuple(
        replace(one, shared=tuple(rings.get(right, (right, -1)) for right in one.rights))
        for one in shape.layers
    )
    return replace(shape, layers=layers, layer_slots=slots) if rings else shape


def _layer(one: LayerMatch, atom: Atom) -> LayerShape:
    depth, columns = padded(one.depth, atom), padded(one.columns, atom)
    again = tuple(layer for _, layer in one.again)
    return LayerShape(one.name, depth // atom.k, columns, len(one.sums), again=again)


def padded(count: int, atom: Atom) -> int:
    """Elements as tiles have them: whole instructions."""
    return -(-count // atom.k) * atom.k


def check_chain(
    found: ChainMatch, shape: ChainShape, atom: Atom, schedule: Schedule, device: Device
) -> None:
    """Refuse what the device has no room for.

    Args:
        found: the chain.
        shape: its tiles.
        atom: its instruction.
        schedule: that has them.
        device: the target.

    Raises:
        ResourceError: with the figure, the limit and what to reduce.
        ScheduleError: a tile has no layout.
    """
    made = layouts(found, shape, atom, schedule)
    least = needed(chain_memory(found, shape, made))
    folded = fold_registers(found.after, shape.tiles, atom)
    chain_resources(shape, atom, schedule, device, least, folded, found.before)
