"""A fold of few elements to one number, what computes them, and what is computed of it: one kernel.

A norm, a mean, a loss: CuPy launches a kernel for the elements, one or two for the fold and one for
each function of the number, while a single block of threads is through with some thousand elements
before the host has launched the second. The texts of both ends are those that CuPy's fusion makes
of them (`polygen.adapters.numpy.elementwise`); between them is the fold (`polygen.emit`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.adapters.numpy.elementwise import ByStrides, Ends, compiled, layout, letters_of
from polygen.adapters.numpy.launching import ADDRESS, Launch
from polygen.adapters.numpy.operations import Operation
from polygen.emit.elementwise import FOLDS, Text, Value, total
from polygen.hardware.device import common_facts

MOST = 1 << 15  # elements, which one block folds in less time than two launches take
_ELEMENT, _TOTAL, _RESULT = "element", "whole", "result"  # names where CuPy gives none
_NAMES = {"f": "float", "d": "double"}


@dataclass(frozen=True, slots=True)
class Part:
    """Pointwise operations before a fold, or behind it.

    Attributes:
        function: of its operands; behind the fold the first is what was folded.
        ends: what it reads and writes.
        places: of its operands among those of the whole; behind the fold, of the others.
    """

    function: Callable[..., Any]
    ends: Ends
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """A fold to one number, with what is around it.

    Attributes:
        before: gives the one array that is folded; None: it is an operand.
        place: of that operand.
        fold: to one number.
        behind: computes of the number; None: the number is the result.
    """

    before: Part | None
    place: int
    fold: Operation
    behind: Part | None


def is_total(fold: Operation) -> bool:
    """Whether a fold can be a part of such a kernel."""
    name = "sum" if fold.name == "mean" else fold.name
    kind = fold.loop[0]
    return (
        name in FOLDS and fold.size == 1 and 1 < math.prod(fold.shapes[0]) <= MOST
        and kind == fold.dtype and kind in (np.float32, np.float64)
    )  # fmt: skip


class Folding(ByStrides):
    """One such kernel, for operands of certain shapes.

    Args:
        module: CuPy.
        whole: what it computes.
        kernels: CuPy's `ElementwiseKernel` of the part before, and of that behind; None where
            there is no such part.
        operands: of a first call: arrays and numbers.
        apart: computes the same of operands that no launch is known for.
    """

    __slots__ = ("_apart", "_kernels", "_made", "_order", "_whole")

    def __init__(
        self, module: Any, whole: Total, kernels: tuple[Any, Any], operands: Sequence[Any],
        apart: Callable[..., Any],
    ) -> None:  # fmt: skip
        super().__init__(module, operands)
        self._apart, self._whole, self._kernels = apart, whole, kernels
        before, behind = whole.before, whole.behind
        self._order = (whole.place,) if before is None else before.places
        if behind is not None:
            self._order += behind.places
        self._made = (whole.fold.form,) if behind is None else behind.ends.results

    def __call__(self, *operands: Any) -> Any:
        """Its result, or all of them; None where it has none."""
        found, values = self._known(operands)
        if not found:
            return self._apart(*operands)
        order, array = self._order, self._array
        results = [array(shape, dtype) for shape, dtype in self._made]
        values = [values[place] for place in order]
        values += [one.data.ptr for one in results]
        if not found(values):
            found.ask((*(operands[place] for place in order), *results))
        return results[0] if len(results) == 1 else tuple(results) if results else None

    def _launch(self, operands: Sequence[Any]) -> Launch | None:
        whole, (first, last) = self._whole, self._kernels
        before, behind, fold = whole.before, whole.behind, whole.fold
        given = [operands[place] for place in self._order]
        numbers = [not isinstance(one, self._array) for one in given]
        count = 1 if before is None else len(before.places)
        shapes = [fold.shapes[0]] if before is None else before.ends.operands
        pairs = zip(given[:count], numbers, strict=False)
        steps = self.steps([one for one, number in pairs if not number])
        kinds = [None if n else s for n, s in zip(numbers, shapes, strict=False)]
        made = None if steps is None else layout(fold.shapes[0], kinds, steps)
        if made is None:
            return None
        text = self._text(made.ways, given, numbers)
        letters = [ADDRESS] if first is None else letters_of(first.in_params, numbers[:count])
        if behind is not None:
            letters += letters_of(last.in_params[1:], numbers[count:])
        letters += [ADDRESS] * len(self._made)
        most, warp = (common_facts()[one] for one in ("max_threads_per_block", "warp_size"))
        threads = min(most, -(-made.size // warp) * warp)
        return Launch(self._module, compiled(self._module, text), letters, made.tail, 1, threads)

    def _text(self, ways: str, given: Sequence[Any], numbers: Sequence[bool]) -> str:
        (first, last), fold = self._kernels, self._whole.fold
        if first is None:
            kind = _NAMES[fold.dtype.char]
            operands, value, element = (
                [Value(_ELEMENT, kind, True)],
                Value(_ELEMENT, kind, True),
                None,
            )
        else:
            operands = [Value(one.name, one.ctype, bool(one.is_const)) for one in first.in_params]
            (out,) = first.out_params
            value = Value(out.name, out.ctype, False)
            element = Text(first.preamble, first.operation)
        others, results, tail = (
            [Value(_TOTAL, value.kind, True)],
            [Value(_RESULT, value.kind, False)],
            None,
        )
        if last is not None:
            behind = zip(last.in_params, [True, *numbers[len(operands) :]], strict=True)
            others = [
                Value(one.name, one.ctype if number else f"{one.ctype}*", bool(one.is_const))
                for one, number in behind
            ]
            results = [Value(one.name, one.ctype, False) for one in last.out_params]
            tail = Text(last.preamble, last.operation)
        name, count = fold.name, 1
        if name == "mean":
            name, count = "sum", math.prod(fold.shapes[0])
        return total(operands, ways, element, value, name, count, others, results, tail)


def of_total(
    module: Any, whole: Total, kernels: tuple[Any, Any], operands: Sequence[Any],
    apart: Callable[..., Any],
) -> Folding | None:  # fmt: skip
    """What launches such a kernel; None: there is none, as the arguments say (see `Folding`)."""
    before, behind, (first, last) = whole.before, whole.behind, kernels
    wanted = [(before, first, None), (behind, last, whole.fold.dtype)]
    for part, kernel, folded in wanted:
        if part is None:
            continue
        if type(kernel).__name__ != "ElementwiseKernel":
            return None
        own = [operands[place].dtype for place in part.places]
        given = own if folded is None else [folded, *own]
        params = (*kernel.in_params, *kernel.out_params)
        if any(one.raw for one in params) or [one.dtype for one in kernel.in_params] != given:
            return None
        if [one.dtype for one in kernel.out_params] != [form[1] for form in part.ends.results]:
            return None
    if whole.before is not None and first.out_params[0].dtype != whole.fold.loop[0]:
        return None
    return Folding(module, whole, kernels, operands, apart)
