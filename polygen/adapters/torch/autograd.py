"""The backward pass of an operator: the programs of `polygen.adapters.gradients`, on tensors.

Kept for it are the arguments that it reads, and what a forward pass stores beside its results
(`polygen.adapters.backward_kept`). What a kernel can be made of runs as one, everything else in
PyTorch's operations, which `torch.compile` fuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polygen.adapters.backward_cuts import Gradient, Term, Total
from polygen.adapters.backward_kept import Kept, of_some
from polygen.adapters.backward_products import Piece
from polygen.adapters.gradients import derive
from polygen.adapters.legality import refusal
from polygen.adapters.torch import meaning
from polygen.adapters.torch.launching import launch, no_second_derivative, text_of
from polygen.adapters.torch.running import Operands, sizes_for
from polygen.adapters.torch.tensors import torch_dtype
from polygen.errors import GradientError
from polygen.frontend.program import Program
from polygen.runtime.recent import Recent

_MOST_PLANS = 1024
ProgramFor = Callable[[Operands], tuple[Program, dict[str, Any]]]


def register(
    name: str,
    program_for: ProgramFor,
    run: Callable[..., Any],
    library: Any,
    kept_by: Callable[[Program], Kept | None] = lambda _: None,
) -> type[torch.autograd.Function]:
    """Make an operator differentiable.

    Args:
        name: of the operator, with its namespace.
        program_for: what a call computes.
        run: the operator.
        library: in which it is defined.
        kept_by: of a program, what the operator returns behind its results for the backward pass.

    Returns:
        The operator for the transforms of `torch.func`, which look into no operator of a library.
    """
    known: Recent[Any, Plan] = Recent(_MOST_PLANS)

    def plan(inputs: Operands, needed: tuple[bool, ...]) -> Plan:
        forms = [(v.shape, v.dtype) if _is_tensor(v) else None for v in inputs]
        key = (*forms, *needed)
        try:
            found = known.get(key)
        except TypeError:  # sizes of a trace have no hash
            return made(inputs, needed)
        return found or known.put(key, made(inputs, needed))

    def made(inputs: Operands, needed: tuple[bool, ...]) -> Plan:
        program = program_for(inputs)[0]
        return planned(program, needed, kept_by(program))

    def keep(ctx: Any, inputs: Operands, output: Any) -> None:
        found = plan(inputs, tuple(ctx.needs_input_grad[: len(inputs)]))
        named = dict(zip(found.arguments, inputs, strict=True))
        arrays = [named[name] for name in found.gradient.saved if _is_tensor(named[name])]
        if found.kept:
            further = output[-len(found.kept) :]
            ctx.set_materialize_grads(False)
            ctx.polygen_results = [(v.shape, v.dtype, v.device) for v in output[: -len(further)]]
            stored = dict(zip(found.kept, further, strict=True))
            arrays += [stored[name] for name in found.kept_and_read]
        ctx.save_for_backward(*arrays)
        ctx.polygen_numbers = {n: v for n, v in named.items() if not _is_tensor(v)}
        ctx.polygen_forms = {n: (v.shape, v.dtype) for n, v in named.items() if _is_tensor(v)}
        ctx.polygen_plan = found

    def backward(ctx: Any, *cotangents: Any) -> Any:
        found: Plan = ctx.polygen_plan
        if len(cotangents) == 1 and isinstance(cotangents[0], (list, tuple)):  # of a list
            cotangents = tuple(cotangents[0])
        if found.kept:
            count = len(ctx.polygen_results)
            if any(one is not None for one in cotangents[count:]):
                no_second_derivative(name)  # what is kept was differentiated
            each = zip(cotangents[:count], ctx.polygen_results, strict=True)
            cotangents = tuple(_arrived(one, *form) for one, form in each)
        arrays = [n for n in found.gradient.saved if n not in ctx.polygen_numbers]
        arrays += found.kept_and_read
        values = dict(zip(arrays, ctx.saved_tensors, strict=True)) | ctx.polygen_numbers
        values |= zip(found.gradient.cotangents, cotangents, strict=True)
        given = gradients(found, values, ctx.polygen_forms)
        results = tuple(given.get(argument) for argument in found.arguments)
        return results if len(results) > 1 else results[0]

    torch.library.register_autograd(name, backward, setup_context=keep, lib=library)
    return _transformed(name, run, keep, backward)


def _arrived(cotangent: Any, shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What arrives at a result; zeros where it is not used."""
    if cotangent is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    return cotangent


def _transformed(
    name: str, run: Callable[..., Any], keep: Callable[..., None], backward: Callable[..., Any]
) -> type[torch.autograd.Function]:
    """A function of PyTorch's that transforms of `torch.func` know how to differentiate and map."""

    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise forward_mode(name)

    methods = {"forward": run, "setup_context": keep, "backward": backward, "jvp": jvp}
    made = {method: staticmethod(call) for method, call in methods.items()}
    return type(name, (torch.autograd.Function,), {**made, "generate_vmap_rule": True})


def forward_mode(name: str) -> GradientError:
    """What is said of derivatives in forward mode."""
    return GradientError(
        "a derivative in forward mode",
        where=name,
        why="programs are differentiated backwards",
        nearest="torch.func.grad, vjp or jacrev; or backward()",
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """A backward pass, with everything decided that shapes and types decide.

    Attributes:
        arguments: of the operator, by name.
        gradient: how the gradients are computed.
        texts: per piece its program as text; None where no kernel can be made of it.
        kept: what the forward pass stores beside its results, as pieces call it.
    """

    arguments: tuple[str, ...]
    gradient: Gradient
    texts: tuple[str | None, ...]
    kept: tuple[str, ...] = ()

    @property
    def kept_and_read(self) -> list[str]:
        """What of it the gradients are computed of."""
        pieces = [one for one in self.gradient.pieces if isinstance(one, Piece)]
        read = {name for piece in pieces for name in piece.operands}
        return [name for name in self.kept if name in read]


def planned(program: Program, needed: Sequence[bool], kept: Kept | None = None) -> Plan:
    """The backward pass of a program, for the arguments that need a gradient.

    Args:
        program: what is differentiated.
        needed: which of its arguments need one.
        kept: what the forward pass stores beside its results; None: nothing.

    Raises:
        GradientError: one of them has none.
    """
    names = tuple(tensor.name for tensor in program.inputs)
    wanted = frozenset(n for n, need in zip(names, needed, strict=True) if need)
    gradient = derive(program, wanted) if kept is None else of_some(kept, wanted).gradient
    texts = (
        text_of(piece.program)
        if isinstance(piece, Piece) and refusal(piece.program) is None
        else None
        for piece in gradient.pieces
    )
    return Plan(names, gradient, tuple(texts), () if kept is None else kept.names)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def gradients(
    plan: Plan, known: dict[str, Any], forms: dict[str, tuple[Any, torch.dtype]]
) -> dict[str, torch.Tensor]:
    """The gradients that were asked for, by argument.

    Args:
        plan: how they are computed.
        known: the arguments that are read, numbers too, and the gradients of the outputs.
        forms: shape and type of each argument.
    """
    known = dict(known)
    for piece, text in zip(plan.gradient.pieces, plan.texts, strict=True):
        if isinstance(piece, Total):
            parts = [_part(known[term.source], term) for term in piece.terms]
            exact = any(part.dtype == torch.float64 for part in parts)
            dtype = torch.float64 if exact else torch_dtype(piece.dtype)
            shape = piece.extents(lambda name: forms[name][0])
            known[piece.name] = _total(parts, shape, dtype)
            continue
        operands = [
            _grouped(known[name], groups) if _is_tensor(known[name]) else known[name]
            for name, groups in zip(piece.operands, piece.groups, strict=True)
        ]
        if text is not None:
            results = launch(text, operands)
        elif piece.factors and len({one.dtype for one in operands}) == 1:
            # As the program: PyTorch computes in float32, and rounds once.
            results = [known[first] * known[second] for first, second in piece.factors]
        else:
            results = meaning.run(piece.program, operands, sizes_for(piece.program, operands))
        known |= zip(piece.results, results, strict=True)
    return {
        name: _total([_part(known[term.source], term) for term in terms], *forms[name])
        for name, terms in plan.gradient.terms
        if terms
    }


def _grouped(tensor: torch.Tensor, groups: tuple[tuple[int, ...], ...]) -> torch.Tensor:
    """The tensor with axes made one."""
    if len(groups) == tensor.dim():
        return tensor
    shape = []
    for axes in groups:
        extent = tensor.shape[axes[0]]
        for axis in axes[1:]:
            extent = extent * tensor.shape[axis]
        shape.append(extent)
    return tensor.reshape(shape)


def _part(tensor: torch.Tensor, term: Term) -> torch.Tensor:
    if term.summed:
        exact = tensor.dtype == torch.float64
        tensor = tensor.sum(term.summed, dtype=tensor.dtype if exact else torch.float32)
    return tensor.permute(term.order) if term.order else tensor


def _total(parts: Sequence[torch.Tensor], shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """The parts added up, in the argument's shape and type."""
    total = parts[0].reshape(shape)
    for part in parts[1:]:
        total = total + part.reshape(shape)
    return total.to(dtype)
