"""The Python surface: `fuse` turns array code into a callable that compiles to one kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

from polygen import knobs
from polygen.array_code import ArrayCode
from polygen.brief import table
from polygen.chained import with_numbers
from polygen.decision import decision
from polygen.errors import (
    ArgumentError,
    DTypeError,
    ToolchainMissing,
)
from polygen.frontend import given
from polygen.frontend.build import build_for
from polygen.frontend.dtypes import F32, TF32, DType
from polygen.frontend.invariant import (
    Invariant,
    agreeing,
    check_axes,
    check_stored,
    with_invariant,
)
from polygen.frontend.on_arrays import require_count
from polygen.frontend.pitches import pitch_of
from polygen.frontend.program import Program, Tensor
from polygen.generated import content
from polygen.hardware.device import Device, device
from polygen.in_order import in_order
from polygen.kernel import Kernel
from polygen.kernel_sequence import AnyKernel
from polygen.pipeline import check_sizes, with_sizes
from polygen.runtime.arrays import ArrayView, describe, steps, storage_order
from polygen.runtime.environment import current_arch
from polygen.runtime.recent import Recent
from polygen.schedule.model import Schedule

# What one function keeps: combinations of shapes, each a few words; and kernels.
_MOST_SHAPES = 4096
_MOST_VARIANTS = 128


class Fused(ArrayCode):
    """Array code that runs as one kernel.

    Calling it with CUDA arrays compiles what is needed, once per layout, and launches; `compile`
    makes a `Kernel` for a target without any GPU; `reference` runs the code itself in float64.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        source: str,
        allow_tf32: bool,
        invariant: Invariant | None = None,
    ) -> None:
        super().__init__(function, name, source, invariant)
        self.allow_tf32 = allow_tf32
        self._kernels: Recent[Any, AnyKernel] = Recent(_MOST_SHAPES)  # by shapes, dtypes and steps
        self._layouts: Recent[Any, AnyKernel] = Recent(_MOST_SHAPES)  # by storage order too
        self._variants: Recent[Any, Kernel] = Recent(_MOST_VARIANTS)  # by what they are made from

    def __repr__(self) -> str:
        return f"<fused {self.name}({', '.join(self._parameters)})>"

    def _repr_html_(self) -> str:
        return table(
            [
                ("computes", self.source),
                ("operands", ", ".join(self._parameters)),
                ("kernels", f"{len(self._variants)} compiled so far"),
            ]
        )

    def compile(
        self,
        *signature: str | Tensor,
        arch: str | None = None,
        sizes: dict[str, int] | None = None,
        static: Sequence[str] | str = (),
        out_dtype: Any = None,
        acc_dtype: str = "f32",
        schedule: Schedule | Path | str = "auto",
        command: str = "",
        invariant: Sequence[str] | str = (),
        single: bool = False,
    ) -> AnyKernel:
        """Make a kernel, or where one does not run all products several in order; needs no GPU.

        Args:
            signature: one description per parameter: ``bf16[M,K]``, optionally ``:col`` for
                column-major and ``@8`` for the alignment in bytes; ``f32`` is a run-time scalar.
            arch: target, ``sm_80`` .. ``sm_120``; None: the GPU present.
            sizes: what to optimise for; sizes stay run-time arguments, but for those that have to
                be numbers, which become constants. ``x.pitch`` is the number of elements from one
                row of x to the next, where rows have gaps between them.
            static: further dims of `sizes` that become constants.
            out_dtype: type of the output, or one per output; None: that of the matmul's operands.
            acc_dtype: type of the sums: ``f32``, or ``f16`` for f16 operands.
            schedule: "auto", a `Schedule`, or the path of a schedule file.
            command: named in the header of the generated code.
            invariant: dims, such as ``("M",)``, that have no part in an element's bits: kernels
                compiled for any of their sizes give a row the same bits. Proved, or refused.
            single: refuse programs that take several kernels, and say why.

        Raises:
            InvarianceError: a dim cannot be invariant, or the schedule's sums depend on it.
            PolygenError: what cannot be compiled, where, why, and the nearest thing that can.
        """
        built, numbers, promised = self._built(
            signature, out_dtype, acc_dtype, static, sizes, invariant
        )
        static = given.names_of(static, "static")

        def make(program: Program, known: dict[str, int]) -> Kernel:
            return Kernel(with_sizes(program, known), target(arch), known, schedule, command)

        def whole() -> Kernel:
            program = with_invariant(with_numbers(built, numbers), promised, static)
            known = self.sizes_left(program, signature, sizes)
            check_sizes(program, known)
            return make(program, known)

        if schedule != "auto" or single or promised:
            made: AnyKernel = whole()
        else:
            made = in_order(built, given.sizes_of(sizes), target(arch), make, whole)
        made.numbers = self.numbers_of(made.program, signature, sizes)
        return made

    def __call__(self, *operands: Any, out: Any = None, stream: Any = None) -> Any:
        """Launch on CUDA arrays, compiling on first use.

        Args:
            operands: CUDA arrays (CuPy, PyTorch, JAX, Numba) and numbers for run-time scalars.
            out: output array, or tuple of them; nothing is allocated then.
            stream: as for `Kernel`.
        """
        key = tuple(
            (operand.shape, operand.dtype, steps(operand)) if hasattr(operand, "shape") else None
            for operand in operands
        )
        kernel = self._kernels.get(key) or self._kernels.put(key, self._kernel_for(operands))
        try:
            return kernel(*operands, out=out, stream=stream)
        except ArgumentError:
            other = self._in_this_layout(kernel, operands)
            if other is None:
                raise
            self._kernels.put(key, other)
        return other(*operands, out=out, stream=stream)

    def _in_this_layout(self, kernel: AnyKernel, operands: tuple[Any, ...]) -> AnyKernel | None:
        """A kernel for arrays stored in another order than `kernel` takes; None: they are not.

        So it is for arrays whose steps are read slowly: only here are they looked at.
        """
        views = [
            describe(operand, name=name) if hasattr(operand, "shape") else None
            for name, operand in zip(self._parameters, operands, strict=True)
        ]
        orders = tuple(view and storage_order(view.shape, view.strides) for view in views)
        if all(
            o is None or o == t.order for o, t in zip(orders, kernel.program.operands, strict=True)
        ):
            return None
        layout = (orders, tuple(view and (view.shape, view.dtype) for view in views))
        found = self._layouts.get(layout)
        return found or self._layouts.put(layout, self._kernel_for(operands))

    def _kernel_for(self, operands: tuple[Any, ...]) -> AnyKernel:
        """The kernel for arrays like these: equal extents share a symbol, 1 is a constant.

        Sizes and pitches choose the schedule; among those with one choice, one layout and one
        alignment class the kernel is the same. Invariant dims keep their names, so that all sizes
        of them are one program, whose sums are of one class.
        """
        require_count(self.name, self._parameters, operands)
        names: dict[int, str] = {}
        apart: dict[str, int] = {}
        invariant: dict[str, int] = {}
        prefix = "D" + "_" * any(dim.startswith("D") for dim in self._invariant.values())
        tensors = []
        for name, operand in zip(self._parameters, operands, strict=True):
            if not hasattr(operand, "shape"):
                given.require_number(operand, name)
                tensors.append(Tensor(name, F32, ()))
                continue
            view = describe(operand, name=name)
            dims = tuple(
                self._invariant.get((name, axis))
                or (1 if extent == 1 else names.setdefault(extent, f"{prefix}{len(names)}"))
                for axis, extent in enumerate(view.shape)
            )
            invariant |= agreeing(invariant, self._invariant, name, view.shape)
            order = storage_order(view.shape, view.strides)
            tensors.append(Tensor(name, self._dtype(name, view), dims, order))
            if not self._invariant:  # else one row and many of one array are of one class
                apart |= {pitch_of(name): step for step in _pitch(view, order)}
        check_axes(self._invariant, {tensor.name: len(tensor.dims) for tensor in tensors})
        sizes = {symbol: extent for extent, symbol in names.items()} | invariant
        known = {symbol: extent for extent, symbol in names.items()}
        built = build_for(self.function, self.name, self.source, tensors, known)

        def whole() -> Kernel:
            program = with_invariant(with_numbers(built, known), tuple(invariant))
            check_stored(program)
            own = {name: value for name, value in sizes.items() if name in program.sizes}
            return self._decided(program, own | apart)

        if invariant:
            return whole()
        return in_order(built, sizes | apart, target(None), self._decided, whole)

    def _decided(self, program: Program, sizes: dict[str, int]) -> Kernel:
        """The kernel of an automatic choice for sizes and pitches."""
        program, device = with_sizes(program, sizes), target(None)
        schedule, origin = decision(program, device, sizes)
        key = (content(program), device, schedule)  # tells 0.0 from -0.0 and 1 from 1.0
        found = self._variants.get(key)
        if found is None:
            found = Kernel.decided(program, device, sizes, schedule, origin)
        return self._variants.put(key, found)

    def _dtype(self, name: str, view: ArrayView) -> DType:
        if not isinstance(view.dtype, DType):
            raise DTypeError(f"{name} holds {view.dtype}, which has no tensor-core type")
        return (
            TF32 if view.dtype == F32 and self.allow_tf32 and len(view.shape) >= 2 else view.dtype
        )


def _pitch(view: ArrayView, order: tuple[int, ...]) -> list[int]:
    """Elements from one row to the next, where something lies between them."""
    *outer, row = order
    steps = [view.strides[axis] for axis in outer if view.shape[axis] > 1]
    return [min(steps)] if steps and min(steps) > view.shape[row] else []


@overload
def fuse(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    allow_tf32: bool = False,
    invariant: Invariant | None = None,
) -> Fused: ...


@overload
def fuse(
    function: None = None,
    *,
    name: str | None = None,
    allow_tf32: bool = False,
    invariant: Invariant | None = None,
) -> Callable[[Callable[..., Any]], Fused]: ...


def fuse(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    allow_tf32: bool = False,
    invariant: Invariant | None = None,
) -> Fused | Callable[[Callable[..., Any]], Fused]:
    """Make one kernel of a function written in array code.

    Args:
        function: plain array code over NumPy-style operators and functions; None: a decorator with
            the other arguments is returned.
        name: of the kernel; None: the function's.
        allow_tf32: take f32 matrices as tf32 in direct calls (10 mantissa bits in products).
        invariant: dims that have no part in an element's bits, each with the axis of every
            parameter that has it: ``{"M": {"x": 0, "r": 0}}``. Calls of all their sizes, 1 too,
            give a row the same bits.

    Raises:
        InvarianceError: `invariant` names no axis of a parameter.
        TraceError: `function` is not a function of arrays, or `name` not an identifier.

    Example:
        >>> @pg.fuse
        ... def up(x, w, b):
        ...     return pg.gelu(x @ w.T + b)
    """
    if function is None:
        return functools.partial(fuse, name=name, allow_tf32=allow_tf32, invariant=invariant)
    if isinstance(function, Fused):  # fused again, under another name
        invariant = function.promised if invariant is None else invariant
        function = function.function
    given.parameters_of(function)
    own = given.name_of(function, name)
    return Fused(function, own, given.source_of(function, own), allow_tf32, invariant)


def target(arch: str | None) -> Device:
    """The device to compile for.

    Raises:
        ToolchainMissing: none was named, and there is no GPU.
        UnknownTarget: no such device.
    """
    name = knobs.current().arch or current_arch() if arch is None else str(arch)
    if name is None:
        raise ToolchainMissing(
            "no GPU to compile for", where="arch", nearest='Name a target: arch="sm_80"'
        )
    return device(name)
