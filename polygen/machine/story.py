"""A finding as a story: who did what, where, and what stands between, in lines of the source.

1. The two accesses of a finding are instructions of the text; which came first is told by the kind
   of the finding.
2. Between them lies a way through the text. The shortest one without anything that synchronises is
   looked for first (`_way`): if there is one, nothing stands between. If there is none, what stands
   on the shortest way is named: it is there, and orders less than it should.
3. What would order them is told by the finding's code.
"""

from __future__ import annotations

from collections import deque

from polygen.machine.module import Instruction, Kernel

_SYNCHRONISES = frozenset(
    ["bar", "barrier", "mbarrier", "fence", "membar", "wgmma", "cp", "tensormap"]
)
_FIRST = {
    "race-write-read": ("writes it", "reads it"),
    "race-read-write": ("reads it", "overwrites it"),
    "race-write-write": ("writes it", "writes it, too"),
    "in-flight-access": ("has begun to use it", "touches it meanwhile"),
    "missing-proxy-fence": ("writes it", "reads it by way of the async proxy"),
    "missing-map-fence": ("writes the tensor map", "uses it"),
    "barrier-count": ("is where the barrier was set up", "is where it goes wrong"),
    "deadlock": ("is where the barrier was set up", "waits"),
}
_REMEDY = {
    "race-write-read": "a barrier that both pass, or an arrival after the write and a wait before "
    "the read, would order them",
    "race-read-write": "a barrier that both pass, or an arrival after the read and a wait before "
    "the write, would order them",
    "race-write-write": "a barrier that both pass would order them, or one of them should not be",
    "in-flight-access": "the wait that covers the copy or product has to come before the access",
    "missing-proxy-fence": "fence.proxy.async by the writers, after the write and before the "
    "barrier, would hand it over",
    "missing-map-fence": "fence.proxy.tensormap::generic.release by the writer, after the write, "
    "and .acquire of these 128 bytes in the block that uses them would hand it over",
    "before-grid-wait": "griddepcontrol.wait by the same thread has to come before the access",
    "not-constant": "a load without .nc stays behind griddepcontrol.wait",
    "uninitialised-shared-read": "nothing wrote there: an index, a size or a wait is wrong",
    "unwritten-register": "a variable is used on a path on which nothing has been assigned to it",
    "deadlock": "who should arrive has left, waits elsewhere, or arrives less often than expected",
    "divergent-warp-operation": "all threads of its member mask, and no others, have to reach it "
    "together",
}
MOST = 4  # synchronising instructions that are named
_LONGEST = 200_000  # instructions of a kernel whose ways are looked for


def told(kernel: Kernel, code: str, sentence: str, position: int, other: int) -> tuple[str, ...]:
    """The lines of a story.

    Args:
        kernel: whose text it is.
        code: of the finding.
        sentence: of the finding.
        position: of the instruction that showed it; -1 when there is none.
        other: of the instruction that it collides with; -1 when there is none.
    """
    if position < 0:
        return (sentence,)
    first, second = _FIRST.get(code, ("is the other access", "is where it shows"))
    lines = []
    if other >= 0:
        lines.append(f"{_place(kernel, other)} {first}")
        lines += _between(kernel, other, position)
    lines.append(f"{_place(kernel, position)} {second}: {sentence}")
    if code in _REMEDY:
        lines.append(_REMEDY[code])
    return tuple(lines)


def _place(kernel: Kernel, position: int) -> str:
    one = kernel.instructions[position]
    return f"{one.source or 'the text'} (PTX line {one.line}, `{one}`)"


def _line(one: Instruction) -> str:
    source = f"{one.source}, " if one.source else ""
    return f"`{one}` ({source}PTX line {one.line})"


def _between(kernel: Kernel, begin: int, end: int) -> list[str]:
    if len(kernel.instructions) > _LONGEST:
        return []
    if _way(kernel, begin, end, around=True) is not None:
        return ["there is a way from the one to the other with no barrier, wait or fence on it"]
    way = _way(kernel, begin, end, around=False)
    if way is None:
        return ["no way leads from the one to the other: they are the work of different threads"]
    code = kernel.instructions
    found = [at for at in way if at not in (begin, end) and _orders(code[at])]
    named = ", ".join(_line(code[at]) for at in found[:MOST])
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return [f"between them stand {named}{more}, which do not order these threads here"]


def _orders(one: Instruction) -> bool:
    """Whether an instruction may order accesses of different threads or units."""
    if one.parts[0] not in _SYNCHRONISES:
        return False
    if one.parts[0] == "cp":
        return any(part.startswith("wait") for part in one.parts)
    return one.parts[:2] != ("wgmma", "mma_async") and one.parts[1:2] != ("init",)


def _way(kernel: Kernel, begin: int, end: int, around: bool) -> list[int] | None:
    """The shortest way from after one instruction to another; `around` what synchronises."""
    code, came = kernel.instructions, {}
    waiting = deque(_follow(kernel, begin))
    for at in waiting:
        came[at] = begin
    while waiting:
        at = waiting.popleft()
        if at == end:
            way = [at]
            while way[-1] != begin or len(way) == 1:
                way.append(came[way[-1]])
            return way[::-1]
        if around and _orders(code[at]):
            continue
        for following in _follow(kernel, at):
            if following not in came:
                came[following] = at
                waiting.append(following)
    return None


def _follow(kernel: Kernel, at: int) -> list[int]:
    """Where a thread may go from an instruction."""
    one, found = kernel.instructions[at], []
    first = one.parts[0]
    if one.predicate or first not in ("bra", "ret", "exit", "trap"):
        found.append(at + 1)
    if first == "bra" and one.operands:
        found.append(kernel.labels.get(one.operands[0], len(kernel.instructions)))
    return [following for following in found if following < len(kernel.instructions)]
