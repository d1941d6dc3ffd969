"""Calls kernels that run one after another on callers' arrays.

What one kernel stores and a later one reads lies in the call's workspace, each array at a place of
its own, with rows that begin at multiples of what the copy engine takes. A combination of shapes is
prepared once: sizes, places, and what makes results.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polygen.errors import AlignmentMismatch, ArgumentError
from polygen.frontend.indices import named_in, size_value
from polygen.frontend.program import Program, Tensor
from polygen.runtime.arrays import ArrayView, describe, read
from polygen.runtime.binding import bound_sizes
from polygen.runtime.dlpack import compact
from polygen.runtime.driver import Driver, cupy_driver
from polygen.runtime.outputs import (
    address_reader,
    allocation_scope,
    allocator,
    deliver,
    stream_pointer,
)
from polygen.runtime.recent import Recent
from polygen.runtime.resumed import Resumed
from polygen.runtime.workspace import Room, address
from polygen.schedule.realign import line_bytes, row_multiple

_MOST_READY = 1024  # combinations of shapes that one sequence keeps

# What `arrays.READS` reads: addresses, and all else that a launch depends on.
Found = tuple[list[int], list[Any]]
# Launches one kernel: arrays, numbers, outputs, what was read of them, stream, workspace.
Launch = Callable[[Sequence[Any], Sequence[Any], tuple[Any, ...], Found, Any, Any], object]


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel of a sequence.

    Attributes:
        program: what it computes, by the names of arrays.
        launch: launches it, as `polygen.kernel.Kernel.into`.
        resumed: what it has ready for arrays of such forms, as `polygen.kernel.Kernel.resumed`.
        workspace: bytes that it takes beside its arrays, for sizes.
    """

    program: Program
    launch: Launch
    resumed: Callable[[list[Any]], Resumed | None]
    workspace: Callable[[dict[str, int]], int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array between kernels lies.

    Attributes:
        name: of the array.
        start: byte of the workspace.
        shape: of the array.
        strides: in elements.
        count: bytes.
    """

    name: str
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    count: int


def pitch(tensor: Tensor, sizes: Mapping[str, int]) -> int | None:
    """Elements from one row of an array between kernels to the next; None: a length is not known,
    or it has no rows.
    """
    if len(tensor.dims) < 2:
        return None
    row = tensor.dims[-1]
    if any(name not in sizes for name in named_in(row)):
        return None
    each = max(1, row_multiple() // tensor.dtype.bytes)
    return -(-size_value(row, sizes) // each) * each


def places(tensors: Sequence[Tensor], sizes: Mapping[str, int]) -> tuple[tuple[Place, ...], int]:
    """Where arrays between kernels lie in a workspace, and the first byte behind all.

    Args:
        tensors: the arrays, row-major.
        sizes: of all their dims.
    """
    found, end = [], 0
    for tensor in tensors:
        shape = tensor.shape(sizes)
        stored = (*shape[:-1], pitch(tensor, sizes) or shape[-1])
        count = math.prod(stored) * tensor.dtype.bytes
        found.append(Place(tensor.name, end, shape, compact(stored), count))
        end += -(-count // line_bytes()) * line_bytes()
    return tuple(found), end


@dataclass(slots=True)
class _Ready:
    """What a call with arrays of some forms needs.

    Attributes:
        library: of the arrays.
        device: where they are.
        between: arrays between kernels, each with its place in the workspace.
        outputs: makes the results, in order.
        address: of such a result.
        forms: of every step's arrays and outputs, as `arrays.READS` gives them.
        end: bytes of the arrays between kernels.
        own: bytes that a kernel needs itself at most.
        spans: bytes of every array that is given.
        room: for the arrays between kernels, and what a kernel needs.
        resumed: what every kernel has ready; (): none was launched yet.
    """

    library: str
    device: int
    between: tuple[tuple[int, ArrayView], ...]
    outputs: tuple[Callable[[], Any], ...]
    address: Callable[[Any], int]
    forms: tuple[list[Any], ...]
    end: int
    own: int
    spans: tuple[int, ...]
    room: Room
    resumed: tuple[Resumed, ...] = ()


class SequenceLauncher:
    """Launches the kernels of a program in their order.

    Args:
        program: the whole.
        steps: the kernels.
        between: the arrays between them.
    """

    def __init__(self, program: Program, steps: Sequence[Step], between: Sequence[Tensor]) -> None:
        self.program, self._steps, self._between = program, tuple(steps), tuple(between)
        operands = program.operands
        self._arrays = tuple(at for at, one in enumerate(operands) if one.dims)
        self._ready: Recent[Hashable, _Ready] = Recent(_MOST_READY)
        arrays = (*(operands[at] for at in self._arrays), *program.outputs, *between)
        array = {tensor.name: at for at, tensor in enumerate(arrays)}
        number = {tensor.name: at for at, tensor in enumerate(operands)}
        # Of every step: its arrays and its outputs among all arrays, its numbers among operands.
        self._slots = tuple(
            (
                tuple(array[t.name] for t in one.program.operands if t.dims),
                tuple(array[t.name] for t in one.program.outputs),
                tuple(number[t.name] for t in one.program.operands if not t.dims),
            )
            for one in self._steps
        )

    def workspace(self, sizes: dict[str, int]) -> int:
        """Bytes of a workspace for all that a call needs beside its arrays."""
        _, end = places(self._between, sizes)
        return end + max(one.workspace(sizes) for one in self._steps)

    def __call__(
        self, operands: Sequence[Any], out: Any = None, stream: Any = None, workspace: Any = None
    ) -> Any:
        """Launch all kernels; as `polygen.runtime.launch.Launcher`.

        Raises:
            ArgumentError: an argument does not fit.
            ToolchainMissing: no GPU, or not one that a kernel was compiled for.
        """
        driver = cupy_driver()
        if len(operands) != len(self.program.operands):
            raise _count("operands", self.program.operands, len(operands))
        arrays = [operands[at] for at in self._arrays]
        outs = out if out is None or isinstance(out, (tuple, list)) else (out,)
        if outs is not None and len(outs) != len(self.program.outputs):
            raise _count("outputs", self.program.outputs, len(outs))
        pointers, ready = self._prepared(arrays, outs, driver)
        library, device = ready.library, ready.device
        queue = stream_pointer(stream, library, device, driver)
        if outs is None:
            scope = contextlib.nullcontext() if stream is None else allocation_scope(
                library, queue, driver
            )  # fmt: skip
            with scope:
                outs = [make() for make in ready.outputs]
            pointers += map(ready.address, outs)
        else:
            self._check_outs(arrays, outs, pointers, ready)
        every = (*arrays, *outs)
        if workspace is not None:
            room = ready.end + ready.own, line_bytes()
            start, held = address(workspace, room, device, self.program.name, queue, driver), None
        else:
            start, held = ready.room.taken(queue, driver, explicit=stream is not None)
        plain = out is None and workspace is None  # what else is given has to be looked at
        again = plain and ready.resumed and driver.device() == device
        if not (again and self._resume(ready, pointers, start, operands, queue)):
            self._launch(ready, every, pointers, start, operands, stream)
        del held  # what is launched by now comes before whoever gets this memory next
        if out is not None:
            return out
        if library == "jax":
            with driver.stream_scope(queue):
                outs = [*map(deliver(library), outs)]
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _launch(
        self,
        ready: _Ready,
        given: tuple[Any, ...],
        pointers: list[int],
        start: int,
        operands: Sequence[Any],
        stream: Any,
    ) -> None:
        """Launch all kernels.

        Args:
            ready: what is known of such a call.
            given: its arrays and its results.
            pointers: of these.
            start: of the workspace.
            operands: of the call, numbers among them.
            stream: of the call.
        """
        places = [start + place for place, _ in ready.between]
        every = (*given, *(replace(view, pointer=at) for at, (_, view) in
                           zip(places, ready.between, strict=True)))  # fmt: skip
        addresses = (*pointers, *places)
        own = None
        if ready.own:
            lies = (ready.own,), (1,), "uint8"
            own = ArrayView(start + ready.end, *lies, ready.device, ready.library)
        for step, slots, forms in zip(self._steps, self._slots, ready.forms, strict=True):
            reads, writes, numbers = slots
            step.launch(
                [every[at] for at in reads],
                [operands[at] for at in numbers],
                tuple(every[at] for at in writes),
                ([addresses[at] for at in (*reads, *writes)], forms),
                stream,
                own,
            )

        resumed = [one.resumed(forms) for one, forms in zip(self._steps, ready.forms, strict=True)]
        if None not in resumed:
            ready.resumed = tuple(one for one in resumed if one is not None)

    def _resume(
        self,
        ready: _Ready,
        pointers: list[int],
        start: int,
        operands: Sequence[Any],
        queue: int,
    ) -> bool:
        """Launch all kernels as a call before did; as `_launch`.

        Returns:
            Whether they are launched: not if a kernel has to be another one, for the alignment of
            an address.
        """
        addresses = [*pointers, *(start + place for place, _ in ready.between)]
        own = start + ready.end
        each = [[addresses[at] for at in (*reads, *writes)] for reads, writes, _ in self._slots]
        try:
            for one, places in zip(ready.resumed, each, strict=True):
                one.inspect(places)
        except AlignmentMismatch:
            return False
        for one, places, (_, _, numbers) in zip(ready.resumed, each, self._slots, strict=True):
            one.launch(places, [operands[at] for at in numbers], own, queue)
        return True

    def _prepared(
        self, arrays: Sequence[Any], outs: Sequence[Any] | None, driver: Driver
    ) -> tuple[list[int], _Ready]:
        """Addresses of arrays, and of outputs that are given, and what such a call needs."""
        given = (*arrays, *(outs or ()))
        found = read(given)
        ready = None if found is None else self._ready.get((outs is None, *found[1]))
        if found is not None and ready is not None:
            return list(found[0]), ready
        return self._prepare(arrays, outs, driver)

    def _prepare(
        self, arrays: Sequence[Any], outs: Sequence[Any] | None, driver: Driver
    ) -> tuple[list[int], _Ready]:
        tensors = [self.program.operands[at] for at in self._arrays]
        views = [
            describe(one, name=tensor.name, driver=driver)
            for tensor, one in zip(tensors, arrays, strict=True)
        ]
        sizes = bound_sizes(tensors, views)
        library, device = views[0].library, views[0].device
        lying, end = places(self._between, sizes)
        between = [
            ArrayView(0, one.shape, one.strides, tensor.dtype, device, library)
            for one, tensor in zip(lying, self._between, strict=True)
        ]
        outputs = tuple(
            allocator(library, device, tensor.shape(sizes), tensor.dtype, tensor.order)
            for tensor in self.program.outputs
        )
        made = outs if outs is not None else [make() for make in outputs]
        forms = [self._form(one, driver) for one in (*arrays, *made, *between)]
        steps = tuple(
            [value for at in (*reads, *writes) for value in forms[at]]
            for reads, writes, _ in self._slots
        )
        own = max(one.workspace(sizes) for one in self._steps)
        ready = _Ready(
            library, device, tuple(zip((one.start for one in lying), between, strict=True)),
            outputs, address_reader(library), steps, end, own, tuple(map(_span, views)),
            Room(library, device, end + own),
        )  # fmt: skip
        pointers = [view.pointer for view in views]
        if outs is not None:
            pointers += [
                describe(one, name=tensor.name, driver=driver).pointer
                for tensor, one in zip(self.program.outputs, outs, strict=True)
            ]
        found = read((*arrays, *(outs or ())))  # by now their types are known
        if found is not None:
            self._ready.put((outs is None, *found[1]), ready)
        return pointers, ready

    @staticmethod
    def _form(array: Any, driver: Driver) -> list[Any]:
        """All that a launch depends on of one array, beside its address."""
        found = read((array,))
        return [describe(array, driver=driver).form] if found is None else found[1]

    def _check_outs(
        self, arrays: Sequence[Any], outs: Sequence[Any], pointers: Sequence[int], ready: _Ready
    ) -> None:
        """Refuse outputs whose memory an operand uses: kernels that run later may read it."""
        count = len(arrays)
        for at, (tensor, one) in enumerate(zip(self.program.outputs, outs, strict=True), count):
            last = pointers[at] + _span(describe(one, name=tensor.name))
            for number, span in enumerate(ready.spans):
                if pointers[number] < last and pointers[at] < pointers[number] + span:
                    raise ArgumentError(
                        f"{tensor.name} and {self.program.operands[self._arrays[number]].name} "
                        "overlap in memory",
                        where="out",
                        why="kernels run in turn: one would overwrite what another still reads",
                        nearest="Pass an output with memory of its own, or leave out= away",
                    )


def _span(view: ArrayView) -> int:
    """Bytes from the first element of an array to behind its last."""
    if 0 in view.shape:
        return 0
    item = view.dtype.bytes if not isinstance(view.dtype, str) else 1
    steps = zip(view.shape, view.strides, strict=True)
    return (1 + sum((size - 1) * step for size, step in steps)) * item


def _count(what: str, tensors: Sequence[Tensor], given: int) -> ArgumentError:
    return ArgumentError(
        f"{given} {what} given, {len(tensors)} expected",
        nearest=f"Expected: {', '.join(map(str, tensors))}",
    )
