"""What schedules of the search are called."""

from __future__ import annotations

from polygen.schedule.model import (
    Schedule,
)

# End names of schedules with roles whose results take that way out, not the copy engine's.
OTHER_WAYS = ("registers", "lines")


def schedule_name(schedule: Schedule) -> str:
    """The systematic name: tile, warp tile, stages, and whatever is not the default."""
    usual = Schedule()
    cta, warp, pipeline = schedule.tile.cta, schedule.tile.warp, schedule.pipeline
    parts = [f"{cta.m}x{cta.n}x{cta.k}"]
    if schedule.by_lanes:
        parts = ["dots", *parts]
    if schedule.of_elements:
        parts = ["elements", f"{cta.m}x{cta.n}"]
    if schedule.specialised:
        parts.insert(0, schedule.roles.form)
        if warp.n != cta.n:
            parts.append(f"w{warp.m}x{warp.n}")
        elif warp.m != cta.m:
            parts.append(f"w{warp.m}")
    else:
        parts.append(f"w{warp.m}x{warp.n}")
    if schedule.roles.turns != usual.roles.turns:
        parts.append(f"t{schedule.roles.turns}")
    if schedule.tile.pixels:
        parts.append(f"pixels{'x'.join(map(str, schedule.tile.pixels))}")
    if schedule.tile.joined:
        parts.append("joined")
    if not schedule.without_rings:
        parts.append(f"s{pipeline.stages}")
    if schedule.cluster.tiles > 1:
        parts.append(f"c{schedule.cluster.m}x{schedule.cluster.n}")
    if schedule.cluster.k > 1:
        last = "last" if schedule.cluster.last else ""
        sent = f"x{schedule.cluster.columns}" if schedule.cluster.columns else ""
        parts.append(f"k{schedule.cluster.k}{sent}{last}")
    if schedule.raster != usual.raster:
        parts.append(f"{schedule.raster.along}{schedule.raster.group}")
    if schedule.specialised and schedule.epilogue.through == "tma":
        slots = (schedule.epilogue.slots, schedule.epilogue.prefetch)
        if slots != (usual.epilogue.slots, usual.epilogue.prefetch):
            parts.append(f"e{slots[0]}p{slots[1]}")
        if schedule.epilogue.columns:
            parts.append(f"columns{schedule.epilogue.columns}")
    if schedule.specialised and schedule.epilogue.through in OTHER_WAYS:
        parts.append(schedule.epilogue.through)
    if schedule.covers_rows:
        parts.append("rows")
    if schedule.by_lanes or pipeline.fragments != usual.pipeline.fragments:
        parts.append(f"f{pipeline.fragments}")
    if pipeline.together != usual.pipeline.together:
        parts.append(f"g{pipeline.together}")
    if pipeline.copies != usual.pipeline.copies:
        parts.append(pipeline.copies)
    if schedule.min_blocks != usual.min_blocks:
        parts.append(f"b{schedule.min_blocks}")
    if schedule.exchange:
        parts.append("exchanged")
    if schedule.launch.realign:
        parts.append("copied")
    if schedule.from_registers:
        parts.append("made")
    if schedule.makes_first:
        parts.append("first")
    return "_".join(parts)
