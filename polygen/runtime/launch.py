"""Calls a compiled kernel on callers' arrays.

The first call with a new combination of shapes, strides, dtypes and device binds the arrays
(`binding`) and prepares a parameter block in C layout (`prepared`); later calls of that combination
find it by one comparison with the call before, or one dictionary look-up, write addresses and
scalars into the block where they are others than the block's last ones, and call
``cuLaunchKernel``.
Nothing synchronises; with ``out`` nothing is allocated but the workspace of a kernel that has one,
so that calls can be captured in a graph.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from polygen.emit.source import KernelSource
from polygen.errors import ArgumentError, ToolchainMissing
from polygen.frontend.program import Tensor
from polygen.runtime.arrays import READS, ArrayView, describe, library, read
from polygen.runtime.artifact import Artifact
from polygen.runtime.binding import bind, check_overlap, misaligned
from polygen.runtime.driver import Driver, cupy_driver
from polygen.runtime.outputs import (
    address_reader,
    allocation_scope,
    allocator,
    deliver,
    stream_pointer,
    stream_reader,
)
from polygen.runtime.prepared import Prepared
from polygen.runtime.recent import Recent
from polygen.runtime.repeated import Repeated
from polygen.runtime.resumed import Resumed
from polygen.runtime.scalars import LARGEST_F32, real
from polygen.runtime.workspace import Copies, Room, address
from polygen.schedule.realign import line_bytes

_MOST_PREPARED = 1024  # combinations kept per kernel
_MOST_PASSED = 256  # combinations of addresses that are known to be in order


class Launcher:
    """A loaded kernel.

    Args:
        source: the kernel.
        artifact: what it was compiled to.
        inputs: the program's inputs; those without dims are scalars.
        outputs: the program's outputs.
        driver: the CUDA calls; None: CuPy's, looked up at the first call.
    """

    def __init__(
        self,
        source: KernelSource,
        artifact: Artifact,
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        driver: Driver | None = None,
    ) -> None:
        self.source, self.artifact = source, artifact
        self._inputs = tuple(tensor for tensor in inputs if tensor.dims)
        self._scalars = tuple(tensor for tensor in inputs if not tensor.dims)
        self._outputs, self._count = outputs, len(self._inputs)
        self._tensors = (*self._inputs, *outputs)
        self._driver = driver
        self._prepared: Recent[Hashable, Prepared] = Recent(_MOST_PREPARED)
        self._latest: tuple[list[Hashable], Prepared | None] = ([], None)
        self._functions: dict[tuple[int, str], tuple[int, object]] = {}
        self._resident: dict[int, int] = {}  # persistent blocks that run at once, by device
        self._lock = threading.Lock()

    def __call__(
        self,
        arrays: Sequence[Any],
        scalars: Sequence[Any] = (),
        out: Any = None,
        stream: Any = None,
        workspace: Any = None,
        found: tuple[list[int], list[Hashable]] | None = None,
    ) -> Any:
        """Launch the kernel.

        Args:
            arrays: the array inputs, in order.
            scalars: the scalar inputs, in order; real numbers that fit f32.
            out: the output array, or a sequence of them; None: new arrays in the library of the
                first input.
            stream: None for the caller's current stream, else as for `stream_pointer`.
            workspace: an array for the parts of folds, or for operands that are copied or made
                first; None: one is made as outputs are, and given back when the launches are on the
                stream.
            found: what `arrays.READS` has read of the arrays, and of `out` where there is one,
                where their caller needed it, too. The addresses are this call's to change.

        Returns:
            The output array, or a tuple when there are several. The result is complete when the
            stream gets there; nothing waits for it.

        Raises:
            ArgumentError: an argument does not fit.
            AlignmentMismatch: the arrays fit but need a variant for lower alignment.
            ToolchainMissing: no GPU, or not one that this kernel was compiled for.
        """
        driver = self._driver or self._find_driver()
        outs = out if out is None or type(out) is tuple or type(out) is list else (out,)
        if found is None:
            every = arrays if outs is None else (*arrays, *outs)
            reads = READS.get(type(every[0])) if every else None
            found = None if reads is None else reads(every)
        if found is None:  # of several libraries, or one without a fast way
            pointers, forms, views = self._read(arrays, outs, stream, driver)
        else:
            (pointers, forms), views = found, ()
        latest, ready = self._latest
        if ready is None or forms != latest or len(arrays) != self._count:
            ready = self._prepared.get(key := tuple(forms))
            if ready is None or len(arrays) != self._count:
                ready = self._prepare(key, arrays, outs, views, driver)
            self._latest = forms, ready
        device = ready.device
        if driver.device() != device:
            raise self._wrong_device(device, driver.device())
        queue = ready.queue() if stream is None else stream_pointer(stream)
        if outs is None:
            outs = self._allocate(ready, pointers, stream is not None, queue, driver)
        self.inspect(ready, pointers, out)
        if scalars or self._scalars:
            scalars = self._as_floats(scalars)
        if ready.room is not None and workspace is None:
            start, held = ready.memory.taken(queue, driver, explicit=stream is not None)
            ready.submit_with(start, pointers, scalars, queue)
            del held  # what is launched by now comes before whoever gets this memory next
        elif ready.room is not None:
            start = address(workspace, ready.room, device, self.source.entry, queue, driver)
            ready.submit_with(start, pointers, scalars, queue)
        elif workspace is not None:
            raise ArgumentError(
                "a workspace is given, and this kernel takes none",
                where=self.source.entry,
                nearest="Leave workspace= away",
            )
        else:
            ready.submit(pointers, scalars, queue)
        if out is not None:
            return out
        if ready.finish is not None:
            with driver.stream_scope(queue):
                outs = [ready.finish(array) for array in outs]
        return outs[0] if len(outs) == 1 else tuple(outs)

    def resumed(self, forms: Sequence[Hashable]) -> Resumed | None:
        """What calls with arrays of such forms have ready; None: none was made."""
        ready = self._prepared.get(tuple(forms))
        return None if ready is None else Resumed(self, ready)

    def resume(
        self,
        ready: Prepared,
        pointers: list[int],
        scalars: Sequence[Any],
        start: int,
        queue: int,
    ) -> None:
        """Launch what a call has ready, with other addresses that have been inspected.

        Args:
            ready: of the forms of the arrays.
            pointers: of the arrays and the outputs; this call's to change.
            scalars: as of a call.
            start: of a workspace, where the kernel has one.
            queue: the stream.
        """
        if scalars or self._scalars:
            scalars = self._as_floats(scalars)
        if ready.room is not None:
            ready.submit_with(start, pointers, scalars, queue)
        else:
            ready.submit(pointers, scalars, queue)

    def repeated(self, arrays: Sequence[Any]) -> Repeated | None:
        """What calls with arrays like these run from now on, whose addresses alone are read.

        Args:
            arrays: of a call that was made, in CuPy or PyTorch.

        Returns:
            None where a call is more than a launch of outputs that it makes: there are scalars, a
            workspace, or no such call was made.
        """
        found = read(arrays)
        ready = None if found is None else self._prepared.get(tuple(found[1]))
        if ready is None or self._scalars or ready.room or ready.finish:
            return None
        return Repeated(ready, self.inspect, (self._driver or self._find_driver()).device)

    def inspect(self, ready: Prepared, pointers: list[int], out: Any = None) -> None:
        """Refuse addresses that do not fit; the same again need no second look.

        Raises:
            ArgumentError: an output overlaps with another array.
            AlignmentMismatch: the arrays fit but need a variant for lower alignment.
        """
        if pointers == ready.latest:
            return
        key = tuple(pointers)
        if key not in ready.passed:
            self._check_addresses(ready, pointers, out)
            if len(ready.passed) >= _MOST_PASSED:
                ready.passed = set()
            ready.passed.add(key)
        ready.latest = pointers

    def _check_addresses(self, ready: Prepared, pointers: Sequence[int], out: Any) -> None:
        """Refuse outputs that overlap with other arrays, and arrays less aligned than need be."""
        if out is not None:
            check_overlap(ready.binding, self._tensors, pointers)
        for pointer, (bits, mask) in zip(pointers, ready.checks, strict=True):
            if (pointer | bits) & mask:
                raise misaligned(ready.binding, self._tensors, pointers)

    def load(self, device: int | None = None) -> int:
        """Load the kernel on the current device, as the first call does; for use before a capture.

        Args:
            device: the current device, when it is already known.

        Returns:
            The function handle (``CUfunction``).

        Raises:
            ToolchainMissing: no GPU, or the GPU cannot run this kernel.
        """
        driver = self._driver or self._find_driver()
        device = driver.device() if device is None else device
        own = self._load(device, self.source.entry, self.source.launch.shared_bytes, driver)
        if self.source.following is not None:
            self._load(device, self.source.following.entry, 0, driver)
        return own

    def _load(self, device: int, entry: str, shared_bytes: int, driver: Driver) -> int:
        with self._lock:
            found = self._functions.get((device, entry))
            if found is None:
                try:
                    found = driver.load(self.artifact.cubin, entry, shared_bytes)
                except Exception as reason:  # CuPy's driver error; its class needs CuPy to name it
                    raise ToolchainMissing(
                        f"device {device} cannot load the kernel",
                        where=entry,
                        why=f"{reason}; it was compiled for {self.source.arch} and takes "
                        f"{shared_bytes} bytes of shared memory",
                        nearest="Compile for the target that `polygen env` prints",
                    ) from reason
                self._functions[device, entry] = found
        return found[0]

    def _find_driver(self) -> Driver:
        self._driver = cupy_driver()
        return self._driver

    def _as_floats(self, scalars: Sequence[Any]) -> Sequence[float]:
        """Check number, type and range of the scalars."""
        if len(scalars) != len(self._scalars):
            raise _count("scalars", self._scalars, len(scalars))
        for value in scalars:
            if type(value) is not float or not -LARGEST_F32 <= value <= LARGEST_F32:
                pairs = zip(scalars, self._scalars, strict=True)
                return [real(value, tensor) for value, tensor in pairs]
        return scalars

    def _allocate(
        self, ready: Prepared, pointers: list[int], explicit: bool, queue: int, driver: Driver
    ) -> list[Any]:
        """Make the outputs and append their addresses."""
        if explicit:
            with allocation_scope(ready.library, queue, driver):
                made = [make() for make in ready.allocate]
        else:
            made = [make() for make in ready.allocate]
        pointers += map(ready.address, made)
        return made

    def _read(
        self, arrays: Sequence[Any], outs: Sequence[Any] | None, stream: Any, driver: Driver
    ) -> tuple[list[int], list[Hashable], Sequence[ArrayView]]:
        """Addresses and forms of all arrays, and their views where one has no faster way."""
        every = (*arrays, *(outs or ()))
        found = read(every) if every else None
        if found is not None:
            return *found, ()
        views = self._describe(arrays, outs, stream, driver)
        return [view.pointer for view in views], [view.form for view in views], views

    def _describe(
        self, arrays: Sequence[Any], outs: Sequence[Any] | None, stream: Any, driver: Driver
    ) -> tuple[ArrayView, ...]:
        """Describe all arrays, for calls with an array that is not CuPy's or PyTorch's."""
        owner = library(type(arrays[0])) if arrays else "cupy"
        queue = stream_pointer(stream, owner, driver.device(), driver)
        self._check_counts(arrays, outs)
        return tuple(
            describe(array, name=tensor.name, stream=queue, driver=driver)
            for tensor, array in zip(self._tensors, (*arrays, *(outs or ())), strict=False)
        )

    def _check_counts(self, arrays: Sequence[Any], outs: Sequence[Any] | None) -> None:
        if len(arrays) != len(self._inputs):
            raise _count("arrays", self._inputs, len(arrays))
        if outs is not None and len(outs) != len(self._outputs):
            raise _count("outputs", self._outputs, len(outs))

    def _prepare(
        self,
        key: Hashable,
        arrays: Sequence[Any],
        outs: Sequence[Any] | None,
        views: Sequence[ArrayView],
        driver: Driver,
    ) -> Prepared:
        """Bind a new combination of forms and remember it."""
        self._check_counts(arrays, outs)
        views = views or self._describe(arrays, outs, 0, driver)
        binding = bind(self.source, self._inputs, self._outputs, views)
        if driver.device() != binding.device:
            raise self._wrong_device(binding.device, driver.device())
        shape, function = self.source.launch, self.load(binding.device)
        if shape.persistent:
            resident = self._resident.get(binding.device)
            if resident is None:
                resident = driver.resident(function, shape, binding.device)
                self._resident[binding.device] = resident
            blocks = shape.grid(dict(binding.sizes), resident)
            binding = replace(binding, grid=blocks)
        how = _launching(driver, dependent=shape.dependent)
        launch = functools.partial(
            how, function, *binding.grid, shape.threads, 1, 1, shape.shared_bytes
        )
        launches: tuple[Callable[..., Any], ...] = (launch,)
        following, sizes = self.source.following, dict(binding.sizes)
        if following is not None:
            grid, threads = (following.grid(sizes), 1, 1), (following.threads, 1, 1)
            second = self._load(binding.device, following.entry, 0, driver)
            behind = _launching(driver, dependent=following.dependent)
            launches += (functools.partial(behind, second, *grid, *threads, 0),)
        before = self.source.realign
        made = () if before is None else before.made
        ready = Prepared(
            self.source, binding, (*self._tensors, *made), self._scalars, launches,
            driver.encode_map,
        )  # fmt: skip
        if following is not None:
            ready.room = following.workspace(sizes), following.alignment
        ready.library = views[0].library
        ready.queue = stream_reader(ready.library, binding.device, driver)
        if before is not None:
            handle = self._load(binding.device, before.entry, 0, driver)
            first = _launching(driver, dependent=before.dependent)
            ready.copies = Copies(self.source, binding, self._tensors, self._scalars, first, handle)
            parts, multiple = ready.room or (0, 1)
            ready.room = ready.copies.bytes + parts, max(line_bytes(), multiple)
        if ready.room is not None:
            ready.memory = Room(ready.library, binding.device, ready.room[0])
        if outs is None:
            ready.allocate = tuple(
                allocator(ready.library, binding.device, sizes, tensor.dtype, tensor.order)
                for tensor, sizes in zip(self._outputs, binding.shapes, strict=True)
            )
            ready.address = address_reader(ready.library)
            ready.finish = deliver(ready.library) if ready.library == "jax" else None
        return self._prepared.put(key, ready)

    def _wrong_device(self, arrays: int, current: int) -> ArgumentError:
        return ArgumentError(
            f"the arrays are on device {arrays}, but the current device is {current}",
            where=self.source.entry,
            why="a launch goes to the current device's stream",
            nearest=f"Call inside `with cupy.cuda.Device({arrays}):` "
            f"or `with torch.cuda.device({arrays}):`",
        )


def _launching(driver: Driver, *, dependent: bool) -> Callable[..., Any]:
    """What launches a kernel."""
    return driver.launch_dependent if dependent else driver.launch


def _count(what: str, tensors: Sequence[Tensor], given: int) -> ArgumentError:
    names = ", ".join(map(str, tensors)) or "none"
    return ArgumentError(
        f"{given} {what} given, {len(tensors)} expected", nearest=f"Expected: {names}"
    )
