"""What is known of a program before its schedule is decided; sizes do not change it."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, replace

from polygen.frontend.alignment import realigned
from polygen.frontend.program import Program
from polygen.generated import kept
from polygen.poly.depth import linear
from polygen.poly.depth import sums as sums_of_axes
from polygen.poly.fills import by_threads
from polygen.poly.fusion import Fusion, fuse
from polygen.poly.half_planes import read_domain, restricted
from polygen.poly.match import Match, match
from polygen.poly.orientation import oriented, oriented_work
from polygen.poly.pointwise import Pointwork, among_sections, pointwork
from polygen.poly.prologue import prologues, without_prologues
from polygen.poly.rest_match import with_rest_of
from polygen.poly.row_match import with_row_operands
from polygen.poly.row_passes import split_for
from polygen.poly.rows import with_rows
from polygen.poly.scop import Scop, scop
from polygen.poly.sections import alike, require_alike, sections
from polygen.poly.whole_rows import Alike, RowPasses
from polygen.rewrite.programs import rewritten
from polygen.schedule.model import Schedule

# isl has one context per process, and its operation budget with it: one user of it at a time.
ISL_LOCK = threading.RLock()
MOST_PROSPECTS = 256  # programs whose prospects are kept, and programs with fitted schedules


@dataclass(frozen=True, slots=True)
class Prospect:
    """All that an automatic choice needs of a program, and that sizes do not change."""

    matched: Match
    work: Pointwork
    others: tuple[Prospect, ...] = ()  # of the kernel's other sections

    @property
    def each(self) -> tuple[Prospect, ...]:
        """Of all sections."""
        return (replace(self, others=()), *self.others)

    def under(self, schedule: Schedule) -> Prospect:
        """The same as a schedule has it run: as it is, or with operands exchanged."""
        return Prospect(
            oriented(self.matched, schedule),
            oriented_work(self.work, self.matched, schedule),
            tuple(one.under(schedule) for one in self.others),
        )


@dataclass(frozen=True, slots=True)
class Analysed:
    """What is known of a program, or of a section of one, when its schedule is decided."""

    products: Program
    model: Scop
    fusion: Fusion
    prospect: Prospect
    passes: RowPasses | None


@functools.lru_cache(maxsize=MOST_PROSPECTS)
def prospect(program: Program) -> Prospect:
    """The prospect of a program; from memory, from disk, or analysed with isl."""

    def analyse() -> Prospect:
        with ISL_LOCK:
            return all_analysed(program)

    return kept(Prospect, (program,), analyse)


@functools.lru_cache(maxsize=MOST_PROSPECTS)
def in_tiles(program: Program) -> Prospect:
    """The prospect of a program whose rows are in tiles; from memory, or analysed with isl.

    Raises:
        UnsupportedProgram: tiles do not cover what its elements use results of.
    """
    with ISL_LOCK:
        return all_analysed(program, in_tile=True)


def all_analysed(program: Program, *, in_tile: bool = False) -> Prospect:
    """The prospect of a program, analysed with isl; of several sections, of all of them.

    Args:
        program: what to compute.
        in_tile: whether its rows are in tiles.

    Raises:
        UnsupportedProgram: no kernel has such sections, or tiles do not cover its rows.
    """
    program = rewritten(program)
    require_alike(program)
    found = sections(program)
    if len(found) > 1:
        first, *others = (one.prospect for one in sections_analysed(program, in_tile=in_tile))
        return replace(first, others=tuple(others))
    return analysed(program, in_tile=in_tile).prospect


def come_alike(program: Program) -> Program:
    """The program; of several sections, with rows of operands aligned alike.

    Rows at any address come by threads, others by tensor maps: a single row, or a weight of its
    own, may be better aligned than the others.

    Args:
        program: no chain, with the alignments that the sizes leave.
    """
    with ISL_LOCK:
        if len(sections(rewritten(program))) == 1:
            return program
    changed = realigned(program, _lowest([one.matched for one in prospect(program).each]))
    # An array may be one section's left operand and the right one of another.
    return program if changed == program else come_alike(changed)


def _lowest(matches: list[Match]) -> dict[str, int]:
    """Alignments, by tensor, with which operands come alike that would come in two ways."""
    lowest: dict[str, int] = {}
    for role in dict(matches[0].operands):
        every = [dict(one.operands)[role] for one in matches if role in dict(one.operands)]
        plain = [one for one in every if one.computed is None]
        if len({by_threads(one) for one in plain}) > 1:
            least = min(one.alignment for one in plain)
            for one in plain:
                lowest[one.tensor.name] = min(least, lowest.get(one.tensor.name, least))
    return lowest


def sections_analysed(program: Program, *, in_tile: bool = False) -> tuple[Analysed, ...]:
    """What is known of every section of a program, all of which fold alike.

    Args:
        program: of several sections.
        in_tile: whether their rows are in tiles.
    """
    found = sections(rewritten(program))
    all_do = alike(found, in_tile=in_tile)
    return tuple(analysed(one, in_tile=in_tile, among=all_do) for one in found)


def analysed(program: Program, *, in_tile: bool = False, among: Alike | None = None) -> Analysed:
    """The program without folds and what computes operands, and what is known of it.

    Args:
        program: of one section.
        in_tile: whether its rows are in tiles.
        among: of a section whose kernel has others, what all of them do.

    Raises:
        UnsupportedProgram: no kernel can be made of it, or tiles do not cover its rows.
    """
    program = rewritten(program)
    split = split_for(program, in_tile=in_tile, alike=among)
    times = dict(split.passes.statements) if split.passes else {}
    computed = prologues(split.main)
    products = without_prologues(split.main, computed)
    several = sums_of_axes(products)
    statements = with_rows(linear(products, several))
    model = scop(statements, passes=times)
    fusion = fuse(statements, model, times)
    matched = match(statements, fusion, computed, program.inputs, several, split.folds)
    matched = with_row_operands(matched, program)
    matched = with_rest_of(matched, products)
    more = matched.rest is not None or matched.block  # whose statements run in every tile
    planes = () if more else read_domain(statements, matched, fusion)
    if planes:
        matched = replace(matched, domain=planes)
        model = restricted(model, matched, fusion)
    work = among_sections(pointwork(statements, fusion, matched, split), among)
    return Analysed(products, model, fusion, Prospect(matched, work), split.passes)
