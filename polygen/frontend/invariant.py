"""Dims that must have no part in an element's bits: which of a program's dims can be such.

An element of the output is computed from rows and columns of the operands. A dim that counts
elements or matrices of the output (M, N, a batch) can be left out of how they are computed; one
that is summed over cannot: more of it are other sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polygen.errors import ArgumentError, InvarianceError, echo
from polygen.frontend.program import Dim, Extent, Pointwise, Program, Statement, Tensor

_WHERE = "invariant"

# Dim -> the axis that it is of each parameter that has it.
Invariant = Mapping[str, Mapping[str, int]]


def places(invariant: Invariant, parameters: Sequence[str]) -> dict[tuple[str, int], str]:
    """(parameter, axis) -> the dim there.

    Raises:
        InvarianceError: that is no mapping of dims to axes of the parameters.
    """
    found: dict[tuple[str, int], str] = {}
    nearest = f'Write {{"M": {{"{parameters[0] if parameters else "x"}": 0}}}}'
    if not isinstance(invariant, Mapping):
        raise InvarianceError(
            f"{echo(invariant)} does not say which axes", where=_WHERE, nearest=nearest
        )
    for dim, axes in invariant.items():
        if not (isinstance(dim, str) and dim.isidentifier() and isinstance(axes, Mapping) and axes):
            raise InvarianceError(
                f"{echo(dim)}: {echo(axes)} does not say which axes", where=_WHERE, nearest=nearest
            )
        for parameter, axis in axes.items():
            if parameter not in parameters:
                raise InvarianceError(
                    f"no parameter is called {echo(parameter)}",
                    where=_WHERE,
                    nearest=f"Parameters: {', '.join(parameters)}",
                )
            if type(axis) is not int or axis < 0 or (parameter, axis) in found:
                raise InvarianceError(
                    f"axis {echo(axis)} of {parameter}",
                    where=_WHERE,
                    why="axes are counted from 0, and one is one dim",
                    nearest=nearest,
                )
            found[parameter, axis] = dim
    return found


def check_axes(found: Mapping[tuple[str, int], str], axes: Mapping[str, int]) -> None:
    """Refuse axes that operands do not have.

    Args:
        found: of `places`.
        axes: how many each parameter has.

    Raises:
        InvarianceError: one is missing.
    """
    for parameter, axis in found:
        if axis >= axes[parameter]:
            raise InvarianceError(
                f"{parameter} has {axes[parameter]} axes, and no axis {axis}", where=_WHERE
            )


def agreeing(
    known: Mapping[str, int],
    found: Mapping[tuple[str, int], str],
    parameter: str,
    shape: Sequence[int],
) -> dict[str, int]:
    """The sizes of the invariant dims that an array has.

    Args:
        known: those of the arrays before it.
        found: of `places`.
        parameter: the array's.
        shape: its extents.

    Raises:
        ArgumentError: one has two sizes.
    """
    sizes: dict[str, int] = {}
    for axis, extent in enumerate(shape):
        dim = found.get((parameter, axis))
        if dim is None:
            continue
        other = known.get(dim, sizes.get(dim, extent))
        if other != extent:
            raise ArgumentError(
                f"{parameter}.shape[{axis}] = {extent}, but {dim} = {other}",
                where=dim,
                why=f"both are the dim {dim}, as fuse was told",
            )
        sizes[dim] = extent
    return sizes


def with_invariant(
    program: Program, invariant: Sequence[str] | str, static: Sequence[str] = ()
) -> Program:
    """The program, whose elements have the same bits for every size of some dims.

    Args:
        program: traced.
        invariant: the dims; one may stand alone.
        static: dims that were made constants, for the message.

    Raises:
        InvarianceError: one is no dim of the program, a constant, or summed over.
    """
    names = (invariant,) if isinstance(invariant, str) else tuple(invariant)
    for name in names:
        if not isinstance(name, str):
            raise InvarianceError(
                f"{echo(name)} is no name of a dim", where=_WHERE, nearest='Write ("M",)'
            )
    summed = {
        extent: product.name
        for product in program.contractions
        for iterator, extent in product.domain
        if iterator not in product.write.iterators
    }
    counted = {dim: one for one in program.statements for dim in _counted(one)}
    legal = [name for name in program.sizes if name not in summed and name not in counted]
    nearest = f"Dims that can be: {', '.join(legal) or 'none'}"
    for name in names:
        if name in static:
            raise InvarianceError(
                f"{name} is a constant",
                where=_WHERE,
                why="kernels for other sizes of it would be other programs",
                nearest=f"Leave {name} out of static",
            )
        if name in summed:
            raise InvarianceError(
                f"{summed[name]} sums over {name}",
                where=_WHERE,
                why="another length of a sum is another sum",
                nearest=nearest,
            )
        if name not in program.sizes and name.isdigit():
            raise InvarianceError(
                f"the dim is the constant {name}", where=_WHERE, nearest="Give it a name: M"
            )
        if name not in program.sizes:
            raise InvarianceError(f"no dim is called {echo(name)}", where=_WHERE, nearest=nearest)
    for name in (name for name in names if name in counted):
        raise InvarianceError(
            f"{counted[name].write.name} is computed with the size {name}: {counted[name]}",
            where=_WHERE,
            why="elements have another value for every size",
            nearest=f"Pass the number as an argument, f32; {nearest}",
        )
    ordered = tuple(name for name in program.sizes if name in names)
    return replace(program, invariant=ordered)


def _counted(statement: Statement) -> set[Dim]:
    """The dims whose sizes a statement computes with."""
    args = statement.args if isinstance(statement, Pointwise) else ()
    return {dim for arg in args if isinstance(arg, Extent) for dim in arg.dims}


def check_stored(program: Program) -> None:
    """Refuse arrays of a direct call that one row would be stored like no other.

    Of an array with M innermost a single row has its own neighbours adjacent: it cannot be told
    from one with K innermost, which another kind of instruction may read.

    Raises:
        InvarianceError: an invariant dim is innermost in an array.
    """
    for tensor in program.inputs:
        if innermost(tensor, program.invariant):
            raise InvarianceError(
                f"{tensor}: {tensor.dims[tensor.order[-1]]} is innermost in memory",
                where=_WHERE,
                why="an array of one row does not say so, and would be read otherwise",
                nearest="Compile the function with the layout in its signature, as in x:bf16[M,K]"
                ":col, or pass an array stored row by row",
            )


def innermost(tensor: Tensor, dims: Sequence[str]) -> bool:
    """Whether rows of an array run along one of the dims."""
    axis = tensor.contiguous_axis
    return axis is not None and len(tensor.dims) > 1 and tensor.dims[axis] in dims


def for_every_size(program: Program) -> Program:
    """The program with the alignments that all sizes of its invariant dims leave.

    Where such a dim is innermost in memory, rows begin at any element.
    """

    def least(tensor: Tensor) -> Tensor:
        if not innermost(tensor, program.invariant):
            return tensor
        return replace(tensor, alignment=tensor.dtype.bytes, ragged=False)

    return replace(
        program,
        inputs=tuple(map(least, program.inputs)),
        outputs=tuple(map(least, program.outputs)),
    )
