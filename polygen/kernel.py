"""`Kernel`: one compiled kernel. Callable, inspectable, checkable, savable."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from polygen.brief import table
from polygen.check import (
    CheckReport,
    Emulation,
    check,
    emulate,
    launch_of,
    runnable_sizes,
    trial_operands,
    trial_sizes,
)
from polygen.errors import AlignmentMismatch, PolygenError, SpillError, ToolchainMissing
from polygen.frontend.program import Program, Tensor
from polygen.hardware.device import Device
from polygen.pipeline import Passes, check_sizes, generate
from polygen.poly import ast
from polygen.runtime.artifact import Artifact, Resources
from polygen.runtime.cache import compile_cached
from polygen.runtime.files import write_text_atomic
from polygen.runtime.launch import Launcher
from polygen.runtime.sass import disassemble
from polygen.schedule.model import Schedule
from polygen.show import STAGES, show_cost, show_plan


class Kernel:
    """A fused kernel for one target; sizes are run-time arguments.

    Attributes:
        schedule: the decisions it was made with.
        schedule_origin: where they come from.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        sizes: dict[str, int],
        schedule: Schedule | Path | str,
        command: str = "",
    ) -> None:
        self._sizes, self._asked, self._command = sizes, schedule, command
        self.passes: Passes = generate(program, device, sizes, schedule, command)
        self._siblings: dict[Any, Kernel] = {}

    # --- what it is -----------------------------------------------------------------------------
    @property
    def program(self) -> Program:
        """What it computes."""
        return self.passes.program

    @property
    def schedule(self) -> Schedule:
        """The decisions it was made with."""
        return self.passes.plan.schedule

    @property
    def schedule_origin(self) -> str:
        """Where the schedule comes from, and why."""
        return self.passes.origin

    @property
    def source(self) -> str:
        """The CUDA text; compiles alone with nvcc."""
        return self.passes.source.text

    @cached_property
    def artifact(self) -> Artifact:
        """PTX, cubin and compiler report; compiled on first use, or read from the cache.

        An automatic choice that spills is replaced by the next best; `schedule_origin` says so.
        """
        skip: frozenset[str] = frozenset()
        while True:
            try:
                return compile_cached(self.passes.source)
            except SpillError:
                if self._asked != "auto":
                    raise
                skip |= {self.schedule.name}
                self.passes = generate(
                    self.program, self.passes.plan.device, self._sizes, "auto", self._command, skip
                )

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
        """One stage as text: program, scop, tree, ast, plan, cost, cuda, ptx or sass.

        "cost" explains the predicted time at the sizes to optimise for.

        Raises:
            PolygenError: there is no such stage.
            ToolchainMissing: "sass" without a disassembler.
        """
        if stage not in STAGES:
            raise PolygenError(
                f"unknown stage {stage!r}", where="show", nearest=f"Stages: {', '.join(STAGES)}"
            )
        passes = self.passes
        return {
            "program": lambda: f"{passes.program}\n\n{passes.tree.fusion}\n\n{passes.tree.match}",
            "scop": lambda: str(passes.scop),
            "tree": lambda: str(passes.tree),
            "ast": lambda: ast.text(passes.plan.loops),
            "plan": lambda: show_plan(passes.plan, passes.origin),
            "cost": lambda: show_cost(passes.plan, self._sizes, passes.origin),
            "cuda": lambda: self.source,
            "ptx": lambda: self.ptx,
            "sass": lambda: disassemble(self.cubin),
        }[stage]()

    def __repr__(self) -> str:
        return f"<kernel {self.passes.plan.entry} for {self.passes.plan.device.name}>"

    def __str__(self) -> str:
        return self.show("plan")

    def _repr_html_(self) -> str:
        tensors = (*self.program.inputs, *self.program.outputs)
        return table(
            [
                ("computes", self.program.source),
                *((tensor.name, str(tensor).partition(": ")[2]) for tensor in tensors),
                ("target", self.passes.plan.device.name),
                ("schedule", f"{self.schedule.name}: {self.schedule_origin}"),
            ]
        )

    # --- running it -----------------------------------------------------------------------------
    @cached_property
    def _launcher(self) -> Launcher:
        artifact = self.artifact  # first: it may replace the passes
        return Launcher(self.passes.source, artifact, self.program.inputs, self.program.outputs)

    @cached_property
    def _scalar_places(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        inputs = self.program.inputs
        arrays = tuple(i for i, t in enumerate(inputs) if t.dims)
        return arrays, tuple(i for i, t in enumerate(inputs) if not t.dims)

    def __call__(self, *operands: Any, out: Any = None, stream: Any = None) -> Any:
        """Launch on CUDA arrays; asynchronous, on the caller's current stream or on `stream`.

        Args:
            operands: arrays with ``__dlpack__`` or ``__cuda_array_interface__``, numbers for
                run-time scalars.
            out: output array, or tuple of them; nothing is allocated then.
            stream: a stream of CuPy or PyTorch, or an address.

        Returns:
            The output in the library of the first array, or a tuple of outputs.

        Raises:
            ArgumentError: operands do not fit; says which and why.
        """
        arrays, scalars = self._scalar_places
        try:
            if not scalars:
                return self._launcher(operands, (), out, stream)
            return self._launcher(
                tuple(operands[i] for i in arrays), tuple(operands[i] for i in scalars), out, stream
            )
        except AlignmentMismatch as mismatch:
            return self._sibling(mismatch)(*operands, out=out, stream=stream)

    def _sibling(self, mismatch: AlignmentMismatch) -> Kernel:
        """The same kernel for arrays with other alignments, compiled on first use."""
        key = (mismatch.alignment, mismatch.ragged)
        if key not in self._siblings:
            self._siblings[key] = Kernel(
                realigned(self.program, dict(mismatch.alignment), mismatch.ragged),
                self.passes.plan.device,
                self._sizes,
                self._asked,
                self._command,
            )
        return self._siblings[key]

    def save(self, folder: str | Path) -> Path:
        """Write the ``.cu``, its manifest and its schedule tree; each appears whole or not at all.

        Without a compiler the manifest has no resources, and the ``.cu`` says so.

        Returns:
            The path of the ``.cu``.

        Raises:
            CompileError: the compiler refuses the code; nothing is written.
            CacheError: a file cannot be written.
        """
        folder = Path(folder)
        name = self.passes.plan.entry
        try:
            resources, compiler = dataclasses.asdict(self.resources), self.artifact.compiler
            compiled = f"// compiled by {compiler}: {self.resources}\n"
        except ToolchainMissing:
            resources, compiler = None, None
            compiled = "// not compiled: there was no compiler where this was made\n"
        manifest = {
            "entry": name,
            "expression": self.program.source,
            "target": self.passes.plan.device.name,
            "arguments": [dataclasses.asdict(argument) for argument in self.passes.plan.arguments],
            "launch": dataclasses.asdict(self.passes.plan.launch),
            "alignment": dict(self.passes.source.alignment),
            "schedule": dataclasses.asdict(self.schedule),
            "schedule_origin": self.schedule_origin,
            "resources": resources,
            "compiler": compiler,
            "proofs": [str(proof) for proof in self.passes.plan.proofs],
        }
        path = folder / f"{name}.cu"
        write_text_atomic(folder / f"{name}.tree.yaml", str(self.passes.tree) + "\n")
        write_text_atomic(folder / f"{name}.json", json.dumps(manifest, indent=2) + "\n")
        write_text_atomic(path, compiled + self.source)
        return path

    # --- checking it ----------------------------------------------------------------------------
    def emulate(self, *operands: Any) -> Any:
        """Run the compiled PTX on NumPy arrays with the PTX machine; outputs start as NaN.

        Args:
            operands: NumPy arrays (bfloat16 through ml_dtypes) and numbers, in call order.

        Returns:
            A NumPy array, or a tuple of them.

        Raises:
            ArgumentError: operands do not fit.
        """
        return self.emulation(*operands).results

    def emulation(self, *operands: Any, **options: Any) -> Emulation:
        """As `emulate`, with the machine's report.

        Args:
            operands: as for `emulate`.
            options: for `polygen.machine.run`: completion, seed, profile.
        """
        fitting = self.fitting(*operands)
        ptx = fitting.ptx  # first: it may replace the passes
        return emulate(self.program, fitting.passes.source, ptx, operands, **options)

    def fitting(self, *operands: Any) -> Kernel:
        """Choose this kernel, or the variant that the alignment of these NumPy arrays needs."""
        self.artifact  # noqa: B018  (first: it may replace the passes)
        try:
            launch_of(self.program, self.passes.source, operands)
        except AlignmentMismatch as mismatch:
            return self._sibling(mismatch).fitting(*operands)
        return self

    def check(self, sizes: dict[str, int] | None = None) -> CheckReport:
        """The proofs, and a run of the compiled PTX on integer data compared with NumPy.

        Sizes outside this kernel's alignment class are run with the variant that a call would use,
        and for sizes that take too long a smaller problem is run; ``report.notes`` says so.

        Args:
            sizes: of the run; dims not named get a small size that crosses tile boundaries.

        Returns:
            A report; ``report.ok`` says whether ``report.findings`` is empty.
        """
        check_sizes(self.program, sizes or {})
        self.artifact  # noqa: B018  (first: it may replace the passes)
        chosen = {**trial_sizes(self.passes.plan), **(sizes or {})}
        chosen, note = runnable_sizes(self.passes.plan, chosen)
        notes = [note] if note else []
        fitting = self.fitting(*trial_operands(self.program, chosen, 0))
        if fitting is not self:
            chosen, note = runnable_sizes(fitting.passes.plan, chosen)  # its tiles may differ
            classes = ", ".join(f"{t} {n}" for t, n in fitting.passes.source.alignment)
            notes.append(
                "the sizes are outside the alignment class of this kernel; ran its variant for "
                f"arrays aligned to {classes} bytes"
            )
        ptx = fitting.ptx
        return check(fitting.passes.plan, fitting.passes.source, ptx, chosen, notes=tuple(notes))


def realigned(program: Program, alignment: dict[str, int], ragged: tuple[str, ...] = ()) -> Program:
    """The program with other alignments (bytes by tensor) and with ragged rows where named."""

    def change(tensor: Tensor) -> Tensor:
        return replace(
            tensor,
            alignment=alignment.get(tensor.name, tensor.alignment),
            ragged=tensor.ragged or tensor.name in ragged,
        )

    return replace(
        program,
        inputs=tuple(map(change, program.inputs)),
        outputs=tuple(map(change, program.outputs)),
    )
