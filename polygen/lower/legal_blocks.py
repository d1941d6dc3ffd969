"""What is refused of sums in blocks of k, by name: block sizes, devices and schedules."""

from __future__ import annotations

from polygen.errors import ScheduleError, UnsupportedProgram
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.poly.match import Match
from polygen.schedule.model import Schedule


def check_blocks(match: Match, device: Device, atom: Atom) -> None:
    """Refuse blocks that no kernel of a device promotes.

    Args:
        match: the products.
        device: the target.
        atom: an instruction of it that takes the operands.

    Raises:
        UnsupportedProgram: with the nearest block.
    """
    sizes = [one.block for one in match.products]
    if not any(sizes):
        return
    names = ", ".join(one.contraction.name for one in match.products)
    if len(set(sizes)) > 1:
        raise UnsupportedProgram(
            f"{names} are summed in blocks of {', '.join(str(size or 'all') for size in sizes)}",
            why="all products of a kernel go through the same k tiles, and are promoted together",
            nearest=f"Scale all of them in groups of {max(sizes)}",
        )
    (size,) = set(sizes)
    if size % atom.k:
        raise UnsupportedProgram(
            f"{names}: factors of {size} neighbours along k",
            where=str(match.products[0].contraction),
            why=f"one {atom} adds up {atom.k} of them, and no factor comes between",
            nearest=f"Use groups of {-(-size // atom.k) * atom.k}, or any multiple of {atom.k}",
        )
    if not device.has("wgmma"):
        raise UnsupportedProgram(
            f"{names}: factors of {size} neighbours along k on {device}",
            where=str(match.products[0].contraction),
            why="sums of blocks are promoted by the consumers of kernels with roles",
            nearest='Compile for sm_90a, or write .astype("bf16") around both operands',
        )
    for _, operand in match.operands:
        if not operand.k_contiguous:
            tensor = operand.tensor
            raise UnsupportedProgram(
                f"{tensor.name}: {tensor.dtype} with {tensor.dims[tensor.order[-1]]} innermost, "
                f"and factors of {size} neighbours along k",
                where=str(match.products[0].contraction),
                why="consumers promote, and their instruction reads operands with k innermost",
                nearest=f"Store {tensor.name} with k innermost, as in x @ w.T",
            )


def check_promoting(schedule: Schedule, match: Match) -> None:
    """Refuse schedules whose warps promote nothing, or not where blocks end.

    Args:
        schedule: with its own k tile.
        match: the products.

    Raises:
        ScheduleError: with the field to change.
    """
    if not match.block:
        return
    where, block, depth = f"schedule {schedule.name}", match.block, schedule.tile.cta.k
    if not schedule.specialised:
        raise ScheduleError(
            f"sums in blocks of {block} without roles",
            where=where,
            why="sums of blocks are promoted by the consumers of kernels with roles",
            nearest='roles.form = "cooperative"',
        )
    if schedule.cluster.k > 1:
        raise ScheduleError(
            f"cluster.k = {schedule.cluster.k} with sums in blocks of {block}",
            where=where,
            why="blocks that share sums have ranges of k tiles, which end anywhere",
            nearest="Use cluster.k = 1",
        )
    if block % depth:
        raise ScheduleError(
            f"tile.cta.k = {depth} with sums in blocks of {block}",
            where=where,
            why="a block is promoted behind its last k tile",
            nearest=f"tile.cta.k = {block_tile(block, depth)}",
        )


def block_tile(block: int, depth: int) -> int:
    """The longest k tile of so many indices or less that divides a block, in powers of two."""
    while block % depth:
        depth //= 2
    return depth
