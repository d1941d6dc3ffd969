"""XLA's foreign function interface in `ctypes`: a call frame -> arrays, attributes, stream.

The interface is C, stable within a major version (``xla/ffi/api/c_api.h``, which JAX installs; its
directory is `jax.ffi.include_dir()`). Structures carry their own sizes, by which what follows them
is found, so that fields which a later version appends do no harm. No data moves: a handler reads
addresses, queues work on XLA's stream, and returns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MAJOR, MINOR = 0, 1  # of the interface that is written down here
_METADATA = 1  # the extension by which XLA asks for the version
_EXECUTE = 3  # a stage
_STRING, _ARRAY = 4, 1  # kinds of attributes
_INTERNAL = 13  # an error code
_WORD = ctypes.sizeof(ctypes.c_void_p)
# Where functions are in the table of the interface.
_ERROR_CREATE, _STREAM_GET, _DEVICE_GET = 0, 4, 17

# Codes of element types -> names under which NumPy or ml_dtypes have them.
TYPES = {
    1: "bool", 2: "int8", 4: "int32", 6: "uint8", 10: "float16", 11: "float32", 12: "float64",
    16: "bfloat16", 19: "float8_e5m2", 20: "float8_e4m3fn",
}  # fmt: skip


class _Base(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("kind", ctypes.c_int), ("next", ctypes.c_void_p))


class _Version(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", ctypes.c_void_p),
        ("major", ctypes.c_int), ("minor", ctypes.c_int),
    )  # fmt: skip


class _Metadata(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32))


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Base), ("metadata", ctypes.POINTER(_Metadata)))


class _Api(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("version", _Version),
        ("internal", ctypes.c_void_p), ("functions", ctypes.c_void_p * (_DEVICE_GET + 1)),
    )  # fmt: skip


class _List(ctypes.Structure):
    """Arguments or results."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("count", ctypes.c_int64),
        ("kinds", ctypes.POINTER(ctypes.c_int)), ("values", ctypes.POINTER(ctypes.c_void_p)),
    )  # fmt: skip


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("count", ctypes.c_int64),
        ("kinds", ctypes.POINTER(ctypes.c_int)), ("names", ctypes.POINTER(ctypes.c_void_p)),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
    )  # fmt: skip


class _Span(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Array(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("count", ctypes.c_size_t), ("data", ctypes.c_void_p))


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("kind", ctypes.c_int),
        ("data", ctypes.c_void_p), ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )  # fmt: skip


class _Frame(ctypes.Structure):
    """What a handler gets; results and attributes follow the arguments."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", ctypes.POINTER(_Base)),
        ("api", ctypes.POINTER(_Api)), ("context", ctypes.c_void_p), ("stage", ctypes.c_int),
        ("arguments", _List),
    )  # fmt: skip


class _Asked(ctypes.Structure):
    """The arguments of a question about the execution, with room for the answer."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("context", ctypes.c_void_p),
        ("answer", ctypes.c_int64),
    )  # fmt: skip


class _Failure(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )  # fmt: skip


_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Frame))
_QUESTION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class Array:
    """An array of a call: its address, shape and element type; row-major."""

    pointer: int
    shape: tuple[int, ...]
    storage: str


@dataclass(frozen=True, slots=True)
class Call:
    """One execution.

    Attributes:
        arguments: in order.
        results: to be written, in order.
        texts: attributes that are strings.
        numbers: attributes that are arrays of f32.
    """

    arguments: tuple[Array, ...]
    results: tuple[Array, ...]
    texts: dict[str, bytes]
    numbers: dict[str, tuple[float, ...]]
    _frame: Any

    def stream(self) -> int:
        """The CUDA stream on which XLA wants the work."""
        return self._ask(_STREAM_GET)

    def device(self) -> int:
        """The number of the device among those of the process; 0 where XLA does not say."""
        api = self._frame.api.contents
        known = _Api.functions.offset + (_DEVICE_GET + 1) * _WORD
        return self._ask(_DEVICE_GET) & 0xFFFFFFFF if api.size >= known else 0

    def _ask(self, function: int) -> int:
        asked = _Asked(ctypes.sizeof(_Asked), None, self._frame.context, 0)
        call = _QUESTION(self._frame.api.contents.functions[function])
        if call(ctypes.addressof(asked)):
            raise RuntimeError("XLA does not say on which stream or device the work belongs")
        return int(asked.answer)


def _arrays(found: Any) -> Iterator[Array]:
    for n in range(found.count):
        one = _Buffer.from_address(found.values[n])
        shape = tuple(one.dims[axis] for axis in range(one.rank))
        yield Array(one.data or 0, shape, TYPES.get(one.kind, f"type {one.kind}"))


def _read(frame: Any) -> Call:
    at = ctypes.addressof(frame) + _Frame.arguments.offset
    arguments = frame.arguments
    results = _List.from_address(at + arguments.size)
    attributes = _Attributes.from_address(at + arguments.size + results.size)
    texts, numbers = {}, {}
    for n in range(attributes.count):
        named = _Span.from_address(attributes.names[n])
        name = ctypes.string_at(named.start, named.length).decode()
        if attributes.kinds[n] == _STRING:
            span = _Span.from_address(attributes.values[n])
            texts[name] = ctypes.string_at(span.start, span.length)
        elif attributes.kinds[n] == _ARRAY:
            array = _Array.from_address(attributes.values[n])
            numbers[name] = tuple((ctypes.c_float * array.count).from_address(array.data))
    return Call(tuple(_arrays(arguments)), tuple(_arrays(results)), texts, numbers, frame)


def handler(run: Callable[[Call], None]) -> Any:
    """A function that XLA can call.

    Args:
        run: does the work, or queues it; what it raises becomes the error of the call.

    Returns:
        What `jax.ffi.register_ffi_target` takes; keep it as long as the process lives.
    """

    def handle(pointer: Any) -> int | None:
        frame = pointer.contents
        if frame.extension and frame.extension.contents.kind == _METADATA:
            asked = ctypes.cast(frame.extension, ctypes.POINTER(_MetadataExtension)).contents
            metadata = asked.metadata.contents
            metadata.version.major, metadata.version.minor = MAJOR, MINOR
            metadata.traits = 0  # no part of XLA's graphs: a first call loads a module
            return None
        if frame.stage != _EXECUTE:
            return None
        try:
            run(_read(frame))
        except BaseException as reason:  # nothing may pass through C
            return _failed(frame, f"{type(reason).__name__}: {reason}")
        return None

    return _HANDLER(handle)


def _failed(frame: Any, message: str) -> int:
    create = _QUESTION(frame.api.contents.functions[_ERROR_CREATE])
    failure = _Failure(ctypes.sizeof(_Failure), None, message.encode(), _INTERNAL)
    return int(create(ctypes.addressof(failure)))
