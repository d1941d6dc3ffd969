"""A timetable of a pipeline: which rank works on which microbatch of which stage, in which tick.

It is a relation in isl's notation, written by a person or one of the known ones:

    [microbatches] -> { forward[s, m] -> [s, s + m];
                        backward[s, m] -> [s, microbatches + 6 - s + m] }

A piece of work is ``phase[stage, microbatch]``. The phases are ``forward``, ``backward`` and, where
a backward pass is taken apart, ``weights``: then ``backward`` gives the gradient of a stage's input
alone, and ``weights``, at any later time, those of its parameters. Slots are whole numbers; what
they order counts, not how long they are. The number of microbatches is a parameter: one relation is
for all numbers of them, or for all that meet a condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polygen.errors import PipelineError

FORWARD, BACKWARD, WEIGHTS = PHASES = ("forward", "backward", "weights")
SIZE = "microbatches"


@dataclass(frozen=True, slots=True)
class Timetable:
    """Who does what when.

    Attributes:
        name: for people.
        stages: of the pipeline.
        ranks: that share them.
        relation: isl's text of ``phase[stage, microbatch] -> [rank, tick]``.
        requires: isl's text of a condition on ``microbatches``; "" for none.
    """

    name: str
    stages: int
    ranks: int
    relation: str
    requires: str = ""

    def __str__(self) -> str:
        condition = f", where {self.requires}" if self.requires else ""
        return f"{self.name}: {self.stages} stages on {self.ranks} ranks{condition}"


def gpipe(stages: int, ranks: int) -> Timetable:
    """All forward passes, then all backward passes; each rank has stages that follow each other."""
    rank, within, each = _in_blocks("gpipe", stages, ranks)
    return _timetable("gpipe", stages, ranks, [
        (FORWARD, rank, _parts(f"{rank} + m", within, each), ""),
        (BACKWARD, rank,
         _parts(f"{SIZE} + {2 * ranks - 2} - {rank} + m", f"{each - 1} - {within}", each), ""),
    ])  # fmt: skip


def one_forward_one_backward(stages: int, ranks: int) -> Timetable:
    """Backward passes as early as can be: a rank keeps at most as many microbatches as there are
    ranks from it to the end. The time is that of `gpipe`, the memory is not.
    """
    rank, within, each = _in_blocks("1f1b", stages, ranks)
    return _alternating("1f1b", stages, ranks, (rank, "m", "m"), 1, (within, each))


def interleaved(stages: int, ranks: int) -> Timetable:
    """As `one_forward_one_backward`, with stages dealt out to ranks in turn: bubbles are shorter by
    as much as there are stages to a rank. Microbatches go in groups of as many as there are ranks.
    """
    _divided("interleaved", stages, ranks)
    chunks = stages // ranks
    if chunks == 1:
        return _alternating("interleaved", stages, ranks, ("s", "m", "m"), 1, ("0", 1))
    group = f"{ranks * chunks}*floor(m/{ranks}) + (m mod {ranks})"
    there = f"({group} + {ranks}*floor(s/{ranks}))"
    back = f"({group} + {ranks}*({chunks - 1} - floor(s/{ranks})))"
    indices = (f"(s mod {ranks})", there, back)
    return _alternating("interleaved", stages, ranks, indices, chunks, ("0", 1))


def zero_bubble(stages: int, ranks: int) -> Timetable:
    """Backward passes taken apart: gradients of parameters are computed where a rank would wait.

    It is ZB-H1 of https://arxiv.org/abs/2401.10241 in closed form, for 2 R - 1 microbatches or
    more. Passes run at two ticks a microbatch until the last rank has R forward passes behind it,
    then at three; what is left of `weights` fills the ticks that forward passes leave in the end.
    """
    rank, within, each = _in_blocks("zero-bubble", stages, ranks)
    first = f"{SIZE} - {2 * ranks - 2} + {rank}"  # `weights` before forward passes have ended
    later = f"(m - ({first}))"
    turn = f"{2 * ranks - 2} - {rank}"  # the forward pass that is the first of three ticks
    after = f"{each - 1} - {within}"
    pieces = [
        (FORWARD, f"{rank} + 2*m", within, f"m <= {turn}"),
        (FORWARD, f"3*m - {2 * ranks - 2} + 2*{rank}", within, f"m > {turn}"),
        (BACKWARD, f"{2 * ranks - 1} - {rank} + 2*m", after, f"m < {ranks}"),
        (BACKWARD, f"3*m + {ranks} - {rank}", after, f"m >= {ranks}"),
        (WEIGHTS, f"3*m + {4 * ranks - 2} - {rank}", after, f"m < {first}"),
        (WEIGHTS, f"3*{SIZE} + 3*floor({later}/2) - {2 * ranks - 2} + 2*{rank}", after,
         f"m >= {first} and m < {SIZE} - {rank} and {later} mod 2 = 0"),
        (WEIGHTS, f"3*({SIZE} - {ranks - 1} + {rank} + floor({later}/2)) + {ranks + 1} - {rank}",
         after, f"m >= {first} and m < {SIZE} - {rank} and {later} mod 2 = 1"),
        (WEIGHTS, f"2*{SIZE} + {ranks - 1} + m", after, f"m >= {SIZE} - {rank} and m >= {first}"),
    ]  # fmt: skip
    works = [(phase, rank, _parts(at, part, each), where) for phase, at, part, where in pieces]
    needed = f"{SIZE} >= {2 * ranks - 1}" if ranks > 1 else ""
    return _timetable("zero-bubble", stages, ranks, works, needed)


KNOWN: dict[str, Callable[[int, int], Timetable]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zero-bubble": zero_bubble,
}


def timetable(schedule: str | Timetable, stages: int, ranks: int) -> Timetable:
    """What a caller means by a schedule.

    Args:
        schedule: a known one's name, a relation as text, or a `Timetable`.
        stages: of the pipeline.
        ranks: that share them.

    Raises:
        PipelineError: no such name, or a timetable of another pipeline.
    """
    if isinstance(schedule, Timetable):
        if (schedule.stages, schedule.ranks) != (stages, ranks):
            raise PipelineError(
                f"the timetable is for {schedule.stages} stages on {schedule.ranks} ranks",
                where=schedule.name,
                why=f"there are {stages} stages and {ranks} ranks",
                nearest="Make one for these",
            )
        return schedule
    if stages < 1 or ranks < 1:
        raise PipelineError(f"{stages} stages on {ranks} ranks", nearest="At least one of each")
    if "{" in schedule:
        return Timetable("written", stages, ranks, schedule)
    if schedule not in KNOWN:
        raise PipelineError(
            f"no schedule is called {schedule!r}",
            where="schedule",
            nearest=f"Known: {', '.join(KNOWN)}; or a relation, as in "
            "{ forward[s,m] -> [s, s + m]; … }",
        )
    return KNOWN[schedule](stages, ranks)


# --- closed forms ---------------------------------------------------------------------------------
def _divided(name: str, stages: int, ranks: int) -> None:
    if stages % ranks:
        near = max(ranks, stages - stages % ranks)
        raise PipelineError(
            f"{stages} stages on {ranks} ranks",
            where=name,
            why="every rank has the same number of stages",
            nearest=f"{near} stages, or write a relation of your own",
        )


def _in_blocks(name: str, stages: int, ranks: int) -> tuple[str, str, int]:
    """The rank of a stage, its index among the rank's stages, and how many these are."""
    _divided(name, stages, ranks)
    each = stages // ranks
    return ("s", "0", 1) if each == 1 else (f"floor(s/{each})", f"(s mod {each})", each)


def _parts(tick: str, part: str, each: int) -> str:
    """The tick of one of a rank's stages, where all of them are `each` ticks for one."""
    return tick if each == 1 else f"{each}*({tick}) + {part}"


def _alternating(
    name: str, stages: int, ranks: int, indices: tuple[str, str, str], chunks: int,
    block: tuple[str, int],
) -> Timetable:  # fmt: skip
    """Forward passes at one a tick until the first comes back, then in turn with backward passes.

    In the order of a rank, forward pass k is in tick r + k, later in r + 2 k - (V - 1) R; backward
    passes mirror that, from the end and from the last rank.
    """
    rank, there, back = indices
    within, each = block
    ahead = (chunks - 1) * ranks
    last = f"({2 * chunks}*{SIZE} + {2 * ranks - 3} - {rank})"  # T - 1 - r
    left = f"({chunks}*{SIZE} - 1 - {back})"
    pieces = [
        (FORWARD, f"{rank} + {there}", within, f"{there} < {chunks * ranks} - {rank}"),
        (FORWARD, f"{rank} + 2*{there} - {ahead}", within, f"{there} >= {chunks * ranks} - {rank}"),
        (BACKWARD, f"{last} - 2*{left} + {ahead}", f"{each - 1} - {within}", f"{left} >= {ahead}"),
        (BACKWARD, f"{last} - {left}", f"{each - 1} - {within}", f"{left} < {ahead}"),
    ][: 4 if ahead else 3]
    works = [(phase, rank, _parts(at, part, each), where) for phase, at, part, where in pieces]
    requires = f"{SIZE} mod {ranks} = 0" if chunks > 1 and ranks > 1 else ""
    return _timetable(name, stages, ranks, works, requires)


def _timetable(
    name: str, stages: int, ranks: int, works: list[tuple[str, str, str, str]], requires: str = ""
) -> Timetable:
    inside = f"0 <= s < {stages} and 0 <= m < {SIZE}"
    lines = [
        f"{phase}[s, m] -> [{rank}, {tick}] : {inside}" + (f" and {where}" if where else "")
        for phase, rank, tick, where in works
    ]
    return Timetable(name, stages, ranks, f"[{SIZE}] -> {{ {'; '.join(lines)} }}", requires)
