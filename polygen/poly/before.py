"""Which instances come earlier by their times, and which writes are the last or the next of those.

A write may come before a read of its cell, with others in between. `last_writes` and `next_writes`
do for one writing and one reading statement, in less time, what isl's dataflow analysis does for
any number: instances are compared with their cells, so that cells stay apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polygen import isl, remembered

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out
_MOST_TIMED = 1024


def earlier(first: isl.Map, second: isl.Map) -> isl.Map:
    """Pairs of instances of two leaves, the first at a smaller time."""
    compared, ordered = _compared(first, second)
    less = isl.Map.lex_le_map if ordered else isl.Map.lex_lt_map
    return less(_kept(first, compared), _kept(second, compared))


def earlier_of_agent(first: isl.Map, second: isl.Map, agents: int) -> isl.Map:
    """`earlier`, of one agent.

    Where leaves were put into a tree, or it was written and read again, the coordinates that are
    compared are the same as before, and the pairs are known. So are those of leaves of one shape in
    the same loops: what they are called is said of the pairs alone.

    Args:
        first: instance -> time vector.
        second: likewise, of the same length.
        agents: coordinates of an instance that say whose it is, its first ones.
    """
    compared, ordered = _compared(first, second)
    kept = _of_agent(first, compared, agents), _of_agent(second, compared, agents)
    found = remembered.smaller(*kept, agents, ordered)
    found = found.set_tuple_name(_IN, first.get_tuple_name(_IN))
    return found.set_tuple_name(_OUT, second.get_tuple_name(_IN))


def _compared(first: isl.Map, second: isl.Map) -> tuple[list[int], bool]:
    """The coordinates of time to compare, and whether equal ones say earlier.

    Coordinates of time that are the same number in both leaves say nothing; after one with two
    numbers none says anything any more. So that few are left to compare.

    Args:
        first: instance -> time vector.
        second: likewise, of the same length.
    """
    compared, ordered = [], False
    for n, (a, b) in enumerate(zip(_of(first).fixed, _of(second).fixed, strict=True)):
        if a is None or b is None:
            compared.append(n)
        elif a != b:
            ordered = a < b
            break
    return compared, ordered


class _Timed:
    """What is known of the times of a leaf, which are compared with those of all others.

    Attributes:
        times: instance -> time vector.
        fixed: of each coordinate the number that it is; None: it has several.
        kept: the times without the coordinates that are not compared.
        of_agent: the same behind the coordinates of the agents.
    """

    __slots__ = ("fixed", "kept", "of_agent", "times")

    def __init__(self, times: isl.Map) -> None:
        self.times = times
        values = (times.plain_get_val_if_fixed(_OUT, n) for n in range(times.dim(_OUT)))
        self.fixed = [value.get_num_si() if value.is_int() else None for value in values]
        self.kept: dict[tuple[int, ...], isl.Map] = {}
        self.of_agent: dict[tuple[int, tuple[int, ...]], isl.Map] = {}


_timed: dict[int, _Timed] = {}  # by the object that holds the relation


def _of(times: isl.Map) -> _Timed:
    found = _timed.get(id(times))
    if found is None or found.times is not times:
        if len(_timed) >= _MOST_TIMED:
            _timed.clear()
        found = _timed[id(times)] = _Timed(times)
    return found


def _kept(times: isl.Map, compared: list[int]) -> isl.Map:
    """A leaf's times without the coordinates that are not compared."""
    known, key = _of(times).kept, tuple(compared)
    found = known.get(key)
    if found is None:
        found, end = times, times.dim(_OUT)
        for n in (*reversed(compared), -1):
            if n + 1 < end:
                found = found.project_out(_OUT, n + 1, end - n - 1)
            end = n
        known[key] = found
    return found


def _of_agent(times: isl.Map, compared: list[int], agents: int) -> isl.Map:
    """Whose an instance is, and its times without the coordinates that are not compared.

    Nothing has a name here.
    """
    known, key = _of(times).of_agent, (agents, tuple(compared))
    found = known.get(key)
    if found is None:
        nameless = _kept(times, compared).reset_tuple_id(_IN)
        found = known[key] = by_agent(nameless, agents)
    return found


@remembered.by_content
def by_agent(relation: isl.Map, agents: int) -> isl.Map:
    """Instance -> its first coordinates, which say whose it is, and its image without a name.

    What such relations are composed to stays inside an agent, and takes isl less time than to
    compare all agents with each other first.
    """
    who = isl.Map.identity(relation.get_space().domain().map_from_set()).reset_tuple_id(_OUT)
    who = who.project_out(_OUT, agents, relation.dim(_IN) - agents)
    return who.flat_range_product(relation.reset_tuple_id(_OUT))


def last_writes(
    reads: isl.Map, writes: isl.Map, when_read: isl.Map, when_written: isl.Map
) -> tuple[isl.Map, isl.Map]:
    """The last write of every cell before each of its reads.

    Args:
        reads: instance -> cell.
        writes: instance of one statement -> cell.
        when_read: reading instance -> time vector.
        when_written: writing instance -> time vector.

    Returns:
        Writing instance -> reading instance, and the part of `reads` that nothing wrote before.
    """
    each = reads.domain_map()
    found = reads.range_map().apply_range(writes.reverse())
    found = found.intersect(earlier(when_written, each.apply_range(when_read)).reverse())
    last = found.apply_range(when_written).lexmax().apply_range(when_written.reverse())
    flow = each.reverse().apply_range(last.intersect(found))
    return flow.reverse().coalesce(), reads.wrap().subtract(found.domain()).unwrap()


def next_writes(
    reads: isl.Map, writes: isl.Map, when_read: isl.Map, when_written: isl.Map
) -> isl.Map:
    """Reading instance -> writing instance: the next write of every cell after each of its reads.

    Args:
        reads: instance -> cell.
        writes: instance of one statement -> cell.
        when_read: reading instance -> time vector.
        when_written: writing instance -> time vector.
    """
    each = reads.domain_map()
    found = reads.range_map().apply_range(writes.reverse())
    found = found.intersect(earlier(each.apply_range(when_read), when_written))
    following = found.apply_range(when_written).lexmin().apply_range(when_written.reverse())
    return each.reverse().apply_range(following.intersect(found)).coalesce()


def flows(
    reads: Mapping[str, isl.Map],
    writes: Mapping[str, isl.Map],
    when: Mapping[str, isl.Map],
    order: isl.UnionMap,
) -> tuple[isl.UnionMap, isl.UnionMap]:
    """Write -> read of what it wrote; and the reads of what nothing wrote.

    Args:
        reads: statement -> (instance -> cell), of one buffer.
        writes: likewise.
        when: statement -> (instance -> time vector).
        order: all of `when`.
    """
    if not reads:
        nothing = isl.UnionMap.empty(order.get_space())
        return nothing, nothing
    if len(writes) == 1:
        ((w, write),) = writes.items()
        each = [last_writes(read, write, when[r], when[w]) for r, read in reads.items()]
        return union_map(flow for flow, _ in each), union_map(lost for _, lost in each)
    access = isl.UnionAccessInfo.from_sink(union_map(reads.values()))
    access = access.set_must_source(union_map(writes.values()))
    found = access.set_schedule_map(order).compute_flow()
    return found.get_must_dependence(), found.get_must_no_source()


def antis(
    reads: Mapping[str, isl.Map],
    writes: Mapping[str, isl.Map],
    when: Mapping[str, isl.Map],
    order: isl.UnionMap,
) -> isl.UnionMap:
    """Read -> the next write; arguments as of `flows`."""
    if not reads:
        return isl.UnionMap.empty(order.get_space())
    if len(writes) == 1:
        ((w, write),) = writes.items()
        each = [next_writes(read, write, when[r], when[w]) for r, read in reads.items()]
        found = [one for one in each if not one.is_empty()]
        if len(found) == 1:
            return isl.UnionMap.from_map(found[0])
    every = union_map(writes.values())
    access = isl.UnionAccessInfo.from_sink(every).set_kill(every)
    access = access.set_may_source(union_map(reads.values())).set_schedule_map(order)
    return access.compute_flow().get_may_dependence()


def outputs(
    writes: Mapping[str, isl.Map], when: Mapping[str, isl.Map], order: isl.UnionMap
) -> isl.UnionMap:
    """Write -> the next one; arguments as of `flows`."""
    if len(writes) == 1:
        ((w, write),) = writes.items()
        return isl.UnionMap.from_map(last_writes(write, write, when[w], when[w])[0])
    every = union_map(writes.values())
    access = isl.UnionAccessInfo.from_sink(every).set_must_source(every)
    return access.set_schedule_map(order).compute_flow().get_must_dependence()


def union_map(maps: Iterable[isl.Map]) -> isl.UnionMap:
    """Relations of several spaces as one; there is at least one."""
    first, *rest = (isl.UnionMap.from_map(one) for one in maps)
    for one in rest:
        first = first.union(one)
    return first
