"""Where things of a page's pictures are drawn: rectangles and lines in units of the picture.

A template does no arithmetic: coordinates are worked out here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polygen.hardware.cost_parameters import CostParameters
from polygen.hardware.device import Device
from polygen.lower.buffers import Buffer
from polygen.lower.plan import KernelPlan
from polygen.page.timeline import Timeline
from polygen.schedule.problem import Problem
from polygen.tune.cost import Cost

WIDTH = 960.0
_ROW = 26.0  # of a picture in rows
_LABEL = 110.0  # names on the left
_STEP_LEAST, _STEP_MOST = 9.0, 34.0
_LETTER = 6.2  # about as wide as a letter is
_HUES = 10  # colours of statements, in the style sheet


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle.

    Attributes:
        x: of its left edge.
        y: of its upper edge.
        width: at least as wide as can be pointed at.
        height: likewise.
        kind: its classes in the style sheet.
        text: inside, where it fits.
        title: what pointing at it tells.
        sync: the barrier it is about, or "".
        name: the statement or buffer it shows.
    """

    x: float
    y: float
    width: float
    height: float
    kind: str
    text: str
    title: str
    sync: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes, lines and labels in a frame of a size."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    labels: tuple[tuple[float, float, str], ...] = ()
    lines: tuple[tuple[float, float, float, float, str], ...] = ()  # with a class
    points: tuple[tuple[float, float, str], ...] = ()  # with what they say


def _round(value: float) -> float:
    return round(value, 2)


# --- the timeline -------------------------------------------------------------------------------
def draw_timeline(found: Timeline, statements: Sequence[str]) -> Picture:
    """A row for each track, a box for each step and for each wait that takes steps.

    Args:
        found: what was run.
        statements: names, whose places say the colour.
    """
    step = min(_STEP_MOST, max(_STEP_LEAST, (WIDTH - _LABEL) / max(found.steps, 1)))
    boxes, labels = [], []
    for row, track in enumerate(found.tracks):
        top = row * _ROW
        named = f"{track.place} {track.agents}".strip()
        labels.append((0.0, _round(top + _ROW * 0.62), named))
        for event in track.events:
            at = f" for {event.at}" if event.at else ""
            steps = event.end - event.start
            left = _LABEL + event.start * step
            if event.sync:
                took = f" for {steps} step(s)" if steps else ", which has come already"
                title = f"{event.leaf}{at}: waits at {event.sync}{took}"
                width = steps * step if steps else 3.0
                x = left if steps else left - 1.5
                kind = "wait" if steps else "tick"
                boxes.append(
                    Box(_round(x), _round(top + 3), _round(width), _ROW - 6, kind, "", title,
                        event.sync, event.leaf)
                )  # fmt: skip
                continue
            many = f", {event.count} instances" if event.count > 1 else ""
            hue = statements.index(event.leaf) % _HUES if event.leaf in statements else 0
            text = str(event.k) if event.k >= 0 and step > 2 * _LETTER else ""
            title = f"{event.leaf}{at}{many}"
            boxes.append(
                Box(_round(left), _round(top + 5), _round(steps * step - 0.6), _ROW - 10,
                    f"step hue{hue}", text, title, "", event.leaf)
            )  # fmt: skip
    boxes.sort(key=lambda box: box.kind == "tick")  # ticks on top, to be pointed at
    width = _LABEL + found.steps * step
    return Picture(_round(width), _ROW * len(found.tracks), tuple(boxes), tuple(labels))


# --- kernels one after another ------------------------------------------------------------------
def draw_order(kernels: Sequence[tuple[str, float | None]]) -> Picture:
    """A box for each kernel, as wide as the time that is predicted for it, or all alike.

    Args:
        kernels: names and microseconds; None: not predicted, then of none.
    """
    times = [taken for _, taken in kernels]
    known = [taken for taken in times if taken is not None]
    shares = known if len(known) == len(times) else [1.0] * len(times)
    boxes, left = [], 0.0
    for at, ((name, taken), share) in enumerate(zip(kernels, shares, strict=True)):
        width = WIDTH * share / sum(shares)
        text = name if width > len(name) * _LETTER else str(at + 1)
        title = name if taken is None else f"{name}: {taken:.1f} us predicted"
        boxes.append(
            Box(_round(left), 3, _round(width - 1), _ROW - 6, f"step hue{at % _HUES}", text, title,
                "", name)
        )  # fmt: skip
        left += width
    return Picture(WIDTH, _ROW, tuple(boxes))


# --- shared memory ------------------------------------------------------------------------------
def draw_memory(buffers: Sequence[Buffer], limit: int, syncs: Iterable[tuple[str, str]]) -> Picture:
    """Shared memory from its first byte to the most that a block may have, slot by slot.

    Args:
        buffers: of the plan.
        limit: bytes that a block may have.
        syncs: (buffer of mbarriers, the barrier), which say what barriers' bytes are about.
    """
    of_barriers = dict(syncs)
    scale = WIDTH / limit
    boxes, labels = [], []
    upper = any(buffer.overlay for buffer in buffers)
    for position, buffer in enumerate(buffers):
        top = 0.0 if buffer.overlay or not upper else _ROW + 4
        for owner in range(buffer.owners):
            for slot in range(buffer.slots):
                offset = buffer.offset + owner * buffer.owner_bytes + slot * buffer.slot_bytes
                whose = f" of owner {owner}" if buffer.owners > 1 else ""
                title = f"{buffer.name}[{slot}]{whose}: {buffer.slot_bytes} B at {offset}"
                title += " (over others' bytes, when they are done with)" if buffer.overlay else ""
                width = max(buffer.slot_bytes * scale - 0.8, 1.6)
                text = buffer.name if len(buffer.name) * _LETTER < width else ""
                kind = f"memory {buffer.kind} hue{position % _HUES}"
                boxes.append(
                    Box(_round(offset * scale), top, _round(width), _ROW, kind, text, title,
                        of_barriers.get(buffer.name, ""), buffer.name)
                )  # fmt: skip
    bottom = (2 * _ROW + 4) if upper else _ROW
    used = max((buffer.end for buffer in buffers), default=0)
    free = Box(
        _round(used * scale), bottom - _ROW, _round(max((limit - used) * scale, 0.0)), _ROW,
        "memory free", "", f"free: {limit - used} of {limit} B",
    )  # fmt: skip
    labels.append((0.0, bottom + 14, "0"))
    labels.append((WIDTH - 130, bottom + 14, f"{used} of {limit} B"))
    return Picture(WIDTH, bottom + 20, (*boxes, free), tuple(labels))


# --- the roofline -------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Roofline:
    """Where a kernel lies under the roofs of its device.

    Attributes:
        intensity: operations per byte of device memory that has to be moved.
        predicted: TFLOP/s.
        compute: TFLOP/s that the products could reach.
        memory: GB/s that device memory reaches.
    """

    intensity: float
    predicted: float
    compute: float
    memory: float

    @property
    def ridge(self) -> float:
        """The intensity at which the roofs meet."""
        return self.compute * 1e3 / self.memory

    @property
    def roof(self) -> float:
        """TFLOP/s that both roofs leave at this intensity."""
        return min(self.compute, self.intensity * self.memory * 1e-3)


_WORD = 2  # bytes of the elements for which the model gives rates of products


def roofline(device: Device, problem: Problem, cost: Cost, p: CostParameters) -> Roofline:
    """The point of a kernel, by the cost model: nothing here is measured."""
    c = cost.counts
    operations = 2.0 * problem.m * problem.n * problem.k * problem.products * problem.batches
    a_cycle = p.lane_rate if c.lanes else (p.product_rate if c.roles else p.warp_rate)
    a_cycle = a_cycle if c.lanes else a_cycle * _WORD / c.element_bytes
    compute = 2 * a_cycle * p.clock * device.multiprocessors * 1e-3
    return Roofline(
        operations / (c.read_bytes + c.written_bytes),
        operations / cost.microseconds * 1e-6,
        compute,
        p.memory * p.memory_share,
    )


_HEIGHT, _LEFT, _BOTTOM, _RIGHT, _TOP = 260.0, 64.0, 34.0, 20.0, 12.0
_ROOFLINE_WIDTH = 560.0


def draw_roofline(found: Roofline) -> Picture:
    """Both roofs and the point, on logarithmic axes."""
    low = 10 ** math.floor(math.log10(min(found.intensity, found.ridge) / 2))
    high = 10 ** math.ceil(math.log10(max(found.intensity, found.ridge) * 2))
    least = min(found.predicted, found.memory * low * 1e-3)
    bottom, top = 10 ** math.floor(math.log10(least)), found.compute * 2

    def x(value: float) -> float:
        span = math.log10(high / low)
        return _round(_LEFT + math.log10(value / low) / span * (_ROOFLINE_WIDTH - _LEFT - _RIGHT))

    def y(value: float) -> float:
        share = math.log10(value / bottom) / math.log10(top / bottom)
        return _round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP))

    lines = [
        (x(low), y(found.memory * low * 1e-3), x(found.ridge), y(found.compute), "roof"),
        (x(found.ridge), y(found.compute), x(high), y(found.compute), "roof"),
        (x(low), y(bottom), x(high), y(bottom), "axis"),
        (x(low), y(bottom), x(low), y(top), "axis"),
        (x(found.intensity), y(found.predicted), x(found.intensity), y(found.roof), "gap"),
    ]
    labels = [(x(found.ridge) + 6, y(found.compute) - 5, f"{found.compute:.0f} TFLOP/s")]
    labels.append((x(low) + 8, y(found.memory * low * 1e-3) - 10, f"{found.memory:.0f} GB/s"))
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        labels.append((x(10.0**power) - 6, _HEIGHT - _BOTTOM + 16, f"{10.0**power:g}"))
    for power in range(round(math.log10(bottom)), math.floor(math.log10(top)) + 1):
        labels.append((_LEFT - 44, y(10.0**power) + 4, f"{10.0**power:g}"))
    labels.append((_ROOFLINE_WIDTH / 2 - 70, _HEIGHT - 4, "operations per byte moved"))
    said = (
        f"{found.predicted:.0f} TFLOP/s predicted at {found.intensity:.0f} operations per byte: "
        f"{found.predicted / found.roof:.0%} of the roof"
    )
    point = (x(found.intensity), y(found.predicted), said)
    return Picture(_ROOFLINE_WIDTH, _HEIGHT, (), tuple(labels), tuple(lines), (point,))


def memory_of(plan: KernelPlan) -> Picture:
    """The shared memory of a plan."""
    barriers = [(placed.buffer, placed.name) for placed in plan.syncs if placed.buffer]
    return draw_memory(plan.buffers, plan.resources.shared_limit, barriers)
