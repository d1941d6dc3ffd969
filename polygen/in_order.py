"""Programs that no single kernel runs: as several kernels, one after another.

Every kernel is one of its own, chosen, proved and generated like any other. The first of them has
as many of the program's products as one kernel takes; what is left goes the same way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from polygen.chained import numbered, with_numbers
from polygen.errors import ScheduleError, UnsupportedProgram
from polygen.faster_apart import faster_apart
from polygen.faster_split import split_sum
from polygen.frontend.closure import multiplies_sums
from polygen.frontend.indices import named_in, size_value
from polygen.frontend.pitches import pitch_of, sizes_in
from polygen.frontend.program import Extent, InOrder, Program, Tensor
from polygen.hardware.device import Device
from polygen.kernel import Kernel
from polygen.kernel_sequence import AnyKernel, KernelSequence
from polygen.rewrite.axes_of_one import without_axes_of_one
from polygen.rewrite.cuts import cuts
from polygen.rewrite.folds_alone import walks_behind_zeros, with_products
from polygen.runtime.sequence import pitch
from polygen.schedule.realign import row_multiple

# Makes a kernel of a program for sizes: of its symbolic dims, and pitches of its arrays.
Make = Callable[[Program, dict[str, int]], Kernel]


def in_order(
    program: Program,
    sizes: Mapping[str, int],
    device: Device,
    make: Make,
    whole: Callable[[], Kernel],
) -> AnyKernel:
    """The kernel of a program, or several kernels in their order.

    Args:
        program: with names for the sizes that calls may change.
        sizes: of these, as far as they are known, and pitches.
        device: the target.
        make: makes the kernel of a part.
        whole: makes that of the whole.

    Raises:
        PolygenError: no kernel can be made of it, nor of its parts; what is said is of the whole.
    """
    if program.invariant or program.in_place:  # bits that sizes have no part in, results in place
        return whole()
    split = split_sum(program, sizes, device)
    ways = _ways(split.parts, split.folds) if split is not None else []
    for weighed, one in itertools.product((True, False), ways):
        made = _made_of(one, sizes, device, make, weighed=weighed, single=True)
        if made and split is not None:
            kernels, lost = made
            fixed = numbered(split.whole, lost)
            return KernelSequence(fixed, kernels) if len(kernels) > 1 else kernels[0]
    several = len(program.contractions) > 1
    if several and multiplies_sums(program) and faster_apart(program, sizes, device):
        found = cut_into_kernels(program, sizes, device, make)
        if found is not None:
            return found
    try:
        return whole()
    except (UnsupportedProgram, ScheduleError) as reason:
        if reason.unknown:  # with numbers there may be one kernel
            raise
        found = cut_into_kernels(program, sizes, device, make)
        if found is None:
            raise
        return found


def cut_into_kernels(
    program: Program, sizes: Mapping[str, int], device: Device, make: Make
) -> KernelSequence | None:
    """Several kernels in their order; None: there is no way to make them. As for `in_order`.

    Folds get products of their own where no cut leaves them beside others.
    """
    found = [one for one in (program, *_ways(program)) if len(one.contractions) > 1]
    # A chain faster as two, and elements gone through twice, may be one kernel where all else
    # fails.
    for weighed, one in ((weighed, one) for weighed in (True, False) for one in found):
        made = _made_of(one, sizes, device, make, weighed=weighed)
        if made:
            kernels, lost = made
            return KernelSequence(numbered(program, lost), kernels)
    return None


def _made_of(
    program: Program,
    sizes: Mapping[str, int],
    device: Device,
    make: Make,
    *,
    weighed: bool,
    single: bool = False,
) -> tuple[tuple[Kernel, ...], dict[str, int]] | None:
    """The kernels of a program, and the sizes that they have as numbers: those that a part computes
    with, and has no array of; None if there is no way to make them.

    Args:
        program: the whole.
        sizes: as far as they are known, and pitches.
        device: the target.
        make: makes the kernel of a part.
        weighed: as for `_Cutting`.
        single: whether one kernel will do.
    """
    fixed: dict[str, int] = {}
    while True:
        cutting = _Cutting(numbered(program, fixed), device, make, weighed=weighed)
        kernels = cutting.kernels(sizes) or (cutting.one(sizes) if single else ())
        wanted = cutting.lost_speed if kernels else cutting.lost
        lost = {name: sizes[name] for name in wanted if name in sizes}
        if not lost:
            return (kernels, fixed) if kernels else None
        fixed |= lost


def _ways(program: Program, also: Collection[str] = ()) -> list[Program]:
    """A program with products of zeros in front of folds, and in front of some in any case."""
    choices = itertools.product((False, True), (False, True))
    made = (with_products(program, every=a, apart=b, also=also) for a, b in choices)
    return list(dict.fromkeys(one for one in made if one is not None))


class _Cutting:
    """Makes the kernels of a program that is more than one.

    Args:
        program: the whole.
        device: the target.
        make: makes the kernel of a part.
        weighed: whether chains that are predicted faster apart are two kernels, and elements
            that are only folded are of another kernel than what uses the results.
    """

    def __init__(self, program: Program, device: Device, make: Make, *, weighed: bool) -> None:
        self._whole, self._device, self._make = program, device, make
        self._weighed = weighed
        self._hopeless: set[frozenset[str]] = set()  # what is left, by the names of its values
        # Sizes that parts compute with, and have no array of; those of parts that would be faster.
        self.lost: set[str] = set()
        self.lost_speed: set[str] = set()
        self._splitting = False

    def kernels(self, sizes: Mapping[str, int]) -> tuple[Kernel, ...]:
        """The kernels; () if there is no way to make them."""
        return self._cut(without_axes_of_one(self._whole), (), sizes)

    def one(self, sizes: Mapping[str, int]) -> tuple[Kernel, ...]:
        """The only kernel; () if there is none."""
        found = self._made(self._whole, 1, sizes, (), alone=True)
        return () if found is None else (found,)

    def _cut(
        self, program: Program, before: tuple[Kernel, ...], sizes: Mapping[str, int]
    ) -> tuple[Kernel, ...]:
        """All kernels, of which these are there; what is left is more than one."""
        named = {tensor.name for one in before for tensor in one.program.outputs}
        left = frozenset(one.write.name for one in program.statements)
        if left in self._hopeless:
            return ()
        for cut in cuts(program, sizes, named | set(self._whole.tensors)):
            apart = {t.name: pitch(t, sizes) for t in cut.between}
            known = {**sizes, **{pitch_of(name): step for name, step in apart.items() if step}}
            now, later = (_with_ragged(one, cut.between, sizes) for one in (cut.before, cut.after))
            done = self._in_parts(now, before, known, cut.between)
            if not done:
                first = self._made(now, len(before) + 1, known, cut.between)
                if first is None:
                    continue
                done = (*before, first)
            found = self._in_parts(later, done, known)
            last = None if found else self._made(later, len(done) + 1, known, ())
            if not found:
                found = (*done, last) if last is not None else self._cut(later, done, known)
            if found:
                return found
        self._hopeless.add(left)
        return ()

    def _in_parts(
        self,
        program: Program,
        before: tuple[Kernel, ...],
        sizes: Mapping[str, int],
        between: Sequence[Tensor] = (),
    ) -> tuple[Kernel, ...]:
        """All kernels where a part is faster with a fold for its sum, or with its sum in parts; ()
        where it is not.
        """
        split = split_sum(program, sizes, self._device)
        for one in [] if split is None else _ways(split.parts, split.folds):
            outer, self._splitting = self._splitting, True
            found = self._cut(one, before, sizes)
            if not found and len(one.contractions) == 1:
                last = self._made(one, len(before) + 1, sizes, between)
                found = () if last is None else (*before, last)
            self._splitting = outer
            if found:
                return found
        return ()

    def _made(
        self,
        program: Program,
        number: int,
        sizes: Mapping[str, int],
        between: Sequence[Tensor],
        *,
        alone: bool = False,
    ) -> Kernel | None:
        """The kernel of a part; None if there is none."""
        order = None if alone else self._order(program, number)
        names = ", ".join(tensor.name for tensor in between)
        source = f"{program.source}, as far as {names}" if between else program.source
        program = replace(
            program, name=f"{self._whole.name}_{number}", source=source, in_order=order
        )
        if self._weighed and walks_behind_zeros(program):
            return None
        lost = _computed_with(program) - {*program.sizes}
        if lost:
            self.lost |= lost
            self.lost_speed |= lost if self._splitting else set()
            return None
        chain = self._weighed and multiplies_sums(program)
        if chain and faster_apart(program, sizes, self._device):
            return None
        try:
            program = with_numbers(program, sizes)
            return self._make(program, sizes_in(program, sizes))
        except (UnsupportedProgram, ScheduleError):
            return None

    def _order(self, program: Program, number: int) -> InOrder:
        """The place of a part: what it reads of the whole's inputs no kernel of them writes."""
        if number == 1:
            return InOrder(first=True)
        given = {one.name for one in self._whole.inputs}
        return InOrder(settled=tuple(t.name for t in program.inputs if t.name in given))


def _computed_with(program: Program) -> set[str]:
    """The sizes whose numbers are terms or factors."""
    read = [one.args for one in program.pointwise] + [one.args for one in program.folds]
    dims = (dim for args in read for arg in args if isinstance(arg, Extent) for dim in arg.dims)
    return {name for dim in dims for name in named_in(dim)}


def _with_ragged(
    program: Program, between: tuple[Tensor, ...], sizes: Mapping[str, int]
) -> Program:
    """A part whose arrays between kernels have rows that begin at multiples of what the copy engine
    takes, and end where they do.
    """
    names = {tensor.name for tensor in between}

    def lying(tensor: Tensor) -> Tensor:
        if tensor.name not in names:
            return tensor
        row = tensor.dims[-1] if tensor.dims else 1
        known = all(name in sizes for name in named_in(row))
        length = size_value(row, sizes) if known else 0
        return replace(tensor, ragged=length * tensor.dtype.bytes % row_multiple() != 0)

    return replace(
        program,
        inputs=tuple(map(lying, program.inputs)),
        outputs=tuple(map(lying, program.outputs)),
    )
