"""Whether a long sum is to be split among more blocks than a result has tiles.

A product of two columns of a million rows has one tile, which one block sums, or the few of a
cluster; its operands come as fast as these ask for them. As parts, each with a tile of its own, it
takes every multiprocessor, and one more launch. The number of terms is a constant of such kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from polygen.chained import numbered
from polygen.decision import predicted
from polygen.frontend.indices import size_value
from polygen.frontend.program import Program
from polygen.hardware.cost_parameters import cost_parameters
from polygen.hardware.device import Device
from polygen.pipeline import with_sizes
from polygen.rewrite.split_sums import with_split_sum

_LEAST = 8192  # terms of a sum that is looked at
_TILE = 64  # rows and columns of a tile
_FEWEST_TERMS, _FEWEST_PARTS = 256, 8  # of a part; of a sum
_LONGER = 2.0  # times as long as what is predicted of parts, before they are made
_LAUNCHES = 15.0  # microseconds of the kernels' launches and of the parts' sum
_WAVES = 2  # tiles of parts for every multiprocessor


@dataclass(frozen=True, slots=True)
class SplitSum:
    """A program whose sum is in parts.

    Attributes:
        whole: the program, with the number of terms as a constant.
        parts: the same in parts.
        fold: which of its folds adds them up.
    """

    whole: Program
    parts: Program
    fold: str


def split_sum(program: Program, sizes: Mapping[str, int], device: Device) -> SplitSum | None:
    """The program in parts; None where it is faster as it is.

    Args:
        program: any.
        sizes: of its symbolic dims; where one is not known nothing is split.
        device: the target.
    """
    if len(program.contractions) != 1 or any(dim not in sizes for dim in program.sizes):
        return None
    (product,) = program.contractions
    extents = {name: size_value(extent, sizes) for name, extent in product.domain}
    length = math.prod(extents[name] for name in product.summed)
    if len(product.summed) != 1 or length < _LEAST:
        return None
    *batches, m, n = (1, 1, *(extents[name] for name in product.write.iterators))
    tiles = math.prod(batches) * -(-m // _TILE) * -(-n // _TILE)
    parts = min(_WAVES * device.multiprocessors // tiles, length // _FEWEST_TERMS)
    if parts < _FEWEST_PARTS:
        return None
    name = dict(product.domain)[product.summed[0]]
    known = {name: sizes[name] for name in program.sizes}
    p = cost_parameters(device)
    moved = sum(
        tensor.dtype.bytes * math.prod(size_value(dim, sizes) for dim in tensor.dims)
        for tensor in program.inputs
    )
    apart = _LAUNCHES + moved / (p.memory * p.memory_share * 1e3)
    whole = predicted(with_sizes(program, known), device, known)
    if whole is not None and whole < _LONGER * apart:
        return None
    fixed = numbered(program, {name: length}) if isinstance(name, str) else program
    found = with_split_sum(fixed, parts)
    return None if found is None else SplitSum(fixed, *found)
