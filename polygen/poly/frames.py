"""Frames: sums of terms under a reference are added up, multiplied and stored under one reference.

A statement takes a buffer under the reference of one version, and leaves it under that of another.
Wherever one statement leaves what the next one takes, both versions have to be the same: without
the rescale of a tile, terms under its reference would be added to sums under the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.legality import Proof
from polygen.poly.tile_program import TileProgram
from polygen.poly.versions import TileModel

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out


@dataclass(frozen=True, slots=True)
class Held:
    """One statement: ``takes`` and ``leaves`` are versions of the reference, over its loops."""

    statement: str
    takes: str
    leaves: str


@dataclass(frozen=True, slots=True)
class Frames:
    """All statements that touch a buffer whose content depends on a reference."""

    buffer: str
    held: tuple[Held, ...]


def check_frames(program: TileProgram, frames: Frames) -> tuple[Proof, ...]:
    """Prove that nothing is taken under another reference than it was left under.

    Raises:
        VerifyError: with the pair of instances.
    """
    if not frames.held:
        return ()
    model = TileModel(program)
    held = {one.statement: one for one in frames.held}

    def version(statement: str, text: str) -> isl.Map:
        instance = program.statement(statement).instance
        found = model.map(f"{instance} -> {text}")
        return found.intersect_domain(model.domains[statement])

    for need in model.dependences():
        if need.buffer.name != frames.buffer or need.kind != "flow":
            continue
        source, target = need.source.name, need.target.name
        if source not in held or target not in held:
            raise VerifyError(
                f"frames: {source if source not in held else target} takes {frames.buffer} under "
                "no reference",
                where="refinement",
            )
        left = version(source, held[source].leaves)
        taken = version(target, held[target].takes)
        wrong = need.relation.subtract(left.apply_range(taken.reverse()))
        if not wrong.is_empty():
            raise VerifyError(
                f"frames: {frames.buffer} is taken under another reference than it was left "
                f"under: {isl.sample_pair(wrong)}",
                where="refinement",
            )
    claim = "sums are added to and stored under the reference that they were left under"
    return (Proof(claim, frames.buffer),)
