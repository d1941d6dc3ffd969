# ruff: noqa: E501 - patterns of PTX
"""Mutants of PTX: one instruction left out, weakened or changed, by operators that know no kernel.

Each operator takes one line of PTX and gives what stands in its place, or None where it has nothing
to change. A mutant is a kernel, an operator and a line; all are derived from the text, none is
written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Change = Callable[[str], str | None]


@dataclass(frozen=True)
class Mutant:
    """One changed line."""

    operator: str
    line: int  # of the text, from 1
    before: str
    after: str
    text: str
    nth: int = 1  # of the lines with the same words


def _left_out(*patterns: str) -> Change:
    found = re.compile(r"^\s*(@!?%?\w+\s+)?(" + "|".join(patterns) + ")")
    return lambda line: "" if found.match(line) else None


def _replaced(pattern: str, new: str | Callable[[re.Match[str]], str]) -> Change:
    found = re.compile(pattern)
    return lambda line: found.sub(new, line, count=1) if found.search(line) else None


def _instead(pattern: str, before: str, operand: str) -> Change:
    """An operand, the last group of a pattern, is another register that is computed before."""
    found = re.compile(pattern)

    def change(line: str) -> str | None:
        match = found.search(line)
        if match is None:
            return None
        last = match.lastindex or 0
        head = f".reg .b32 changed; {before.format(match[last])}; "
        return head + line[: match.start(last)] + operand + line[match.end(last) :]

    return change


def _not_atomic(match: re.Match[str]) -> str:
    space, target, place, value = match.groups()
    return (
        f".reg .b32 changed; ld.{space}.u32 {target}, [{place}]; "
        f"add.u32 changed, {target}, {value}; st.{space}.u32 [{place}], changed;"
    )


def _matrices(name: str) -> Change:
    """A whole row of a matrix further."""
    return _replaced(
        rf"({name}\S*\s[^\[]*\[%\w+)(?:\+(\d+))?\]", lambda m: f"{m[1]}+{int(m[2] or 0) + 16}]"
    )


def _more(match: re.Match[str]) -> str:
    return f"{match[1]}{int(match[2]) + 1}"


def _shifted(match: re.Match[str]) -> str:
    return f"{match[1]}{int(match[2] or 0) + int(match[3])}]"


def _access(*spaces: str) -> Change:
    """An access moves by its own size."""
    found = re.compile(
        r"^(\s*(?:@!?%\w+\s+)?(?:ld|st)\.(?:volatile\.|acquire\.gpu\.|release\.gpu\.)?"
        rf"(?:{'|'.join(spaces)})\S*?(\d+)\s.*\[%\w+)(?:\+(\d+))?\]"
    )

    def change(line: str) -> str | None:
        match = found.match(line)
        if match is None:
            return None
        size = int(match[2]) // 8 * (4 if ".v4." in line else 2 if ".v2." in line else 1)
        return f"{match[1]}+{int(match[3] or 0) + size}]{line[match.end() :]}"

    return change


_OTHER_WAY = {"down": "up", "up": "down", "bfly": "idx"}

# By name, with what a reader of the table should know.
OPERATORS: dict[str, Change] = {
    "a barrier of the block is left out": _left_out(r"bar\.sync\s", r"barrier\.sync"),
    "an arrival at a named barrier is left out": _left_out(r"bar\.arrive"),
    "a barrier of a warp is left out": _left_out(r"bar\.warp"),
    "a barrier of the cluster is left out": _left_out(r"barrier\.cluster\.(arrive|wait)"),
    "a barrier becomes one of the warp": _replaced(r"bar\.sync\s+\S+?;", "bar.warp.sync 0xffffffff;"),
    "a wait does not ask again": _left_out(r"bra(\.uni)?\s+\$?L?\w*(WAIT|wait|again)\w*"),
    "a wait asks for the other phase": _instead(r"^\s*\w+:\s*mbarrier\.try_wait\.parity\S*\s+\w+,\s*\[\S+\],\s*(%r\d+)", "xor.b32 changed, {}, 1", "changed"),
    "a wait for copies is left out": _left_out(r"cp\.async\.wait_\w+", r"cp\.async\.bulk\.wait_group"),
    "a wait for copies leaves one more": _replaced(r"(cp\.async(?:\.bulk)?\.wait_group(?:\.read)?\s+)(\d+)", _more),
    "a group of copies is not committed": _left_out(r"cp\.async\.(bulk\.)?commit_group"),
    "a wait for products is left out": _left_out(r"wgmma\.wait_group"),
    "a wait for products leaves one more": _replaced(r"(wgmma\.wait_group\.sync\.aligned\s+)(\d+)", _more),
    "a fence of products is left out": _left_out(r"wgmma\.fence"),
    "a group of products is not committed": _left_out(r"wgmma\.commit_group"),
    "a proxy fence is left out": _left_out(r"fence\.proxy"),
    "a fence of memory is left out": _left_out(r"membar", r"fence\.(acq_rel|sc)"),
    "a release is relaxed": _replaced(r"^(\s*(?:@!?%\w+\s+)?(?:st|red|atom|barrier\.cluster)\S*)\.release", r"\1.relaxed"),
    "an acquire is relaxed": _replaced(r"^(\s*(?:@!?%\w+\s+)?(?:ld|atom)\S*)\.acquire", r"\1.relaxed"),
    "a scope is that of the block": _replaced(r"^(\s*(?:@!?%\w+\s+)?(?:ld|st|atom|red)\.\S*)\.gpu", r"\1.cta"),
    "an atomic is not atomic": _replaced(r"atom\.(global|shared)\.add\.u32\s+(%r\d+),\s*\[(\S+)\],\s*(\S+);", _not_atomic),
    "an mbarrier expects one more": _instead(r"mbarrier\.init\S*\s+\[\S+\],\s*(%?\w+)", "add.u32 changed, {}, 1", "changed"),
    "an mbarrier is not initialised": _left_out(r"mbarrier\.init"),
    "an arrival is left out": _left_out(r"mbarrier\.arrive"),
    "more bytes are expected": _instead(r"expect_tx\S*\s+[^\[]*\[\S+\],\s*(%?\w+)", "add.u32 changed, {}, 16", "changed"),
    "another block of the cluster is meant": _instead(r"mapa\S*\s+\w+,\s*%\w+,\s*(%r\d+)", "xor.b32 changed, {}, 1", "changed"),
    "registers are not given back": _left_out(r"setmaxnreg\.dec"),
    "a copy is left out": _left_out(r"cp\.async\.(ca|cg)", r"cp\.async\.bulk\.(tensor|shared|global)", r"st\.async"),
    "a load from shared memory moves": _access("shared"),
    "a store to shared memory moves": _access("shared"),
    "a load of matrices moves": _matrices("ldmatrix"),
    "a store of matrices moves": _matrices("stmatrix"),
    "a load from global memory moves": _access("global"),
    "a store to global memory moves": _access("global"),
    "a store is left out": _left_out(r"st\.(shared|global)"),
    "a guard is dropped": _replaced(r"^(\s*)@!?%p\d+\s+bra\s+\S+;", r"\1pmevent 0;"),
    "a guard is turned": _replaced(r"^(\s*)@(%p\d+)\s+bra", r"\1@!\2 bra"),
    "a comparison is off by one": _replaced(r"(setp\.)(lt|gt|le|ge)\.", lambda m: m[1] + {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt"}[m[2]] + "."),
    "an exchange goes the other way": _replaced(r"shfl\.sync\.(down|up|bfly)\.", lambda m: f"shfl.sync.{_OTHER_WAY[m[1]]}."),
}  # fmt: skip
_LOADS = ("a load from shared memory moves", "a load from global memory moves")
_STORES = ("a store to shared memory moves", "a store to global memory moves")


def mutants(ptx: str) -> Iterator[Mutant]:
    """All mutants of a text, operator by operator, line by line."""
    lines = ptx.split("\n")
    begin = next(at for at, line in enumerate(lines) if ".entry" in line)
    for name, change in OPERATORS.items():
        for number, line in enumerate(lines):
            if number < begin or line.lstrip().startswith((".", "//")):
                continue
            if (name in _LOADS and " ld." not in f" {line.strip()}") or (
                name in _STORES and " st." not in f" {line.strip()}"
            ):
                continue
            for after in _changed(change, line):
                text = "\n".join([*lines[:number], after, *lines[number + 1 :]])
                nth = sum(one.strip() == line.strip() for one in lines[: number + 1])
                yield Mutant(name, number + 1, line.strip(), after.strip(), text, nth)


def _changed(change: Change, line: str) -> Iterator[str]:
    """A line with one of its instructions changed; several stand in the braces of inline PTX."""
    if not line.lstrip().startswith("{"):
        after = change(line)
        if after is not None and after != line:
            yield after
        return
    inner = [part.strip() for part in line.strip().strip("{}").split(";") if part.strip()]
    inner = [part if part.endswith(":") else f"{part};" for part in inner]
    for at, part in enumerate(inner):
        after = change(part)
        if after is not None and after != part:
            yield f"{{ {' '.join([*inner[:at], after, *inner[at + 1 :]])} }}"


def sample(ptx: str, most: int) -> list[Mutant]:
    """At most so many mutants per operator, spread over the text."""
    by_operator: dict[str, list[Mutant]] = {}
    for one in mutants(ptx):
        by_operator.setdefault(one.operator, []).append(one)
    chosen = []
    for found in by_operator.values():
        count = min(most, len(found))
        chosen += [found[at * len(found) // count] for at in range(count)]
    return chosen
