"""Arrays that are views of larger ones: ways in which they lie, and a kernel's run on them.

A kernel gets every operand and every output as a view inside of a larger array. In front of it,
behind it and between its rows are NaNs, or whole numbers that no operand holds: a kernel that takes
one of them gives another result. What comes out is compared with what NumPy says, and what lies
between rows has to be as it was; the PTX machine also finds who as much as reads there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polygen.comparison import compare, is_exact
from polygen.frontend.dtypes import F64
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program, Tensor
from polygen.kernel import Kernel
from polygen.small_problem import few_blocks, trial_operands

Array = np.ndarray[Any, Any]
_CHUNK = 16  # bytes
_NAN, _STRAY = 0xFF, 0x71  # bytes of gaps: of floats, and of whole numbers that no operand holds


def _whole(row: int, item: int) -> int:
    """Elements of the chunks that hold a row."""
    each = max(1, _CHUNK // item)
    return -(-row // each) * each


@dataclass(frozen=True, slots=True)
class Way:
    """How arrays lie.

    Attributes:
        name: of the way.
        pitch: of the elements of a row and the bytes of one: elements from a row to the next.
        start: of the bytes of an element: how many lie in front of the array.
        apart: chunks between matrices, so that slower axes have gaps of their own.
        swapped: whether the slower axes of operands are stored in the reverse order.
        repeated: whether operands have the same elements all along their slowest axis, which has no
            step.
    """

    name: str
    pitch: Callable[[int, int], int]
    start: Callable[[int], int] = lambda item: 0
    apart: int = 0
    swapped: bool = False
    repeated: bool = False


PLAIN = Way("plain", lambda row, item: row)
# Rows that begin at multiples of 16 bytes and end anywhere.
ALIGNED = (
    Way("padded", _whole),
    Way("wide", lambda row, item: _whole(row, item) + _CHUNK // item, apart=1),
    Way("block", lambda row, item: 3 * _whole(row, item), lambda item: _CHUNK // item),
    Way("swapped", _whole, apart=1, swapped=True),
)
# Rows that begin anywhere.
OTHERS = (
    Way("half", lambda row, item: _whole(row, item) + 8 // item, lambda item: 8 // item),
    Way("odd", lambda row, item: row + 1 + row % 2, apart=1),
    Way("off", lambda row, item: row, lambda item: 1),
    Way("off and padded", _whole, lambda item: 1),
    Way("odd block", lambda row, item: 2 * row + 3, lambda item: 3),
)
REPEATED = Way("repeated", _whole, repeated=True)
WAYS = {one.name: one for one in (*ALIGNED, *OTHERS, REPEATED)}


def mixed(program: Program, seed: int) -> dict[str, Way]:
    """A way for each array, by chance."""
    rng = random.Random(seed)
    every = (*program.operands, *program.outputs)
    return {one.name: rng.choice((*ALIGNED, *OTHERS)) for one in every}


def small_sizes(program: Program, **given: int) -> dict[str, int]:
    """Sizes of all dims: odd, so that no row is of whole chunks, and above those of small tiles."""
    usual = {"M": 37, "N": 45, "K": 77, "B": 2, "C": 3, "T": 41, "E": 3, "H": 2, "S": 75} | given
    return {name: usual.get(name, 21) for name in program.sizes}


@dataclass(frozen=True, slots=True)
class Given:
    """What a call gets, and what it should give back.

    Attributes:
        operands: views, and numbers.
        out: views, one per output; () where results are stored into operands.
        wanted: per output, what NumPy computes, and what it computes in f32.
    """

    operands: tuple[Any, ...]
    out: tuple[Array, ...]
    wanted: tuple[tuple[Array, Array], ...]

    def wrong(self, program: Program, results: Sequence[Array]) -> list[str]:
        """A sentence for every output that is not what it should be."""
        exact, found = is_exact(program), []
        for tensor, got, (wanted, single) in zip(
            program.outputs, results, self.wanted, strict=True
        ):
            finding, _ = compare(tensor, got, wanted, exact, single)
            if finding is not None:
                found.append(f"{finding.sentence} ({finding.count} elements)")
        return found


def given(
    kernel: Kernel, sizes: Mapping[str, int], ways: Mapping[str, Way] | Way, seed: int = 0
) -> Given:
    """Arrays for a call.

    Args:
        kernel: the kernel.
        sizes: of all dims.
        ways: of all arrays, or of each by its name; others lie without gaps.
        seed: of the numbers.
    """
    program, sizes = kernel.program, dict(sizes)
    stored = dict(program.in_place)

    def way_of(tensor: Tensor) -> Way:
        found = ways if isinstance(ways, Way) else ways.get(tensor.name, PLAIN)
        same = found.repeated and len(tensor.dims) > 1 and tensor.name not in stored
        return found if same else replace(found, repeated=False)

    values = []
    for tensor, value in zip(
        program.operands, trial_operands(program, sizes, seed, kernel.passes.plan), strict=True
    ):
        if way_of(tensor).repeated:
            value = np.broadcast_to(np.take(value, [0], tensor.order[0]), value.shape)
        values.append(value)
    arrays = {t.name: value for t, value in zip(program.operands, values, strict=True)}
    wanted = evaluate(program, arrays, sizes)
    wide = any(one.dtype == F64 for one in program.contractions)  # nothing is computed in f32
    single = wanted if wide else evaluate(program, arrays, sizes, single=True)
    operands = tuple(
        laid_out(t, value, way_of(t)) if t.dims else value
        for t, value in zip(program.operands, values, strict=True)
    )
    out = tuple(
        laid_out(t, no_results(t, sizes), replace(way_of(t), repeated=False, swapped=False))
        for t in program.outputs
        if not stored
    )
    return Given(operands, out, tuple(zip(wanted, single, strict=True)))


def laid_out(tensor: Tensor, values: Array, way: Way) -> Array:
    """The values as a view of a larger array that is full of what no operand holds."""
    kind, (*slow, fast) = values.dtype, tensor.order or (0,)
    steps, each = [1] * values.ndim, _CHUNK // kind.itemsize
    step = way.pitch(values.shape[fast], kind.itemsize) if slow else 0
    for place, axis in enumerate(slow if way.swapped else reversed(slow)):
        steps[axis] = step
        step = step * values.shape[axis] + way.apart * (place + 1) * each
    if way.repeated:
        steps[tensor.order[0]] = 0
    start = way.start(kind.itemsize)
    reach = sum((size - 1) * step for size, step in zip(values.shape, steps, strict=True))
    room = np.full((start + reach + 1 + each) * kind.itemsize, _gap(tensor), np.uint8)
    bytes_apart = [step * kind.itemsize for step in steps]
    view = np.ndarray(values.shape, kind, room, start * kind.itemsize, bytes_apart)
    view[...] = values
    return view


def _gap(tensor: Tensor) -> int:
    """The byte that gaps are full of."""
    kinds = {"float": _NAN, "bool": 1}
    return kinds.get(tensor.dtype.kind, _STRAY)


def no_results(tensor: Tensor, sizes: Mapping[str, int]) -> Array:
    """An output before a call."""
    shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in tensor.dims)
    kind = tensor.dtype.numpy
    return np.ndarray(shape, kind, np.full(math.prod(shape) * kind.itemsize, _NAN, np.uint8))


def room_of(array: Array) -> Array:
    """The bytes of the array that one is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def trouble(
    kernel: Kernel, sizes: Mapping[str, int], ways: Mapping[str, Way] | Way, seed: int = 0
) -> str:
    """What is wrong with a run on the PTX machine; "" if nothing is.

    Args:
        kernel: which is asked for the variant that these arrays need.
        sizes: of all dims.
        ways: as of `given`.
        seed: of the numbers.

    Raises:
        PolygenError: no variant takes such arrays.
    """
    made = given(kernel, sizes, ways, seed)
    fitting = kernel.fitting(*made.operands, out=made.out)
    few = replace(fitting._generated, source=few_blocks(fitting._generated.source))
    whole, fitting._generated = fitting._generated, few
    try:
        done = fitting.emulation(*made.operands, out=made.out)
    finally:
        fitting._generated = whole
    results = done.results if isinstance(done.results, tuple) else (done.results,)
    found = [*map(str, done.report.findings), *made.wrong(kernel.program, results)]
    return "\n".join([f"schedule {fitting.schedule.name}", *found[:6]]) if found else ""
