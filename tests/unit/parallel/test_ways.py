"""Which way of running a product beside communication is chosen: the times are given."""

from __future__ import annotations

import pytest

from polygen.hardware.links import Link, link
from polygen.parallel.ways import (
    CHUNKS,
    COPIES,
    GATHER,
    SUM,
    TOTAL,
    Problem,
    in_chunks,
    peer_by_peer,
    quickest,
)

SLOW = Link("slow", 1.0, 0.0)  # a byte a second
QUICK = Link("quick", 1e12, 0.0)


def problem(kind: str, ranks: int = 2, rows: int = 8, row: float = 1.0, start: float = 0.0):
    """A row takes a second, and a product `start` beside its rows."""
    return Problem(kind, rows, ranks, row, lambda rows: start + rows)


def test_what_is_gathered_is_hidden_behind_a_ranks_own_rows():
    # 4 own rows, and 4 seconds for the others': both products, and nothing beside them.
    assert in_chunks(problem(GATHER), SLOW, 1).seconds == 8
    assert peer_by_peer(problem(GATHER), SLOW).seconds == 8


def test_what_is_summed_leaves_behind_its_product():
    # In one piece nothing is hidden: 8 rows, then 4 seconds. In two the first half is.
    assert in_chunks(problem(SUM), SLOW, 1).seconds == 12
    assert in_chunks(problem(SUM), SLOW, 2).seconds == 10
    # Peer by peer the other's rows come first, and leave beside a rank's own.
    assert peer_by_peer(problem(SUM), SLOW).seconds == 8
    assert peer_by_peer(problem(TOTAL), SLOW).seconds == 12  # and come back
    assert in_chunks(problem(TOTAL), SLOW, 1).seconds == 16  # scattered and gathered


def test_more_ranks_have_more_to_send():
    assert peer_by_peer(problem(GATHER, ranks=4), SLOW).seconds == 8
    assert peer_by_peer(problem(GATHER, ranks=4, row=2.0), SLOW).seconds == 2 * 2 * 3 + 2


def test_a_collective_that_takes_multiprocessors_hides_nothing():
    taking = Link("taking", 1.0, 0.0, beside=0.0)
    assert in_chunks(problem(GATHER), taking, 1).seconds == 12
    assert in_chunks(problem(SUM), taking, 2).seconds == 12


@pytest.mark.parametrize(("chunk", "wanted"), [(0.0, 4), (1.0, 2), (3.0, 1)])
def test_chunks_are_made_where_they_are_predicted_to_gain(chunk, wanted):
    costly = Link("costly", 1.0, 0.0, chunk=chunk)
    found = quickest(problem(SUM), costly, None)
    assert (found.by, found.chunks) == (CHUNKS, wanted)


def test_rows_are_divided_as_they_can_be():
    assert quickest(problem(SUM, rows=6), SLOW, None).chunks == 1  # three own rows
    assert quickest(problem(TOTAL), SLOW, None).chunks == 1  # an all-reduce is one


def test_copies_are_made_where_they_are_predicted_to_gain():
    assert quickest(problem(SUM), SLOW, SLOW).by == COPIES
    # A product that takes as long for half of the rows is not done twice.
    assert quickest(problem(SUM, start=100.0), QUICK, QUICK).by == CHUNKS
    assert quickest(problem(TOTAL, start=100.0), QUICK, QUICK).by == CHUNKS


def test_the_links_of_one_host_have_what_was_measured():
    assert link("nccl").chunk > 0 and link("nccl").beside == 0
    assert link("nvlink").beside == 1
