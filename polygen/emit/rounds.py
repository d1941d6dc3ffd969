"""Rounds of matrices in C, where there may be more than a grid has along z."""

from __future__ import annotations

from polygen.emit.leaves import size_name
from polygen.lower.launch import Launch
from polygen.poly.raster import round_matrix


def matrix_rounds(launch: Launch) -> list[str]:
    """The matrix of a block, and its place among those of the matrix; none where one round has all.

    Of one round there is nothing to divide.
    """
    if not launch.layers:
        return []
    tile, count = launch.tile_across, " * ".join(map(size_name, launch.batches))
    wide = f"({size_name(launch.across)} + {tile - 1}) / {tile} * {launch.group}"
    return [
        f"// Matrices lie along z, {launch.layers} in a round, and rounds along x.",
        f"const int wide = {wide}, beside = gridDim.x > wide ? blockIdx.x / wide : 0;",
        "const int place = blockIdx.x - beside * wide;",
        f"const int matrix = {round_matrix(launch.layers, 'beside', 'blockIdx.z')};",
        f"if (matrix >= {count}) return;",
    ]
