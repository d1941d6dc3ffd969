"""Registers that a consumer needs: its sums, and what it holds of a panel beside them.

While the first panel of a tile is finished all sums are still there, and with them the words that
were read for the panel: of matrices that came through shared memory, and of operands with one value
per column or per row. Addresses and counters share what is left. How many registers the compiler
makes of that is data, ``hardware/data/registers.toml``; ``python -m polygen.tune.registers``
measures it by compiling kernels.
"""

from __future__ import annotations

from polygen.hardware.atom import Atom
from polygen.hardware.data_file import read
from polygen.hardware.device import common_facts
from polygen.lower.promoting import numbers_held
from polygen.lower.tally import WAYS, rows_together
from polygen.poly.match import Match
from polygen.poly.pointwise import Pointwork
from polygen.poly.promoted_by import SETS
from polygen.poly.register_operands import kept
from polygen.poly.results import ADJACENT, panel_columns
from polygen.poly.ring_folds import RingFolds
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule

FILE = "registers.toml"
_WORD = 4  # bytes
_HALVES = 2  # rows of which a thread holds elements, and adjacent elements of each
_PERCENT = 100
_COMING_AND_THERE = 2  # of a word for a k tile, and that for the next one


def sums_held(matched: Match, tiles: Tiling, atom: Atom) -> int:
    """Registers of a thread's sums; of sums in blocks with those of a block, and its factors; sums
    of zeros are in none.
    """
    if atom.scope == "elements":
        return 0
    tile = tiles.atoms[0] * atom.c.registers
    each = tile * tiles.atoms[1]
    if matched.block:
        return sum(2 * each + numbers_held(one, tiles, atom) for one in matched.products)
    own = len(matched.products) * each
    return own if matched.rest is None else own + matched.rest.padded // atom.n * tile


def overlapped(schedule: Schedule, matched: Match, tiles: Tiling, atom: Atom) -> int:
    """Registers of a thread while blocks are promoted beside products, which have another set of
    inner sums; 0: none are. Behind the main loop no inner sum is left.
    """
    if schedule.pipeline.overlap == 1:
        return 0
    more = (SETS - 1) * len(matched.products) * tiles.atoms[0] * tiles.atoms[1] * atom.c.registers
    return sums_held(matched, tiles, atom) + more + int(read(FILE)["consumers"]["least"])


def fragments_held(schedule: Schedule, matched: Match, tiles: Tiling, atom: Atom) -> int:
    """Registers of fragments that consumers compute, and of what they read for them ahead."""
    operands = [operand for _, operand in matched.operands if operand.fragment is not None]
    each = schedule.pipeline.fragments * tiles.atoms[0] * atom.a.registers
    words = 0
    for operand in operands:
        for one in kept(operand, tiles.cta[2]):
            of_rows = one.axis(operand.role) is not None
            words += _HALVES * (tiles.atoms[0] if of_rows else tiles.k_steps)
    return len(operands) * each + _COMING_AND_THERE * words


def panel_words(schedule: Schedule, work: Pointwork, atom: Atom) -> int:
    """Words that a thread has read of a panel's operands when it begins to finish it.

    None where results leave from the registers, two at a time.
    """
    if schedule.epilogue.through != "tma":
        return 0
    groups = panel_columns(schedule) // atom.n
    words = 0
    for one in work.reads:
        if one.whole:
            words += groups * _HALVES * max(1, _HALVES * one.tensor.dtype.bytes // _WORD)
        elif one.kind in ("vector", "strided"):
            words += groups * _HALVES
        elif one.kind == "row":
            words += _HALVES
    return words


def fold_registers(work: Pointwork, tiles: Tiling, atom: Atom) -> int:
    """Registers in which parts of folds are made, for every place that a thread has elements at.

    Adjacent elements of a row have registers of their own, and so have all where they have one
    place.
    """
    own = [fold_registers(one, tiles, atom) for one in work.before]
    known = sum(len(one.folds) for one in work.before) * tiles.atoms[0] * _HALVES
    rows, columns = tiles.atoms[0] * _HALVES, tiles.columns // atom.n * _HALVES
    each = {"m": rows * _HALVES, "n": columns, "": _HALVES * _HALVES}
    last = sum(
        len(fold.terms) * each["m" if "m" in fold.kept else "n" if "n" in fold.kept else ""]
        for fold in work.folds
    )
    return max(last, *own, 0) + known if own else last


def streamed_registers(work: Pointwork, atom: Atom) -> int:
    """Registers of a thread that only folds elements: what it folds into, and what it reads ahead;
    more where every element has an address of its own.
    """
    rows, columns = atom.c.shape
    lanes = common_facts()["warp_size"]
    wide = atom.c.dtype.bytes // _WORD
    of_lane = rows * columns // lanes
    each = {"m": of_lane // ADJACENT, "n": ADJACENT, "": _HALVES * _HALVES}
    folded = sum(
        len(fold.terms) * each["m" if "m" in fold.kept else "n" if "n" in fold.kept else ""]
        for fold in work.folds
    )
    figures = read(FILE)["elements"]
    apart = any(one.kind == "strided" for one in work.reads)
    return int(figures["ahead"]) + wide * folded + (int(figures["strided"]) if apart else 0)


def tally_registers(work: Pointwork, matched: Match, tiles: Tiling) -> int:
    """Registers in which folds of operands are made: some for every row of a thread."""
    facts = common_facts()
    threads = facts["warpgroup_warps"] * facts["warp_size"]

    def own(one: RingFolds) -> int:
        rows, across = tiles.warp["mn".index(one.role)], rows_together(matched.operand(one.ring))
        return max(WAYS, across, -(-rows // threads))

    return sum(len(fold.terms) * own(one) for one in work.ring_folds(matched) for fold in one.folds)


def function_registers(work: Pointwork) -> int:
    """Registers that the compiler wants for the widest of the functions."""
    wide: dict[str, int] = read(FILE)["functions"]
    return max((wide.get(one.function, 0) for one in work.statements), default=0)


def registers_needed(
    schedule: Schedule, matched: Match, tiles: Tiling, atom: Atom, work: Pointwork
) -> int:
    """Registers of a consumer's thread, as the compiler is thought to need them.

    Args:
        schedule: with roles.
        matched: the products.
        tiles: of the schedule.
        atom: the instruction.
        work: the epilogue.
    """
    figures = read(FILE)["consumers"]
    words = panel_words(schedule, work, atom)
    held = figures["panel"] + -(-words * figures["word_percent"] // _PERCENT)
    alone = figures["alone"] if schedule.consumers == 1 else 0
    functions = function_registers(work) if schedule.epilogue.through == "tma" else 0
    beside: int = max(figures["least"], held) + functions + alone
    # Fragments are gone when a panel is finished, and what makes them when they are multiplied.
    making = fragments_held(schedule, matched, tiles, atom)
    if making:
        beside = max(beside, making + int(figures["making"]))
    folded = fold_registers(work, tiles, atom) + tally_registers(work, matched, tiles)
    needed = sums_held(matched, tiles, atom) + beside + folded
    return max(needed, overlapped(schedule, matched, tiles, atom))


def doubt() -> int:
    """Registers by which `registers_needed` may be too many."""
    found: int = read(FILE)["consumers"]["doubt"]
    return found
