"""`Described`: what a kernel is: its parts, and every stage of its making as text.

What was generated and compiled is kept; the passes before are made again when somebody asks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from polygen.brief import table
from polygen.errors import (
    InvarianceError,
    PolygenError,
    PressureError,
    ScheduleError,
    SpillError,
    ToolchainMissing,
)
from polygen.frontend.program import Program
from polygen.generated import Generated, keep
from polygen.hardware.device import Device, device
from polygen.runtime.artifact import Artifact, Resources
from polygen.runtime.cache import compile_cached
from polygen.runtime.files import write_text_atomic
from polygen.runtime.sass import disassemble
from polygen.schedule.lighter import difference, lighter
from polygen.schedule.model import HELD_ROWS, Schedule
from polygen.schedule.sums import Sums, reproducible

if TYPE_CHECKING:
    from polygen.pipeline import Passes


class Described:
    """One generated kernel, to look at; `polygen.kernel.Kernel` also runs it."""

    _generated: Generated
    _sizes: dict[str, int]
    _asked: Schedule | Path | str
    _kept_under: tuple[object, ...]  # what the automatic choice is kept on disk by
    _variant: bool  # whether a call asked for it, with arrays of other alignments than were named

    @property
    def program(self) -> Program:
        """What it computes."""
        return self._generated.program

    @property
    def target(self) -> Device:
        """The device that it is for."""
        return device(self._generated.target)

    @property
    def entry(self) -> str:
        """What its ``__global__`` function, and its files, are called."""
        return self._generated.source.entry

    @property
    def sizes(self) -> dict[str, int]:
        """What it was optimised for."""
        return dict(self._sizes)

    @property
    def kernels(self) -> tuple[Self, ...]:
        """It alone; of a `polygen.KernelSequence` there are several."""
        return (self,)

    @property
    def schedule(self) -> Schedule:
        """The decisions it was made with."""
        return self._generated.schedule

    @property
    def schedule_origin(self) -> str:
        """Where the schedule comes from, and why."""
        return self._generated.origin

    @property
    def sums(self) -> Sums:
        """In which order its products add up, as proved of what is emitted."""
        return self._generated.sums

    @property
    def deterministic(self) -> bool:
        """Whether the same arguments give the same bits in every launch."""
        return self.sums.deterministic

    @property
    def _class(self) -> str:
        """The class of sums that its variants must have; "" without invariant dims."""
        return self.sums.text if self.program.invariant else ""

    @property
    def source(self) -> str:
        """The CUDA text; compiles alone with nvcc."""
        return self._generated.source.text

    @property
    def header(self) -> str:
        """The launcher's declaration, its tests of arguments and the launch shape, as C."""
        return self._generated.source.header

    @cached_property
    def passes(self) -> Passes:
        """The result of every pass; of a kernel that was found or loaded, made when asked for.

        Raises:
            ToolchainMissing: isl is not installed.
        """
        made = self._generated
        found = generated_by(
            made.program, device(made.target), self._sizes, made.schedule, made.command
        )
        return replace(found, origin=made.origin)

    @cached_property
    def artifact(self) -> Artifact:
        """PTX, cubin and compiler report; compiled on first use, or read from the cache.

        An automatic choice that spills is replaced by the next best with more registers to spare,
        and where all spill by one near the best; `schedule_origin` says so, and what is kept on
        disk is replaced too. Where a schedule was given, the variant for arrays of other alignments
        may take another that is near it, and whose sums have the same order.

        Raises:
            PressureError: the schedule that was given needs more registers than there are; with one
                that is near it and compiles, if there is one. Or all do that might be chosen.
            CompileError: the compiler refuses the code.
        """
        chosen: list[tuple[Generated, PressureError]] = []
        skip: frozenset[str] = frozenset()
        while True:
            try:
                found = compile_cached(self._generated.source)
                if skip and self._kept_under:
                    keep(self._generated, self._kept_under)
                return found
            except PressureError as reason:
                # A schedule that the environment forces on every choice comes again.
                if self._asked != "auto" or self.schedule.name in skip:
                    return self._lighter(reason)
                beside = isinstance(reason, SpillError) and reason.beside
                held = beside and self.schedule.epilogue.row_words > 0
                skip |= {HELD_ROWS if held else self.schedule.name}
                made = self._generated
                chosen.append((made, reason))
                try:
                    self.passes = generated_by(
                        made.program, device(made.target), self._sizes, "auto", made.command, skip,
                        self._class,
                    )  # fmt: skip
                except (ScheduleError, InvarianceError):  # all that fit have been tried
                    return self._near_a_choice(chosen)
                self._generated = self.passes.generated

    def _lighter(self, reason: PressureError) -> Artifact:
        """What a schedule near the given one compiles to: of a variant, which takes it.

        Raises:
            PressureError: there is none, or this is no variant; with the schedule that compiles.
        """
        given = self.schedule
        for passes, found in self._near(self._generated):
            if not self._variant:
                changed = difference(given, passes.generated.schedule)
                raise reason.instead(f"With {changed} it compiles") from None
            why = f"as given, {reason.what} for arrays of these alignments"
            self._take(passes, self._generated, why)
            return found
        raise reason

    def _near_a_choice(self, chosen: list[tuple[Generated, PressureError]]) -> Artifact:
        """What a schedule near one of those compiles to that were chosen, all of which spill.

        Raises:
            PressureError: none does; of the first choice.
        """
        for made, reason in chosen:
            for passes, found in self._near(made):
                self._take(passes, made, f"as shipped, {reason.what}")
                if self._kept_under:
                    keep(self._generated, self._kept_under)
                return found
        self._generated, reason = chosen[0]
        self.__dict__.pop("passes", None)
        raise reason.instead(
            "No shipped schedule has registers enough for it; split the function, or pass one of "
            "your own"
        )

    def _near(self, made: Generated) -> Iterator[tuple[Passes, Artifact]]:
        """Kernels of schedules near another's whose sums have its order, and that compile."""
        refused = {made.source.text}
        for schedule in lighter(made.schedule):
            try:
                passes = generated_by(
                    made.program, device(made.target), self._sizes, schedule, made.command,
                    sums=self._class,
                )  # fmt: skip
                text = passes.source.text
                if text in refused or passes.generated.sums.text != made.sums.text:
                    continue
                refused.add(text)
                found = compile_cached(passes.source)
            except ToolchainMissing:
                raise
            except PolygenError:  # illegal here, or too heavy as well
                continue
            yield passes, found

    def _take(self, passes: Passes, made: Generated, why: str) -> None:
        """Be the kernel of a schedule near another's, and say so."""
        changed = difference(made.schedule, passes.generated.schedule)
        self.passes = replace(passes, origin=f"{made.origin}, but {changed}: {why}")
        self._generated = self.passes.generated

    def compiled(self) -> Self:
        """Compile it, as the first use does: it may be refused then, or replaced.

        Raises:
            PolygenError: as for `artifact`.
        """
        _ = self.artifact
        return self

    @property
    def ptx(self) -> str:
        """The compiled PTX."""
        return self.artifact.ptx

    @property
    def cubin(self) -> bytes:
        """The compiled machine code."""
        return self.artifact.cubin

    @property
    def resources(self) -> Resources:
        """Registers, spills, shared memory and threads, as compiled."""
        return self.artifact.resources

    def show(self, stage: str = "plan") -> str:
        """One stage as text: program, rewrite, scop, tree, ast, plan, cost, cuda, ptx or sass.

        "cost" explains the predicted time at the sizes to optimise for.

        Raises:
            PolygenError: there is no such stage.
            ToolchainMissing: "sass" without a disassembler.
        """
        if stage in _TEXTS:
            return _TEXTS[stage](self)
        with needs_isl():
            from polygen.poly import ast  # noqa: PLC0415
            from polygen.show import STAGES, show_cost, show_plan, show_rewrite  # noqa: PLC0415
        if stage not in STAGES:
            raise PolygenError(
                f"unknown stage {stage!r}", where="show", nearest=f"Stages: {', '.join(STAGES)}"
            )
        passes = self.passes
        return {
            "program": lambda: "\n\n".join(
                map(str, (passes.program, passes.tree.fusion, *(p.match for p in passes.plan.each)))
            ),
            "rewrite": lambda: show_rewrite(passes.program),
            "scop": lambda: str(passes.scop),
            "tree": lambda: str(passes.tree),
            "ast": lambda: ast.text(passes.plan.loops),
            "plan": lambda: show_plan(passes.plan, passes.origin),
            "cost": lambda: show_cost(passes.program, passes.plan, self._sizes, passes.origin),
        }[stage]()

    def page(self, path: str | Path | None = None) -> str:
        """All of it as one HTML page: stages, barriers, shared memory, timeline, roofline.

        Args:
            path: where to write the page, whole or not at all; None: it is only returned.

        Returns:
            The text of the page, which needs no network and no other file.

        Raises:
            ToolchainMissing: isl is not installed.
            CacheError: the file cannot be written.
        """
        with needs_isl():
            from polygen.page import page  # noqa: PLC0415
        text = page(self.passes, self._sizes)
        if path is not None:
            write_text_atomic(path, text)
        return text

    def __repr__(self) -> str:
        return f"<kernel {self.entry} for {self._generated.target}>"

    def __str__(self) -> str:
        return self.show("plan")

    def _repr_html_(self) -> str:
        tensors = (*self.program.inputs, *self.program.outputs)
        return table(
            [
                ("computes", self.program.source),
                *((tensor.name, str(tensor).partition(": ")[2]) for tensor in tensors),
                ("target", self._generated.target),
                ("schedule", f"{self.schedule.name}: {self.schedule_origin}"),
                ("sums", reproducible(self.sums)),
            ]
        )


@contextlib.contextmanager
def needs_isl() -> Iterator[None]:
    """Around imports of passes, which are made when needed: a loaded kernel runs without isl.

    Raises:
        ToolchainMissing: isl is not installed.
    """
    try:
        yield
    except ImportError as reason:
        raise ToolchainMissing(
            "this needs the passes of polygen, and isl is not there",
            why=str(reason),
            nearest="Install islpy; what was saved runs without it on arrays that fit",
        ) from reason


def generated_by(
    program: Program,
    target: Device,
    sizes: dict[str, int],
    schedule: Schedule | Path | str,
    command: str = "",
    skip: frozenset[str] = frozenset(),
    sums: str = "",
) -> Passes:
    """The result of every pass; arguments as for `polygen.pipeline.generate`."""
    with needs_isl():
        from polygen.pipeline import generate  # noqa: PLC0415
    return generate(program, target, sizes, schedule, command, skip, sums)


# Stages that need no pass.
_TEXTS: dict[str, Callable[[Described], str]] = {
    "cuda": lambda kernel: kernel.source,
    "ptx": lambda kernel: kernel.ptx,
    "sass": lambda kernel: disassemble(kernel.cubin),
}
