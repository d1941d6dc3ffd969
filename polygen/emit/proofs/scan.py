"""Between a chain's products, as it is written: which scores enter which states, and under what.

Texts are run for tiles of keys at the beginning, in the middle and at the end, of rows of the first
tile and of later ones, all at once (`polygen.emit.proofs.score_tiles`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.elements import epilogue_type
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.score_tiles import HALVES, Tiles, both, combining, nothing_of, worth_of
from polygen.emit.proofs.stored import Writes, storing
from polygen.emit.proofs.threads import of_kernel, of_place, times
from polygen.emit.run_text import Called
from polygen.emit.text_functions import run
from polygen.emit.text_values import Register, as_bits, as_float, mixed, token
from polygen.errors import VerifyError
from polygen.lower.carried import carried
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.scan_work import Scan
from polygen.poly.chain_match import VALUES

_SEED = 5  # rows of which one has no key yet


@proof("advance", "threads", Scan, alone=True)
def _(plan: KernelPlan, leaf: Leaf, scan: Scan, texts: tuple[str, ...]) -> None:
    tiles, terms, state = Tiles.of(plan, leaf.place, scan), scan.advance, scan.reference
    assert terms is not None and state is not None
    nothing, before = nothing_of(state), tiles.by_row(state.register)
    before = np.where(tiles.row % _SEED == 0, nothing, before).reshape(-1, tiles.threads)
    scores = tiles.scores(scan, terms)
    made, lets_through = tiles.terms(scan, terms, scores, {})
    names = tiles.names | {"scores": tiles.register(scores), f"{state.register}[]": before}
    names |= tiles.beside(scan)
    left = run(read(texts[0]), names, tiles.threads, tiles.handlers(scan, terms)).names
    tiles.check_scores(left["scores"], [made[:, 0], lets_through[:, 0]], tiles.inside)
    before = np.where(tiles.names["k"] == 0, nothing, before)
    # A score's term is what the text makes of it, which has just been compared.
    own = left["scores"].base.reshape(scores.shape)
    own = np.where(tiles.inside, own, nothing)
    now = tiles.of_lanes(tiles.combined(own, nothing), nothing)
    after = both(now, before, nothing)
    tiles.check_rows(left[state.register], [after], state.value)
    tiles.check_rows(left["correction"], [worth_of(scan, before, after)], "the correction")


@proof("weigh", "threads", Scan, alone=True)
def _(plan: KernelPlan, leaf: Leaf, scan: Scan, texts: tuple[str, ...]) -> None:
    tiles, terms, reference = Tiles.of(plan, leaf.place, scan), scan.weigh, scan.reference
    names, given = dict(tiles.names), {}
    correction = tiles.by_row("correction")
    if reference is not None:
        nothing = nothing_of(reference)
        held = np.where(tiles.row % _SEED == 0, nothing, tiles.by_row(reference.register))
        names |= {reference.register: tiles.of_rows(held), "correction": tiles.of_rows(correction)}
        own = np.where(held == nothing, as_float(0), held)
        given["reference"] = own[:, None, list(tiles.halves)]
    scores = tiles.scores(scan, terms)
    made, lets_through = tiles.terms(scan, terms, scores, given)
    before = {s.value: tiles.by_thread(s.register) for s in scan.summed}
    names |= {f"{s.register}[]": before[s.value].reshape(-1, tiles.threads) for s in scan.summed}
    names[scan.scores] = tiles.register(scores)
    names |= tiles.beside(scan)
    stored: Writes = []
    handlers = tiles.handlers(scan, terms)
    handlers |= storing(stored, (epilogue_type(one.tensor) for one in scan.returned))
    left = run(read(texts[0]), names, tiles.threads, handlers).names
    kept = [name.removesuffix("_kept") for name in terms.results]
    folded = (nothing_of(s) for s in scan.summed if s.term == kept[0])
    outside = next(folded, as_float(0))
    products = [np.where(tiles.inside, one[:, 0], outside) for one in (made, lets_through)]
    tiles.check_scores(left[scan.scores], products, np.ones((), bool))
    for s in scan.summed:
        at = kept.index(s.term)
        nothing = nothing_of(s)
        scaled = before[s.value] * correction if s.rescaled else before[s.value]
        first = np.where(tiles.names["k"] == 0, nothing, scaled).reshape(-1, tiles.threads)
        ways = []
        for one in (made, lets_through):
            part = tiles.combined(np.where(tiles.inside, one[:, at], nothing), nothing)
            ways.append(both(first, part, nothing))
        tiles.check_rows(left[s.register], ways, s.value)
    results = {one.name: made[:, kept.index(one.name)] for one in scan.returned}
    tiles.check_stored(scan, stored, results)


@proof("rescale", "threads", Scan)
def _(plan: KernelPlan, leaf: Leaf, scan: Scan, texts: tuple[str, ...]) -> None:
    one, (own, count) = token("1.0f"), of_place(plan, leaf.place)
    rows, columns = plan.tiles.atoms[0], plan.tiles.warp[1] // plan.atom.n
    c, lane = plan.atom.c, np.arange(count) % plan.device.warp_size
    # Each row is scaled, none is, and one that a lane of every warp has: its first, or its second.
    scaled = [np.full((rows, HALVES, count), whole) for whole in (True, False)]
    for half in range(HALVES):
        scaled.append(np.zeros((rows, HALVES, count), bool))
        scaled[-1][:, half] = lane == 3 + half
    ways = len(scaled)
    own_numbers = mixed("correction", np.arange(rows * HALVES * count * ways))
    each = np.concatenate(scaled, axis=-1)
    correction = np.where(each, own_numbers.reshape(each.shape), one)
    sums = mixed("sum", np.arange(rows * columns * c.variables * count * ways))
    sums = sums.reshape(rows, columns, c.variables, count * ways)
    names = of_kernel(plan, {}) | times(own, ways)
    names["correction"] = Register(correction.reshape(-1, count * ways), 0, (rows, HALVES))
    held = Register(sums.reshape(-1, count * ways).copy(), 0, sums.shape[:3])
    every = {"__all_sync": lambda called: _of_warps(plan, called)}
    run(read(texts[0]), names | {"sum": held}, count * ways, every)
    halves = [half for half, _ in c.of_thread]
    wanted = sums * correction[:, None, halves]
    wanted[..., count : 2 * count] = sums[..., count : 2 * count]
    wrong = held.base != wanted.reshape(held.base.shape)
    if wrong.any():
        at, thread = (int(one[0]) for one in np.nonzero(wrong))
        raise VerifyError(f"register {at} of sum in thread {thread} is not for its row's reference")


@proof("convert", "threads", Scan)
def _(plan: KernelPlan, leaf: Leaf, scan: Scan, texts: tuple[str, ...]) -> None:
    tiles, atom = Tiles.of(plan, leaf.place, scan), plan.atom
    order = np.array(carried(atom).order or range(atom.k))
    kind = plan.match.operand(VALUES).tensor.dtype
    scores = mixed("score", tiles.row_of_each, tiles.key_of_each)
    names = tiles.names | {scan.scores: tiles.register(scores)}
    left = run(read(texts[0]), names, tiles.threads, {"split_to_tf32": _split})
    left = left.names[scan.weights].base
    own = atom.a.table[tiles.names["thread"] % atom.lanes]
    corner = tiles.row[:, 0] - atom.c.table[tiles.names["thread"] % atom.lanes, 0, 0]
    each = atom.a.elements_per_register
    first = tiles.names["first key"]
    steps, registers = scan.columns // atom.k, atom.a.registers
    for m, s, register in np.ndindex(plan.tiles.atoms[0], steps, registers):
        at = own[:, register * each : (register + 1) * each]
        values = [
            mixed("score", corner[m] + at[:, h, 0], first + s * atom.k + order[at[:, h, 1]])
            for h in range(each)
        ]
        wanted = [mixed(f"pack_{kind}", *values)]
        if each == 1:
            bits = as_bits(values[0])
            wanted = [mixed(f"{part}_to_tf32", bits) for part in ("round", "rest")[: atom.pieces]]
        for piece, one in enumerate(wanted):
            place = piece * registers + register
            if not np.array_equal(left[(m * steps + s) * registers * atom.pieces + place], one):
                raise VerifyError(
                    f"{scan.weights}[{m}][{s}][{place}] is not of the scores that the instruction "
                    "takes it for"
                )


@proof("complete", "threads", Scan)
def _(plan: KernelPlan, leaf: Leaf, scan: Scan, texts: tuple[str, ...]) -> None:
    tiles = Tiles.of(plan, leaf.place, scan)
    held = {s.register: tiles.by_thread(s.register) for s in scan.summed}
    names = tiles.names | {name: tiles.of_rows(one) for name, one in held.items()}
    run(read(texts[0]), names, tiles.threads, combining(scan))
    for s in scan.summed:
        own = held[s.register].reshape(-1, tiles.threads)
        tiles.check_rows(names[s.register], [tiles.of_lanes(own, nothing_of(s))], s.value)


def _split(called: Called) -> None:
    """The nearest tf32 of a number, and the one nearest to what that leaves."""
    first, rest = called.arguments
    rest.store(mixed("rest_to_tf32", first.value))
    first.store(mixed("round_to_tf32", first.value))


def _of_warps(plan: KernelPlan, called: Called) -> Any:
    """Whether something holds in all lanes of a warp, all of which ask."""
    if not called.state.who().all():
        raise VerifyError("not all of a warp ask whether it holds in all of it")
    lanes = plan.device.warp_size
    value = np.broadcast_to(called.arguments[1].value, (called.state.threads,)).astype(bool)
    return np.repeat(value.reshape(-1, lanes).all(axis=1), lanes)
