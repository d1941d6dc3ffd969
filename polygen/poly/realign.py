"""Which operands a launch before the kernel copies or makes, and the program behind it.

Operands that no instruction reads as they lie are copied there with their axes in another order,
whatever the schedule is (`polygen.poly.turned`).

The copy is the identity on an array's elements: a change of layout, of which the product alone
depends. The rest of the kernel is that of the program whose arrays are aligned as the copies are.

An operand that is computed may be made there too: that is another place for the same statements
(`polygen.poly.prologue`), all of whose elements then have one instance that computes them. The rest
of the kernel is that of the program whose products read an array.

What blocks of the launch do are tile programs (`polygen.poly.realign_program`,
`polygen.poly.make_program`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polygen.errors import ScheduleError, UnsupportedProgram
from polygen.frontend.alignment import realigned
from polygen.frontend.program import Program, Tensor
from polygen.hardware.swizzle import chunk_bytes
from polygen.poly.elements import Along
from polygen.poly.fills import by_threads
from polygen.poly.match import Match
from polygen.poly.operand import Operand
from polygen.poly.prologue import operand_of, prologue, prologues, without_prologues
from polygen.poly.row_operands import row_operands, without_first
from polygen.poly.turned import turned_operands
from polygen.rewrite.rows_first import row_operand
from polygen.schedule.model import Schedule
from polygen.schedule.realign import WARPS, Realign, lanes


def helped(operand: Operand) -> bool:
    """Whether the rows of an operand's copy are some that tensor maps describe."""
    return by_threads(operand) and not by_threads(_aligned(operand))


def _aligned(operand: Operand) -> Operand:
    return replace(operand, tensor=_whole(operand.tensor))


def _whole(tensor: Tensor) -> Tensor:
    return replace(tensor, alignment=chunk_bytes())


def _as_made(tensor: Tensor, schedule: Schedule) -> Tensor:
    """An operand as the launch before leaves it: tensor maps know where its rows end, and warps
    that copy for themselves are told where these end inside of a chunk.
    """
    row = tensor.dims[tensor.order[-1]]
    known = isinstance(row, int) and row * tensor.dtype.bytes % chunk_bytes() == 0
    return replace(_whole(tensor), ragged=tensor.ragged or not (schedule.specialised or known))


def copied(matched: Match, *, made: bool = False) -> tuple[Tensor, ...]:
    """The arrays that a realigning copy helps, each once; none of rows in groups.

    Args:
        matched: the products.
        made: whether computed operands are made first; what they read stays where it is.
    """
    if matched.groups:  # the kernel's frame reads where they end before it waits for a copy
        return ()
    found = {o.tensor.name: o.tensor for _, o in matched.operands if helped(o)}
    for _, operand in matched.operands if made else ():
        for one in operand.computed.reads if operand.computed is not None else ():
            found.pop(one.tensor.name, None)
    return tuple(found.values())


def behind_copy(matched: Match, schedule: Schedule) -> Match:
    """The products on what the launch before a kernel leaves; as they are where there is none.

    Raises:
        ScheduleError: a copy for a kernel that has no use for it, or operands are to be made first
            of which there are none, or which this kernel computes itself.
    """
    if schedule.makes_first:
        found = _behind_making(matched, schedule)
    else:
        found = matched if schedule.specialised else _behind_rows(matched)
    return _behind_copy(found, matched, schedule)


def _behind_rows(matched: Match) -> Match:
    """The products on rows that have been made; what else is computed the kernel computes."""
    return replace(
        matched,
        operands=tuple(
            (name, replace(_aligned(one), computed=None))
            if one.computed is not None and one.computed.passes
            else (name, one)
            for name, one in matched.operands
        ),
    )


def _behind_making(matched: Match, schedule: Schedule) -> Match:
    """The products on operands that have been made."""
    if not any(operand.computed for _, operand in matched.operands):
        raise ScheduleError(
            'roles.computes = "before" with operands that are arguments',
            where=f"schedule {schedule.name}",
            why="a launch before the kernel computes operands that are computed",
            nearest='roles.computes = "producer"',
        )
    groups = matched.groups
    for one in matched.side("m") if groups is not None else ():
        if groups is not None and one.computed is not None and groups.dim in one.dims:
            raise ScheduleError(
                f'roles.computes = "before" with {one.tensor.name}, which is computed of what its '
                "rows' groups have",
                where=f"schedule {schedule.name}",
                why="a launch before the kernel computes rows of all groups alike",
                nearest='roles.computes = "producer"',
            )
    return replace(
        matched,
        operands=tuple(
            (name, one)
            if one.computed is None
            else (name, replace(one, tensor=_as_made(one.tensor, schedule), computed=None))
            for name, one in matched.operands
        ),
    )


def _behind_copy(matched: Match, asked: Match, schedule: Schedule) -> Match:
    """The products on what the copies leave."""
    if not schedule.launch.realign:
        return matched
    if not schedule.specialised:
        raise ScheduleError(
            "launch.realign without roles",
            where=f"schedule {schedule.name}",
            why="operands are copied for the copy engine, which feeds roles alone",
            nearest='Use launch.realign = false, or roles.form = "cooperative"',
        )
    names = {tensor.name for tensor in copied(asked, made=schedule.makes_first)}
    return replace(
        matched,
        operands=tuple(
            (name, _aligned(one) if one.tensor.name in names else one)
            for name, one in matched.operands
        ),
    )


def realign(program: Program, matched: Match, schedule: Schedule) -> Realign | None:
    """The launch that goes before a kernel; None: it needs none."""
    return realign_all(program, [matched], schedule)


def realign_all(program: Program, sections: Sequence[Match], schedule: Schedule) -> Realign | None:
    """The copy before a kernel of several sections; what several of them multiply, once."""
    first = schedule.makes_first
    named = {tensor.name: tensor for one in sections for tensor in copied(one, made=first)}
    tensors = tuple(named.values()) if schedule.launch.realign else ()
    turned = turned_operands(program)
    # Without roles no schedule says who makes rows: nobody else does.
    rows = row_operands(program) if first or not schedule.specialised else {}
    in_chunks = tuple(_made(program, sections, schedule)) if first else ()
    made = (*in_chunks, *(one.tensor for one in rows.values()), *turned.values())
    if not tensors and not made:
        return None
    by_rows = tuple(rows)
    alone = by_rows and len(by_rows) == len(tensors) + len(made)  # else blocks copy several rows
    warps = schedule.epilogue.row_warps if alone else WARPS
    across = tuple(one.name for one in in_chunks if _is_across(program, one))
    entry = f"pg_{program.name}_realign"
    return Realign(entry, tensors, made, by_rows, warps, tuple(turned), across)


def _made(program: Program, sections: Sequence[Match], schedule: Schedule) -> Iterator[Tensor]:
    """The arrays that operands become which are computed in chunks, each once, stored as their
    tiles are.
    """
    inner = {
        operand.tensor.name: operand.computed.inner
        for one in reversed(sections)
        for _, operand in reversed(one.operands)
        if operand.computed is not None
    }
    for value, statements in prologues(program).items():
        if value not in inner:  # copied as it is, with its axes in another order
            continue
        tensor = operand_of(program, statements[-1])
        last = tensor.order[inner[value]]
        order = (*(axis for axis in tensor.order if axis != last), last)
        yield _as_made(replace(tensor, order=order), schedule)


def _is_across(program: Program, tensor: Tensor) -> bool:
    """Whether elements of a row are made of what lies steps apart, and rows that follow each other
    of neighbours.

    Args:
        program: with the statements that make it.
        tensor: as which it is stored.
    """
    reads = prologue(
        program.tensors, prologues(program)[tensor.name], in_rows(tensor), tensor.dtype
    ).reads
    both = [one for one in reads if {"m", "k"} <= {along.dim for along in one.index}]
    return bool(both) and all(one.index[one.tensor.order[-1]] == Along("m") for one in both)


def make_operands(program: Program, warps: int = WARPS) -> Realign | None:
    """The launch that makes the computed operands of a chain; None where all are arguments.

    Args:
        program: a chain; `first` names its operands with folds over their own rows.
        warps: of a block, if all of them have such folds.
    """
    by_rows = row_operands(program)
    in_chunks = tuple(_in_chunks(program, value) for value in prologues(program))
    made = (*in_chunks, *(one.tensor for one in by_rows.values()))
    if not made:
        return None
    few = max((_row_warps(one.tensor) for one in by_rows.values()), default=WARPS)
    warps = WARPS if in_chunks else min(warps, few)
    return Realign(f"pg_{program.name}_realign", (), made, tuple(by_rows), warps)


def _row_warps(tensor: Tensor) -> int:
    """Warps that a row of a matrix of the workspace has a chunk for, for each of their lanes."""
    length = tensor.dims[tensor.order[-1]]
    if not isinstance(length, int):
        return WARPS
    return max(1, length * tensor.dtype.bytes // (lanes() * chunk_bytes()))


def with_digits_by_rows(program: Program) -> Program:
    """The chain with those operands made row by row, too, that are read at digits of their rows:
    chunks are made of what goes on as they do.

    Raises:
        UnsupportedProgram: no row is made of them either.
    """
    found = list(program.first)
    for value in prologues(program):
        try:
            _in_chunks(program, value)
        except UnsupportedProgram:
            row_operand(program, value)
            found.append(value)
    return replace(program, first=tuple(found))


def _in_chunks(program: Program, value: str) -> Tensor:
    """The array that a computed operand becomes: it lies as the largest array that it is made of,
    so that neighbours are read together.

    Raises:
        UnsupportedProgram: its chunks are made of what does not go on as its rows do.
    """
    statements = prologues(program)[value]
    tensor = operand_of(program, statements[-1])
    axes = tuple(Along(f"z{axis}") for axis in tensor.order)
    reads = prologue(program.tensors, statements, axes, tensor.dtype).reads
    most = max(reads, key=lambda one: len({along.dim for along in one.index}), default=None)
    beside = most.index[most.tensor.order[-1]] if most is not None and most.index else Along("")
    inner = "" if beside.rows else beside.dim  # rows by index are no neighbours
    last = next((axis for axis, one in enumerate(axes) if one.dim == inner), tensor.order[-1])
    order = (*(axis for axis in tensor.order if axis != last), last)
    tensor = replace(tensor, order=order, alignment=chunk_bytes())
    prologue(program.tensors, statements, in_rows(tensor), tensor.dtype)
    alike = most is not None and axes[last].dim == inner and not _ends_anywhere(tensor, most.tensor)
    return replace(tensor, ragged=not alike)


def _ends_anywhere(made: Tensor, source: Tensor) -> bool:
    """Whether rows may end inside of a chunk that are as long as those of what they are made of."""
    known = source.alignment // source.dtype.bytes * made.dtype.bytes
    return source.ragged or known % made.alignment != 0


def in_rows(tensor: Tensor) -> tuple[Along, ...]:
    """Where an element of a matrix of the workspace is: "k" along its stored rows, whose number is
    "m"; what is left are batch dims.
    """
    *outer, inner = tensor.order
    names = ("m", *(f"z{at}" for at in range(len(outer))))
    named = {inner: "k"} | dict(zip(reversed(outer), names, strict=False))
    return tuple(Along(named[axis]) for axis in range(len(tensor.dims)))


def program_behind(program: Program, copy: Realign | None) -> Program:
    """The program of the kernel that runs on the copies, and on what was made."""
    if copy is None:
        return program
    if copy.made:  # both launches have one list of arguments
        behind = without_first(program)
        if len(copy.made) > len(copy.turned) + len(copy.by_rows):
            behind = without_prologues(behind)
        program = replace(behind, inputs=(*program.inputs, *copy.made))
    return realigned(program, dict.fromkeys(copy.names, chunk_bytes()))
