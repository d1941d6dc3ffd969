"""Which way of running a product with communication beside it is predicted to be the quickest.

The first rank predicts, and all ranks do as it says: ranks that differ in what they know of a GPU
would wait for each other else.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from polygen.adapters.gain import microseconds
from polygen.api import target
from polygen.errors import PolygenError
from polygen.frontend.program import Program
from polygen.hardware.device import Device
from polygen.hardware.links import link
from polygen.parallel.ways import CHUNKS, COPIES, Problem, Way, quickest


def agreed(
    kind: str,
    program: Program,
    sizes: Mapping[str, int],
    exchanged: tuple[str, int],
    group: dist.ProcessGroup | None,
    *,
    on_gpu: bool,
    copies: bool,
) -> Way:
    """The way that the first rank of a group predicts to be the quickest; all ranks call this.

    Args:
        kind: of the problem, "gather", "sum" or "total".
        program: what is computed of rows.
        sizes: of its symbolic dims, for the rows of all ranks.
        exchanged: the dim of the rows, and bytes of a row that ranks exchange.
        group: the ranks; None: all there are.
        on_gpu: whether times can be predicted; else copies are made where they can be.
        copies: whether ranks reach each other's memory.
    """
    ranks = dist.get_world_size(group)
    said: list[Any] = [None]
    if dist.get_rank(group) == 0:
        said[0] = Way(COPIES if copies else CHUNKS, 1, math.nan)
        if on_gpu:
            said[0] = predicted(kind, program, sizes, exchanged, ranks, copies) or said[0]
    first = 0 if group is None else dist.get_global_rank(group, 0)
    dist.broadcast_object_list(said, src=first, group=group)
    found: Way = said[0]
    return found


def predicted(
    kind: str,
    program: Program,
    sizes: Mapping[str, int],
    exchanged: tuple[str, int],
    ranks: int,
    copies: bool,
    device: Device | None = None,
) -> Way | None:
    """The way that is predicted to be the quickest; None: nothing can be predicted.

    Args:
        kind: as for `agreed`; so are the next three.
        program: what is computed of rows.
        sizes: of its symbolic dims.
        exchanged: the dim of the rows, and bytes of a row.
        ranks: how many there are.
        copies: whether ranks reach each other's memory.
        device: that computes; None: the GPU present.
    """
    dim, row = exchanged
    try:
        problem = Problem(kind, sizes[dim], ranks, row, product_time(program, sizes, dim, device))
        return quickest(problem, link("nccl"), link("nvlink") if copies else None)
    except PolygenError:
        return None


def product_time(
    program: Program, sizes: Mapping[str, int], dim: str, device: Device | None = None
) -> Callable[[int], float]:
    """Seconds that a program takes, by its rows, as the cost model predicts.

    Args:
        program: what is computed.
        sizes: of its symbolic dims.
        dim: that of its rows.
        device: that computes; None: the GPU present.

    Raises:
        PolygenError: no kernel can be made of it, or there is no GPU.
    """
    device = device or target(None)
    known = {name: sizes[name] for name in program.sizes}

    @functools.cache
    def seconds(rows: int) -> float:
        return microseconds(program, device, {**known, dim: rows}) / 1e6

    return seconds
