"""Whether a sum is to be a fold, or parts with a fold behind them.

1. A product with a vector multiplies each element of a matrix once. Where the axis that is summed
   is not the matrix's innermost, tiles for tensor cores hold one column of use; a fold goes through
   the elements as they lie.
2. Where it is the innermost, lanes multiply, and fold nothing: folds of the results are of another
   kernel, as few as these are.
3. Rows that a product multiplies are folded by those that multiply them, each as often as there are
   tiles with them. Where that takes longer than to read them once more, they are folded before.
4. A product of two columns of a million rows has one tile, which one block sums, or the few of a
   cluster; its operands come as fast as these ask for them. As parts, each with a tile of its own,
   it takes every multiprocessor, and one more launch. The number of terms is a constant of such
   kernels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from polygen.chained import numbered
from polygen.decision import predicted
from polygen.frontend.indices import size_value
from polygen.frontend.program import Program
from polygen.hardware.cost_parameters import cost_parameters
from polygen.hardware.device import Device
from polygen.pipeline import with_sizes
from polygen.rewrite.cuts import cuts
from polygen.rewrite.folded_products import matrix_of, with_folded_product
from polygen.rewrite.folds_alone import (
    folds_behind,
    folds_beside,
    multiplies_zeros,
    with_products,
)
from polygen.rewrite.split_sums import with_split_sum

_LEAST = 8192  # terms of a sum that is looked at
_TILE = 64  # rows and columns of a tile
_FEWEST_TERMS, _FEWEST_PARTS = 256, 8  # of a part; of a sum
_LONGER = 2.0  # times as long as operands come from memory: before parts are looked at
_SHORTER = 0.9  # of the time as it is, that parts may take
_CLEARLY = 0.97  # likewise, that kernels may which fold what another multiplies
_LAUNCHES = 5  # whose time the sum of parts takes
_WAVES = 2  # tiles of parts for every multiprocessor


Time = Callable[[], float]  # predicted microseconds of the program as it is


@dataclass(frozen=True, slots=True)
class SplitSum:
    """A program whose sum is a fold, or in parts, or is folded by another kernel.

    Attributes:
        whole: the program; of parts with the number of terms as a constant.
        parts: the same with the fold.
        folds: which of its folds are of other elements than those of products.
    """

    whole: Program
    parts: Program
    folds: frozenset[str]


def split_sum(program: Program, sizes: Mapping[str, int], device: Device) -> SplitSum | None:
    """The program with a fold for its sum, or for parts of it; None where it is faster as it is.

    Args:
        program: any.
        sizes: of its symbolic dims; where one is not known nothing is split.
        device: the target.
    """
    known = all(dim in sizes for dim in program.sizes)
    if len(program.contractions) != 1 or not known or multiplies_zeros(program):
        return None

    @functools.cache
    def whole() -> float:
        time = _time(program, sizes, device)
        return math.inf if time is None else time

    ways = (_folded, _folded_apart, _folded_before, _in_parts)
    return next(filter(None, (way(program, sizes, device, whole) for way in ways)), None)


def _folded(
    program: Program, sizes: Mapping[str, int], device: Device, whole: Time
) -> SplitSum | None:
    """The same with a fold for its product with a vector; None where it is faster as it is."""
    found = with_folded_product(program)
    behind_zeros = found and with_products(found[0], also={found[1]})
    if not found or not behind_zeros:
        return None
    folded = _time(_first(behind_zeros, sizes), sizes, device)
    more = cost_parameters(device).launch_start * (len(behind_zeros.contractions) - 1)
    if folded is None or whole() < folded + more:
        return None
    return SplitSum(program, found[0], frozenset({found[1]}))


def _folded_apart(
    program: Program, sizes: Mapping[str, int], device: Device, whole: Time
) -> SplitSum | None:
    """The same where a product with a vector is of another kernel than folds of its results; None
    where one kernel is faster.
    """
    folds = frozenset(folds_behind(program))
    if not folds or matrix_of(program.contractions[0]) is None:
        return None
    apart = with_products(program, also=folds)
    cut = None if apart is None else next(cuts(apart, sizes), None)
    if cut is None:
        return None
    before, after = (_time(one, sizes, device) for one in (cut.before, cut.after))
    if before is None or after is None:
        return None
    if whole() < before + after + cost_parameters(device).launch_start:
        return None
    return SplitSum(program, program, folds)


def _folded_before(
    program: Program, sizes: Mapping[str, int], device: Device, whole: Time
) -> SplitSum | None:
    """The same where what a product multiplies is folded by kernels before it; None where that is
    not clearly faster than beside it.
    """
    folds = frozenset(folds_beside(program))
    left = with_products(program, also=folds) if folds else None
    if left is None:
        return None
    apart = 0.0
    while len(left.contractions) > 1:
        found = (one for one in cuts(left, sizes) if multiplies_zeros(one.before))
        cut = next(found, None)
        before = None if cut is None else _time(cut.before, sizes, device)
        if cut is None or before is None:
            return None
        apart, left = apart + before, cut.after
    last = _time(left, sizes, device)
    if last is None or _CLEARLY * whole() < apart + last:
        return None
    return SplitSum(program, program, folds)


def _first(program: Program, sizes: Mapping[str, int]) -> Program:
    """The part of a program that the first of its kernels is of."""
    cut = next(cuts(program, sizes), None) if len(program.contractions) > 1 else None
    return program if cut is None else cut.before


def _time(program: Program, sizes: Mapping[str, int], device: Device) -> float | None:
    """Predicted microseconds of a program's kernel; None: there is none."""
    known = {name: sizes[name] for name in program.sizes}
    return predicted(with_sizes(program, known), device, known)


def _in_parts(
    program: Program, sizes: Mapping[str, int], device: Device, whole: Time
) -> SplitSum | None:
    """The program in parts; None where it is faster as it is."""
    (product,) = program.contractions
    extents = {name: size_value(extent, sizes) for name, extent in product.domain}
    length = math.prod(extents[name] for name in product.summed)
    if len(product.summed) != 1 or length < _LEAST:
        return None
    *batches, m, n = (1, 1, *(extents[name] for name in product.write.iterators))
    tiles = math.prod(batches) * -(-m // _TILE) * -(-n // _TILE)
    parts = _WAVES * device.multiprocessors // tiles
    if parts < 2:
        return None
    parts = min(max(parts, _FEWEST_PARTS), length // _FEWEST_TERMS)
    name = dict(product.domain)[product.summed[0]]
    p = cost_parameters(device)
    moved = sum(
        tensor.dtype.bytes * math.prod(size_value(dim, sizes) for dim in tensor.dims)
        for tensor in program.inputs
    )
    launches = _LAUNCHES * p.launch_start
    if whole() < _LONGER * (launches + moved / (p.memory * p.memory_share * 1e3)):
        return None
    fixed = numbered(program, {name: length}) if isinstance(name, str) else program
    found = with_split_sum(fixed, parts)
    if found is None:
        return None
    split = with_products(found[0], also={found[1]})
    apart = None if split is None else _time(_first(split, sizes), sizes, device)
    if apart is not None and apart + launches > _SHORTER * whole():
        return None
    return SplitSum(fixed, found[0], frozenset({found[1]}))
