"""The source that has a card: operands in PyTorch tensors, CUDA events, CUDA graphs.

All contenders work on the same tensors and PyTorch's current stream. Nothing here decides who takes
part or in which order launches come: that is the protocol's.
"""

from __future__ import annotations

import functools
import importlib.metadata
import time
from collections.abc import Sequence
from typing import Any

import torch

from polygen.bench.card import Sampler
from polygen.bench.ceilings import ceilings, settle
from polygen.bench.compiling import revived
from polygen.bench.operations import chains, value
from polygen.bench.peers import PEERS, Peer
from polygen.bench.products import allow, drawn, torch_types
from polygen.bench.rows import Row
from polygen.bench.source import POLYGEN, Call, DeviceLost, Errors, Job
from polygen.bench.torch_code import torch_function
from polygen.frontend.groups import routed_ends
from polygen.runtime.child import Stage, one_line
from polygen.runtime.measure import FLUSHED_BYTES

_PACKAGES = (
    "triton", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cublas", "nvidia-cublas-cu12",
    "nvmath-python", "nvidia-ml-py", "numpy",
)  # fmt: skip
_LARGEST_IN_ONE_PIECE = 1 << 28  # elements compared at once, for memory's sake


class Operands:
    """Random operands of a row, and its result in float64: normal, or all integers of the type.

    Attributes:
        timed: by name, what is timed.
        gentle: the same with all right matrices scaled by 1 / sqrt(K), so that sums are about 1,
            where activations bend; with `timed` they are nearly straight. Integers stay.
        outs: polygen's results.
        scratches: one for each product, any library's.
        values: the scratches as steps name them.
    """

    def __init__(self, row: Row, device: str = "cuda") -> None:
        torch.manual_seed(0)
        self.row, kinds = row, torch_types()
        self.timed = {}
        for name, dims in row.operation.operands:
            shape, kind = row.shape(name), kinds[row.type_of(name)]
            if name in row.operation.ends:
                ends = routed_ends(shape[0], row.m, row.batch)
                self.timed[name] = torch.from_numpy(ends).to(device)
            elif len(dims) > 1:  # rows may have elements between them that nobody reads
                wide = drawn((*shape[:-1], shape[-1] + row.pad), kind, device)
                self.timed[name] = wide[..., : shape[-1]]
            else:
                self.timed[name] = drawn(shape, kind, device)
        self.gentle = dict(self.timed)
        for name in dict.fromkeys(found.right[0] for found in chains(row.operation)):
            right = self.timed[name]
            if right.is_floating_point():
                made = torch.empty_strided(
                    right.shape, right.stride(), device=device, dtype=right.dtype
                )
                self.gentle[name] = made.copy_(right.float() * row.k**-0.5)
        made_of = functools.partial(torch.empty, device=device, dtype=kinds[row.elements.result])
        self.outs = tuple(made_of(shape) for shape in row.results)
        inner = row.operation.inner is not None  # products stay inside: no library writes them
        self.scratches = () if inner else tuple(made_of(shape) for shape in row.products)
        self.values = {value(number): z for number, z in enumerate(self.scratches)}

    @property
    def out(self) -> Any:
        """Polygen's result, or a tuple of them."""
        return self.outs if len(self.outs) > 1 else self.outs[0]

    def poison(self) -> None:
        """Make results and scratches NaN."""
        for array in (*self.outs, *self.scratches):
            array.fill_(float("nan"))

    def exact(self, gentle: bool, sizes: bool = False) -> Any:
        """The result in float64, or a tuple of them.

        Args:
            gentle: of `gentle` operands.
            sizes: with what is summed up last without its sign: how large the terms are.
        """
        operands = self.gentle if gentle else self.timed
        operation = self.row.operation
        wide = {name: operands[name].double() for name in operation.names}
        if sizes and operation.summed:
            wide[operation.summed] = wide[operation.summed].abs()
        return torch_function(operation)(*wide.values())


def errors(y: Any, exact: Any, terms: Any = None) -> Errors:
    """Relative Frobenius error, and the largest |y - exact| / (|exact| + rms(exact)).

    Of several results the larger of each; NaN is larger than any number. Where a result sums up
    what was rounded before, as attention does, `terms` is the sum of its terms without signs, and
    the largest error is a part of that: elements near zero may have large terms.
    """
    if isinstance(exact, tuple):
        return functools.reduce(larger, [errors(a, b) for a, b in zip(y, exact, strict=True)])
    y, exact = y.flatten(0, -2), exact.flatten(0, -2)  # batches below one another
    terms = None if terms is None else terms.flatten(0, -2)
    norm = exact.norm()
    typical = norm / exact.numel() ** 0.5
    square, largest = torch.zeros((), dtype=torch.float64, device=exact.device), []
    rows = max(1, _LARGEST_IN_ONE_PIECE // exact.shape[1])
    for start in range(0, exact.shape[0], rows):
        part = slice(start, start + rows)
        difference = y[part].double() - exact[part]
        square += difference.square().sum()
        scale = exact[part].abs() + typical if terms is None else terms[part]
        largest.append((difference.abs() / scale).max())
    return float(square.sqrt() / norm), float(torch.stack(largest).max())


def larger(one: Errors, two: Errors) -> Errors:
    """The larger of each; NaN is larger than any number."""
    first, second = (b if b != b or b > a else a for a, b in zip(one, two, strict=True))
    return first, second


class GpuSource:
    """The current card."""

    def __init__(self) -> None:
        torch.set_grad_enabled(False)
        self._sampler = Sampler()
        self._flush = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
        self._peers: dict[str, Peer] = {}
        self._missing: dict[str, str] = {}
        settle()

    def peer(self, name: str) -> Peer:
        """A library, made once.

        Raises:
            Exception: whatever says that it is not there.
        """
        if name not in self._peers:
            self._peers[name] = PEERS[name]()
        return self._peers[name]

    def about(self, stage: Stage) -> dict[str, Any]:
        """Versions, ceilings, and which libraries are missing, with the reason."""
        found = {"torch": torch.__version__, "cuda": torch.version.cuda}
        for package in _PACKAGES:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        missing = {}
        for name in PEERS:
            try:
                found |= {f"{name}.{k}": v for k, v in self.peer(name).versions().items()}
            except Exception as error:
                missing[name] = one_line(error)
        settle()  # again: kernels were compiled meanwhile, and the card had nothing to do
        gpu = torch.cuda.get_device_properties(0)
        return {
            "versions": found,
            "missing": missing,
            "ceilings": ceilings(self.timed),
            "gpu": {"name": gpu.name, "multiprocessors": gpu.multi_processor_count},
        }

    def timed(self, calls: Sequence[Call]) -> list[float]:
        """Microseconds of launches in this order, each with a cold L2 cache."""
        pairs = []
        for call in calls:
            self._flush.zero_()
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            stop.record()
            pairs.append((start, stop))
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) * 1e3 for start, stop in pairs]

    def open(self, job: Job, stage: Stage) -> GpuWork:
        """Make a row's operands and its result in float64."""
        torch.cuda.empty_cache()
        allow(job.row.dtype, job.row.acc)
        work = GpuWork(self, job, self._sampler)
        torch.cuda.synchronize()
        return work


class GpuWork:
    """One row on the card."""

    def __init__(self, source: GpuSource, job: Job, sampler: Sampler) -> None:
        self._source, self._job, self._sampler = source, job, sampler
        self.row, self.operands = job.row, Operands(job.row)
        self._exact = self.operands.exact(gentle=False)
        summed = job.row.operation.summed
        self._terms = self.operands.exact(gentle=False, sizes=True) if summed else None
        self._kernel: Any = None
        self._facts: dict[str, dict[str, Any]] = {}

    def timed(self, calls: Sequence[Call]) -> list[float]:
        """As `GpuSource.timed`."""
        return self._source.timed(calls)

    def make(self, name: str) -> Call:
        """A contender.

        Raises:
            DeviceLost: nothing works after it.
            Exception: it cannot be made.
        """
        start = time.monotonic()
        try:
            if name == POLYGEN:
                self._kernel = revived(self._job.kernel)
                call: Call = functools.partial(self._polygen, gentle=False)
            else:
                call = self._source.peer(name).make(self)
            call()
            torch.cuda.synchronize()
        except Exception as error:
            alive(error)
            raise
        self._facts.setdefault(name, {})["seconds_to_make"] = round(time.monotonic() - start, 1)
        return call

    def _polygen(self, gentle: bool) -> Any:
        """Launch the kernel; gives its output."""
        held = self.operands.gentle if gentle else self.operands.timed
        values = [held[name] for name in self.row.operation.names]
        self._kernel(*values, out=self.operands.out)
        return self.operands.out

    def check(self, name: str, call: Call) -> Errors:
        """Errors of a contender; of polygen on both data, the larger of each.

        Raises:
            DeviceLost: nothing works after it.
        """
        try:
            self.operands.poison()
            found = errors(call(), self._exact, self._terms)
            if name == POLYGEN:
                self.operands.poison()
                self._polygen(gentle=True)
                gentle = self.operands.exact(gentle=True)
                found = larger(found, errors(self.operands.out, gentle, self._terms))
        except Exception as error:
            alive(error)
            raise
        return found

    def empty(self) -> Call:
        """One thread that returns at once."""
        return functools.partial(torch.cuda._sleep, 0)

    def poison(self) -> None:
        """Make polygen's output NaN, and any library's."""
        self.operands.poison()

    def left(self) -> Errors:
        """Errors of polygen's output as it is."""
        return errors(self.operands.out, self._exact, self._terms)

    def note(self, name: str, **facts: Any) -> None:
        """Keep something about a contender for the record."""
        self._facts.setdefault(name, {}).update(facts)

    def facts(self, name: str) -> dict[str, Any]:
        """What was noted, and the seconds that making it took."""
        return self._facts.get(name, {})

    def captured(self, name: str, call: Call) -> Call:
        """The replay of a CUDA graph that holds one call; the call has been made before."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = call()  # the graph writes to it

        def replay(kept: Any = kept) -> None:
            graph.replay()

        return replay

    def conditions(self) -> dict[str, Any]:
        """Clocks, power and temperature since the last call."""
        return self._sampler.take()


def alive(error: BaseException) -> None:
    """See whether the device still works after an error.

    Raises:
        DeviceLost: it does not.
    """
    try:
        torch.cuda.synchronize()
    except Exception:
        raise DeviceLost(one_line(error)) from error
