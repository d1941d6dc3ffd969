"""Calls of a kernel with arrays whose shapes, strides and types never change.

Code that is generated for fixed shapes, as PyTorch's compiler makes it, calls a kernel at one place
with new addresses alone. Such a call makes the outputs, reads the addresses, and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from polygen.runtime.prepared import Prepared


class Repeated:
    """What one call did, for arrays of the same forms on the same device.

    Args:
        ready: the combination of forms.
        inspect: refuses addresses that do not fit it.
        device: the calling thread's device.
    """

    __slots__ = ("_address", "_device", "_inspect", "_ready")

    def __init__(
        self,
        ready: Prepared,
        inspect: Callable[[Prepared, list[int]], None],
        device: Callable[[], int],
    ) -> None:
        self._ready, self._inspect, self._device = ready, inspect, device
        self._address = ready.address

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Launch on the current stream of the arrays' library.

        Args:
            arrays: of the forms that they had in the call that this repeats.

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
        pointers = [*map(address, arrays), *map(address, made)]
        if pointers != ready.latest:
            self._inspect(ready, pointers)
        ready.submit(pointers, (), ready.queue())
        return made
