"""Builds and times schedules on the GPU that is present.

1. A builder proves, generates and compiles; what it makes is a launcher's text and machine code.
2. The timer makes two sets of operands: small integers, on which every schedule must give what the
   anchor gives (sums are exact, so that their order does not matter), and normal random numbers,
   with which it is timed, because the data decides how fast the tensor cores may run.
3. The anchor's own results are compared with rows computed in float64 (`polygen.tune.reference`);
   where results depend on more than their row, all of them on a small problem, as `Kernel.check`
   compares them.
4. Outputs are poisoned before each check: an element that is never written shows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from polygen import knobs
from polygen.comparison import compare, is_exact, meanings
from polygen.emit.source import KernelSource
from polygen.errors import PolygenError
from polygen.frontend.program import Program, Tensor
from polygen.frontend.rounding import round_to
from polygen.hardware.device import Device
from polygen.pipeline import generate
from polygen.runtime.artifact import Artifact
from polygen.runtime.cache import compile_cached
from polygen.runtime.child import Handler, Stage
from polygen.runtime.driver import cupy_driver
from polygen.runtime.launch import Launcher
from polygen.runtime.measure import captured, interleaved, milliseconds
from polygen.schedule.model import Schedule
from polygen.tune.data import empty, meant, operands, poison
from polygen.tune.records import REFUSED, TIMED, WRONG
from polygen.tune.reference import as_f32, bits, host, row_axes, sampled
from polygen.tune.trials import Batch, Built, Contender, Trial, be_a_child

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
    small: tuple[tuple[str, int], ...] | None = None  # of a problem whose results are all compared
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
        small = None if self.small is None else dict(self.small)
        return Timer(gpu_tools(), self.program, dict(self.sizes), self.seed, small)


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

    def __init__(
        self,
        tools: Tools,
        program: Program,
        sizes: Mapping[str, int],
        seed: int,
        small: dict[str, int] | None = None,
    ) -> None:
        self._tools, self._program, self._small = tools, program, small
        self._exact = is_exact(program)
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

    def _launch(
        self, one: Contender, data: Mapping[str, Any], stream: Any = None, outputs: Any = None
    ) -> None:
        arrays = [data[t.name] for t in self._program.inputs if t.dims]
        scalars = [data[t.name] for t in self._program.inputs if not t.dims]
        self._launchers[one.key](arrays, scalars, outputs or self._outputs, stream)

    def _run_on_integers(self, one: Contender) -> None:
        source, artifact = one.built
        self._launchers[one.key] = self._tools.load(source, artifact, self._program)
        for output in self._outputs:
            poison(output)
        self._launch(one, self._integers)
        self._tools.synchronise()

    def _begin(self, anchor: Contender) -> None:
        """Run the anchor, compare its results with float64, and keep them all.

        Raises:
            PolygenError: they are wrong.
        """
        self._run_on_integers(anchor)
        self._expected = tuple(bits(output).copy() for output in self._outputs)
        if self._small is None:
            self._compare_rows(anchor)
        else:
            self._compare_all(anchor, self._small)
        for tensor, output, kept in zip(
            self._program.outputs, self._outputs, self._expected, strict=True
        ):  # CuPy compiles comparisons here, not in the seconds of the first that needs them
            differing(self._xp, tensor, output, kept, exact=self._exact)
            apart(self._xp, tensor, output, kept, exact=self._exact)
        self._anchor_time = self._brief_time(anchor)
        self._calls[anchor.key] = self._timed(anchor)

    def _compare_all(self, anchor: Contender, sizes: dict[str, int]) -> None:
        """Compare all results of a small problem with the program's meaning."""
        given = operands(self._xp, self._program, sizes, 0, integers=True)
        outputs = tuple(empty(self._xp, tensor, sizes) for tensor in self._program.outputs)
        for output in outputs:
            poison(output)
        self._launch(anchor, given, outputs=outputs)
        self._tools.synchronise()
        arrays = {t.name: meant(given[t.name], t) for t in self._program.inputs}
        every = meanings(self._program, arrays, sizes)
        for tensor, output, *wanted in zip(self._program.outputs, outputs, *every, strict=True):
            finding, _ = compare(tensor, meant(output, tensor), wanted[0], self._exact, *wanted[1:])
            if finding is not None:
                raise _is_wrong(anchor, finding.sentence)

    def _compare_rows(self, anchor: Contender) -> None:
        """Compare some rows of what is kept with float64."""
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
            exact = self._exact
            # Sums are exact in f32; a result of many products need not be in the output's type.
            rows_wanted = wanted[tensor.name]
            rows_wanted = round_to(rows_wanted, tensor.dtype) if exact else rows_wanted
            finding, _ = compare(tensor, values, rows_wanted, exact)
            if finding is not None:
                raise _is_wrong(anchor, finding.sentence)

    def _check(self, one: Contender, *, brief: bool) -> Trial | None:
        """Compare with the anchor's results; None: it is right, and worth being timed."""
        try:
            self._run_on_integers(one)
        except PolygenError as reason:
            return Trial(REFUSED, str(reason))
        for tensor, found, expected in zip(
            self._program.outputs, self._outputs, self._expected, strict=True
        ):
            wrong = differing(self._xp, tensor, found, expected, exact=self._exact)
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


def _is_wrong(anchor: Contender, why: str) -> PolygenError:
    return PolygenError(f"{anchor.name} gives wrong results", where="tune", why=why)


def sample_rows(extent: int) -> list[int]:
    """The first row, the last, and some between them."""
    between = np.random.default_rng(extent).integers(0, extent, _ROWS_CHECKED - 2)
    return sorted({0, extent - 1, *map(int, between)})


def differing(xp: Any, tensor: Tensor, found: Any, expected: Any, *, exact: bool = False) -> int:
    """How many elements differ by more than two units in the last place of the output.

    The sums are equal, bit for bit; what the compiler fuses in the f32 arithmetic after them need
    not be, which may show as 2^-16 where results are nearly zero. Of whole numbers the same may
    round one to its neighbour, where the program is not exact on the operands.
    """
    if bool((bits(found) == bits(expected)).all()):
        return 0
    return apart(xp, tensor, found, expected, exact=exact)


def apart(xp: Any, tensor: Tensor, found: Any, expected: Any, *, exact: bool = False) -> int:
    """The same where some bits differ."""
    a, b = as_f32(xp, found, tensor.dtype), as_f32(xp, expected, tensor.dtype)
    relative, least = max(2.0 ** (1 - tensor.dtype.mantissa), 2.0**-18), 2.0**-16
    if tensor.dtype.kind != "float":
        relative, least = 0.0, float(tensor.dtype.kind == "int" and not exact)
    close = xp.abs(a - b) <= relative * xp.abs(b) + least
    return int((~(close | (a == b) | (xp.isnan(a) & xp.isnan(b)))).sum())
