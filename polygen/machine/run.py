"""Run a launch: place the arguments, then execute wave after wave of CTAs.

1. Arguments go into global memory (arrays) and into the parameter bytes (everything else).
2. CTAs run in waves, as many at a time as keep the vectors within the cache; a cluster stays whole.
3. The scheduler keeps the threads that can run, grouped by block, and runs the lowest block first:
   structured code reconverges by itself. Threads at a barrier are parked.
4. When nobody can run, one pending asynchronous operation completes; when there is none and threads
   are still parked, that is a deadlock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polygen.errors import LaunchError
from polygen.hardware.device import common_facts, devices
from polygen.machine.blocks import analyse
from polygen.machine.lanes import Geometry
from polygen.machine.memory import BASE, OWN, SLOT, Buffer, GlobalMemory
from polygen.machine.parse import Kernel, Module, parse, type_bytes
from polygen.machine.profile import Profiler
from polygen.machine.report import Findings, Report, Stop
from polygen.machine.scheduler import Scheduler
from polygen.machine.state import Machine, Options, Placed, place_shared, shadow_bytes
from polygen.machine.stores import GlobalStores
from polygen.machine.tensormap import TensorMap
from polygen.machine.tensormap import place as place_map
from polygen.machine.translate import Translation

WAVE_THREADS = 8192  # threads per wave: large enough to amortise, small enough for the cache
SHADOW_LIMIT = 128 << 20  # bytes of race-detection state per wave
COMPLETIONS = ("late", "early", "random")


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched.

    Attributes:
        grid: CTAs along x, y, z.
        block: threads along x, y, z.
        shared_bytes: dynamic shared memory.
        arguments: in parameter order: a NumPy array for a pointer (copied in; strides kept), a
            Python or NumPy scalar by value, `bytes` for a struct by value, a `TensorMap` for a
            ``CUtensorMap``. An array given twice, or with its axes in another order, is one buffer,
            and so is the whole of a map of a part.
        entry: kernel name; None when the PTX has one kernel.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    arguments: tuple[Any, ...] = ()
    entry: str | None = None


@functools.cache
def _shared_limit(target: str) -> int:
    """Bytes of shared memory a block can have on a target; one that is not known has the most."""
    known = {device.name: device.shared_per_block_optin for device in devices()}
    return known.get(target, max(known.values()))


_CACHE: dict[str, Module] = {}
_TRANSLATIONS: dict[tuple[str, str], Translation] = {}


def _module(text: str) -> Module:
    if text not in _CACHE:
        if len(_CACHE) >= 16:
            _CACHE.clear()
            _TRANSLATIONS.clear()
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
    threads, most = int(np.prod(launch.block)), common_facts()["max_threads_per_block"]
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
    if any(g % c for g, c in zip(launch.grid, kernel.cluster, strict=True)):
        raise LaunchError(
            f"grid {launch.grid} is not a multiple of the cluster {kernel.cluster}", where=where
        )


def _check_shared(kernel: Kernel, launch: Launch, first: int, end: int, limit: int) -> None:
    extern = end - launch.shared_bytes
    if launch.shared_bytes < 0 or end - first > limit:
        raise LaunchError(
            f"{launch.shared_bytes} bytes of dynamic and {extern - first} of static shared memory",
            where=f"launch of {kernel.name}",
            nearest=f"A block has at most {limit}",
        )


def _scalar(value: Any, kind: str, size: int, where: str) -> bytes:
    """The bytes of a by-value parameter."""
    if isinstance(value, (bytes, bytearray)):
        if len(value) != size:
            raise LaunchError(f"{len(value)} bytes for a parameter of {size}", where=where)
        return bytes(value)
    if kind.startswith("b") and size not in (1, 2, 4, 8):
        raise LaunchError(
            f"a {type(value).__name__} for a struct of {size} bytes",
            where=where,
            nearest="Pass bytes",
        )
    if isinstance(value, np.generic):
        if value.itemsize != size:
            raise LaunchError(
                f"a {value.dtype} scalar for a parameter of {size} bytes", where=where
            )
        return value.tobytes()
    if isinstance(value, (bool, int)):
        if kind.startswith("f"):
            return np.array(value, f"f{size}").tobytes()
        if not -(1 << (8 * size - 1)) <= value < 1 << 8 * size:
            raise LaunchError(f"{value} does not fit in {size} bytes", where=where)
        return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    if isinstance(value, float):
        return np.array(value, f"f{size}").tobytes()
    raise LaunchError(f"a {type(value).__name__} cannot be an argument", where=where)


def _memory(array: np.ndarray[Any, Any]) -> Hashable:
    """Equal for arrays of the same elements, whatever the order of their axes."""
    if array.size == 0:
        return id(array)
    steps = zip(array.strides, array.shape, strict=True)
    return (array.ctypes.data, array.itemsize, *sorted(pair for pair in steps if pair[1] > 1))


def _place(module: Module, kernel: Kernel, launch: Launch) -> Placed:
    """Lay out global memory and the parameter bytes."""
    memory, symbols, buffers = GlobalMemory(), {}, []
    for one in (*module.variables, *kernel.variables):
        if one.space in ("global", "const"):
            buffer = memory.reserve_bytes(one.name, one.initial, one.size, max(one.align, 16))
            symbols[one.name] = BASE + buffer.offset
    data, offsets, maps = b"", {}, {}
    known: dict[Hashable, Buffer] = {}

    def reserve(where: str, array: np.ndarray[Any, Any]) -> Buffer:
        key = _memory(array)
        found = known.get(key)
        if found is None:
            known[key] = found = memory.reserve_array(where, array)
        form = {"shape": array.shape, "strides": array.strides, "dtype": array.dtype}
        buffers.append(replace(found, **form))
        return found

    for number, (one, value) in enumerate(zip(kernel.parameters, launch.arguments, strict=True)):
        where = f"argument {number} ({one.name})"
        size = one.size or type_bytes(one.kind)
        data += bytes(-len(data) % max(one.align, 1))
        offsets[one.name] = len(data)
        if isinstance(value, TensorMap):
            if size != 128:
                raise LaunchError(f"a tensor map for a parameter of {size} bytes", where=where)
            buffer = reserve(where, value.memory)
            maps[len(data)] = place_map(where, value, buffer.offset + value.start)
            data += bytes(128)
        elif isinstance(value, np.ndarray) and not (value.ndim == 0 and size != 8):
            if size != 8:
                raise LaunchError(f"an array for a parameter of {size} bytes", where=where)
            data += (BASE + reserve(where, value).offset).to_bytes(8, "little")
        else:
            scalar = value[()] if isinstance(value, np.ndarray) else value
            data += _scalar(scalar, one.kind, size, where)
    memory.build()
    return Placed(memory, tuple(buffers), symbols, offsets, data, maps)


def _waves(launch: Launch, cluster: tuple[int, int, int], shadow_bytes: int) -> list[Any]:
    """CTA numbers in launch order, cut into waves; CTAs of a cluster are neighbours."""
    gx, gy, gz = launch.grid
    threads = int(np.prod(launch.block))
    cx, cy, cz = cluster
    z, y, x = np.meshgrid(np.arange(gz), np.arange(gy), np.arange(gx), indexing="ij")
    rank = x % cx + cx * (y % cy + cy * (z % cz))
    group = x // cx + gx // cx * (y // cy + gy // cy * (z // cz))
    order = np.lexsort((rank.ravel(), group.ravel()))
    size = cx * cy * cz
    count = WAVE_THREADS // (-(-threads // 32) * 32 * size)
    count = max(1, min(count, SHADOW_LIMIT // (shadow_bytes * size))) * size
    return [order[begin : begin + count] for begin in range(0, len(order), count)]


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
) -> Report:
    """Execute a kernel on NumPy and judge it.

    Args:
        ptx_text: the PTX, as NVRTC or nvcc writes it.
        launch: grid, block, shared memory and arguments.
        completion: when asynchronous copies land: as late as allowed, at issue, or at random.
        seed: for ``completion="random"``, and for which mbarrier waits fail that may.
        checks: look for races, uninitialised reads and missing fences in shared memory.
        profile: count shared wavefronts and global sectors per instruction.
        max_steps: block executions per wave before the run is taken for an endless loop.
        progress: called with the number of CTAs that have run and of all, after every wave.

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
    threads = int(np.prod(launch.block))
    symbols, first, end = place_shared(kernel, module.variables, launch.shared_bytes)
    _check_shared(kernel, launch, first, end, _shared_limit(module.target))
    key = (ptx_text, kernel.name)
    if key not in _TRANSLATIONS:
        _TRANSLATIONS[key] = Translation(analyse(kernel))
    program = _TRANSLATIONS[key].program
    placed = _place(module, kernel, launch)
    own = OWN << SLOT if np.prod(kernel.cluster) > 1 else 0
    placed.symbols.update({name: at | own for name, at in symbols.items()})
    placed.stores = GlobalStores(program.facts, placed.memory.size) if checks else None
    shadow = shadow_bytes(program, end, threads) if checks else 1
    findings, profiler = Findings(kernel), Profiler() if profile else None
    instructions, done = 0, 0
    with np.errstate(all="ignore"):
        for wave, ctas in enumerate(_waves(launch, kernel.cluster, shadow)):
            machine = Machine(
                program,
                Geometry(launch.grid, launch.block, ctas, kernel.cluster),
                placed,
                findings,
                (first, end, launch.shared_bytes),
                Options(completion, seed + wave, checks, profiler),
            )
            try:
                Scheduler(machine, _TRANSLATIONS[key], max_steps).run()
            except Stop:
                break
            finally:
                instructions += machine.instructions
            done += len(ctas)
            if progress is not None:
                progress(done, int(np.prod(launch.grid)))
    arrays = tuple(placed.memory.view(buffer).copy() for buffer in placed.buffers)
    rows = profiler.finish(findings) if profiler is not None else ()
    return Report(arrays, findings.finish(), rows, instructions)
