"""Products, as they are written: registers of instructions and, by lanes, chunks of rows.

Chunks are read for the first k tile and the last, of which the end is outside. The lanes' parts of
a sum are added up, in whatever order, and every element inside is finished once, of its own sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.blocks import end
from polygen.emit.proofs.stored import Wanted, Writes, check_writes
from polygen.emit.proofs.threads import Arrays, address, of_kernel, of_place, size, words_of
from polygen.emit.run_text import Called
from polygen.emit.text_functions import run
from polygen.emit.text_values import Register, mixed
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Epilogue
from polygen.lower.ring_tiles import steps_of
from polygen.lower.work import Clear, Product, Stream

_WORDS = 4  # of a chunk
_CHUNK = 16  # bytes


@proof("load", "lanes", Stream)
def _(plan: KernelPlan, leaf: Leaf, work: Stream, texts: tuple[str, ...]) -> None:
    tiles, atom, own = plan.tiles, plan.atom, plan.match.operand(work.operand)
    (rows, depth), count = work.copy.extents, tiles.warp["mn".index(work.role)]
    each = atom.k // atom.lanes
    ends = {str(rows): end(plan, work.role), str(depth): tiles.cta[2] + atom.k // 2 + each}
    names = of_kernel(plan, ends)
    place, threads = of_place(plan, leaf.place)
    rows, depth = size(names, rows), size(names, depth)
    block = (rows - 1) // tiles.cta["mn".index(work.role)]
    names |= place | {f"b_{work.role}": block}
    arrays, last = Arrays(plan, names), (depth - 1) // tiles.cta[2]

    def chunk(called: Called) -> None:
        state, inside = called.state, called.of_all(2).astype(bool)
        before, state.mask = state.mask, inside & called.state.who()
        words: list[Any] = [0] * _WORDS
        if not state.nobody:
            given = Called(state, called.name, (), [called.arguments[1]])
            words = [np.where(inside, one, 0) for one in arrays.words(given, _CHUNK)]
        state.mask = before
        called.arguments[0].fill(words)

    first = block * tiles.cta["mn".index(work.role)]
    first = first + names[f"w_{work.role}"] * count
    for k, s in [(k, s) for k in sorted({0, last}) for s in range(tiles.k_steps)]:
        dims = (work.slots, count, _WORDS)
        held = mixed("held", np.arange(np.prod(dims))[:, None], np.arange(threads))
        register = Register(held.copy(), 0, dims)
        known = names | {f"fragment_{work.operand}": register, "k": k, "s": s}
        run(read(texts[0]), known, threads, {"chunk_read": chunk, "chunk_read_once": chunk})
        wanted = held.reshape(*dims, threads).copy()
        for i in range(count):
            at = k * tiles.cta[2] + s * atom.k + names["lane"] * each
            elements = []
            for e in range(each):
                inside = np.minimum(first + i, rows - 1), np.minimum(at + e, depth - 1)
                where = dict(zip((work.role, "k"), inside, strict=True))
                found = arrays.stored(address(names, own.tensor, own.index, where))
                elements.append(np.where(at + e < depth, found, 0))
            wanted[s % work.slots, i] = words_of(elements, own.tensor.dtype.bytes)
        wrong = register.base.reshape(wanted.shape) != wanted
        if wrong.any():
            slot, row, word, thread = (int(one[0]) for one in np.nonzero(wrong))
            raise VerifyError(
                f"word {word} of row {row}, slot {slot}, of thread {thread} is not of its own "
                f"elements, at k = {k}, s = {s}"
            )


@proof("multiply", "dot", Product)
def _(plan: KernelPlan, leaf: Leaf, work: Product, texts: tuple[str, ...]) -> None:
    slots = {stream.operand: stream.slots for stream in plan.of(Stream)}
    _check_products(plan, work, texts[0], "add_products", [slots[name] for name in work.operands])


@proof("zero", "none", Clear)
def _(plan: KernelPlan, leaf: Leaf, work: Clear, texts: tuple[str, ...]) -> None:
    _require_zeros(plan, texts[0])


@proof("multiply", "none", Product)
def _(plan: KernelPlan, leaf: Leaf, work: Product, texts: tuple[str, ...]) -> None:
    _require_zeros(plan, texts[0])


def _require_zeros(plan: KernelPlan, text: str) -> None:
    """Nothing is run, and nothing has to be: all that is multiplied is 0."""
    if text.strip() or not plan.match.of_zeros:
        raise VerifyError(f"{text.strip() or 'nothing'} is run for products of {plan.match.a}")


@proof("multiply", "mma.sync", Product)
def _(plan: KernelPlan, leaf: Leaf, work: Product, texts: tuple[str, ...]) -> None:
    slots = [plan.schedule.pipeline.fragments] * len(work.operands)
    _check_products(plan, work, texts[0], "multiply", slots)


def _check_products(
    plan: KernelPlan, work: Product, text: str, function: str, slots: Sequence[int]
) -> None:
    """Each instruction adds the products of its own registers to its own sums.

    Args:
        plan: the kernel.
        work: the products.
        text: of one of them.
        function: that makes it.
        slots: steps of each operand that registers hold.

    Raises:
        VerifyError: with the sums that it does not.
    """
    rows, columns = plan.tiles.atoms
    columns, steps = work.columns // plan.atom.n or columns, steps_of(plan, work.operands[1])
    held = [
        (f"fragment_{name}", (many, count, _WORDS))
        for name, many, count in zip(work.operands, slots, (rows, columns), strict=True)
    ]
    if work.fragment:  # of scores, by row and step
        held[0] = (work.fragment.partition("[")[0], (rows, steps, _WORDS))
    names: dict[str, Any] = {
        name: Register(mixed(name, np.arange(np.prod(dims))[:, None]), 0, dims)
        for name, dims in held
    }
    each = plan.atom.c.variables
    for s, m, n in np.ndindex(steps, rows, columns):
        base = mixed("sum", np.arange(rows * columns * each)[:, None])
        sums, wanted = Register(base.copy(), 0, (rows, columns, each)), base.copy()
        words = []
        for (name, dims), many, at in zip(held, slots, (m, n), strict=True):
            own = (m, s) if work.fragment and name == held[0][0] else (s % many, at)
            words += names[name].base.reshape(dims)[own].tolist()
        first = (m * columns + n) * each
        before = base[first : first + each, 0].tolist()
        made = [mixed("products", at, *before, *words) for at in range(each)]
        wanted[first : first + each, 0] = made
        known = names | {work.total: sums, "s": s, "m": m, "n": n}
        run(read(text), known, 1, {function: _products})
        if not np.array_equal(sums.base, wanted):
            raise VerifyError(f"{work.total}[{m}][{n}] is not of its own registers, at s = {s}")


def _products(called: Called) -> None:
    (of,) = called.arguments[0].place.dims
    given = [
        np.asarray(word).item() for one in called.arguments for word in one.held(one.place.dims[0])
    ]
    called.arguments[0].fill([np.array([mixed("products", at, *given)]) for at in range(of)])


@proof("store", "lanes", Epilogue)
def _(plan: KernelPlan, leaf: Leaf, e: Epilogue, texts: tuple[str, ...]) -> None:
    extents, (rows, columns) = dict(plan.extents), plan.tiles.atoms
    names = of_kernel(plan, {str(extents[role]): end(plan, role) for role in "mn"})
    place, threads = of_place(plan, leaf.place)
    ends = [size(names, extents[role]) for role in "mn"]
    corner = [(one - 1) // cta for one, cta in zip(ends, plan.tiles.cta[:2], strict=True)]
    names |= place | {"b_m": corner[0], "b_n": corner[1]}
    lanes, number = plan.device.warp_size, np.arange(rows * columns)[:, None]
    for _, total in e.sums:
        base = mixed(total, number, np.arange(threads))
        names[total] = Register(base, 0, (rows, columns, 1))
    found = Writes()

    def of_lanes(called: Called) -> Any:
        if not called.state.who().all():
            raise VerifyError("not all lanes of a warp have a part of a sum that is added up")
        return np.repeat(called.of_all(0).reshape(-1, lanes).sum(axis=1), lanes)

    def finish(called: Called) -> None:
        who, (row, column, more, *sums) = called.state.who(), called.values
        at = _at(row, column + more)
        found.append(tuple(np.broadcast_to(x, who.shape)[who] for x in (at, mixed("of", *sums))))

    handlers = {"sum_of_lanes": of_lanes, "finish_element": finish}
    wanted = []
    for m, n in np.ndindex(rows, columns):
        row, column = (
            names[f"b_{role}"] * cta + names[f"w_{role}"] * warp + at
            for role, cta, warp, at in zip(
                "mn", plan.tiles.cta, plan.tiles.warp, (m, n), strict=False
            )
        )
        if n == 0:
            run(read(texts[0]), names | {"m": m}, threads, handlers)
        sums = [names[total].base[m * columns + n].reshape(-1, lanes).sum(1) for _, total in e.sums]
        row, column = (np.broadcast_to(one, (threads,))[::lanes] for one in (row, column))
        own = (row < ends[0]) & (column < ends[1])
        value = mixed("of", *sums)[own]
        wanted.append(Wanted("sum", _at(row, column)[own], value, (row[own], column[own])))
    check_writes(found, wanted)


def _at(row: Any, column: Any) -> Any:
    return row * (1 << 20) + column


@proof("zero", "threads", Clear)
def _(plan: KernelPlan, leaf: Leaf, work: Clear, texts: tuple[str, ...]) -> None:
    columns = work.columns // plan.atom.n or plan.tiles.atoms[1]
    dims = (plan.tiles.atoms[0], columns, plan.atom.c.variables)
    names = {
        total: Register(mixed(total, np.arange(np.prod(dims))[:, None]), 0, dims)
        for total in work.totals
    }
    run(read(texts[0]), names, 1)
    for total, found in names.items():
        if found.base.any():
            raise VerifyError(f"{total} is not 0 before its products")
