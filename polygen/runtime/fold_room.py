"""Room for the parts of folds, which one launch of a call writes and the next one reads."""

from __future__ import annotations

import math
from typing import Any

from polygen.errors import ArgumentError
from polygen.runtime.arrays import describe
from polygen.runtime.dlpack import compact
from polygen.runtime.driver import Driver


def address(
    given: Any, needed: tuple[int, int], device: int, where: str, stream: int, driver: Driver
) -> int:
    """The address of an array that serves as workspace.

    Args:
        given: an array in device memory, of any type.
        needed: bytes, and of what number of them the address is a multiple.
        device: on which the kernel runs.
        where: the kernel, for messages.
        stream: that is going to use it.
        driver: the CUDA calls.

    Raises:
        ArgumentError: it is too small, has gaps, is misaligned, or lies on another device.
    """
    size, multiple = needed
    view = describe(given, name="workspace", stream=stream, driver=driver)
    item = getattr(getattr(given, "dtype", None), "itemsize", 1)
    room = math.prod(view.shape) * int(item)
    fits = room >= size and view.strides == compact(view.shape)
    if not fits or view.pointer % multiple or view.device != device or view.readonly:
        raise ArgumentError(
            f"the workspace has {room} bytes on device {view.device}",
            where=where,
            why=f"parts of folds take {size} on device {device}, without gaps, from a multiple of "
            f"{multiple} on",
            nearest=f'cupy.empty({size}, "u1"), or leave workspace= away',
        )
    return view.pointer
