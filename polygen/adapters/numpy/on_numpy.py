"""What a backend of the NumPy adapter is; and NumPy as one, where there is no GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polygen.adapters.numpy.elementwise import Ends
from polygen.adapters.numpy.memory import FOREIGN
from polygen.adapters.numpy.operations import ArrayForm, Operation, Shape
from polygen.adapters.numpy.totals import Total, is_total
from polygen.adapters.numpy.trials import Spent
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program
from polygen.hardware.device import Device


class Backend:
    """NumPy: operations one by one; programs by their meaning, in float64, rounded at the end."""

    module: Any = np
    times: bool = False  # whether plans are timed
    updates: bool = False  # whether to write to memory by kernels, and not the module's functions

    def waits(self) -> bool:
        """Whether the device can be waited for, now."""
        return True

    def timed(self, function: Callable[[], Any]) -> Spent:
        """Seconds that a function takes, with all that it asks the device for."""
        began = time.perf_counter()
        function()
        whole = time.perf_counter() - began
        return Spent(whole, whole)

    def fuse(self, function: Callable[..., Any], ends: Ends | None = None) -> Callable[..., Any]:
        """A function of pointwise operations, and perhaps a fold of them, as one kernel.

        Args:
            function: of arrays and numbers.
            ends: what it reads and writes, where it has no fold.
        """
        return function

    def folds(self, fold: Operation, shapes: Sequence[Shape]) -> bool:
        """Whether a fold is to be part of a fused function.

        Args:
            fold: the last operation.
            shapes: of the arrays that the function reads.
        """
        return True

    def totals(self, fold: Operation) -> bool:
        """Whether a fold to one number can be one kernel with what is computed before and of it.

        Args:
            fold: the fold.
        """
        return is_total(fold)

    def total(self, whole: Total, composed: Callable[..., Any]) -> Callable[..., Any]:
        """What runs a fold to one number with the pointwise operations around it.

        Args:
            whole: its parts.
            composed: computes all of it.
        """
        return composed

    def is_read_twice(self, fold: Operation) -> bool:
        """Whether the only array that a function with a fold reads is to be given to it twice."""
        return False

    def alone(self, fold: Operation) -> Callable[[Any], Any] | None:
        """What runs a fold that is in no fused function; None: the module's function."""
        return None

    def sums(self, kind: np.dtype[Any]) -> bool:
        """Whether the product of two vectors of a type is the sum of their products, recorded."""
        return False

    def product(self, first: Any, second: Any, form: ArrayForm, other: ArrayForm) -> Any:
        """``first @ second``, of arrays of such forms."""
        return first @ second

    def fold(self, fold: Operation, operand: Any) -> Any:
        """A fold at the end of a fused function; its axes need not be kept."""
        return getattr(self.module, fold.name)(operand, axis=fold.axis, keepdims=fold.keepdims)

    def device(self) -> Device | None:
        """What kernels are predicted for; None: there is no GPU."""
        return None

    def launch(
        self, program: Program, sizes: Mapping[str, int], arrays: Sequence[Any]
    ) -> tuple[Any, ...]:
        """The outputs of a program.

        Args:
            program: with inputs that are arrays.
            sizes: of its symbolic dims.
            arrays: its inputs, in order, in the program's shapes.
        """
        named = {t.name: array for t, array in zip(program.inputs, arrays, strict=True)}
        found = evaluate(program, named, sizes)
        return tuple(
            np.asarray(value).astype(tensor.dtype.numpy)
            for value, tensor in zip(found, program.outputs, strict=True)
        )

    def host(self, value: Any) -> np.ndarray[Any, Any]:
        """The array as NumPy's; a view where it is that already."""
        return np.asarray(value)

    def address(self, value: Any) -> int:
        """Where the first element of an array is."""
        return int(value.__array_interface__["data"][0])

    def memory(self, value: Any) -> Any:
        """What owns the memory of an array: one object for all that lie in it, or `FOREIGN`."""
        base = value.base
        while isinstance(base, np.ndarray):
            value, base = base, base.base
        return value if base is None and value.flags.owndata else FOREIGN

    def is_sole(self, value: Any) -> bool:
        """Whether no other array lies in the memory of one, as far as it is not held itself."""
        return value.base is None and bool(value.flags.owndata)
