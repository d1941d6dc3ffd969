"""Calls of a kernel with arrays whose shapes, strides and types never change.

Code that is generated for fixed shapes, as PyTorch's compiler makes it, calls a kernel at one place
with new addresses alone. Such a call makes the outputs, reads the addresses, and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any

from polygen.runtime.prepared import Prepared


class Repeated:
    """What one call did, for arrays of the same forms on the same device.

    Args:
        ready: the combination of forms.
        inspect: refuses addresses that do not fit it.
        device: the calling thread's device.
        shifts: bytes from where a caller's array begins to where the kernel's does, for each; ():
            none is given by another that it lies in.
    """

    __slots__ = ("_address", "_device", "_inspect", "_ready", "_shifts")

    def __init__(
        self,
        ready: Prepared,
        inspect: Callable[[Prepared, list[int]], None],
        device: Callable[[], int],
        shifts: tuple[int, ...] = (),
    ) -> None:
        self._ready, self._inspect, self._device = ready, inspect, device
        self._address, self._shifts = ready.address, shifts

    def shifted(self, shifts: tuple[int, ...]) -> Repeated:
        """The same, for arrays in which the kernel's begin these bytes behind their start."""
        return Repeated(self._ready, self._inspect, self._device, shifts if any(shifts) else ())

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Launch on the current stream of the arrays' library.

        Args:
            arrays: of the forms that they had in the call that this repeats, or what they lie in.

        Returns:
            The outputs, new ones.

        Raises:
            AlignmentMismatch: an address needs a variant for lower alignment; nothing is launched.
            LookupError: another device is current.
        """
        ready, address = self._ready, self._address
        if self._device() != ready.device:
            raise LookupError(ready.device)
        made = [make() for make in ready.allocate]
        given = map(address, arrays)
        if self._shifts:
            given = map(add, given, self._shifts)
        pointers = (*given, *map(address, made))
        if not ready.again(pointers):
            self._inspect(ready, list(pointers))
            ready.submit(pointers, (), ready.queue())
        return made
