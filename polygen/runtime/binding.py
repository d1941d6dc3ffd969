"""Array views -> `Binding`: everything of a launch that does not depend on addresses and scalars.

1. Each view must fit its declared tensor: dtype, rank, device, no negative strides.
2. Symbolic dims get their sizes from the shapes; every tensor that names a dim must agree.
3. The declared contiguous axis must have stride 1; an axis of extent 1 may have any stride, and the
   kernel is given 0 for it, so that no stray stride harms alignment or range.
4. What else the kernel asks of its arguments is the list of `polygen.emit.conditions`; those about
   addresses and steps are left to each launch, as masks.
5. Constants (sizes, strides), grid, the bits that strides contribute to alignment, the bytes each
   array spans, and tensor maps but for their addresses follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polygen.emit.conditions import Arrays
from polygen.emit.source import KernelSource
from polygen.errors import AlignmentMismatch, ArgumentError
from polygen.frontend.program import Tensor
from polygen.runtime.arrays import ArrayView, accepts
from polygen.runtime.conditions import check_conditions, stride_bits
from polygen.runtime.dlpack import compact
from polygen.runtime.tensormaps import MapLayout, map_layout
from polygen.schedule import realign

LARGEST_ALIGNMENT = 16  # bytes: the widest vector access
_LARGEST_STEP = 2**31 - 1  # kernels count in s32
# Conditions by what they need; a launch checks the others ("step", "address", "apart") itself.
_OF_SIZES = ("size", "cover", "grid", "work", "row")
_OF_STEPS = ("forward", "distinct")


@dataclass(frozen=True, slots=True)
class Binding:
    """A launch without its addresses and scalars; tensors in order: inputs, then outputs.

    Attributes:
        sizes: the symbolic dims.
        shapes: of the outputs.
        constants: the value of each "size" and "stride" argument; None for the other kinds.
        grid: blocks in x, y, z.
        device: the device of all arrays.
        masks: per tensor, the address bits that must be zero.
        stride_bits: per tensor, the union of the bits of its strides in bytes.
        spans: per tensor, bytes from its first to behind its last element.
        apart: positions of tensors that must share no memory, the written one first.
        maps: per "map" argument, the position of its tensor and its layout.
        copied: of a kernel with a launch before it, per array that is copied, its position. What is
            made there is behind the arrays of the call, as it lies in the workspace.
        steps: of these, as the caller has them, elements per step along each axis.
        given: `constants`, with the steps of all arrays as the caller has them.
    """

    sizes: tuple[tuple[str, int], ...]
    shapes: tuple[tuple[int, ...], ...]
    constants: tuple[int | None, ...]
    grid: tuple[int, int, int]
    device: int
    masks: tuple[int, ...]
    stride_bits: tuple[int, ...]
    spans: tuple[int, ...]
    apart: tuple[tuple[int, int], ...]
    maps: tuple[tuple[int, MapLayout], ...]
    copied: tuple[int, ...] = ()
    steps: tuple[tuple[int, ...], ...] = ()
    given: tuple[int | None, ...] = ()


def bind(
    source: KernelSource,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    views: Sequence[ArrayView],
) -> Binding:
    """Fit arrays to a kernel.

    Args:
        source: the kernel.
        inputs: its array inputs (no scalars).
        outputs: its outputs.
        views: of the inputs; or of the inputs and the outputs. Without views, outputs are taken to
            be new arrays without gaps.

    Returns:
        The binding.

    Raises:
        ArgumentError: an array does not fit; the message names it.
    """
    tensors = (*inputs, *outputs)
    sizes = bound_sizes(tensors, views, len(inputs))
    made = source.realign.made if source.realign else ()
    every = (*tensors, *made)
    names = [tensor.name for tensor in every]
    declared = dict(zip(names, every, strict=True))
    check_conditions(source, _OF_SIZES, Arrays(declared, sizes, {}, {}))
    device = _device(tensors, views)
    shapes = [tensor.shape(sizes) for tensor in tensors]
    strides = []
    for position, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
        order = tensor.order or tuple(range(len(shape)))
        given = views[position].strides if position < len(views) else _fresh_strides(shape, order)
        used = tuple(0 if size == 1 else step for size, step in zip(shape, given, strict=True))
        _check_strides(tensor, shape, used, order)
        strides.append(used)
    required = dict(source.alignment)
    items = [tensor.dtype.bytes for tensor in tensors]
    copied = tuple(map(names.index, source.realign.names)) if source.realign else ()
    # As the kernel is given them.
    inner = [*strides, *(realign.strides(one, sizes) for one in made)]
    steps = dict(zip(names, inner, strict=True))
    check_conditions(source, _OF_STEPS, Arrays(declared, sizes, steps, {}))
    for at in (*copied, *range(len(tensors), len(every))):
        required.pop(names[at], None)
        inner[at] = realign.strides(every[at], sizes)
        shape = every[at].shape(sizes)
        _check_strides(every[at], shape, inner[at], every[at].order)
        alone = zip(shape, inner[at], strict=True)
        inner[at] = tuple(0 if size == 1 else step for size, step in alone)
    inner_steps = dict(zip(names, inner, strict=True))
    own_steps = inner_steps | dict(zip(names, strides, strict=False))
    return Binding(
        sizes=tuple(sizes.items()),
        shapes=tuple(shapes[len(inputs) :]),
        constants=_constants(source, sizes, inner_steps),
        grid=source.launch.grid(sizes),
        device=device,
        masks=tuple(
            max(required.get(tensor.name, item), item) - 1
            for tensor, item in zip(tensors, items, strict=True)
        ),
        stride_bits=tuple(
            stride_bits(tensor, used) for tensor, used in zip(tensors, strides, strict=True)
        ),
        spans=tuple(
            (1 + sum((size - 1) * step for size, step in zip(shape, used, strict=True))) * item
            for shape, used, item in zip(shapes, strides, items, strict=True)
        ),
        apart=tuple(
            (names.index(one.tensor), names.index(one.other))
            for one in source.conditions
            if one.kind == "apart" and declared[one.other] not in made  # in memory of its own
        ),
        maps=_maps(source, every, inner, sizes),
        copied=copied,
        steps=tuple(strides[at] for at in copied),
        given=_constants(source, sizes, own_steps),
    )


def _maps(
    source: KernelSource,
    arrays: Sequence[Tensor],
    steps: Sequence[Sequence[int]],
    sizes: Mapping[str, int],
) -> tuple[tuple[int, MapLayout], ...]:
    """Per "map" argument, the position of its array and its layout.

    The workspace is behind the arrays of a call, and matrices that are kept there are parts of it.
    """
    names, after = [one.name for one in arrays], source.following
    kept = {one.name: one for one in after.kept} if after is not None else {}
    found = []
    for argument in source.arguments:
        if argument.kind != "map":
            continue
        if after is not None and argument.tensor in kept:
            rows = kept[argument.tensor]
            layout = map_layout(argument, rows.tensor, sizes, compact(rows.shape(sizes)))
            start = layout.start + after.start(rows, sizes)
            found.append((len(arrays), replace(layout, start=start)))
            continue
        at = names.index(argument.tensor)
        found.append((at, map_layout(argument, arrays[at], sizes, steps[at])))
    return tuple(found)


def _fresh_strides(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    stored = compact(tuple(shape[axis] for axis in order))
    return tuple(stored[order.index(axis)] for axis in range(len(shape)))


def _check_view(tensor: Tensor, view: ArrayView, *, writes: bool) -> None:
    if not accepts(tensor.dtype, view.dtype):
        raise ArgumentError(
            f"the array holds {view.dtype}",
            where=tensor.name,
            why=f"the kernel was compiled for {tensor}",
            nearest=f"Convert it to {tensor.dtype}, or compile for {view.dtype}",
        )
    if len(view.shape) != len(tensor.dims):
        raise ArgumentError(
            f"the array has {len(view.shape)} axes",
            where=tensor.name,
            why=f"the kernel was compiled for {tensor}",
            nearest=f"Reshape it to {len(tensor.dims)} axes",
        )
    if writes and view.readonly:
        raise ArgumentError(
            "the output array is read-only",
            where=tensor.name,
            why=f"{view.library} arrays of this kind never change",
            nearest="Leave out= away, or pass an array of a library whose arrays change",
        )


def bound_sizes(
    tensors: Sequence[Tensor], views: Sequence[ArrayView], read: int | None = None
) -> dict[str, int]:
    """Sizes of the symbolic dims; every mention of a dim must agree.

    Args:
        tensors: what is wanted.
        views: of as many arrays, or of the first of these.
        read: how many are read, and not written; None: all.

    Raises:
        ArgumentError: an array does not fit; the message names it.
    """
    for position, (tensor, view) in enumerate(zip(tensors, views, strict=False)):
        _check_view(tensor, view, writes=read is not None and position >= read)
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    for tensor, view in zip(tensors, views, strict=False):
        for axis, (dim, size) in enumerate(zip(tensor.dims, view.shape, strict=True)):
            where = f"{tensor.name}.shape[{axis}]"
            if isinstance(dim, int):
                if dim != size:
                    raise ArgumentError(
                        f"the size is {size}, the kernel was compiled for {dim}",
                        where=where,
                        why="it is a number in the signature, or one that the kernel needs and "
                        "took of sizes=",
                        nearest="Compile for this size, or with a symbolic dim where the kernel "
                        "needs no number",
                    )
            elif sizes.setdefault(dim, size) != size:
                raise ArgumentError(
                    f"{where} = {size}, but {origin[dim]} = {sizes[dim]}",
                    where=dim,
                    why=f"both are the dim {dim}",
                )
            else:
                origin.setdefault(str(dim), where)
    return sizes


def _device(tensors: Sequence[Tensor], views: Sequence[ArrayView]) -> int:
    first = views[0]
    for tensor, view in zip(tensors, views, strict=False):
        if view.device != first.device:
            raise ArgumentError(
                f"{tensor.name} is on device {view.device}, "
                f"but {tensors[0].name} is on device {first.device}",
                why="one kernel runs on one device",
                nearest=f"Move {tensor.name} to device {first.device}",
            )
    return first.device


def _check_strides(
    tensor: Tensor,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    order: tuple[int, ...],
) -> None:
    """Refuse what a kernel has no parameter for: other steps than 1, or too large ones."""
    if order and shape[order[-1]] > 1 and strides[order[-1]] != 1:
        raise ArgumentError(
            f"axis {order[-1]} has stride {strides[order[-1]]} elements, not 1",
            where=tensor.name,
            why=f"the kernel was compiled for {tensor}, whose neighbours there are adjacent",
            nearest="Pass a contiguous copy: x.copy() in CuPy, x.contiguous() in PyTorch",
        )
    if max(strides, default=0) > _LARGEST_STEP:
        raise ArgumentError(
            f"a stride of {max(strides)} elements",
            where=tensor.name,
            why=f"the kernel counts strides in s32, up to {_LARGEST_STEP}",
            nearest="Pass a contiguous copy, or split the array",
        )


def _constants(
    source: KernelSource, sizes: Mapping[str, int], strides: Mapping[str, tuple[int, ...]]
) -> tuple[int | None, ...]:
    values: list[int | None] = []
    for argument in source.arguments:
        if argument.kind == "size":
            values.append(sizes[argument.dim])
        elif argument.kind == "stride":
            values.append(strides[argument.tensor][argument.axis])
        else:
            values.append(None)
    return tuple(values)


def alignments(binding: Binding, pointers: Sequence[int]) -> tuple[int, ...]:
    """Per tensor, the power of two (at most 16) that divides its address and its strides."""
    found = []
    for pointer, bits in zip(pointers, binding.stride_bits, strict=True):
        union = pointer | bits | LARGEST_ALIGNMENT
        found.append(union & -union)
    return tuple(found)


def misaligned(
    binding: Binding, tensors: Sequence[Tensor], pointers: Sequence[int]
) -> AlignmentMismatch:
    """Word the error for arrays that are less aligned than the kernel needs."""
    found = alignments(binding, pointers)
    position = next(n for n, mask in enumerate(binding.masks) if found[n] <= mask)
    name, need = tensors[position].name, binding.masks[position] + 1
    error = AlignmentMismatch(
        f"address and strides are multiples of {found[position]} bytes only",
        where=name,
        why=f"this kernel was compiled for multiples of {need}",
        nearest=f"Compile a variant for {found[position]} bytes, or pass an aligned copy of {name}",
    )
    error.alignment = tuple((t.name, bytes_) for t, bytes_ in zip(tensors, found, strict=True))
    return error


def check_overlap(binding: Binding, tensors: Sequence[Tensor], pointers: Sequence[int]) -> None:
    """Refuse outputs whose memory another array of the call uses.

    Args:
        binding: of the call.
        tensors: inputs, then outputs.
        pointers: their addresses.

    Raises:
        ArgumentError: blocks run in any order, so that one would read what another has written.
    """
    spans = binding.spans
    for written, other in binding.apart:
        start, place = pointers[written], pointers[other]
        if place < start + spans[written] and start < place + spans[other]:
            raise ArgumentError(
                f"{tensors[written].name} and {tensors[other].name} overlap in memory",
                where="out",
                why="blocks run in any order: one would overwrite what another still reads",
                nearest="Pass an output with memory of its own, or leave out= away",
            )
