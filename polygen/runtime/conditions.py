"""Conditions of a kernel's alignment class on arrays, and what is said where one does not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polygen.emit.conditions import Arrays, Condition, holds, most_blocks
from polygen.emit.source import KernelSource
from polygen.errors import AlignmentMismatch, ArgumentError
from polygen.frontend.indices import size_value
from polygen.frontend.program import Tensor
from polygen.frontend.shapes import LARGEST_SIZE


def check_conditions(source: KernelSource, kinds: Sequence[str], arrays: Arrays) -> None:
    """Refuse arrays that break a condition of the kinds.

    Raises:
        AlignmentMismatch: rows end inside a copy: another variant of the kernel takes them.
        ArgumentError: no variant takes them.
    """
    broken = [
        one
        for one in source.conditions
        if one.kind in kinds and not holds(one, source.launch, arrays)
    ]
    others = [one for one in broken if one.kind != "row"]
    if others:
        raise _refused(others[0], source, arrays)
    if broken:
        raise _ragged(broken, source, arrays)


def _refused(one: Condition, source: KernelSource, arrays: Arrays) -> ArgumentError:
    if one.kind == "size":
        places = (
            f"{name}.shape[{tensor.dims.index(one.dim)}]"
            for name, tensor in arrays.tensors.items()
            if one.dim in tensor.dims
        )
        return ArgumentError(
            f"the size is {arrays.extent(one.dim)}",
            where=next(places),
            why="a kernel needs at least one element and counts in 32 bits",
            nearest=f"Legal: 1 to {one.largest}",
        )
    if one.kind == "cover":
        return ArgumentError(
            f"rows of {arrays.extent(one.dim)} elements, {one.dim}",
            where=source.entry,
            why=f"elements use results of their row, which this kernel's tiles of {one.multiple} "
            "columns cover",
            nearest=f"Legal: 1 to {one.multiple}; or compile for these sizes",
        )
    if one.kind in ("grid", "work"):
        return _too_many(one, source, arrays.sizes)
    step = arrays.strides[one.tensor][one.axis]
    if step < 0:
        return ArgumentError(
            f"axis {one.axis} runs backwards (stride {step})",
            where=one.tensor,
            nearest="Pass a copy: x.copy() in CuPy, x.contiguous() in PyTorch",
        )
    if _are_distinct(one.tensor, arrays):
        tensor = arrays.tensors[one.tensor]
        return ArgumentError(
            f"axis {one.axis} of the output has stride {step}, and faster axes reach further",
            where=one.tensor,
            why="the axes are stored in another order than the kernel was compiled for: "
            f"{', '.join(map(str, tensor.order))}, the slowest first",
            nearest="Pass an output that is stored in that order, or leave out= away",
        )
    return ArgumentError(
        f"elements of the output overlap (axis {one.axis} has stride {step})",
        where=one.tensor,
        why="the faster axes reach further",
        nearest="Pass an output whose elements are all distinct",
    )


def _are_distinct(name: str, arrays: Arrays) -> bool:
    """Whether no two elements share memory, in whatever order the axes are stored."""
    tensor, steps = arrays.tensors[name], arrays.strides[name]
    axes = [axis for axis in tensor.order if arrays.extent(tensor.dims[axis]) > 1]
    axes.sort(key=lambda axis: steps[axis])
    return all(steps[axis] >= arrays.reach(name, axes[:at]) for at, axis in enumerate(axes))


def _too_many(one: Condition, source: KernelSource, sizes: Mapping[str, int]) -> ArgumentError:
    """Word the error for more blocks than CUDA launches, or more tiles than kernels count."""
    launch = source.launch
    named = dict.fromkeys(
        f"{dim} = {size_value(dim, sizes)}"
        for dim in (*launch.batches, launch.along, launch.across)
        if isinstance(dim, str)
    )
    of = f"; {', '.join(named)}" if launch.batches else ""
    nearest = "Use a larger tile or raster group, or split the arrays"
    if one.kind == "work":
        what = f"the launch has {launch.work(sizes)} tiles"
        why = f"kernels count the tiles of all matrices, up to {LARGEST_SIZE}{of}"
    elif launch.layers and launch.matrices(sizes) > LARGEST_SIZE:
        what = f"the launch has {launch.matrices(sizes)} matrices"
        why = f"kernels count them, up to {LARGEST_SIZE}{of}"
    else:
        axes = 3 if launch.batches else 2
        blocks, most = (
            " x ".join(map(str, found[:axes])) for found in (launch.grid(sizes), most_blocks())
        )
        what, why = f"the launch needs {blocks} blocks", f"CUDA allows {most}{of}"
    return ArgumentError(what, where=source.entry, why=why, nearest=nearest)


def _ragged(broken: Sequence[Condition], source: KernelSource, arrays: Arrays) -> AlignmentMismatch:
    """Word the error for rows that end inside of a copy, and name the arrays that have them: of an
    operand that is made before the kernel, arguments whose rows are as long.
    """
    required = dict(source.alignment)
    first = broken[0].tensor
    error = AlignmentMismatch(
        f"rows are not a multiple of {required[first]} bytes long",
        where=first,
        why="this kernel was compiled for rows of whole copies",
        nearest="Compile a variant for ragged rows",
    )
    error.alignment = source.alignment
    made = {one.name for one in source.realign.made} if source.realign is not None else set()
    dims = {one.dim for one in broken if one.tensor in made}
    alike = (t for t in arrays.tensors.values() if t.dims and t.dims[t.order[-1]] in dims)
    names = (*(one.tensor for one in broken), *(one.name for one in alike))
    error.ragged = tuple(name for name in dict.fromkeys(names) if name not in made)
    return error


def stride_bits(tensor: Tensor, strides: tuple[int, ...]) -> int:
    """Bits of all steps but that of adjacent elements, in bytes: none below the alignment."""
    bits = 0
    for axis, step in enumerate(strides):
        if axis != (tensor.order[-1] if tensor.order else len(strides) - 1):
            bits |= step * tensor.dtype.bytes
    return bits
