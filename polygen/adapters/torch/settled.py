"""How groups of a graph are decided, and what became of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """How groups are decided.

    Attributes:
        take: "predicted" to win, "measured" to win, or all that is "legal" (to check results).
        threshold: how many times as long a group has to take apart to be taken.
    """

    take: str = "predicted"
    threshold: float = 1.03


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one group.

    Attributes:
        nodes: its members, by name.
        computes: its program, in a line.
        taken: whether it is a kernel now.
        why: the gain, or what was against it.
    """

    nodes: tuple[str, ...]
    computes: str
    taken: bool
    why: str

    def __str__(self) -> str:
        return f"{'taken' if self.taken else 'left '}  {self.computes}: {self.why}"
