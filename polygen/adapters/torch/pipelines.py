"""`pipeline`: a model in stages over the ranks of a process group, by a proved timetable.

1. The timetable is proved for all numbers of microbatches (`polygen.parallel`), and all ranks say
   that they mean the same one, before anything is launched.
2. A rank goes through its turns: a stage's work on a microbatch, then one batch of point-to-point
   operations with everything that leaves or arrives behind that tick. Both ends of a message are in
   the batch of the same tick, in the same order. What is received is waited for where it is read.
3. Gradients are added up in the parameters' ``.grad``, in the order of the timetable. Where a step
   fails, parameters have the gradients that they had before.
4. On GPUs a rank's turns may be captured, messages and all, and launched at once (`step_graphs`).

Transport, streams and time-outs are PyTorch's (`torch.distributed.batch_isend_irecv`).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from polygen.adapters.torch.engine import engine
from polygen.adapters.torch.step_graphs import StepGraphs
from polygen.errors import ArgumentError, PipelineError
from polygen.parallel import drawing
from polygen.parallel.proved import Proved, prove
from polygen.parallel.timetable import BACKWARD, FORWARD, WEIGHTS, Timetable, timetable
from polygen.parallel.turns import Message, Plan, Turn, Work, plan

Stage = Callable[[torch.Tensor], torch.Tensor]
Loss = Callable[[torch.Tensor, Any], torch.Tensor]
_Key = tuple[str, int, int]  # phase, stage, microbatch


def pipeline(
    stages: Sequence[torch.nn.Module | None],
    microbatches: int,
    schedule: str | Timetable = "1f1b",
    *,
    loss: Loss,
    group: dist.ProcessGroup | None = None,
    buffers: int | None = None,
    device: torch.device | str | None = None,
    graph: bool = False,
) -> Pipeline:
    """Make a pipeline of a model's stages; every rank of the group calls this.

    Args:
        stages: in order, each a module from one tensor to one tensor; None for those that another
            rank has.
        microbatches: into how many parts a batch is divided.
        schedule: "gpipe", "1f1b", "interleaved", "zero-bubble", a relation as text, or a
            `polygen.parallel.Timetable`.
        loss: of the last stage's output and a microbatch's target, a number. Gradients are those of
            the sum over microbatches.
        group: the ranks; None: all there are.
        buffers: microbatches of which a stage may keep activations at most; None: any number.
        device: where messages are received; None: where this rank's parameters are.
        graph: capture this rank's second step in a CUDA graph, and replay it from then on; the
            Python of stages and loss does not run again then. Steps of which that cannot be done
            run as they are, and why is said once.

    Raises:
        PipelineError: no such schedule, or stages, ranks or microbatches that it is not for.
        IllegalPipeline: the schedule is wrong, with a witness; nothing has been launched.
        EngineError: another rank does not answer.
    """
    ranks = dist.get_world_size(group)
    proved = prove(timetable(schedule, len(stages), ranks), buffers)
    found = Pipeline(proved, plan(proved, microbatches), stages, loss, group, device, graph)
    found._agree()
    return found


@dataclass(frozen=True, slots=True)
class _Form:
    """Shape and type of what a stage makes of one microbatch."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Pipeline:
    """A model in stages; `step` runs one batch forward and backward.

    Attributes:
        proved: the timetable, with its proofs.
        plan: what every rank does.
        rank: this one, in the group.
    """

    def __init__(
        self,
        proved: Proved,
        plan: Plan,
        stages: Sequence[torch.nn.Module | None],
        loss: Loss,
        group: dist.ProcessGroup | None,
        device: torch.device | str | None,
        graph: bool = False,
    ) -> None:
        self.proved, self.plan, self.group = proved, plan, group
        self.rank = dist.get_rank(group)
        self._loss = loss
        self._stages: dict[int, torch.nn.Module] = {}
        for number, (stage, home) in enumerate(zip(stages, proved.home, strict=True)):
            if home != self.rank:
                continue
            if stage is None:
                raise PipelineError(
                    f"stage {number} is None",
                    where=proved.timetable.name,
                    why=f"it is at home on rank {home}",
                    nearest="Pass its module there",
                )
            self._stages[number] = stage
        own = [p for stage in self._stages.values() for p in stage.parameters()]
        self._device = torch.device(device or (own[0].device if own else "cpu"))
        self._forms: dict[int, _Form] = {}
        self._steps = StepGraphs(self._device, group) if graph else None

    def __str__(self) -> str:
        return drawing.text(self.proved, self.plan)

    def step(self, inputs: Any = None, targets: Any = None) -> torch.Tensor | None:
        """Run a batch through all stages and back; gradients are added to the parameters'.

        Args:
            inputs: where stage 0 is: a tensor whose first axis is divided into microbatches, or a
                sequence of them.
            targets: where the last stage is: likewise.

        Returns:
            The losses of the microbatches where the last stage is, else None.

        Raises:
            ArgumentError: what cannot be divided, or other shapes than in the first step.
            EngineError: a rank does not answer; parameters have the gradients they had before.
        """
        first, last = self.proved.home[0], self.proved.home[-1]
        given = self._divided(inputs, "inputs") if self.rank == first else []
        wanted = self._divided(targets, "targets") if self.rank == last else []
        self._infer(given)
        every = (p for stage in self._stages.values() for p in stage.parameters())
        own = list(dict.fromkeys(every))  # stages may share some
        if self._steps is None:
            return self._plainly(given, wanted, own)
        return self._steps.step(given, wanted, own, self._turns, self._plainly)

    def forget(self) -> None:
        """Give captured steps up; before `torch.distributed.destroy_process_group`, which would
        wait for them.
        """
        if self._steps is not None:
            self._steps.forget()

    def _plainly(
        self, given: list[Any], wanted: list[Any], own: list[torch.nn.Parameter]
    ) -> torch.Tensor | None:
        before = [p.grad for p in own]
        for parameter, gradient in zip(own, before, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        try:
            return self._turns(given, wanted, captured=False)
        except BaseException:
            for parameter, gradient in zip(own, before, strict=True):
                parameter.grad = gradient
            raise

    def _turns(self, given: list[Any], wanted: list[Any], *, captured: bool) -> torch.Tensor | None:
        """Go through this rank's turns; gradients are added to what parameters have."""
        run = _Run(self, given, wanted, captured)
        run.all(self.plan.turns[self.rank])
        return torch.stack(run.losses) if self.rank == self.proved.home[-1] else None

    def _divided(self, values: Any, name: str) -> list[Any]:
        number = self.plan.microbatches
        if isinstance(values, torch.Tensor):
            extent = values.shape[0] if values.dim() else 0
            if extent == 0 or extent % number:
                near = max(1, round(extent / number)) * number
                raise ArgumentError(
                    f"{extent} rows for {number} microbatches",
                    where=name,
                    why="microbatches are of one size",
                    nearest=f"{near} rows",
                )
            return list(values.chunk(number))
        found = list(values) if isinstance(values, Iterable) else []
        if len(found) != number:
            raise ArgumentError(
                f"{len(found)} parts for {number} microbatches"
                if found else "nothing is given",
                where=name,
                nearest=f"A tensor, or {number} of them, on rank {self.rank}",
            )  # fmt: skip
        return found

    # --- before anything runs
    def _agree(self) -> None:
        """All ranks say what they mean to run.

        Raises:
            PipelineError: they mean different things.
        """
        mine = (self.proved.timetable, self.plan.microbatches)
        every: list[Any] = [None] * dist.get_world_size(self.group)
        engine(
            lambda: dist.all_gather_object(every, mine, group=self.group), "the other ranks' setup"
        )
        other = next((rank for rank, said in enumerate(every) if said != every[0]), None)
        if other is not None:
            (one, number), (two, count) = every[0], every[other]
            raise PipelineError(
                f"rank 0 has {one} with {number} microbatches, rank {other} has {two} with {count}",
                where="pipeline",
                why="both ends of a message follow one timetable",
                nearest="Pass the same schedule and number of microbatches on all ranks",
            )

    def _infer(self, given: list[torch.Tensor]) -> None:
        """The forms of all messages, found in the first step by running stages without data."""
        if given:
            odd = {(tuple(x.shape), x.dtype) for x in given}
            if len(odd) > 1 or (-1 in self._forms and odd != {_pair(self._forms[-1])}):
                raise ArgumentError(
                    f"microbatches of {', '.join(sorted(map(str, (shape for shape, _ in odd))))}",
                    where="inputs",
                    why="messages have one form, that of the first step",
                    nearest="Pad them, or make another pipeline",
                )
        if self._forms:
            return
        forms: dict[int, _Form] = {}
        if given:
            forms[-1] = _Form(tuple(given[0].shape), given[0].dtype)
        for number, home in enumerate(self.proved.home[:-1]):
            told_form: list[Any] = [None]
            if home == self.rank:
                told_form[0] = self._form(number, forms[number - 1])
            source = home if self.group is None else dist.get_global_rank(self.group, home)
            broadcast = functools.partial(
                dist.broadcast_object_list, told_form, src=source, group=self.group
            )
            engine(broadcast, f"the shape of stage {number}'s output")
            forms[number] = told_form[0]
        self._forms = forms or {-2: _Form((), torch.float32)}

    def _form(self, number: int, form: _Form) -> _Form:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            made = self._stages[number](
                torch.empty(form.shape, dtype=form.dtype, device=self._device)
            )
        if not isinstance(made, torch.Tensor):
            raise PipelineError(
                f"stage {number} returns a {type(made).__name__}",
                where="stages",
                nearest="One tensor; stack several",
            )
        return _Form(tuple(made.shape), made.dtype)


def _pair(form: _Form) -> tuple[tuple[int, ...], torch.dtype]:
    return form.shape, form.dtype


class _Run:
    """One step on one rank: what has arrived, what is kept, what is under way."""

    def __init__(self, of: Pipeline, inputs: list[Any], targets: list[Any], captured: bool) -> None:
        self.of, self.inputs, self.targets, self.captured = of, inputs, targets, captured
        self.final = len(of.proved.home) - 1
        self.losses: list[torch.Tensor] = []
        self.arriving: dict[_Key, tuple[torch.Tensor, list[dist.Work], Message]] = {}
        self.handed: dict[_Key, torch.Tensor] = {}  # made here, for another work here or to be sent
        self.kept: dict[tuple[int, int], tuple[Any, torch.Tensor]] = {}
        self.inner: dict[tuple[int, int], Callable[[], Any]] = {}
        self.sending: list[tuple[dist.Work, torch.Tensor, Message]] = []

    def all(self, turns: Sequence[Turn]) -> None:
        """Go through the turns, and wait until everything has left."""
        works = {FORWARD: self._forward, BACKWARD: self._backward, WEIGHTS: self._weights}
        for turn in turns:
            if turn.work is not None:
                works[turn.work.phase](turn.work)
            self._batch(turn)
        for work, _, message in self.sending:
            engine(work.wait, f"{message}, which this rank sends")

    # --- work
    def _forward(self, work: Work) -> None:
        stage, microbatch = work.stage, work.microbatch
        x = self.inputs[microbatch] if stage == 0 else self._read(work)
        if stage:
            x = x.detach().requires_grad_()
        with torch.enable_grad():
            made = self.of._stages[stage](x)
            if stage == self.final:
                made = self.of._loss(made, self.targets[microbatch])
                self.losses.append(made.detach().clone())
            else:
                self.handed[FORWARD, stage + 1, microbatch] = made.detach().contiguous()
        self.kept[stage, microbatch] = (x, made)

    def _backward(self, work: Work) -> None:
        stage, microbatch = work.stage, work.microbatch
        gradient = None if stage == self.final else self._read(work)
        x, made = self.kept.pop((stage, microbatch))
        apart = WEIGHTS in self.of.proved.phases
        if apart and stage == 0:  # there is no gradient of the input: all of it is the weights'
            self.inner[stage, microbatch] = lambda: torch.autograd.backward(made, gradient)
            return
        if apart:
            split = importlib.import_module("torch.distributed.pipelining._backward")
            own = self.of._stages[stage]
            outputs = None if gradient is None else [gradient]
            (found,), groups = split.stage_backward_input([made], outputs, [x], own.parameters())
            self.inner[stage, microbatch] = lambda: split.stage_backward_weight(
                own.parameters(), groups
            )
        else:
            torch.autograd.backward(made, gradient)
            found = x.grad if stage else None
        if stage:
            self.handed[BACKWARD, stage - 1, microbatch] = found.contiguous()

    def _weights(self, work: Work) -> None:
        self.inner.pop((work.stage, work.microbatch))()

    def _read(self, work: Work) -> torch.Tensor:
        key = (work.phase, work.stage, work.microbatch)
        if key in self.handed:
            return self.handed.pop(key)
        tensor, handles, message = self.arriving.pop(key)
        for handle in handles:
            engine(handle.wait, f"{message}, from rank {message.source.rank}")
        return tensor

    # --- messages
    def _batch(self, turn: Turn) -> None:
        """Everything that leaves or arrives behind one tick."""
        if not (turn.sends or turn.receives):
            return
        operations, tensors = [], []
        for message in turn.sends:
            tensor = self.handed.pop(_key(message.target))
            operations.append(self._operation(dist.isend, tensor, message.target.rank))
            tensors.append(tensor)
        for message in turn.receives:
            tensor = self._empty(message)
            operations.append(self._operation(dist.irecv, tensor, message.source.rank))
            tensors.append(tensor)
        what = ", ".join(map(str, (*turn.sends, *turn.receives)))
        handles = engine(lambda: dist.batch_isend_irecv(operations), what)
        # Engines that join a batch give one handle for all of it.
        each = handles if len(handles) == len(operations) else [handles[-1]] * len(operations)
        both = zip((*turn.sends, *turn.receives), tensors, each, strict=True)
        if not self.captured:  # nothing is ever over while it is captured
            self.sending = [one for one in self.sending if not one[0].is_completed()]
        for number, (message, tensor, handle) in enumerate(both):
            if number < len(turn.sends):
                self.sending.append((handle, tensor, message))
            else:
                self.arriving[_key(message.target)] = (tensor, [handle], message)

    def _operation(self, kind: Any, tensor: torch.Tensor, peer: int) -> dist.P2POp:
        group = self.of.group
        there = peer if group is None else dist.get_global_rank(group, peer)
        return dist.P2POp(kind, tensor, there, group=group)

    def _empty(self, message: Message) -> torch.Tensor:
        """Memory for what arrives: an output of the stage before, or its gradient."""
        target = message.target
        form = self.of._forms[target.stage - 1 if target.phase == FORWARD else target.stage]
        return torch.empty(form.shape, dtype=form.dtype, device=self.of._device)


def _key(work: Work) -> _Key:
    return work.phase, work.stage, work.microbatch
