"""Sums -> results, as it is written: every element of a tile once, made of its own numbers.

Texts are run for the first block, and for one whose tile ends outside: what they store, and the
terms that they fold, are those of the elements that threads hold.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.elements import does_nothing, outcomes
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.blocks import blocks
from polygen.emit.text_functions import run
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Epilogue
from polygen.lower.scan_work import RowStore


@proof("edge", "threads", Epilogue)
def _(plan: KernelPlan, leaf: Leaf, e: Epilogue, texts: tuple[str, ...]) -> None:
    if does_nothing(e):
        return _require_nothing(texts[0])
    block = blocks(plan, leaf.place, e)
    # One element of each thread, of those that others have not.
    every, own = block.places(0, 0), np.arange(block.threads)
    row, column = (one[own, own % one.shape[1]] for one in every)
    _, alone = np.unique(row << 32 | column, return_index=True)
    inside = block.inside(row, column) & np.isin(own, alone)
    names = block.names | {"row": row, "column": column - column % 2, "e": column % 2}
    names |= {fold.value: block.known(fold, row) for fold in e.known}
    names |= {total: block.number(q, row, column) for q, (_, total) in enumerate(e.sums)}
    names |= {f"{name}_out": 0 for name in outcomes(e)} | {"inside": inside}
    text = f"if (inside) {{ {texts[0]} }}"
    state = run(read(text), names, block.threads, block.handlers())
    row, column = row[inside], column[inside]
    block.check_stored(row, column)
    made = block.element(row, column)
    for name, value in list(zip(outcomes(e), made, strict=True))[len(e.writes) :]:
        if not np.array_equal(state.names[f"{name}_out"][inside], value):
            raise VerifyError(f"{name} is another")


@proof("store_pairs", "threads", Epilogue)
def _(plan: KernelPlan, leaf: Leaf, e: Epilogue, texts: tuple[str, ...]) -> None:
    if does_nothing(e):
        return _require_nothing(texts[0])
    _pairs(plan, leaf, e, texts[0], {})


def _require_nothing(text: str) -> None:
    """A section does nothing in a pass in which it folds nothing."""
    if text.strip():
        raise VerifyError(f"{text.strip()} is run, where nothing is folded")


@proof("store_streamed", "threads", Epilogue)
def _(plan: KernelPlan, leaf: Leaf, e: Epilogue, texts: tuple[str, ...]) -> None:
    for first_columns in (False, True):
        rows = plan.tiles.atoms[0]
        block = blocks(plan, leaf.place, e, "m", rows, first_columns=first_columns)
        names = block.names | block.folding()
        run(read(texts[0]), names, block.threads, block.handlers())
        block.check_folded(names)


@proof("store_rows_of_states", "threads", RowStore)
def _(plan: KernelPlan, leaf: Leaf, work: RowStore, texts: tuple[str, ...]) -> None:
    _pairs(plan, leaf, work.epilogue, texts[0], dict(work.states))


def _pairs(plan: KernelPlan, leaf: Leaf, e: Epilogue, text: str, states: Mapping[str, str]) -> None:
    """Every element of a tile leaves the thread that has its sum, beside its neighbour."""
    columns = plan.tiles.columns // plan.atom.n
    block = blocks(plan, leaf.place, e, "m", plan.tiles.atoms[0], states=states)
    names = block.names | block.registers() | block.rows_known() | block.folding()
    run(read(text), names, block.threads, block.handlers())
    if e.writes:
        places = [block.places(names["m"], n) for n in range(columns)]
        row, column = (np.concatenate(one).ravel() for one in zip(*places, strict=True))
        block.check_stored(row, column)
    block.check_folded(names)
