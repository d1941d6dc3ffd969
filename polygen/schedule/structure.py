"""What of a schedule has to fit together: tiles, warps, instructions, roles, shared sums."""

from __future__ import annotations

import math

from polygen.errors import ScheduleFileError
from polygen.hardware import device as targets
from polygen.hardware.atom import Atom
from polygen.schedule.idle import idle
from polygen.schedule.lanes import lane_problems
from polygen.schedule.model import MATRIX, Schedule, Tile

# Warpgroups of a block that multiply: the producer's has a warp of its own and a loader for each.
MOST_CONSUMERS = 3
_FEWEST_TURNS = 2
_FILLING = 2  # warps of the producer's warpgroup that fill rings, where one waits for nobody


def check_structure(schedule: Schedule, atom: Atom, where: str) -> None:
    """Check that the tiles divide down to the instruction and fit one thread block.

    Args:
        schedule: the record, whose values `loads` or `check_record` have checked.
        atom: the instruction it will run with.
        where: what to call the schedule in messages.

    Raises:
        ScheduleFileError: levels that do not divide; each is listed with the nearest legal values.
    """
    cta, warp = schedule.tile.cta, schedule.tile.warp
    problems = [
        problem
        for inner, size, outer, whole, step in (
            ("tile.warp.m", warp.m, "tile.cta.m", cta.m, atom.m),
            ("tile.warp.n", warp.n, "tile.cta.n", cta.n, atom.n),
        )
        if (problem := _does_not_divide(inner, size, outer, whole, step))
    ]
    for name, size, step in (
        ("tile.warp.m", warp.m, atom.m),
        ("tile.warp.n", warp.n, atom.n),
        ("tile.cta.k", cta.k, atom.k),
    ):
        if size % step:
            problems.append(
                f"{name} = {size} is not a multiple of {step}, the shape of {atom.name}. "
                f"Nearest legal: {_nearest_multiples(size, step)}"
            )
    facts = targets.common_facts()
    most = facts["max_threads_per_block"] // facts["warp_size"]
    warps = -(-cta.m // warp.m) * -(-cta.n // warp.n)
    if warps > most:
        problems.append(
            f"tile.cta {cta.m} x {cta.n} over tile.warp {warp.m} x {warp.n} takes {warps} warps; "
            f"a thread block has at most {most}. Use larger warp tiles"
        )
    pixels = schedule.tile.pixels
    if pixels and math.prod(pixels) != cta.m:
        problems.append(
            f"tile.pixels = {list(pixels)} are {math.prod(pixels)} rows; tile.cta.m is {cta.m}. "
            f"Nearest legal: tile.cta.m = {math.prod(pixels)}"
        )
    if schedule.tile.part:
        problems.append(
            f"tile.part = {schedule.tile.part} without a chain of products: it counts keys. "
            "Leave it out"
        )
    if schedule.functions != Schedule().functions:
        problems.append(
            f'functions = "{schedule.functions}" without a chain of products: it is about scores. '
            "Leave it out"
        )
    if schedule.raster.order != MATRIX:
        problems.append(
            f'raster.order = "{schedule.raster.order}" without a chain of products whose rows have '
            "ranges of keys: tiles of all others take as long as each other. Leave it out"
        )
    problems += _role_problems(schedule, facts["cluster_blocks_most"])
    problems += _shared_sum_problems(schedule, atom.n)
    problems += lane_problems(schedule)
    if problems:
        raise ScheduleFileError(where, problems)


def _role_problems(schedule: Schedule, most: int) -> list[str]:
    """What makes sense with roles only, or without them only."""
    through, cluster = schedule.epilogue.through, schedule.cluster
    problems = []
    if schedule.specialised and through == "smem":
        problems.append(
            'epilogue.through = "smem" with roles: consumers hand panels to the copy engine. '
            'Nearest legal: "tma" or "lines" or "registers"'
        )
    if not schedule.without_rings:
        how = "with" if schedule.specialised else "without"
        problems += [
            f"{name} {how} roles: it decides nothing there. Leave it out" for name in idle(schedule)
        ]
    if schedule.launch.ahead and not schedule.launch.dependent:
        problems.append(
            "launch.ahead = true without launch.dependent: nothing else runs then. Nearest legal: "
            "launch.dependent = true"
        )
    loading = schedule.consumers if through == "tma" else 0
    if schedule.launch.ahead and loading + _FILLING > MOST_CONSUMERS + 1:
        problems.append(
            f'launch.ahead = true with {loading} consumers and epilogue.through = "tma": the '
            "producer's warpgroup has no warp left. Nearest legal: launch.ahead = false"
        )
    turns = min(max(schedule.roles.turns, _FEWEST_TURNS), MOST_CONSUMERS)
    if schedule.in_turns and schedule.roles.turns != turns:
        problems.append(
            f"roles.turns = {schedule.roles.turns}: with the producer's, four warpgroups share a "
            f"block. Nearest legal: {turns}"
        )
    if schedule.epilogue.columns and through not in ("tma", "lines"):
        problems.append(
            f"epilogue.columns = {schedule.epilogue.columns} without panels: they are of "
            'epilogue.through = "tma" or "lines". Leave it out'
        )
    if not schedule.specialised and through in ("tma", "lines"):
        problems.append(f'epilogue.through = "{through}" without roles. Nearest legal: "smem"')
    if not schedule.specialised and cluster.tiles > 1:
        problems.append(
            f"cluster {cluster.m} x {cluster.n} without roles: only a producer copies for other "
            "blocks. Nearest legal: 1 x 1"
        )
    if not schedule.specialised and cluster.k > 1:
        problems.append(
            f"cluster.k = {cluster.k} without roles: only consumers send sums to other blocks. "
            "Nearest legal: 1"
        )
    if cluster.blocks > most:
        along_k = f" x {cluster.k}" if cluster.k > 1 else ""
        problems.append(
            f"cluster {cluster.m} x {cluster.n}{along_k} has {cluster.blocks} blocks. "
            f"Nearest legal: at most {most}"
        )
    return problems


def _shared_sum_problems(schedule: Schedule, columns: int) -> list[str]:
    """What blocks that share the sums of a tile cannot do beside that yet, or cannot share.

    Args:
        schedule: the record.
        columns: of which an instruction's sums are groups.
    """
    cluster, own = schedule.cluster, schedule.tile.warp.n
    if cluster.k == 1:
        return [
            f"{name} without blocks that share sums. Nearest legal: leave it out, or cluster.k = 2"
            for name, asked in (
                (f'cluster.share = "{cluster.share}"', cluster.last),
                (f"cluster.columns = {cluster.columns}", cluster.columns),
            )
            if asked
        ]
    problems = _last_round_problems(schedule)
    if cluster.tiles > 1:
        problems.append(
            f"cluster.k = {cluster.k} in a cluster of {cluster.m} x {cluster.n} tiles: blocks "
            "share the sums of one tile. Nearest legal: cluster.m = cluster.n = 1"
        )
    if schedule.in_turns:
        problems.append(
            f'cluster.k = {cluster.k} with roles.form = "pingpong": consumers that share a tile '
            'share its sums with other blocks. Nearest legal: roles.form = "cooperative"'
        )
    if own % (columns * cluster.k):
        problems.append(
            f"tile.warp.n = {own} is not a multiple of {columns * cluster.k}: each of "
            f"{cluster.k} blocks finishes a share of its columns, whole groups of {columns}. "
            f"Nearest legal: {_shared_columns(schedule.tile, columns * cluster.k)}"
        )
    elif cluster.columns:
        share = own // cluster.k
        legal = [n for n in range(columns, share + 1, columns) if share % n == 0]
        if cluster.columns not in legal:
            problems.append(
                f"cluster.columns = {cluster.columns} of shares of {share}: sums are sent in whole "
                f"groups of {columns} columns, as many each time. Nearest legal: "
                f"{min(legal, key=lambda n: abs(n - cluster.columns))}"
            )
    return problems


def _shared_columns(tile: Tile, step: int) -> str:
    """Columns of a warp, or consumer, and of a block that has as many of these as it had."""
    below, beside = tile.warp.n // step * step, max(1, tile.cta.n // tile.warp.n)
    legal = [columns for columns in (below, below + step) if columns]
    return " or ".join(f"tile.warp.n = {n} of tile.cta.n = {n * beside}" for n in legal)


def _last_round_problems(schedule: Schedule) -> list[str]:
    """What blocks that share the sums of the last round alone cannot do beside that yet."""
    if not schedule.cluster.last:
        return []
    field = f'cluster.share = "{schedule.cluster.share}"'
    found = []
    if schedule.epilogue.through == "registers":
        found.append(
            f'{field} with epilogue.through = "registers": of some tiles a block finishes all '
            "columns, of others a share, panel by panel. Nearest legal: epilogue.through = "
            '"tma" or "lines"'
        )
    if schedule.raster.run > 1:
        found.append(
            f"{field} with raster.run = {schedule.raster.run}: a block has tiles of one row one "
            "after another, and those of the last round are all blocks'. Nearest legal: 1"
        )
    if schedule.from_registers:
        found.append(
            f'{field} with roles.computes = "consumer": which k tile a fragment is of would '
            'depend on the round. Nearest legal: roles.computes = "producer"'
        )
    return found


def _does_not_divide(inner: str, size: int, outer: str, whole: int, step: int) -> str:
    if whole % size == 0:
        return ""
    legal = [d for d in range(step, whole + 1, step) if whole % d == 0]
    below, above = [d for d in legal if d < size], [d for d in legal if d > size]
    near = ", ".join(map(str, below[-1:] + above[:1]))
    text = f"{inner} = {size} does not divide {outer} = {whole}"
    if near:
        return f"{text}. Nearest legal: {near}"
    whole_parts = f"{outer} = {_nearest_multiples(whole, size)}"
    return f"{text}, and no multiple of {step} does. Nearest legal: {whole_parts}"


def _nearest_multiples(size: int, step: int) -> str:
    below = size // step * step
    return ", ".join(str(value) for value in (below, below + step) if value)
