"""The arrays of a launch file, and the comparison of what a run left in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from polygen.cli.check_arguments import (
    ArrayArgument,
    MapArgument,
    ScalarArgument,
    StructArgument,
    SurfaceArgument,
    TextureArgument,
)
from polygen.cli.check_launch import DTYPES, LaunchFile
from polygen.errors import LaunchFileError
from polygen.machine import Finding, Surface, TensorMap, Texture
from polygen.verdict import differences

Array = np.ndarray[Any, Any]
Stored = ArrayArgument | MapArgument


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype that stores elements of a dtype of `DTYPES`."""
    return np.dtype(getattr(ml_dtypes, DTYPES[name], None) or DTYPES[name])


def arguments(launch: LaunchFile, path: Path) -> tuple[tuple[Any, ...], list[Array | None]]:
    """The machine's arguments, and the expectation of each array among them, in order.

    Args:
        launch: from `path`.
        path: the launch file; array files are looked for beside it.

    Raises:
        LaunchFileError: an array file cannot be read or does not fit, or a number does not fit its
            dtype; all are listed.
    """
    problems: list[str] = []
    made: list[Any] = []
    expected: list[Array | None] = []
    for number, one in enumerate(launch.arguments):
        where = f"argument[{number}]"
        if isinstance(one, ScalarArgument):
            made.append(_scalar(one, where, problems))
        elif isinstance(one, StructArgument):
            made.append(_struct(one, where, path.parent, problems))
        elif isinstance(one, ArrayArgument) or one.of < 0:
            made.append(_array(one, where, path.parent, problems))
        else:
            made.append(None)
    for number, one in enumerate(launch.arguments):
        if isinstance(one, ScalarArgument | StructArgument):
            continue
        where, source = f"argument[{number}].expect", one
        if isinstance(one, MapArgument):
            array = made[one.of] if one.of >= 0 else made[number]
            if one.of >= 0:
                source = launch.arguments[one.of]  # type: ignore[assignment]
            if array is not None:
                kind = "tf32" if source.dtype == "tf32" else ""
                made[number] = TensorMap(
                    array, one.box, one.swizzle, one.nan_fill, kind, every=one.every
                )
        elif isinstance(one, TextureArgument | SurfaceArgument) and made[number] is not None:
            made[number] = _image(one, made[number])
        expected.append(
            _file(one.expect, source, where, path.parent, problems) if one.expect else None
        )
    if problems:
        raise LaunchFileError(str(path), problems)
    return tuple(made), expected


def _image(one: TextureArgument | SurfaceArgument, array: Array) -> Texture | Surface:
    own = {field.name for field in fields(one)} - {field.name for field in fields(ArrayArgument)}
    kind = Texture if isinstance(one, TextureArgument) else Surface
    return kind(array, **{name: getattr(one, name) for name in own})


def _scalar(one: ScalarArgument, where: str, problems: list[str]) -> Any:
    kind = numpy_dtype(one.dtype)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        if type(one.value) is not int or not limits.min <= one.value <= limits.max:
            problems.append(f"{where}.value: {one.value!r} is no {one.dtype}")
            return None
    return np.array(one.value).astype(kind)[()]


def _struct(one: StructArgument, where: str, folder: Path, problems: list[str]) -> bytes | None:
    if one.fill == "zeros":
        return bytes(one.size)
    try:
        data: bytes = np.load(folder / one.fill, allow_pickle=False).tobytes()
    except (OSError, ValueError) as error:
        problems.append(f"{where}: {one.fill} cannot be read: {error}")
        return None
    if len(data) != one.size:
        problems.append(f"{where}: {one.fill} has {len(data)} bytes, not {one.size}")
        return None
    return data


def _array(one: Stored, where: str, folder: Path, problems: list[str]) -> Array | None:
    kind = numpy_dtype(one.dtype)
    if one.fill.endswith(".npy"):
        return _file(one.fill, one, f"{where}.fill", folder, problems)
    if one.fill == "zeros":
        return np.zeros(one.shape, kind)
    if one.fill == "iota":
        return np.arange(np.prod(one.shape)).reshape(one.shape).astype(kind)
    if one.fill == "nan":
        if kind.kind in "iu":
            problems.append(f"{where}.fill: {one.dtype} has no NaN. Nearest legal: zeros")
            return None
        return np.full(one.shape, np.nan, np.float64).astype(kind)
    low = max(one.low, 0) if kind.kind == "u" else one.low
    values = np.random.default_rng(one.seed).integers(low, max(one.high, low) + 1, one.shape)
    return values.astype(np.float32 if kind.kind not in "iu" else kind).astype(kind)


def _file(name: str, one: Stored, where: str, folder: Path, problems: list[str]) -> Array | None:
    kind = numpy_dtype(one.dtype)
    try:
        array = np.load(folder / name, allow_pickle=False)
    except (OSError, ValueError) as error:
        problems.append(f"{where}: {name} cannot be read: {error}")
        return None
    if array.shape != one.shape:
        problems.append(f"{where}: {name} has shape {array.shape}, not {one.shape}")
        return None
    if array.dtype.kind == "V" and array.dtype.itemsize == kind.itemsize:
        return np.ascontiguousarray(array).view(kind)  # NumPy's format has no name for bfloat16
    if array.dtype.kind not in "biuf":
        problems.append(f"{where}: {name} holds {array.dtype}, not {one.dtype}")
        return None
    return np.ascontiguousarray(array.astype(kind))


def wrong_values(after: Sequence[Array], expected: Sequence[Array | None]) -> tuple[Finding, ...]:
    """One finding per array that differs from what its launch file expects; NaN equals NaN."""
    return differences(after, expected, "array {} of the launch file")
