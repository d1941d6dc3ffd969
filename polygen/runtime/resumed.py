"""Calls of a kernel that are a step of others', on arrays of forms that were seen before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polygen.runtime.prepared import Prepared

if TYPE_CHECKING:
    from polygen.runtime.launch import Launcher


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a call has ready, for other arrays of the same forms.

    Attributes:
        launcher: of the kernel.
        ready: of these forms.
    """

    launcher: Launcher
    ready: Prepared

    def inspect(self, pointers: list[int]) -> None:
        """Refuse addresses that do not fit; as `Launcher.inspect`."""
        self.launcher.inspect(self.ready, pointers)

    def launch(self, pointers: list[int], scalars: Sequence[Any], start: int, queue: int) -> None:
        """Launch the kernel; as `Launcher.resume`."""
        self.launcher.resume(self.ready, pointers, scalars, start, queue)
