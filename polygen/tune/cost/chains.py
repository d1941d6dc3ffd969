"""What a chain of products takes, as far as it decides whether its keys are worth being in parts.

    time = start + max(device memory, rounds of blocks) + the launch that combines parts

1. A block steps through its tiles of keys; a step takes what its products take, or its
   exponentials, or its copies: so many bytes are on their way as its rings hold, for a latency.
2. Blocks that run at once share a multiprocessor. Device memory brings every operand once.
3. Parts are written and read by a launch behind the kernel's, which takes a while by itself.
4. Without roles a step is joined of products, exponentials, loads from shared memory and copies, as
   k tiles of one product are. So is a layer in front of the keys, once for a tile of rows.
5. Where a tile was timed its numbers decide which of them is taken: what a block takes for a tile
   of rows, and for each tile of keys that a mask leaves it.

Where blocks fill the device parts cost and give nothing; where a grid is thin, as with one row of
each head, they are what brings the other multiprocessors in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from polygen.hardware.cost_parameters import CostParameters, cost_parameters
from polygen.hardware.data_file import read, take
from polygen.hardware.device import Device
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Problem

_REST_FILE = "chains.toml"

_SUM_BYTES = 4
_WORD = 2  # bytes of the elements for which rates of products are given
_KILO = 1e3  # GHz to cycles of a microsecond, GB/s to bytes of one


@dataclass(frozen=True, slots=True)
class ChainProblem:
    """Sizes of a chain.

    Attributes:
        rows: of a matrix.
        keys: of a matrix.
        matrices: of results.
        depth: elements that the first product sums over.
        columns: of results.
        item: bytes of an element of the operands.
        shared: matrices of results that have one matrix of keys and values.
        lower: least key of a row less the row, where a mask leaves it a range; None: no bound.
        upper: greatest key of a row less the row; None: no bound.
        layers: that make the rows: what each sums over, and its columns, of all its products.
        products: of the rows, each with keys of its own.
        terms: products that instructions make of one: several where operands are split.
    """

    rows: int
    keys: int
    matrices: int
    depth: int
    columns: int
    item: int
    shared: int = 1
    lower: int | None = None
    upper: int | None = None
    layers: tuple[tuple[int, int], ...] = ()
    products: int = 1
    terms: int = 1

    def visited(self, rows: int, keys: int) -> list[int]:
        """Tiles of keys that each tile of rows of a matrix visits.

        Args:
            rows: of a tile.
            keys: of a tile.
        """
        found = []
        for first in range(0, self.rows, rows):
            last = min(first + rows, self.rows) - 1
            begin = 0 if self.lower is None else max(0, first + self.lower)
            end = self.keys if self.upper is None else min(self.keys, last + self.upper + 1)
            found.append(max(1, -(-end // keys) - begin // keys))
        return found

    @property
    def ranges(self) -> bool:
        """Whether a mask leaves rows a range of keys."""
        return self.lower is not None or self.upper is not None

    @property
    def width(self) -> int:
        """Elements that a key has: of all its products."""
        return self.depth * self.products + self.columns

    @property
    def work(self) -> float:
        """What a product of elements takes of what one of 16 bits does, as of single products."""
        return self.item / _WORD * self.terms

    @property
    def bytes(self) -> float:
        """Of the operands, each once."""
        keys = self.keys / self.shared
        found = (self.rows + keys) * (self.depth + self.columns)
        found += keys * self.depth * (self.products - 1)
        if self.layers:  # rows come as the first layer reads them, and what it multiplies once
            found += self.rows * (self.layers[0][0] - self.depth)
            found += sum(depth * columns for depth, columns in self.layers) / self.shared
        return self.item * self.matrices * found


def chain_time(device: Device, schedule: Schedule, problem: ChainProblem) -> float:
    """Predicted microseconds.

    Args:
        device: the target.
        schedule: tiles, stages, and the keys of a part.
        problem: the sizes.
    """
    p, cta = cost_parameters(device), schedule.tile.cta
    keys_each = min(schedule.tile.part or problem.keys, problem.keys)
    parts = -(-problem.keys // keys_each)
    blocks = problem.matrices * -(-problem.rows // cta.m) * parts
    at_once = device.multiprocessors * schedule.min_blocks
    sharing = min(schedule.min_blocks, -(-blocks // device.multiprocessors))
    width = problem.width
    if schedule.specialised:
        products = cta.m * cta.k * width * problem.work / p.product_rate * sharing
        exponentials = cta.m * cta.k / p.compute_function_rate * sharing
        ring = schedule.pipeline.stages * cta.k * width * problem.item
        copies = cta.k * width * problem.item / ring * p.latency * (1 + p.crowding)
        step, begin, start = max(products, exponentials, copies), 0.0, p.start
    else:
        step, start = _step_of_warps(p, schedule, problem, sharing), p.warp_start
        begin = p.round + _layers_of_warps(p, schedule, problem, sharing)
    steps: float = -(-keys_each // cta.k)
    rounds: float = -(-blocks // at_once)
    if problem.ranges:  # blocks end one by one, and others begin
        visited = problem.visited(cta.m, cta.k)
        steps = max(min(steps, max(visited)), sum(visited) * problem.matrices / at_once)
        rounds = max(1.0, blocks / at_once)
    else:
        steps *= rounds
    cycles = steps * step + rounds * begin
    bandwidth = p.memory * p.memory_share * _KILO
    found = start + max(cycles / (p.clock * _KILO), problem.bytes / bandwidth)
    if parts > 1:
        each = problem.matrices * problem.rows * (problem.columns + 2) * _SUM_BYTES
        found += p.launch_start + 2 * parts * each / bandwidth
    return found


def _step_of_warps(
    p: CostParameters, schedule: Schedule, problem: ChainProblem, sharing: int
) -> float:
    """Cycles of a tile of keys of all blocks that share a multiprocessor, without roles.

    Every warp loads all keys and values, and its own rows again; the tile is copied while the one
    before is used.
    """
    cta, warps = schedule.tile.cta, schedule.tile.cta.m // schedule.tile.warp.m
    width, item = problem.width, problem.item
    busy = min(1.0, math.sqrt(sharing * warps / p.full_rate_warps))
    products = cta.m * cta.k * width * problem.work / (p.warp_rate * busy) * sharing
    exponentials = cta.m * cta.k / p.warp_function_rate * sharing
    loaded = item * (warps * cta.k * width + cta.m * problem.depth)
    loads = loaded / p.warp_shared_rate * sharing
    copied = item * cta.k * width / p.warp_fetch_rate * sharing
    waited = p.warp_latency * (1 + p.warp_crowding) / max(1, schedule.pipeline.distance)
    parts = (products, exponentials, loads, copied)
    together = sum(one**p.warp_sharpness for one in parts) ** (1 / p.warp_sharpness)
    alone = p.chain_alone if sharing == 1 else 1.0  # while a block waits nobody multiplies
    return float(alone * max(together, waited) + p.barrier)


def _layers_of_warps(
    p: CostParameters, schedule: Schedule, problem: ChainProblem, sharing: int
) -> float:
    """Cycles of the layers in front of a block's first tile of keys, estimated as a step's are.

    Nothing of them was timed: a layer is taken for a tile of as many keys as it has columns, whose
    right operand is copied in front of it; columns of results have no part in it.
    """
    found = 0.0
    for depth, columns in problem.layers:
        cta = replace(schedule.tile.cta, k=columns)
        own = replace(schedule, tile=replace(schedule.tile, cta=cta))
        alone = replace(problem, depth=depth, columns=0, products=1)
        found += _step_of_warps(p, own, alone, sharing)
    return found


def timed(
    device: Device, schedule: Schedule, problem: ChainProblem, begin: float, step: float
) -> float:
    """Microseconds of a kernel whose tile was timed, all keys of a row in one block.

    Args:
        device: the target.
        schedule: its tile, and how many blocks a multiprocessor holds.
        problem: the sizes.
        begin: microseconds for a tile of rows, of `chains.toml`.
        step: microseconds for a tile of keys.
    """
    cta, slots = schedule.tile.cta, device.multiprocessors * schedule.min_blocks
    tiles = problem.matrices * -(-problem.rows // cta.m)
    each = begin + step * sum(problem.visited(cta.m, cta.k)) * problem.matrices / tiles
    rounds = max(1.0, tiles / slots) if problem.ranges else -(-tiles // slots)
    return cost_parameters(device).start + each * rounds


def parts_worth_it(device: Device, schedule: Schedule, problem: ChainProblem) -> int:
    """Keys of a part with which a chain is predicted fastest; 0: all in one.

    Args:
        device: the target.
        schedule: without parts.
        problem: the sizes.
    """
    return min(_sizes(schedule, problem), key=lambda part: _time(device, schedule, problem, part))


def _sizes(schedule: Schedule, problem: ChainProblem) -> Iterator[int]:
    """All keys, then ever smaller parts; the first of equals is taken."""
    yield 0
    tile = schedule.tile.cta.k
    count = 1 << max(0, math.ceil(math.log2(-(-problem.keys // tile))) - 1)
    while count >= 1 and count * tile < problem.keys:
        yield count * tile
        count //= 2


def _time(device: Device, schedule: Schedule, problem: ChainProblem, part: int) -> float:
    tile = replace(schedule.tile, part=part)
    return chain_time(device, replace(schedule, tile=tile), problem)


def longest_run(device: Device, schedule: Schedule, problem: Problem) -> int:
    """Tiles of one row that blocks take one after another, where something is kept between them.

    As many as cost no round of blocks: 1, or one of the numbers of the data.

    Args:
        device: the target.
        schedule: with roles.
        problem: its sizes.
    """
    cta, cluster = schedule.tile.cta, schedule.cluster
    tall = -(-problem.m // (cta.m * cluster.m)) * problem.batches
    wide = -(-problem.n // (cta.n * cluster.n))
    slots = max(1, device.multiprocessors * schedule.min_blocks // cluster.blocks)
    rounds = -(-tall * wide // slots)
    for run in take(read(_REST_FILE), "rest", _REST_FILE)["runs"]:
        items = tall * -(-wide // run)
        if -(-items // slots) * run <= rounds:
            return int(run)
    return 1
