"""Tiles of scores, as threads have them, and what is combined of their rows.

What combines terms knows what combines to nothing, and adds up the rest: so a state tells which
terms it is made of. What is computed of one score is compared with the program's statements on the
program's numbers; that short polynomials are tangents (`..._within`) is not proved, but where they
are taken is.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.folds import identities
from polygen.emit.leaf.elements import epilogue_type
from polygen.emit.leaf.scan_correction import correction_lines
from polygen.emit.leaf.score_terms import called, near, terms_lines, unmasked, within
from polygen.emit.names import c_name
from polygen.emit.proofs.stored import Wanted, Writes, check_writes
from polygen.emit.proofs.threads import (
    Arrays,
    address,
    coordinate,
    evaluated,
    of_kernel,
    of_place,
    size,
    times,
)
from polygen.emit.run_text import Called, Handler
from polygen.emit.text_functions import run
from polygen.emit.text_values import Register, as_float, mixed
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan
from polygen.lower.scan_work import Scan, ScanState, Terms
from polygen.lower.verify_scan import scored_by
from polygen.poly.chain_layers import nth
from polygen.poly.key_tiles import FIRST

HALVES = 2  # rows of an instruction that a thread has elements of


# --- what is combined ----------------------------------------------------------------------------
def nothing_of(state: ScanState) -> Any:
    """What combines to nothing."""
    return evaluated(identities(state.monoid)[0], {})


def both(one: Any, other: Any, nothing: Any) -> Any:
    """Two combined: of those that are nothing, the other."""
    found = np.where(one == nothing, 0, one) + np.where(other == nothing, 0, other)
    return np.where((one == nothing) & (other == nothing), nothing, found)


def worth_of(scan: Scan, before: Any, after: Any) -> Any:
    """What is worth how much under a new reference that was summed under another."""
    assert scan.reference is not None
    nothing = nothing_of(scan.reference)
    lines, value, _ = correction_lines(scan)
    given = {"before": before, "after": np.where(after == nothing, as_float(0), after)}
    shape = np.broadcast_shapes(np.shape(before), np.shape(after))
    worth = _made(lines, given, {"value": value}, shape)["value"]
    return np.where(before == nothing, as_float(0), worth)


def combining(scan: Scan) -> dict[str, Handler]:
    """What functions do that combine terms of states."""

    def combine(nothing: Any, called: Called) -> None:
        into, value = called.arguments
        into.store(both(into.value, value.value, nothing))

    return {f"combine_{s.monoid}": functools.partial(combine, nothing_of(s)) for s in scan.states}


def _made(
    lines: list[str], given: Mapping[str, Any], wanted: Mapping[str, str], shape: tuple[int, ...]
) -> dict[str, Any]:
    """What lines make of numbers, whatever their shape; `wanted`: expressions of it."""
    count = int(np.prod(shape))
    names = {
        name: np.broadcast_to(one, shape).reshape(count) if np.ndim(one) else one
        for name, one in given.items()
    }
    left = run(read("\n".join(lines)), names, count).names
    return {
        name: np.broadcast_to(evaluated(text, left, count), (count,)).reshape(shape)
        for name, text in wanted.items()
    }


# --- tiles of scores -----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of scores, and the threads that have them, tile behind tile.

    Attributes:
        plan: the kernel.
        names: what threads know; "first key": of their tile.
        threads: how many, in all tiles.
        arrays: in global memory.
        row: of threads: their rows, by instruction and half.
        row_of_each: rows of scores, by instruction, group of columns and element.
        key_of_each: keys likewise.
        inside: which of these there are.
        halves: which of its rows an element is in.
        small: in which threads all scores are as small as short polynomials need.
    """

    plan: KernelPlan
    names: dict[str, Any]
    threads: int
    arrays: Arrays
    row: Any
    row_of_each: Any
    key_of_each: Any
    inside: Any
    halves: tuple[int, ...]
    small: Any

    @staticmethod
    def of(plan: KernelPlan, place: str, scan: Scan) -> Tiles:
        """The first tile of keys, one in the middle and the last, which ends inside.

        A layer has one tile, which has all of its columns.
        """
        keys, rows = scan.keys, plan.match.m
        cta_m, cta_k, atom = plan.tiles.cta[0], scan.columns, plan.atom
        # The last rows are behind all keys: masks leave them what rows before do not have.
        some = 3 * max(cta_m, cta_k) + 2 * cta_m
        # What is stored ends inside of both halves' rows: of the first, where the second has none.
        short = 3 + (atom.c.half_rows if scan.returned else 0)
        ends = {str(rows): some - min(short, cta_m - 1), str(keys): 3 * cta_k - min(5, cta_k - 1)}
        if keys == rows:
            ends = {str(rows): some - min(5, cta_m - 1, cta_k - 1)}
        names = of_kernel(plan, ends)
        last_row, last = (size(names, rows) - 1) // cta_m, (size(names, keys) - 1) // cta_k
        middle = min(1, last)
        beside = min(middle * cta_k // cta_m, last_row)  # the rows of these numbers
        at = [(0, 0, False), (last_row, 0, True), (last_row, middle, False)]
        at += [(beside, middle, True), (last_row, last, False), (0, last, True)]
        own, count = of_place(plan, place)
        threads, table = count * len(at), atom.c.table
        names |= times(own, len(at))
        b_m, tile, small = (np.repeat(np.array(one), count) for one in zip(*at, strict=True))
        first = np.minimum(tile, 1) if plan.key_tiles is not None else np.zeros_like(tile)
        names |= {"b_m": b_m, "k": tile - first, FIRST: first, "first key": tile * cta_k}
        # Of matrices of their own, so that what masks all keys of one leaves those of another.
        for number, (dim, extent) in enumerate(plan.batches):
            matrices = (1 + number + np.arange(len(at))) % size(names, extent)
            names[dim] = np.repeat(matrices, count)
        m, n = (np.arange(one) for one in (plan.tiles.atoms[0], cta_k // atom.n))
        own_table = table[names["thread"] % atom.lanes]
        corner = b_m * cta_m + names["w_m"] * plan.tiles.warp[0]
        element = np.arange(len(atom.c.of_thread))
        shape = (len(m), len(n), len(element), threads)
        row = m[:, None, None, None] * atom.m + corner + own_table[:, element, 0].T
        key = n[:, None, None] * atom.n + tile * cta_k + own_table[:, element, 1].T
        row, key = np.broadcast_to(row, shape), np.broadcast_to(key, shape)
        halves = tuple(half for half, _ in atom.c.of_thread)
        rows_of = [row[:, 0, halves.index(half)] for half in range(HALVES)]
        inside = (key < size(names, keys)) & (row < size(names, rows))
        return Tiles(
            plan, names, threads, Arrays(plan, names), np.stack(rows_of, axis=1),
            row, key, inside, halves, small,
        )  # fmt: skip

    # --- registers -------------------------------------------------------------------------------
    def register(self, scores: Any) -> Register:
        """Scores, as threads hold them."""
        return Register(scores.reshape(-1, self.threads).copy(), 0, scores.shape[:3])

    def of_rows(self, numbers: Any) -> Register:
        """A number of each of a thread's rows."""
        return Register(numbers.reshape(-1, self.threads).copy(), 0, self.row.shape[:2])

    def by_row(self, name: str) -> Any:
        """Numbers of rows, which all lanes that have a row share."""
        return mixed(name, self.row, self.names["first key"])

    def by_thread(self, name: str) -> Any:
        """Numbers of rows in threads."""
        return mixed(name, self.row, np.arange(self.threads))

    def scores(self, scan: Scan, terms: Terms) -> Any:
        """The scores; where there is code for small ones, their sizes add up to what is small."""
        found = mixed("score", self.row_of_each, self.key_of_each)
        limit = near(scan, terms)
        if limit:
            most = evaluated(limit.replace("fabsf", ""), {}) + np.where(self.small, 0, 1)
            found[:, -1, -1] = 0
            found[:, -1, -1] = most - found.sum(axis=(1, 2))
        return found

    def others(self, number: int) -> Any:
        """The scores of another product of the same rows."""
        return mixed(nth("score", number), self.row_of_each, self.key_of_each)

    def beside(self, scan: Scan) -> dict[str, Register]:
        """The registers of these, by name."""
        names = scan.all_scores
        return {names[n]: self.register(self.others(n)) for n in range(1, len(names))}

    # --- what is computed of a score -------------------------------------------------------------
    def terms(self, scan: Scan, terms: Terms, scores: Any, given: Mapping[str, Any]) -> Any:
        """What the program makes of scores: results by instruction, group and element.

        Of several products of the same rows `scores` are the first one's.

        Returns:
            The same twice: as it is written with the mask, and, where nothing is masked, without.
        """
        scored = scored_by(self.plan, scan)
        rows, keys = size(self.names, self.plan.match.m), size(self.names, scan.keys)
        at = {
            "m": np.minimum(self.row_of_each, rows - 1),
            "n": np.minimum(self.key_of_each, keys - 1),
        }
        elements = {one.name: one for one in scored.reads}
        known: dict[str, Any] = {"score": scores, **given}
        known |= {nth("score", n): self.others(n) for n in range(1, len(scan.all_scores))}
        for one in terms.reads:
            name = c_name(one.tensor.name) if one.kind == "scalar" else one.name
            known[name] = self.arrays.number(self.names, elements[one.name], at)
        own = {"m": self.row_of_each, "n": self.key_of_each}
        known |= {name: coordinate(self.names, along, own) for name, along in terms.coordinates}
        results = {called(name): called(name) for name in terms.results}
        known |= dict.fromkeys(results, 0)
        ways = []
        for masked in (True, False):
            lines, _ = terms_lines(scan, terms, masked=masked)
            ways.append(_made(lines, known, results, scores.shape))
        passes = self._passes(terms)
        made = [np.stack([way[name] for name in results], axis=1) for way in ways]
        return made[0], np.where(passes[:, None], made[1], made[0])

    def _passes(self, terms: Terms) -> Any:
        """Where the range of keys, which the mask is, lets a score through."""
        visited = self.plan.key_tiles
        away = self.key_of_each - self.row_of_each
        if not terms.unmasked or visited is None or visited.held("lower") or visited.held("upper"):
            return np.zeros(away.shape, bool)
        found = np.ones(away.shape, bool)
        if visited.lower is not None:
            found &= away >= visited.lower
        if visited.upper is not None:
            found &= away <= visited.upper
        return found

    # --- what functions do -----------------------------------------------------------------------
    def handlers(self, scan: Scan, terms: Terms) -> dict[str, Handler]:
        """Of the functions that a text calls."""
        found = self.arrays.handlers() | combining(scan)
        if near(scan, terms):
            own = "term_of_reference" if terms is scan.advance else scan.called("terms_of_score")
            own = unmasked(own) if terms.unmasked else own
            found |= {
                within(own): lambda called: called.state.names[own](called),
                "fabsf": lambda called: called.arguments[0].value,
                "fmaxf": lambda called: called.values[0] + called.values[1],
                "__all_sync": self._all_small,
            }
        return found

    def _all_small(self, called: Called) -> Any:
        who = called.state.who()
        if (called.of_all(1) != self.small)[who].any():
            raise VerifyError("short polynomials are not taken where all scores are small")
        return self.small

    # --- what has to be --------------------------------------------------------------------------
    def combined(self, terms: Any, nothing: Any) -> Any:
        """The terms of a thread's rows, combined: by row, and thread."""
        some = np.where(terms == nothing, 0, terms)
        own = [[h == half for h in self.halves] for half in range(HALVES)]
        each = [some[:, :, one].sum(axis=(1, 2)) for one in own]
        found = np.stack(each, axis=1).reshape(-1, self.threads)
        return np.where(found == 0, nothing, found)

    def of_lanes(self, numbers: Any, nothing: Any) -> Any:
        """The numbers of all lanes that have elements of a row, combined."""
        lanes = self.plan.device.warp_size
        rows = self.row.reshape(-1, self.threads // lanes, lanes)
        own = np.where(numbers == nothing, 0, numbers).reshape(rows.shape)
        same = rows[..., :, None] == rows[..., None, :]
        found = (own[..., None, :] * same).sum(axis=-1).reshape(numbers.shape)
        return np.where(found == 0, nothing, found)

    def check_scores(self, found: Register, ways: Sequence[Any], where: Any) -> None:
        """What takes the places of scores is what the program makes of them.

        Args:
            found: the registers.
            ways: what they may hold.
            where: which of them matter, of rows that there are.

        Raises:
            VerifyError: with one that is not.
        """
        rows = self.row_of_each < size(self.names, self.plan.match.m)
        _check_dims(found, rows.shape[:3], "scores")
        self._check(found.base.reshape(rows.shape), ways, rows & where, "the score")

    def check_rows(self, found: Register, ways: Sequence[Any], what: str) -> None:
        """Numbers of rows are one of what they may be; `what`: their name.

        Raises:
            VerifyError: with one that is not.
        """
        shape, rows = self.row.shape, size(self.names, self.plan.match.m)
        _check_dims(found, shape[:2], what)
        self._check(
            found.base.reshape(shape), [one.reshape(shape) for one in ways], self.row < rows, what
        )

    def check_stored(self, scan: Scan, found: Writes, results: Mapping[str, Any]) -> None:
        """Every score that there is leaves its results, each at its own place, and nothing else.

        Args:
            scan: what is stored.
            found: what threads have stored.
            results: of every score, by name.

        Raises:
            VerifyError: with one that is not.
        """
        elements = {one.name: one for one in scored_by(self.plan, scan).writes}
        at = {"m": self.row_of_each, "n": self.key_of_each}
        wanted = []
        for one in scan.returned:
            place = address(self.names, one.tensor, elements[one.name].index, at)
            value = mixed(f"to_{epilogue_type(one.tensor)}", results[one.name])
            own = (each[self.inside] for each in (place, value, *at.values()))
            where, made, *index = own
            wanted.append(Wanted(one.tensor.name, where, made, tuple(index)))
        check_writes(found, wanted)

    def _check(self, found: Any, ways: Sequence[Any], where: Any, what: str) -> None:
        wrong = where & np.all([found != one for one in ways], axis=0)
        if not wrong.any():
            return
        at = tuple(int(one[0]) for one in np.nonzero(wrong))
        rows = self.row if wrong.ndim == self.row.ndim else self.row_of_each
        key = "" if rows is self.row else f", key {int(self.key_of_each[at])}"
        raise VerifyError(
            f"{what} of row {int(rows[at])}{key} is not made of its own numbers, "
            f"{int(wrong.sum())} in all"
        )


def _check_dims(found: Register, dims: tuple[int, ...], what: str) -> None:
    if found.dims != dims:
        raise VerifyError(f"{what} has registers of {found.dims}, not of {dims}")
