"""Array code with a name: what it means, and the programs that it is for given arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from polygen.chained import with_numbers
from polygen.errors import SignatureError
from polygen.frontend import given
from polygen.frontend.build import build_for, with_sizes_of
from polygen.frontend.invariant import Invariant, check_axes, places, with_invariant
from polygen.frontend.on_arrays import checked_reference
from polygen.frontend.program import Program, Tensor
from polygen.frontend.signature import parse_signature


class ArrayCode:
    """A function of arrays, as it was written.

    Args:
        function: plain array code.
        name: of its kernels.
        source: its text, for people.
        invariant: dims that have no part in an element's bits, as `polygen.fuse` takes them.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        source: str,
        invariant: Invariant | None = None,
    ) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        self.function, self.name, self.source = function, name, source
        self._parameters = given.parameters_of(function)
        self.promised = invariant  # as given
        self._invariant = places({} if invariant is None else invariant, self._parameters)

    def reference(self, *operands: Any) -> Any:
        """The function itself, unfused, in float64.

        Args:
            operands: NumPy arrays and numbers, one for each parameter.

        Raises:
            ArgumentError: too few or too many operands, or one that holds no real numbers.
            ShapeError: their shapes do not fit.
            TraceError: the function fails on them in another way.
        """
        return checked_reference(self.function, self.name, self._parameters, operands)

    def program(
        self,
        *signature: str | Tensor,
        out_dtype: Any = None,
        acc_dtype: str = "f32",
        static: Sequence[str] | str = (),
        sizes: dict[str, int] | None = None,
        invariant: Sequence[str] | str = (),
    ) -> Program:
        """Trace the function for the given arguments.

        Raises:
            InvarianceError: a dim that bits must not depend on is none that can be such.
            SignatureError: the descriptions do not fit the function.
            ShapeError, DTypeError, TraceError, UnsupportedProgram: the code cannot become one
            kernel.
        """
        program, numbers, promised = self._built(
            signature, out_dtype, acc_dtype, static, sizes, invariant
        )
        static = given.names_of(static, "static")
        return with_invariant(with_numbers(program, numbers), promised, static)

    def _built(
        self,
        signature: Sequence[str | Tensor],
        out_dtype: Any,
        acc_dtype: str,
        static: Sequence[str] | str,
        sizes: dict[str, int] | None,
        invariant: Sequence[str] | str,
    ) -> tuple[Program, dict[str, int], tuple[str, ...]]:
        """The program, sizes that a kernel of it may have to know, and dims that are invariant."""
        tensors = self._tensors(signature)
        known = given.sizes_of(sizes)
        static = given.names_of(static, "static")
        dims = {d for t in tensors for d in t.dims if isinstance(d, str)}
        unknown = [name for name in static if name not in dims]
        if unknown:
            raise SignatureError(
                f"no dim is called {', '.join(unknown)}",
                where="static",
                nearest=f"Dims: {', '.join(sorted(dims)) or 'none'}",
            )
        missing = [name for name in static if name not in known]
        if missing:
            raise SignatureError(
                f"static dims without a size: {', '.join(missing)}",
                where="static",
                nearest=f'Give one: sizes={{"{missing[0]}": 1024}}, or --size {missing[0]}=1024',
            )
        fixed = {name: known[name] for name in static}
        tensors = with_sizes_of(tensors, fixed)
        promised = given.several(invariant)
        numbers = {
            name: size
            for name, size in known.items()
            if name in dims and name not in (*static, *promised)
        }
        for name, size in numbers.items():
            given.require_size(name, size)
        program = build_for(
            self.function, self.name, self.source, tensors, numbers, out_dtype, acc_dtype,
            named=True,
        )  # fmt: skip
        return program, numbers, (*promised, *self._declared(program))

    def sizes_left(
        self, program: Program, signature: Sequence[str | Tensor], sizes: dict[str, int] | None
    ) -> dict[str, int]:
        """Of given sizes those that are no constants of a program, which calls may change.

        Args:
            program: as `program` made it, of the same signature and sizes.
            signature: one description per parameter.
            sizes: as given.
        """
        constants = self.numbers_of(program, signature, sizes)
        return {n: size for n, size in given.sizes_of(sizes).items() if n not in constants}

    def numbers_of(
        self, program: Program, signature: Sequence[str | Tensor], sizes: dict[str, int] | None
    ) -> dict[str, int]:
        """The others of them, which are constants; as for `sizes_left`."""
        named = {dim for tensor in self._tensors(signature) for dim in tensor.dims}
        constants = named.difference(program.sizes)
        return {n: size for n, size in given.sizes_of(sizes).items() if n in constants}

    def _declared(self, program: Program) -> tuple[str, ...]:
        """The dims at the places that `fuse` was told are invariant."""
        check_axes(self._invariant, {tensor.name: len(tensor.dims) for tensor in program.inputs})
        return tuple(str(program.tensors[name].dims[axis]) for name, axis in self._invariant)

    def _tensors(self, signature: Sequence[str | Tensor]) -> list[Tensor]:
        if len(signature) != len(self._parameters):
            raise SignatureError(
                f"{len(signature)} argument descriptions for "
                f"{self.name}({', '.join(self._parameters)})",
                nearest=f"Give {len(self._parameters)}, for example bf16[M,K]",
            )
        tensors: list[Tensor] = []
        for name, item in zip(self._parameters, signature, strict=True):
            tensor = item if isinstance(item, Tensor) else parse_signature(item)
            if tensor.name not in ("", name):
                raise SignatureError(
                    f"{item} describes {tensor.name}, but parameter {len(tensors) + 1} is {name}"
                )
            tensors.append(replace(tensor, name=name))
        return tensors
