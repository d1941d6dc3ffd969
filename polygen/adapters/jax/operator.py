"""`call`: array code inside JAX's transformations.

1. The function is traced for the forms of its operands (`polygen.adapters.forms`), which JAX knows
   under `jit` too.
2. The program is one call of the foreign function interface (`polygen.adapters.jax.launching`),
   which `jax.vmap` gives a batch dim.
3. Its derivative is made of the program (`polygen.adapters.gradients`): kernels again where they
   can be, else the program's meaning in JAX's operations.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import jax

from polygen.adapters.backward_cuts import Gradient, Term, Total
from polygen.adapters.backward_kept import KEEPS, keep_if_possible, of_some, require_known
from polygen.adapters.forms import Form, most_general
from polygen.adapters.gradients import derive
from polygen.adapters.jax import meaning
from polygen.adapters.jax.launching import launch
from polygen.adapters.kernels import sizes_of
from polygen.adapters.legality import refusal_in_order
from polygen.api import Fused, fuse
from polygen.chained import with_numbers
from polygen.errors import ArgumentError, DTypeError
from polygen.frontend import given
from polygen.frontend.build import build_program
from polygen.frontend.dtypes import F32, NAMED, TF32, DType
from polygen.frontend.program import Program, Tensor

_MOST = 1024
_BY_STORAGE = {d.storage: d for d in NAMED.values() if d != TF32}
jnp = jax.numpy


def call(
    function: Callable[..., Any],
    *operands: Any,
    out_dtype: Any = None,
    acc_dtype: str = "f32",
    allow_tf32: bool = False,
    keep: str = KEEPS[0],
) -> Any:
    """Run array code as one kernel, also inside `jax.jit`, `jax.vmap` and `jax.grad`.

    Args:
        function: array code, as for `polygen.fuse`, or what that made of it.
        operands: its arguments: arrays of JAX, and Python numbers for run-time scalars.
        out_dtype: as for `Fused.compile`.
        acc_dtype: likewise.
        allow_tf32: take float32 matrices as tf32.
        keep: what a forward pass keeps for gradients: "products" between layers, so that they are
            not computed again, or "arguments" alone.

    Returns:
        An array of JAX, or a tuple of several.

    Raises:
        PolygenError: operands that no kernel takes, or a derivative that is not derived.
        ArgumentError: `keep` is none of these.

    Example:
        >>> @jax.jit
        ... def layer(x, w, b):
        ...     return pgj.call(lambda x, w, b: pg.gelu(x @ w.T + b), x, w, b)
    """
    require_known(keep, "keep")
    program, arrays, scalars = prepared(
        function, operands, out_dtype=out_dtype, acc_dtype=acc_dtype, allow_tf32=allow_tf32
    )
    program = with_numbers(program, sizes_of(program, [array.shape for array in arrays]))
    reason = refusal_in_order(program)
    if reason is not None:
        raise reason
    results = differentiable(program, scalars, keep)(*arrays)
    return results if len(program.outputs) > 1 else results[0]


def prepared(
    function: Callable[..., Any] | Fused,
    operands: Sequence[Any],
    *,
    out_dtype: Any = None,
    acc_dtype: str = "f32",
    allow_tf32: bool = False,
) -> tuple[Program, list[Any], tuple[float, ...]]:
    """The program of a call, its arrays and its numbers.

    Raises:
        PolygenError: operands that no kernel takes.
    """
    fused = _fused(function)
    names = given.parameters_of(fused.function)
    if len(operands) != len(names):
        raise ArgumentError(
            f"{len(operands)} operands given, {len(names)} expected",
            where=fused.name,
            nearest=f"Expected: {', '.join(names)}",
        )
    found = tuple(_form(n, o, allow_tf32) for n, o in zip(names, operands, strict=True))
    program = _program(fused, found, out_dtype, acc_dtype)
    arrays = [o for o, form in zip(operands, found, strict=True) if form.extents]
    scalars = tuple(float(o) for o, form in zip(operands, found, strict=True) if not form.extents)
    return program, arrays, scalars


@functools.lru_cache(_MOST)
def _fused(function: Any) -> Fused:
    return function if isinstance(function, Fused) else fuse(function)


@functools.lru_cache(4 * _MOST)
def _program(fused: Fused, found: tuple[Form, ...], out_dtype: Any, acc_dtype: str) -> Program:
    options: dict[str, Any] = {"out_dtypes": out_dtype, "acc_dtype": acc_dtype}

    def trace(tensors: Sequence[Tensor]) -> Program:
        return build_program(fused.function, fused.name, fused.source, tensors, **options)

    return most_general(trace, found)[0]


def _form(name: str, operand: Any, allow_tf32: bool) -> Form:
    if isinstance(operand, numbers.Real):
        return Form(name, F32)
    if not hasattr(operand, "shape") or not hasattr(operand, "dtype"):
        raise ArgumentError(
            f"{type(operand).__name__} is not an array",
            where=name,
            nearest="Pass an array of JAX, or a Python number",
        )
    if operand.ndim == 0:
        raise ArgumentError(
            "the array has no axes",
            where=name,
            why="a kernel takes numbers by value, and reading one from an array would wait",
            nearest=f"Pass a Python number, or {name}.reshape(1)",
        )
    return Form(name, _element(operand, name, allow_tf32), tuple(map(int, operand.shape)))


def _element(operand: Any, name: str, allow_tf32: bool) -> DType:
    storage = str(operand.dtype)
    if storage == "float32":
        return TF32 if allow_tf32 and operand.ndim >= 2 else F32
    found = _BY_STORAGE.get(storage)
    if found is None:
        raise DTypeError(
            f"the array is {storage}",
            where=name,
            why="kernels read what tensor cores multiply, and f32",
            nearest=f"Convert it: {name}.astype(jnp.bfloat16); known are "
            f"{', '.join(sorted(_BY_STORAGE))}",
        )
    return found


# --- derivatives ----------------------------------------------------------------------------------
class _Kept:
    """What of the backward pass is decided when the forward pass is traced."""

    def __init__(self, gradient: Gradient | None, forms: dict[str, tuple[Any, Any]]) -> None:
        self.gradient, self.forms = gradient, forms

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Kept):
            return NotImplemented
        return (self.gradient, self.forms) == (other.gradient, other.forms)

    def __hash__(self) -> int:
        return hash(self.gradient)


jax.tree_util.register_static(_Kept)


@functools.lru_cache(_MOST)
def differentiable(program: Program, scalars: tuple[float, ...], keep: str = KEEPS[0]) -> Any:
    """A function of a program's arrays that launches it, with its derivative."""
    names = [tensor.name for tensor in program.inputs if tensor.dims]
    given_numbers = dict(
        zip((tensor.name for tensor in program.inputs if not tensor.dims), scalars, strict=True)
    )

    def alone(*arrays: Any) -> tuple[Any, ...]:
        return launch(program, arrays, scalars)

    def forward(*primals: Any) -> tuple[Any, Any]:
        arrays = [primal.value for primal in primals]
        wanted = frozenset(n for n, p in zip(names, primals, strict=True) if p.perturbed)
        keeps = wanted and keep == KEEPS[0]
        more = keep_if_possible(program) if keeps else None
        gradient = None
        if wanted:
            gradient = derive(program, wanted) if more is None else of_some(more, wanted).gradient
        saved = gradient.saved if gradient else ()
        named = dict(zip(names, arrays, strict=True))
        known = {n: named[n] for n in saved if n in named}
        kept = _Kept(gradient, {n: (a.shape, a.dtype) for n, a in named.items()})
        if more is None:
            return launch(program, arrays, scalars), (kept, known)
        found, count = launch(more.forward, arrays, scalars), len(program.outputs)
        return found[:count], (kept, known | dict(zip(more.names, found[count:], strict=True)))

    def backward(residuals: Any, cotangents: Any) -> tuple[Any, ...]:
        kept, saved = residuals
        if kept.gradient is None:
            return (None,) * len(names)
        zero = jax.custom_derivatives.SymbolicZero
        arrived = [jnp.zeros(c.shape, c.dtype) if isinstance(c, zero) else c for c in cotangents]
        known = saved | given_numbers | dict(zip(kept.gradient.cotangents, arrived, strict=True))
        found = _gradients(kept.gradient, known, kept.forms)
        return tuple(found.get(name) for name in names)

    run = jax.custom_vjp(alone)
    run.defvjp(forward, backward, symbolic_zeros=True)
    return run


def _gradients(
    gradient: Gradient, known: dict[str, Any], forms: dict[str, tuple[Any, Any]]
) -> dict[str, Any]:
    """The gradients that were asked for, by argument.

    Args:
        gradient: how they are computed.
        known: the arguments that are read, numbers too, and the gradients of the outputs.
        forms: shape and type of each argument.
    """
    for piece in gradient.pieces:
        if isinstance(piece, Total):
            parts = [_part(known[term.source], term) for term in piece.terms]
            shape = piece.extents(lambda name: forms[name][0])
            dtype = jnp.dtype(piece.dtype.storage)
            known = known | {piece.name: _total(parts, shape, dtype)}
            continue
        operands = [
            _grouped(known[name], groups) if hasattr(known[name], "shape") else known[name]
            for name, groups in zip(piece.operands, piece.groups, strict=True)
        ]
        if refusal_in_order(piece.program) is None:
            each = tuple(zip(piece.program.inputs, operands, strict=True))
            arrays = [o for tensor, o in each if tensor.dims]
            scalars = tuple(o for tensor, o in each if not tensor.dims)
            results: Sequence[Any] = launch(piece.program, arrays, scalars)
        else:
            results = meaning.run(piece.program, operands)
        known = known | dict(zip(piece.results, results, strict=True))
    return {
        name: _total([_part(known[term.source], term) for term in terms], *forms[name])
        for name, terms in gradient.terms
        if terms
    }


def _grouped(array: Any, groups: tuple[tuple[int, ...], ...]) -> Any:
    """The array with axes made one."""
    if len(groups) == array.ndim:
        return array
    shape = []
    for axes in groups:
        extent = 1
        for axis in axes:
            extent *= array.shape[axis]
        shape.append(extent)
    return array.reshape(shape)


def _part(array: Any, term: Term) -> Any:
    if term.summed:
        array = array.sum(term.summed, dtype=jnp.float32)
    return array.transpose(term.order) if term.order else array


def _total(parts: Sequence[Any], shape: Any, dtype: Any) -> Any:
    """The parts added up, in the argument's shape and type."""
    total = parts[0].reshape(shape)
    for part in parts[1:]:
        total = total + part.reshape(shape)
    return total.astype(dtype)
