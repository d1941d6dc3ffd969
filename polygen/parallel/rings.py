"""What is held between ticks, and in how few slots: rings in which microbatch m has slot m mod n.

Two microbatches of a stage may have one slot if they are not held at the same time. How far apart
those are that are held at the same time, at most, is found for all numbers of microbatches at once;
one more is the least ring, or there is none smaller than one of all microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.errors import IllegalPipeline
from polygen.parallel.timetable import SIZE, Timetable


@dataclass(frozen=True, slots=True)
class Ring:
    """Where a stage keeps something, one slot to a microbatch.

    Attributes:
        holds: "activations", or the phase that the messages are for.
        stage: whose.
        slots: the least number that will do; None: one for every microbatch.
    """

    holds: str
    stage: int
    slots: int | None

    def __str__(self) -> str:
        number = "as many as microbatches" if self.slots is None else self.slots
        return f"{self.holds} of stage {self.stage}: {number}"


def rings(
    timetable: Timetable,
    holds: str,
    held: tuple[isl.UnionMap, isl.UnionMap],
    buffers: int | None,
) -> list[Ring]:
    """The least rings, by stage.

    Args:
        timetable: whose.
        holds: what they hold.
        held: from ``[stage, microbatch]`` to when it is held from, ``[tick, 1]`` if that is when
            the tick is over; and to ``[tick, 0]``, the tick in which it is read for the last time.
        buffers: slots that a ring may have at most; None: any number.

    Raises:
        IllegalPipeline: that are too few, with two microbatches that meet.
    """
    start, end = held
    # Two are held at the same time if the later start is not behind the earlier end.
    together = start.lex_le_union_map(start).intersect(end.lex_ge_union_map(start))
    pairs = isl.Map.from_union_map(together).intersect(
        isl.Map(f"[{SIZE}] -> {{ [s, m] -> [s, n] : m != n }}")
    )
    distance = isl.UnionMap("{ [[s, m] -> [s, n]] -> [s, d] : (d = n - m or d = m - n) and d > 0 }")
    apart = isl.UnionMap.from_map(pairs).wrap().apply(distance)
    if buffers is not None:
        same = isl.Map(f"{{ [s, m] -> [s, n] : (m - n) mod {buffers} = 0 }}")
        pair = isl.sample_pair(pairs.intersect(same))
        if pair is not None:
            raise IllegalPipeline(
                f"{holds}: {buffers} buffers are not enough: [stage, microbatch] {pair} "
                "are held at the same time in one slot",
                where=timetable.name,
                why="the second would have to wait for the first, which waits for later work: "
                "a deadlock",
                nearest=_nearest(apart),
            )
    found = []
    for stage in range(timetable.stages):
        here = isl.UnionSet(f"{{ [{stage}, x] }}")
        if not end.intersect_domain(here).is_empty():
            found.append(Ring(holds, stage, _slots(apart.intersect(here))))
    return found


def _slots(apart: isl.UnionSet) -> int | None:
    """The slots that these distances take; None: no number of them is enough for all."""
    if apart.is_empty():
        return 1
    distances = isl.Set.from_union_set(apart)
    distances = distances.project_out(isl.dim_type.param, 0, distances.dim(isl.dim_type.param))
    most = distances.dim_max_val(1)
    return int(most.to_python()) + 1 if most.is_int() else None


def _nearest(apart: isl.UnionSet) -> str:
    most = _slots(apart)
    if most is not None:
        return f"buffers={most}, or another schedule"
    return "It takes as many as there are microbatches: another schedule, such as 1f1b"
