"""Which pieces of a tile threads have: every number in a formula, were it another, is refused."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from plan_samples import sample
from test_verify_accesses import plan

from polygen.errors import VerifyError
from polygen.hardware import formula
from polygen.hardware.swizzle import swizzle, swizzle_names
from polygen.lower.buffers import Rows
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import Lines, Warm
from polygen.lower.shares import (
    LANES,
    THREADS,
    Edge,
    Names,
    Share,
    check_edge,
    check_share,
    check_step,
    copy_share,
    edge,
    held_share,
    line_share,
    vector_share,
)
from polygen.lower.verify import verify
from polygen.lower.verify_memory import check_rows
from polygen.lower.verify_panels import check_visits

# Shares, with the tile, the threads, the parts, and what formulas call them.
CASES = {
    "a part": (copy_share((64, 64), 8, 128, 1), (64, 64), 128, 1, THREADS),
    "two parts": (copy_share((64, 64), 8, 128, 2), (64, 64), 128, 2, THREADS),
    "parts that are not alike": (copy_share((96, 32), 2, 128, 5), (96, 32), 128, 5, THREADS),
    "columns kept": (copy_share((64, 64), 8, 128, 2, 8), (64, 64), 128, 2, THREADS),
    "more threads than pieces": (copy_share((16, 16), 8, 128, 1), (16, 16), 128, 1, THREADS),
    "no whole passes": (copy_share((48, 40), 8, 128, 2), (48, 40), 128, 2, THREADS),
    "in registers": (held_share((48, 40), 8, 128), (48, 40), 128, 1, THREADS),
    "lines": (line_share((64, 32), 4, 128, "n"), (64, 32), 128, 1, THREADS),
    "columns": (line_share((64, 32), 1, 128, "m"), (64, 32), 128, 1, THREADS),
    "vectors": (vector_share((32, 64), 8, 32, 2), (32, 64), 32, 4, LANES),
    "vectors of few rows": (vector_share((16, 24), 8, 32, 1), (16, 24), 32, 2, LANES),
}
FORMULAS = ("piece", "row", "column", "first", "end", "beyond")


def changed(text: str) -> Iterator[str]:
    """A formula with each of its numbers one more and one less, and each comparison another."""
    for one in re.finditer(r"\b\d+\b", text):
        for number in (int(one[0]) + 1, int(one[0]) - 1):
            if number >= 0:
                yield f"{text[: one.start()]}{number}{text[one.end() :]}"
    for was, now in ((" < ", " <= "), (" <= ", " < "), (" >= ", " > "), (" / ", " % ")):
        if was in text:
            yield text.replace(was, now, 1)


def values(of: Share, text: str, threads: int, parts: int, called: Names) -> list[Any]:
    """What a formula gives for every part, piece and thread."""
    found: list[Any] = []
    for part in range(parts):
        names: dict[str, Any] = {called.part: part}
        first, end = (int(formula.value(one, names)) for one in (of.first, of.end))
        i, thread = np.indices((end - first, threads))
        names |= {"i": i + first, called.thread: thread}
        if of.piece:
            names[called.piece] = formula.value(of.piece, names)
        found += np.broadcast_to(formula.value(text, names), i.shape).ravel().tolist()
    return found


def right(name: str, field: str, text: str) -> bool:
    """Whether a change moves every piece once, too."""
    more = field == "end" and name in ("more threads than pieces", "in registers")  # nobody has any
    # The pieces of a pass in another order: threads still have one each.
    turned = (name, field) in (("lines", "column"), ("columns", "row")) and "i * 12" in text
    return (more and not text.startswith(("1", "(p + 0)", "(p + 1) * 0"))) or (
        turned and text.startswith(("(i * 127 ", "(i * 129 "))
    )


@pytest.mark.parametrize("name", CASES)
def test_every_piece_is_moved_once(name):
    check_share(*CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_another_number_is_refused(name):
    share, tile, threads, parts, called = CASES[name]
    tried = 0
    for field in FORMULAS:
        for text in changed(getattr(share, field)):
            own, other = getattr(share, field), dataclasses.replace(share, **{field: text})
            if "/ 0" not in text and "% 0" not in text:
                both = [values(share, one, threads, parts, called) for one in (own, text)]
                if both[0] == both[1]:  # as the number of the part is 0
                    continue
            if right(name, field, text):
                check_share(other, tile, threads, parts, called)
                continue
            tried += 1
            with pytest.raises(VerifyError):
                check_share(other, tile, threads, parts, called)
    assert tried > 5


def test_names_are_those_of_who_shares_a_tile():
    share, tile, threads, parts, _ = CASES["a part"]
    with pytest.raises(VerifyError, match="nothing is called lane here"):
        other = dataclasses.replace(share, piece=share.piece.replace("thread", "lane"))
        check_share(other, tile, threads, parts)


def test_threads_of_the_second_warpgroup_have_the_portions_that_the_first_ones_have():
    share, tile, threads, parts, called = CASES["lines"]
    check_share(share, tile, threads, parts, called, before=128)
    bare = dataclasses.replace(
        share, row=share.row.replace(" % 128", ""), column=share.column.replace(" % 128", "", 1)
    )
    check_share(bare, tile, threads, parts, called)
    with pytest.raises(VerifyError, match="a piece of no tile"):
        check_share(bare, tile, threads, parts, called, before=128)


def test_rows_a_step_apart_lie_alike():
    share, rows = CASES["columns kept"][0], Rows(64, 128, swizzle("xor8_shift0"), (1, 1))
    check_step(share, rows)
    with pytest.raises(VerifyError, match="pieces 12 rows apart do not lie alike"):
        check_step(dataclasses.replace(share, step=12), rows)


@pytest.mark.parametrize("elements", [1, 2, 8])
def test_elements_inside_are_whole_pieces_and_what_is_left_of_others(elements):
    right = edge(elements)
    for field in ("row", "whole", "left"):
        for text in changed(getattr(right, field)):
            with pytest.raises(VerifyError, match="elements inside are not where"):
                check_edge(dataclasses.replace(right, **{field: text}), elements)
    with pytest.raises(VerifyError, match="elements inside are not where"):
        check_edge(Edge(right.row, right.whole, "{n} - column + 1"), elements)


@pytest.mark.parametrize("name", swizzle_names())
def test_the_place_that_threads_compute_is_the_swizzles(name):
    class Other(Rows):
        place = "row * 128 + byte + 16"

    check_rows(Rows(16, 128, swizzle(name), (1, 1)), "here")
    with pytest.raises(VerifyError, match="lie elsewhere"):
        check_rows(Other(16, 128, swizzle(name), (1, 1)), "here")


# --- in plans ------------------------------------------------------------------------------------
def with_work(of: KernelPlan, kind: type, change) -> KernelPlan:
    leaves = (
        dataclasses.replace(leaf, work=change(leaf.work)) if isinstance(leaf.work, kind) else leaf
        for leaf in of.leaves
    )
    return dataclasses.replace(of, leaves=tuple(leaves))


def test_the_place_of_a_portion_has_no_other_number():
    of = plan("threads")
    (line,) = next(leaf.work for leaf in of.leaves if leaf.op == "store").moved
    texts = list(changed(line.place))
    assert len(texts) > 8
    for text in texts:
        other = with_work(
            of, Lines,
            lambda w, text=text: dataclasses.replace(
                w, moved=tuple(dataclasses.replace(m, place=text) for m in w.moved)
            ),
        )  # fmt: skip
        with pytest.raises(VerifyError):
            verify(other)


def test_lines_that_hold_matrices_are_each_visited():
    of = sample("covered rows")
    (work,) = of.of(Warm)
    (matrix,), (vector,) = work.matrices, work.vectors
    rows, columns = of.tiles.warp[0], of.tiles.columns
    for visits, count in ((matrix, rows), (vector, 1)):
        per_line = of.device.cache_line_bytes // visits.read.tensor.dtype.bytes
        check_visits(visits, count, columns, per_line)
        each = visits.count // count
        for field in ("row", "column"):
            for text in changed(getattr(visits, field)):
                if text in (f"{{}} * {per_line - 1}", f"{{}} % {each} * {per_line - 1}"):
                    continue  # two visits cover two lines as well so
                other = dataclasses.replace(visits, **{field: text})
                with pytest.raises(VerifyError):
                    check_visits(other, count, columns, per_line)
        for more in (visits.count + count, visits.count - count):
            with pytest.raises(VerifyError, match="visits"):
                check_visits(dataclasses.replace(visits, count=more), count, columns, per_line)


def test_rows_of_another_agent_are_not_brought_near():
    of = sample("covered rows")
    other = with_work(of, Warm, lambda w: dataclasses.replace(w, row="b_m * 128"))
    with pytest.raises(VerifyError, match="rows of another agent"):
        verify(other)
