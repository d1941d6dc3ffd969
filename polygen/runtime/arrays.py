"""Callers' arrays -> `ArrayView`: pointer, shape, strides, dtype, device; nothing is copied.

CuPy arrays and PyTorch tensors are read by attributes, without importing either library. All other
arrays are read through ``__dlpack__`` or, failing that, ``__cuda_array_interface__``. Which way a
type goes is decided once per type (`library`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from polygen.errors import ArgumentError, DTypeError
from polygen.frontend import dtypes
from polygen.frontend.dtypes import DType
from polygen.runtime import dlpack
from polygen.runtime.driver import Driver, cupy_driver


@dataclass(frozen=True, slots=True)
class ArrayView:
    """One array in device memory."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: DType | str  # a raw NumPy name ("uint8") where polygen has no such dtype
    device: int
    library: str  # "cupy", "torch", "jax", "numba", or the package that defines the type
    readonly: bool = False
    keepalive: object = field(default=None, compare=False)

    @property
    def storage(self) -> str:
        """The NumPy or ml_dtypes name of the element type."""
        return self.dtype.storage if isinstance(self.dtype, DType) else self.dtype

    @property
    def form(self) -> Hashable:
        """All that a launch depends on but the pointer."""
        return (self.shape, self.strides, self.storage, self.device, self.library, self.readonly)


# Addresses of arrays, and all that a launch depends on beside them, as many values for each array
# of a library; None if they are not of one type.
Read = Callable[[Sequence[Any]], tuple[list[int], list[Hashable]] | None]


def _read_cupy(arrays: Sequence[Any]) -> tuple[list[int], list[Hashable]] | None:
    kind, pointers = type(arrays[0]), []
    forms: list[Hashable] = []
    for array in arrays:
        if type(array) is not kind:
            return None
        data = array.data
        pointers.append(data.ptr)
        # Steps of contiguous arrays follow from shape and type, and take longer to ask for.
        steps = array._c_contiguous or array.strides
        forms += array.shape, steps, array.dtype, data.device_id
    return pointers, forms


def _read_torch(tensors: Sequence[Any]) -> tuple[list[int], list[Hashable]] | None:
    kind, pointers = type(tensors[0]), []
    forms: list[Hashable] = []
    for tensor in tensors:
        own = type(tensor)
        if own is not kind and READS.get(own) is not _read_torch:  # a parameter among tensors
            return None
        pointers.append(tensor.data_ptr())
        # What `_describe_torch` refuses has forms of its own, which are never ready.
        refused = tensor.is_neg() or (tensor.requires_grad and _is_differentiated(tensor))
        forms += tensor.shape, tensor.stride(), tensor.dtype, tensor.device, refused
    return pointers, forms


def _read_views(views: Sequence[ArrayView]) -> tuple[list[int], list[Hashable]] | None:
    if any(type(view) is not ArrayView for view in views):
        return None
    return [view.pointer for view in views], [view.form for view in views]


def read(arrays: Sequence[Any]) -> tuple[list[int], list[Hashable]] | None:
    """Addresses of arrays of any libraries that are read by attributes, and all else of them.

    Args:
        arrays: one at least.

    Returns:
        None if one is of a type that is not known (`library` gets to know it), or has no such way.
    """
    first = READS.get(type(arrays[0]))
    found = None if first is None else first(arrays)
    if found is not None or len(arrays) == 1:
        return found
    pointers: list[int] = []
    forms: list[Hashable] = []
    for array in arrays:
        one = read((array,))
        if one is None:
            return None
        pointers += one[0]
        forms += one[1]
    return pointers, forms


def _steps_cupy(array: Any) -> Hashable:
    return array.strides  # type: ignore[no-any-return]


def _steps_torch(tensor: Any) -> Hashable:
    return tensor.stride()  # type: ignore[no-any-return]


def _no_steps(array: Any) -> None:
    return None


def _is_differentiated(tensor: Any) -> bool:
    """Whether PyTorch would record what happens to a tensor; its caller has imported PyTorch."""
    return bool(tensor.requires_grad) and bool(sys.modules["torch"].is_grad_enabled())


# Types whose arrays give address and form by a few attribute reads, and their steps by one;
# `library` fills both. A view stands for an array of which nothing else is known.
READS: dict[type, Read] = {ArrayView: _read_views}
_STEPS: dict[type, Callable[[Any], Hashable]] = {}
_libraries: dict[type, str] = {}
_TORCH_DEVICES = frozenset({"cuda"})  # PyTorch's names of what is device memory


def library(kind: type) -> str:
    """Name the library that arrays of type `kind` belong to; subclasses belong to their base's."""
    found = _libraries.get(kind)
    if found is None:
        found = kind.__module__.partition(".")[0]
        found = {"jaxlib": "jax"}.get(found, found)
        for base in kind.__mro__:
            origin = base.__module__.partition(".")[0], base.__name__
            if origin == ("cupy", "ndarray") and hasattr(base, "_c_contiguous"):
                found, READS[kind], _STEPS[kind] = "cupy", _read_cupy, _steps_cupy
            elif origin == ("torch", "Tensor"):
                found, READS[kind], _STEPS[kind] = "torch", _read_torch, _steps_torch
        _libraries[kind] = found
    return found


def steps(array: Any) -> Hashable:
    """What tells apart how far elements of arrays lie apart, where that is read fast; else None."""
    read = _STEPS.get(type(array))
    if read is None:
        library(type(array))
        read = _STEPS.setdefault(type(array), _no_steps)
    return read(array)


def describe(
    array: Any, *, name: str = "array", stream: int | None = None, driver: Driver | None = None
) -> ArrayView:
    """Describe one array.

    Args:
        array: a CuPy array, a CUDA tensor of PyTorch, anything in device memory that has
            ``__dlpack__`` or ``__cuda_array_interface__``, or a view already.
        name: what messages call it.
        stream: the stream that is going to read the array; None: the library's default.
        driver: the CUDA calls; None: CuPy's.

    Returns:
        The view; it does not copy, and for DLPack it holds the capsule.

    Raises:
        ArgumentError: not an array, or an array in host memory.
    """
    if isinstance(array, ArrayView):
        return array
    owner, way = library(type(array)), READS.get(type(array))
    if way is _read_cupy:
        item = array.dtype.itemsize
        steps = tuple(step // item for step in array.strides)
        data = array.data
        return ArrayView(
            data.ptr, array.shape, steps, known(array.dtype.name), data.device_id, "cupy"
        )
    if way is _read_torch:
        return _describe_torch(array, name)
    if isinstance(array, np.ndarray | np.generic):
        raise _in_host_memory(name)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _describe_dlpack(array, name, stream, owner)
    if hasattr(array, "__cuda_array_interface__"):
        return _describe_interface(array, stream, owner, driver or cupy_driver())
    raise ArgumentError(
        f"{type(array).__name__} is not an array in device memory",
        where=name,
        nearest="Pass a CuPy array, a CUDA tensor, or an object with __dlpack__",
    )


def known(name: str) -> DType | str:
    """Find the polygen dtype stored as `name`, or the name itself."""
    try:
        return dtypes.dtype(name)
    except DTypeError:
        return name


def accepts(declared: DType, given: DType | str) -> bool:
    """Whether an array of dtype `given` can stand for one declared `declared`.

    The storage decides: float32 arrays serve f32 and tf32; uint8 arrays serve the fp8 types, which
    some libraries do not have.
    """
    storage = given.storage if isinstance(given, DType) else given
    fp8 = declared.kind == "float" and declared.bits == 8
    return storage == declared.storage or (fp8 and storage == "uint8")


def _in_host_memory(name: str) -> ArgumentError:
    return ArgumentError(
        "the array is in host memory",
        where=name,
        why="a kernel reads device memory",
        nearest="Use cupy.asarray(x), or x.cuda() in PyTorch; emulate() takes NumPy arrays",
    )


def _describe_torch(tensor: Any, name: str) -> ArrayView:
    if tensor.device.type not in _TORCH_DEVICES:
        raise _in_host_memory(name)
    if _is_differentiated(tensor):
        raise ArgumentError(
            "the tensor requires grad",
            where=name,
            why="a kernel computes no gradients, so that this one's would be lost in silence",
            nearest=f"Pass {name}.detach(), or call it inside torch.no_grad(); to train through a "
            "kernel, make an operator of the function: polygen.adapters.torch.op",
        )
    if tensor.is_neg():
        raise ArgumentError(
            "the tensor is a view of numbers with the other sign",
            where=name,
            why="a kernel reads what lies in memory",
            nearest=f"Pass {name}.resolve_neg()",
        )
    return ArrayView(
        pointer=tensor.data_ptr(),
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=known(str(tensor.dtype).rpartition(".")[2]),
        device=tensor.device.index,
        library="torch",
    )


def _describe_dlpack(array: Any, name: str, stream: int | None, owner: str) -> ArrayView:
    if int(array.__dlpack_device__()[0]) not in dlpack.CUDA_DEVICES:
        raise _in_host_memory(name)
    found = dlpack.read(array, stream)
    return ArrayView(
        found.pointer,
        found.shape,
        found.strides,
        known(found.dtype),
        found.device,
        owner,
        readonly=owner == "jax",  # JAX arrays never change
        keepalive=found.capsule,
    )


def _describe_interface(array: Any, stream: int | None, owner: str, driver: Driver) -> ArrayView:
    interface = array.__cuda_array_interface__
    element = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    steps = interface.get("strides")
    strides = tuple(step // element.itemsize for step in steps) if steps else dlpack.compact(shape)
    pointer, readonly = interface["data"]
    producer = interface.get("stream")
    if producer is not None and stream is not None and producer != (stream or 1):
        driver.wait(producer, stream)
    # An array of no elements has a null pointer, which belongs to no device.
    device = driver.pointer_device(pointer) if pointer else driver.device()
    return ArrayView(
        pointer, shape, strides, known(element.name), device, owner, bool(readonly), array
    )


def storage_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The axes in their order, but for the one whose neighbours are adjacent: it is last.

    Args:
        shape: of the array.
        strides: in elements.
    """
    axes = range(len(shape))
    pairs = zip(strides, shape, strict=True)
    adjacent = [axis for axis, (step, extent) in enumerate(pairs) if step == 1 and extent > 1]
    outer = [axis for axis in adjacent if axis != len(axes) - 1]
    if not outer or shape[-1] == 1:
        return tuple(axes)
    # The steps of the others are arguments, in any order.
    return (*(axis for axis in axes if axis != outer[-1]), outer[-1])


def in_order(
    array: np.ndarray[Any, Any], order: Sequence[int], pitch: int | None = None
) -> np.ndarray[Any, Any]:
    """The array with its axes stored in this order, slowest first; a copy if need be.

    Args:
        array: of any rank; one without axes is in order.
        order: its axes, the one whose neighbours are to be adjacent last.
        pitch: elements from one row to the next, those between them with all bits set; None: rows
            follow each other.
    """
    if not array.ndim:
        return array
    stored = np.ascontiguousarray(array.transpose(order))
    if pitch is not None and pitch > stored.shape[-1]:
        wide = np.full((*stored.shape[:-1], pitch * stored.itemsize), 0xFF, np.uint8)
        rows = wide.view(stored.dtype)[..., : stored.shape[-1]]
        rows[...] = stored
        stored = rows
    return stored.transpose([order.index(axis) for axis in range(len(order))])


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Give the dtype in which CuPy keeps `dtype`: it carries fp8 as uint8."""
    if dtype.kind == "float" and dtype.bits == 8:
        return np.dtype(np.uint8)
    return np.dtype(ml_dtypes.bfloat16) if dtype.storage == "bfloat16" else np.dtype(dtype.storage)
