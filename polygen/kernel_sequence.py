"""`KernelSequence`: a program that several kernels run, one after another on one stream.

Each is a `Kernel` of its own, with its schedule, proofs and text. What one stores and a later one
reads lies in the call's workspace; each array has a place of its own there, and the kernels, which
run in turn, share one for what they need themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polygen.brief import table
from polygen.described import needs_isl
from polygen.emit.several import several_headers, several_texts
from polygen.errors import AlignmentMismatch, ArgumentError, VerifyError
from polygen.frontend.given import outputs_of, sizes_of, without_numbers
from polygen.frontend.program import Program, Tensor
from polygen.hardware.device import Device
from polygen.kernel import Kernel
from polygen.planned import Planned
from polygen.runtime.artifact import Resources
from polygen.runtime.files import write_text_atomic
from polygen.runtime.sequence import SequenceLauncher, Step
from polygen.saved_sequence import SavedSequence, read, write
from polygen.schedule.model import Schedule
from polygen.schedule.sums import Sums, reproducible

if TYPE_CHECKING:
    from polygen.check import CheckReport, Emulation


class KernelSequence:
    """Kernels that run a program one after another; sizes are run-time arguments.

    It is called, checked, saved and looked at as a `polygen.Kernel`.

    Attributes:
        program: what it computes.
        kernels: in their order. Outputs of one that are none of the program's are inputs of later
            ones, by name.
    """

    def __init__(self, program: Program, kernels: Sequence[Kernel]) -> None:
        self.program, self.kernels = program, tuple(kernels)
        self.numbers: dict[str, int] = {}  # sizes that became constants, as far as it is known
        self._check_order()
        steps = [Step(one.program, one.into, one.resumed, one.workspace) for one in self.kernels]
        self._launcher = SequenceLauncher(program, steps, self.between)

    def _check_order(self) -> None:
        """What some kernels read early counts on the first: it begins when all else is complete."""
        first, order = self.kernels[0], self.kernels[0].program.in_order
        early = [one.entry for one in self.kernels if one.schedule.launch.ahead]
        if early and (order is None or not order.first):
            raise VerifyError(
                f"{', '.join(early)} read what is there before them, and {first.entry} does not "
                "begin when all else is complete",
                where=self.program.name,
            )

    # --- what it is -----------------------------------------------------------------------------
    @property
    def target(self) -> Device:
        """The device that it is for."""
        return self.kernels[0].target

    @property
    def schedule(self) -> Schedule:
        """The decisions for the last kernel, which makes results; each has its own."""
        return self.kernels[-1].schedule

    @property
    def schedule_origin(self) -> str:
        """Where the schedules come from, and why."""
        each = (f"{name}: {one.schedule_origin}" for name, one in self._named())
        return f"{len(self.kernels)} kernels; {'; '.join(each)}"

    @cached_property
    def sums(self) -> Sums:
        """In which order its products add up, as proved of what is emitted."""
        every = [one.sums for one in self.kernels]
        orders = tuple(order for one in every for order in one.orders)
        folds = tuple(fold for one in every for fold in one.folds)
        named = ((name, one.sums.reciprocals) for name, one in self._named())
        return Sums(orders, (), folds, "; ".join(f"{name}: {own}" for name, own in named if own))

    @property
    def deterministic(self) -> bool:
        """Whether the same arguments give the same bits in every launch."""
        return self.sums.deterministic

    @property
    def source(self) -> str:
        """The CUDA text of all kernels; compiles alone with nvcc."""
        return several_texts([one.source for one in self.kernels], self._contents())

    @property
    def header(self) -> str:
        """The launchers' declarations, as C: they are called in this order."""
        return several_headers([one.header for one in self.kernels], self._contents())

    @property
    def between(self) -> tuple[Tensor, ...]:
        """The arrays that kernels hand on."""
        own = {tensor.name for tensor in self.program.outputs}
        every = (tensor for one in self.kernels for tensor in one.program.outputs)
        return tuple(tensor for tensor in every if tensor.name not in own)

    def _named(self) -> list[tuple[str, Kernel]]:
        return [(one.program.name, one) for one in self.kernels]

    def _contents(self) -> list[str]:
        """A line for each kernel: what it makes of what."""
        return [
            f"{one.program.name}: {', '.join(t.name for t in one.program.outputs)} of "
            f"{', '.join(t.name for t in one.program.operands)}"
            for one in self.kernels
        ]

    @property
    def ptx(self) -> str:
        """The compiled PTX of each, one after another."""
        return "\n".join(one.ptx for one in self.kernels)

    @property
    def resources(self) -> Resources:
        """Registers, spills, shared memory and threads of the kernel with most registers."""
        return max((one.resources for one in self.kernels), key=lambda one: one.registers)

    def compiled(self) -> KernelSequence:
        """Compile all, as the first use does.

        Raises:
            PolygenError: as for `Kernel.artifact`.
        """
        for one in self.kernels:
            one.compiled()
        return self

    def show(self, stage: str = "plan") -> str:
        """One stage of every kernel as text; stages as for `Kernel.show`.

        Raises:
            PolygenError: there is no such stage.
            ToolchainMissing: "sass" without a disassembler.
        """
        if stage == "cuda":
            return self.source
        head = f"{self.program}\n\n" if stage == "program" else ""
        count = len(self.kernels)
        each = (
            f"== kernel {at} of {count}, {what}\n\n{one.show(stage)}"
            for at, (one, what) in enumerate(zip(self.kernels, self._contents(), strict=True), 1)
        )
        return head + "\n\n".join(each)

    def page(self, path: str | Path | None = None) -> str:
        """All kernels as one HTML page, each with its stages and pictures; as `Kernel.page`."""
        with needs_isl():
            from polygen.page import sequence_content, sequence_page  # noqa: PLC0415
        each = [(one.passes, one.sizes) for one in self.kernels]
        text = sequence_page(sequence_content(self.program, each, self.between, self.sums))
        if path is not None:
            write_text_atomic(path, text)
        return text

    def __repr__(self) -> str:
        entries = ", ".join(name for name, _ in self._named())
        return f"<kernels {entries} for {self.target.name}>"

    def __str__(self) -> str:
        return self.show("plan")

    def _repr_html_(self) -> str:
        tensors = (*self.program.inputs, *self.program.outputs)
        return table(
            [
                ("computes", self.program.source),
                *((tensor.name, str(tensor).partition(": ")[2]) for tensor in tensors),
                ("target", self.target.name),
                *((name, str(one.schedule_origin)) for name, one in self._named()),
                ("sums", reproducible(self.sums)),
            ]
        )

    # --- keeping it -----------------------------------------------------------------------------
    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the files of every kernel, as `Kernel.save` does, and a manifest that names them.

        Args:
            folder: made if needed.
            force: take the place of other kernels of these names.

        Returns:
            The path of the manifest, ``NAME.json``, which is written last.

        Raises:
            CompileError: the compiler refuses the code of a kernel.
            SavedKernelError: the folder holds another kernel of one of the names.
            CacheError: a file cannot be written.
        """
        every = [one.save(folder, force=force).stem for one in self.kernels]
        return write(SavedSequence(self.program, tuple(every)), folder, force=force)

    @classmethod
    def load(cls, path: str | Path) -> KernelSequence:
        """Kernels that `save` wrote; nothing is compiled, and isl is not needed.

        Args:
            path: the manifest.

        Raises:
            SavedKernelError: a file is missing or damaged, or another version wrote it.
            UnknownTarget: this polygen does not know the target.
        """
        found = read(path)
        folder = Path(path).parent
        return cls(found.program, [Kernel.load(folder / f"{one}.json") for one in found.entries])

    def __reduce__(self) -> tuple[Any, ...]:
        return KernelSequence, (self.program, self.kernels), {"numbers": self.numbers}

    # --- running it -----------------------------------------------------------------------------
    def workspace(self, sizes: dict[str, int] | None = None) -> int:
        """Bytes of device memory that a call takes beside its arrays, while it runs.

        Args:
            sizes: of the call; dims not named have the size that the kernels were optimised for.

        Raises:
            ArgumentError: the size of a dim is not known.
        """
        known = {name: size for one in self.kernels for name, size in one.sizes.items()}
        known |= sizes or {}
        missing = [name for name in self.program.sizes if name not in known]
        if missing:
            raise ArgumentError(
                f"sizes without {', '.join(missing)}",
                where="workspace",
                nearest=f"Name all of {', '.join(self.program.sizes)}",
            )
        return self._launcher.workspace(known)

    def __call__(
        self, *operands: Any, out: Any = None, stream: Any = None, workspace: Any = None
    ) -> Any:
        """Launch all kernels on CUDA arrays; arguments, result and errors as for `Kernel`."""
        return self._launcher(operands, out, stream, workspace)

    def launched(self, arrays: tuple[Any, ...], _: object) -> Any:
        """As a call with these arrays alone."""
        return self._launcher(arrays)

    def repeated(self, _: tuple[Any, ...]) -> None:
        """A call is more than a launch, and nothing shorter repeats it."""

    def plan(self, **constant: Any) -> Planned:
        """Fix operands that stay the same, as `Kernel.plan`."""
        return Planned(self, constant)

    def for_alignment(self, mismatch: AlignmentMismatch) -> KernelSequence:
        """Give the same kernels for arrays with other alignments, compiled on first use."""
        given = dict(mismatch.alignment)
        kernels = []
        for one in self.kernels:
            own = AlignmentMismatch(mismatch.what, where=one.program.name)
            own.alignment = tuple(
                (tensor.name, given.get(tensor.name, tensor.alignment))
                for tensor in (*one.program.inputs, *one.program.outputs)
                if tensor.dims
            )
            kernels.append(one.for_alignment(own))
        return KernelSequence(self.program, kernels)

    # --- checking it ----------------------------------------------------------------------------
    def emulate(self, *operands: Any) -> Any:
        """Run the compiled PTX of all kernels on NumPy arrays, as `Kernel.emulate`."""
        return self.emulation(*operands).results

    def emulation(self, *operands: Any, out: Any = None, **options: Any) -> Emulation:
        """As `emulate`, with the machine's report of all runs; arguments as for `Kernel`."""
        with needs_isl():
            from polygen.check_sequence import emulate_sequence  # noqa: PLC0415
        return emulate_sequence(self, operands, outputs_of(out), options)

    def check(self, sizes: dict[str, int] | None = None, *, workers: int = 1) -> CheckReport:
        """Every kernel's proofs, and a run of each on integer data compared with NumPy.

        Args:
            sizes: as for `Kernel.check`.
            workers: processes at most that run the blocks; the report is the same.

        Returns:
            One report of all.
        """
        with needs_isl():
            from polygen.check_sequence import check_sequence  # noqa: PLC0415
        return check_sequence(self, without_numbers(sizes_of(sizes), self.numbers), workers)


AnyKernel = Kernel | KernelSequence
