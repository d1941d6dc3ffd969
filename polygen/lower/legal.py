"""What schedules are refused for a program, by name, before anything is built.

A schedule that passes may still not fit: registers and shared memory are counted by `polygen.fit`.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from polygen.errors import ScheduleError, UnsupportedProgram
from polygen.frontend.dtypes import F64
from polygen.frontend.program import Program
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device, common_facts
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.accesses import row_step
from polygen.lower.operands import major, operand_layout
from polygen.poly.elements import map_rank
from polygen.poly.fills import by_threads, ring_pieces
from polygen.poly.match import Match
from polygen.poly.operand import Operand
from polygen.poly.partial_sums import require_reassociable
from polygen.poly.pointwise import Pointwork
from polygen.poly.register_operands import tile_extents
from polygen.poly.results import copies_staged
from polygen.poly.tiling import tiling
from polygen.schedule.model import ROW_WARPS, ROW_WORDS, Cluster, Schedule
from polygen.schedule.structure import MOST_CONSUMERS

Fields: TypeAlias = dict[str, tuple[bool, str]]  # of a schedule


def check_launch(schedule: Schedule, device: Device) -> None:
    """Refuse a dependent launch on a device without, and blocks for rows that there are not.

    Raises:
        ScheduleError: with the field to change.
    """
    if schedule.launch.dependent and not device.has("griddepcontrol"):
        raise ScheduleError(
            f"launch.dependent on {device}",
            where=f"schedule {schedule.name}",
            why="its kernels cannot wait for the grids before them",
            nearest="Use launch.dependent = false, or a target from sm_90 on",
        )
    warps = schedule.epilogue.row_warps
    if warps not in ROW_WARPS:
        raise ScheduleError(
            f"epilogue.row_warps = {warps}",
            where=f"schedule {schedule.name}",
            why=f"blocks that finish rows have {', '.join(map(str, ROW_WARPS))} warps",
            nearest=f"Use {min(ROW_WARPS, key=lambda one: abs(one - warps))}",
        )
    words = schedule.epilogue.row_words
    if not 0 <= words <= ROW_WORDS:
        raise ScheduleError(
            f"epilogue.row_words = {words}",
            where=f"schedule {schedule.name}",
            why=f"a lane holds 0 to {ROW_WORDS} words of 16 bytes of a row",
            nearest=f"Use {min(max(words, 0), ROW_WORDS)}",
        )


def check_types(program: Program, device: Device) -> None:
    """Refuse numbers that a device has no conversion to.

    Raises:
        UnsupportedProgram: with the nearest type that it has.
    """
    if device.has("bf16"):
        return
    made = [(tensor.name, tensor.dtype) for tensor in program.outputs]
    made += [(one.write.name, one.dtype) for one in program.pointwise if one.function == "cast"]
    for name, dtype in made:
        if dtype.name == "bf16":
            raise UnsupportedProgram(
                f"{name}: nothing on {device} rounds to {dtype}",
                where=program.name,
                why="conversions to it began with sm_80",
                nearest="Use f16 or f32, in the signature or as out_dtype",
            )


def check_copies(schedule: Schedule, device: Device) -> None:
    """Refuse copies between the MMA steps where they pass through registers.

    Raises:
        ScheduleError: with the field to change.
    """
    if copies_staged(device) and schedule.pipeline.copies != "whole" and not schedule.without_rings:
        raise ScheduleError(
            f'pipeline.copies = "{schedule.pipeline.copies}" on {device}',
            where=f"schedule {schedule.name}",
            why="without copies in the background a tile passes through registers, all of it "
            "at once",
            nearest='Use pipeline.copies = "whole", or a target from sm_80 on',
        )


def check_wide(schedule: Schedule, match: Match) -> None:
    """Refuse scratch areas for sums that are wider than their words.

    Raises:
        ScheduleError: with the field to change.
    """
    sums = match.contraction.dtype
    if sums == F64 and schedule.epilogue.through != "registers":
        raise ScheduleError(
            f"epilogue.through = {schedule.epilogue.through!r} with sums of {sums}",
            where=f"schedule {schedule.name}",
            why="scratch areas hold words of 32 bits",
            nearest='Use epilogue.through = "registers"',
        )


def check_groups(schedule: Schedule, match: Match) -> None:
    """Refuse what kernels on groups of rows do not do.

    Raises:
        ScheduleError: with the field to change.
    """
    if match.groups is None:
        return
    why = "every block reads where groups end before anything else, and finds its rows"
    fields = {
        f: how for f, how in other_ways(schedule).items() if not f.startswith("roles.computes")
    }
    refuse(schedule, fields, "with rows in groups", why)


def other_ways(schedule: Schedule) -> Fields:
    """Of fields by which operands come another way: whether they are asked for, and what to use."""
    return {
        "exchange": (schedule.exchange, "false"),
        "launch.dependent": (schedule.launch.dependent, "false"),
        "launch.realign": (schedule.launch.realign, "false"),
        'roles.computes = "before"': (schedule.makes_first, '"producer"'),
        'atom = "dot"': (schedule.by_lanes, '"auto"'),
    }


def refuse(schedule: Schedule, fields: Fields, beside: str, why: str) -> None:
    """Refuse the first of some fields that is asked for.

    Args:
        schedule: of which they are.
        fields: each with whether it is, and what to use instead.
        beside: what it does not go with, in words.
        why: that is.

    Raises:
        ScheduleError: with the field.
    """
    for field, (asked, instead) in fields.items():
        if asked:
            raise ScheduleError(
                f"{field} {beside}",
                where=f"schedule {schedule.name}",
                why=why,
                nearest=f"Use {field.partition(' ')[0]} = {instead}",
            )


def check_sums(schedule: Schedule, match: Match) -> None:
    """Refuse what does not walk sums over several axes.

    Raises:
        ScheduleError: with the field to change.
    """
    others = {
        'atom = "dot"': (schedule.by_lanes, '"auto"'),
        'roles.computes = "consumer"': (schedule.from_registers, '"producer"'),
    }
    if match.sums:
        why = "tiles in shared memory are of one axis at a time; what lanes read is not"
        refuse(schedule, others, f"with sums over {len(match.sums) + 1} axes", why)


def check_roles(schedule: Schedule, match: Match, atom: Atom, work: Pointwork) -> None:
    """Refuse what no specialised kernel does, before anything is built; nothing without roles.

    Raises:
        IllegalSchedule: sums that blocks of a cluster cannot share.
        ScheduleError: tiles that do not fit the roles.
        UnsupportedProgram: an operand that neither tensor maps nor threads of a producer take.
    """
    if schedule.by_lanes:
        check_lanes(schedule, match)
    if not schedule.specialised:
        return
    tiles, where = tiling(schedule, atom), f"schedule {schedule.name}"
    if atom.scope != "warpgroup":
        raise ScheduleError(
            f"{atom.name} is an instruction of one {atom.scope}",
            where=where,
            why="roles feed warpgroup instructions",
            nearest='Use atom = "auto"',
        )
    require_reassociable((one.contraction for one in match.products), schedule.cluster.k)
    cta, warp = schedule.tile.cta, schedule.tile.warp
    in_turns = schedule.in_turns
    whole_rows, whole_columns = warp.m == cta.m, warp.n == cta.n
    if not (whole_rows and whole_columns if in_turns else whole_rows or whole_columns):
        between = "," if in_turns else " or"
        shared = in_turns and (whole_rows or whole_columns)
        raise ScheduleError(
            f"tile.warp {warp.m} x {warp.n} of tile.cta {cta.m} x {cta.n}",
            where=where,
            why="consumers that cooperate share a tile's rows or its columns; consumers that take "
            "turns neither",
            nearest=f"tile.warp.n = {cta.n}{between} tile.warp.m = {cta.m}"
            + (', or roles.form = "cooperative"' if shared else ""),
        )
    if tiles.warp_count > MOST_CONSUMERS:
        raise ScheduleError(
            f"{tiles.warp_count} consumer warpgroups",
            where=where,
            why="with the producer's, four warpgroups share the registers",
            nearest=f"tile.warp.m = {_least_part(cta.m, atom.m)}"
            if whole_columns
            else f"tile.warp.n = {_least_part(cta.n, atom.n)}",
        )
    if warp.n > atom.n_most:
        raise ScheduleError(
            f"tile.warp.n = {warp.n}",
            where=where,
            why=f"one {atom.name} covers {atom.n_most} columns",
            nearest=_fewer_columns(schedule, atom),
        )
    if warp.n not in atom.widths:
        raise ScheduleError(
            f"tile.warp.n = {warp.n}",
            where=where,
            why=f"no {atom.name} has {warp.n} columns",
            nearest=f"tile.warp.n = {max(one for one in atom.widths if one < warp.n)}",
        )
    if schedule.from_registers and tiles.k_steps % schedule.pipeline.fragments:
        raise ScheduleError(
            f"pipeline.fragments = {schedule.pipeline.fragments} of {tiles.k_steps} steps",
            where=where,
            why="the register ring would need an index that is known only at run time",
            nearest=f"pipeline.fragments = {math.gcd(tiles.k_steps, schedule.pipeline.fragments)}",
        )
    _check_together(schedule, where)
    for _, operand in match.operands:
        tensor = operand.tensor
        if not operand.in_boxes:
            raise UnsupportedProgram(
                f"{operand}: its elements are not adjacent",
                where=f"{where}, {tensor.name}",
                why="the copy engine moves rows without gaps, forwards",
                nearest="Use a schedule without roles",
            )
        if by_threads(operand) and schedule.cluster != Cluster():
            raise ScheduleError(
                f"a cluster of {_blocks(schedule.cluster)} with {tensor}",
                where=f"{where}, {tensor.name}",
                why="it is computed by the threads of each block, for it alone"
                if operand.computed is not None
                else f"rows start at multiples of {operand.alignment} bytes: threads of each block "
                "shift them into place for it alone",
                nearest="Use a cluster of 1",
            )
        if operand.fragment is not None and schedule.cluster.tiles > 1:
            raise ScheduleError(
                f"a cluster of {schedule.cluster.m} x {schedule.cluster.n} with {tensor}, of which "
                "consumers compute fragments",
                where=f"{where}, {tensor.name}",
                why="every warp reads its own rows and says so, to its own block alone",
                nearest="Use a cluster of 1",
            )
        if major(operand) not in atom.majors and operand.fragment is None:
            raise UnsupportedProgram(
                f"{tensor.name}: {tensor.dtype} with {tensor.dims[tensor.order[-1]]} innermost",
                where=f"{where}, {atom.name}",
                why="this instruction reads operands with k innermost",
                nearest="Use a schedule without roles",
            )
        _require_map(operand, f"{where}, {tensor.name}")
        operand_layout(operand, tile_extents(operand, tiles), schedule, atom)
    if schedule.epilogue.through == "tma" and work.matrices and ring_pieces(schedule, match, tiles):
        raise ScheduleError(
            f"{work.matrices[0].tensor.name} in panels that the copy engine brings",
            where=f"{where}, epilogue.through",
            why="the producer's threads fill rings, and none is left to fetch panels",
            nearest='Use epilogue.through = "lines"',
        )


def _require_map(operand: Operand, where: str) -> None:
    """Refuse an operand that no tensor map describes, and none that is filled by threads."""
    tensor, most = operand.tensor, common_facts()["tensor_map_axes_most"]
    if by_threads(operand):
        if any(one.together for one in operand.index):
            raise UnsupportedProgram(
                f"{tensor.name}: windows of rows at multiples of {operand.alignment} bytes",
                where=where,
                why="threads that fill rings keep no row inside of axes with zeros around them",
                nearest="Use a schedule without roles, or channels in multiples of 16 bytes",
            )
        return
    step, far = row_step(operand.index, "m"), common_facts()["tensor_map_every_most"]
    if step > far:
        raise UnsupportedProgram(
            f"{operand}: windows {step} elements apart",
            where=where,
            why=f"boxes of a tensor map have at most every {far}th element of an axis",
            nearest="Use a schedule without roles",
        )
    axes = map_rank(operand.index)
    if axes > most:
        raise UnsupportedProgram(
            f"{operand}: {axes} axes",
            where=where,
            why=f"a tensor map has at most {most}",
            nearest="Use a schedule without roles",
        )


def check_lanes(schedule: Schedule, match: Match) -> None:
    """Refuse operands that lanes cannot read in whole chunks along k.

    Raises:
        UnsupportedProgram: rows run along another dim, or begin or end inside a chunk.
    """
    for _, operand in match.operands:
        tensor, wanted = operand.tensor, chunk_bytes()
        if operand.computed is not None:
            raise UnsupportedProgram(
                f"{tensor.name} is computed",
                where=f"schedule {schedule.name}, {tensor.name}",
                why="lanes multiply what they read, and nothing computes on the way",
                nearest='Use atom = "auto"',
            )
        if not operand.k_contiguous or not operand.in_rows:
            raise UnsupportedProgram(
                f"{operand}: k is not innermost",
                where=f"schedule {schedule.name}, {tensor.name}",
                why="lanes multiply chunks of rows along k",
                nearest='Use atom = "auto"',
            )
        if operand.alignment < wanted or operand.ragged:
            raise UnsupportedProgram(
                f"{tensor}: rows begin or end inside chunks of {wanted} bytes",
                where=f"schedule {schedule.name}, {tensor.name}",
                why="a lane reads whole chunks",
                nearest='Use atom = "auto", or rows of whole chunks',
            )


def _fewer_columns(schedule: Schedule, atom: Atom) -> str:
    """What to change where one instruction does not cover the columns of a consumer."""
    cta = schedule.tile.cta
    if schedule.roles.form == "cooperative" and schedule.tile.warp.m == cta.m:
        part = _least_part(cta.n, atom.n)
        if part <= atom.n_most:
            return f"tile.warp.n = {part}"
    return f"tile.cta.n = tile.warp.n = {atom.n_most}"


def _check_together(schedule: Schedule, where: str) -> None:
    """Steps that are multiplied together have slots for their fragments, beside each other."""
    together, fragments = schedule.pipeline.together, schedule.pipeline.fragments
    if together == 1:
        return
    if not schedule.from_registers:
        raise ScheduleError(
            f"pipeline.together = {together}",
            where=where,
            why="it is of fragments that consumers compute in their registers",
            nearest="pipeline.together = 1",
        )
    if fragments % together:
        raise ScheduleError(
            f"pipeline.together = {together} with {fragments} slots of fragments",
            where=where,
            why="steps of a group have slots of their own, and groups take these in turns",
            nearest=f"pipeline.together = {math.gcd(together, fragments)}",
        )


def _least_part(extent: int, step: int) -> int:
    """The smallest part of which at most three make `extent`."""
    fitting = (own for own in range(step, extent + 1, step) if extent % own == 0)
    return next((own for own in fitting if extent // own <= MOST_CONSUMERS), extent)


def _blocks(cluster: Cluster) -> str:
    """A cluster in words: its blocks along m and n, and those along k if there are several."""
    every = (cluster.m, cluster.n, *([cluster.k] if cluster.k > 1 else []))
    return " x ".join(map(str, every))
