"""`Cost` as an explanation: which resource limits a kernel, what it does, at which rates."""

from __future__ import annotations

from collections.abc import Callable

from polygen.hardware.cost_parameters import CostParameters
from polygen.hardware.device import Device
from polygen.schedule.problem import Problem
from polygen.tune.cost import Cost
from polygen.tune.cost.counted import Counts
from polygen.tune.cost.model import BEFORE, fetching

_MEANINGS = {
    "products": "the tensor cores multiply",
    "shared memory": "multiplying instructions read their operands",
    "copies": "tiles come from the L2 cache to shared memory",
    "latency": "a copy takes its time, however many are in flight",
    "way out": "sums become results and leave",
    "device memory": "operands come, results go",
    "start": "launch, first copies, last results",
    BEFORE: "operands are copied or made so that the kernel reads them",
}
_FAMILIAR = 0.02  # of the time: what takes less is not spelt out in the verdict


def explain(device: Device, problem: Problem, cost: Cost, p: CostParameters) -> str:
    """What a kernel's predicted time is made of.

    Args:
        device: the target.
        problem: the sizes predicted for.
        cost: the prediction.
        p: the parameters it was made with.
    """
    c, total = cost.counts, cost.microseconds
    problem = problem.merged  # all pixels, where these are the rows
    operations = 2 * problem.m * problem.n * problem.k * c.clusters // (c.clusters + c.others)
    size = f"m, n, k = {problem.m}, {problem.n}, {problem.k}"
    head = [
        f"predicted: {total:.1f} us for {size} on {device}, {operations / total / 1e6:.0f} TFLOP/s",
        f"bound: {cost.bound}, {cost.share:.0%} of the time: {_MEANINGS[cost.bound]}",
        *_verdict(cost),
    ]
    lines = ["resources, each as if nothing else took time; they overlap:"]
    for name, time in cost.parts:
        lines.append(f"  {name:<14}{time:>9.1f} us {time / total:>5.0%}   {_detail(name, c, p)}")
    return "\n".join([*head, *lines, "the work:", *(f"  {line}" for line in _work(device, c))])


def _verdict(cost: Cost) -> list[str]:
    """What else takes long, and what the rounds leave idle."""
    c = cost.counts
    ranked = sorted(cost.parts, key=lambda part: -part[1])[1:3]
    near = [f"{n} {t / cost.microseconds:.0%}" for n, t in ranked if t > _FAMILIAR]
    lines = [f"next: {', '.join(near)}"] if near else []
    done = c.clusters / (c.busiest * c.slots)
    if c.idle:
        rounds = f"{c.rounds} and {c.last_rounds} of parts" if c.last_rounds else f"{c.rounds}"
        lines.append(
            f"rounds: {done:.0%} full; the last of {rounds} leaves {c.idle} of {c.slots} "
            f"{_slots(c)} idle"
        )
    return lines


def _slots(c: Counts) -> str:
    if c.blocks > 1:
        return f"clusters of {c.blocks} multiprocessors"
    return "multiprocessors"


def _detail(name: str, c: Counts, p: CostParameters) -> str:
    """Count and rate of one resource."""
    return _DETAILS[name](c, p)


def _steps(c: Counts) -> str:
    return f"{c.busiest:g} x {c.k_tiles} k tiles x"


def _products(c: Counts, p: CostParameters) -> str:
    rate = (p.product_rate if c.roles else p.warp_rate) * 2 / c.element_bytes
    return f"{_steps(c)} {c.products} multiply-adds, {rate:.0f} a cycle"


def _shared(c: Counts, p: CostParameters) -> str:
    if c.roles:
        passed = f" and {p.thread_passes:.0f} x {c.threaded} B by threads" if c.threaded else ""
        return f"{_steps(c)} {c.operand_reads} B of operands{passed}, {p.shared_rate:.0f} B a cycle"
    return (
        f"{_steps(c)} {c.operand_reads + c.filled} B read and written, "
        f"{p.warp_shared_rate:.0f} B a cycle"
    )


def _copies(c: Counts, p: CostParameters) -> str:
    if not c.roles:
        parts = []
        if c.narrow:
            each = f"{c.narrow // c.narrow_copies} B at a time"
            parts.append(f"{c.narrow} B, {each}, {p.warp_narrow_rate:g} copies a cycle")
        if wide := c.filled - c.made - c.narrow:
            parts.append(f"{wide} B, {p.warp_fetch_rate:.0f} B a cycle")
        return f"{_steps(c)} {'; '.join([*parts, *_made(c, p)])}"
    rate = c.fetched / max(float(fetching(p, c)), 1.0)
    busy = min(c.clusters, c.slots) * c.blocks
    astride = ", rows astride cache lines" if c.astride else ""
    shared = f" of {c.filled}" if c.blocks > c.split else ""
    rate = min(rate, p.l2_rate / busy)
    found = f"{c.fetched}{shared} B, {rate:.0f} B a cycle{astride}"
    if c.threaded:
        by_hand = (
            f"{c.threaded} B by threads in {c.thread_rounds} round(s), "
            f"{p.thread_rate:.0f} B a cycle"
        )
        found = f"{found}; {by_hand}" if c.fetched else by_hand
    made = "; ".join(_made(c, p))
    if made:
        found = f"{found}; {made}" if c.fetched or c.threaded else made
    return f"{_steps(c)} {found}"


def _made(c: Counts, p: CostParameters) -> list[str]:
    """What threads compute of a k tile."""
    found = []
    if c.made:
        functions = f" with {c.made_functions} functions" if c.made_functions else ""
        found = [f"{c.made} B{functions} computed by threads, {p.compute_rate:.0f} B a cycle"]
    if c.converted:
        functions = f" with {c.converted_functions} functions" if c.converted_functions else ""
        rate = f"{p.fragment_rate:.0f} a cycle"
        found.append(f"{c.converted} elements{functions} computed by consumers, {rate}")
    return found


def _latency(c: Counts, p: CostParameters) -> str:
    cycles = p.latency if c.roles else p.warp_latency
    ahead = "slots of the ring" if c.roles else "k tiles ahead"
    return f"{_steps(c)} {cycles:.0f} cycles or more over {c.ahead} {ahead}"


def _way_out(c: Counts, p: CostParameters) -> str:
    moved = f"{c.result_bytes} B out, {c.matrix_bytes} B in, {c.functions} functions per tile"
    if not c.roles:
        return moved
    lines = ", line by line" if c.in_lines else ""
    how = "from the registers" if c.from_registers else f"in {c.panels} panels{lines}"
    beside = "; beside products of other consumers" if c.turns else ""
    return f"{moved}, {how}{beside}"


def _memory(c: Counts, p: CostParameters) -> str:
    again = f", an operand up to {c.groups} times" if c.groups > 1 else ""
    return (
        f"{c.read_bytes / 1e6:.1f} MB read{again}, {c.written_bytes / 1e6:.1f} MB written, "
        f"{p.memory_share * p.memory * (1 if c.roles else p.warp_memory):.0f} GB/s"
    )


def _before(c: Counts, p: CostParameters) -> str:
    read, written = (c.copied + more for more in (c.made_from, c.made_first))
    moved = f"{read / 1e6:.1f} MB read and {written / 1e6:.1f} MB written"
    functions = f", {c.first_functions} functions" if c.first_functions else ""
    return f"{moved}{functions}, {p.memory_share * p.memory:.0f} GB/s"


def _start(c: Counts, p: CostParameters) -> str:
    return _MEANINGS["start"]


_DETAILS: dict[str, Callable[[Counts, CostParameters], str]] = {
    "products": _products,
    "shared memory": _shared,
    "copies": _copies,
    "latency": _latency,
    "way out": _way_out,
    "device memory": _memory,
    "start": _start,
    BEFORE: _before,
}


def _work(device: Device, c: Counts) -> list[str]:
    """The counts that the times come from."""
    lines = [f"{c.tiles} output tiles of {c.k_tiles} k tiles"]
    if c.others:
        each = c.tiles // c.clusters
        lines.append(f"{each * c.others} tiles more without products, behind those with some")
    if c.roles:
        lines.append(
            f"{min(c.clusters, c.slots) * c.blocks} persistent blocks on {device.multiprocessors} "
            f"multiprocessors, {c.rounds} tile(s) for the busiest"
        )
        lines.append(f"{c.waits} waits of a consumer per tile")
    else:
        lines.append(
            f"{c.resident} block(s) side by side on each of {device.multiprocessors} "
            f"multiprocessors, {c.rounds} tile(s) for the busiest"
        )
    if c.split > 1:
        lines.append(f"{c.split} blocks share the sums of a tile: each sends {c.sent} B of them")
    elif c.last_tiles:
        lines.append(
            f"{c.last_split} blocks share the sums of each of the last {c.last_tiles} tiles: "
            f"{c.last_rounds} part(s) for the busiest, each sends {c.sent} B of them in "
            f"{c.meetings} meeting(s)"
        )
    elif c.passes:
        lines.append(f"the blocks of a cluster cover rows: they meet {c.passes} time(s) a tile")
    if c.outside:
        lines.append(f"{c.outside} B of each k tile lie outside the operands: filled with zeros")
    return lines
