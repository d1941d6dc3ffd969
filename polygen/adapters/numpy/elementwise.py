"""Kernels of pointwise functions as `cupy.fuse` writes them, launched without asking what is known.

In every call CuPy's kernels find out anew which types, shapes and layouts their operands have, and
which compiled function that needs. In a plan all but the layouts are known, so these are the key:
the strides of the operands have one launch, made when they are first seen. What a thread computes
is CuPy's own text; where its operands are is one of three ways,

    whole     arrays without gaps, of the result's shape: element i
    one       a single element
    strided   row ``i // inner``, column ``i % inner``, with a stride for either

and what needs more than two axes, or 32 bits of elements, is left to CuPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.adapters.numpy.launching import ADDRESS, Launch, letter_of
from polygen.adapters.numpy.operations import ArrayForm, Shape
from polygen.emit.elementwise import NAME, Value, elementwise

_MOST_ELEMENTS = 1 << 31
_MOST_LAYOUTS = 64  # of one kernel
_MOST_KERNELS = 4096
_THREADS = 128

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ends:
    """What a pointwise kernel reads and writes.

    Attributes:
        operands: shapes; () of numbers.
        results: shape and type of each.
        shape: that it runs over.
        key: what tells its text from others', whatever the shapes are.
    """

    operands: tuple[Shape, ...]
    results: tuple[ArrayForm, ...]
    shape: Shape
    key: Any = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a kernel's operands are.

    Attributes:
        ways: "n", a number, "w", whole, "o", one, or "s", strided, of each operand.
        size: elements of a result.
        tail: what the kernel takes behind its arrays: size, and where there are strides, the inner
            extent and two strides of each strided operand.
    """

    ways: str
    size: int
    tail: tuple[int, ...]


def layout(
    shape: Shape, operands: Sequence[Shape | None], strides: Sequence[Strides]
) -> Layout | None:
    """How operands of some strides lie beside results without gaps.

    Args:
        shape: of the results.
        operands: shapes of the operands; None: a number.
        strides: of those that are arrays, in elements.

    Returns:
        None: they take more than two axes, or more than 31 bits.
    """
    size = math.prod(shape)
    if not 0 < size < _MOST_ELEMENTS:
        return None
    given = iter(strides)
    arrays = [_stretched(own, next(given), shape) if own is not None else None for own in operands]
    whole = _whole(shape)
    axes = _merged(shape, [whole, *(one for one in arrays if one is not None)])
    if len(axes) > 2:
        return None
    ways, tail = [], [size]
    inner = axes[-1][0] if axes else 1
    place = 0
    for one in arrays:
        if one is None:
            ways.append("n")
            continue
        place += 1
        steps = [steps[place] for _, steps in axes]
        if not any(steps):
            ways.append("o")
        elif all(step == own[0] for step, (_, own) in zip(steps, axes, strict=True)):
            ways.append("w")
        else:
            ways.append("s")
            outer, along = [0] * (2 - len(steps)) + steps
            rows = size // inner
            if abs(outer) * rows + abs(along) * inner >= _MOST_ELEMENTS:
                return None
            tail += [outer, along]
    if "s" in ways:
        tail.insert(1, inner)
    return Layout("".join(ways), size, tuple(tail))


def _whole(shape: Shape) -> Strides:
    found, step = [], 1
    for extent in reversed(shape):
        found.append(step)
        step *= extent
    return tuple(reversed(found))


def _stretched(own: Shape, strides: Strides, shape: Shape) -> Strides:
    """Strides of an array as one of a larger shape."""
    steps = [0 if extent == 1 else step for extent, step in zip(own, strides, strict=True)]
    return (0,) * (len(shape) - len(own)) + tuple(steps)


def _merged(shape: Shape, arrays: Sequence[Strides]) -> list[tuple[int, list[int]]]:
    """Extents, and a stride of each array, of the fewest axes that give the same places."""
    axes: list[tuple[int, list[int]]] = []
    for axis, extent in enumerate(shape):
        steps = [strides[axis] for strides in arrays]
        if extent == 1:
            continue
        if axes and all(out == step * extent for out, step in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * extent, steps)
        else:
            axes.append((extent, steps))
    return axes


def source(kernel: Any, ways: str) -> str:
    """CUDA C++ of a kernel.

    Args:
        kernel: CuPy's `ElementwiseKernel`.
        ways: of its operands, see `Layout`.
    """
    operands = [Value(one.name, one.ctype, bool(one.is_const)) for one in kernel.in_params]
    results = [Value(one.name, one.ctype, False) for one in kernel.out_params]
    return elementwise(operands, results, ways, kernel.preamble, kernel.operation)


_kernels: dict[str, Any] = {}  # by their text


class ByStrides:
    """What computes of operands of certain shapes, with a launch for each of their layouts.

    Args:
        module: CuPy.
        operands: of a first call: arrays and numbers.
    """

    __slots__ = ("_array", "_arrays", "_layouts", "_module")

    def __init__(self, module: Any, operands: Sequence[Any]) -> None:
        self._module, self._array = module, module.ndarray
        pairs = enumerate(operands)
        self._arrays = tuple(place for place, one in pairs if isinstance(one, module.ndarray))
        self._layouts: dict[tuple[Strides, ...], Any] = {}

    def _known(self, operands: Sequence[Any]) -> tuple[Any, list[Any]]:
        """What launches it, or nothing where none can; the operands, arrays by their addresses."""
        key, values = [], list(operands)
        for place in self._arrays:
            one = operands[place]
            key.append(one.strides)
            values[place] = one.data.ptr
        strides = tuple(key)
        found = self._layouts.get(strides)
        if found is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            found = self._layouts[strides] = self._launch(operands) or ()
        return found, values

    def _launch(self, operands: Sequence[Any]) -> Launch | None:
        raise NotImplementedError

    @staticmethod
    def steps(arrays: Sequence[Any]) -> list[Strides] | None:
        """Strides in elements; None: some are no whole ones."""
        if any(step % one.itemsize for one in arrays for step in one.strides):
            return None
        return [tuple(step // one.itemsize for step in one.strides) for one in arrays]


class Elementwise(ByStrides):
    """One kernel of CuPy, for operands of certain shapes."""

    __slots__ = ("_kernel", "_letters", "_made", "_numbers", "_only", "_shape")

    def __init__(self, module: Any, kernel: Any, operands: Sequence[Any], ends: Ends) -> None:
        """Of the operands of a first call.

        Args:
            module: CuPy.
            kernel: its `ElementwiseKernel`.
            operands: arrays and numbers.
            ends: shapes.
        """
        super().__init__(module, operands)
        self._kernel = kernel
        numbers = [not isinstance(one, module.ndarray) for one in operands]
        self._numbers = [None if n else s for n, s in zip(numbers, ends.operands, strict=True)]
        self._made, self._shape = ends.results, ends.shape
        self._only = ends.results[0] if len(ends.results) == 1 else None
        self._letters = letters_of(kernel.in_params, numbers) + [ADDRESS] * len(ends.results)

    def __call__(self, *operands: Any) -> Any:
        """Its result, or all of them; None where it has none."""
        found, values = self._known(operands)
        if not found:
            return self._kernel(*operands)
        array = self._array
        if self._only is not None:
            result = array(*self._only)
            values.append(result.data.ptr)
            if not found(values):
                found.ask((*operands, result))
            return result
        results = [array(shape, dtype) for shape, dtype in self._made]
        values += [one.data.ptr for one in results]
        if not found(values):
            found.ask((*operands, *results))
        return tuple(results) if results else None

    def prepare(self, operands: Sequence[Any]) -> None:
        """Compile what such operands need."""
        self._known(operands)

    def _launch(self, operands: Sequence[Any]) -> Launch | None:
        """What launches it for operands of some strides; None where CuPy has to."""
        steps = self.steps([operands[place] for place in self._arrays])
        made = None if steps is None else layout(self._shape, self._numbers, steps)
        if made is None:
            return None
        raw = compiled(self._module, source(self._kernel, made.ways))
        blocks = -(-made.size // _THREADS)
        return Launch(self._module, raw, self._letters, made.tail, blocks, _THREADS)


def compiled(module: Any, text: str) -> Any:
    """CuPy's `RawKernel` of a text that defines `NAME`; the same for the same text."""
    found = _kernels.get(text)
    if found is None:
        if len(_kernels) >= _MOST_KERNELS:
            _kernels.clear()
        found = _kernels[text] = module.RawKernel(text, NAME)
    return found


def letters_of(params: Sequence[Any], numbers: Sequence[bool]) -> list[str]:
    """What `Launch` takes of a kernel's operands.

    Args:
        params: CuPy's, whose types have names (`launching.letter_of`).
        numbers: which of them are numbers.
    """
    pairs = zip(params, numbers, strict=True)
    return [letter_of(np.dtype(one.dtype)) if number else ADDRESS for one, number in pairs]


def of_fused(
    module: Any, kernel: Any, operands: Sequence[Any], ends: Ends | None
) -> Callable[..., Any] | None:
    """What launches a kernel that `cupy.fuse` has made; None: only CuPy can.

    Args:
        module: CuPy.
        kernel: what was made.
        operands: of its first call.
        ends: what it reads and writes; None: it is not pointwise.
    """
    if ends is None or type(kernel).__name__ != "ElementwiseKernel":
        return None
    same = len(kernel.in_params) == len(operands) and len(kernel.out_params) == len(ends.results)
    params = (*kernel.in_params, *kernel.out_params)
    if not same or any(one.raw for one in params) or not math.prod(ends.shape):
        return None
    given = zip(kernel.in_params, operands, strict=True)
    made = zip(kernel.out_params, ends.results, strict=True)
    if any(one.dtype != operand.dtype for one, operand in given):
        return None
    if any(one.dtype != form[1] or form[0] != ends.shape for one, form in made):
        return None
    if module.cuda.runtime.getDeviceCount() > 1:
        return None  # arrays of another device than the current one are CuPy's to reach
    found = Elementwise(module, kernel, operands, ends)
    found.prepare(operands)
    return found
