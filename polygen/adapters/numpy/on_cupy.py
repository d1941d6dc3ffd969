"""CuPy as a backend of the NumPy adapter: what is fused, and what is handed to its libraries."""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polygen.adapters.kernels import Kernels, stored
from polygen.adapters.numpy.cublas import Products
from polygen.adapters.numpy.elementwise import Ends, of_fused
from polygen.adapters.numpy.memory import FOREIGN
from polygen.adapters.numpy.on_numpy import Backend
from polygen.adapters.numpy.operations import ArrayForm, Operation, Shape, form_of
from polygen.adapters.numpy.totals import Part, Total, is_total, of_total
from polygen.adapters.numpy.trials import Spent
from polygen.api import target
from polygen.emit.elementwise import NAME
from polygen.errors import PolygenError
from polygen.frontend.program import Program
from polygen.hardware.device import Device
from polygen.runtime.arrays import storage_order
from polygen.runtime.recent import Recent

# Of a block of CuPy's kernels of folds: threads, its results side by side, and how many elements
# cost less than another launch.
_THREADS, _SHARED, _SHORT = 512, 32, 8192
# Parts of the rows of a matrix that are summed by themselves: a power of two that divides them.
_MOST_PARTS, _LEAST_PARTS = 64, 4
_MOST_SUMMED = 1 << 16  # rows of float32 that are one product: partial sums of more would be long
_MOST_FUSED = 4096
_ALLOCATED = ("Memory", "MemoryAsync", "ManagedMemory", "PooledMemory")
_LARGE = 1 << 22  # elements whose reading by few blocks takes longer than another launch


class CuPy(Backend):
    """CuPy: kernels and libraries on the GPU present; polygen's kernels where they win."""

    # What `cupy.fuse` has, with the types that NumPy's functions have; `mean` is a sum, divided.
    _FUSED = frozenset(["sum", "prod", "max", "min", "mean"])

    times = updates = True

    def __init__(self, module: Any) -> None:
        self.module = module
        self._kernels = Kernels()
        self._fused: Recent[Any, Any] = Recent(_MOST_FUSED)  # CuPy's kernels, by `Ends.key`
        self._traces: Recent[Any, Any] = Recent(_MOST_FUSED)  # likewise, of what folds read
        self._products = Products(module)

    def waits(self) -> bool:
        """Not while the current stream is captured."""
        return not self.module.cuda.get_current_stream().is_capturing()

    def timed(self, function: Callable[[], Any]) -> Spent:
        """Of an idle stream, until it is idle again."""
        stream = self.module.cuda.get_current_stream()
        stream.synchronize()
        began = time.perf_counter()
        function()
        issued = time.perf_counter()
        stream.synchronize()
        return Spent(issued - began, time.perf_counter() - began)

    def fuse(self, function: Callable[..., Any], ends: Ends | None = None) -> Callable[..., Any]:
        """By `cupy.fuse`; what that cannot do runs as it is.

        The first time decides. Its arrays have the types and the numbers of axes of all that
        follow, so that its kernel is the one that they need, too. One without a fold is launched
        by `polygen.adapters.numpy.elementwise` from then on, and for other shapes.
        """
        way: Callable[..., Any] | None = None
        number = ends is not None and not ends.shape

        def run(*operands: Any) -> Any:
            nonlocal way
            if way is not None:
                return way(*operands)
            known = None if ends is None else self._fused.get(ends.key)
            way = known and of_fused(self.module, known, operands, ends)
            if way is not None:
                return way(*operands)
            try:
                found, kernel = self._traced(function, operands, number)
            except Exception:
                way = function
                return function(*operands)
            way = of_fused(self.module, kernel, operands, ends)
            if way is not None and ends is not None and ends.key is not None:
                self._fused.put(ends.key, kernel)
            way = way or (function if number else kernel)
            return found

        return run

    def _traced(
        self, function: Callable[..., Any], operands: Sequence[Any], number: bool
    ) -> tuple[Any, Callable[..., Any]]:
        """What a function gives that `cupy.fuse` runs, and the kernel that it made.

        Args:
            function: of the operands.
            operands: arrays and numbers.
            number: whether none of them has axes.
        """
        fused = self.module.fuse(kernel_name=NAME)(function)
        found = fused(*(map(self._with_axis, operands) if number else operands))
        if number and found is not None:
            several = isinstance(found, tuple)
            found = tuple(x.reshape(()) for x in found) if several else found.reshape(())
        return found, _kernel_of(fused)

    def totals(self, fold: Operation) -> bool:
        """On one GPU: arrays of another than the current one are CuPy's to reach."""
        return is_total(fold) and self._is_one()

    @functools.cache  # noqa: B019  (one for each process)
    def _is_one(self) -> bool:
        return int(self.module.cuda.runtime.getDeviceCount()) == 1

    def total(self, whole: Total, composed: Callable[..., Any]) -> Callable[..., Any]:
        """By a kernel of `polygen.adapters.numpy.totals`; the first time by CuPy's, in parts."""
        before, behind, fold = whole.before, whole.behind, whole.fold
        way: Callable[..., Any] | None = None

        def part(one: Part, operands: Sequence[Any]) -> Any:
            try:
                found, kernel = self._traced(one.function, operands, not one.ends.shape)
            except Exception:
                return one.function(*operands)
            self._traces.put(one.ends.key, kernel)
            return found

        def apart(*operands: Any) -> Any:
            if before is None:
                found = operands[whole.place]
            else:
                found = part(before, [operands[place] for place in before.places])
            found = self.fold(fold, found).reshape(fold.shape)
            if behind is not None:
                found = part(behind, [found, *(operands[place] for place in behind.places)])
            return found

        def made(operands: Sequence[Any]) -> Callable[..., Any] | None:
            ends = [None if one is None else one.ends for one in (before, behind)]
            first, last = (None if one is None else self._traces.get(one.key) for one in ends)
            return of_total(self.module, whole, (first, last), operands, composed)

        def run(*operands: Any) -> Any:
            nonlocal way
            if way is not None:
                return way(*operands)
            way = made(operands)
            if way is not None:
                return way(*operands)
            found = apart(*operands)
            way = made(operands) or composed
            return found

        return run

    def _with_axis(self, operand: Any) -> Any:
        """Not without axes, where it is an array: of such alone CuPy fuses nothing."""
        return operand.reshape(1) if isinstance(operand, self.module.ndarray) else operand

    def folds(self, fold: Operation, shapes: Sequence[Shape]) -> bool:
        """Where CuPy's kernels of folds keep the GPU busy, and read along rows.

        They have one block for some results, and none for parts of a result; CuPy's functions hand
        long sums to CUB. Neighbouring threads go down a vector of one element a row, and so read
        matrices astray. Means whose sums need a wider type than theirs are not fused.
        """
        whole = fold.shapes[0]
        along_rows = not _keeps_last(fold)
        shared = any(s and s[-1] == 1 and math.prod(s) > 1 for s in shapes) and whole in shapes
        wide = fold.name != "mean" or fold.loop[0] in (np.float32, np.float64)
        return (
            fold.name in self._FUSED
            and wide
            and self._is_busy(fold)
            and not (along_rows and shared)
        )

    def is_read_twice(self, fold: Operation) -> bool:
        """Short ones to one number: of a single array CuPy makes these in two launches, by CUB."""
        return fold.size == 1 and math.prod(fold.shapes[0]) <= _SHORT

    def _is_busy(self, fold: Operation) -> bool:
        """Whether CuPy's kernel of a fold has a block for each multiprocessor, or little to do."""
        elements = math.prod(fold.shapes[0])
        length = elements // max(1, fold.size)
        results = _SHARED if _keeps_last(fold) else max(1, _THREADS // length)
        blocks = -(-fold.size // results)
        return blocks >= self._multiprocessors() or elements <= _SHORT * blocks

    @functools.cache  # noqa: B019  (one for each process)
    def _multiprocessors(self) -> int:
        return int(self.module.cuda.Device().attributes["MultiProcessorCount"])

    def _folded(self, fold: Operation, operand: Any) -> Any:
        return self.fold(fold, operand).reshape(fold.shape)

    def alone(self, fold: Operation) -> Callable[[Any], Any] | None:
        """One kernel of few elements to one number; and sums over the rows of a matrix.

        Of a matrix with few columns CuPy has too few blocks for these. They are products with a
        vector of ones: where float32 would be multiplied in fewer bits, and of more rows, those of
        float32 are sums of parts of the rows, and sums of these, if they are large.
        """
        if self.totals(fold):
            return self.total(Total(None, 0, fold, None), functools.partial(self._folded, fold))
        whole, kind = fold.shapes[0], fold.loop[0]
        few = fold.name in ("sum", "mean") and len(whole) == 2 and fold.axis == 0
        if not few or kind not in (np.float32, np.float64) or self._is_busy(fold):
            return None
        rows, columns = whole
        ones: list[Any] = []
        parts = math.gcd(rows, _MOST_PARTS)
        wide = kind == np.float64 or (rows <= _MOST_SUMMED and self._products.is_usual(kind))
        if not wide and (parts < _LEAST_PARTS or rows * columns < _LARGE):
            return None

        def total(operand: Any) -> Any:
            if not wide:
                return operand.reshape(parts, rows // parts, columns).sum(axis=1).sum(axis=0)
            if not ones:
                ones.append(self.module.ones(rows, kind))
            return self.product(
                ones[0], operand, form_of((rows,), kind), form_of(whole, operand.dtype)
            )

        def run(operand: Any) -> Any:
            found = total(operand)
            return (found / rows if fold.name == "mean" else found).reshape(fold.shape)

        return run

    def sums(self, kind: np.dtype[Any]) -> bool:
        """As CuPy computes it, but for the launches: of types whose sums are of that type too."""
        return kind.char in "fd"

    def product(self, first: Any, second: Any, form: ArrayForm, other: ArrayForm) -> Any:
        """By cuBLAS, where it is known how."""
        return self._products(first, second, form, other)

    def fold(self, fold: Operation, operand: Any) -> Any:
        """Without kept axes, which fused functions do not have."""
        if fold.name != "mean":
            return getattr(self.module, fold.name)(operand, axis=fold.axis)
        count = math.prod(fold.shapes[0]) // max(1, fold.size)
        return self.module.true_divide(self.module.sum(operand, axis=fold.axis), float(count))

    def device(self) -> Device | None:
        """The GPU present, if polygen knows it."""
        try:
            return target(None)
        except PolygenError:
            return None

    def launch(
        self, program: Program, sizes: Mapping[str, int], arrays: Sequence[Any]
    ) -> tuple[Any, ...]:
        """By one kernel, on CuPy's current stream."""
        arrays = [self._plain(array) for array in arrays]
        orders = [storage_order(a.shape, steps_of(a)) for a in arrays]
        found = self._kernels.find(stored(program, orders), sizes)(*arrays)
        return found if isinstance(found, tuple) else (found,)

    def _plain(self, array: Any) -> Any:
        """The array, or a copy where no axis has adjacent neighbours."""
        steps = [s for s, extent in zip(steps_of(array), array.shape, strict=True) if extent > 1]
        bad = bool(steps) and (1 not in steps or 0 in steps or min(steps) < 0)
        return self.module.ascontiguousarray(array) if bad else array

    def host(self, value: Any) -> np.ndarray[Any, Any]:
        """A copy, when the GPU has computed it."""
        found: np.ndarray[Any, Any] = self.module.asnumpy(value)
        return found

    def address(self, value: Any) -> int:
        """In device memory."""
        return int(value.data.ptr)

    def memory(self, value: Any) -> Any:
        """CuPy's allocation, which also arrays made by address share."""
        found = value.data.mem
        return found if type(found) in self._own else FOREIGN

    def is_sole(self, value: Any) -> bool:
        """By the references to the address and the allocation."""
        if value.base is not None:
            return False
        at = value.data
        if type(at.mem) not in self._own:
            return False
        held, owned = self._counted()
        return sys.getrefcount(at) <= held and sys.getrefcount(at.mem) <= owned

    @functools.cached_property
    def _own(self) -> frozenset[type]:
        """Classes of what only CuPy allocates; others wrap what somebody else has."""
        memory = self.module.cuda.memory
        return frozenset(getattr(memory, name) for name in _ALLOCATED if hasattr(memory, name))

    @functools.cache  # noqa: B019  (one for each process)
    def _counted(self) -> tuple[int, int]:
        """References to the address and the allocation of an array that nothing shares."""
        value = self.module.empty(1)
        at = value.data
        return sys.getrefcount(at), sys.getrefcount(at.mem)


def _keeps_last(fold: Operation) -> bool:
    """Whether the elements of a row go to results of their own."""
    last = len(fold.shapes[0]) - 1
    axes = fold.axis if isinstance(fold.axis, tuple) else (fold.axis,)
    return fold.axis is not None and last not in axes


def _kernel_of(fused: Any) -> Callable[..., Any]:
    """The one kernel that `cupy.fuse` has made: finding it anew in every call takes as long as
    two of the operations that it saves; the function itself where CuPy keeps it elsewhere.
    """
    made = getattr(fused, "_memo", None)
    if not isinstance(made, dict) or len(made) != 1 or getattr(fused, "new_fusion", None):
        return fused  # type: ignore[no-any-return]
    (entry,) = made.values()
    if not isinstance(entry, tuple) or len(entry) != 2 or not callable(entry[0]):
        return fused  # type: ignore[no-any-return]
    kernel, options = entry
    return functools.partial(kernel, **options) if options else kernel


def steps_of(array: Any) -> list[int]:
    """Strides in elements."""
    return [stride // array.itemsize for stride in array.strides]
