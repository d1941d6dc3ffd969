"""Random programs with one to three products, batches, broadcasting, storage orders and slices.

As in `random_programs`, a seed decides everything and integer data makes every answer exact. The
arrays of a roomy program are such that tensor maps describe them, so that schedules with roles fit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from random_programs import BINARY, UNARY, Random, role_schedules

from polygen.api import fuse
from polygen.errors import PolygenError
from polygen.frontend.parse import parse_expression
from polygen.kernel import Kernel
from polygen.schedule.model import Schedule

_BATCHES = ((), (), ("B",), ("B",), ("B", "C"))
_FORMS = ("N", "1,N", "M,1", "M,N", "N,M")
_BATCHED = ("B,1,N", "B,M,N", "B,M,1", "B,1,1")
_EPILOGUE = "defgh"


@dataclass
class _Making:
    """One program under construction."""

    rng: random.Random
    kind: str
    batches: tuple[str, ...]
    depth: str  # "K", or its size where slices need it
    roomy: bool
    whole: str  # "x" or "w": the side whose operands have every batch dim
    signature: dict[str, str] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    @property
    def stored(self) -> str:
        return "f32" if self.kind == "tf32" else self.kind

    def product(self) -> str:
        return f"({self.operand('x', 'M')} @ {self.operand('w', 'N')})"

    def operand(self, side: str, own: str) -> str:
        """An operand, new or not, read as [M, K] on the left and as [K, N] on the right."""
        rng = self.rng
        known = [name for name in self.signature if name[0] == side]
        name = rng.choice(known) if known and rng.random() < 0.4 else f"{side}{len(known)}"
        if name not in self.signature:
            lead = self.batches
            if side != self.whole:
                lead = lead[rng.randint(0, len(lead)) :]
                lead = tuple("1" if rng.random() < 0.2 else dim for dim in lead)
            step = 2 if self.depth != "K" and rng.random() < 0.5 else 1
            depth = self.depth if step == 1 else str(step * int(self.depth))
            last = (own, depth) if rng.random() < 0.5 else (depth, own)
            dims = (*lead, *last)
            self.signature[name] = f"{self.kind}[{','.join(dims)}]{self.order(len(dims))}"
            self.steps[name] = step
        own_is_last = self.signature[name].split("]")[0].endswith(own)
        text = name
        if self.steps[name] > 1:
            part = rng.choice(["::2", "1::2"]) if not self.roomy or own_is_last else "::2"
            text += f"[..., {part}, :]" if own_is_last else f"[..., {part}]"
        return f"{text}.mT" if own_is_last == (side == "x") else text

    def order(self, rank: int) -> str:
        """A storage order; the axes of the matrix stay innermost if the program is roomy."""
        if self.rng.random() < 0.6:
            return ""
        axes = list(range(rank))
        self.rng.shuffle(axes)
        if self.roomy and axes[-1] < rank - 2:
            axes.remove(rank - 1)
            axes.append(rank - 1)
        return ":" + "".join(map(str, axes))

    def argument(self) -> str:
        """An operand of the epilogue."""
        known = [name for name in self.signature if name[0] in _EPILOGUE]
        name = _EPILOGUE[len(known) % len(_EPILOGUE)] + str(len(known))
        if known and self.rng.random() < 0.3:
            name = self.rng.choice(known)
        elif self.rng.random() < 0.1:
            self.signature[name] = "f32"
        else:
            form = self.rng.choice(_FORMS + (_BATCHED if self.batches else ()))
            if self.batches == ("B", "C"):
                form = form.replace("B,", "B,C,")
            kind = self.rng.choice([self.stored, "f32"])
            order = "" if self.roomy or "," not in form else self.order(form.count(",") + 1)
            self.signature[name] = f"{kind}[{form}]{order}"
        return f"{name}.mT" if self.signature[name].split("]")[0].endswith("N,M") else name


def product_program(seed: int, largest: int = 300, *, roomy: bool = False) -> Random:
    """The program of a seed, with sizes up to `largest`."""
    rng = random.Random(f"products {seed} {roomy}")
    step = 16 if roomy else 1
    batches = rng.choice(_BATCHES)
    sizes = {dim: -(-rng.randint(1, largest) // step) * step for dim in "MNK"}
    sizes |= {dim: rng.randint(1, 4) for dim in batches}
    kind = rng.choice(["f16", "bf16", "bf16", "tf32"])
    depth = str(sizes["K"]) if rng.random() < 0.4 else "K"
    making = _Making(rng, kind, batches, depth, roomy, rng.choice("xw"))
    products = [making.product()]
    while len(products) < 3 and rng.random() < 0.6:
        products.append(making.product())
    value = products[0]
    for product in products[1:]:
        value = rng.choice(BINARY).format(value, rng.choice(["{}", *UNARY]).format(product))
    values = [value]
    for _ in range(rng.randint(0, 4)):
        if rng.random() < 0.4:
            value = rng.choice(UNARY).format(value)
        else:
            value = rng.choice(BINARY).format(value, making.argument())
        values.append(value)
    outputs = [values[-1]]
    if rng.random() < 0.3:
        extra = rng.choice([*products, *values])
        outputs.append(f"({extra}).mT" if rng.random() < 0.3 else extra)
    expression = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
    names, none = tuple(making.signature), dict.fromkeys(making.signature, 0)
    described = tuple(making.signature.values())
    used = "".join(described)
    sizes = {name: size for name, size in sizes.items() if name in used}
    return Random(seed, expression, described, names, sizes, None, none, none, roomy)


def compile_products(case: Random, arch: str) -> Kernel:
    """The kernel; a roomy case takes a random schedule with roles, with as many stages as fit."""
    fused = fuse(parse_expression(case.expression, case.names), name=f"products_{case.seed}")
    choices: list[Schedule | str] = ["auto"]
    if case.roomy:
        choices = role_schedules()
        random.Random(case.seed).shuffle(choices)
        choices = [_with_stages(one, n) for one in choices[:6] for n in (4, 2)] + ["auto"]
    for schedule in choices:
        try:
            kernel = fused.compile(*case.signature, arch=arch, sizes=case.sizes, schedule=schedule)
            kernel.artifact  # noqa: B018  (may spill)
        except PolygenError:  # it does not fit this program; "auto" always does
            if schedule == "auto":
                raise
            continue
        return kernel
    raise AssertionError("auto is among the choices")


def _with_stages(schedule: Schedule | str, stages: int) -> Schedule | str:
    if isinstance(schedule, str):
        return schedule
    pipeline = replace(schedule.pipeline, stages=min(stages, schedule.pipeline.stages))
    return replace(schedule, pipeline=replace(pipeline, in_flight=min(1, pipeline.in_flight)))
