"""Sums that the blocks of a cluster share: parts sent to who finishes them, and added up there."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import indexed_address, slot_address, sum_register
from polygen.lower.peers import all_blocks
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.sync_work import Nothing
from polygen.lower.work import Combine, Landing, Send

_NEEDS = ("mbarrier", "mbarrier_wait", "cursor", "block_address", "partial_sums", "wait_across")


def _own(of: Landing) -> str:
    """The bytes of a thread's first access."""
    return f"thread % {of.threads} * {of.access_bytes}"


def _each(of: Landing, inside: list[str]) -> list[str]:
    """Lines for all of a thread's groups of columns of one part."""
    return [
        "#pragma unroll",
        f"for (int m = 0; m < {of.rows}; ++m)",
        "#pragma unroll",
        f"  for (int j = 0; j < {of.sent}; ++j) {{",
        *(line if line.startswith("#") else f"    {line}" for line in inside),
        "  }",
    ]


def _place(of: Landing) -> str:
    return f"(m * {of.sent} + j) * {of.group_bytes}" if of.rows > 1 else f"j * {of.group_bytes}"


def _group(of: Landing, first: str = "") -> str:
    """Which of a thread's groups of columns is the j-th that is sent, of the share from `first`."""
    chunk = f"chunk * {of.sent}" if of.sent < of.groups else ""
    return " + ".join(part for part in (first, chunk, "j") if part)


@leaf("send", "st.async", Send, ("chunk",), (), needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Send) -> Text:
    slot, barrier = f"{work.counter}.slot", plan.buffer(work.full.buffer)
    full = indexed_address(barrier, slot, "group" if barrier.owners > 1 else "")
    threads = work.landings[0].threads
    lines = [
        f"const unsigned full = {full};",
        f"if (thread % {threads} == 0) barrier_expect(full, {work.full.bytes});",
    ]
    to = all_blocks(work.blocks)
    for of in work.landings:
        at = slot_address(plan.buffer(of.buffer), slot, "group")
        own = f"{to.own} * {of.part_bytes} + {_own(of)}"
        lines.append(f"const unsigned to_{of.buffer} = {at} + {own};")
    lines += [
        "// Every block begins with itself, so that at no time all send to one.",
        "#pragma unroll",
        f"for (int step = 0; step < {to.steps}; ++step) {{",
        f"  const int d = {to.target.replace('there', to.number)};",
        f"  if ({to.leaves.replace('there', to.number)}) continue;",
        "  const unsigned there = address_in(full, d);",
    ]
    for of in work.landings:
        lines.append(f"  const unsigned {of.buffer}_there = address_in(to_{of.buffer}, d);")
        sums = f"{of.total}[m][{_group(of, f'd * {of.groups}')}]"
        send = f"sums_send({of.buffer}_there + {_place(of)}, {sums}, there);"
        lines += [_deeper(line) for line in _each(of, [send])]
    lines.append("}")
    return Text(
        _block(lines),
        f"{_called(one)}: every block of the cluster gets the sums of its columns",
    )


@leaf("combine", "threads", Combine, ("chunk", "q"), ("q",), needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Combine) -> Text:
    lines = []
    for of in work.landings:
        at = slot_address(plan.buffer(of.buffer), f"{work.counter}.slot", "group")
        lines.append(f"const unsigned {of.buffer}_from = {at} + q * {of.part_bytes} + {_own(of)};")
        sums = f"{of.completed}[m][{_group(of)}][e]"
        added = [
            f"{sum_register(plan.atom.c.dtype)[0]} v[4];",
            f"sums_read({of.buffer}_from + {_place(of)}, v);",
            "#pragma unroll",
            f"for (int e = 0; e < 4; ++e) {sums} = q > 0 ? {sums} + v[e] : v[e];",
        ]
        lines += _each(of, added)
    return Text(_block(lines), f"{_called(one)}: what block q has sent is added")


@leaf("close", "threads", Nothing)
def _(plan: KernelPlan, one: Leaf, work: Nothing) -> Text:
    return Text("", f"{_called(one)}: the parts have been read", inline=True)


def _called(one: Leaf) -> str:
    return f"{one.statement}[{','.join(one.loops)}]"


def _deeper(line: str) -> str:
    return line if line.startswith("#") else f"  {line}"


def _block(lines: list[str]) -> str:
    """Lines as the body of a leaf; directives stay at the margin."""
    return "\n".join(part if part.startswith("#") else block(part) for part in lines)
