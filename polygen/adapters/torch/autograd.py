"""The backward pass of an operator: the programs of `polygen.adapters.gradients`, on tensors.

Kept for it are the arguments that it reads, and nothing that is computed. What a kernel can be made
of runs as one, everything else in PyTorch's operations, which `torch.compile` fuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from polygen.adapters.gradients import Gradient, Term, derive
from polygen.adapters.legality import refusal
from polygen.adapters.torch import meaning
from polygen.adapters.torch.launching import launch
from polygen.adapters.torch.running import Operands, sizes_for
from polygen.frontend.program import Program

ProgramFor = Callable[[Operands], tuple[Program, dict[str, Any]]]


def register(name: str, program_for: ProgramFor, library: Any) -> None:
    """Make an operator differentiable.

    Args:
        name: of the operator, with its namespace.
        program_for: what a call computes.
        library: in which it is defined.
    """

    def keep(ctx: Any, inputs: Operands, output: Any) -> None:
        program, _ = program_for(inputs)
        needed = zip(program.inputs, ctx.needs_input_grad, strict=False)
        wanted = frozenset(tensor.name for tensor, need in needed if need)
        gradient = derive(program, wanted)
        named = dict(zip((tensor.name for tensor in program.inputs), inputs, strict=True))
        ctx.save_for_backward(*(named[n] for n in gradient.saved if _is_tensor(named[n])))
        ctx.polygen_scalars = {n: v for n, v in named.items() if not _is_tensor(v)}
        ctx.polygen_forms = {n: (v.shape, v.dtype) for n, v in named.items() if _is_tensor(v)}
        ctx.polygen_gradient = gradient
        ctx.polygen_inputs = tuple(named)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        gradient = ctx.polygen_gradient
        arrays = [n for n in gradient.saved if n not in ctx.polygen_scalars]
        known = dict(zip(arrays, ctx.saved_tensors, strict=True)) | ctx.polygen_scalars
        known |= zip(gradient.cotangents, cotangents, strict=True)
        found = gradients(gradient, known, ctx.polygen_forms)
        results = tuple(found.get(argument) for argument in ctx.polygen_inputs)
        return results if len(results) > 1 else results[0]

    torch.library.register_autograd(name, backward, setup_context=keep, lib=library)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def gradients(
    gradient: Gradient, known: dict[str, Any], forms: dict[str, tuple[Any, torch.dtype]]
) -> dict[str, torch.Tensor]:
    """The gradients that were asked for, by argument.

    Args:
        gradient: how they are computed.
        known: the arguments that are read, numbers too, and the gradients of the outputs.
        forms: shape and type of each argument.
    """
    known = dict(known)
    for piece in gradient.pieces:
        operands = [
            _grouped(known[name], groups) if _is_tensor(known[name]) else known[name]
            for name, groups in zip(piece.operands, piece.groups, strict=True)
        ]
        results = computed(piece.program, operands)
        known |= zip((tensor.name for tensor in piece.program.outputs), results, strict=True)
    return {
        name: _total([_part(known[term.source], term) for term in terms], *forms[name])
        for name, terms in gradient.terms
        if terms
    }


def computed(program: Program, operands: Sequence[Any]) -> Sequence[torch.Tensor]:
    """A program's outputs: by a kernel if one can be made of it."""
    if refusal(program) is None:
        return launch(program, operands)
    return meaning.run(program, operands, sizes_for(program, operands))


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
