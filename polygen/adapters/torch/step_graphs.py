"""A rank's step of a pipeline as a CUDA graph: kernels, gradients and messages, launched at once.

1. The first step runs as it is: kernels are compiled, and the engine's communicators joined. The
   second is captured (`capturing.record`), reading inputs and targets, and adding up gradients, in
   memory of its own; capturing it moves no data.
2. A replay begins with the gradients that parameters have, and leaves new tensors in them when it
   is over. The host waits for that, at most as long as the engine waits for a message: a rank that
   has died would be waited for without end, since the engine watches no graph.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from polygen.adapters.torch import capturing
from polygen.adapters.torch.engine import engine, patience
from polygen.errors import EngineError, told

_MOMENT = 50e-6  # seconds between two looks at a step
Turns = Callable[..., torch.Tensor | None]
Plainly = Callable[[list[Any], list[Any], list[torch.nn.Parameter]], torch.Tensor | None]


@dataclass(slots=True)
class _Captured:
    """A step, with the tensors that it reads and writes."""

    given: list[torch.Tensor]
    wanted: list[torch.Tensor]
    sums: list[torch.Tensor]  # of gradients
    added: list[bool]  # whether there are any
    losses: torch.Tensor | None
    replay: Callable[[], None]
    forget: Callable[[], None]


class StepGraphs:
    """Steps of one pipeline on one rank.

    Args:
        device: of the rank.
        group: its peers; None: all ranks.
    """

    def __init__(self, device: torch.device, group: dist.ProcessGroup | None) -> None:
        self._device, self._group = device, group
        self._steps: dict[Any, _Captured | None] = {}  # None: seen once
        self._failed = ""  # why the last capture did
        self._said: set[str] = set()

    def step(
        self,
        given: list[Any],
        wanted: list[Any],
        own: list[torch.nn.Parameter],
        turns: Turns,
        plainly: Plainly,
    ) -> torch.Tensor | None:
        """Run a step, captured if it can be.

        Args:
            given: inputs of the microbatches, where this rank reads them.
            wanted: likewise targets.
            own: this rank's parameters.
            turns: what the rank does, with inputs and targets.
            plainly: a step as it is, with parameters.

        Raises:
            EngineError: it does not end; parameters have the gradients they had before.
        """
        why = self._failed or against(given, wanted, self._device)
        if why:
            self._say(why)
            return plainly(given, wanted, own)
        key = tuple([capturing.form(x) for x in (*given, *wanted)])
        key = (*key, *[capturing.place(parameter) for parameter in own])
        if key not in self._steps:
            self._steps[key] = None
            return plainly(given, wanted, own)
        captured = self._steps[key] or self._capture(given, wanted, own, turns)
        if captured is None:
            self._say(self._failed)
            return plainly(given, wanted, own)
        self._steps[key] = captured
        return self._replayed(captured, given, wanted, own)

    def forget(self) -> None:
        """Give all graphs up."""
        for captured in self._steps.values():
            if captured is not None:
                captured.forget()
        self._steps.clear()

    def _say(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            warnings.warn(f"steps are not captured: {why}", stacklevel=4)

    def _capture(
        self,
        given: list[Any],
        wanted: list[Any],
        own: list[torch.nn.Parameter],
        turns: Turns,
    ) -> _Captured | None:
        given, wanted = [x.clone() for x in given], [y.clone() for y in wanted]
        before, sums = [p.grad for p in own], [torch.zeros_like(p) for p in own]
        beside = capturing.prepared(lambda: None)
        try:
            for parameter, total in zip(own, sums, strict=True):
                parameter.grad = total
            run = lambda: turns(given, wanted, captured=True)  # noqa: E731
            replay, losses, forget = capturing.record(run, beside)
            added = [total._version > 0 for total in sums]
            if any(p.grad is not total for p, total in zip(own, sums, strict=True)):
                raise RuntimeError("a gradient is put in the place of another one")
        except (RuntimeError, EngineError) as error:
            self._failed = f"the capture fails: {told(error)}"
            return None
        finally:
            for parameter, gradient in zip(own, before, strict=True):
                parameter.grad = gradient
        return _Captured(given, wanted, sums, added, losses, replay, forget)

    def _replayed(
        self,
        captured: _Captured,
        given: Sequence[torch.Tensor],
        wanted: Sequence[torch.Tensor],
        own: Sequence[torch.nn.Parameter],
    ) -> torch.Tensor | None:
        reads = (*captured.given, *captured.wanted)
        for place, value in zip(reads, (*given, *wanted), strict=True):
            place.copy_(value)
        for parameter, total in zip(own, captured.sums, strict=True):
            if parameter.grad is None:
                total.zero_()
            else:
                total.copy_(parameter.grad)
        captured.replay()
        engine(self._wait, "a captured step")
        for parameter, total, added in zip(own, captured.sums, captured.added, strict=True):
            if added:
                parameter.grad = total.clone()
        return None if captured.losses is None else captured.losses.clone()

    def _wait(self) -> None:
        """Wait until the stream is here.

        Raises:
            RuntimeError: it does not get here in time.
        """
        if self._device.type != "cuda":
            return
        group = dist.group.WORLD if self._group is None else self._group
        most = patience(group, self._device) / 1e3
        over, begin = torch.cuda.Event(), time.monotonic()
        over.record(torch.cuda.current_stream(self._device))
        while not over.query():
            if time.monotonic() - begin > most:
                raise RuntimeError(f"it has not ended after {most:.0f} s")
            time.sleep(_MOMENT)


def against(given: Sequence[Any], wanted: Sequence[Any], device: torch.device) -> str:
    """What is against capturing a step; "": nothing is known."""
    if device.type != "cuda":
        return "CUDA graphs need tensors on a GPU"
    odd = [x for x in (*given, *wanted) if not isinstance(x, torch.Tensor)]
    if odd:
        return f"a {type(odd[0]).__name__} among inputs and targets, which are to be tensors"
    away = [x for x in (*given, *wanted) if x.device.type != device.type]
    if away:
        return f"inputs or targets are on {away[0].device}, not {device}"
    return ""
