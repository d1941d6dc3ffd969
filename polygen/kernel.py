"""`Kernel`: one compiled kernel. Callable, inspectable, checkable, savable."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polygen.described import Described, generated_by, needs_isl
from polygen.errors import AlignmentMismatch, ToolchainMissing
from polygen.frontend.alignment import realigned
from polygen.frontend.given import outputs_of, sizes_of, without_numbers
from polygen.frontend.program import Program
from polygen.generated import Generated, kept
from polygen.hardware.device import Device, device
from polygen.planned import Planned
from polygen.runtime.artifact import Artifact
from polygen.runtime.launch import Launcher
from polygen.runtime.outputs import stored_into
from polygen.runtime.recent import Recent
from polygen.runtime.repeated import Repeated
from polygen.runtime.resumed import Resumed
from polygen.runtime.workspace import bytes_beside
from polygen.saved import Saved, from_bytes, read, to_bytes, write
from polygen.schedule.model import Schedule

if TYPE_CHECKING:
    from polygen.check import CheckReport, Emulation

_MOST_VARIANTS = 4  # one after the other, until arrays fit
_MOST_SIBLINGS = 64  # variants for other alignments that one kernel keeps


class Kernel(Described):
    """A fused kernel for one target; sizes are run-time arguments.

    Attributes:
        schedule: the decisions it was made with.
        schedule_origin: where they come from.
        deterministic: whether the same arguments give the same bits in every launch.
        sums: in which order products add up, as proved; two kernels of one program with the same
            `sums.text`, and the same invariant dims, give an element the same bits.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        sizes: dict[str, int],
        schedule: Schedule | Path | str,
        command: str = "",
        sums: str = "",
    ) -> None:
        passes = generated_by(program, device, sizes, schedule, command, sums=sums)
        self._fill(passes.generated, sizes, schedule)
        self.passes = passes

    def _fill(
        self, generated: Generated, sizes: dict[str, int], asked: Schedule | Path | str
    ) -> None:
        self._generated, self._sizes, self._asked = generated, sizes, asked
        self._siblings: Recent[Any, Kernel] = Recent(_MOST_SIBLINGS)
        self._kept_under, self._variant = (), False
        self.numbers: dict[str, int] = {}  # sizes that became constants, as far as it is known

    @classmethod
    def decided(
        cls,
        program: Program,
        device: Device,
        sizes: dict[str, int],
        schedule: Schedule,
        origin: str,
        sums: str = "",
    ) -> Kernel:
        """The kernel of an automatic choice, generated unless it is on disk.

        Args:
            program: with the alignments of the arrays.
            device: the target.
            sizes: that the choice is for.
            schedule: the choice, `polygen.decision.decision`.
            origin: where it comes from.
            sums: as for `polygen.decision.decision`.

        Raises:
            PolygenError: the program is refused.
        """

        def make() -> Generated:
            return generated_by(program, device, sizes, "auto", sums=sums).generated

        parts = (program, device, schedule)
        found = kept(Generated, parts, make)
        # Else the proofs have refused it, or it spilled, and the origin says so.
        if found.schedule == schedule:
            found = replace(found, origin=origin)
        made = cls._of(found, sizes, "auto")
        made._kept_under = parts
        return made

    @classmethod
    def _of(
        cls, generated: Generated, sizes: dict[str, int], asked: Schedule | Path | str
    ) -> Kernel:
        made = cls.__new__(cls)
        made._fill(generated, sizes, asked)
        return made

    @classmethod
    def load(cls, path: str | Path) -> Kernel:
        """A kernel that `save` wrote; nothing is compiled, and isl is not needed.

        Args:
            path: any of its files.

        Raises:
            SavedKernelError: a file is missing or damaged, or another version wrote it.
            UnknownTarget: this polygen does not know the target.
        """
        return cls._restored(read(path))

    @classmethod
    def _restored(cls, found: Saved) -> Kernel:
        made = cls._of(found.generated, dict(found.sizes), found.asked or "auto")
        if found.artifact is not None:
            made.artifact = found.artifact
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        data = to_bytes(self._saved(self.__dict__.get("artifact")))
        return _unpickled, (data,), {"numbers": self.numbers}

    def _saved(self, artifact: Artifact | None) -> Saved:
        asked = None if self._asked == "auto" else self.schedule
        return Saved(self._generated, artifact, asked, tuple(self._sizes.items()))

    # --- running it -----------------------------------------------------------------------------
    @cached_property
    def _launcher(self) -> Launcher:
        """What launches it among others of a sequence."""
        artifact = self.artifact  # first: it may replace the passes
        inputs, outputs = self.program.inputs, self.program.outputs
        return Launcher(self._generated.source, artifact, inputs, outputs)

    @cached_property
    def _alone(self) -> Launcher:
        """What launches it for a caller, who may have had anything run before.

        One that reads early what no kernel of its sequence writes waits for all of that.
        """
        made, source = self._launcher, self._generated.source
        if not self.schedule.launch.ahead:
            return made
        waiting = replace(source, launch=replace(source.launch, dependent=False))
        return Launcher(waiting, self.artifact, self.program.inputs, self.program.outputs)

    @cached_property
    def _scalar_places(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        operands, given = self.program.operands, dict(self.program.in_place)
        read = [(i, t) for i, t in enumerate(operands) if t.name not in given]
        arrays = tuple(i for i, t in read if t.dims)
        return arrays, tuple(i for i, t in read if not t.dims)

    @property
    def has_workspace(self) -> bool:
        """Whether a call takes memory beside its arrays."""
        source = self._generated.source
        return source.realign is not None or source.following is not None

    def workspace(self, sizes: dict[str, int] | None = None) -> int:
        """Bytes that a call takes beside its arrays, for operands that are made and parts of folds.

        Args:
            sizes: of the call; dims not named have the size that the kernel was optimised for.

        Raises:
            ArgumentError: the size of a dim is not known.
        """
        with suppress(ToolchainMissing):
            self.compiled()  # a choice that spills is replaced, and another has other parts
        return bytes_beside(self._generated.source, self.program, self._sizes | (sizes or {}))

    def __call__(
        self, *operands: Any, out: Any = None, stream: Any = None, workspace: Any = None
    ) -> Any:
        """Launch on CUDA arrays; asynchronous, on the caller's current stream or on `stream`.

        Args:
            operands: arrays with ``__dlpack__`` or ``__cuda_array_interface__``, numbers for
                run-time scalars.
            out: output array, or tuple of them; nothing but `workspace` is allocated then.
            stream: a stream of CuPy or PyTorch, or an address.
            workspace: an array of `workspace(sizes)` bytes, if these are any, that nobody else uses
                until the call is done; None: one is allocated on the stream, and given back. A call
                that is captured in a graph needs one that lives as long as the graph.

        Returns:
            The output in the library of the first array, or a tuple of outputs.

        Raises:
            ArgumentError: operands do not fit; says which and why.
        """
        arrays, scalars = self._scalar_places
        if self.program.in_place:
            out = stored_into(self.program, operands, out)
        try:
            if not scalars and not self.program.in_place:
                return self._alone(operands, (), out, stream, workspace)
            return self._alone(
                tuple(operands[i] for i in arrays), tuple(operands[i] for i in scalars), out,
                stream, workspace,
            )  # fmt: skip
        except AlignmentMismatch as mismatch:
            return self.for_alignment(mismatch)(
                *operands, out=out, stream=stream, workspace=workspace
            )

    def launched(self, arrays: tuple[Any, ...], found: tuple[list[int], list[Any]]) -> Any:
        """As a call with these arrays alone, of which a caller has read what a call reads first.

        Args:
            arrays: the operands; the program has no scalars, and stores into none of them.
            found: by `polygen.runtime.arrays.READS`.

        Raises:
            ArgumentError: operands do not fit; says which and why.
        """
        try:
            return self._alone(arrays, found=found)
        except AlignmentMismatch as mismatch:
            return self.for_alignment(mismatch)(*arrays)

    def into(
        self,
        arrays: Sequence[Any],
        scalars: Sequence[Any],
        out: tuple[Any, ...],
        found: tuple[list[int], list[Any]],
        stream: Any = None,
        workspace: Any = None,
    ) -> None:
        """As a call, of whose arrays and outputs a caller has read what a call reads first.

        Args:
            arrays: array operands, in order; the program stores into none of them.
            scalars: the others.
            out: the outputs.
            found: by `polygen.runtime.arrays.READS`, of arrays and outputs.
            stream: as for a call.
            workspace: room for what this kernel takes, if it takes any; or None.

        Raises:
            ArgumentError: an array does not fit; says which and why.
        """
        try:
            room = workspace if self.has_workspace else None
            self._launcher(arrays, scalars, out, stream, room, (list(found[0]), found[1]))
        except AlignmentMismatch as mismatch:  # of which nobody knows how much room it takes
            self.for_alignment(mismatch).into(arrays, scalars, out, found, stream)

    def resumed(self, forms: list[Any]) -> Resumed | None:
        """What a call has ready, for arrays of forms as `arrays.READS` gives them; or None."""
        return self._launcher.resumed(forms)

    def repeated(self, arrays: tuple[Any, ...]) -> Repeated | None:
        """What repeats a call that was made with such arrays alone; see `Launcher.repeated`."""
        return None if self.program.in_place else self._alone.repeated(arrays)

    def plan(self, **constant: Any) -> Planned:
        """Fix operands that stay the same, such as weights: they are aligned once.

        ``kernel.plan(w=w).run(x)`` is ``kernel(x, w)`` without a copy of w in each call. Rows that
        the copy engine takes stay where they are; other arrays are copied, on their library's
        current stream, and changing them later changes no result.

        Args:
            constant: operands by name.

        Raises:
            ArgumentError: there is no such operand, or it is no array in device memory.
        """
        return Planned(self, constant)

    def for_alignment(self, mismatch: AlignmentMismatch) -> Kernel:
        """Give the same kernel for arrays with other alignments, compiled on first use."""
        key = (mismatch.alignment, mismatch.ragged)
        found = self._siblings.get(key)
        return found or self._siblings.put(key, self._realigned(mismatch))

    def _realigned(self, mismatch: AlignmentMismatch) -> Kernel:
        program = realigned(self.program, dict(mismatch.alignment), mismatch.ragged)
        target = device(self._generated.target)
        if self._asked != "auto":
            command = self._generated.command
            made = Kernel(program, target, self._sizes, self._asked, command, self._class)
            made._variant = True
            return made
        with needs_isl():
            from polygen.decision import decision  # noqa: PLC0415
        chosen = decision(program, target, self._sizes, self._class)
        return Kernel.decided(program, target, self._sizes, *chosen, self._class)

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the ``.cu``, a C header, cubin, PTX, schedule tree and manifest.

        Each file appears whole or not at all. Without a compiler there is no cubin and no PTX, the
        manifest has no resources, and the ``.cu`` says so; `load` then compiles at the first use.

        Args:
            folder: made if needed.
            force: take the place of another kernel of this name.

        Returns:
            The path of the ``.cu``.

        Raises:
            CompileError: the compiler refuses the code; nothing is written.
            SavedKernelError: the folder holds a kernel of this name that is another program's, or
                for another target.
            CacheError: a file cannot be written.
        """
        try:
            artifact: Artifact | None = self.artifact
        except ToolchainMissing:
            artifact = None
        return write(self._saved(artifact), folder, force=force)

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

    def emulation(self, *operands: Any, out: Any = None, **options: Any) -> Emulation:
        """As `emulate`, with the machine's report.

        Args:
            operands: as for `emulate`.
            out: arrays that lie as outputs of a call do, views of larger ones; they stay.
            options: for `polygen.machine.run`: completion, seed, profile.
        """
        out = outputs_of(out)
        fitting = self.fitting(*operands, out=out)
        ptx = fitting.ptx  # first: it may replace the passes
        with needs_isl():
            from polygen.check import emulate  # noqa: PLC0415

        return emulate(self.program, fitting._generated.source, ptx, operands, out, **options)

    def fitting(self, *operands: Any, out: Any = ()) -> Kernel:
        """Choose this kernel, or the variant that the alignment of these NumPy arrays needs."""
        with needs_isl():
            from polygen.check import launch_of  # noqa: PLC0415

        found = self
        for _ in range(_MOST_VARIANTS):
            found.compiled()  # first: it may replace the passes
            try:
                launch_of(found.program, found._generated.source, operands, out)
            except AlignmentMismatch as other:
                mismatch, found = other, found.for_alignment(other)
            else:
                return found
        raise mismatch

    def check(self, sizes: dict[str, int] | None = None, *, workers: int = 1) -> CheckReport:
        """The proofs, and a run of the compiled PTX on integer data compared with NumPy.

        Sizes outside this kernel's alignment class are run with the variant that a call would use,
        and for sizes that take too long a smaller problem is run; ``report.notes`` says so.

        Args:
            sizes: of the run; dims not named get a small size that crosses tile boundaries.
            workers: processes at most that run the blocks; the report is the same.

        Returns:
            A report; ``report.ok`` says whether ``report.findings`` is empty.
        """
        with needs_isl():
            from polygen.check import check_kernel  # noqa: PLC0415
        return check_kernel(self, without_numbers(sizes_of(sizes), self.numbers), workers)


def _unpickled(data: bytes) -> Kernel:
    """What a pickled kernel is made of again."""
    return Kernel._restored(from_bytes(data))
