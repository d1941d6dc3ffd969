"""Run a launch: place the arguments, then execute wave after wave of CTAs.

1. Arguments go into global memory (arrays) and into the parameter bytes (everything else).
2. CTAs run in waves (`waves`), as many at a time as keep the vectors within the cache; a cluster
   stays whole.
3. The scheduler keeps the threads that can run, grouped by block, and runs the lowest block first:
   structured code reconverges by itself. Threads at a barrier are parked.
4. When nobody can run, one pending asynchronous operation completes; when there is none and threads
   are still parked, that is a deadlock.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polygen.errors import LaunchError, PtxError, told
from polygen.hardware.device import common_facts, devices
from polygen.machine import alignment
from polygen.machine.arguments import arrays_in
from polygen.machine.blocks import analyse
from polygen.machine.calls import flattened
from polygen.machine.grids import Behind, Grids
from polygen.machine.leaving import gate
from polygen.machine.memory import OWN, SLOT
from polygen.machine.module import Kernel, Module
from polygen.machine.parse import parse
from polygen.machine.place import place_arguments
from polygen.machine.profile import Profiler
from polygen.machine.report import Report
from polygen.machine.special import RESERVED, cooperates
from polygen.machine.state import Options, Placed, local_bytes, place_shared, shadow_bytes
from polygen.machine.stores import GlobalStores
from polygen.machine.translate import Translation
from polygen.machine.waves import Task, cut, run_waves
from polygen.machine.wide import narrowed

MOST_GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)
MOST_BLOCKS = 1 << 22
MOST_CLUSTER = 16  # what is not portable included
COMPLETIONS = ("late", "early", "random")


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched.

    Attributes:
        grid: CTAs along x, y, z.
        block: threads along x, y, z.
        shared_bytes: dynamic shared memory.
        arguments: in parameter order: a NumPy array of any rank for a pointer (copied in; strides
            kept), a Python or NumPy scalar by value, `bytes` for a struct by value, a `TensorMap`
            for a ``CUtensorMap`` or a pointer to one, a tuple of them for a pointer to several, a
            `Struct` for what has pointers inside. An array given twice, or with its axes in another
            order, is one buffer, and so is the whole of a map of a part.
        entry: kernel name; None when the PTX has one kernel.
        cluster: CTAs of a cluster along x, y, z, as a launch attribute says; None: as the kernel
            was compiled (``.reqnctapercluster``), else clusters of one.
        runs: the clusters that run, as the launch numbers them; (): all.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    arguments: tuple[Any, ...] = ()
    entry: str | None = None
    cluster: tuple[int, int, int] | None = None
    runs: tuple[int, ...] = ()


def arrays_of(launch: Launch) -> list[np.ndarray[Any, Any]]:
    """The arrays of a launch, as a report has them: see `arrays_in`."""
    return arrays_in(launch.arguments)


@functools.cache
def _shared_limit(target: str) -> int:
    """Bytes of shared memory a block can have on a target; one that is not known has the most."""
    known = {device.name: device.shared_per_block_optin for device in devices()}
    return known.get(target, max(known.values()))


_CACHE: dict[str, Module] = {}
_TRANSLATIONS: dict[tuple[str, str, tuple[int, int, int]], Translation] = {}


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Texts that no compiler writes may break any assumption: they are malformed, no more."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RuntimeError, StopIteration) as error:
        raise PtxError(f"the text cannot be read: {told(error)}") from error


def _module(text: str) -> Module:
    if text not in _CACHE:
        if len(_CACHE) >= 16:
            _CACHE.clear()
            _TRANSLATIONS.clear()
        with _readable():
            _CACHE[text] = parse(text)
    return _CACHE[text]


def _kernel(module: Module, entry: str | None) -> Kernel:
    if entry is None:
        if len(module.kernels) > 1:
            raise LaunchError(
                "the PTX has several kernels", nearest=f"Name one of {', '.join(module.kernels)}"
            )
        return next(iter(module.kernels.values()))
    if entry not in module.kernels:
        raise LaunchError(
            f"no kernel named {entry}", nearest=f"The PTX has {', '.join(module.kernels)}"
        )
    return module.kernels[entry]


def _check_launch(launch: Launch, kernel: Kernel, completion: str) -> None:
    where = f"launch of {kernel.name}"
    for name, shape in (("grid", launch.grid), ("block", launch.block)):
        if len(shape) != 3 or any(int(side) < 1 for side in shape):
            raise LaunchError(f"{name} {shape} is not three positive numbers", where=where)
    if any(side > limit for side, limit in zip(launch.grid, MOST_GRID, strict=True)):
        raise LaunchError(f"a grid of {launch.grid}", where=where, nearest=f"At most {MOST_GRID}")
    if (blocks := math.prod(launch.grid)) > MOST_BLOCKS:
        raise LaunchError(
            f"{blocks} blocks are more than the machine can run",
            where=where,
            nearest=f"At most {MOST_BLOCKS}: a smaller problem has the same faults",
        )
    threads, most = math.prod(launch.block), common_facts()["max_threads_per_block"]
    if threads > most:
        raise LaunchError(f"a block of {threads} threads", where=where, nearest=f"At most {most}")
    if kernel.block and tuple(launch.block) != kernel.block:
        raise LaunchError(
            f"a block of {launch.block}, the kernel's .reqntid is {kernel.block}", where=where
        )
    if threads > (kernel.threads_most or threads):
        raise LaunchError(
            f"a block of {threads} threads",
            where=where,
            why="the kernel's launch bounds (.maxntid) allow no more",
            nearest=f"At most {kernel.threads_most}",
        )
    if completion not in COMPLETIONS:
        raise LaunchError(
            f"completion {completion!r} is unknown", where=where, nearest=f"One of {COMPLETIONS}"
        )
    if len(launch.arguments) != len(kernel.parameters):
        raise LaunchError(
            f"{len(launch.arguments)} arguments for {len(kernel.parameters)} parameters",
            where=where,
            nearest=", ".join(f"{one.name}: {one.kind}" for one in kernel.parameters),
        )
    if any(g % c for g, c in zip(launch.grid, _cluster(launch, kernel), strict=True)):
        raise LaunchError(
            f"grid {launch.grid} is not a multiple of the cluster {_cluster(launch, kernel)}",
            where=where,
        )


def _cluster(launch: Launch, kernel: Kernel) -> tuple[int, int, int]:
    """CTAs of a cluster of the launch.

    Raises:
        LaunchError: it is none that the kernel can be launched in.
    """
    if launch.cluster is None:
        return kernel.cluster
    where, shape = f"launch of {kernel.name}", tuple(launch.cluster)
    if len(shape) != 3 or any(int(side) < 1 for side in shape):
        raise LaunchError(f"cluster {shape} is not three positive numbers", where=where)
    if math.prod(shape) > MOST_CLUSTER:
        raise LaunchError(
            f"a cluster of {math.prod(shape)} blocks",
            where=where,
            nearest=f"At most {MOST_CLUSTER}",
        )
    if kernel.clustered and shape != kernel.cluster:
        raise LaunchError(
            f"a cluster of {shape}, the kernel's .reqnctapercluster is {kernel.cluster}",
            where=where,
        )
    return shape


def _check_shared(kernel: Kernel, launch: Launch, end: int, limit: int) -> None:
    fixed = end - launch.shared_bytes - RESERVED
    if launch.shared_bytes < 0 or end - RESERVED > limit:
        raise LaunchError(
            f"{launch.shared_bytes} bytes of dynamic and {fixed} of static shared memory",
            where=f"launch of {kernel.name}",
            nearest=f"A block has at most {limit}",
        )


def run(
    ptx_text: str,
    launch: Launch,
    *,
    completion: str = "late",
    seed: int = 0,
    checks: bool = True,
    profile: bool = False,
    max_steps: int = 1_000_000,
    progress: Callable[[int, int], None] | None = None,
    behind: Behind | None = None,
    workers: int = 1,
) -> Report:
    """Execute a kernel on NumPy and judge it.

    Args:
        ptx_text: the PTX, as NVRTC or nvcc writes it.
        launch: grid, block, shared memory and arguments.
        completion: when asynchronous copies land: as late as allowed, at issue, or at random.
        seed: for ``completion="random"``, and for which mbarrier waits fail that may.
        checks: look for races, uninitialised reads and missing fences.
        profile: count shared wavefronts and global sectors per instruction.
        max_steps: block executions per wave before the run is taken for an endless loop.
        progress: called with the number of CTAs that have run and of all, after every wave.
        behind: of a dependent launch, what may still run when it begins; None: nothing.
        workers: processes at most. The report is the same for any number; where blocks depend on
            each other, where they fit one wave, and on systems without ``fork`` there is one.

    Returns:
        The arrays after the run and everything that was found.

    Raises:
        PtxError: malformed PTX or an unknown instruction.
        LaunchError: the launch does not fit the kernel.
        StepLimit: more than `max_steps` steps.
    """
    module = _module(ptx_text)
    kernel = _kernel(module, launch.entry)
    _check_launch(launch, kernel, completion)
    cluster = _cluster(launch, kernel)
    key = (ptx_text, kernel.name, cluster)
    if key not in _TRANSLATIONS:
        names = frozenset(one.name for one in module.variables)
        with _readable():
            _TRANSLATIONS[key] = Translation(
                analyse(
                    narrowed(flattened(replace(kernel, cluster=cluster), module.functions)), names
                )
            )
    program = _TRANSLATIONS[key].program
    kernel = program.kernel
    symbols, first, end = place_shared(program, module.variables, launch.shared_bytes)
    _check_shared(kernel, launch, end, _shared_limit(module.target))
    own = OWN << SLOT if np.prod(kernel.cluster) > 1 else 0
    blocks = int(np.prod(launch.grid))

    def place(watched: frozenset[int]) -> Placed:
        placed = place_arguments(module, program, launch.arguments)
        placed.alignment = alignment.dynamic_array(kernel, module.variables, symbols)
        placed.symbols.update({name: at | own for name, at in symbols.items()})
        if checks:
            memory = placed.memory
            placed.stores = GlobalStores(
                program.facts, memory.size, tuple(memory.buffers), blocks, watched
            )
        if behind is not None:
            placed.grids = Grids(behind, arrays_of(launch), placed.buffers)
        return placed

    threads = int(np.prod(launch.block))
    shadow = shadow_bytes(program, end, threads) if checks else 1
    shadow += threads * local_bytes(kernel)
    together = cooperates(program.facts.mentioned)
    task = Task(
        _TRANSLATIONS[key],
        launch.grid,
        launch.block,
        cut(launch.grid, launch.block, kernel.cluster, shadow, together, launch.runs),
        (first, end, launch.shared_bytes),
        Options(completion, seed, checks, Profiler() if profile else None),
        max_steps,
        gate(_TRANSLATIONS[key]),
    )
    found, placed = run_waves(task, place, workers, progress)
    arrays = tuple(placed.memory.view(buffer).copy() for buffer in placed.buffers)
    rows = found.profiler.finish(found.findings) if found.profiler is not None else ()
    said = alignment.notes(kernel, placed.alignment)
    return Report(arrays, found.findings.finish(), rows, found.instructions, said)
