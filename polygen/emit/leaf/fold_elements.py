"""Elements that stream from memory into folds, beside sums that are 0.

A lane has elements beside each other, of several rows. Where all of these lie inside, it reads some
rows in words before it folds any of them; of some folds it combines several terms at once. Else
elements go alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from polygen.emit.doubles import literal_of
from polygen.emit.fold_terms import of_streamed, streamed_kept, streamed_terms
from polygen.emit.leaf.elements import combined_at, outcomes, vector_record
from polygen.emit.leaf.table import Text, filled, leaf
from polygen.emit.leaves import extent_names, plus, real_of
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Epilogue, FoldPart
from polygen.lower.work import Clear, Product

_ROW = "r"  # the number of a lane's row


@leaf("zero", "none", Clear)
def _(plan: KernelPlan, one: Leaf, work: Clear) -> Text:
    return Text("", f"{one.statement}: sums of zeros are 0, in no register")


@leaf("multiply", "none", Product)
def _(plan: KernelPlan, one: Leaf, work: Product) -> Text:
    return Text("", f"{one.statement}: products of zeros, which leave them so")


@leaf("store_streamed", "threads", Epilogue, ("m",))
def _(plan: KernelPlan, one: Leaf, e: Epilogue) -> Text:
    extents, real, columns = extent_names(plan), real_of(plan), e.vector
    rows, zero = len(e.element_offsets) // columns, literal_of(0.0, real)
    zeros = ", ".join([zero] * columns)
    alone = tuple(fold for fold in e.folds if fold not in e.together)
    row = f"{e.row_base} + m * {plan.atom.m} + {plus(e.row_of_lane, 0)}"
    step = e.element_offsets[columns][0]
    record = vector_record(e, real) | {
        "m_extent": extents["m"],
        "n_extent": extents["n"],
        "column": f"{e.column_base} + n * {plan.atom.n} + {e.column_of_lane}",
        "atoms_n": plan.tiles.atoms[1],
        "rows": rows,
        # Loops that registers are named by, and so have to be unrolled.
        "of_rows": any(fold.along == "m" for fold in e.folds),
        "of_columns": any(fold.along != "m" for fold in e.folds),
        "batch": e.batch,
        "first_row": row,
        "row": f"first_row + {_ROW}" if step == 1 else f"first_row + {_ROW} * {step}",
        "last": f"first_row + {(rows - 1) * step}",
        "terms": [f"{name}_out" for name in outcomes(e)],
        "zeros": [f"const {real} {total}s[{columns}] = {{ {zeros} }};" for _, total in e.sums],
        "sums": [zero for _ in e.sums],
        "arrays": streamed_terms(e, real),
        "kept": streamed_kept(e),
        "folds": _folded(plan, alone, "e"),
        "folds_alone": _folded(plan, e.folds, "0"),
        "combines": of_streamed(e, _place, real),
    }
    comment = f"{one.statement}[m]: {columns} elements of each of {rows} rows of a lane, into folds"
    return Text(filled("fold_elements_threads", record), comment)


def _place(fold: FoldPart) -> str:
    """Which of a fold's registers takes element `e` of a lane's row `r`."""
    turn = f"[e % {fold.registers}]" if fold.registers > 1 else "[0]"
    own = {"n": "[n][e]", "m": f"[m][{_ROW}]", "": "[0][0]"}[fold.along]
    return own + turn


def _folded(plan: KernelPlan, folds: Sequence[FoldPart], at: str) -> list[str]:
    """Terms of an element combined into registers; `at`: which of those at hand."""
    places = [_place(fold) for fold in folds]
    return combined_at(folds, places, at, real=real_of(plan), behind=False)
