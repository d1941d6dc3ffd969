"""Problems small enough to run on NumPy that meet the tile boundaries of a large one.

One whole tile and a ragged one along m and n, more k tiles than the ring has slots, two matrices
along each batch dim; few persistent blocks, so that each works through several tiles.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from polygen.emit.source import KernelSource
from polygen.frontend.dtypes import U8
from polygen.frontend.grouping import rows_in_groups
from polygen.frontend.indices import named_in, size_value, times_in
from polygen.frontend.pitches import pitch_of
from polygen.frontend.program import Dim, Program
from polygen.lower.plan import KernelPlan
from polygen.runtime.arrays import in_order

Array = np.ndarray[Any, Any]

# Multiply-adds (whole tiles) that the machine runs in some seconds: 1024 x 1024 x 1024.
REASONABLE = 1 << 30
TAKES_A_WHILE = "the sizes are fixed in the kernel and large: this takes a while"
_TRIAL_MATRICES = 2  # along each batch dim
_TRIAL_STEP = 16  # bytes past the last whole tile, so that rows stay aligned
_TRIAL_GROUPS = 5  # of rows
_TRIAL_CLUSTERS = 2  # of persistent blocks in a trial
_FEW_IMAGES = 5  # of a box of many, whose tiles lie side by side along other axes as well
_SAMPLED = 4 * REASONABLE  # of boxes, of which some are run (`polygen.sampled`)


def trial_sizes(plan: KernelPlan) -> dict[str, int]:
    """A small problem that crosses the kernel's tile boundaries, within its alignment class."""
    sizes: dict[str, int] = {}
    # Persistent blocks get several tiles each: see `few_blocks`.
    cluster, box = plan.schedule.cluster, plan.match.box
    rows, columns = (2 * cluster.m if plan.launch.persistent else 1), cluster.n
    if cluster.last:  # tiles of a block's own, and shared ones
        rows = max(rows, cluster.k)
    step = max(8, _TRIAL_STEP // min(t.dtype.bytes for t in plan.program.inputs))
    wanted = {
        "m": rows * box.along_m(plan.tiles.cta[0]) + (1 if box else step),
        "n": columns * plan.tiles.cta[1] + step,
        "k": plan.tiles.cta[2] * (plan.schedule.pipeline.stages + 1) + step,
    }
    for role, extent in plan.extents:
        for name in named_in(extent):
            sizes[name] = max(sizes.get(name, 1), -(-wanted[role] // times_in(extent)))
    for batch in _batches(plan):
        if isinstance(batch, str):
            sizes.setdefault(batch, _TRIAL_MATRICES)
    for vector, extent in plan.program.scattered.items():  # some more rows than are stored
        count = plan.program.tensors[vector].dims[0]
        if isinstance(extent, str):
            sizes.setdefault(extent, size_value(count, sizes) + 3)
    groups = plan.launch.groups
    if isinstance(groups, str):
        sizes.setdefault(groups, _TRIAL_GROUPS)
    for name in plan.program.sizes:
        sizes.setdefault(name, 8)
    for name in _odd(plan):
        sizes[name] += 3
    for one in plan.each:
        if one.folds_rows and isinstance(one.match.n, str):
            sizes[one.match.n] = min(sizes[one.match.n], one.tiles.row)
    return _of_few_images(plan, sizes)


def _of_few_images(plan: KernelPlan, sizes: dict[str, int]) -> dict[str, int]:
    """Sizes with a part of a box of pixels along m, where whole ones are too many."""
    if plan.match.box and isinstance(plan.match.m, str) and work_of(plan, sizes) > _SAMPLED:
        sizes = sizes | {plan.match.m: min(sizes[plan.match.m], _FEW_IMAGES)}
    return sizes


def _batches(plan: KernelPlan) -> list[Dim]:
    """The extents of batch dims, of all sections."""
    return [extent for one in plan.launch.sections for extent in one.batches]


def work_of(plan: KernelPlan, sizes: dict[str, int]) -> int:
    """Multiply-adds of whole tiles."""
    return sum(_work(of, sizes, plan) for of in plan.each)


def _work(plan: KernelPlan, chosen: dict[str, int], whole: KernelPlan) -> int:
    """Multiply-adds of whole tiles of a kernel or of one section, with the tiles of the whole."""
    tiles = dict(zip("mnk", whole.tiles.cta, strict=True))
    tiles["m"] = whole.match.box.along_m(tiles["m"])
    extents = ((role, size_value(plan.match.extent(role), chosen)) for role in "mnk")
    one = math.prod(-(-extent // tiles[role]) * tiles[role] for role, extent in extents)
    others = plan.match.box.rows // plan.match.box.along_m(1)  # pixels of one index of m
    others *= math.prod(size_value(extent, chosen) for _, extent in plan.match.sums)
    return one * others * plan.launch.matrices(chosen)


def _odd(plan: KernelPlan) -> set[str]:
    """The lengths of rows that are copied first, which are those of no array that wants others."""
    copied = plan.realign.names if plan.realign is not None else ()
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for tensor in (*plan.program.inputs, *plan.program.outputs):
        row = tensor.dims[tensor.order[-1]] if len(tensor.dims) > 1 else 0
        if isinstance(row, str) and (
            tensor.name in copied or tensor.alignment > tensor.dtype.bytes
        ):
            found[tensor.name in copied].add(row)
    return found[True] - found[False]


def few_blocks(source: KernelSource) -> KernelSource:
    """The kernel, launched with few persistent blocks, so that each works through several tiles."""
    launch = source.launch
    if not launch.persistent:
        return source
    blocks = _TRIAL_CLUSTERS * launch.blocks
    return replace(source, launch=replace(launch, persistent=min(blocks, launch.persistent)))


def runnable_sizes(plan: KernelPlan, sizes: dict[str, int]) -> tuple[dict[str, int], str]:
    """Sizes that the machine runs in reasonable time and that meet the same tile boundaries.

    A dim keeps what is left over after whole tiles. Of whole tiles it keeps two along m and n, and
    along k one more than the ring has slots. Of matrices it keeps two along each batch dim.

    Args:
        plan: the kernel.
        sizes: of all symbolic dims.

    Returns:
        The sizes to run, and a sentence that says why they are others; "" when they are not.
    """
    tiles = dict(zip("mnk", plan.tiles.cta, strict=True))
    tiles["m"] = plan.match.box.along_m(tiles["m"])
    whole = {"m": 2 * plan.schedule.cluster.m, "n": 2, "k": plan.schedule.pipeline.stages + 1}

    if work_of(plan, sizes) <= (_SAMPLED if plan.match.box else REASONABLE):
        return sizes, ""
    asked = ", ".join(f"{name} = {value}" for name, value in sizes.items())
    few = _of_few_images(plan, sizes)
    if few != sizes:
        return few, f"{asked} is too large to run on NumPy in reasonable time; ran few images"
    smaller = dict(sizes)
    for extent in {dim for _, dim in plan.extents if isinstance(dim, str)}:
        roles = [role for role, dim in plan.extents if dim == extent]
        step = math.lcm(*(tiles[role] for role in roles))
        kept = max(-(-whole[role] * tiles[role] // step) for role in roles) * step
        (name,), count = named_in(extent), size_value(extent, sizes)
        smaller[name] = min(sizes[name], (kept + count % step) // times_in(extent))
    tiled = {dim for _, dim in plan.extents}
    for name in {dim for dim in _batches(plan) if isinstance(dim, str)} - tiled:
        smaller[name] = min(sizes[name], _TRIAL_MATRICES)
    if smaller == sizes:
        return sizes, TAKES_A_WHILE
    return smaller, (
        f"{asked} is too large to run on NumPy in reasonable time; "
        "ran a smaller problem with the same remainders after whole tiles"
    )


def trial_ends(groups: int, rows: int, generator: np.random.Generator) -> Array:
    """Where groups end: most rows are of one of them, one has none, and the last few are of none.

    Args:
        groups: how many there are.
        rows: in all.
        generator: of what is left to chance: where the others end.
    """
    ends = np.sort(generator.integers(0, rows // 4 + 1, groups))
    ends[groups // 2 :] += rows - rows // 4 - 3  # the group there has the most
    ends[-1:] = max(rows - 3, 1)
    ends[1:2] = ends[:1]
    return np.maximum.accumulate(np.clip(ends, 0, rows))


def trial_rows(count: int, rows: int, generator: np.random.Generator) -> Array:
    """Different rows of an array, in any order, and now and then a number that is none of them.

    Args:
        count: how many numbers.
        rows: that the array has.
        generator: of the order.
    """
    spare = max(count - rows, 0) + 2
    return generator.permutation(np.arange(-1, rows + spare))[:count]


def trial_operands(
    program: Program, sizes: dict[str, int], seed: int, plan: KernelPlan | None = None
) -> tuple[Any, ...]:
    """Random small integers for every operand, with the pitches that are among the sizes.

    Args:
        program: whose operands.
        sizes: of its symbolic dims.
        seed: of the numbers.
        plan: of a chain, where rows have the keys that arrays say: each of them some, since of no
            keys NumPy makes no numbers.
    """
    bounds = {one.array: one for one, _ in plan.key_bounds} if plan is not None else {}
    generator = np.random.default_rng(seed)
    operands: list[Any] = []
    for tensor in program.operands:
        shape = tensor.shape(sizes)
        values = generator.integers(-2, 3, shape)
        if tensor.dtype == U8:
            values = np.abs(values)
        if tensor.name == program.ends:
            rows = size_value(rows_in_groups(program), sizes)
            values = trial_ends(shape[0], rows, generator)
        if tensor.name in program.gathered:
            values = generator.integers(0, size_value(program.gathered[tensor.name], sizes), shape)
        if tensor.name in program.scattered:
            count = size_value(program.scattered[tensor.name], sizes)
            values = trial_rows(shape[0], count, generator)
        if tensor.name in bounds and plan is not None:
            bound, keys = bounds[tensor.name], size_value(plan.match.depths[0], sizes)
            first, last = (0, keys) if bound.side == "upper" else (-2, 1)
            values = generator.integers(first, last, shape) - bound.offset
        array = values.astype(np.float32).astype(tensor.dtype.numpy)
        pitch = sizes.get(pitch_of(tensor.name))
        operands.append(in_order(array, tensor.order, pitch) if shape else float(values))
    return tuple(operands)
