"""Output arrays in the caller's library, and the stream a call runs on.

PyTorch and JAX are used through ``sys.modules``: whoever passes their arrays has imported them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from polygen.errors import ArgumentError
from polygen.frontend.dtypes import DType
from polygen.frontend.program import Program
from polygen.runtime.arrays import numpy_dtype
from polygen.runtime.dlpack import compact
from polygen.runtime.driver import Driver, cupy_driver

Allocate = Callable[[], Any]


def allocator(
    library: str, device: int, shape: tuple[int, ...], dtype: DType, order: tuple[int, ...]
) -> Allocate:
    """Prepare the allocation of one output.

    Args:
        library: whose array it shall be; those without an allocator here get a CuPy array.
        device: the device, which is the current one when the result is called.
        shape: in elements.
        dtype: the element type.
        order: axes from slowest to contiguous.

    Returns:
        A function that makes a new, uninitialised array.
    """
    stored = tuple(shape[axis] for axis in order)
    back = tuple(order.index(axis) for axis in range(len(order)))
    plain = back == tuple(range(len(order)))
    make: Allocate
    if library == "torch":
        torch = sys.modules["torch"]
        element, steps = getattr(torch, dtype.storage), compact(stored)
        # What PyTorch's own generated code calls; the public function takes three times as long.
        guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
        raw = getattr(guards, "_empty_strided_cuda", None)
        if raw is not None:
            given = tuple(stored[at] for at in back), tuple(steps[at] for at in back)
            return functools.partial(raw, *given, element)
        where = torch.device("cuda", device)
        make = functools.partial(torch.empty, stored, dtype=element, device=where)
        return make if plain else lambda: make().permute(back)
    import cupy  # noqa: PLC0415

    make = functools.partial(cupy.empty, stored, numpy_dtype(dtype))
    return make if plain else lambda: make().transpose(back)


def address_reader(library: str) -> Callable[[Any], int]:
    """Give what asks for the address of an array that `allocator` made."""
    if library == "torch":
        read: Callable[[Any], int] = sys.modules["torch"].Tensor.data_ptr
        return read
    return lambda array: int(array.data.ptr)


def deliver(library: str) -> Callable[[Any], Any]:
    """Give the step from the array that `allocator` made to one of `library`.

    JAX arrays never change, so that a JAX output is made as a CuPy array and handed over through
    DLPack after the launch, on the stream of the launch.
    """
    jax = sys.modules.get("jax")
    if library == "jax" and jax is not None:
        return lambda array: jax.dlpack.from_dlpack(array)
    return lambda array: array


@functools.cache
def _torch_current_stream(torch: Any) -> Callable[[int], int]:
    # The raw call is what PyTorch's own generated kernels use; the public one builds an object.
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


def stream_reader(library: str, device: int, driver: Driver) -> Callable[[], int]:
    """Give what asks for the caller's current stream, as the library of its arrays sees it."""
    if library == "torch":
        return functools.partial(_torch_current_stream(sys.modules["torch"]), device)
    return driver.current_stream


def current_stream(library: str, device: int, driver: Driver) -> int:
    """Give the caller's current stream, as the library of its arrays sees it."""
    return stream_reader(library, device, driver)()


def stream_pointer(
    stream: Any, library: str = "cupy", device: int = 0, driver: Driver | None = None
) -> int:
    """Find the CUDA stream that a caller's `stream` argument means.

    Args:
        stream: None (the current stream of `library`), a number, a CuPy or PyTorch stream, or an
            object with ``__cuda_stream__``.
        library: whose current stream None means.
        device: on which device, for PyTorch.
        driver: the CUDA calls; None: CuPy's.

    Raises:
        ArgumentError: not a stream.
    """
    if stream is None:
        return current_stream(library, device, driver or cupy_driver())
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    for attribute in ("ptr", "cuda_stream"):
        value = getattr(stream, attribute, None)
        if isinstance(value, int):
            return value
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair = protocol() if callable(protocol) else protocol
        return int(pair[1])
    raise ArgumentError(
        f"{type(stream).__name__} is not a CUDA stream",
        where="stream",
        nearest="Pass a CuPy or PyTorch stream, its address as int, or None for the current one",
    )


def allocation_scope(
    library: str, stream: int, driver: Driver
) -> contextlib.AbstractContextManager[Any]:
    """Make allocations inside the block belong to `stream`.

    Both libraries hand freed memory out again in stream order: memory allocated on another stream
    than the one the kernel runs on could be given away while the kernel still writes it.
    """
    if library == "torch":
        torch = sys.modules["torch"]
        scope = torch.cuda.stream(torch.cuda.ExternalStream(stream))
        return scope  # type: ignore[no-any-return]
    return driver.stream_scope(stream)


def stored_into(program: Program, operands: Sequence[Any], out: Any) -> Any:
    """The operands that a program stores into, which are what a call gives back.

    Args:
        program: stores into some of its operands.
        operands: of a call.
        out: the outputs that were given besides, if any.

    Raises:
        ArgumentError: there are more or fewer operands, or other outputs are given.
    """
    given, wanted = dict(program.in_place), program.operands
    if len(operands) != len(wanted):
        raise ArgumentError(
            f"{len(operands)} operands given, {len(wanted)} expected",
            nearest=f"Expected: {', '.join(map(str, wanted))}",
        )
    found = tuple(operands[given[tensor.name]] for tensor in program.outputs)
    outs = () if out is None else tuple(out) if isinstance(out, (tuple, list)) else (out,)
    if outs and [*map(id, outs)] != [*map(id, found)]:
        raise ArgumentError(
            f"out= is given, and {', '.join(given)} is stored into",
            where="out",
            nearest="Leave it away: the operand is the result",
        )
    return found[0] if len(found) == 1 else found
