"""The barriers of a thread block without roles, as the plan holds them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Barrier:
    """A place where threads wait for each other, as a statement of the tree."""

    name: str  # "bar_load_a"
    scope: str  # "block" or "warp"
    phase: str  # "main" or "epilogue"
    before: str  # the statement it precedes
    pending: (
        int | None
    )  # asynchronous copy groups that may still be in flight; None: no wait in front of it

    @property
    def wait(self) -> str:
        """The name of the statement that waits for asynchronous copies in front of it."""
        return "wait" + self.name.removeprefix("bar")


@dataclass(frozen=True, slots=True)
class Enforced:
    """A barrier and the dependences that need it: without it, these are unordered."""

    barrier: Barrier
    dependences: tuple[str, ...]
