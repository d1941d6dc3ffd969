"""What a group gains, measured on the GPU: its kernel, and its products by PyTorch and one kernel
that moves the bytes of the pointwise work.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node as FxNode

from polygen.adapters.gain import Gain, bare, is_pointwise_work
from polygen.adapters.kernels import sizes_of
from polygen.adapters.torch import meaning
from polygen.adapters.torch.aten import name_of
from polygen.adapters.torch.attentions import KERNELS as ATTENTION
from polygen.adapters.torch.attentions import Found
from polygen.adapters.torch.placing import hint
from polygen.adapters.torch.running import KERNELS
from polygen.adapters.torch.tensors import torch_dtype
from polygen.api import target
from polygen.frontend.indices import size_value
from polygen.frontend.program import Program, Tensor
from polygen.hardware.cost_parameters import cost_parameters

_WARM, _CALLS, _TIMES = 3, 8, 9
_MEASURED = (*ATTENTION, "mm", "bmm")


def measured(program: Program, sizes: Mapping[str, int], followed: Collection[str] = ()) -> Gain:
    """The gain of a program, on the current device, for random operands.

    Operands take turns until the L2 cache has forgotten the first, as weights in a model do.

    Args:
        program: what a kernel computes, with the order in which each array is stored.
        sizes: of its symbolic dims.
        followed: outputs that, apart, would be computed in kernels which there are anyway; they are
            taken to cost nothing there.

    Raises:
        PolygenError: no kernel can be made of it.
    """
    with unset_fake_temporarily(), torch.no_grad():
        turns = [{t.name: _random(t, sizes) for t in program.inputs}]
        arrays = turns[0]
        moved = sum(t.numel() * t.element_size() for t in arrays.values())
        cache = 2 * cost_parameters(target(None)).l2_bytes
        for _ in range(min(_CALLS - 1, int(cache // moved))):
            turns.append({name: array.clone() for name, array in arrays.items()})
        kernel = KERNELS.alone(program, sizes)
        outputs = kernel(*arrays.values())
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        fused = _time(*(functools.partial(kernel, *one.values(), out=outputs) for one in turns))
        apart = 0.0
        for product in program.contractions:
            alone = bare(program, product)
            for tensor in alone.inputs:  # what another product makes is no operand of the kernel
                if tensor.name not in arrays:
                    for one in turns:
                        one[tensor.name] = _random(tensor, sizes)
            given = [[one[tensor.name] for tensor in alone.inputs] for one in turns]
            shapes = sizes_of(alone, [array.shape for array in given[0]])
            apart += _time(*(functools.partial(meaning.run, alone, one, shapes) for one in given))
        if is_pointwise_work(program) and not {t.name for t in program.outputs} <= set(followed):
            apart += _time(_moving(program, arrays, outputs))
        return Gain(fused, apart)


def measured_attention(program: Program, sizes: Mapping[str, int], found: Found) -> Gain:
    """The gain of attention, on the current device, for random operands.

    A kernel of PyTorch is called as the graph calls it. Where products and a softmax are apart, the
    products are PyTorch's, and what is between them is one kernel that moves as many bytes.

    Args:
        program: what a kernel computes, with the order in which each array is stored.
        sizes: of its symbolic dims.
        found: what it is in the graph.

    Raises:
        PolygenError: no kernel can be made of it.
    """
    with unset_fake_temporarily(), torch.no_grad():
        arrays = [_random(tensor, sizes) for tensor in program.inputs]
        kernel = KERNELS.alone(program, sizes)
        outputs = (kernel(*arrays),)
        fused = _time(lambda: kernel(*arrays, out=outputs))
        calls = [_alone(node) for node in found.members if name_of(node) in _MEASURED]
        apart = sum(map(_time, calls))
        if not found.library:
            first = next(node for node in found.members if name_of(node) in _MEASURED)
            scores = torch.empty(_extents(first.meta["val"]), dtype=torch.bfloat16, device="cuda")
            weights = torch.empty_like(scores)
            apart += _time(lambda: weights.copy_(scores))
        return Gain(fused, apart)


def _alone(node: FxNode) -> Callable[[], Any]:
    """A call of a graph by itself, on random tensors like those of the trace."""

    def like(one: FxNode) -> torch.Tensor:
        value = one.meta["val"]
        made = torch.empty_strided(
            _extents(value), [hint(s) for s in value.stride()], dtype=value.dtype, device="cuda"
        )
        return made.fill_(True) if value.dtype == torch.bool else made.normal_()

    args = torch.fx.map_arg(node.args, like)
    keywords = torch.fx.map_arg(node.kwargs, like)
    return lambda: node.target(*args, **keywords)


def _extents(value: torch.Tensor) -> list[int]:
    return [hint(extent) for extent in value.shape]


def _random(tensor: Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
    """An array of a program's input, stored in its order."""
    shape = [size_value(dim, sizes) for dim in tensor.dims]
    made = torch.randn([shape[axis] for axis in tensor.order], device="cuda")
    back = [tensor.order.index(axis) for axis in range(len(shape))]
    return made.to(torch_dtype(tensor.dtype)).permute(back)


def _moving(
    program: Program, arrays: Mapping[str, torch.Tensor], outputs: Sequence[torch.Tensor]
) -> Callable[[], Any]:
    """One kernel that moves as many bytes as the pointwise work on products in memory."""
    read = {access.name for statement in program.pointwise for access in statement.reads}
    moved = sum(t.numel() * t.element_size() for name, t in arrays.items() if name in read)
    moved += sum(t.numel() * t.element_size() for t in outputs)
    moved += outputs[0].numel() * 2 * len(program.contractions)
    source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    to = torch.empty_like(source)
    return lambda: to.copy_(source)


def _time(*turns: Callable[[], Any]) -> float:
    """Median microseconds of a call's work on the GPU, without what the CPU does for it.

    Calls, of which each has its turn, are captured in a graph, so that kernels follow each other
    closely however short they are.
    """
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for turn in range(max(_WARM, len(turns))):
            turns[turn % len(turns)]()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for turn in range(_CALLS):
            turns[turn % len(turns)]()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(_TIMES)]
    graph.replay()
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return 1e3 / _CALLS * float(statistics.median(a.elapsed_time(b) for a, b in events))
