"""Groups of tiles no wider than matrices, of many matrices: empty places are blocks too."""

from __future__ import annotations

from dataclasses import replace

from polygen.schedule.problem import Fitted, Problem

_FEW = 64  # matrices whose empty blocks are not worth another kernel


def in_narrow_groups(fitted: Fitted, problem: Problem) -> Fitted:
    """A schedule of a block for each tile, in groups that a matrix fills; any other as it is.

    Tiles are taken in the same order. Groups stay powers of two, so that few kernels differ.
    """
    schedule, raster = fitted.schedule, fitted.schedule.raster
    if schedule.specialised or problem.batches < _FEW:
        return fitted
    extent, tile = (
        (problem.m, schedule.tile.cta.m)
        if raster.along == "m"
        else (problem.n, schedule.tile.cta.n)
    )
    filled = 1 << (-(-extent // tile) - 1).bit_length()
    if filled >= raster.group:
        return fitted
    return replace(fitted, schedule=replace(schedule, raster=replace(raster, group=filled)))
