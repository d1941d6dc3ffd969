"""What comes earlier, and the last or next write of a cell, against isl's own analysis."""

import pytest

from polygen import isl
from polygen.poly.before import (
    by_agent,
    earlier,
    earlier_of_agent,
    flows,
    last_writes,
    next_writes,
    union_map,
)
from polygen.poly.versions import of_each_agent, same_agent

TIMES = {
    "same loops, one step apart": ("a[i, k] -> [i, 0, k, 1]", "b[i, k] -> [i, 0, k, 2]"),
    "the other way round": ("a[i, k] -> [i, 0, k, 2]", "b[i, k] -> [i, 0, k, 1]"),
    "apart outside of the inner loop": ("a[i, k] -> [i, 3, k, 1]", "b[i, k] -> [i, 1, k, 2]"),
    "one number against a loop": ("a[i, k] -> [i, 0, k, 0]", "b[i, k] -> [i, k, 0, 0]"),
    "a lag": ("a[i, k] -> [i, 0, k + 1, 1]", "b[i, k] -> [i, 0, k, 2]"),
    "the same statement": ("a[i, k] -> [i, 0, k, 1]", "a[i, k] -> [i, 0, k, 1]"),
    "before everything": ("a[i, k] -> [0, i, k, 0]", "b[i, k] -> [1, i, k, 0]"),
    "no loop is shared": ("a[i, k] -> [1, i, k, 0]", "b[i, k] -> [0, i, k, 0]"),
}


def timed(text):
    return isl.Map(f"[K] -> {{ {text} : 0 <= i < 3 and 0 <= k < K }}")


@pytest.mark.parametrize("texts", TIMES.values(), ids=TIMES)
def test_earlier_is_the_lexicographic_order_of_whole_vectors(texts):
    first, second = map(timed, texts)
    assert earlier(first, second).is_equal(isl.Map.lex_lt_map(first, second))


@pytest.mark.parametrize("agents", range(3))
@pytest.mark.parametrize("texts", TIMES.values(), ids=TIMES)
def test_earlier_of_an_agent_is_that_order_among_instances_that_begin_alike(texts, agents):
    first, second = map(timed, texts)
    wanted = same_agent(isl.Map.lex_lt_map(first, second), agents)
    assert earlier_of_agent(first, second, agents).is_equal(wanted)


@pytest.mark.parametrize("agents", range(3))
def test_what_is_composed_by_agents_is_what_one_agent_has_of_all(agents):
    cells = isl.Map(
        "[K] -> { a[i, k] -> c[k, i] : 0 <= i < 3 and 0 <= k < K and (i + k) mod 2 = 0 }"
    )
    other = isl.Map("[K] -> { b[i, k] -> c[k, 0] : 0 <= i < 3 and 0 <= k < K }")
    step = isl.Map("{ c[k, i] -> c[k', 0] : k <= k' <= k + 2 }")
    wanted = same_agent(cells.apply_range(step).apply_range(other.reverse()), agents)
    later = by_agent(cells, agents).apply_range(of_each_agent(step, agents))
    found = later.apply_range(by_agent(other, agents).reverse())
    assert found.is_equal(wanted) and not found.is_empty()


PARTS = "0 <= i < 3 and 0 <= k < K"
WRITES = {
    "one cell each": f"w[i, k] -> c[i, k] : {PARTS}",
    "over again in the inner loop": f"w[i, k] -> c[i, 0] : {PARTS}",
    "two cells at once": f"w[i, k] -> c[i, p] : {PARTS} and k <= p <= k + 1",
    "over again in every loop": f"w[i, k] -> c[0, p] : {PARTS} and 0 <= p < 2",
}
READS = {
    "its own": f"r[i, k] -> c[i, k] : {PARTS}",
    "the row": f"r[i, k] -> c[i, p] : {PARTS} and 0 <= p <= k",
    "the first of all": f"r[i, k] -> c[0, 0] : {PARTS}",
    "one nobody may have written": f"r[i, k] -> c[i, k + 1] : {PARTS}",
}
ORDERS = {
    "write, then read": ("w[i, k] -> [i, k, 0]", "r[i, k] -> [i, k, 1]"),
    "read, then write": ("w[i, k] -> [i, k, 1]", "r[i, k] -> [i, k, 0]"),
    "two loops": ("w[i, k] -> [0, i, k]", "r[i, k] -> [1, i, k]"),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_last_and_next_writes_are_those_of_isl_s_analysis(write, read, order):
    reads, writes = (isl.Map(f"[K] -> {{ {text} }}") for text in (read, write))
    when_written, when_read = map(timed, order)
    schedule = isl.UnionMap.from_map(when_written).union(isl.UnionMap.from_map(when_read))
    r, w = isl.UnionMap.from_map(reads), isl.UnionMap.from_map(writes)

    access = isl.UnionAccessInfo.from_sink(r).set_must_source(w).set_schedule_map(schedule)
    wanted = access.compute_flow()
    flow, lost = last_writes(reads, writes, when_read, when_written)
    assert isl.UnionMap.from_map(flow).is_equal(wanted.get_must_dependence())
    assert isl.UnionMap.from_map(lost).is_equal(wanted.get_must_no_source())

    again = isl.UnionAccessInfo.from_sink(w).set_kill(w).set_may_source(r)
    anti = again.set_schedule_map(schedule).compute_flow().get_may_dependence()
    found = next_writes(reads, writes, when_read, when_written)
    assert isl.UnionMap.from_map(found).is_equal(anti)

    over = isl.UnionAccessInfo.from_sink(w).set_must_source(w).set_schedule_map(schedule)
    output, _ = last_writes(writes, writes, when_written, when_written)
    wanted = over.compute_flow().get_must_dependence()
    assert isl.UnionMap.from_map(output).is_equal(wanted)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_flows_to_several_readers_are_those_of_isl_s_analysis(write, order):
    when_written, when_read = map(timed, order)
    writes, when = {"w": isl.Map(f"[K] -> {{ {write} }}")}, {"w": when_written}
    reads = {}
    for number, text in enumerate(READS.values()):
        named = f"r{number}"
        reads[named] = isl.Map(f"[K] -> {{ {text} }}").set_tuple_name(isl.dim_type.in_, named)
        when[named] = when_read.set_tuple_name(isl.dim_type.in_, named)
    schedule = union_map(when.values())
    flow, lost = flows(reads, writes, when, schedule)
    access = isl.UnionAccessInfo.from_sink(union_map(reads.values()))
    access = access.set_must_source(union_map(writes.values())).set_schedule_map(schedule)
    wanted = access.compute_flow()
    assert flow.is_equal(wanted.get_must_dependence()) and not flow.is_empty()
    assert lost.is_equal(wanted.get_must_no_source())
