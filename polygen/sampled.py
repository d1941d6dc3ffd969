"""Some blocks of a kernel whose smallest problem is a large one, and whether they did their work.

Sizes that are numbers in a program leave no small problem: an image of 56 x 56 has all its tiles.

1. Persistent blocks are launched, with a few tiles for each; of their clusters some run: the first,
   the one that has the last tile, and others between them.
2. Of every output, tiles are written whole or not at all, and as many as these clusters have. What
   is written is compared as ever; the rest is still what outputs begin as, which is no number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polygen.emit.source import KernelSource
from polygen.frontend.program import Pointwise
from polygen.lower.plan import KernelPlan
from polygen.machine import Finding
from polygen.small_problem import REASONABLE, work_of

Array = np.ndarray[Any, Any]

_ROUNDS = 3  # tiles of a block
_FEWEST = 2  # clusters


@dataclass(frozen=True, slots=True)
class Sample:
    """The clusters that run.

    Attributes:
        source: the kernel, launched with as many blocks as that takes.
        clusters: of the launch, in order.
        tiles: that they have, each of a cluster.
        every: tiles that there are.
        sides: of one, per axis of an output.
    """

    source: KernelSource
    clusters: tuple[int, ...]
    tiles: int
    every: int
    sides: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"ran {len(self.clusters)} clusters of blocks with {self.tiles} of the {self.every} "
            "tiles: sizes that are numbers in the program leave no small problem"
        )

    def judged(self, name: str, found: Array, expected: Array) -> tuple[Array, Finding | None]:
        """An output with what no cluster wrote as it is expected, and what is wrong with the rest.

        Args:
            name: of the output.
            found: the output as these clusters leave it.
            expected: all of it.
        """
        written, free = ~np.isnan(_numbers(found)), np.isnan(_numbers(expected))
        some = self._of_tiles(written, np.logical_or)
        whole = self._of_tiles(written | free, np.logical_and)
        sentence, count = "", 0
        if (some & ~whole).any():
            place, count = np.argwhere(some & ~whole)[0] * self.sides, int((some & ~whole).sum())
            sentence = f"{name} is written in a part of the tile at {place.tolist()} alone"
        elif not int(some.sum()) <= self.tiles <= int(whole.sum()):
            count = abs(int(some.sum()) - self.tiles)
            sentence = f"{int(some.sum())} tiles of {name} are written, not {self.tiles}"
        finding = Finding("wrong-value", sentence, name, count) if sentence else None
        return np.where(written, found, expected), finding

    def _of_tiles(self, elements: Array, whether: np.ufunc) -> Array:
        """Whether any element of each tile is so, or all are; tiles end where the output ends."""
        for axis, side in enumerate(self.sides):
            starts = np.arange(0, elements.shape[axis], side)
            elements = whether.reduceat(elements, starts, axis=axis)
        return elements


def sample(plan: KernelPlan, source: KernelSource, sizes: dict[str, int]) -> Sample | None:
    """Some clusters of a large problem; None: it is small, or it is not known what clusters write.

    Args:
        plan: the kernel.
        source: of it.
        sizes: of all symbolic dims.
    """
    work, sides = work_of(plan, sizes), _sides(plan)
    if work <= REASONABLE or not sides:
        return None
    every = source.launch.work(sizes)
    grid = -(-every // _ROUNDS)
    most = max(_FEWEST, REASONABLE * every // (work * _ROUNDS))
    if grid <= most:
        return None
    between = np.linspace(0, grid - 1, most).astype(int).tolist()
    clusters = tuple(sorted({*between, (every - 1) % grid}))
    tiles = sum(-(-(every - first) // grid) for first in clusters)
    few = replace(source.launch, persistent=grid * source.launch.blocks)
    return Sample(replace(source, launch=few), clusters, tiles, every, sides)


def _sides(plan: KernelPlan) -> tuple[int, ...]:
    """The elements of a cluster's tile along each axis of every output; (): who knows.

    Outputs are those of one product and of pointwise work alone, each with the product's axes, and
    of floats: what is not written is no number.
    """
    program, launch, match = plan.program, plan.launch, plan.match
    alone = (
        launch.persistent
        and not (launch.groups or launch.further or match.domain or match.rest is not None)
        and plan.following is None
        and not plan.schedule.cluster.last
        and not (program.folds or program.in_place or program.in_parts or program.scattered)
        and all(one.dtype.kind == "float" for one in program.outputs)
    )
    if not alone or len(program.contractions) != 1:
        return ()
    (product,) = program.contractions
    outputs = {one.name for one in program.outputs}
    writers = [s for s in program.statements if s.write.name in outputs]
    if not all(isinstance(s, Pointwise) and s.write.index == product.write.index for s in writers):
        return ()
    along = plan.schedule.raster.along
    tiles = {
        along: launch.tile_along * launch.cluster[0],
        "n" if along == "m" else "m": launch.tile_across * launch.cluster[1],
    }
    return tuple(tiles.get(dim) or match.box.side(dim) for dim in match.axes)


def _numbers(values: Array) -> Array:
    return values if values.dtype.kind == "f" else values.astype(np.float32)
