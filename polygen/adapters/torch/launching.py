"""`polygen::launch`: any program as an operator of PyTorch, with the program itself as an argument.

Backward passes and graphs of `torch.compile` call it. The program is text that says all of it, so
that a graph which holds one is complete: it can be kept on disk and run by another process.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from polygen.adapters.torch.running import Runner, sizes_for
from polygen.adapters.torch.watching import are_plain, is_watched
from polygen.errors import AlignmentMismatch, GradientError
from polygen.frontend.program import Program
from polygen.generated import content, decode
from polygen.runtime.repeated import Repeated

NAMESPACE = "polygen"
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_MOST_RUNNERS = 4096
View = tuple[Sequence[int], Sequence[int], int]
Form = tuple[Sequence[int], Sequence[int]]
_TRIES = 4  # to repeat a call: those of some programs are more than a launch


def launch(text: str, operands: Sequence[Any]) -> list[torch.Tensor]:
    """Run a program as one kernel; under a trace, record it as one node.

    Args:
        text: the program, by `text_of`; a kernel can be made of it.
        operands: in order, tensors and numbers.

    Returns:
        The outputs, in order.
    """
    if torch.compiler.is_compiling():
        return _dispatched(text, operands)
    if torch._C._functorch.peek_interpreter_stack() is not None:
        made: Sequence[torch.Tensor] = _Transformed.apply(text, *operands)
        return list(made)
    if are_plain(operands) and not is_watched():
        return list(launch_plainly(text, operands))
    return _dispatched(text, operands)


def _dispatched(text: str, operands: Sequence[Any]) -> list[torch.Tensor]:
    arrays = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    scalars = [float(operand) for operand in operands if not isinstance(operand, torch.Tensor)]
    found: list[torch.Tensor] = torch.ops.polygen.launch.default(arrays, scalars, text)
    return found


class _Transformed(torch.autograd.Function):  # type: ignore[misc]
    """A launch for the transforms of `torch.func`, which look into no operator of a library."""

    generate_vmap_rule = True

    @staticmethod
    def forward(text: str, *operands: Any) -> tuple[torch.Tensor, ...]:
        return tuple(_dispatched(text, operands))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        _no_derivative()

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        _no_derivative()


def launch_plainly(
    text: str, operands: Sequence[Any], out: tuple[torch.Tensor, ...] | None = None
) -> Sequence[torch.Tensor]:
    """Run a program as one kernel on plain tensors of a GPU, past PyTorch's dispatcher.

    Args:
        text: the program, by `text_of`.
        operands: in order, tensors and numbers, for which `is_plain` holds.
        out: tensors for the results, without gaps; None: new ones.

    Returns:
        The outputs, in order.
    """
    values = tuple([o if isinstance(o, torch.Tensor) else float(o) for o in operands])
    found = _runner(text)[0].on_gpu(values, out)
    return found if isinstance(found, tuple) else (found,)


def is_plain(operands: Sequence[Any]) -> bool:
    """Whether nothing but computing is to be done: no trace, no wrapper of tensors, no mode."""
    if torch._C._len_torch_dispatch_stack() or torch.compiler.is_compiling():
        return False
    return are_of_torch(operands)


def are_of_torch(operands: Sequence[Any]) -> bool:
    """Whether no tensor is of a class of its own, such as one of several devices."""
    return all([type(o) in _PLAIN for o in operands if isinstance(o, torch.Tensor)])


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def text_of(program: Program) -> str:
    """A program as text that `read` reads."""
    return content(program)


@functools.lru_cache(_MOST_RUNNERS)
def read(text: str) -> Program:
    """The program that a graph holds as text.

    Raises:
        ValueError: another version of polygen wrote it.
    """
    return decode(Program, json.loads(text))


@functools.lru_cache(_MOST_RUNNERS)
def _runner(text: str) -> tuple[Runner, tuple[bool, ...]]:
    """What runs a program, and which of its inputs are arrays."""
    program = read(text)
    runner = Runner(lambda operands: (program, sizes_for(program, operands)))
    return runner, tuple(bool(tensor.dims) for tensor in program.inputs)


def _registered(method: str) -> Callable[..., list[torch.Tensor]]:
    def run(arrays: Sequence[Any], scalars: Sequence[float], text: str) -> list[torch.Tensor]:
        runner, are_arrays = _runner(text)
        operands = arrays
        if scalars:
            each, numbers = iter(arrays), iter(scalars)
            operands = [next(each if is_array else numbers) for is_array in are_arrays]
        found = getattr(runner, method)(tuple(operands))
        return list(found) if type(found) is tuple else [found]

    return run


def at_once(arrays: Sequence[Any], scalars: Sequence[float], text: str) -> list[torch.Tensor]:
    """The operator on CUDA tensors, without PyTorch's dispatcher; for code that Inductor makes.

    Args:
        arrays: the program's arrays, none of which PyTorch records.
        scalars: its numbers, in order.
        text: the program, by `text_of`.
    """
    return _on_gpu(arrays, scalars, text)


class Site:
    """One place in code that Inductor makes for fixed shapes, where a program is launched.

    The first call is as any other; those behind it read nothing of tensors but their addresses.

    Args:
        text: the program, by `text_of`; all of its inputs are arrays.
        views: per input how it lies in the tensor that calls give: shape, steps, and elements
            before it; None: it is that tensor. (): all of them are.
        results: shape and steps of each output, as the code around takes them; (): that is its
            matter.
    """

    __slots__ = ("_again", "_left", "_results", "_text", "_views")

    def __init__(
        self, text: str, views: Sequence[View | None] = (), results: Sequence[Form] = ()
    ) -> None:
        self._text, self._views, self._results = text, views, results
        self._again: Repeated | None = None
        self._left = _TRIES

    def __call__(self, arrays: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs.

        Args:
            arrays: CUDA tensors of the same shapes, strides and types in all calls, none of which
                PyTorch records.
        """
        again = self._again  # another thread may give it up
        if again is not None:
            try:
                return again(arrays)
            except (AlignmentMismatch, LookupError):  # another variant, or another device
                self._again = None
        return self._read(arrays)

    def _read(self, arrays: Sequence[Any]) -> list[torch.Tensor]:
        """A call that reads all of its tensors."""
        given = arrays
        if self._views:
            given = [
                one if view is None else _viewed(one, *view)
                for one, view in zip(arrays, self._views, strict=True)
            ]
        found: list[torch.Tensor] = _on_gpu(given, (), self._text)
        for one, (shape, steps) in zip(found, self._results, strict=bool(self._results)):
            if (*one.shape, *one.stride()) != (*shape, *steps):
                raise AssertionError(f"a result lies as {one.shape}, {one.stride()} in {shape}")
        if self._left:
            self._left -= 1
            again = _runner(self._text)[0].repeated(tuple(given))
            if again is not None and self._views:
                again = again.shifted(
                    tuple(
                        0 if view is None else view[2] * one.element_size()
                        for one, view in zip(arrays, self._views, strict=True)
                    )
                )
            self._again = again
        return found


def _viewed(
    tensor: torch.Tensor, shape: Sequence[int], steps: Sequence[int], before: int
) -> torch.Tensor:
    return tensor.as_strided(shape, steps, tensor.storage_offset() + before)


def _each(
    info: Any, dims: tuple[Any, ...], arrays: Sequence[Any], scalars: Sequence[float], text: str
) -> tuple[list[torch.Tensor], list[int]]:
    """The operator under `torch.vmap`: one launch for each element of the mapped axes."""
    many = []
    for number in range(info.batch_size):
        given = [
            a if d is None else a.select(d, number) for a, d in zip(arrays, dims[0], strict=True)
        ]
        many.append(torch.ops.polygen.launch.default(given, scalars, text))
    found = [torch.stack(parts) for parts in zip(*many, strict=True)]
    return found, [0] * len(found)


def no_second_derivative(name: str) -> NoReturn:
    """Refuse to differentiate a derivative.

    Raises:
        GradientError: always.
    """
    raise GradientError(
        "a second derivative",
        where=name,
        why="derivatives of derivatives are not derived",
        nearest="Leave create_graph=True away",
    )


def _no_derivative(*_: Any) -> None:
    no_second_derivative("polygen::launch")


LIBRARY.define(
    "launch(Tensor[] arrays, float[] scalars, str program) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_on_gpu = _registered("on_gpu")
LIBRARY.impl("launch", _on_gpu, "CUDA")
LIBRARY.impl("launch", _registered("on_cpu"), "CPU")
torch.library.register_fake("polygen::launch", _registered("shapes_alone"), lib=LIBRARY)
torch.library.register_vmap("polygen::launch", _each, lib=LIBRARY)
torch.library.register_autograd("polygen::launch", _no_derivative, lib=LIBRARY)
