"""Entries of the chains' data as schedules: `polygen/hardware/data/chains.toml`.

A name says which tile it is; behind it come how results leave, in which order blocks take tiles of
rows, and the keys of a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.lower.legal_chain import PANELS, padded
from polygen.lower.legal_pages import keys_beside_pages, registers_beside_pages
from polygen.poly.chain_match import ChainMatch
from polygen.schedule.model import (
    IN_TILE,
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

PARTS = "_p"  # in a schedule's name, before the keys of a part
_STAGES = 2


def for_roles(
    found: ChainMatch, atom: Atom, device: Device, columns: int, one: Mapping[str, Any]
) -> Schedule:
    """The schedule of an entry with consumers."""
    consumers, turns, rows = one["consumers"], one["turns"], atom.m
    keys = keys_beside_pages(found, atom, one["keys"])
    if found.whole:  # elements of a layer have places of their own in registers
        keys = padded(found.width, atom)
    registers = registers_beside_pages(found, one["registers"], consumers, device)
    name = f"chain_{consumers * rows}x{columns}x{keys}_r{one['rows']}{'_t' * turns}"
    order = order_of(found, one.get("order", MATRIX))
    through, panel = one.get("through", "registers"), one.get("panel", 0)
    panel = 0 if panel and columns % panel else panel
    name += f"_{through}" if through == PANELS else ""
    name += f"_{order}" if order != MATRIX else ""
    return Schedule(
        name=name,
        device=device.name,
        tile=Tile(CtaTile(consumers * rows, columns, keys), WarpTile(rows, columns)),
        pipeline=Pipeline(stages=_STAGES, in_flight=1),
        roles=Roles("pingpong" if turns else "cooperative", *registers),
        raster=Raster("m", 1, order=order),
        epilogue=Epilogue(through, prefetch=one["rows"], columns=panel),
        min_blocks=one.get("blocks", 1),
    )


def for_warps(
    found: ChainMatch, atom: Atom, device: Device, columns: int, one: Mapping[str, Any]
) -> Schedule:
    """The schedule of an entry whose warps do everything."""
    warps, rows, keys = one["warps"], one["rows"], one["keys"]
    if found.whole:  # elements of a layer have places of their own in registers
        keys = padded(found.width, atom)
    order = order_of(found, one.get("order", MATRIX))
    blocks, fragments = one.get("blocks", 1), one["fragments"]
    name = f"chain_{warps * rows}x{columns}x{keys}_w{warps}x{rows}_f{fragments}_b{blocks}"
    name += f"_{order}" if order != MATRIX else ""
    return Schedule(
        name=name,
        device=device.name,
        tile=Tile(CtaTile(warps * rows, columns, keys), WarpTile(rows, columns)),
        pipeline=Pipeline(
            stages=_STAGES, distance=1, order=("copy", "mma"),
            fragments=fragments, lookahead=fragments - 1,
        ),
        raster=Raster("m", 1, order=order),
        epilogue=Epilogue("registers"),
        min_blocks=blocks,
    )  # fmt: skip


def covering(schedule: Schedule) -> Schedule:
    """The schedule, with rows that use results of their own in its tiles."""
    epilogue = replace(schedule.epilogue, rows=IN_TILE)
    return replace(schedule, name=f"{schedule.name}_rows", epilogue=epilogue)


def from_registers(schedule: Schedule) -> Schedule:
    """The schedule, with results that leave the registers for memory."""
    epilogue = replace(schedule.epilogue, through="registers", columns=0)
    name = schedule.name.replace(f"_{PANELS}", "")
    return replace(schedule, name=name, epilogue=epilogue)


def tile_of(name: str) -> str:
    """A schedule's name without the order of rows and the keys of a part."""
    for ending in (f"_{LONGEST}", f"_{PAIRS}", PARTS):
        name = name.split(ending)[0]
    return name


def order_of(found: ChainMatch, wanted: str) -> str:
    """The order of tiles of rows, where they have ranges of keys, as far as these allow."""
    inside = found.chain.range
    if inside is None:
        return MATRIX
    return LONGEST if wanted == PAIRS and inside.arrays else wanted
