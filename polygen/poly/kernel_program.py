"""`Schedule` x `Tiling` -> `TileProgram`: the statements of a kernel, without synchronisation.

A kernel has a main loop and an epilogue. In the main loop tiles of the operands move into rings and
products are added to sums; in the epilogue sums become results. Who does what, and by which unit,
is what schedules differ in: `by_warps`, `by_roles`, `by_lanes` and
`by_elements` write it down; of two products in one loop `by_chain` and `chain_by_warps`.

`i` counts the output tiles of a persistent block, `k` the k tiles, `s` the instructions along k,
`m` and `n` those of a warp tile, `p` the panels of an epilogue or the parts of a copy.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.poly.by_chain import by_chain
from polygen.poly.by_elements import by_elements
from polygen.poly.by_lanes import by_lanes
from polygen.poly.by_roles import by_roles
from polygen.poly.by_warps import by_warps
from polygen.poly.chain_by_warps import chain_by_warps
from polygen.poly.chain_shape import ChainShape
from polygen.poly.kernel_parts import Epilogue, MainLoop
from polygen.poly.tile_program import TileProgram
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule


def kernel_program(
    tiles: Tiling,
    schedule: Schedule,
    epilogue: Epilogue,
    main: MainLoop,
    *,
    asynchronous: bool,
) -> TileProgram:
    """Write down the statements of a kernel.

    Args:
        tiles: the tile hierarchy.
        schedule: stages, places, loop orders, epilogue.
        epilogue: what it moves.
        main: what is multiplied.
        asynchronous: whether copies by warps run in the background until waited for.
    """
    if schedule.of_elements:
        program = by_elements(tiles, main)
    elif schedule.by_lanes:
        program = by_lanes(tiles, schedule, main)
    elif schedule.specialised:
        program = by_roles(tiles, schedule, epilogue, main)
    else:
        program = by_warps(tiles, schedule, epilogue, main, asynchronous=asynchronous)
    return replace(program, dependent=schedule.launch.dependent)


def chain_program(shape: ChainShape) -> TileProgram:
    """Write down the statements of a chain's kernel.

    Args:
        shape: what it is made of.
    """
    return by_chain(shape) if shape.pipeline is None else chain_by_warps(shape, shape.pipeline)
