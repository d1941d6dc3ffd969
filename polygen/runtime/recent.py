"""`Recent`: a table that forgets what was not used for long, at the price of one look-up.

Two dictionaries: what is used is found in the young one, or moves there from the old one. When the
young one is full it becomes the old one, and what nobody has asked for since goes. Threads may use
a table together: at worst two of them make the same entry.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """A bounded table.

    Args:
        most: entries it may hold, at least 2; the latest used half of them is never forgotten.
    """

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """What is kept under `key`; None: nothing, or nothing any more."""
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: Key, value: Value) -> Value:
        """Keep a value, and give it back."""
        if len(self._young) >= self._half and key not in self._young:
            self._young, self._old = {}, self._young
        self._young[key] = value
        return value

    def __iter__(self) -> Iterator[Key]:
        yield from self._young
        yield from (key for key in self._old if key not in self._young)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def values(self) -> list[Value]:
        """What is kept, the young first."""
        old = (value for key, value in self._old.items() if key not in self._young)
        return [*self._young.values(), *old]
