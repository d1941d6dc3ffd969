"""Builds and times schedules on the GPU that is present.

1. A builder proves, generates and compiles; what it makes is a launcher's text and machine code.
2. The timer makes two sets of operands: small integers, on which every schedule must give what the
   anchor gives (sums are exact, so that their order does not matter), and normal random numbers,
   with which it is timed, because the data decides how fast the tensor cores may run.
3. The anchor's own results are compared with rows computed in float64 (`polygen.tune.reference`).
4. Outputs are poisoned before each check: an element that is never written shows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from polygen import knobs
from polygen.check import compare, is_exact
from polygen.emit.source import KernelSource
from polygen.errors import PolygenError
from polygen.frontend.dtypes import F16, TF32, DType
from polygen.frontend.grouping import rows_in_groups
from polygen.frontend.groups import routed_ends
from polygen.frontend.pitches import pitch_of
from polygen.frontend.program import Program, Tensor
from polygen.frontend.rounding import round_to
from polygen.hardware.device import Device
from polygen.pipeline import generate
from polygen.runtime.arrays import numpy_dtype
from polygen.runtime.artifact import Artifact
from polygen.runtime.cache import compile_cached
from polygen.runtime.child import Handler, Stage
from polygen.runtime.driver import cupy_driver
from polygen.runtime.launch import Launcher
from polygen.runtime.measure import captured, interleaved, milliseconds
from polygen.schedule.model import Schedule
from polygen.tune.records import REFUSED, TIMED, WRONG
from polygen.tune.reference import as_f32, bits, host, row_axes, sampled
from polygen.tune.trials import Batch, Built, Contender, Trial, be_a_child

# A prime: rows of a repeated pool of numbers then differ.
_POOL = 1_000_003
_ROWS_CHECKED = 6
_ANCHOR_SECONDS = 120.0  # its check has CuPy compile the comparison
_TIME_SECONDS = 120.0
_GRAPH_MICROSECONDS = 60.0  # shorter kernels are timed as graphs
_SLOW = 2.5  # times the anchor's: not worth repeats
_WARM = 2


@dataclass(frozen=True, slots=True)
class GpuSource:
    """Times of one program at given sizes on the current GPU."""

    program: Program  # with the alignments that the sizes leave
    device: Device
    sizes: tuple[tuple[str, int], ...]
    seed: int = 0
    settings: knobs.Knobs = field(default_factory=knobs.current)  # of the process that tunes

    def builder(self) -> Handler:
        """Give what proves, generates and compiles a schedule."""
        be_a_child(nice=True, settings=self.settings)
        return self._build

    def _build(self, schedule: Schedule, _: Stage) -> Built | Trial:
        try:
            passes = generate(self.program, self.device, dict(self.sizes), schedule)
            artifact = compile_cached(passes.source)
        except PolygenError as reason:
            return Trial(REFUSED, str(reason))
        return Built((passes.source, replace(artifact, ptx="", log="")))

    def timer(self) -> Handler:
        """Give what checks and times contenders."""
        be_a_child(nice=False, settings=self.settings)
        return Timer(gpu_tools(), self.program, dict(self.sizes), self.seed)


@dataclass(frozen=True, slots=True)
class Tools:
    """What a timer needs of a GPU; tests give it something else."""

    arrays: Any  # CuPy, or NumPy
    load: Callable[[KernelSource, Artifact, Program], Callable[..., Any]]
    synchronise: Callable[[], Any]
    interleaved: Callable[..., dict[str, list[float]]]
    milliseconds: Callable[..., list[float]]
    captured: Callable[[Callable[[Any], Any]], Callable[[], Any]]


def gpu_tools() -> Tools:
    """The GPU that is present.

    Raises:
        ToolchainMissing: there is none.
    """
    cupy_driver()
    import cupy  # noqa: PLC0415

    def load(source: KernelSource, artifact: Artifact, program: Program) -> Callable[..., Any]:
        return Launcher(source, artifact, program.inputs, program.outputs)

    wait = cupy.cuda.runtime.deviceSynchronize
    return Tools(cupy, load, wait, interleaved, milliseconds, captured)


class Timer:
    """Operands on the GPU, and the kernels that have been checked on them."""

    def __init__(self, tools: Tools, program: Program, sizes: Mapping[str, int], seed: int) -> None:
        self._tools, self._program = tools, program
        self._xp = xp = tools.arrays
        self._integers = operands(xp, program, sizes, seed, integers=True)
        self._normal = operands(xp, program, sizes, seed + 1, integers=False)
        self._outputs = tuple(empty(xp, tensor, sizes) for tensor in program.outputs)
        self._expected: tuple[Any, ...] = ()
        self._calls: dict[str, Callable[[], Any]] = {}
        self._launchers: dict[str, Callable[..., Any]] = {}
        self._anchor_time = 0.0

    def __call__(self, batch: Batch, stage: Stage) -> dict[str, Trial]:
        """Check and time the contenders of a batch beside its anchor."""
        found: dict[str, Trial] = {}
        if batch.anchor.key not in self._calls:
            stage(f"check {batch.anchor.key}", _ANCHOR_SECONDS)
            self._begin(batch.anchor)
        calls = {batch.anchor.key: self._calls[batch.anchor.key]}
        for one in batch.contenders:
            if one.key not in self._calls:
                stage(f"check {one.key}", batch.limit)
                trial = self._check(one, brief=batch.brief)
                if trial is not None:
                    found[one.key] = trial
                    continue
            calls[one.key] = self._calls[one.key]
        stage("time", _TIME_SECONDS)
        for key, times in self._tools.interleaved(calls, batch.repeats, warm=_WARM).items():
            found[key] = self._trial(times)
        return found

    @property
    def _graphs(self) -> bool:
        return self._anchor_time < _GRAPH_MICROSECONDS

    def _trial(self, times: list[float]) -> Trial:
        median = statistics.median(times)
        low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (median,) * 3
        return Trial(TIMED, "", median, (low, high), len(times), self._graphs)

    def _launch(self, one: Contender, data: Mapping[str, Any], stream: Any = None) -> None:
        arrays = [data[t.name] for t in self._program.inputs if t.dims]
        scalars = [data[t.name] for t in self._program.inputs if not t.dims]
        self._launchers[one.key](arrays, scalars, self._outputs, stream)

    def _run_on_integers(self, one: Contender) -> None:
        source, artifact = one.built
        self._launchers[one.key] = self._tools.load(source, artifact, self._program)
        for output in self._outputs:
            poison(output)
        self._launch(one, self._integers)
        self._tools.synchronise()

    def _begin(self, anchor: Contender) -> None:
        """Run the anchor, compare rows of its results with float64, and keep them all.

        Raises:
            PolygenError: they are wrong.
        """
        self._run_on_integers(anchor)
        self._expected = tuple(bits(output).copy() for output in self._outputs)
        axes = row_axes(self._program)
        counts = {
            output.shape[axes[t.name]]
            for t, output in zip(self._program.outputs, self._outputs, strict=True)
        }
        rows = sample_rows(min(counts))
        wanted = sampled(self._xp, self._program, self._integers, rows)
        for tensor, output in zip(self._program.outputs, self._expected, strict=True):
            own = self._xp.take(output, self._xp.asarray(rows), axis=axes[tensor.name])
            values = host(as_f32(self._xp, own, tensor.dtype))
            exact = is_exact(self._program)
            # Sums are exact in f32; a result of many products need not be in the output's type.
            rows_wanted = wanted[tensor.name]
            rows_wanted = round_to(rows_wanted, tensor.dtype) if exact else rows_wanted
            finding, _ = compare(tensor, values, rows_wanted, exact)
            if finding is not None:
                raise PolygenError(
                    f"{anchor.name} gives wrong results", where="tune", why=finding.sentence
                )
        for tensor, output, kept in zip(
            self._program.outputs, self._outputs, self._expected, strict=True
        ):  # CuPy compiles comparisons here, not in the seconds of the first that needs them
            differing(self._xp, tensor, output, kept)
            apart(self._xp, tensor, output, kept)
        self._anchor_time = self._brief_time(anchor)
        self._calls[anchor.key] = self._timed(anchor)

    def _check(self, one: Contender, *, brief: bool) -> Trial | None:
        """Compare with the anchor's results; None: it is right, and worth being timed."""
        try:
            self._run_on_integers(one)
        except PolygenError as reason:
            return Trial(REFUSED, str(reason))
        for tensor, found, expected in zip(
            self._program.outputs, self._outputs, self._expected, strict=True
        ):
            wrong = differing(self._xp, tensor, found, expected)
            if wrong:
                return Trial(WRONG, f"{wrong} elements of {tensor.name} differ from the anchor's")
        if brief:
            time = self._brief_time(one)
            if time > _SLOW * self._anchor_time:
                return Trial(TIMED, "", time, (time, time), 1, False)
        self._calls[one.key] = self._timed(one)
        return None

    def _brief_time(self, one: Contender) -> float:
        launch = partial(self._launch, one, self._normal)
        return statistics.median(self._tools.milliseconds(launch, warm=1, repeats=3)) * 1e3

    def _timed(self, one: Contender) -> Callable[[], Any]:
        launch = partial(self._launch, one, self._normal)
        return self._tools.captured(lambda stream: launch(stream)) if self._graphs else launch


# --- data --------------------------------------------------------------------------------------
def operands(
    xp: Any, program: Program, sizes: Mapping[str, int], seed: int, *, integers: bool
) -> dict[str, Any]:
    """Operands in their declared layouts, by name; numbers for run-time scalars.

    Args:
        xp: the module whose arrays to make, CuPy or NumPy.
        program: whose inputs to make.
        sizes: of the symbolic dims.
        seed: of the numbers.
        integers: small integers, of which every sum is exact; else normal random numbers, scaled
            so that sums are about 1.
    """
    contraction = program.contractions[0]
    multiplied = {access.name for product in program.contractions for access in product.reads}
    kept = contraction.write.index
    depth = [d for it, d in contraction.domain if it not in kept]
    scale = math.prod(d if isinstance(d, int) else sizes[d] for d in depth) ** -0.25
    # Sums in f16, and of 8-bit products, are exact for fewer bits.
    narrow = contraction.dtype == F16 or any(
        t.dtype.bits == 8 for t in program.inputs if t.name in multiplied
    )
    most = 1 if narrow else 2
    found: dict[str, Any] = {}
    for at, tensor in enumerate(program.inputs):
        generator = np.random.default_rng((seed, at))
        if integers:
            pool = generator.integers(-most, most + 1, _POOL).astype(np.float32)
        else:
            pool = generator.standard_normal(_POOL, dtype=np.float32)
            pool *= scale if tensor.name in multiplied else 1.0
        if not tensor.dims:
            found[tensor.name] = float(pool[0])
            continue
        shape = tuple(d if isinstance(d, int) else sizes[d] for d in tensor.dims)
        if tensor.name == program.ends:
            rows = rows_in_groups(program)
            count = sizes[rows] if isinstance(rows, str) else rows
            found[tensor.name] = xp.asarray(routed_ends(shape[0], count, seed))
            continue
        if tensor.name in program.gathered:
            extent = program.gathered[tensor.name]
            count = sizes[extent] if isinstance(extent, str) else extent
            found[tensor.name] = xp.asarray(generator.integers(0, count, shape, dtype=np.int32))
            continue
        pitch = sizes.get(pitch_of(tensor.name))
        found[tensor.name] = _repeated(xp, stored(tensor.dtype, pool), shape, tensor, pitch)
    return found


def stored(dtype: DType, values: Any) -> Any:
    """Values as a program stores them: NumPy, in the type in which CuPy keeps `dtype`."""
    if dtype == TF32:  # values that tf32 holds: drop the mantissa's last 13 bits
        values = (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return values.astype(dtype.numpy).view(numpy_dtype(dtype))


def _repeated(xp: Any, pool: Any, shape: tuple[int, ...], tensor: Tensor, pitch: int | None) -> Any:
    """An array of `shape` in the tensor's storage order, filled with the pool again and again."""
    size = _elements(shape, tensor, pitch)
    data = xp.tile(xp.asarray(bits(pool)), -(-size // len(pool)))[:size].view(pool.dtype)
    return _in_order(data, shape, tensor, pitch)


def _order(shape: tuple[int, ...], tensor: Tensor) -> tuple[int, ...]:
    return tensor.order or tuple(range(len(shape)))


def _elements(shape: tuple[int, ...], tensor: Tensor, pitch: int | None) -> int:
    """Elements of an array, and those between its rows."""
    row = shape[_order(shape, tensor)[-1]]
    return math.prod(shape) // row * max(row, pitch or 0)


def _in_order(data: Any, shape: tuple[int, ...], tensor: Tensor, pitch: int | None) -> Any:
    order = _order(shape, tensor)
    *rows, row = (shape[axis] for axis in order)
    array = data.reshape((*rows, max(row, pitch or 0)))[..., :row]
    return array.transpose(tuple(order.index(axis) for axis in range(len(shape))))


def empty(xp: Any, tensor: Tensor, sizes: Mapping[str, int]) -> Any:
    """An array for an output, in its storage order."""
    shape = tuple(d if isinstance(d, int) else sizes[d] for d in tensor.dims)
    pitch = sizes.get(pitch_of(tensor.name))
    data = xp.empty(_elements(shape, tensor, pitch), numpy_dtype(tensor.dtype))
    return _in_order(data, shape, tensor, pitch)


def poison(array: Any) -> None:
    """Fill an output with ones in all bits: not-a-number in every float type."""
    bits(array).fill((1 << 8 * array.dtype.itemsize) - 1)


def sample_rows(extent: int) -> list[int]:
    """The first row, the last, and some between them."""
    between = np.random.default_rng(extent).integers(0, extent, _ROWS_CHECKED - 2)
    return sorted({0, extent - 1, *map(int, between)})


def differing(xp: Any, tensor: Tensor, found: Any, expected: Any) -> int:
    """How many elements differ by more than two units in the last place of the output.

    The sums are equal, bit for bit; what the compiler fuses in the f32 arithmetic after them need
    not be, which may show as 2^-16 where results are nearly zero.
    """
    if bool((bits(found) == bits(expected)).all()):
        return 0
    return apart(xp, tensor, found, expected)


def apart(xp: Any, tensor: Tensor, found: Any, expected: Any) -> int:
    """The same where some bits differ."""
    a, b = as_f32(xp, found, tensor.dtype), as_f32(xp, expected, tensor.dtype)
    allowed = max(2.0 ** (1 - tensor.dtype.mantissa), 2.0**-18)
    close = xp.abs(a - b) <= allowed * xp.abs(b) + 2.0**-16
    return int((~(close | (a == b) | (xp.isnan(a) & xp.isnan(b)))).sum())
