"""`Generated`: a generated kernel as plain data, kept on disk by the content it was made from.

1. `encode` and `decode` turn records of polygen (dataclasses of plain fields) into JSON and back;
   `decode` refuses what does not have the fields and types of today.
2. `kept` hashes everything that a result depends on: what the caller names, polygen's version and
   all of its files, and the packages that take part. The result is looked up under that key, else
   made and published, as compiled kernels are (`polygen.runtime.cache`).

Nothing here needs isl, so that a process which finds its kernels on disk, or loads them from a
folder, does not start it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from polygen import knobs
from polygen.emit.source import KernelSource
from polygen.errors import PolygenError
from polygen.frontend import dtypes
from polygen.frontend.dtypes import DType
from polygen.frontend.program import Program
from polygen.runtime import cache
from polygen.schedule.model import Schedule
from polygen.schedule.sums import Sums

Result = TypeVar("Result")

_MAGIC = b"polygen generated 1\n"  # the number is the format of entries and keys
_DIGEST = 64  # hexadecimal digits of SHA-256
_SOURCES = (".py", ".toml", ".j2")
_PACKAGES = ("islpy", "jinja2", "numpy", "ml_dtypes")
_PLAIN = (str, int, float, bool)
TAG = "is"  # the field that names a dataclass


@dataclasses.dataclass(frozen=True, slots=True)
class Generated:
    """All of a generated kernel that is needed to launch, save and name it.

    Attributes:
        program: what it computes, with the alignments it was made for.
        target: the device's name.
        schedule: the decisions it was made with.
        origin: where they come from.
        source: the CUDA text and how to launch it.
        proofs: what was proved, in sentences.
        tree: its schedule tree, as text.
        sums: in which order products add up, as proved.
        command: named in the header as the maker; may be empty.
    """

    program: Program
    target: str
    schedule: Schedule
    origin: str
    source: KernelSource
    proofs: tuple[str, ...]
    tree: str
    sums: Sums
    command: str = ""


def encode(value: Any) -> Any:
    """A record as values that JSON has; each dataclass with its name."""
    if isinstance(value, DType):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {field.name: encode(getattr(value, field.name)) for field in _fields(type(value))}
        return {TAG: type(value).__name__, **own}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if value is None or type(value) in _PLAIN:
        return value
    raise TypeError(f"{type(value).__name__} is no plain value")


def content(value: Any) -> str:
    """A record as text that tells any two apart, 0.0 from -0.0 too; a repr is for people."""
    return json.dumps(encode(value))


def decode(kind: type[Result], data: Any) -> Result:
    """A record of `kind`.

    Raises:
        ValueError: the data do not have its fields and types.
    """
    try:
        found: Result = _decode(kind, data)
    except PolygenError as reason:  # an unknown element type
        raise ValueError(str(reason)) from reason
    return found


def _decode(kind: Any, data: Any) -> Any:
    if kind in _PLAIN:
        # 2 stays 2 where a float is meant: the text that is generated tells them apart.
        if type(data) is kind or (kind is float and type(data) is int):
            return data
    elif kind is types.NoneType:
        if data is None:
            return None
    elif kind is DType:
        return dtypes.dtype(data)
    elif dataclasses.is_dataclass(kind):
        return _decode_record(kind, data)
    elif typing.get_origin(kind) is tuple and isinstance(data, list):
        item, *rest = typing.get_args(kind)
        kinds = [item] * len(data) if rest == [...] else [item, *rest]
        if len(kinds) == len(data):
            return tuple(_decode(one, each) for one, each in zip(kinds, data, strict=True))
    elif isinstance(kind, types.UnionType):
        for member in typing.get_args(kind):
            if typing.get_origin(member) is tuple:
                fits = isinstance(data, list)
            else:
                named = isinstance(data, dict) and data.get(TAG) == member.__name__
                fits = named or type(data) is member
            if fits:
                return _decode(member, data)
    raise ValueError(f"{data!r:.80} is not {kind}")


def _decode_record(kind: Any, data: Any) -> Any:
    fields = _fields(kind)
    names = {TAG, *(field.name for field in fields)}
    if not isinstance(data, dict) or data.get(TAG) != kind.__name__ or set(data) != names:
        raise ValueError(f"{data!r:.80} is no {kind.__name__}")
    hints = _hints(kind)
    return kind(**{f.name: _decode(hints[f.name], data[f.name]) for f in fields})


@functools.cache
def _fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def polygen_version() -> str:
    """The version, as people name it."""
    # The package itself stands above this module: it may be named, not imported.
    return str(sys.modules["polygen"].__version__)


@functools.cache
def version() -> str:
    """What makes two polygens the same: version, content of every file, packages that take part."""
    package = Path(__file__).resolve().parent
    files = [
        f"{folder}/{name}"
        for folder, _, names in os.walk(package)  # in half of the time of rglob
        for name in names
        if name.endswith(_SOURCES)
    ]
    found = hashlib.sha256()
    for file in sorted(files):
        with open(file, "rb", buffering=0) as read:  # noqa: PTH123 (in two thirds of the time)
            text = read.read()
        found.update(f"{file.removeprefix(str(package))}\0{len(text)}\0".encode() + text)
    packages = []
    for name in _PACKAGES:
        try:
            packages.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"polygen {polygen_version()}, {found.hexdigest()}, {', '.join(packages)}"


def key(kind: type[Any], parts: tuple[object, ...]) -> str:
    """The name under which a result is kept: 64 hexadecimal digits.

    Args:
        kind: of the result.
        parts: records of all that it depends on, beside polygen itself.
    """
    text = json.dumps([_MAGIC.decode(), version(), kind.__name__, *map(content, parts)])
    return hashlib.sha256(text.encode()).hexdigest()


def kept(kind: type[Result], parts: tuple[object, ...], make: Callable[[], Result]) -> Result:
    """A result from the disk, else made and kept.

    Args:
        kind: a record.
        parts: all that it depends on, as for `key`.
        make: makes it; what it raises is not kept.
    """
    if not knobs.current().cache:
        return make()

    def read(data: bytes) -> Result | None:
        start = len(_MAGIC) + _DIGEST + 1
        digest, body = data[len(_MAGIC) : start - 1], data[start:]
        if not data.startswith(_MAGIC) or hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        try:
            return decode(kind, json.loads(body))
        except ValueError:
            return None

    return cache.kept(_path(kind, parts), read, _entry, make)


def keep(value: object, parts: tuple[object, ...]) -> None:
    """Put a result in the place of what is kept on the disk, if anything is kept there.

    Args:
        value: a record.
        parts: all that it depends on, as for `key`.
    """
    if knobs.current().cache:
        cache.put(_path(type(value), parts), _entry(value))


def _path(kind: type, parts: tuple[object, ...]) -> Path:
    name = key(kind, parts)
    return cache.directory() / "generated" / name[:2] / f"{name}.bin"


def _entry(value: object) -> bytes:
    body = json.dumps(encode(value)).encode()
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body
