"""`captured`: a function of tensors whose kernels and collectives are launched at once, as a graph.

1. The first call with tensors of some shapes, types and places runs the function twice, so that
   kernels are compiled, communicators joined and memory of peers exchanged, then captures a third
   run in a CUDA graph (`torch.cuda.graph`). Later calls copy their tensors to where the graph reads
   them and replay it: the host launches once, however many kernels and collectives there are.
2. What the function reads beside its tensors has to stay where it is. Parameters, buffers and parts
   of a module are looked at in every call; where one has moved, or is another, the graph is
   captured again.
3. Where nothing can be captured (no GPU, gradients, a capture that fails) the function is called as
   it is, and what is against a capture is said once.

A graph that has collectives in it must go before its process group does: `Captured.forget`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from polygen.errors import ArgumentError, told
from polygen.runtime.recent import Recent

_MOST_GRAPHS = 16
_BEFORE = 2  # runs before a capture
Recorded = tuple[Callable[[], None], Any, Callable[[], None]]  # replay, results, forget


def captured(run: Callable[..., Any], *, keep: bool = False) -> Captured:
    """A function whose kernels and collectives are launched at once.

    Args:
        run: of tensors, DTensors and plain values, to tensors, or tuples, lists or dicts of them;
            a module, for example. In Python it runs thrice for each combination of shapes and
            values, and never again: what it prints, counts or decides there is decided then. All
            ranks of its collectives call it alike.
        keep: results stay where the graph writes them, and the next call overwrites them; else
            every call gives new tensors, which are copies.
    """
    if not callable(run):
        raise ArgumentError(
            f"a {type(run).__name__} cannot be called",
            where="captured",
            nearest="A function of tensors, or a module",
        )
    return Captured(run, keep)


@dataclass(slots=True)
class _Graph:
    """A capture for tensors of some shapes.

    Attributes:
        operands: what it reads, in the places of a call's.
        results: what it writes.
        replay: launches it.
        forget: gives it up.
        places: of what else it reads, by `place`.
    """

    operands: tuple[Any, ...]
    results: Any
    replay: Callable[[], None]
    forget: Callable[[], None]
    places: tuple[Any, ...]


class Captured:
    """What `captured` makes; call it as the function.

    Attributes:
        run: the function.
        why: what was against the last capture that was not made; "" where nothing was.
    """

    def __init__(self, run: Callable[..., Any], keep: bool) -> None:
        self.run, self.why = run, ""
        self._keep = keep
        self._graphs: Recent[Any, _Graph] = Recent(_MOST_GRAPHS)
        self._refused: set[Any] = set()  # combinations of which the capture failed
        self._said: set[str] = set()
        self._children, self._tables = _owned(run)

    def __call__(self, *operands: Any) -> Any:
        """What the function gives."""
        why = against(operands, self._parameters())
        if why:
            return self._plainly(why, operands)
        key = (_mode(), *[form(operand) for operand in operands])
        try:
            refused = key in self._refused
        except TypeError as error:
            return self._plainly(f"operands are told apart by their hash: {error}", operands)
        if refused:
            return self.run(*operands)
        graph, places = self._graphs.get(key), self._places()
        if graph is not None and graph.places != places:
            graph.forget()
            graph = None
        if graph is None:
            found = self._capture(operands, places)
            if found is None:
                self._refused.add(key)
                return self._plainly(self.why, operands)
            graph = self._graphs.put(key, found)
        for own, operand in zip(graph.operands, operands, strict=True):
            if (
                own is not operand
                and isinstance(own, torch.Tensor)
                and address(own) != address(operand)
            ):
                own.copy_(operand)
        graph.replay()
        if self._keep:
            return graph.results
        return _pytree.tree_map_only(torch.Tensor, torch.clone, graph.results)

    def operands(self, *operands: Any) -> tuple[Any, ...]:
        """Where the graph for such operands reads them: who writes there saves a call's copies.

        Raises:
            ArgumentError: nothing has been captured for such operands.
        """
        graph = self._graphs.get((_mode(), *[form(operand) for operand in operands]))
        if graph is None:
            raise ArgumentError(
                "nothing is captured for such operands",
                where="Captured.operands",
                why=self.why,
                nearest="Call it once before",
            )
        return graph.operands

    def forget(self) -> None:
        """Give all graphs up; before `torch.distributed.destroy_process_group`, which would wait
        for them.
        """
        for graph in self._graphs.values():
            graph.forget()
        self._graphs = Recent(_MOST_GRAPHS)

    def _plainly(self, why: str, operands: Sequence[Any]) -> Any:
        self.why = why
        if why not in self._said:
            self._said.add(why)
            name = getattr(self.run, "__name__", type(self.run).__name__)
            warnings.warn(f"{name} is not captured: {why}", stacklevel=3)
        return self.run(*operands)

    def _capture(self, operands: Sequence[Any], places: tuple[Any, ...]) -> _Graph | None:
        own = tuple(o.clone() if isinstance(o, torch.Tensor) else o for o in operands)
        beside = prepared(lambda: [self.run(*own) for _ in range(_BEFORE)])
        try:
            replay, results, forget = record(lambda: _joined(self.run(*own)), beside)
        except RuntimeError as error:  # of CUDA, or of PyTorch's capture
            self.why = f"the capture fails: {told(error)}"
            return None
        self.why = ""
        return _Graph(own, results, replay, forget, places)

    def _parameters(self) -> list[torch.Tensor]:
        if any(now != before for now, before in self._children):  # a part is another module
            self.forget()
            self._children, self._tables = _owned(self.run)
        return [one for table in self._tables for one in table.values() if one is not None]

    def _places(self) -> tuple[Any, ...]:
        return tuple([place(tensor) for tensor in self._parameters()])


Table = dict[str, Any]


def _owned(run: Any) -> tuple[list[tuple[Table, Table]], list[Table]]:
    """Where a module keeps its parts, with these, and where they keep parameters and buffers."""
    if not isinstance(run, torch.nn.Module):
        return [], []
    modules = list(run.modules())
    children = [(module._modules, dict(module._modules)) for module in modules]
    return children, [table for m in modules for table in (m._parameters, m._buffers)]


def against(operands: Sequence[Any], parameters: Sequence[torch.Tensor]) -> str:
    """What is against capturing a call; "": nothing is known."""
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    if torch.compiler.is_compiling():
        return "it is compiled into a larger graph"
    if not tensors or any(tensor.device.type != "cuda" for tensor in tensors):
        return "CUDA graphs need tensors on a GPU"
    if torch.cuda.is_current_stream_capturing():
        return "it is captured as a part of a larger graph"
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *parameters)):
        return "gradients are wanted; torch.no_grad() wants none"
    return ""


def form(operand: Any) -> Any:
    """What two operands have in common that one graph takes; a plain value is itself."""
    if not isinstance(operand, torch.Tensor):
        return operand
    at = getattr(operand, "placements", None)
    mesh = getattr(operand, "device_mesh", None)
    return operand.shape, operand.stride(), operand.dtype, operand.device, at, mesh


def address(tensor: torch.Tensor) -> int:
    """Where a tensor, or this rank's part of a DTensor, lies."""
    local = getattr(tensor, "_local_tensor", tensor)
    return int(local.data_ptr())


def place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a graph that reads a tensor relies on: another may lie at its address later."""
    local = getattr(tensor, "_local_tensor", tensor)
    return int(local.data_ptr()), local.dtype, local.shape, local.stride()


def _mode() -> tuple[Any, ...]:
    """What PyTorch does otherwise to the same operands."""
    autocast = torch.is_autocast_enabled("cuda")
    return (
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        torch.get_autocast_dtype("cuda") if autocast else None,
    )


def _joined(results: Any) -> Any:
    """Results whose collectives are over when the stream gets there."""
    for leaf in _pytree.tree_leaves(results):
        wait = getattr(getattr(leaf, "_local_tensor", leaf), "trigger_wait", None)
        if wait is not None:
            wait()
    return results


def prepared(run: Callable[[], Any]) -> Any:
    """Run what makes ready for a capture, on the stream that is captured then.

    Returns:
        The stream.
    """
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        run()
    torch.cuda.current_stream().wait_stream(beside)
    return beside


def record(run: Callable[[], Any], beside: Any) -> Recorded:
    """Capture what a function launches on the current device.

    Args:
        run: what is captured.
        beside: the stream, another than the current one.

    Returns:
        What launches it again, what `run` returned, and what gives the graph up.

    Raises:
        RuntimeError: something in it cannot be captured.
    """
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        # The engine's watchdog asks for events on a thread of its own meanwhile.
        with torch.cuda.graph(graph, stream=beside, capture_error_mode="thread_local"):
            results = run()
    finally:
        torch.cuda.set_stream(current)  # where the capture fails, PyTorch leaves its own
    return graph.replay, results, graph.reset
