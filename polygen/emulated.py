"""Runs a kernel's compiled PTX on NumPy arrays: the launches that a call makes, one by one.

1. The arrays are bound as those of a call are, and outputs start as NaN.
2. Where operands are copied or made first, that kernel runs before the other, into a workspace
   whose bytes are NaN; the other one gets the copies for the arrays, and what was made.
3. Where results are folded, the launch that follows runs on what the kernel has left; the parts
   between them start as NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polygen.brief import Brief
from polygen.emit.source import Argument, Following, KernelSource
from polygen.errors import ArgumentError, VerifyError
from polygen.frontend.dtypes import TF32
from polygen.frontend.indices import size_value
from polygen.frontend.program import Program, Tensor
from polygen.machine import Behind, Launch, Link, Report, TensorMap, chain
from polygen.machine.memory import place_in_owner
from polygen.machine.run import arrays_of
from polygen.runtime.arrays import ArrayView, in_order
from polygen.runtime.binding import Binding, bind, check_overlap, misaligned
from polygen.schedule import realign

Array = np.ndarray[Any, Any]

_NO_RESULT = 0xA5  # bytes of an output that holds no floats, before it is written
_NAN_BYTE = 0xFF  # of it NaNs of all element types are made
_ARRAYS = ("pointer", "map", "workspace")  # arguments that a report has an array of


@dataclass(frozen=True, slots=True, repr=False)
class Emulation(Brief):
    """One run on the PTX machine."""

    results: Any  # one array, or a tuple
    report: Report

    def __str__(self) -> str:
        return str(self.report)


def launch_of(
    program: Program, source: KernelSource, operands: tuple[Any, ...], out: tuple[Array, ...] = ()
) -> Launch:
    """The kernel's own launch among those of `launches_of`; arguments as there."""
    launches = launches_of(program, source, operands, out)
    return next(one for one in launches if one.entry == source.entry)


def launches_of(
    program: Program, source: KernelSource, operands: tuple[Any, ...], out: tuple[Array, ...] = ()
) -> tuple[Launch, ...]:
    """The launches of a call on NumPy arrays, with poisoned outputs.

    Arrays lie as far from multiples of 16 bytes as from the beginning of the array that they are
    views of, which NumPy has at such a multiple.

    Args:
        program: what the kernel computes.
        source: its argument layout and launch shape.
        operands: arrays and numbers in call order; any strides a kernel takes. Those that the
            kernel stores into are not changed.
        out: arrays that lie as the outputs of the call do, in order, which are not changed either;
            (): outputs have no gaps.

    Raises:
        ArgumentError: the arrays do not fit the kernel.
        AlignmentMismatch: they fit another variant of it.

    Returns:
        The launch of the copy, if the kernel has one; that of the kernel; and the one that makes
        results of parts of folds, if it has any. What one writes to are arrays that the next reads.
    """
    wanted = program.operands
    if len(operands) != len(wanted):
        names = ", ".join(t.name for t in wanted)
        raise ArgumentError(f"{len(operands)} operands, expected {len(wanted)}: {names}")
    given = {t.name: value for t, value in zip(wanted, operands, strict=True)}
    arrays = {t.name: _stored(t, given[t.name]) for t in wanted if t.dims}
    tensors = tuple(t for t in program.inputs if t.dims)
    if out and len(out) != len(program.outputs):
        names = ", ".join(t.name for t in program.outputs)
        raise ArgumentError(f"{len(out)} outputs given, {len(program.outputs)} expected: {names}")
    for tensor, array in zip(program.outputs, out, strict=bool(out)):
        arrays[tensor.name] = _typed(tensor, np.asarray(array))
    bound = (*tensors, *program.outputs) if program.in_place or out else tensors
    binding = bind(source, tensors, program.outputs, [view_of(arrays[t.name], t) for t in bound])
    everything = (*tensors, *program.outputs)
    if out:
        places = [arrays[t.name].ctypes.data for t in everything]
        check_overlap(binding, everything, places)
    starts = [place_in_owner(arrays[t.name]) if t.name in arrays else 0 for t in everything]
    if any(
        (start | bits) & mask
        for start, bits, mask in zip(starts, binding.stride_bits, binding.masks, strict=True)
    ):
        raise misaligned(binding, everything, starts)
    for tensor, shape in zip(program.outputs, binding.shapes, strict=True):
        if tensor.name not in arrays:
            arrays[tensor.name] = poisoned(shape, tensor)
    blocks, leading, copies, wholes = _copying(source, binding, tensors, arrays)
    given_first, arrays = arrays | wholes, arrays | copies
    arguments: list[Any] = []
    before: tuple[Launch, ...] = ()
    made = () if source.realign is None else source.realign.made
    dtypes = {tensor.name: tensor.dtype for tensor in (*program.tensors.values(), *made)}
    kept: dict[str, Array] = {}  # matrices of the workspace
    for argument, constant in zip(source.arguments, binding.constants, strict=True):
        if argument.kind == "pointer":
            arguments.append(arrays[argument.tensor])
        elif argument.kind == "workspace":
            assert source.following is not None
            real = source.following.real
            room = source.following.workspace(dict(binding.sizes))
            workspace = np.full(room // real.bytes, np.nan, real.numpy)
            arguments.append(workspace)
            kept = _kept(source.following, workspace, dict(binding.sizes))
        elif argument.kind == "scalar":
            arguments.append(np.float32(given[argument.tensor]))
        elif argument.kind == "map":
            shown = arrays[argument.tensor] if argument.tensor in arrays else kept[argument.tensor]
            whole = workspace if argument.tensor in kept else shown
            part = _part(argument, shown, dict(binding.sizes))
            kind = "tf32" if dtypes.get(argument.tensor) == TF32 else ""
            arguments.append(
                TensorMap(
                    part,
                    argument.box,
                    argument.swizzle,
                    kind=kind,
                    whole=whole,
                    every=argument.every,
                )
            )
        else:
            arguments.append(np.int32(constant or 0))
    if source.realign is not None:
        pairs = zip(source.arguments, arguments, binding.given, strict=True)
        if made:  # of arrays as the caller has them; what is made, in whole chunks
            leading += [
                given_first[one.tensor]
                if one.kind == "pointer"
                else value
                if number is None
                else np.int32(number)
                for one, value, number in pairs
                if one.kind != "map"
            ]
        threads = (source.realign.threads, 1, 1)
        before = (Launch((blocks, 1, 1), threads, 0, tuple(leading), source.realign.entry),)
    found, following = source.launch, source.following
    block = (found.threads, 1, 1)
    own = Launch(binding.grid, block, found.shared_bytes, tuple(arguments), source.entry)
    if following is None:
        return (*before, own)
    grid = (following.grid(dict(binding.sizes)), 1, 1)
    last = Launch(grid, (following.threads, 1, 1), 0, own.arguments, following.entry)
    return (*before, own, last)


def _copying(
    source: KernelSource, binding: Binding, tensors: tuple[Tensor, ...], arrays: dict[str, Array]
) -> tuple[int, list[Any], dict[str, Array], dict[str, Array]]:
    """Of the launch before the kernel: blocks, its own arguments, and what it fills.

    That is an array for each that is copied or made, as the kernel has it; and of what is made, as
    it is written, in whole chunks.
    """
    if source.realign is None:
        return 0, [], {}, {}
    sizes, blocks = dict(binding.sizes), 0
    arguments: list[Any] = []
    copies: dict[str, Array] = {}
    wholes: dict[str, Array] = {}
    for at, steps in zip(binding.copied, binding.steps, strict=True):
        tensor, array = tensors[at], arrays[tensors[at].name]
        copies[tensor.name], whole = _room(tensor, sizes)
        numbers = realign.constants(tensor, sizes, steps)
        blocks += numbers[0]
        arguments += [array, whole, *map(np.int32, numbers)]
    for tensor in source.realign.made:
        copies[tensor.name], wholes[tensor.name] = _room(tensor, sizes)
        own = source.realign.blocks(tensor, sizes)
        blocks += own
        arguments.append(np.int32(own))
    return blocks, arguments, copies, wholes


def _room(tensor: Tensor, sizes: dict[str, int]) -> tuple[Array, Array]:
    """An array of the workspace, full of NaN, and the same with rows that end with a chunk."""
    room = np.full(realign.rows(tensor, sizes) * realign.pitch(tensor, sizes), _NAN_BYTE, "u1")
    bytes_apart = [step * tensor.dtype.bytes for step in realign.strides(tensor, sizes)]
    shape = tensor.shape(sizes)
    kind = tensor.dtype.numpy
    made = np.ndarray(shape, kind, room, strides=bytes_apart)
    return made, np.ndarray(_in_chunks(tensor, made), kind, room, strides=bytes_apart)


def _kept(following: Following, workspace: Array, sizes: dict[str, int]) -> dict[str, Array]:
    """The matrices that a kernel keeps in its workspace, by name, without what lengthens rows."""
    found, room = {}, workspace.view(np.uint8)
    for one in following.kept:
        start, (*_, row) = following.start(one, sizes), one.tensor.dims or (1,)
        whole = room[start : start + one.bytes(sizes)].view(one.tensor.dtype.numpy)
        length = size_value(row, sizes)
        found[one.name] = whole.reshape(one.shape(sizes))[..., :length]
    return found


def _part(argument: Argument, array: Array, sizes: dict[str, int]) -> Array:
    """What a tensor map shows of an array, its axes slowest first."""
    extents = [size_value(one.extent, sizes)
               for one in argument.axes]  # fmt: skip
    first, last, steps = [0] * array.ndim, [0] * array.ndim, []
    for one, extent in zip(argument.axes, extents, strict=True):
        if one.axis is not None:
            first[one.axis] += one.start
            last[one.axis] += one.start + one.step * (extent - 1)
        steps.append(0 if one.axis is None else one.step * array.strides[one.axis])
    if any(end >= count for end, count in zip(last, array.shape, strict=True)):
        raise VerifyError(
            f"{argument.name} shows {extents} of {argument.tensor}, which has {list(array.shape)}",
            where="emulate",
        )
    start = array[tuple(slice(place, None) for place in first)]
    bits = start.view(f"u{array.itemsize}")  # not all of ml_dtypes' types have a name for NumPy
    return np.lib.stride_tricks.as_strided(bits, extents, steps).view(array.dtype)


def emulate(
    program: Program,
    source: KernelSource,
    ptx: str,
    operands: tuple[Any, ...],
    out: tuple[Array, ...] = (),
    clusters: tuple[int, ...] = (),
    **options: Any,
) -> Emulation:
    """Run compiled PTX on NumPy arrays.

    Args:
        program: what the kernel computes.
        source: its argument layout and launch shape.
        ptx: what to run.
        operands: arrays and numbers in call order; any strides a kernel takes.
        out: as for `launches_of`.
        clusters: of the kernel's own launch, that run; (): all.
        options: for `polygen.machine.run`.

    Raises:
        ArgumentError: the operands do not fit the kernel.
    """
    launches, dependent = launches_of(program, source, operands, out), source.launch.dependent
    own = next(at for at, one in enumerate(launches) if one.entry == source.entry)
    launches = (*launches[:own], replace(launches[own], runs=clusters), *launches[own + 1 :])
    known = arrays_of(launches[own])
    passed = [argument for argument in source.arguments if argument.kind in _ARRAYS]
    results = {tensor.name for tensor in program.outputs}
    left = [  # what the launch that follows finds
        array
        for argument, array in zip(passed, known, strict=True)
        if argument.kind == "workspace" or argument.tensor in results
    ]
    first = source.realign is not None and source.realign.dependent
    links = [
        Link(ptx, one, tuple(a for a in arrays_of(one) if _among(a, known)), first)
        for one in launches[:own]
    ]
    links.append(Link(ptx, launches[own], tuple(left) if launches[own + 1 :] else (), dependent))
    early = source.following is not None and source.following.dependent
    links += [Link(ptx, one, (), early) for one in launches[own + 1 :]]
    # Nobody knows what ran before: it may have used all arrays. But of what is settled it is known
    # that nobody still writes it.
    order = program.in_order
    named = () if order is None else order.settled
    there = [a for argument, a in zip(passed, known, strict=True) if argument.tensor in named]
    every = [a for link in links for a in arrays_of(link.launch)]
    everything = Behind(tuple(a for a in every if not _among(a, there)), tuple(there))
    report = joined(chain(links, everything, **options))
    after = dict(zip([a.tensor for a in passed], report.arrays, strict=True))
    found = tuple(after[t.name] for t in program.outputs)
    return Emulation(found[0] if len(found) == 1 else found, report)


def _in_chunks(tensor: Tensor, array: Array) -> tuple[int, ...]:
    """The shape of what a copy fills: rows end with a chunk."""
    each, row = realign.row_multiple() // array.itemsize, tensor.order[-1]
    shape = list(array.shape)
    shape[row] = -(-shape[row] // each) * each
    return tuple(shape)


def _among(array: Array, others: list[Array]) -> bool:
    return any(np.may_share_memory(array, one) for one in others)


def joined(reports: tuple[Report, ...]) -> Report:
    """The last report, with what was found and counted before."""
    return replace(
        reports[-1],
        findings=tuple(finding for one in reports for finding in one.findings),
        profile=tuple(row for one in reports for row in one.profile),
        instructions=sum(one.instructions for one in reports),
        notes=tuple(dict.fromkeys(note for one in reports for note in one.notes)),
    )


def _typed(tensor: Tensor, array: Array) -> Array:
    wanted = tensor.dtype.numpy
    if array.dtype.kind == "O":
        raise ArgumentError(
            f"{tensor.name} is no array of numbers", nearest=f"Pass a NumPy array of {tensor.dtype}"
        )
    if array.dtype != wanted:
        raise ArgumentError(
            f"{tensor.name} holds {array.dtype}, the kernel takes {tensor.dtype}",
            nearest=f'{tensor.name}.astype("{wanted.name}")',
        )
    return array


def _stored(tensor: Tensor, value: Any) -> Array:
    array = _typed(tensor, np.asarray(value))
    if array.ndim != len(tensor.order) or not array.flags.c_contiguous:
        return array  # as it is, for the binding to take or refuse
    return in_order(array, tensor.order)


def view_of(array: Array, tensor: Tensor) -> ArrayView:
    """A NumPy array as one that a kernel is bound to."""
    steps = tuple(step // array.itemsize for step in array.strides)
    return ArrayView(0, array.shape, steps, tensor.dtype, 0, "numpy")


def poisoned(shape: tuple[int, ...], tensor: Tensor) -> Array:
    """An output filled with NaN, or what is no result: an element never written shows."""
    kind = tensor.dtype.numpy
    if tensor.dtype.kind == "float":
        poisoned = np.full(shape, np.nan, kind)
    else:
        poisoned = np.full((*shape, kind.itemsize), _NO_RESULT, np.uint8).view(kind)[..., 0]
    return in_order(poisoned, tensor.order)
