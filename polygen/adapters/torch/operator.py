"""`op`: array code as an operator of PyTorch.

1. The function's parameters become a schema; `Tensor` but for those that are named as numbers.
2. A call traces the function for the forms of its operands (`polygen.adapters.forms`), and runs the
   program: as a kernel, as float64 on the CPU, or for its shapes alone.
3. Under autocast, what products multiply is cast to autocast's type; the rest is read as it is.
4. Calls whose gradients are asked for go to an operator that returns what the backward pass reads
   besides, as a list.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack, overload

import torch
from torch.autograd import forward_ad

from polygen.adapters.backward_kept import KEEPS, keep_if_possible, require_known
from polygen.adapters.forms import Form, most_general
from polygen.adapters.torch import autograd, sharding
from polygen.adapters.torch.autograd import forward_mode
from polygen.adapters.torch.launching import LIBRARY, NAMESPACE, are_of_torch
from polygen.adapters.torch.running import Operands, Runner
from polygen.adapters.torch.tensors import forms, same_extent
from polygen.adapters.torch.watching import are_plain, is_watched
from polygen.api import Fused, fuse
from polygen.errors import ArgumentError, DTypeError, SignatureError, TraceError
from polygen.frontend import given
from polygen.frontend.build import build_program
from polygen.frontend.dtypes import F32, TF32
from polygen.frontend.program import Program, Tensor
from polygen.schedule.model import Schedule

_DEFINED: Counter[str] = Counter()
_OPERATORS: dict[str, Operator] = {}
_MOST_TRACED = 4096
_CAST = (torch.float32, torch.float16, torch.bfloat16)  # what autocast converts


class _Options(TypedDict, total=False):
    """What `op` takes beside function and name."""

    scalars: Sequence[str] | str
    outputs: int
    out_dtype: Any
    acc_dtype: str
    allow_tf32: bool
    schedule: Schedule
    keep: str


class Operator:
    """Array code as an operator of PyTorch: call it with CUDA tensors, and numbers for scalars.

    Attributes:
        fused: the array code.
        name: of the operator, ``polygen::name``.
        overload: the operator as PyTorch has it, ``torch.ops.polygen.name.default``.
    """

    def __init__(
        self,
        fused: Fused,
        scalars: tuple[str, ...],
        outputs: int,
        options: dict[str, Any],
        allow_tf32: bool,
        schedule: Schedule | None,
        keep: str,
    ) -> None:
        self.fused, self.parameters = fused, given.parameters_of(fused.function)
        self._scalars, self._outputs, self._options = scalars, outputs, options
        self._allow_tf32 = allow_tf32
        self._traced = functools.lru_cache(_MOST_TRACED)(self._trace_forms)
        self._multiplied = functools.lru_cache(_MOST_TRACED)(self._multiplied_by_rank)
        self._runner = Runner(self.program_for, schedule)
        self._keeping = Runner(self._kept_program)
        self._keeps = keep == KEEPS[0] and schedule is None
        self.name = self._define()
        self.overload = getattr(getattr(torch.ops, NAMESPACE), self.name).default
        sharding.register(self.overload, self.program_for)

    def __repr__(self) -> str:
        return f"<operator {NAMESPACE}::{self.name}({', '.join(self.parameters)})>"

    def __call__(self, *operands: Any) -> Any:
        """Run the operator; one tensor, or a tuple of them.

        Raises:
            PolygenError: operands that no kernel takes.
        """
        if torch.compiler.is_compiling():
            return self._recorded(operands)
        if are_plain(operands) and not is_watched():
            return self._runner.on_gpu(operands)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return self._function.apply(*operands)
        if forward_ad._current_level >= 0:
            _refuse_tangents(self.fused.name, operands)
        if _any_requires_grad(operands):
            return self._recorded(operands)
        with torch._C._AutoDispatchBelowAutograd():  # a derivative's registration costs a call
            return self.overload(*operands)

    def _recorded(self, operands: tuple[Any, ...]) -> Any:
        """The results of a call that PyTorch records, with what a backward pass reads besides.

        What is exported has none, and operands of a class of their own know this operator alone.
        """
        keeps = self._keeps and not torch.compiler.is_exporting()
        if not (keeps and _any_requires_grad(operands) and are_of_torch(operands)):
            return self.overload(*operands)
        found = self._kept_overload(*operands)
        return found[0] if self._outputs == 1 else tuple(found[: self._outputs])

    def _kept_program(self, operands: Operands) -> tuple[Program, dict[str, Any]]:
        """What a call computes whose gradients are asked for."""
        program, sizes = self.program_for(operands)
        kept = keep_if_possible(program)
        return (program if kept is None else kept.forward), sizes

    def into(self, out: tuple[torch.Tensor, ...], operands: tuple[Any, ...]) -> None:
        """Run the operator, its results stored in tensors that there are; nothing is recorded.

        Args:
            out: tensors without gaps, of the results' shapes and types.
            operands: as for a call.

        Raises:
            PolygenError: operands that no kernel takes.
        """
        if not torch.is_autocast_enabled(out[0].device.type):
            self._runner.into(out, operands)
            return
        found = self(*operands)
        for place, value in zip(out, found if isinstance(found, tuple) else (found,), strict=True):
            place.copy_(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_before, (self.name, self.fused.source)

    def __deepcopy__(self, memo: dict[int, Any]) -> Operator:
        return self  # what PyTorch knows by name there is once; copies of modules share it

    def program_for(self, operands: Operands) -> tuple[Program, dict[str, Any]]:
        """What a call with these operands computes, and the extents of its symbolic dims.

        Raises:
            PolygenError: the code cannot become one kernel.
        """
        found = forms(self.parameters, operands, allow_tf32=self._allow_tf32)
        try:
            return self._program(found)
        except DTypeError as error:
            if self._allow_tf32 or all(form.dtype != F32 for form in found if form.extents):
                raise
            raise DTypeError(
                error.what,
                where=error.where or self.fused.name,
                why=error.why,
                nearest="op(f, allow_tf32=True) takes f32 matrices as tf32; or pass bfloat16",
            ) from None

    def _program(self, found: list[Form]) -> tuple[Program, dict[str, Any]]:
        if all(type(extent) is int for form in found for extent in form.extents):
            program, sizes = self._traced(tuple(found))
            return program, dict(sizes)
        return most_general(self._trace, found, same_extent)

    def _trace_forms(self, found: tuple[Form, ...]) -> tuple[Program, tuple[tuple[str, Any], ...]]:
        program, sizes = most_general(self._trace, found, same_extent)
        return program, tuple(sizes.items())

    def _trace(self, tensors: Sequence[Tensor]) -> Program:
        fused = self.fused
        program = build_program(fused.function, fused.name, fused.source, tensors, **self._options)
        if len(program.outputs) != self._outputs:
            raise TraceError(
                f"the function returns {len(program.outputs)} values, not {self._outputs}",
                where=fused.name,
                why="an operator's schema says how many there are",
                nearest=f"op(f, outputs={len(program.outputs)})",
            )
        return program

    def _multiplied_by_rank(self, ranks: tuple[int, ...]) -> frozenset[int]:
        """The positions of the operands that products multiply, for operands of these ranks.

        The function is traced with one type for all, and with extents that may all be one.
        """
        fused = self.fused
        found = [
            Form(name, TF32 if rank else F32, (2,) * rank)
            for name, rank in zip(self.parameters, ranks, strict=True)
        ]

        def trace(tensors: Sequence[Tensor]) -> Program:
            return build_program(fused.function, fused.name, fused.source, tensors)

        program, _ = most_general(trace, found)
        read = {access.name for product in program.contractions for access in product.reads}
        return frozenset(n for n, name in enumerate(self.parameters) if name in read)

    # --- what PyTorch calls ---------------------------------------------------------------------
    def _define(self) -> str:
        name = _new_name(self.fused.name)
        arguments = ", ".join(
            f"{'float' if p in self._scalars else 'Tensor'} {p}" for p in self.parameters
        )
        results = ", ".join(["Tensor"] * self._outputs)
        schema = f"{name}({arguments}) -> {f'({results})' if self._outputs > 1 else results}"
        LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        single = self._outputs == 1

        def registered(run: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Callable[..., Any]:
            return (lambda *o: run(o)[0]) if single else (lambda *o: run(o))

        on_gpu = self._runner.on_gpu
        LIBRARY.impl(name, lambda *operands: on_gpu(operands), "CUDA")
        LIBRARY.impl(name, registered(self._runner.on_cpu), "CPU")
        qualified = f"{NAMESPACE}::{name}"
        torch.library.register_fake(qualified, registered(self._runner.shapes_alone), lib=LIBRARY)
        _OPERATORS[name] = self  # as PyTorch has it: as long as the process lives
        self._function = autograd.register(
            qualified, self.program_for, lambda *o: self.overload(*o), LIBRARY
        )
        LIBRARY.impl(name, lambda *o: self._in_autocast(self.overload, o), "AutocastCUDA")
        if self._keeps:
            self._define_keeping(_new_name(f"{name}_keeping"), arguments)
        return name

    def _define_keeping(self, name: str, arguments: str) -> None:
        """The operator that returns, behind the results, what the backward pass reads."""
        LIBRARY.define(f"{name}({arguments}) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
        runner, qualified = self._keeping, f"{NAMESPACE}::{name}"

        def as_list(run: Callable[[tuple[Any, ...]], Any]) -> Callable[..., list[torch.Tensor]]:
            def called(*operands: Any) -> list[torch.Tensor]:
                found = run(operands)
                return list(found) if isinstance(found, tuple) else [found]

            return called

        LIBRARY.impl(name, as_list(runner.on_gpu), "CUDA")
        LIBRARY.impl(name, as_list(runner.on_cpu), "CPU")
        torch.library.register_fake(qualified, as_list(runner.shapes_alone), lib=LIBRARY)
        self._kept_overload = getattr(getattr(torch.ops, NAMESPACE), name).default
        autograd.register(
            qualified, self.program_for, self._kept_overload, LIBRARY, keep_if_possible
        )
        LIBRARY.impl(name, lambda *o: self._in_autocast(self._kept_overload, o), "AutocastCUDA")

    def _in_autocast(self, overload: Any, operands: tuple[Any, ...]) -> Any:
        wanted = torch.get_autocast_dtype("cuda")
        multiplied = self._multiplied(
            tuple(o.dim() if isinstance(o, torch.Tensor) else 0 for o in operands)
        )
        cast = [
            o.to(wanted) if n in multiplied and o.dtype in _CAST else o
            for n, o in enumerate(operands)
        ]
        with torch.autocast("cuda", enabled=False):
            return overload(*cast)


def _new_name(own: str) -> str:
    """A name for an operator, with a number where there is one of that name."""
    _DEFINED[own] += 1
    return own if _DEFINED[own] == 1 else f"{own}_{_DEFINED[own]}"


def _made_before(name: str, source: str) -> Operator:
    """The operator that a pickle names.

    Raises:
        ArgumentError: this process has none of that name, or one of other code.
    """
    found = _OPERATORS.get(name)
    if found is None or found.fused.source != source:
        raise ArgumentError(
            f"there is no operator polygen::{name} here"
            if found is None
            else f"polygen::{name} is another function here",
            where="pickle",
            why=f"an operator is kept by its name; it was made of: {source}",
            nearest="Import the module that makes it before",
        )
    return found


def _refuse_tangents(name: str, operands: Sequence[Any]) -> None:
    """Refuse derivatives in forward mode, which would get lost.

    Raises:
        GradientError: an operand has a tangent.
    """
    tensors = [one for one in operands if isinstance(one, torch.Tensor)]
    if any(forward_ad.unpack_dual(one).tangent is not None for one in tensors):
        raise forward_mode(name)


def _any_requires_grad(operands: Sequence[Any]) -> bool:
    """Whether PyTorch has to record what is done to the operands."""
    if not torch.is_grad_enabled():
        return False
    return any([o.requires_grad for o in operands if isinstance(o, torch.Tensor)])


@overload
def op(
    function: Callable[..., Any], name: str | None = None, **options: Unpack[_Options]
) -> Operator: ...


@overload
def op(
    function: None = None, name: str | None = None, **options: Unpack[_Options]
) -> Callable[[Callable[..., Any]], Operator]: ...


def op(
    function: Callable[..., Any] | None = None,
    name: str | None = None,
    **options: Unpack[_Options],
) -> Operator | Callable[[Callable[..., Any]], Operator]:
    """Make an operator of PyTorch of a function written in array code.

    Args:
        function: array code, as for `polygen.fuse`, or what that made of it; None: a decorator with
            the other arguments is returned.
        name: of operator and kernels; None: the function's. A name that is taken gets a number.
        **options: scalars: parameters that are numbers; outputs: how many values the function
            returns, 1 without; out_dtype and acc_dtype: as for `Fused.compile`; allow_tf32: take
            f32 matrices as tf32; schedule: a `Schedule` for all sizes, in place of automatic
            choices; keep: "products", for a backward pass that computes no product between layers
            again, or "arguments", for one that keeps nothing else; "arguments" where a schedule is
            given.

    Returns:
        A callable on CUDA tensors and numbers, which `torch.compile` keeps in its graph.

    Raises:
        TraceError: `function` is not a function of arrays, or `name` not an identifier.
        SignatureError: `scalars` names no parameter.
        ArgumentError: `keep` is none of these.

    Example:
        >>> @pgt.op
        ... def up(x, w, b):
        ...     return pg.gelu(x @ w.T + b)
    """
    if function is None:
        return functools.partial(op, name=name, **options)
    fused = fuse(function, name=name or (function.name if isinstance(function, Fused) else None))
    scalars = options.get("scalars", ())
    scalars = (scalars,) if isinstance(scalars, str) else tuple(scalars)
    parameters = given.parameters_of(fused.function)
    unknown = [name for name in scalars if name not in parameters]
    if unknown:
        raise SignatureError(
            f"no parameter is called {', '.join(unknown)}",
            where="scalars",
            nearest=f"Parameters: {', '.join(parameters)}",
        )
    keep = options.get("keep", KEEPS[0])
    require_known(keep, fused.name)
    return Operator(
        fused,
        scalars,
        options.get("outputs", 1),
        {"out_dtypes": options.get("out_dtype"), "acc_dtype": options.get("acc_dtype", "f32")},
        options.get("allow_tf32", isinstance(function, Fused) and function.allow_tf32),
        options.get("schedule"),
        keep,
    )
