"""What is refused of products that go on with the sums of another, by name, before it is built."""

from __future__ import annotations

from polygen.errors import ScheduleError, UnsupportedProgram
from polygen.hardware.atom import Atom, atoms_for
from polygen.hardware.device import Device
from polygen.hardware.matrix_layout import box_rows_most
from polygen.lower.legal import refuse
from polygen.lower.rest import layout_of
from polygen.poly.fills import by_threads
from polygen.poly.match import Match
from polygen.poly.tiling import tiling
from polygen.schedule.model import Schedule

_TWO = (
    "make two functions: the first returns what is made of the product's sums; the second "
    "multiplies it, and adds both products in the same kernel"
)


def check_rest_device(match: Match, device: Device) -> None:
    """Refuse targets whose instructions do not take sums where they are.

    Raises:
        UnsupportedProgram: with what would do.
    """
    rest = match.rest
    if rest is None:
        return
    kind = match.operand(rest.left).multiplied
    atoms = atoms_for(device, kind, match.b.multiplied, match.contraction.dtype)
    if not any(_takes_sums(one) for one in atoms):
        raise UnsupportedProgram(
            f"{rest.last.name}: {rest.last} goes on with the sums of {match.contraction.name} on "
            f"{device}, with operands of {kind}",
            where=str(rest.last),
            why="kernels with roles go on with sums in registers, by warpgroup instructions of f16 "
            "and bf16, from sm_90a on; warps that do everything do not yet",
            nearest=f'Use arch="sm_90a" and f16 or bf16, or {_TWO}',
        )


def _takes_sums(atom: Atom) -> bool:
    """Whether an instruction's left operand may be what it has summed before."""
    return atom.scope == "warpgroup" and atom.a.elements_per_register == 2 and "mn" in atom.majors


def check_rest(schedule: Schedule, match: Match) -> None:
    """Refuse what does not go with a product that goes on with the sums of another.

    Args:
        schedule: of any program.
        match: operands as the schedule's copies leave them.

    Raises:
        ScheduleError: with the field to change.
    """
    rest, run = match.rest, schedule.raster.run
    turns = schedule.roles.turns if schedule.in_turns else 1
    if run > 1 and (rest is None or run % turns):
        raise ScheduleError(
            f"raster.run = {run}" + ("" if rest is None else " with consumers that take turns"),
            where=f"schedule {schedule.name}",
            why="nothing is kept from one tile to the next"
            if rest is None
            else f"each of {turns} has as many tiles of a run as the others",
            nearest="Use raster.run = " + ("1" if rest is None else str(-(-run // turns) * turns)),
        )
    if rest is None:
        return
    others = {
        "roles.form": (not schedule.specialised, '"cooperative"'),
        "exchange": (schedule.exchange, "false"),
        "cluster.k": (schedule.cluster.k > 1, "1"),
        "tile.cta.n": (schedule.tile.cta.n > box_rows_most(), str(box_rows_most())),
    }
    product, sums = rest.last.name, match.contraction.name
    why = (
        "consumers multiply what they have summed, of whole rows, in their registers, by a tile "
        "that comes in one box"
    )
    beside = f"does not go with {product}, which goes on with the sums of {sums}"
    refuse(schedule, others, beside, why)
    for _, operand in match.operands:
        if by_threads(operand):
            raise ScheduleError(
                f"{operand.tensor} beside {rest.last.name}, which goes on with the sums of "
                f"{match.contraction.name}",
                where=f"schedule {schedule.name}",
                why=f"rows start at multiples of {operand.alignment} bytes, and the copy engine "
                "brings all operands of such products",
                nearest="Use launch.realign = true, or pass arrays with aligned rows",
            )


def check_rest_layout(schedule: Schedule, match: Match, atom: Atom) -> None:
    """Refuse a tile of the last operand that has no layout.

    Raises:
        ScheduleError: with the tile.
    """
    if match.rest is not None:
        layout_of(match.rest, tiling(schedule, atom), atom, f"schedule {schedule.name}")
