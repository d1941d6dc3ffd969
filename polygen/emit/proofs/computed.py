"""What chunks of computed operands have to be, and what texts read and write them with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.element_types import name_of
from polygen.emit.leaf.computed_chunk import element_lines, of_bytes, packing, stored_type
from polygen.emit.proofs.stored import Writes
from polygen.emit.proofs.threads import Arrays, Integers, address, coordinate, words_of
from polygen.emit.run_text import Called, Handler
from polygen.emit.text_functions import run
from polygen.emit.text_values import Register, mixed, number_of
from polygen.errors import VerifyError
from polygen.lower.computed import Computed, Fetch
from polygen.poly.elements import Element

_WORD, _WORDS = 4, 4  # bytes of one, and how many a chunk has


def chunks(words: Sequence[Any], amount: Integers) -> Any:
    """Chunks as far as they go: words of which there is any, and how many bytes there are."""
    kept = [np.where(amount > _WORD * at, one, 0) for at, one in enumerate(words)]
    return mixed("chunk", *kept, amount)


def writing(written: Writes) -> Handler:
    """What writes words to an address, zeros behind so many bytes of them."""

    def write(called: Called) -> None:
        who, held = called.state.who(), called.arguments[1].held(_WORDS)
        place, amount = called.of_all(0)[who], called.of_all(2)[who]
        words = [np.broadcast_to(one, who.shape)[who] for one in held]
        written.append((place, chunks(words, amount)))

    return write


def spaced(arrays: Arrays) -> Handler:
    """What reads elements that are so many bytes apart, as far as there are any."""

    def read_spaced(called: Called) -> None:
        words, each = map(int, called.template)
        first, step, left = (called.of_all(number) for number in range(1, 4))
        who, found = called.state.who(), []
        if each < 1 or (step % each).any():
            raise VerifyError(f"elements of {each} bytes are read {int(step.max())} bytes apart")
        for at in range(words * _WORD // each):
            place, own = first + at * step // each, who & (left > at)
            value: Any = 0
            if own.any():
                begin, tensor = arrays.of(place, own)
                if tensor.dtype.bytes != each:
                    raise VerifyError(f"elements of {tensor.name} are read as {each} bytes")
                value = arrays.element(place, own, begin, tensor)
            found.append(np.where(own, value, 0))
        called.arguments[0].fill(words_of(found, each))

    return read_spaced


def words_of_chunks(
    of: Computed,
    reads: Sequence[Element],
    names: Mapping[str, Any],
    arrays: Arrays,
    at: Mapping[str, Any],
    first: Integers,
    length: Any,
    *,
    rounded: bool,
) -> list[Any]:
    """The words of chunks, as the program makes their elements.

    Behind the end of a row elements are made of zeros, but of what is one for the row or its group;
    nobody stores them.

    Args:
        of: how chunks are computed.
        reads: of what.
        names: of arguments, and of dims that are at one place.
        arrays: what is read.
        at: where each chunk is along the other dims.
        first: where it begins along its row.
        length: of rows.
        rounded: as for `makes`.
    """
    count, threads = of.elements, len(first)
    column = (first + np.arange(count)[:, None]).ravel()
    own = {dim: np.tile(one, count) for dim, one in at.items()}
    where = own | {of.dims[1]: np.minimum(column, length - 1)}
    if of.moved is not None:
        (source,) = reads
        there = np.where(_there(of.moved, column, length), 1, 0).astype(bool)
        stored = arrays.stored(address(names, source.tensor, source.index, where))
        found = np.where(there, stored, 0).reshape(count, threads)
        return [np.asarray(one) for one in words_of(list(found), of.dtype.bytes)]
    values = {one.name: one.name for one in reads} | {name: name for name, _ in of.coordinates}
    kinds = {one.name: stored_type(one.tensor) for one in reads}
    halves, known = {}, dict[str, Any]({"e": 0, "half": column % 2})
    for result, kind, fetch in of_bytes(of):
        source = next(one for one in reads if one.name == fetch.name)
        place = address(names, source.tensor, source.index, where)
        known[f"{fetch.name}_bits"] = np.where(
            _there(fetch, column, length), arrays.stored(place), 0
        )
        halves[result] = kind, f"from_{kind}({fetch.name}_bits, half)"
    lines, _ = element_lines(of.statements, values, kinds, halves, of.dtype)
    fetches = {fetch.name: fetch for fetch in of.fetches}
    for one in reads:
        number, zero = arrays.number(names, one, where), number_of(name_of(one.tensor.dtype), 0)
        known[one.name] = np.where(_there(fetches[one.name], column, length), number, zero)
    where[of.dims[1]] = column
    known |= {name: coordinate(names, along, where) for name, along in of.coordinates}
    made = Register(np.zeros((1, len(column)), np.int64), 0, (1,))
    run(read("\n".join(lines)), known | {"made": made}, len(column))
    elements = Register(made.base[0].reshape(count, threads), 0, (count,))
    words = Register(np.zeros((_WORDS, threads), np.int64), 0, (_WORDS,))
    loop = f"for (int i = 0; i < {_WORDS}; ++i) {packing(of, rounded=rounded)}"
    run(read(loop), {"made": elements, "w": words}, threads)
    return list(words.base)


def _there(fetch: Fetch, column: Integers, length: Any) -> Any:
    """Whether elements of an array are read for columns, some of them behind the end of a row."""
    if fetch.kind not in ("run", "spaced"):
        return np.ones_like(column, bool)
    return column // fetch.per[1] * fetch.per[1] < length
