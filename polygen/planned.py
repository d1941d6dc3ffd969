"""`Planned`: a kernel with operands that stay the same, aligned once instead of in every call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from polygen.errors import AlignmentMismatch, ArgumentError
from polygen.frontend.program import Program
from polygen.runtime.aligned import aligned_copy, is_aligned
from polygen.schedule.realign import row_multiple


class Runs(Protocol):
    """What a plan needs of a kernel: `polygen.kernel.Kernel`."""

    @property
    def program(self) -> Program:
        """What it computes."""

    def for_alignment(self, mismatch: AlignmentMismatch) -> Runs:
        """Give the same kernel for arrays with other alignments."""

    def workspace(self, sizes: dict[str, int] | None = None) -> int:
        """Bytes that a call takes beside its arrays."""

    def __call__(
        self, *operands: Any, out: Any = None, stream: Any = None, workspace: Any = None
    ) -> Any:
        """Launch on arrays."""


class Planned:
    """A kernel that waits for the operands that change.

    Attributes:
        kernel: what runs: the variant for the alignments that the plan leaves.
        kept: the operands that stay, by name; of those whose rows the copy engine does not take, a
            copy. It is memory of the caller's library, and goes with this object.
    """

    def __init__(self, kernel: Runs, constant: Mapping[str, Any]) -> None:
        tensors = {t.name: t for t in kernel.program.operands}
        stored = dict(kernel.program.in_place)  # the results, which do not stay
        unknown = [name for name in constant if name not in tensors or name in stored]
        if unknown:
            raise ArgumentError(
                f"no operand is called {', '.join(unknown)}",
                where="plan",
                nearest=f"Operands: {', '.join(name for name in tensors if name not in stored)}",
            )
        self.kept: dict[str, Any] = dict(constant)
        raised: dict[str, int] = {}
        for name, array in constant.items():
            tensor = tensors[name]
            if len(tensor.dims) < 2:
                continue
            if not is_aligned(array, tensor):
                self.kept[name] = aligned_copy(array, tensor)
            if tensor.alignment < row_multiple():
                raised[name] = row_multiple()
        self.kernel = kernel
        if raised:
            mismatch = AlignmentMismatch("operands that stay are aligned", where="plan")
            everything = (*kernel.program.inputs, *kernel.program.outputs)
            mismatch.alignment = tuple(
                (t.name, raised.get(t.name, t.alignment)) for t in everything if t.dims
            )
            self.kernel = kernel.for_alignment(mismatch)
        self._changing = tuple(name for name in tensors if name not in constant)
        self._order = tuple(tensors)

    def run(
        self, *operands: Any, out: Any = None, stream: Any = None, workspace: Any = None
    ) -> Any:
        """Launch on the operands that change, in the kernel's order.

        Args:
            operands: all that the plan does not keep.
            out: as for `Kernel`.
            stream: as for `Kernel`.
            workspace: as for `Kernel`.

        Returns:
            What the kernel returns.

        Raises:
            ArgumentError: operands do not fit.
        """
        if len(operands) != len(self._changing):
            raise ArgumentError(
                f"{len(operands)} operands given, {len(self._changing)} expected",
                where="run",
                nearest=f"Expected: {', '.join(self._changing) or 'none'}",
            )
        given = {**self.kept, **dict(zip(self._changing, operands, strict=True))}
        ordered = (given[name] for name in self._order)
        return self.kernel(*ordered, out=out, stream=stream, workspace=workspace)

    def workspace(self, sizes: dict[str, int] | None = None) -> int:
        """Bytes of device memory that a run takes beside its arrays; as for `Kernel`."""
        return self.kernel.workspace(sizes)
